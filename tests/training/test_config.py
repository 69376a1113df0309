"""Impossible combinations are refused with the key, the value, the rule and the remedy; possible ones are not."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from grpo_jax.objectives import GRPOConfig
from grpo_jax.training import configfile, schema
from grpo_jax.training.config import GRPORunConfig, RunConfig
from grpo_jax.training.rules import check, check_vocabulary
from grpo_jax.training.schema import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"


def smoke(**options: Any) -> RunConfig:
    given = [(key.replace("__", "."), str(value)) for key, value in options.items()]
    return configfile.load(CONFIGS / "smoke.yaml", given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grpo__group_size": 1}, ["grpo.group_size", "1", "at least 2"]),
        ({"grpo__steps": -1}, ["grpo.steps", "-1", "0 or more"]),
        ({"grpo__kl_coef": -0.5}, ["grpo.kl_coef", "-0.5", "0 or more"]),
        ({"grpo__microbatches": 3}, ["grpo.prompts × grpo.group_size", "16", "divisible by 3", "15 and 18"]),
        ({"sft__rows": 12, "mesh": "8"}, ["sft.rows", "12", "divisible by 8", "8 and 16"]),
        ({"sft__rows": 16, "sft__microbatches": 4, "mesh": "8"}, ["sft.rows", "16", "divisible by 32", "32"]),
        ({"evaluation__rows": 15}, ["evaluation.rows", "15", "evaluation.samples", "14 and 16"]),
        ({"evaluation__rows": 4, "mesh": "8"}, ["evaluation.rows", "4", "divisible by 8"]),
        ({"model__mla__num_heads": 6, "mesh": "1x4"}, ["model.mla.num_heads", "6", "tensor", "4"]),
        ({"model__vocab_size": 26, "mesh": "1x8"}, ["model.vocab_size", "26", "tensor", "8"]),
        ({"model__mla__rope_dim": 3}, ["model.mla.rope_dim", "3", "even"]),
        ({"pretrained__path": "x.gguf"}, ["model", "pretrained", "both", "null"]),
        ({"model": "null"}, ["model", "pretrained", "both null"]),
        ({"mesh": "3y"}, ["mesh", "3y"]),
        ({"mesh": "expert=2"}, ["mesh", "expert", "2"]),
        ({"sft__steps": 0, "grpo__steps": 0}, ["sft.steps", "grpo.steps", "nothing"]),
        ({"grpo__optimizer__warmup_steps": 3}, ["grpo.optimizer.warmup_steps", "3", "2 updates"]),
        ({"grpo__optimizer__end_fraction": 0.5}, ["grpo.optimizer.end_fraction", "0.5", "constant"]),
        ({"rollout__sampler__temperature": 0}, ["rollout.sampler.temperature", "0", "above 0"]),
        ({"evaluation__sampler__temperature": 0}, ["evaluation.sampler.temperature", "0", "above 0"]),
        ({"rollout__sampler__top_p": 2}, ["rollout.sampler.top_p", "2", "at most 1"]),
        ({"data__curriculum__advance_at": 0.5}, ["data.curriculum.advance_at", "0.5", "sequential"]),
        ({"data__curriculum__mode": "sequential"}, ["evaluation.sft_every", "0", "sequential"]),
        (
            {"data__curriculum__mode": "sequential", "evaluation__sft_every": 1},
            ["evaluation.every", "0", "GRPO", "sequential"],
        ),
        ({"data__task": "arithmetics"}, ["data.task", "arithmetics", "Did you mean arithmetic"]),
        ({"data__task": "gsm8k"}, ["data.path", "null", "--data.path"]),
        ({"data__path": "x.jsonl"}, ["data.path", "x.jsonl", "arithmetic"]),
        ({"data__task": "jsonl", "data__path": "x"}, ["data.tokenizer.alphabet", "null", "jsonl"]),
        ({"data__heldout_path": "x.jsonl"}, ["data.heldout_path", "x.jsonl", "when path is null"]),
        ({"data__options__path": "x"}, ["data.options", "path"]),
        ({"data__tokenizer__path": "t.json"}, ["data.tokenizer.eos", "[]", "one or more"]),
        ({"data__tokenizer__eos": "[a]"}, ["data.tokenizer.eos", "['a']", "empty"]),
        ({"seed": -1}, ["seed", "-1"]),
    ],
)
def test_impossible_combination_is_one_message_naming_key_value_and_rule(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        smoke(**options)
    message = str(refusal.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("mesh", ["1", "8", "8x8", "data=2,fsdp=8,tensor=4", "2x4x2"])
def test_smoke_config_fits_every_documented_mesh(mesh: str) -> None:
    assert smoke(mesh=mesh).mesh_shape.size >= 1


def test_pretrained_model_keeps_its_own_tokenizer() -> None:
    with pytest.raises(ConfigError, match=r"data\.tokenizer .* brings the tokenizer"):
        smoke(model="null", pretrained__path="x.gguf", data__tokenizer__alphabet="abc")


def test_vocabulary_smaller_than_the_tokenizer_is_refused() -> None:
    config = smoke()
    check_vocabulary(config, 32)
    with pytest.raises(ConfigError, match=r"model\.vocab_size is 32, but it must be at least 33"):
        check_vocabulary(config, 33)


def test_objective_of_a_grpo_section_has_every_field_of_the_objective() -> None:
    section = GRPORunConfig(kl_coef=0.5, entropy_coef=0.1, steps=7)
    assert section.objective == GRPOConfig(kl_coef=0.5, entropy_coef=0.1)


def test_warm_up_is_measured_in_updates_not_rollouts() -> None:
    config = smoke(grpo__updates_per_rollout=2, grpo__optimizer__warmup_steps=4)
    check(config)
    with pytest.raises(ConfigError, match="warmup_steps"):
        check(dataclasses.replace(config, grpo=dataclasses.replace(config.grpo, updates_per_rollout=1)))


def test_every_key_of_the_configuration_is_documented() -> None:
    assert [key.path for key in schema.keys(RunConfig) if not key.doc] == []
