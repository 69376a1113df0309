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


def test_controls_and_replay_survive_json() -> None:
    start = Position.start("grpo", ("easy",), tokenizer="t", data="d", replay_components=["accuracy", "format"])
    assert start.controls == {} and not start.has_reference
    later = start.with_controls({"schedules": {"kl_coef": {"multiplier": 2.0}}, "temperature_factor": 0.1 + 0.2})
    again = Position.from_json(json.loads(json.dumps(later.to_json())))
    assert again == later and again.controls["temperature_factor"] == 0.1 + 0.2
    assert again.replay_components == ["accuracy", "format"] and start.controls == {}
    assert START.replay_components is None


def test_position_with_a_key_too_many_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has the keys .*'later'.*another version"):
        Position.from_json(START.to_json() | {"later": 1})
