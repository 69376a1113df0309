"""Every kernel on a CPU: Pallas' interpret modes with race detection, and Triton's interpreter.

Triton's interpreter has to be chosen before Triton is imported, so its tests have processes of their own:

    TRITON_INTERPRET=1 python -m pytest tests/pallas_kernels -k gpu_triton
"""

import contextlib
import importlib.util
import os
from collections.abc import Iterator

import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as tpu_interpreter
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks as gpu_interpreter
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

TRITON_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def skip_reason(impl: str) -> str | None:
    """Why an implementation's numerics cannot be tested in this process."""
    if impl != "gpu_triton":
        return "this process is for Triton's interpreter" if TRITON_INTERPRETED and impl != "reference" else None
    if importlib.util.find_spec("jax_triton") is None:
        return "jax-triton is not installed: run make test-aot"
    return None if TRITON_INTERPRETED else "Triton's interpreter needs a process of its own: run make test-aot"


@contextlib.contextmanager
def interpreting(impl: str) -> Iterator[None]:
    """Everything called inside with `impl=impl` runs on this CPU; a race between threads, cores or copies is an error."""
    if impl == "tpu":
        pltpu.reset_tpu_interpret_mode_state()
        with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")):
            yield
        races = tpu_interpreter.races
        assert races is None or not races.races_found, "the interpreter found a race"
    elif impl == "gpu_mosaic":
        gpu_interpreter.reset_gpu_interpret_mode_state()
        with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True, uninitialized_memory="nan")):
            yield
        races = gpu_interpreter._races
        assert races is None or not races.races_found, "the interpreter found a race"
    else:
        yield


@pytest.fixture
def impl(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an implementation, ready to run. `@pytest.mark.parametrize("impl", [...], indirect=True)` gives it."""
    reason = skip_reason(request.param)
    if reason is not None:
        pytest.skip(reason)
    with interpreting(request.param):
        yield request.param
