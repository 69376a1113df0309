"""The programs of a run, compiled for a TPU pod slice by the TPU's own compiler, on a machine without one.

    python -m pip install -e .[aot]
    python benchmarks/compile_tpu.py [--topology v5e:8x8] [--mesh 8x8]

For an MLA model of about two billion parameters it compiles sft_step, score, grpo_step and the rollout with their
shardings, and prints the bytes that each needs on a device: arguments (parameters, optimizer, batch) and temporaries.
Nothing is run, so no speed is measured.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from grpo_jax.generation import SamplerConfig, rollout
from grpo_jax.model import MLAConfig, ModelConfig
from grpo_jax.parallel import AXES, MeshShape, replicated, row_sharding
from grpo_jax.training.state import StepConfig, abstract_state
from grpo_jax.training.steps import GRPOBatch, SFTBatch, grpo_step, score, sft_step

PROMPTS, GROUP, PROMPT, COMPLETION, MICROBATCHES = 32, 16, 512, 1536, 8
ROWS, LENGTH = PROMPTS * GROUP, PROMPT + COMPLETION
STOP = 1

MODEL = ModelConfig(
    vocab_size=102400,
    num_layers=27,
    embed_dim=2048,
    mlp_dim=5632,
    mla=MLAConfig(num_heads=16, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
    tie_embeddings=False,
    compute_dtype="bfloat16",
    remat="full",
)


def mesh_of(topology: str, shape: MeshShape) -> Mesh:
    description = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    devices = topologies.make_mesh(description, tuple(shape.as_dict().values()), AXES).devices
    return Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:8x8")
    parser.add_argument("--mesh", default="8x8")
    arguments = parser.parse_args()
    mesh = mesh_of(arguments.topology, MeshShape.parse(arguments.mesh))
    config = StepConfig(model=MODEL, microbatches=MICROBATCHES, logit_chunk=256, mesh=mesh)
    state = abstract_state(config)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    print(f"{parameters:,} parameters, {ROWS} rows of {LENGTH} tokens, {arguments.topology}, mesh {arguments.mesh}")

    def rows(*shape: int, dtype: jnp.dtype = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((ROWS, *shape), dtype, sharding=row_sharding(mesh))

    def whole(*shape: int, dtype: jnp.dtype = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated(mesh))

    tokens = rows(LENGTH, dtype=jnp.int32)
    sft = SFTBatch(tokens=tokens, segments=tokens, completion_mask=rows(LENGTH, dtype=jnp.bool_))
    grpo = GRPOBatch(
        tokens=tokens,
        prompt_lengths=rows(dtype=jnp.int32),
        lengths=rows(dtype=jnp.int32),
        advantages=rows(),
        row_weights=rows(),
        sampler_logprobs=rows(LENGTH),
        ref_logprobs=rows(LENGTH),
    )

    def sampled(params, prompts, lengths, keys):
        return rollout(
            MODEL, params, prompts, lengths, keys, max_completion=COMPLETION, sampler=SamplerConfig(top_p=0.95),
            stop_ids=(STOP,), samples_per_prompt=GROUP, mesh=mesh,
        )  # fmt: skip

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), ROWS))
    keys = jax.ShapeDtypeStruct(keys.shape, keys.dtype, sharding=replicated(mesh))
    programs = {
        "rollout": lambda: jax.jit(sampled).lower(state.params, whole(PROMPTS, PROMPT), whole(PROMPTS), keys),
        "score": lambda: score.lower(config, state.params, tokens),
        "grpo_step": lambda: grpo_step.lower(state, grpo),
        "sft_step": lambda: sft_step.lower(state, sft),
    }
    for name, lower in programs.items():
        start = time.perf_counter()
        compiled = lower().compile()
        memory = compiled.memory_analysis()
        print(
            f"{name:10} arguments {memory.argument_size_in_bytes / 1e9:5.2f} GB, temporaries "
            f"{memory.temp_size_in_bytes / 1e9:5.2f} GB a device   ({time.perf_counter() - start:.0f} s to compile)",
            flush=True,
        )


if __name__ == "__main__":
    main()
