"""Kernels for attention, decoding, norms and log-probs: arrays in, arrays out.

One folder an op, with a readable reference in jnp, a Triton kernel for NVIDIA GPUs and a Pallas kernel for TPUs. The public
functions choose by platform (pallas_kernels/dispatch.py); docs/kernels.md explains each.
"""

from pallas_kernels.fused_norm import rms_norm

__all__ = ["rms_norm"]
