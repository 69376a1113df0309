"""Kernels for attention, decoding, norms and log-probs: arrays in, arrays out.

One folder an op, with a readable reference in jnp, a Triton kernel for NVIDIA GPUs and a Pallas kernel for TPUs. The public
functions choose by platform (pallas_kernels/dispatch.py); docs/kernels.md explains each.
"""

from pallas_kernels.flash_attention import flash_attention
from pallas_kernels.fused_norm import add_rms_norm, rms_norm, rms_norm_gelu, rms_norm_quantize
from pallas_kernels.fused_softmax import softmax
from pallas_kernels.gqa_decode import gqa_decode, gqa_decode_paged, gqa_decode_shared_prefix
from pallas_kernels.merge import merge_lse, merge_lse_across
from pallas_kernels.mla_decode import mla_decode, mla_decode_paged, mla_decode_shared_prefix, quantize_latent
from pallas_kernels.rope_append import rope_append
from pallas_kernels.token_logprob import LogprobPasses, TokenLogprob, token_logprob

__all__ = [
    "LogprobPasses",
    "TokenLogprob",
    "add_rms_norm",
    "flash_attention",
    "gqa_decode",
    "gqa_decode_paged",
    "gqa_decode_shared_prefix",
    "merge_lse",
    "merge_lse_across",
    "mla_decode",
    "mla_decode_paged",
    "mla_decode_shared_prefix",
    "quantize_latent",
    "rms_norm",
    "rms_norm_gelu",
    "rms_norm_quantize",
    "rope_append",
    "softmax",
    "token_logprob",
]
