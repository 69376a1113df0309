"""Sampling: logits in, token ids and their log-probs out, with noise that depends on nothing but a row's own key.

A token is drawn by Gumbel-max: argmax_v(z_v + g_v), g_v = -log(e_v), e_v ~ Exp(1), is distributed as softmax(z)
(Gumbel 1954; Maddison et al. 2014, arXiv 1411.0030). The noise is keyed by (seed, step, row, position), so the same
row draws the same token next to any neighbours, in any batch and on any number of devices; and a decoder that guesses
ahead, using the same noise, emits the very same tokens.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt

from grpo_jax.types import PRNGKey

LEAST_TEMPERATURE = 1e-6
"""Logits up to 1e30 divided by this stay finite in float32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """The distribution that tokens are drawn from. The filters apply in the order of the fields.

    Attributes:
        temperature: divides the logits first, at least 1e-6; 0 is greedy decoding, which takes no filters.
        top_k: keep the k largest logits, the lower ids where logits tie; None keeps all.
        top_p: keep the fewest most probable tokens whose probability, after top_k, adds up to at least this much, the
            lower ids where they tie; 1 keeps all. The most probable token always stays.
        min_p: keep the tokens at least this many times as probable as the most probable one; 0 keeps all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.temperature != 0 and not LEAST_TEMPERATURE <= self.temperature < math.inf:
            raise ValueError(
                f"sampler.temperature={self.temperature!r}: it must be finite and at least {LEAST_TEMPERATURE}, or 0 "
                "(greedy)."
            )
        if self.top_k is not None and (isinstance(self.top_k, bool) or self.top_k != int(self.top_k) or self.top_k < 1):
            raise ValueError(f"sampler.top_k={self.top_k!r}: it must be a whole number, at least 1, or None to keep all.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampler.top_p={self.top_p!r}: it must be above 0 and at most 1; 1 keeps all tokens.")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"sampler.min_p={self.min_p!r}: it must be at least 0 and below 1; 0 keeps all tokens.")
        if self.greedy and (active := self._active_filters()):
            raise ValueError(
                f"sampler.temperature=0 is greedy decoding, where {', '.join(active)} cannot take effect: leave the "
                "filters at their defaults (top_k=None, top_p=1, min_p=0), or set a temperature above 0."
            )

    @property
    def greedy(self) -> bool:
        """Whether every token is the most probable one."""
        return self.temperature == 0

    def _active_filters(self) -> list[str]:
        defaults = {"top_k": None, "top_p": 1.0, "min_p": 0.0}
        values = dataclasses.asdict(self)
        return [f"{name}={values[name]}" for name, default in defaults.items() if values[name] != default]


def row_keys(seed: int, step: Int[Array, ""] | int, row_ids_B: Int[Array | np.ndarray, " B"]) -> Key[Array, " B"]:
    """The key of each row's noise: fold_in(fold_in(key(seed), step), row).

    Args:
        seed: the run's seed.
        step: the number of the rollout within the run. One that stood still would draw the same noise every time.
        row_ids_B: each row's number among all the rows of the step, across batches and hosts.
    """
    return _fold_rows(jax.random.key(seed, impl="threefry2x32"), step, row_ids_B)


@jax.jit
def _fold_rows(key: PRNGKey, step: Int[Array, ""] | int, row_ids_B: Int[Array | np.ndarray, " B"]) -> Key[Array, " B"]:
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.fold_in(key, step), row_ids_B)


def position_keys(keys_B: Key[Array, " B"], positions_B: Int[Array, " B"]) -> Key[Array, " B"]:
    """The key of the noise that draws each row's token at `positions_B`, its index within the row."""
    return jax.vmap(jax.random.fold_in)(keys_B, positions_B)


def gumbel_noise(keys_B: Key[Array, " B"], vocab_size: int) -> Float[Array, "B V"]:
    """Standard Gumbel noise in float32, one row from each key.

    The uniform behind it keeps 32 bits where it is small, so that rare tokens are drawn at their true rate down to
    probabilities of 1e-9; `jax.random.gumbel` at the same price rounds to multiples of 2^-23 and starves tokens below 1e-6.
    """
    bits_BV = jax.vmap(lambda key: jax.random.bits(key, (vocab_size,), jnp.uint32))(keys_B)
    # The upper bound is the largest float32 below 1: beyond it the exponential would be infinite.
    uniform_BV = jnp.minimum((bits_BV.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -jnp.log(_exponential(uniform_BV))


def _exponential(u: Float[Array, "B V"]) -> Float[Array, "B V"]:
    """-log(1 - u) to 1e-6 relative: its series where 1 - u would round, the plain logarithm, which vectorises, elsewhere."""
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5)))))
    return jnp.where(u < 1 / 16, series, -jnp.log(1 - u))


def sampling_logits(logits_BV: Float[Array, "B V"], config: SamplerConfig) -> Float[Array, "B V"]:
    """Logits, float32, whose softmax is the distribution that log-probs are reported under; -inf where a filter dropped.

    Sampling: the logits over the temperature, after top-k, top-p and min-p, in that order. Greedy decoding draws from
    a point mass, whose log-probs say nothing about the policy: there they are the logits as they came, temperature 1.

    Raises:
        ValueError: `config.top_k` is larger than the vocabulary.
    """
    logits_BV = logits_BV.astype(jnp.float32)
    if config.greedy:
        return logits_BV
    logits_BV = logits_BV / config.temperature
    if config.top_k is not None:
        if config.top_k > logits_BV.shape[-1]:
            raise ValueError(
                f"sampler.top_k={config.top_k} is larger than the vocabulary, {logits_BV.shape[-1]} tokens: lower it, or "
                "set it to None to keep all tokens."
            )
        keep_BV = _largest(logits_BV, jnp.ones_like(logits_BV), float(config.top_k))
        logits_BV = jnp.where(keep_BV, logits_BV, -jnp.inf)
    if config.top_p < 1:
        keep_BV = _largest(logits_BV, jax.nn.softmax(logits_BV, axis=-1), config.top_p)
        logits_BV = jnp.where(keep_BV, logits_BV, -jnp.inf)
    if config.min_p > 0:
        floor_B1 = jnp.max(logits_BV, axis=-1, keepdims=True) + math.log(config.min_p)
        logits_BV = jnp.where(logits_BV >= floor_B1, logits_BV, -jnp.inf)
    return logits_BV


def _largest(values_BV: Float[Array, "B V"], weights_BV: Float[Array, "B V"], target: float) -> Bool[Array, "B V"]:
    """The shortest prefix of each row, sorted by falling value and then rising id, whose weights reach `target`.

    The threshold is found by bisection over the 32 bits of a float: 32 sums over the row, several times cheaper than
    sorting a large vocabulary (benchmarks/rollout_throughput.py --filters).
    """
    order_BV = _ordered_bits(values_BV)

    def set_bit(index: Int[Array, ""], threshold_B1: UInt[Array, "B 1"]) -> UInt[Array, "B 1"]:
        candidate_B1 = threshold_B1 | (jnp.uint32(1) << (31 - index).astype(jnp.uint32))
        mass_B1 = jnp.sum(jnp.where(order_BV >= candidate_B1, weights_BV, 0), axis=-1, keepdims=True)
        return jnp.where(mass_B1 >= target, candidate_B1, threshold_B1)

    # The largest threshold whose prefix still reaches the target; the zero it starts from keeps every token.
    threshold_B1 = jax.lax.fori_loop(0, 32, set_bit, jnp.zeros_like(order_BV[:, :1]))
    above_BV = order_BV > threshold_B1
    above_B1 = jnp.sum(jnp.where(above_BV, weights_BV, 0), axis=-1, keepdims=True)
    # Tokens at the threshold are equally heavy; each stays while what stands before it has not reached the target.
    tied_BV = order_BV == threshold_B1
    rank_BV = jnp.cumsum(tied_BV, axis=-1) - 1
    return above_BV | (tied_BV & (above_B1 + rank_BV * weights_BV < target))


def _ordered_bits(x: Float[Array, "B V"]) -> UInt[Array, "B V"]:
    """Unsigned integers in the order of the float32 values they stand for, both zeros alike."""
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits < sign, bits | sign, ~bits)


def sample_tokens(
    logits_BV: Float[Array, "B V"], keys_B: Key[Array, " B"], config: SamplerConfig
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Draws one token a row.

    Args:
        logits_BV: unscaled logits.
        keys_B: one key a row, folded down to the position (`position_keys`); unused by greedy decoding.
        config: temperature and filters.

    Returns:
        Token ids, int32, and their log-probs, float32 nats, under softmax(`sampling_logits`): the distribution sampled
        from, renormalised over what the filters kept; for greedy decoding the unfiltered softmax at temperature 1.
        A row with NaN among its logits has a NaN log-prob.
    """
    z_BV = sampling_logits(logits_BV, config)
    scores_BV = z_BV if config.greedy else z_BV + gumbel_noise(keys_B, z_BV.shape[-1])
    tokens_B = _first_argmax(scores_BV)
    chosen_B = jnp.take_along_axis(z_BV, tokens_B[:, None], axis=-1)[:, 0]
    return tokens_B, chosen_B - jax.nn.logsumexp(z_BV, axis=-1)


def _first_argmax(x_BV: Float[Array, "B V"]) -> Int[Array, " B"]:
    """argmax over V, the lowest id where values tie.

    Two plain reductions, because XLA's CPU backend does not vectorise the joint (value, index) reduction of
    `jnp.argmax`, nor the noise that it fuses into it (benchmarks/rollout_throughput.py --filters).
    """
    size = x_BV.shape[-1]
    is_max_BV = x_BV == jnp.max(x_BV, axis=-1, keepdims=True)
    first_B = jnp.min(jnp.where(is_max_BV, jnp.arange(size, dtype=jnp.int32), size), axis=-1)
    # No value equals a NaN maximum; the token is then arbitrary, but it must be one of the vocabulary.
    return jnp.minimum(first_B, size - 1)
