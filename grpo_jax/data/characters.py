"""A tokenizer of single characters and a few whole-word special tokens, for models trained from scratch."""

import hashlib
import json
import re
from collections.abc import Sequence

from grpo_jax.data.tokenizer import UNKNOWN_TEXT

SPECIALS = ("<eos>", "<user>", "<assistant>", "<think>", "</think>", "<answer>", "</answer>")
"""Special tokens by default; the first ends a completion."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}<user>{{ message.content }}"
    "{% elif message.role == 'assistant' %}<assistant>{{ message.content }}{{ eos_token }}"
    "{% else %}{{ raise_exception('the character chat template has no place for a ' ~ message.role ~ ' message; "
    "leave system_prompt unset or give a chat_template that renders it') }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""`<user>question<assistant>`: two tokens of overhead."""


class CharacterTokenizer:
    """One id per character of `alphabet`, one id per special token.

    Ids 0, 1, … are the specials in the order given, then the characters in the order given. Where several specials
    match at one place the longest wins, and a special wins over its characters. The padding id is the eos id.

    Args:
      alphabet: the characters that text may hold, each once.
      specials: whole words that become one token each.
      eos: the specials that end a completion, the one written by SFT first.
      chat_template: jinja2 template of a conversation; the default needs <user> and <assistant> among the specials.

    Raises:
      ValueError: a character or special is given twice, a special is shorter than two characters, or `eos` is empty or
        not among the specials.
    """

    def __init__(
        self,
        alphabet: str,
        specials: Sequence[str] = SPECIALS,
        *,
        eos: Sequence[str] = ("<eos>",),
        chat_template: str | None = CHAT_TEMPLATE,
    ) -> None:
        tokens = (*specials, *alphabet)
        repeated = sorted({token for token in tokens if tokens.count(token) > 1})
        if repeated:
            raise ValueError(f"each character and special token is given once; given more than once: {repeated}")
        short = [special for special in specials if len(special) < 2]
        if short:
            raise ValueError(
                f"a special token has at least two characters, got {short}; put single characters in the alphabet"
            )
        unknown = [token for token in eos if token not in specials]
        if unknown or not eos:
            raise ValueError(f"eos names at least one of the special tokens {list(specials)}, got {list(eos)}")
        self._tokens = tokens
        self._ids = {token: index for index, token in enumerate(tokens)}
        self._eos_ids = tuple(self._ids[token] for token in eos)
        self._chat_template = chat_template
        longest_first = sorted(specials, key=len, reverse=True)
        self._pattern = re.compile("|".join([*map(re.escape, longest_first), "."]), re.DOTALL)

    @property
    def name(self) -> str:
        return "characters"

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self._eos_ids

    @property
    def pad_id(self) -> int:
        return self._eos_ids[0]

    @property
    def bos_token(self) -> str:
        return ""

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    def encode(self, text: str) -> list[int]:
        """Ids of `text`.

        Raises:
          ValueError: a character is not in the alphabet; names it and its position.
        """
        ids = []
        for match in self._pattern.finditer(text):
            token = self._ids.get(match.group())
            if token is None:
                character, position = match.group(), match.start()
                raise ValueError(
                    f"character {character!r} (U+{ord(character):04X}) at position {position} is not in the alphabet of "
                    f"the tokenizer; text around it: {text[max(0, position - 10) : position + 11]!r}. Add it to the "
                    f"alphabet or clean the text"
                )
            ids.append(token)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included; an id outside the vocabulary becomes U+FFFD."""
        return "".join(self._tokens[i] if 0 <= i < len(self._tokens) else UNKNOWN_TEXT for i in ids)

    def fingerprint(self) -> str:
        """Hex sha256 of the tokens in order and of the eos ids."""
        content = json.dumps(["characters", self._tokens, self._eos_ids], ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()
