"""Rollout speed: tokens per second, and how much of a decode step goes into drawing the token.

    python benchmarks/rollout_throughput.py                   the two cases below
    python benchmarks/rollout_throughput.py --repeats 9 --case small
    python benchmarks/rollout_throughput.py --filters         what each filter adds to a draw, beside a sort of the
                                                              logits and beside jax.random.categorical

`small` is a character model with many rows, where small matrix products rule; `large_vocabulary` is a model of
SmolLM2-135M's shape with few rows, where the noise over 49152 tokens must not rule. Parameters are random and there are
no stop ids, so that every row is as long as it may be.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.generation import SamplerConfig, position_keys, rollout, row_keys, sample_tokens
from grpo_jax.model import GQAConfig, MLAConfig, ModelConfig, abstract_params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One model, and the shape of the batch that it samples."""

    model: ModelConfig
    rows: int
    prompt: int
    completion: int


CASES = {
    "small": Case(
        model=ModelConfig(
            vocab_size=40,
            num_layers=4,
            embed_dim=128,
            mlp_dim=384,
            mla=MLAConfig(num_heads=4, kv_rank=64, nope_dim=32, rope_dim=16, value_dim=32),
        ),
        rows=512,
        prompt=24,
        completion=64,
    ),
    "large_vocabulary": Case(
        model=ModelConfig(
            vocab_size=49152,
            num_layers=30,
            embed_dim=576,
            mlp_dim=1536,
            gqa=GQAConfig(num_heads=9, num_kv_heads=3, head_dim=64),
        ),
        rows=8,
        prompt=32,
        completion=16,
    ),
}

SAMPLERS = {
    "no filter": SamplerConfig(),
    "greedy": SamplerConfig(temperature=0),
    "top_k=32": SamplerConfig(top_k=32),
    "top_p=0.9": SamplerConfig(top_p=0.9),
    "min_p=0.05": SamplerConfig(min_p=0.05),
    "all": SamplerConfig(top_k=32, top_p=0.9, min_p=0.05),
}


def seconds(call: Callable[[int], object], repeats: int) -> float:
    """Median wall time of `call(repeat)` once it is compiled."""
    jax.block_until_ready(call(0))
    times = []
    for repeat in range(1, repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(call(repeat))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@partial(jax.jit, static_argnames=("sampler", "draws"))
def draw_only(logits_BV, keys_B, *, sampler, draws):
    """The draws of a rollout without its model: `draws` tokens a row, each from the same logits."""

    def step(position, carry):
        total_B, logits_BV = carry
        keys = position_keys(keys_B, jnp.full(keys_B.shape, position))
        tokens_B, logprobs_B = sample_tokens(logits_BV, keys, sampler)
        # The next logits depend on this draw, as they do in a rollout, so that nothing leaves the loop.
        return total_B + logprobs_B, logits_BV + tokens_B[:, None] * 1e-9

    return jax.lax.fori_loop(0, draws, step, (jnp.zeros(logits_BV.shape[0]), logits_BV))[0]


@partial(jax.jit, static_argnames="draws")
def draw_categorical(logits_BV, keys_B, *, draws):
    """The same number of draws by jax.random.categorical, without log-probs."""

    def step(position, logits_BV):
        keys = position_keys(keys_B, jnp.full(keys_B.shape, position))
        tokens_B = jax.vmap(jax.random.categorical)(keys, logits_BV)
        return logits_BV + tokens_B[:, None] * 1e-9

    return jax.lax.fori_loop(0, draws, step, logits_BV)


@partial(jax.jit, static_argnames="draws")
def sort_only(logits_BV, *, draws):
    """`draws` sorts of logits that change a little each time."""

    def step(_, logits_BV):
        return logits_BV + jnp.sort(logits_BV, axis=-1)[:, :1] * 1e-9

    return jax.lax.fori_loop(0, draws, step, logits_BV)


def random_params(config: ModelConfig):
    """Weights of roughly the right size; their values do not matter here."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(random.standard_normal(leaf.shape, np.float32) * 0.02, leaf.dtype),
        abstract_params(config),
    )


def measure_rollout(name: str, case: Case, repeats: int) -> None:
    random = np.random.default_rng(0)
    prompts = random.integers(0, case.model.vocab_size, (case.rows, case.prompt))
    lengths = random.integers(case.prompt // 2, case.prompt + 1, case.rows)
    params = random_params(case.model)
    logits = jnp.asarray(random.standard_normal((case.rows, case.model.vocab_size), np.float32))
    sampler = SamplerConfig()

    def sample(completion: int, step: int):
        keys = row_keys(0, step, jnp.arange(case.rows))
        return rollout(
            case.model, params, prompts, lengths, keys, max_completion=completion, sampler=sampler, stop_ids=()
        ).tokens

    def draw(step: int):
        return draw_only(logits, row_keys(0, step, jnp.arange(case.rows)), sampler=sampler, draws=case.completion)

    whole = seconds(partial(sample, case.completion), repeats)
    first = seconds(partial(sample, 1), repeats)
    draws = seconds(draw, repeats)
    tokens = case.rows * case.completion
    print(
        f"{name}: {case.rows} rows, {case.prompt}+{case.completion} tokens, vocabulary {case.model.vocab_size}: "
        f"{tokens / whole:,.0f} tokens/s\n"
        f"  rollout {whole:.3f} s, of it the first token with its prefill {first:.3f} s; "
        f"a decode step {1e3 * (whole - first) / (case.completion - 1):.2f} ms, "
        f"of it drawing {1e3 * draws / case.completion:.2f} ms ({draws / whole:.0%} of the rollout)",
        flush=True,
    )


def measure_filters(name: str, case: Case, repeats: int) -> None:
    random = np.random.default_rng(0)
    logits = jnp.asarray(random.standard_normal((case.rows, case.model.vocab_size), np.float32) * 3)
    draws = 16

    def draw(sampler: SamplerConfig, step: int):
        return draw_only(logits, row_keys(0, step, jnp.arange(case.rows)), sampler=sampler, draws=draws)

    def categorical(step: int):
        return draw_categorical(logits, row_keys(0, step, jnp.arange(case.rows)), draws=draws)

    calls = {label: partial(draw, sampler) for label, sampler in SAMPLERS.items()}
    calls |= {"(categorical)": categorical, "(a sort)": lambda _: sort_only(logits, draws=draws)}
    print(f"{name}: {case.rows} rows, vocabulary {case.model.vocab_size}, milliseconds a draw")
    for label, call in calls.items():
        print(f"  {label:<14}{1e3 * seconds(call, repeats) / draws:8.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append", help="repeatable; all cases unless given")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls; the median counts")
    parser.add_argument("--filters", action="store_true", help="time draws under each filter instead of rollouts")
    options = parser.parse_args()
    measure = measure_filters if options.filters else measure_rollout
    print(f"jax {jax.__version__} on {jax.device_count()} {jax.default_backend()} device(s)", flush=True)
    for name in options.case or CASES:
        measure(name, CASES[name], options.repeats)


if __name__ == "__main__":
    main()
