"""What rows are quantised to: symmetric, one float32 scale a row, so that number = step * scale."""

import jax.numpy as jnp

# The dtypes that rows can be quantised to, and the largest number of each, which the row's largest is mapped to.
LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}

# The smallest normal float32. Chips flush what is below to zero and could not divide by it, so such a row counts as zeros.
SMALLEST_SCALE = 2.0**-126


def largest(dtype: jnp.dtype) -> float:
    return LARGEST[jnp.dtype(dtype).name]
