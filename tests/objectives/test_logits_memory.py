"""The logits [B, T, V] never exist: read from the compiled program, forward and backward, at a size no test could run.

Whatever the objective, its memory is that of the plain one: all that a variant adds is of size [B, T].
"""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import pytest

from grpo_jax.model import GQAConfig, ModelConfig
from grpo_jax.objectives import (
    CORRECTIONS,
    KL_ESTIMATORS,
    POLICY_TERMS,
    GRPOConfig,
    KLConfig,
    OffPolicyConfig,
    PolicyConfig,
    grpo_loss,
    token_logprobs,
)
from grpo_jax.training.state import StepConfig, abstract_state
from grpo_jax.training.steps import GRPOBatch, grpo_step

B, T, D, V = 8, 2048, 64, 131072
CHUNK = 64

BT = jax.ShapeDtypeStruct((B, T), jnp.float32)
ROWS = jax.ShapeDtypeStruct((B,), jnp.float32)
MASK = jax.ShapeDtypeStruct((B, T), jnp.bool)
TOKENS = jax.ShapeDtypeStruct((B, T), jnp.int32)


def compiled(loss, dtype, *inputs):
    """The gradient of loss(hidden, kernel, tokens, *inputs), with what it gives beside."""
    shapes = (jax.ShapeDtypeStruct((B, T, D), dtype), jax.ShapeDtypeStruct((D, V), dtype), TOKENS, *inputs)
    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True)).lower(*shapes).compile()


def compiled_scoring(chunk, dtype, entropy_gradient=False):
    def loss(hidden, kernel, tokens):
        stats = token_logprobs(hidden, kernel, tokens, chunk=chunk, entropy_gradient=entropy_gradient)
        total = jnp.sum(stats.logprobs_BT)
        return total + jnp.sum(stats.entropy_BT) if entropy_gradient else total, jnp.sum(stats.entropy_BT)

    return compiled(loss, dtype)


def compiled_objective(config):
    """Everything that an objective could want is given, every log-prob one of another policy."""

    def loss(hidden, kernel, tokens, old, ref, sampler, advantages, row_weights, mask, selected):
        stats = token_logprobs(hidden, kernel, tokens, chunk=CHUNK, entropy_gradient=config.has_entropy_bonus)
        return grpo_loss(
            config, stats.logprobs_BT, old, ref, sampler, advantages, row_weights, mask, stats.entropy_BT, selected
        )

    return compiled(loss, jnp.float32, BT, BT, BT, ROWS, ROWS, MASK, MASK)


def largest_array(program):
    """Elements of the largest array named anywhere in the compiled program, inside fusions and loops too."""
    return max(math.prod(map(int, shape.split(","))) for shape in re.findall(r"\w\[(\d[\d,]*)\]", program.as_text()))


def temporary(program):
    """Bytes that the program needs at its peak beside its inputs and outputs."""
    return program.memory_analysis().temp_size_in_bytes


@functools.cache
def plain_objective():
    return temporary(compiled_objective(GRPOConfig()))


@pytest.mark.parametrize(("dtype", "entropy_gradient"), [(jnp.float32, False), (jnp.bfloat16, False), (jnp.bfloat16, True)])
def test_no_array_of_the_compiled_gradient_is_larger_than_a_chunk_of_logits(dtype, entropy_gradient):
    program = compiled_scoring(CHUNK, dtype, entropy_gradient)
    assert largest_array(program) == B * CHUNK * V
    assert not re.search(r"\bscatter\(", program.as_text())
    # A few chunks of logits and the kernel's gradient, against 8 GiB for one array of all logits.
    assert temporary(program) < 5 * (B * CHUNK * V * 4) < B * T * V * 4 // 6


def test_the_check_sees_the_logits_where_they_do_exist():
    program = compiled_scoring(T, jnp.float32)
    assert largest_array(program) >= B * T * V
    assert temporary(program) >= B * T * V * 4


def term(name):
    entry = POLICY_TERMS[name]
    needs_length = entry.aggregation == "sequence_sum_fixed" and entry.fixed_length is None
    return PolicyConfig(term=name, fixed_length=T if needs_length else None)


def kls():
    for estimator, place, weighted in itertools.product(KL_ESTIMATORS, ("loss", "reward"), (False, True)):
        try:
            yield KLConfig(estimator=estimator, place=place, importance_weighted=weighted)
        except ValueError:
            continue  # tests/objectives/test_kl.py says which are refused


def every_variant():
    """As few objectives as hold every entry of every table, since each takes seconds to compile."""
    terms = [term(name) for name in POLICY_TERMS]
    off_policy = [
        *(OffPolicyConfig(correction=name) for name in CORRECTIONS),
        OffPolicyConfig(opsm_threshold=0.5),
        OffPolicyConfig(old_logprobs="sampler"),
    ]
    estimates = list(kls())
    entropy = [None, 0.01]
    for index in range(max(map(len, (terms, off_policy, estimates, entropy)))):
        policy, correction, kl, entropy_coef = (
            values[index % len(values)] for values in (terms, off_policy, estimates, entropy)
        )
        name = f"{policy.term}, {correction.correction}, {kl.estimator} {kl.place}, entropy {entropy_coef}"
        config = GRPOConfig(policy=policy, off_policy=correction, kl=kl, entropy_coef=entropy_coef)
        yield pytest.param(config, id=name)


@pytest.mark.parametrize("config", every_variant())
def test_every_objective_has_the_memory_of_the_plain_one(config):
    program = compiled_objective(config)
    assert largest_array(program) == B * CHUNK * V
    assert temporary(program) < 1.15 * plain_objective()


def compiled_step(objective):
    """One update of a model of one layer and one head, so that nothing in it but the logits could be of their size."""
    attention = GQAConfig(num_heads=1, num_kv_heads=1, head_dim=D)
    model = ModelConfig(vocab_size=V, num_layers=1, embed_dim=D, mlp_dim=D, gqa=attention)
    lengths = jax.ShapeDtypeStruct((B,), jnp.int32)
    batch = GRPOBatch(
        tokens=TOKENS,
        prompt_lengths=lengths,
        lengths=lengths,
        advantages=ROWS,
        row_weights=ROWS,
        sampler_logprobs=BT,
        ref_logprobs=BT,
        old_logprobs=BT,
        selected=MASK,
    )
    config = StepConfig(model=model, objective=objective, logit_chunk=CHUNK)
    return grpo_step.lower(abstract_state(config), batch).compile()


def test_a_whole_update_keeps_the_promise_too():
    plain, full = (
        compiled_step(objective)
        for objective in (
            GRPOConfig(),
            GRPOConfig(
                policy=term("kl_cov"),
                off_policy=OffPolicyConfig(correction="sequence_tis", opsm_threshold=0.5),
                kl=KLConfig(estimator="k3", importance_weighted=True),
                entropy_coef=0.01,
            ),
        )
    )
    assert largest_array(plain) == largest_array(full) == B * CHUNK * V
    assert temporary(full) < 1.15 * temporary(plain) < B * T * V * 4 // 2
