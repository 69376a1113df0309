"""The programs of a run, compiled for a pod by the chip's own compiler, on a machine without one.

    make .venv-aot/.installed
    .venv-aot/bin/python benchmarks/compile_pod.py                      TPU v5e, 64 chips, mesh 8x8
    .venv-aot/bin/python benchmarks/compile_pod.py --target h200        64 GPUs, eight to a host
    .venv-aot/bin/python benchmarks/compile_pod.py --kernels reference  the same in plain jnp

For an MLA model of about two billion parameters it compiles sft_step, score, grpo_step and the rollout with their
shardings, and prints what each needs on a device: bytes of arguments (parameters, optimizer, batch) and of temporaries, the
kernels in it, and what devices exchange. What stands in a loop (layers, microbatches, tokens) is counted once. Nothing is
run, so no speed is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from typing import Any, get_args

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from grpo_jax.generation import SamplerConfig, rollout
from grpo_jax.model import MLAConfig, ModelConfig
from grpo_jax.model.config import Kernels
from grpo_jax.parallel import AXES, MeshShape, replicated, row_sharding
from grpo_jax.parallel.collectives import collectives
from grpo_jax.training.state import StepConfig, abstract_state
from grpo_jax.training.steps import GRPOBatch, SFTBatch, grpo_step, score, sft_step
from pallas_kernels import targets
from pallas_kernels.resources import kernel_calls

STOP = 1
TOPOLOGIES = {"v5e": "v5e:8x8", "v6e": "v6e:8x8", "v5p": "v5p:4x4x4", "a100": "1x8x8", "h200": "1x8x8", "b200": "1x8x8"}

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A model, a mesh, and the shape of the batches that run on it."""

    model: ModelConfig
    mesh: Mesh
    prompts: int = 32
    group: int = 16
    prompt: int = 512
    completion: int = 1536
    microbatches: int = 8
    logit_chunk: int = 256

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def length(self) -> int:
        return self.prompt + self.completion


def pod_mesh(target: str, shape: MeshShape, topology: str | None = None) -> Mesh:
    """A mesh of the run's axes over described devices."""
    sizes = tuple(shape.as_dict().values())
    return targets.TARGETS[target].mesh(sizes, AXES, topology=topology or TOPOLOGIES[target])


def programs(job: Job) -> dict[str, Any]:
    """What lowers each program of a run, by name."""
    config = StepConfig(model=job.model, microbatches=job.microbatches, logit_chunk=job.logit_chunk, mesh=job.mesh)
    state = abstract_state(config)

    def rows(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((job.rows, *shape), dtype, sharding=row_sharding(job.mesh))

    def whole(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated(job.mesh))

    tokens = rows(job.length, dtype=jnp.int32)
    sft = SFTBatch(tokens=tokens, segments=tokens, completion_mask=rows(job.length, dtype=jnp.bool_))
    grpo = GRPOBatch(
        tokens=tokens,
        prompt_lengths=rows(dtype=jnp.int32),
        lengths=rows(dtype=jnp.int32),
        advantages=rows(),
        row_weights=rows(),
        sampler_logprobs=rows(job.length),
        ref_logprobs=rows(job.length),
    )

    def sampled(params: Any, prompts: Any, lengths: Any, keys: Any) -> Any:
        return rollout(
            job.model, params, prompts, lengths, keys, max_completion=job.completion, sampler=SamplerConfig(top_p=0.95),
            stop_ids=(STOP,), samples_per_prompt=job.group, mesh=job.mesh,
        )  # fmt: skip

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), job.rows))
    keys = jax.ShapeDtypeStruct(keys.shape, keys.dtype, sharding=replicated(job.mesh))
    prompts = whole(job.prompts, job.prompt), whole(job.prompts)
    return {
        "rollout": lambda: jax.jit(sampled).lower(state.params, *prompts, keys),
        "score": lambda: score.lower(config, state.params, tokens),
        "grpo_step": lambda: grpo_step.lower(state, grpo),
        "sft_step": lambda: sft_step.lower(state, sft),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TOPOLOGIES, default="v5e")
    parser.add_argument("--topology", help="how the chips hang together; by default 64 of them")
    parser.add_argument("--mesh", type=MeshShape.parse, default=MeshShape.parse("8x8"))
    parser.add_argument("--kernels", choices=get_args(Kernels), default="auto")
    options = parser.parse_args()
    mesh = pod_mesh(options.target, options.mesh, options.topology)
    job = Job(model=dataclasses.replace(MODEL, kernels=options.kernels), mesh=mesh)
    state = abstract_state(StepConfig(model=job.model, mesh=mesh))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    print(
        f"{parameters:,} parameters, {job.rows} rows of {job.length} tokens, {options.target}, mesh {options.mesh}, "
        f"kernels {options.kernels}"
    )
    with targets.compiling_for(mesh):
        for name, lower in programs(job).items():
            start = time.perf_counter()
            compiled = lower().compile()
            memory, text = compiled.memory_analysis(), compiled.as_text()
            print(
                f"{name:10} arguments {memory.argument_size_in_bytes / 1e9:5.2f} GB, temporaries "
                f"{memory.temp_size_in_bytes / 1e9:5.2f} GB a device; {kernel_calls(text)} kernels; {collectives(text)}   "
                f"({time.perf_counter() - start:.0f} s to compile)",
                flush=True,
            )


if __name__ == "__main__":
    main()
