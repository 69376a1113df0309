"""Attention as Triton kernels, forward and backward (FlashAttention-2, arXiv 2307.08691).

A program holds a block of queries (or, for the gradients of keys and values, a block of keys) and walks the other side in
blocks, so logits exist a tile at a time. A row of H numbers is loaded as two powers of two, which Triton wants:
192 = 128 + 64. Logits are kept in base 2. Backward reads `lse` and `delta` from [B, N, T], where a tile's rows are
neighbours.
"""

from pallas_kernels.flash_attention.gpu_triton.backward import flash_attention_backward
from pallas_kernels.flash_attention.gpu_triton.forward import flash_attention

__all__ = ["flash_attention", "flash_attention_backward"]
