"""Format: 1 where a completion has the structure asked for, 0 where it does not."""

from collections.abc import Sequence

from grpo_jax.rewards.protocol import Reward, RewardInput


def format_reward(tags: Sequence[str] = ("think", "answer"), filled: Sequence[str] = ("answer",)) -> Reward:
    """A reward for `<think>…</think><answer>…</answer>` and its kin.

    Every opening and closing tag stands exactly once and in order, nothing but white space stands outside, and the
    sections in `filled` hold more than white space.

    Raises:
      ValueError: `tags` is empty or repeats a tag, or `filled` names another.
    """
    if not tags or len(set(tags)) < len(tags) or not set(filled) <= set(tags):
        raise ValueError(f"tags are distinct and at least one, and filled is among them; got {tags} and {filled}")
    marks = [mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")]

    def structure(row: RewardInput) -> float:
        text = row.completion
        if any(text.count(mark) != 1 for mark in marks):
            return 0.0
        outside, position = [], 0
        for tag in tags:
            start, end = text.find(f"<{tag}>", position), text.find(f"</{tag}>", position)
            content = start + len(tag) + 2
            if start < 0 or end < content or (tag in filled and not text[content:end].strip()):
                return 0.0
            outside.append(text[position:start])
            position = end + len(tag) + 3
        outside.append(text[position:])
        return float(not any(part.strip() for part in outside))

    return structure


def boxed_once(row: RewardInput) -> float:
    """1 where the completion holds exactly one `\\boxed{`."""
    return float(row.completion.count("\\boxed{") == 1)


def hash_mark_once(row: RewardInput) -> float:
    """1 where the completion ends in a line of its own that starts with "####", the only one."""
    return float(row.completion.count("####") == 1 and row.completion.rstrip().rpartition("\n")[2].startswith("####"))
