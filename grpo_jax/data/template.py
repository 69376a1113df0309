"""The prompt template: the one place where a question becomes prompt ids, for SFT, GRPO, evaluation and serving."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from grpo_jax.data.task import Problem
from grpo_jax.data.tokenizer import Tokenizer

PROBLEM_SLOT = "{problem}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """What surrounds a question.

    Attributes:
      system_prompt: text of a system message put first, None for none.
      user_format: text of the user message; "{problem}" stands for the question.
      chat_template: jinja2 chat template, None for the tokenizer's own.
    """

    system_prompt: str | None = None
    user_format: str = PROBLEM_SLOT
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if self.user_format.count(PROBLEM_SLOT) != 1:
            raise ValueError(
                f"user_format holds {PROBLEM_SLOT!r} exactly once, where the question goes; got {self.user_format!r}"
            )


class PromptTemplate:
    """Renders conversations with a chat template and encodes them, prompt and completion apart.

    Prompt and completion are tokenised separately and their ids joined, in SFT as in sampling, so the policy meets in
    GRPO exactly the prompt ids that it was fine-tuned on.

    Args:
      tokenizer: encodes the rendered text.
      config: what surrounds a question.

    Raises:
      ValueError: there is no chat template, or it is not valid jinja2.
    """

    def __init__(self, tokenizer: Tokenizer, config: PromptConfig | None = None) -> None:
        self.tokenizer = tokenizer
        self.config = PromptConfig() if config is None else config
        source = tokenizer.chat_template if self.config.chat_template is None else self.config.chat_template
        if source is None:
            raise ValueError(f"tokenizer {tokenizer.name!r} brings no chat template; set chat_template in the prompt config")
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"chat_template is not valid jinja2: line {error.lineno}: {error.message}") from error

    def messages(self, problem: Problem | str) -> list[dict[str, str]]:
        """The conversation that asks `problem`: the system prompt if there is one, then the user's message."""
        question = problem.prompt if isinstance(problem, Problem) else problem
        user = {"role": "user", "content": self.config.user_format.replace(PROBLEM_SLOT, question)}
        if self.config.system_prompt is None:
            return [user]
        return [{"role": "system", "content": self.config.system_prompt}, user]

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """Text of a conversation, ending where the assistant's next words begin.

        Args:
          messages: mappings with "role" and "content".
          add_generation_prompt: False renders the conversation alone.

        Raises:
          ValueError: the template refuses the messages.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                bos_token=self.tokenizer.bos_token,
                eos_token=self.tokenizer.decode(self.tokenizer.eos_ids[:1]),
            )
        except Exception as error:  # a template is a program: it may divide by zero or add text to a number
            roles = [message.get("role") for message in messages]
            raise ValueError(f"the chat template cannot render messages with roles {roles}: {error}") from error

    def prompt_text(self, problem: Problem | str) -> str:
        """The text that `encode_prompt` encodes."""
        return self.render(self.messages(problem))

    def encode_prompt(self, problem: Problem | str) -> list[int]:
        """Prompt ids of a problem, or of a bare question."""
        return self.tokenizer.encode(self.prompt_text(problem))

    def encode_messages(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Prompt ids of a whole conversation whose next turn is the assistant's."""
        return self.tokenizer.encode(self.render(messages))

    def encode_completion(self, text: str) -> list[int]:
        """Completion ids of `text`, closed by the tokenizer's first eos id."""
        return [*self.tokenizer.encode(text), self.tokenizer.eos_ids[0]]

    def completion_text(self, ids: Sequence[int]) -> str:
        """Text of completion ids without the eos id that closed them, if one did: what the rewards read."""
        ended = len(ids) > 0 and ids[-1] in self.tokenizer.eos_ids
        return self.tokenizer.decode(ids[:-1] if ended else ids)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """The sandbox and the globals that published chat templates expect (Hugging Face chat template conventions)."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    # jinja's own tojson escapes HTML, which would put < into prompts.
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    # strftime_now stays undefined: templates that ask for it fall back to a fixed date, and a prompt that changes from
    # day to day would make a resumed run differ from one that was never stopped.
    return environment


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
