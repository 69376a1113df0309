"""The decoder in NumPy float64: one row, one head and one query at a time, as the papers write it.

It reads the same parameter tree as the product and any object with the fields of its configurations, and shares no
code with it: RoPE (2104.09864), YaRN (2309.00071), GQA (2305.13245), MLA (2405.04434), RMSNorm (1910.07467), SwiGLU
(2002.05202).
"""

from collections.abc import Mapping
from math import ceil, floor, log, pi, sqrt
from typing import Any

import numpy as np

Tree = Mapping[str, Any]


def logits(config: Any, params: Tree, tokens: np.ndarray) -> np.ndarray:
    """Logits [B, T, V] of token ids [B, T]; position t is column t."""
    params = _float64(params)
    return np.stack([_row(config, params, row) for row in np.asarray(tokens)])


def frequencies(rope: Any, dim: int) -> np.ndarray:
    """Radians per position of the dim/2 rotated pairs; with YaRN, "NTK-by-parts" as in the code its authors released."""
    plain = [rope.theta ** (-2 * pair / dim) for pair in range(dim // 2)]
    yarn = rope.yarn
    if yarn is None:
        return np.array(plain)

    def pair_with(turns: float) -> float:
        return dim * log(yarn.original_max_length / (2 * pi * turns)) / (2 * log(rope.theta))

    low, high = max(floor(pair_with(yarn.beta_fast)), 0), min(ceil(pair_with(yarn.beta_slow)), dim - 1)
    mixed = []
    for pair, frequency in enumerate(plain):
        if pair <= low:
            slow = 0.0
        elif pair >= high:
            slow = 1.0
        else:
            slow = (pair - low) / (high - low)
        mixed.append((1 - slow) * frequency + slow * frequency / yarn.factor)
    return np.array(mixed)


def _float64(tree: Tree) -> dict[str, Any]:
    return {
        name: _float64(node) if isinstance(node, Mapping) else np.asarray(node, np.float64) for name, node in tree.items()
    }


def _layer(tree: Tree, number: int) -> dict[str, Any]:
    return {name: _layer(node, number) if isinstance(node, Mapping) else node[number] for name, node in tree.items()}


def _row(config: Any, params: Tree, tokens: np.ndarray) -> np.ndarray:
    x = params["embed"]["embedding"][tokens]
    attention = _mla if config.mla is not None else _gqa
    for number in range(config.num_layers):
        layer = _layer(params["layers"], number)
        x = x + attention(config, layer["attention"], _norm(config, x, layer["attention_norm"]))
        x = x + _mlp(layer["mlp"], _norm(config, x, layer["mlp_norm"]))
    hidden = _norm(config, x, params["final_norm"])
    kernel = params["embed"]["embedding"].T if config.tie_embeddings else params["unembed"]["kernel"]
    return hidden @ kernel


def _norm(config: Any, x: np.ndarray, weights: Tree) -> np.ndarray:
    return np.stack([row / sqrt(np.mean(row**2) + config.norm_eps) * weights["scale"] for row in x])


def _mlp(weights: Tree, x: np.ndarray) -> np.ndarray:
    gate = x @ weights["gate"]
    return (gate / (1 + np.exp(-gate)) * (x @ weights["up"])) @ weights["down"]


def _turn(rope: Any, vector: np.ndarray, position: int) -> np.ndarray:
    """Rotates the pairs (i, i + dim/2) of one vector, as multiplication of complex numbers; YaRN also lengthens it."""
    half = len(vector) // 2
    turned = (vector[:half] + 1j * vector[half:]) * np.exp(1j * position * frequencies(rope, len(vector)))
    return np.concatenate([turned.real, turned.imag])


def _lengthening(rope: Any) -> float:
    """YaRN's factor on queries and on keys."""
    if rope.yarn is None:
        return 1.0
    given = rope.yarn.attention_factor
    return given if given is not None else 0.1 * log(rope.yarn.factor) + 1


def _read(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Causal softmax attention of one head over [T, dim] arrays; queries come scaled."""
    rows = []
    for position, query in enumerate(queries):
        scores = keys[: position + 1] @ query
        weights = np.exp(scores - scores.max())
        rows.append(weights / weights.sum() @ values[: position + 1])
    return np.stack(rows)


def _gqa(config: Any, weights: Tree, x: np.ndarray) -> np.ndarray:
    gqa = config.gqa
    sharing = gqa.num_heads // gqa.num_kv_heads
    factor = _lengthening(gqa.rope)
    out = np.zeros_like(x)
    for head in range(gqa.num_heads):
        shared = head // sharing
        queries = x @ weights["query"][:, head]
        keys = x @ weights["key"][:, shared]
        queries = np.stack([factor * _turn(gqa.rope, vector, position) for position, vector in enumerate(queries)])
        keys = np.stack([factor * _turn(gqa.rope, vector, position) for position, vector in enumerate(keys)])
        read = _read(queries / sqrt(gqa.head_dim), keys, x @ weights["value"][:, shared])
        out += read @ weights["out"][head]
    return out


def _mla(config: Any, weights: Tree, x: np.ndarray) -> np.ndarray:
    mla = config.mla
    if mla.q_rank is None:
        source, query = x, weights["query"]
    else:
        source, query = _norm(config, x @ weights["query_down"], weights["query_norm"]), weights["query_up"]
    down = x @ weights["kv_down"]
    latents = _norm(config, down[:, : mla.kv_rank], weights["kv_norm"])
    shared = np.stack([_turn(mla.rope, row[mla.kv_rank :], position) for position, row in enumerate(down)])
    # DeepSeek applies the factor to whole queries and keys, not to their rotated parts alone.
    scale = _lengthening(mla.rope) ** 2 / sqrt(mla.nope_dim + mla.rope_dim)
    out = np.zeros_like(x)
    for head in range(mla.num_heads):
        whole = source @ query[:, head]
        rotated = np.stack([_turn(mla.rope, row[mla.nope_dim :], position) for position, row in enumerate(whole)])
        queries = np.concatenate([whole[:, : mla.nope_dim], rotated], axis=1)
        keys = np.concatenate([latents @ weights["key_up"][:, head], shared], axis=1)
        out += _read(queries * scale, keys, latents @ weights["value_up"][:, head]) @ weights["out"][head]
    return out
