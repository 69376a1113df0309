"""Impossible combinations are refused with the key, the value, the rule and the remedy; possible ones are not."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from grpo_jax.objectives import (
    RATIO_OPTIONS,
    AdvantageConfig,
    GroupsConfig,
    GRPOConfig,
    KLConfig,
    OffPolicyConfig,
    PolicyConfig,
)
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
        ({"grpo__policy__clip_high": 0.3}, ["grpo.policy.clip_high", "0.3", "on-policy", "exactly 1", "null"]),
        ({"grpo__policy__term": "kl_cov"}, ["grpo.policy.term", "kl_cov", "on-policy", "clip_cov"]),
        ({"grpo__minibatches": 0}, ["grpo.minibatches", "0", "at least 1"]),
        (
            {"grpo__minibatches": 3},
            ["grpo.prompts × grpo.group_size", "16", "divisible by 3", "grpo.minibatches 3", "15 and 18"],
        ),
        (
            {"grpo__minibatches": 2, "grpo__microbatches": 4, "mesh": "4"},
            [
                "grpo.prompts × grpo.group_size",
                "16",
                "divisible by 32",
                "grpo.minibatches 2 × grpo.microbatches 4",
                "4 row shards",
            ],
        ),
        (
            {"grpo__groups__dead": "replay", "grpo__advantage__estimator": "reinforce_pp"},
            ["grpo.groups.dead", "replay", "batch_mean", "reinforce_pp", "Set it to keep"],
        ),
        (
            {
                "grpo__updates_per_rollout": 2,
                "grpo__minibatches": 3,
                "grpo__off_policy__max_staleness": 4,
                "grpo__prompts": 6,
            },
            ["grpo.off_policy.max_staleness", "4", "updates_per_rollout 2 × minibatches 3", "5 updates behind"],
        ),
        ({"grpo__groups__max_refills": 2}, ["grpo.groups.max_refills", "2", "refill"]),
        ({"grpo__groups__replay_groups": 2}, ["grpo.groups.replay_groups", "2", "replay"]),
        ({"schedules__kl_coef__kind": "saturation"}, ["schedules.kl_coef.kind", "saturation", "adaptive_kl"]),
        (
            {"schedules__kl_coef__kind": "linear", "grpo__kl_coef": 0},
            ["schedules.kl_coef.kind", "linear", "constant", "grpo.kl_coef"],
        ),
        (
            {"schedules__kl_coef__kind": "linear", "schedules__kl_coef__steps": 3},
            ["schedules.kl_coef.steps", "3", "grpo.steps, 2"],
        ),
        (
            {"schedules__kl_coef__kind": "adaptive_kl", "schedules__kl_coef__target": 0.1, "schedules__kl_coef__horizon": 3},
            ["schedules.kl_coef.horizon", "3", "0.2 · 16"],
        ),
        (
            {"schedules__entropy_coef__kind": "linear", "schedules__entropy_coef__end": 0.1},
            ["schedules.entropy_coef.kind", "linear", "grpo.entropy_coef is null", "no entropy bonus"],
        ),
        ({"grpo__entropy_coef": 0}, ["grpo.entropy_coef", "0.0", "constant schedule", "entropy_target"]),
        ({"on_alarm": "raise_kl", "grpo__kl_coef": 0}, ["on_alarm", "raise_kl", "grpo.kl_coef is 0"]),
        ({"on_alarm": "kl_runaway=stop,dead_groups=raise_kl", "grpo__kl_coef": 0}, ["on_alarm", "grpo.kl_coef is 0"]),
        ({"on_alarm": "stop", "grpo__steps": 0}, ["on_alarm", "stop", "grpo.steps is 0"]),
        ({"on_alarm": "halt"}, ["on_alarm", "halt", "stop, raise_kl, lower_temperature"]),
        ({"monitor__window": 2}, ["monitor.window", "2", "at least 3"]),
        (
            {"data__curriculum__mode": "difficulty", "grpo__steps": 0},
            ["data.curriculum.mode", "difficulty", "grpo.steps is 0"],
        ),
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


@pytest.mark.parametrize("name", RATIO_OPTIONS)
def test_what_acts_on_the_ratio_is_refused_where_the_ratio_is_one(name: str) -> None:
    term = {
        "dual_clip": "dual_clip",
        "ratio_cap": "cispo",
        "log_clip_low": "gmpo",
        "log_clip_high": "gmpo",
        "gate_positive": "sapo",
        "gate_negative": "sapo",
        "cov_kl_coef": "kl_cov",
    }.get(name, "grpo")
    policy = PolicyConfig(term=term, **{name: 1.5 if name == "dual_clip" else 0.5})
    with pytest.raises(ValueError, match=rf"policy\.{name} is .*on-policy.*exactly 1.*Leave it null"):
        GRPORunConfig(policy=policy)
    # Each of the ways to leave the policy behind gives it something to act on.
    for reuse in (
        {"updates_per_rollout": 2},
        {"minibatches": 2},
        {"off_policy": OffPolicyConfig(old_logprobs="sampler")},
        {"groups": GroupsConfig(dead="replay")},
    ):
        GRPORunConfig(policy=policy, **reuse)


def test_options_of_the_selection_have_a_use_on_policy_too() -> None:
    GRPORunConfig(policy=PolicyConfig(term="clip_cov", cov_ratio=0.1, cov_low=0.5, cov_high=2.0))


def test_coefficients_that_something_will_move_may_start_from_nothing() -> None:
    options = {"schedules__entropy_coef__kind": "entropy_target", "schedules__entropy_coef__target": 1.0}
    assert smoke(grpo__entropy_coef=0, **options).coefficients["entropy_coef"] == 0.0
    # Without GRPO nothing of it is looked at.
    smoke(grpo__steps=0, grpo__entropy_coef=0)


def test_an_alarm_may_be_answered_without_a_kl() -> None:
    config = smoke(on_alarm="dead_groups=stop", grpo__kl_coef=0, grpo__steps=20)
    check(config)
    assert config.alarm_actions == {"dead_groups": "stop"}
    # For all alarms alike, those that cannot be raised are passed over.
    check(smoke(on_alarm="stop", grpo__kl_coef=0, grpo__steps=20))


def test_bound_on_staleness_holds_at_the_last_update() -> None:
    """The last of n updates on a rollout is n − 1 behind the policy that sampled it."""
    for updates, minibatches in itertools.product((1, 2, 3), (1, 2, 4)):
        reuse = {"updates_per_rollout": updates, "minibatches": minibatches}
        bound = updates * minibatches - 1
        GRPORunConfig(off_policy=OffPolicyConfig(max_staleness=bound), **reuse)
        if bound:
            with pytest.raises(ValueError, match="max_staleness"):
                GRPORunConfig(off_policy=OffPolicyConfig(max_staleness=bound - 1), **reuse)


@pytest.mark.parametrize("old_logprobs", ["recomputed", "sampler"])
@pytest.mark.parametrize("dead", ["keep", "drop", "refill", "replay"])
@pytest.mark.parametrize(("updates", "minibatches"), [(1, 1), (2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize(("place", "kl_coef"), [("loss", 0.1), ("reward", 0.1), ("loss", 0.0)])
@pytest.mark.parametrize("term", ["grpo", "clip_cov"])
def test_what_is_scored_follows_from_what_is_used(
    old_logprobs: str, dead: str, updates: int, minibatches: int, place: str, kl_coef: float, term: str
) -> None:
    config = GRPORunConfig(
        updates_per_rollout=updates,
        minibatches=minibatches,
        kl_coef=kl_coef,
        kl=KLConfig(place=place),
        groups=GroupsConfig(dead=dead),
        policy=PolicyConfig(term=term),
        off_policy=OffPolicyConfig(old_logprobs=old_logprobs),
    )
    moved = updates * minibatches > 1 or old_logprobs == "sampler" or dead == "replay"
    assert config.updates_a_step == updates * minibatches
    assert config.on_policy == (not moved)
    assert config.kl_in_reward == (place == "reward")
    assert config.kl_in_loss == (place == "loss" and kl_coef > 0)
    used = moved or place == "reward" or term == "clip_cov"
    assert config.scores_old_policy == (used and old_logprobs == "recomputed")


@pytest.mark.parametrize(
    ("baseline", "scale", "smallest"), [("none", "none", 1), ("batch_mean", "batch_std", 1), (None, None, 2)]
)
def test_a_group_of_one_needs_an_advantage_that_compares_no_group(
    baseline: str | None, scale: str | None, smallest: int
) -> None:
    advantage = AdvantageConfig(baseline=baseline, scale=scale)
    GRPORunConfig(advantage=advantage, group_size=smallest)
    with pytest.raises(ValueError, match=rf"group_size is {smallest - 1}, but it must be at least {smallest}"):
        GRPORunConfig(advantage=advantage, group_size=smallest - 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"on_alarm": "kl_runaway=stop", "grpo__kl_coef": 0.0}, ["on_alarm", "grpo.kl_coef is 0"]),
        (
            {"on_alarm": "sampler_mismatch=stop", "grpo__off_policy__old_logprobs": "sampler"},
            ["on_alarm", "old_logprobs is sampler"],
        ),
        ({"on_alarm": "stop", "grpo__steps": 9}, ["monitor.window is 10", "9"]),
    ],
)
def test_an_alarm_that_cannot_be_raised_is_refused_an_action(changes, words) -> None:
    with pytest.raises(ConfigError) as caught:
        check(smoke(**({"grpo__steps": 20} | changes)))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_groups_of_one_cannot_be_refilled() -> None:
    reinforce = AdvantageConfig(estimator="reinforce_pp")
    with pytest.raises(ValueError, match=r"groups\.dead is 'refill', but group_size is 1"):
        GRPORunConfig(group_size=1, advantage=reinforce, groups=GroupsConfig(dead="refill"))


def test_replay_needs_a_bound_on_staleness_that_a_group_can_meet() -> None:
    with pytest.raises(ValueError, match=r"max_staleness is 2, .* is 3 updates behind"):
        GRPORunConfig(minibatches=2, groups=GroupsConfig(dead="replay"), off_policy=OffPolicyConfig(max_staleness=2))
    GRPORunConfig(minibatches=2, groups=GroupsConfig(dead="replay"), off_policy=OffPolicyConfig(max_staleness=3))
