"""A position survives JSON, and one of another version is refused with what to do."""

import json

import pytest

from grpo_jax.training.position import Position

START = Position.start("grpo", ("easy", "hard"), tokenizer="t", data="d", has_reference=True)


def test_position_survives_json() -> None:
    later = START.after_step().with_curriculum({"level": 1, "since": 3, "drawn": {"easy": 2, "hard": 1}})
    assert Position.from_json(json.loads(json.dumps(later.to_json()))) == later
    assert later.step == 1 and START.step == 0


def test_position_of_another_version_is_refused_with_a_remedy() -> None:
    document = START.to_json()
    del document["has_reference"]
    with pytest.raises(ValueError, match="another version wrote it"):
        Position.from_json(document)
