"""Which implementation runs: by platform, by name, and what the errors say."""

import dataclasses
import importlib.util
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import dispatch, rms_norm
from pallas_kernels.dispatch import REFERENCE, Implementation, choose, lowering_platform
from pallas_kernels.targets import TARGETS, compiling_for


def small_only(x: Any, *, wide: bool = False) -> str | None:
    return f"{x.shape[0]} rows exceed 4." if x.shape[0] > 4 else None


GPU = Implementation(name="gpu_triton", platform="gpu", module="m", function="gpu", refuses=small_only)
MOSAIC = Implementation(name="gpu_mosaic", platform="gpu", module="m", function="mosaic", by_default=False)
TPU = Implementation(name="tpu", platform="tpu", module="m", function="tpu")
PLAIN = Implementation(name=REFERENCE, module="pallas_kernels.fused_norm.reference", function="rms_norm")
TABLE = (GPU, MOSAIC, TPU, PLAIN)
SMALL, LARGE = jax.ShapeDtypeStruct((4, 8), jnp.float32), jax.ShapeDtypeStruct((5, 8), jnp.float32)


@pytest.fixture
def on_platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "lowering_platform", lambda: request.param)


@pytest.mark.parametrize(
    "on_platform,x,name",
    [("cpu", SMALL, REFERENCE), ("tpu", LARGE, "tpu"), ("gpu", SMALL, "gpu_triton"), ("gpu", LARGE, REFERENCE)],
    indirect=["on_platform"],
)
def test_the_platform_decides_and_what_it_cannot_serve_the_reference_does(on_platform: None, x: Any, name: str) -> None:
    assert choose("op", TABLE, None, x).name == name


@pytest.mark.parametrize("on_platform", ["gpu"], indirect=True)
def test_the_first_that_is_installed_and_chosen_by_default_is_taken(on_platform: None) -> None:
    absent = dataclasses.replace(GPU, package="no_such_package")
    assert choose("op", (absent, MOSAIC, PLAIN), None, SMALL).name == REFERENCE
    assert choose("op", (absent, GPU, PLAIN), None, SMALL) is GPU
    assert choose("op", (dataclasses.replace(MOSAIC, by_default=True), GPU, PLAIN), None, SMALL).name == "gpu_mosaic"


def test_a_name_decides_whatever_the_platform() -> None:
    assert all(choose("op", TABLE, i.name, SMALL) is i for i in TABLE)


def test_an_unknown_name_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match="op: impl='cuda' is unknown; the known ones are gpu_triton, gpu_mosaic, tpu, ref"):
        choose("op", TABLE, "cuda", SMALL)


def test_a_refused_shape_is_an_error_with_the_reason_and_those_that_take_it() -> None:
    with pytest.raises(ValueError, match=r"5 rows exceed 4\. These do: gpu_mosaic, tpu, reference\.") as raised:
        choose("op", TABLE, "gpu_triton", LARGE)
    # The check tells refusals from failures by this.
    assert "op: impl='gpu_triton' does not take these arguments: " in str(raised.value)


def test_options_are_shown_to_what_may_refuse_them() -> None:
    refuses = dataclasses.replace(GPU, refuses=lambda x, *, wide: "it is wide." if wide else None)
    assert choose("op", (refuses, PLAIN), "gpu_triton", SMALL, wide=False) is refuses
    with pytest.raises(ValueError, match="it is wide"):
        choose("op", (refuses, dataclasses.replace(PLAIN, refuses=small_only)), "gpu_triton", SMALL, wide=True)


def test_a_missing_package_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dispatch.EXTRAS, "no_such_package", "grpo_jax[cuda]")
    absent = dataclasses.replace(GPU, package="no_such_package")
    with pytest.raises(ModuleNotFoundError, match=r"no_such_package, which is not inst.*: pip install 'grpo_jax\[cuda\]'"):
        choose("op", (absent, PLAIN), "gpu_triton", SMALL)
    assert not absent.installed and GPU.installed and dataclasses.replace(GPU, package="json").installed


def test_an_implementation_is_imported_when_it_is_loaded() -> None:
    from pallas_kernels.fused_norm import reference

    assert PLAIN.load() is reference.rms_norm
    loaded = "import sys, pallas_kernels; print(sorted({'triton', 'jax_triton'} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True, cwd=_root())
    assert told.stdout == "[]\n"


def _root() -> str:
    (spec,) = [importlib.util.find_spec("pallas_kernels")]
    assert spec is not None and spec.origin is not None
    return spec.origin.removesuffix("/pallas_kernels/__init__.py")


def test_the_default_platform_is_that_of_the_default_device() -> None:
    assert lowering_platform() == jax.default_backend()
    with jax.default_device(jax.devices("cpu")[1]):
        assert lowering_platform() == "cpu"
    before = jax.config.jax_default_device  # type: ignore[attr-defined]
    try:
        jax.config.update("jax_default_device", "tpu")
        assert lowering_platform() == "tpu"
    finally:
        jax.config.update("jax_default_device", before)


def test_a_mesh_without_devices_leaves_the_default_platform() -> None:
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("data",))):
        assert lowering_platform() == "cpu"


@pytest.mark.parametrize("name", ["h200", "v5e"])
def test_the_mesh_in_use_decides_the_platform_before_the_default_device(name: str) -> None:
    target = TARGETS[name]
    if not target.installed:
        pytest.skip(f"{target.package} is not installed: run make test-aot")
    mesh = target.mesh((1,), ("data",))
    seen: list[str] = []

    def body(x: jax.Array) -> jax.Array:
        seen.append(lowering_platform())
        return x

    spec = jax.sharding.PartitionSpec("data")
    with jax.default_device(jax.devices("cpu")[0]):
        with compiling_for(mesh):
            assert lowering_platform() == target.platform
        # Inside shard_map the mesh is in use without a context.
        on_it = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=jax.sharding.NamedSharding(mesh, spec))
        jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)).lower(on_it)
        assert lowering_platform() == "cpu"
    assert set(seen) == {target.platform}


def test_a_public_function_runs_its_reference_on_a_cpu() -> None:
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    weight = np.ones(8, np.float32)
    np.testing.assert_array_equal(rms_norm(x, weight), rms_norm(x, weight, impl=REFERENCE))
    with pytest.raises(ValueError, match="rms_norm: impl='cuda' is unknown"):
        rms_norm(x, weight, impl="cuda")


def test_a_platform_whose_kernels_do_not_serve_says_so_and_takes_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    from pallas_kernels.flash_attention import FLASH_ATTENTION

    monkeypatch.setattr(dispatch, "lowering_platform", lambda: "tpu")
    half = jax.ShapeDtypeStruct((1, 128, 2, 64), "float16")
    with pytest.warns(UserWarning, match=r"flash_attention runs by its reference in plain jnp\. tpu: it is float16"):
        chosen = dispatch.choose(
            "flash_attention", FLASH_ATTENTION, None, half, half, half, scale=1.0, causal=True, lengths=None, segments=None
        )
    assert chosen.name == "reference"
