"""Every variant of the GRPO objective, made from the product's own tables, and what evaluates one on a batch.

A new entry of POLICY_TERMS, AGGREGATIONS, CORRECTIONS or KL_ESTIMATORS is a new variant, and so is tested, by itself.
"""

import collections
import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.objectives import (
    AGGREGATIONS,
    CORRECTIONS,
    KL_ESTIMATORS,
    POLICY_TERMS,
    Coefficients,
    GRPOConfig,
    KLConfig,
    LossSums,
    OffPolicyConfig,
    PolicyConfig,
    finalize_metrics,
    grpo_denominator,
    grpo_loss,
    select_tokens,
)
from tests.oracles import objectives as oracle

B, T = 8, 9
FIXED_LENGTH = 7
TOKEN_INPUTS = ("logprobs", "old", "ref", "sampler", "entropy")
FLOAT_INPUTS = (*TOKEN_INPUTS, "advantages", "row_weight")


def policy_config(**fields: Any) -> PolicyConfig:
    """A PolicyConfig, with a fixed length where its aggregation cannot do without."""
    config = PolicyConfig(**fields)
    if config.summed_by == "sequence_sum_fixed" and config.length is None:
        return dataclasses.replace(config, fixed_length=FIXED_LENGTH)
    return config


def kl_configs(place: str) -> dict[str, KLConfig]:
    """Every pair of estimator and weighting that KLConfig allows at a place."""
    found = {}
    for estimator, weighted in itertools.product(KL_ESTIMATORS, (False, True)):
        try:
            config = KLConfig(estimator=estimator, place=place, importance_weighted=weighted)
        except ValueError:
            continue
        found[f"{'w·' * weighted}{estimator}"] = config
    return found


# Options far from their defaults, so that each of them acts on many tokens of a small batch.
COMBINED = {
    "dapo w·k3 icepop opsm entropy": GRPOConfig(
        policy=PolicyConfig(term="dapo", clip_low=0.1),
        kl=KLConfig(importance_weighted=True),
        kl_coef=0.1,
        entropy_coef=0.05,
        off_policy=OffPolicyConfig(correction="icepop", low=0.7, high=3.0, opsm_threshold=0.1),
    ),
    "gspo_token k2 sequence_tis entropy": GRPOConfig(
        policy=PolicyConfig(term="gspo_token", aggregation="token_mean", clip_low=0.1, clip_high=0.2),
        kl=KLConfig(estimator="k2"),
        entropy_coef=0.05,
        off_policy=OffPolicyConfig(correction="sequence_tis", cap=1.1),
    ),
    "kl_cov w·k1 tis": GRPOConfig(
        policy=PolicyConfig(term="kl_cov", cov_ratio=0.3, cov_kl_coef=0.5),
        kl=KLConfig(estimator="k1", importance_weighted=True),
        off_policy=OffPolicyConfig(correction="tis", cap=1.2),
    ),
    "clip_cov sequence_mask": GRPOConfig(
        policy=policy_config(
            term="clip_cov", aggregation="sequence_sum_fixed", cov_ratio=0.3, cov_low=-0.5, cov_high=9.0, clip_high=0.5
        ),
        off_policy=OffPolicyConfig(correction="sequence_mask", low=0.8, high=1.5),
    ),
}


def _variants() -> dict[str, GRPOConfig]:
    variants = {term: GRPOConfig(policy=policy_config(term=term)) for term in POLICY_TERMS}
    made = {(entry.function, *entry.defaults.values(), entry.aggregation) for entry in POLICY_TERMS.values()}
    for term, aggregation in itertools.product(("grpo", "cispo"), AGGREGATIONS):
        entry = POLICY_TERMS[term]
        # Of grpo the terms bnpo and dr_grpo are the other aggregations: the same program.
        if (entry.function, *entry.defaults.values(), aggregation) not in made:
            variants[f"{term} {aggregation}"] = GRPOConfig(policy=policy_config(term=term, aggregation=aggregation))
    for correction in CORRECTIONS:
        variants[correction] = GRPOConfig(off_policy=OffPolicyConfig(correction=correction))
    variants["opsm"] = GRPOConfig(off_policy=OffPolicyConfig(opsm_threshold=0.5))
    for name, kl in kl_configs("loss").items():
        if kl != KLConfig():
            variants[name] = GRPOConfig(kl=kl, kl_coef=0.1)
    variants["kl in reward"] = GRPOConfig(kl=KLConfig(place="reward"))
    variants["no kl, entropy bonus"] = GRPOConfig(kl_coef=0.0, entropy_coef=0.05)
    return variants | COMBINED


VARIANTS = _variants()


def takes_token_advantages(config: GRPOConfig) -> bool:
    """Whether the tokens of a row may have advantages of their own: gmpo and OPSM are defined for one a row."""
    return config.policy.term != "gmpo" and config.off_policy.opsm_threshold is None


def batch(seed: int = 0, drift: float = 0.4, *, token_advantages: bool = False) -> dict[str, np.ndarray]:
    """A rollout of 8 rows whose policy has moved by `drift` nats a token since, and whose sampler is as far off.

    The third row has weight 0 and the fifth has no completion; the others have 8, 2, 1, 1, 4 and 3 tokens.
    """
    rng = np.random.default_rng(seed)
    logprobs = -rng.exponential(1.5, (B, T))
    old = logprobs + drift * rng.normal(size=(B, T))
    arrays = {
        "logprobs": logprobs,
        "old": old,
        "ref": logprobs + 0.8 * rng.normal(size=(B, T)),
        "sampler": old + drift * rng.normal(size=(B, T)),
        "entropy": rng.exponential(1.0, (B, T)),
        "advantages": rng.normal(size=(B, T) if token_advantages else B),
        "row_weight": np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        "noise": rng.random((B, T)),
    }
    mask = oracle.completion_mask([1, 3, 0, 2, 5, 8, 4, 1], [9, 5, 6, 3, 5, 9, 8, 4], T)
    return {name: values.astype(np.float32) for name, values in arrays.items()} | {"mask": mask}


def trained(data: dict) -> np.ndarray:
    """The tokens that are trained on."""
    return data["mask"] & (data["row_weight"] > 0)[:, None]


def with_selection(config: GRPOConfig, data: dict) -> dict:
    """The batch, with the tokens that the policy term singles out of it; selected tokens that it has already stay."""
    if "selected" in data:
        return data
    old = data["logprobs"] if data["old"] is None else data["old"]
    return data | {"selected": select_tokens(config.policy, old, data["advantages"], trained(data), data["noise"])}


def rows(data: dict, chosen) -> dict:
    """The chosen rows of a batch."""
    return {name: None if values is None else values[chosen] for name, values in data.items()}


class Evaluated(NamedTuple):
    """Attributes:
    loss: the loss of the batch, or the share of it that a part adds.
    metrics: by name.
    gradients: of the loss, with respect to each of FLOAT_INPUTS that the batch has.
    sums: what the metrics are made of.
    """

    loss: np.ndarray
    metrics: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    sums: LossSums


def loss_sum(config: GRPOConfig, data: dict, coefficients: Coefficients | None = None):
    """`grpo_loss` of a batch that has its selection."""
    return grpo_loss(
        config,
        data["logprobs"],
        data["old"],
        data["ref"],
        data["sampler"],
        data["advantages"],
        data["row_weight"],
        data["mask"],
        data["entropy"],
        data["selected"],
        coefficients,
    )


def differentiate(config: GRPOConfig, data: dict, denominator=None, coefficients: Coefficients | None = None) -> Evaluated:
    """The loss, its metrics and its gradients. `denominator` is that of the whole batch where `data` is a part."""
    if denominator is None:
        denominator = grpo_denominator(config, data["mask"], data["row_weight"])

    def loss(inputs):
        value, sums = loss_sum(config, data | inputs, coefficients)
        return value / denominator, sums

    inputs = {name: jnp.asarray(data[name]) for name in FLOAT_INPUTS if data[name] is not None}
    (value, sums), gradients = jax.value_and_grad(loss, has_aux=True)(inputs)
    return Evaluated(value, finalize_metrics(sums), gradients, sums)


traces: collections.Counter[GRPOConfig] = collections.Counter()
"""How often `evaluate` has traced a config."""


@functools.partial(jax.jit, static_argnums=0)
def _compiled(config, data, denominator, coefficients):
    traces[config] += 1
    return differentiate(config, data, denominator, coefficients)


def evaluate(config: GRPOConfig, data: dict, denominator=None, coefficients: Coefficients | None = None) -> Evaluated:
    """`differentiate`, compiled once for each config and shape of the batch, as a training step is.

    The coefficients are arguments of the compiled program: the config's own where none are given.
    """
    if denominator is None:
        denominator = grpo_denominator(config, data["mask"], data["row_weight"])
    if coefficients is None:
        coefficients = coefficients_of(config)
    inputs = {name: values for name, values in with_selection(config, data).items() if name != "noise"}
    return jax.tree.map(np.asarray, _compiled(config, inputs, denominator, coefficients))


def coefficients_of(config: GRPOConfig) -> Coefficients:
    """The config's own coefficients, of the terms that its loss has."""
    return Coefficients(kl=config.kl_coef if config.kl_in_loss else None, entropy=config.entropy_coef)


def evaluate_once(config: GRPOConfig, data: dict) -> Evaluated:
    """`differentiate`, one operation at a time: the cheaper way where a config meets a shape once."""
    return jax.tree.map(np.asarray, differentiate(config, with_selection(config, data)))


@functools.cache
def clean(name: str) -> Evaluated:
    """A variant on the standard batch."""
    return evaluate(VARIANTS[name], batch())


def assert_same(found: Evaluated, expected: Evaluated, rtol: float = 0.0) -> None:
    """Loss, metrics and gradients agree to `rtol` of their size; 0 asks for every bit."""

    def same(name, value, wanted):
        if rtol == 0.0:
            np.testing.assert_array_equal(value, wanted, err_msg=name)
            return
        # A sum of terms of both signs is as exact as its terms, not as itself.
        size = float(np.max(np.abs(wanted), initial=0.0)) if np.all(np.isfinite(wanted)) else 0.0
        np.testing.assert_allclose(value, wanted, rtol=rtol, atol=rtol * max(size, 0.1), err_msg=name)

    same("loss", found.loss, expected.loss)
    assert found.metrics.keys() == expected.metrics.keys()
    for name, value in expected.metrics.items():
        same(name, found.metrics[name], value)
    assert found.gradients.keys() == expected.gradients.keys()
    for name, value in expected.gradients.items():
        same(f"gradient of {name}", found.gradients[name], value)
