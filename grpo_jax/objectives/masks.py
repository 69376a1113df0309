"""Which tokens are trained on, told from lengths alone.

A row is [prompt, completion, unused]. Nothing here compares a token with a pad or end id: pad may equal EOS, and
an EOS that ends a completion is one of the tokens to learn.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

__all__ = ["completion_mask"]


def completion_mask(prompt_lengths_B: Int[Array, "B"], lengths_B: Int[Array, "B"], num_tokens: int) -> Bool[Array, "B T"]:
    """True where a row's completion stands: `prompt_lengths <= t < lengths`, its EOS included.

    Args:
        prompt_lengths_B: tokens of the prompt of each row.
        lengths_B: tokens of prompt and completion together.
        num_tokens: T, the width of the row.

    Index 0 is False always, even for a row without a prompt: no hidden state comes before it to score it from.
    """
    index_T = jnp.arange(num_tokens)
    first_B = jnp.maximum(prompt_lengths_B, 1)
    return (index_T >= first_B[:, None]) & (index_T < lengths_B[:, None])
