"""Norms: every implementation against NumPy float64."""

import jax
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import rms_norm

IMPLEMENTATIONS = ["reference", "gpu_triton", "tpu"]
each_implementation = pytest.mark.parametrize("impl", IMPLEMENTATIONS, indirect=True)


def oracle_rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@each_implementation
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 128), (2, 3, 129), (33, 64)])
def test_rms_norm_is_its_definition(impl: str, dtype: str, shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=shape).astype(np.float32 if dtype == "float32" else ml_dtypes.bfloat16)
    weight = generator.normal(size=shape[-1:]).astype(x.dtype)
    got = jax.jit(lambda x, w: rms_norm(x, w, eps=1e-6, impl=impl))(x, weight)
    assert got.dtype == x.dtype and got.shape == x.shape
    np.testing.assert_allclose(
        np.asarray(got, np.float64), oracle_rms_norm(x, weight, 1e-6), atol=0, rtol=1e-5 if dtype == "float32" else 1e-2
    )
