"""The gated feed-forward, SwiGLU (arXiv 2002.05202)."""

import flax.linen as nn
import jax
from jax.sharding import Mesh
from jaxtyping import Float

from grpo_jax.model.config import ModelConfig
from grpo_jax.model.linear import project, residual_weight, weight
from grpo_jax.parallel import constrain
from grpo_jax.types import Array


@jax.checkpoint
def _gated(gate_BTF: Float[Array, "B T F"], up_BTF: Float[Array, "B T F"]) -> Float[Array, "B T F"]:
    # Checkpointed whatever the remat policy: saving the sigmoid and two products costs more memory traffic than the
    # backward pass spends on computing them again.
    return jax.nn.silu(gate_BTF) * up_BTF


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    config: ModelConfig
    mesh: Mesh | None = None

    @nn.compact
    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        config = self.config
        D, F = config.embed_dim, config.mlp_dim
        gate_DF = weight(self, config, "gate", (D, F), ("embed", "mlp"))
        up_DF = weight(self, config, "up", (D, F), ("embed", "mlp"))
        down_FD = residual_weight(self, config, "down", (F, D), ("mlp", "embed"))
        hidden_BTF = _gated(project(x_BTD, gate_DF), project(x_BTD, up_DF))
        hidden_BTF = constrain(hidden_BTF, self.mesh, ("rows", None, "mlp"))
        return constrain(project(hidden_BTF, down_FD), self.mesh, ("rows", None, None))
