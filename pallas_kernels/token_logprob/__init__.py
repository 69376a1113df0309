"""Log-probs of given tokens, entropies and the likeliest tokens, from hidden states and the unembedding.

At V = 131072 the logits of 16384 tokens are 8 GiB in float32. Here they exist a tile at a time, forward and backward.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import REFERENCE, Implementation, choose
from pallas_kernels.token_logprob import vjp
from pallas_kernels.token_logprob.partials import varying_as

__all__ = ["TOKEN_LOGPROB", "LogprobPasses", "TokenLogprob", "token_logprob"]

# The kernels find the greatest logits one after another.
MOST_TOP_N = 16
DTYPES = ("bfloat16", "float16", "float32")


def _refuses(hidden_MD: Any, kernel_DV: Any, targets_M: Any, *, top_n: int, **options: Any) -> str | None:
    if top_n > MOST_TOP_N:
        return f"top_n is {top_n}, and the kernels keep at most {MOST_TOP_N} candidates of a row."
    if hidden_MD.dtype.name not in DTYPES:
        return f"hidden is {hidden_MD.dtype.name}, and the kernels multiply {', '.join(DTYPES)}."
    if 0 in hidden_MD.shape:
        return f"hidden has shape {tuple(hidden_MD.shape)}, and the kernels take no empty array."
    return None


def _refuses_on_tpu(hidden_MD: Any, kernel_DV: Any, targets_M: Any, **options: Any) -> str | None:
    if hidden_MD.dtype.name == "float16":
        return "hidden is float16, which a TPU does not multiply."
    return _refuses(hidden_MD, kernel_DV, targets_M, **options)


TOKEN_LOGPROB = (
    Implementation(
        name="gpu_triton", platform="gpu", module="pallas_kernels.token_logprob.gpu_triton", function="forward",
        package="jax_triton", refuses=_refuses,
    ),
    Implementation(
        name="tpu", platform="tpu", module="pallas_kernels.token_logprob.tpu", function="forward", refuses=_refuses_on_tpu
    ),
    Implementation(name=REFERENCE, module="pallas_kernels.token_logprob.reference", function="forward"),
)  # fmt: skip


class TokenLogprob(NamedTuple):
    """What `token_logprob` gives, in nats and float32.

    Attributes:
        logprobs: log-probs of the targets; NaN where a target is outside [0, V).
        entropy: entropies of the rows' distributions.
        lse: log-sum-exps of the rows' logits.
        top_logprobs: the greatest log-probs, in falling order.
        top_ids: their ids; of equal ones the lowest comes first.
    """

    logprobs: Float[Array, " M"]
    entropy: Float[Array, " M"]
    lse: Float[Array, " M"]
    top_logprobs: Float[Array, "M n"]
    top_ids: Int[Array, "M n"]


class LogprobPasses:
    """The forward and the backward pass apart, for a caller that sums over devices by itself.

    A training step on a mesh wants the hidden states' gradient summed over the vocabulary's slices once, and the kernel's
    scattered while it is summed; JAX's own differentiation through `shard_map` would sum both everywhere.
    """

    def __init__(self, *, temperature: float, vocab_axis: str | None = None) -> None:
        self.temperature, self.vocab_axis = float(temperature), vocab_axis

    def forward(
        self, hidden: Float[Array, "M D"], kernel: Float[Array, "D V"], targets: Int[Array, " M"]
    ) -> tuple[Float[Array, " M"], Float[Array, " M"], Float[Array, " M"]]:
        """Log-probs, entropies and log-sum-exps, as `token_logprob` gives them."""
        return vjp.forward(self._options(hidden, kernel, targets), hidden, kernel, targets)[:3]

    def backward(
        self,
        hidden: Float[Array, "M D"],
        kernel: Float[Array, "D V"],
        targets: Int[Array, " M"],
        entropy: Float[Array, " M"],
        lse: Float[Array, " M"],
        d_logprobs: Float[Array, " M"],
        d_entropy: Float[Array, " M"],
    ) -> tuple[Float[Array, "M D"], Float[Array, "D V"]]:
        """This slice's part of the hidden states' gradient, and the gradient of this slice; both float32."""
        cotangents = d_logprobs, d_entropy, jnp.zeros_like(lse)
        options = self._options(hidden, kernel, targets)
        return vjp.gradients(options, hidden, kernel, targets, (entropy, lse), cotangents, jnp.dtype(jnp.float32))

    def _options(self, hidden: Array, kernel: Array, targets: Array) -> vjp.Options:
        _check(hidden, kernel, targets, self.temperature, 0)
        arguments = {"temperature": self.temperature, "top_n": 0}
        chosen = choose("token_logprob", TOKEN_LOGPROB, None, hidden, kernel, targets, **arguments)
        return vjp.Options(module=chosen.module, temperature=self.temperature, top_n=0, vocab_axis=self.vocab_axis)


def token_logprob(
    hidden: Float[Array, "M D"],
    kernel: Float[Array, "D V"],
    targets: Int[Array, " M"],
    *,
    temperature: float = 1.0,
    top_n: int = 0,
    vocab_axis: str | None = None,
    entropy_gradient: bool = False,
    impl: str | None = None,
) -> TokenLogprob:
    """Log-probs of `targets` under softmax(hidden · kernel / temperature), and what else one pass over the logits gives.

    Args:
        hidden: hidden states after the final norm. Their dtype is that of the matrix products' inputs; sums, logits and
            results are float32 always.
        kernel: the unembedding, cast to the dtype of `hidden`. Its gradient is summed in float32 and comes back in its own
            dtype.
        targets: token ids. One outside [0, V) makes its log-prob NaN, which a mask removes.
        temperature: the logits' divisor.
        top_n: how many of the likeliest tokens to give, at most V (of a slice); the kernels give up to 16. They carry no
            gradient.
        vocab_axis: a mesh axis over which the vocabulary is sharded, inside `shard_map`: `kernel` is then this device's
            [D, V / shards] slice, in the order of the axis, and `targets` and `top_ids` are ids in the whole vocabulary.
            `hidden`, `targets` and the results are the same on all devices of the axis. Gradients are those that JAX would
            give for the same function in jnp with psum, with `check_vma` either way.
        entropy_gradient: whether `entropy` carries a gradient, for an entropy bonus.
        impl: forces an implementation: gpu_triton, tpu or reference.

    A row whose cotangents are all 0 takes no part in the gradients, whatever its hidden state is: NaN in unused rows is
    harmless.

    Raises:
        ValueError: shapes or dtypes that do not fit each other, a temperature that is not positive and finite, or more
            `top_n` than there are tokens.
    """
    _check(hidden, kernel, targets, temperature, top_n)
    options = {"temperature": temperature, "top_n": top_n}
    chosen = choose("token_logprob", TOKEN_LOGPROB, impl, hidden, kernel, targets, **options)
    # Inside shard_map with check_vma, rows may vary over an axis over which the kernel does not (and the other way round):
    # said here, it makes JAX sum the gradients over that axis.
    given = (hidden, kernel, targets)
    hidden, targets = (varying_as(values, *given, but=vocab_axis) for values in (hidden, targets))
    kernel = varying_as(kernel, *given)
    logprobs, entropy, lse, top_logprobs, top_ids = vjp.score(
        vjp.Options(module=chosen.module, temperature=float(temperature), top_n=top_n, vocab_axis=vocab_axis),
        hidden,
        kernel,
        targets.astype(jnp.int32),
    )
    return TokenLogprob(
        logprobs=logprobs,
        entropy=entropy if entropy_gradient else jax.lax.stop_gradient(entropy),
        lse=lse,
        top_logprobs=jax.lax.stop_gradient(top_logprobs),
        top_ids=top_ids,
    )


def _check(hidden: Any, kernel: Any, targets: Any, temperature: float, top_n: int) -> None:
    if hidden.ndim != 2 or kernel.ndim != 2 or hidden.shape[1] != kernel.shape[0] or targets.shape != hidden.shape[:1]:
        raise ValueError(
            f"token_logprob: hidden has shape {tuple(hidden.shape)}, kernel {tuple(kernel.shape)} and targets "
            f"{tuple(targets.shape)}, but they must be [M, D], [D, V] and [M]: flatten rows and positions into M."
        )
    if not jnp.issubdtype(hidden.dtype, jnp.floating) or not jnp.issubdtype(kernel.dtype, jnp.floating):
        raise ValueError(
            f"token_logprob: hidden is {hidden.dtype.name} and kernel {kernel.dtype.name}, but both must be floating: "
            "dequantize the kernel first."
        )
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(f"token_logprob: targets are {targets.dtype.name}, but they must be integers: they are token ids.")
    if not 0.0 < temperature < math.inf:
        raise ValueError(
            f"token_logprob: temperature is {temperature!r}, but it must be positive and finite: at 0 every log-prob is 0 "
            "or −∞; score greedy completions at 1."
        )
    if not 0 <= top_n <= kernel.shape[1] or kernel.shape[1] == 0:
        raise ValueError(
            f"token_logprob: top_n is {top_n} and kernel has {kernel.shape[1]} columns, but it needs one at least, and "
            "top_n must be between 0 and their number: change top_n."
        )
