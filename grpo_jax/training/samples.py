"""Tables of sampled completions in Markdown: what was asked, what the policy wrote, what it got for that and why."""

import dataclasses
import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_jax.checkpoint.atomic import atomic_write


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One completion of a rollout, as people read it.

    Attributes:
        prompt: the prompt's text as the model saw it, template and all.
        completion: the completion's text.
        reference: the answer that the accuracy reward compares with.
        stage: the curriculum stage of the problem.
        tokens: length of the completion in tokens.
        end: how the row ended: `eos` or `length`.
        components: each component of the reward by name; None for one that does not apply.
        reward: the reward; None where it is missing.
        advantage: the advantage that the row got within its group.
    """

    prompt: str
    completion: str
    reference: str
    stage: str
    tokens: int
    end: str
    components: Mapping[str, float | None]
    reward: float | None
    advantage: float


def samples_path(folder: Path, step: int) -> Path:
    """The file of a GRPO step's samples: step_000010.md."""
    return folder / f"step_{step:06d}.md"


def write_samples(folder: Path, step: int, samples: Sequence[Sample]) -> Path:
    """Writes the samples of a GRPO step, neighbours with the same prompt as one group; returns the file."""
    path = samples_path(folder, step)
    atomic_write(path, samples_table(step, samples))
    return path


def remove_samples_after(folder: Path, step: int) -> None:
    """Deletes the samples of later GRPO steps, which a resumed run does over again."""
    for path in folder.glob(samples_path(folder, 0).name.replace("000000", "*")):
        number = path.stem.removeprefix("step_")
        if number.isdecimal() and int(number) > step:
            path.unlink()


def samples_table(step: int, samples: Sequence[Sample]) -> str:
    """The Markdown of a GRPO step's samples: a section and a table for each group."""
    parts = [f"# Samples of GRPO step {step}\n"]
    for number, (prompt, members) in enumerate(itertools.groupby(samples, lambda sample: sample.prompt), start=1):
        group = list(members)
        rewards = [sample.reward for sample in group if sample.reward is not None]
        mean = f", mean reward {sum(rewards) / len(rewards):.3f}" if rewards else ""
        about = f"Stage {_escaped(group[0].stage)}, reference {_code(group[0].reference)}{mean}."
        parts.append(f"## {number}. {_code(prompt)}\n\n{about}\n")
        parts.append(_group_table(group))
    return "\n".join(parts)


def _group_table(group: Sequence[Sample]) -> str:
    names = list(dict.fromkeys(name for sample in group for name in sample.components))
    titles = ["#", "advantage", "reward", *map(_escaped, names), "ended", "tokens", "completion"]
    numeric = 3 + len(names)
    rule = ["--:"] * numeric + [":--", "--:", ":--"]
    rows = [
        [
            str(index),
            f"{sample.advantage:+.3f}",
            _number(sample.reward),
            *(_number(sample.components.get(name)) for name in names),
            _escaped(sample.end),
            str(sample.tokens),
            _code(sample.completion),
        ]
        for index, sample in enumerate(group, start=1)
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in (titles, rule, *rows))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _escaped(text: str) -> str:
    """Text in a table's cell."""
    return _visible(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    """Text of any kind as a code span on one line, so that tags, stars and bars of a completion stay what they are."""
    if not text:
        return "*(empty)*"
    longest = max((len(list(run)) for is_tick, run in itertools.groupby(text, "`".__eq__) if is_tick), default=0)
    fence = "`" * (longest + 1)
    # A span that begins or ends with a backtick or a space needs a space between it and the fence.
    pad = " " if text[0] in "` " or text[-1] in "` " else ""
    # Tables split their cells at bars before anything else, even inside code.
    return f"{fence}{pad}{_visible(text)}{pad}{fence}".replace("|", "\\|")


def _visible(text: str) -> str:
    """Line ends as ⏎; other control characters, and those that turn the direction of text, as escapes."""
    return "".join(
        "⏎" if character == "\n" else character if _is_plain(character) else character.encode("unicode_escape").decode()
        for character in text
    )


def _is_plain(character: str) -> bool:
    # Cc controls, Cf formats (bidirectional marks among them), Cs lone surrogates, Zl and Zp line separators.
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
