"""Configurations refuse what cannot run, naming the key and the value."""

import dataclasses

import pytest

from grpo_jax.model import GQAConfig, MLAConfig, ModelConfig, RopeConfig, YarnConfig
from tests.model.cases import CONFIGS, GQA, MLA, SIZES

YARN = {"factor": 4.0, "original_max_length": 64}
ATTENTION = {"gqa": GQAConfig(**GQA)}

GOOD = {
    YarnConfig: ("rope.yarn", YARN),
    RopeConfig: ("rope", {}),
    MLAConfig: ("model.mla", MLA),
    GQAConfig: ("model.gqa", GQA),
    ModelConfig: ("model", SIZES | ATTENTION),
}

NOT_A_SIZE = (0, -1, 2.0, "8", True, None)
WRONG = [
    *((ModelConfig, key, value) for key in (*SIZES, "scan_unroll") for value in NOT_A_SIZE),
    *((MLAConfig, key, value) for key in MLA for value in NOT_A_SIZE),
    *((MLAConfig, "q_rank", value) for value in NOT_A_SIZE if value is not None),
    *((GQAConfig, key, value) for key in GQA for value in NOT_A_SIZE),
    *((YarnConfig, "original_max_length", value) for value in NOT_A_SIZE),
    (MLAConfig, "rope_dim", 7),
    (GQAConfig, "head_dim", 7),
    (GQAConfig, "num_heads", 3),
    (ModelConfig, "norm_eps", 0.0),
    (ModelConfig, "norm_eps", float("nan")),
    (ModelConfig, "initializer_range", 0.0),
    (ModelConfig, "initializer_range", -0.02),
    (ModelConfig, "remat", "some"),
    (ModelConfig, "param_dtype", "float16"),
    (ModelConfig, "compute_dtype", "fp32"),
    (RopeConfig, "theta", 1.0),
    (RopeConfig, "theta", -10000.0),
    (YarnConfig, "factor", 0.5),
    (YarnConfig, "factor", float("nan")),
    (YarnConfig, "beta_slow", 0.0),
    (YarnConfig, "beta_fast", 1.0),
    (YarnConfig, "attention_factor", 0.0),
    (YarnConfig, "attention_factor", -1.0),
]


@pytest.mark.parametrize("kind, key, value", WRONG, ids=lambda item: item.__name__ if isinstance(item, type) else repr(item))
def test_wrong_value_is_refused_by_key_and_value(kind, key, value):
    prefix, good = GOOD[kind]
    with pytest.raises(ValueError) as error:
        kind(**good | {key: value})
    assert str(error.value).startswith(f"{prefix}.{key}={value!r} ")


@pytest.mark.parametrize("kind", GOOD)
def test_the_values_that_the_wrong_ones_replace_are_accepted(kind):
    kind(**GOOD[kind][1])


@pytest.mark.parametrize("attention, given", [({}, "neither"), ({"mla": MLAConfig(**MLA)} | ATTENTION, "both")])
def test_a_model_has_exactly_one_kind_of_attention(attention, given):
    with pytest.raises(ValueError, match=rf"model\.mla and model\.gqa: {given} given"):
        ModelConfig(**SIZES, **attention)


@pytest.mark.parametrize(
    "key, known",
    [("remat", "none, full, dots"), ("param_dtype", "float32, bfloat16"), ("compute_dtype", "float32, bfloat16")],
)
def test_an_unknown_choice_lists_the_known_ones(key, known):
    with pytest.raises(ValueError, match=known):
        ModelConfig(**SIZES, **ATTENTION, **{key: "other"})


def test_a_rule_between_two_keys_names_both():
    with pytest.raises(ValueError, match=r"model\.gqa\.num_heads=4 .*model\.gqa\.num_kv_heads=3"):
        GQAConfig(**GQA | {"num_kv_heads": 3})
    with pytest.raises(ValueError, match=r"rope\.yarn\.beta_fast=2.* rope\.yarn\.beta_slow=3"):
        YarnConfig(**YARN, beta_fast=2.0, beta_slow=3.0)


def test_configs_are_frozen_and_equal_ones_hash_alike():
    config = CONFIGS["mla_yarn"]
    copy = dataclasses.replace(config, mla=dataclasses.replace(config.mla))
    assert copy is not config and copy == config and hash(copy) == hash(config)
    assert len(set(CONFIGS.values())) == len(CONFIGS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_layers = 3
