"""How fast the decoder runs here: GFLOP/s of forward and forward+backward, tokens/s of cached decoding.

    python benchmarks/model_throughput.py --model mla --batch 128 --length 80
    python benchmarks/model_throughput.py --model mla --mesh data=2
    python benchmarks/model_throughput.py --model smollm2 --batch 2 --length 256 --decode_batch 8 --slots 320

The first line is what one plain product of the feed-forward's size reaches: the ceiling of all others. With --mesh rows
are split over (virtual) devices. Matrix products are counted, causal attention in full; forward+backward counts three
times the forward, and so does not count what remat computes again. Figures are medians over --repeats timed calls after
one that compiles.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from grpo_jax.model import (
    GQAConfig,
    MLAConfig,
    ModelConfig,
    RopeConfig,
    abstract_params,
    decode_step,
    hidden_states,
    init_cache,
    init_params,
    param_axes,
    unstack_layers,
)
from grpo_jax.model.config import Dtype, Remat
from grpo_jax.parallel import MeshShape, ensure_devices, make_mesh, row_sharding, shard_tree

SMALL: dict[str, Any] = {"vocab_size": 64, "num_layers": 4, "embed_dim": 128, "mlp_dim": 384}
MODELS = {
    "mla": ModelConfig(**SMALL, mla=MLAConfig(num_heads=4, kv_rank=64, nope_dim=32, rope_dim=16, value_dim=32)),
    "gqa": ModelConfig(**SMALL, gqa=GQAConfig(num_heads=4, num_kv_heads=2, head_dim=32)),
    "smollm2": ModelConfig(
        vocab_size=49152,
        num_layers=30,
        embed_dim=576,
        mlp_dim=1536,
        gqa=GQAConfig(num_heads=9, num_kv_heads=3, head_dim=64, rope=RopeConfig(theta=100000.0)),
    ),
}


def forward_flops(config: ModelConfig, batch: int, length: int) -> int:
    """Multiplications and additions in the matrix products of one forward pass, without the unembedding."""
    D = config.embed_dim
    if config.mla is not None:
        mla = config.mla
        wide = mla.nope_dim + mla.rope_dim
        query = D * mla.num_heads * wide
        if mla.q_rank is not None:
            query = mla.q_rank * (D + mla.num_heads * wide)
        latent = D * (mla.kv_rank + mla.rope_dim) + mla.kv_rank * mla.num_heads * (mla.nope_dim + mla.value_dim)
        weights = query + latent + mla.num_heads * mla.value_dim * D
        attended = mla.num_heads * (wide + mla.value_dim)
    else:
        assert config.gqa is not None
        gqa = config.gqa
        weights = D * gqa.head_dim * (2 * gqa.num_heads + 2 * gqa.num_kv_heads)
        attended = 2 * gqa.num_heads * gqa.head_dim
    per_token = weights + 3 * D * config.mlp_dim + attended * length
    return 2 * batch * length * config.num_layers * per_token


def median_seconds(function: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Seconds of the first call, which compiles, and the median of the following ones."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(function())
        seconds.append(time.perf_counter() - start)
    return seconds[0], statistics.median(seconds[1:])


def ceiling_report(config: ModelConfig, rows: int, repeats: int) -> None:
    """Prints the GFLOP/s of [rows, embed_dim] x [embed_dim, mlp_dim]."""
    x, kernel = jnp.ones((rows, config.embed_dim)), jnp.ones((config.embed_dim, config.mlp_dim))
    product = jax.jit(jnp.matmul)
    _, seconds = median_seconds(lambda: product(x, kernel), repeats * 4)
    rate = 2 * rows * config.embed_dim * config.mlp_dim / seconds / 1e9
    print(f"{'one product':17} {seconds * 1e3:9.1f} ms {rate:8.1f} GFLOP/s")


def span_report(config: ModelConfig, mesh: Mesh, batch: int, length: int, repeats: int) -> None:
    """Prints GFLOP/s of the forward pass and of forward and backward together."""
    params = shard_tree(init_params(config, jax.random.key(0)), mesh, param_axes(config))
    tokens = jax.random.randint(jax.random.key(1), (batch, length), 0, config.vocab_size)
    tokens = jax.device_put(tokens, row_sharding(mesh))

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(hidden_states(config, params, tokens, mesh).astype(jnp.float32)))

    passes = {"forward": (jax.jit(loss), 1), "forward+backward": (jax.jit(jax.grad(loss)), 3)}
    for name, (function, times) in passes.items():
        first, seconds = median_seconds(lambda function=function: function(params, tokens), repeats)  # type: ignore[misc]
        rate = times * forward_flops(config, batch, length) / seconds / 1e9
        speed = f"{rate:8.1f} GFLOP/s {batch * length / seconds:10.0f} tokens/s"
        print(f"{name:17} {seconds * 1e3:9.1f} ms {speed}   first call {first:.1f} s")


def decode_report(config: ModelConfig, mesh: Mesh, batch: int, slots: int, repeats: int) -> None:
    """Prints tokens/s of `slots` decode steps in one loop, from an empty cache; no sampling, no logits."""
    params = shard_tree(init_params(config, jax.random.key(0)), mesh, param_axes(config))

    @jax.jit
    def decode(params: Any, tokens: jax.Array) -> jax.Array:
        layers = unstack_layers(params)

        def step(position: jax.Array, carry: Any) -> Any:
            total, cache = carry
            positions = jnp.full((batch,), position)
            hidden, cache = decode_step(config, params, layers, tokens, positions, cache, mesh)
            return total + hidden.sum(dtype=jnp.float32), cache

        cache = init_cache(config, batch, slots, config.compute_dtype)
        cache = jax.lax.with_sharding_constraint(cache, row_sharding(mesh))
        return jax.lax.fori_loop(0, slots, step, (jnp.float32(0), cache))[0]

    tokens = jax.device_put(jnp.arange(batch) % config.vocab_size, row_sharding(mesh))
    first, seconds = median_seconds(lambda: decode(params, tokens), repeats)
    speed = f"{seconds / slots * 1e3:8.2f} ms/step {batch * slots / seconds:10.0f} tokens/s"
    print(f"{'decode':17} {seconds * 1e3:9.1f} ms {speed}   first call {first:.1f} s")


def main() -> None:
    """Runs the asked for measurements and prints one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="mla")
    parser.add_argument("--batch", type=int, default=128, help="rows of a span; 0 skips it")
    parser.add_argument("--length", type=int, default=80, help="tokens of a span")
    parser.add_argument("--decode_batch", type=int, default=512, help="rows of decoding; 0 skips it")
    parser.add_argument("--slots", type=int, default=80, help="cache slots, and decode steps")
    parser.add_argument("--mesh", type=MeshShape.parse, default=MeshShape(), help="as train.py takes it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--unroll", type=int, help="scan_unroll; default: all layers")
    parser.add_argument("--remat", choices=get_args(Remat), default="none")
    parser.add_argument("--compute_dtype", choices=get_args(Dtype), default="float32")
    options = parser.parse_args()
    ensure_devices(options.mesh)
    mesh = make_mesh(options.mesh)
    config = MODELS[options.model]
    config = dataclasses.replace(
        config,
        scan_unroll=config.num_layers if options.unroll is None else options.unroll,
        remat=options.remat,
        compute_dtype=options.compute_dtype,
    )
    parameters = sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config)))
    print(
        f"{options.model}: {parameters / 1e6:.2f}M parameters, {config.compute_dtype}, remat {config.remat}, "
        f"scan_unroll {config.scan_unroll}, mesh {options.mesh}, {jax.devices()[0].device_kind}, jax {jax.__version__}"
    )
    ceiling_report(config, max(options.batch * options.length, options.decode_batch), options.repeats)
    if options.batch:
        span_report(config, mesh, options.batch, options.length, options.repeats)
    if options.decode_batch:
        decode_report(config, mesh, options.decode_batch, options.slots, options.repeats)


if __name__ == "__main__":
    main()
