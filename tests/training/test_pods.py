"""A run's programs, kernels on, compile for 64 GPUs and 64 TPU chips, and exchange nothing that plain jnp does not need."""

import importlib.util
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

PACKAGES = {"h200": "jax_cuda13_plugin", "v5e": "libtpu"}
PROGRAMS = ["rollout", "grpo_step"]


@cache
def compiled(target: str, program: str, kernels: str):
    """The text of a program compiled for an 8x8 mesh."""
    import compile_pod

    from grpo_jax.model import MLAConfig, ModelConfig
    from grpo_jax.parallel import MeshShape
    from pallas_kernels.targets import compiling_for

    model = ModelConfig(
        vocab_size=8192, num_layers=1, embed_dim=512, mlp_dim=1024, tie_embeddings=False, compute_dtype="bfloat16",
        mla=MLAConfig(num_heads=16, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128), remat="full", kernels=kernels,
    )  # fmt: skip
    mesh = compile_pod.pod_mesh(target, MeshShape.parse("8x8"))
    job = compile_pod.Job(model=model, mesh=mesh, prompts=8, group=8, prompt=128, completion=128, microbatches=2)
    with compiling_for(mesh):
        return compile_pod.programs(job)[program]().compile().as_text()


def by_purpose(figures: Counter[str]) -> Counter[str]:
    """A reduce-scatter is an all-reduce of which each device keeps its part: both are sums over devices."""
    sums = Counter({"all-reduce": figures["all-reduce"] + figures["reduce-scatter"]})
    return sums + Counter({kind: figure for kind, figure in figures.items() if kind not in ("all-reduce", "reduce-scatter")})


@pytest.mark.slow
@pytest.mark.parametrize("target", PACKAGES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_with_kernels_exchanges_nothing_that_plain_jnp_does_not(target: str, program: str) -> None:
    if importlib.util.find_spec(PACKAGES[target]) is None:
        pytest.skip(f"{PACKAGES[target]} is not installed: run make test-aot")
    from grpo_jax.parallel.collectives import collectives
    from pallas_kernels.resources import kernel_calls

    plain, with_kernels = compiled(target, program, "reference"), compiled(target, program, "auto")
    assert kernel_calls(plain) == 0 and kernel_calls(with_kernels) >= 2
    needed, found = collectives(plain), collectives(with_kernels)
    needed_counts, found_counts = by_purpose(needed.counts), by_purpose(found.counts)
    needed_bytes, found_bytes = by_purpose(needed.bytes), by_purpose(found.bytes)
    for kind, count in found_counts.items():
        assert count <= needed_counts[kind], (kind, str(needed), str(found))
        # The TPU's compiler cuts the gathers of weights into pieces as it likes, which moves bytes by a few percent.
        assert found_bytes[kind] <= 1.05 * needed_bytes[kind], (kind, str(needed), str(found))
