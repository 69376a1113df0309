"""Whatever a policy writes, its row stays one row of the table, and nothing of it is lost or rendered away."""

from pathlib import Path
from typing import Any

import pytest

from grpo_jax.training.samples import Sample, remove_samples_after, samples_table, write_samples


def sample(**changes: Any) -> Sample:
    values: dict[str, Any] = {
        "prompt": "<user>12+34<assistant>",
        "completion": "<think>2+4=6</think><answer>46</answer>",
        "reference": "46",
        "stage": "addition",
        "tokens": 20,
        "end": "eos",
        "components": {"accuracy": 1.0, "format": None},
        "reward": 1.2,
        "advantage": 0.5,
    }
    return Sample(**(values | changes))


def rows(text: str) -> list[list[str]]:
    """The cells of the table's rows as a Markdown reader splits them: at bars without a backslash before them."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [
        [cell.replace("\0", "|").strip() for cell in line.replace("\\|", "\0").strip("|").split("|")] for line in lines[2:]
    ]


def test_table_shows_prompt_completion_rewards_advantage_and_end() -> None:
    text = samples_table(10, [sample(), sample(advantage=-0.5, reward=None, end="length")])
    assert "step 10" in text
    assert "`<user>12+34<assistant>`" in text and "addition" in text and "`46`" in text
    assert "mean reward 1.200" in text
    assert rows(text) == [
        ["1", "+0.500", "1.200", "1.000", "–", "eos", "20", "`<think>2+4=6</think><answer>46</answer>`"],
        ["2", "-0.500", "–", "1.000", "–", "length", "20", "`<think>2+4=6</think><answer>46</answer>`"],
    ]


@pytest.mark.parametrize(
    "completion",
    ["a|b", "a\nb", "a\r\nb", "||", "`", "``x``", "`a", "", " ", "\x1b[31m", "\u202edcba", "\u2028", "\ud800", "\\|", "\\"],
)
def test_any_completion_is_one_cell_of_one_row(completion: str, tmp_path: Path) -> None:
    path = write_samples(tmp_path, 1, [sample(completion=completion), sample()])
    table = rows(path.read_text(encoding="utf-8"))
    assert len(table) == 2
    assert all(len(row) == 8 for row in table)


@pytest.mark.parametrize(
    ("completion", "cell"),
    [
        ("a|b", "`a|b`"),
        ("a\nb", "`a⏎b`"),
        ("\x1b[31m", "`\\x1b[31m`"),
        ("\u202edcba", "`\\u202edcba`"),
        ("a`b", "``a`b``"),
        ("`a", "`` `a ``"),
        ("", "*(empty)*"),
    ],
)
def test_completion_is_shown_as_it_is(completion: str, cell: str) -> None:
    assert rows(samples_table(1, [sample(completion=completion)]))[0][-1] == cell


def test_neighbours_with_one_prompt_are_one_group() -> None:
    text = samples_table(1, [sample(), sample(), sample(prompt="other"), sample(prompt="other")])
    assert text.count("## ") == 2
    assert text.count("| # |") == 2


def test_samples_of_steps_to_be_done_over_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    for step in (1, 10, 11, 2_000_000):
        write_samples(tmp_path, step, [sample()])
    (tmp_path / "step_notes.md").write_text("mine")
    remove_samples_after(tmp_path, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001.md", "step_000010.md", "step_notes.md"]


def test_file_is_named_by_its_step(tmp_path: Path) -> None:
    assert write_samples(tmp_path, 10, [sample()]).name == "step_000010.md"
