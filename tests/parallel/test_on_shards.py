"""Kernels on a mesh: what each device computes on its own part is what one device computes on the whole.

A mesh of CPU devices stands for one of accelerators, so that `shard_map` and the sums between devices run; the ops inside
then choose their references.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import grpo_jax.objectives.logprobs as logprobs_module
import grpo_jax.parallel.kernels as kernels_module
from grpo_jax.model import decode_step, hidden_states, init_cache, unstack_layers
from grpo_jax.objectives import token_logprobs
from grpo_jax.parallel import MeshShape, make_mesh
from tests.model.cases import CONFIGS, weights

MESH = make_mesh(MeshShape(data=2, fsdp=2, tensor=2))
ROWS, LENGTH = 8, 6


@pytest.fixture(autouse=True)
def accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kernels_module, logprobs_module):
        monkeypatch.setattr(module, "platform_of", lambda mesh: "cpu" if mesh is None else "gpu")


@pytest.mark.parametrize("width", [16, 15])  # 15: fsdp cannot scatter the kernel's gradient
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_log_probs_and_their_gradients_do_not_depend_on_the_mesh(width: int, entropy_gradient: bool) -> None:
    random = np.random.default_rng(0)
    hidden = random.standard_normal((ROWS, LENGTH, width), np.float32)
    kernel = random.standard_normal((width, 32), np.float32)
    tokens = random.integers(0, 32, (ROWS, LENGTH))
    cotangents = random.standard_normal((2, ROWS, LENGTH), np.float32)
    # A row that nobody trains on may hold anything.
    cotangents[:, 3], hidden[3] = 0, np.nan

    def scored(mesh, hidden, kernel):
        return token_logprobs(
            hidden, kernel, tokens, temperature=0.7, chunk=4, entropy_gradient=entropy_gradient, mesh=mesh
        )  # fmt: skip

    def loss(mesh, hidden, kernel):
        stats = scored(mesh, hidden, kernel)
        used = jnp.any(cotangents != 0, axis=0)
        return jnp.sum(jnp.where(used, stats.logprobs_BT * cotangents[0] + stats.entropy_BT * cotangents[1], 0))

    found, expected = (
        (jax.jit(scored, static_argnums=0)(mesh, hidden, kernel),
         jax.jit(jax.grad(loss, argnums=(1, 2)), static_argnums=0)(mesh, hidden, kernel))
        for mesh in (MESH, None)
    )  # fmt: skip
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)
    assert np.isfinite(found[1][1]).all() and not np.asarray(found[1][0])[3].any()


@pytest.mark.parametrize("name", ["mla_yarn", "gqa_yarn"])
def test_attention_and_decoding_do_not_depend_on_the_mesh(name: str) -> None:
    config = CONFIGS[name]
    params = weights(config)
    random = np.random.default_rng(1)
    tokens = random.integers(0, config.vocab_size, (ROWS, LENGTH))
    positions = np.arange(ROWS) % LENGTH
    cache = jax.tree.map(
        lambda leaf: random.standard_normal(leaf.shape, np.float32), init_cache(config, ROWS, LENGTH, "float32")
    )

    def both(mesh):
        hidden = jax.jit(lambda params, tokens: hidden_states(config, params, tokens, mesh))(params, tokens)
        step = jax.jit(lambda *arrays: decode_step(config, params, unstack_layers(params), *arrays, mesh))
        return hidden, step(tokens[:, 0], positions, cache)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5), both(MESH), both(None))
