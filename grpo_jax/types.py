"""Array aliases and the shape legend: one letter, one dimension, everywhere in grpo_jax.

    B  rows (sequences in a batch)          F  feed-forward width
    G  samples per prompt                   H  head dimension (Hv: of the values, where it differs)
    T  tokens (query positions)             K  key/value heads
    S  cache slots (key positions)          L  layers
    C  key/value latent rank                N  query heads
    D  model width                          Q  query latent rank
    E  experts                              R  rotary dimension
                                            V  vocabulary

Arrays whose layout is not obvious carry the letters as a suffix (`latent_BSC`), einsums are written in them, and
public signatures give them to jaxtyping (`Float[Array, "B S C"]`).

A row is `[prompt, completion, unused]`: never padded on the left, so a token's position is its index and its cache
slot is its position.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Key

Array = jax.Array

# Parameters are plain nested dicts of arrays; grpo_jax/model/params.py documents their names and shapes.
Params = Mapping[str, Any]

# A tree shaped like Params whose leaves are tuples of logical axis names, one name (or None) per array dimension.
AxesTree = Mapping[str, Any]

PRNGKey = Key[Array, ""]

__all__ = ["Array", "AxesTree", "PRNGKey", "Params"]
