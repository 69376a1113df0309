"""The tokenizer inside a GGUF file, rebuilt as a Hugging Face one.

Byte-level BPE (`tokenizer.ggml.model` = "gpt2"): vocabulary and merges are in the metadata, but how text is split
before the merges is only named there (`tokenizer.ggml.pre`); llama.cpp knows what the names mean, and `PRE_TOKENIZERS`
is our table of them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import gguf
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from grpo_jax.checkpoint.errors import UnsupportedModelError
from grpo_jax.data import HFTokenizer


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    # llama.cpp splits by \p{N} first and by GPT-2's pattern within the pieces; Digits means the same Unicode category.
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {"gpt-2": _gpt2, "smollm": _smollm}

# Ids that end a completion: of the text as the model was trained, of a turn, of a message.
EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
SPECIAL_TYPES = (gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN)


def build_tokenizer(values: Mapping[str, Any], *, name: str) -> HFTokenizer:
    """Builds a tokenizer from the `tokenizer.*` metadata of a GGUF file.

    Args:
      values: metadata by full key.
      name: the tokenizer's name in logs.

    Raises:
      UnsupportedModelError: there is no tokenizer, its kind or pre-tokenizer has no entry, or it names no eos.
    """
    kind = values.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UnsupportedModelError(f"the tokenizer of {name} is of kind {kind!r}; known is 'gpt2' (byte-level BPE)")
    pre = values.get("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"the tokenizer of {name} has the pre-tokenizer {pre!r}; known are {sorted(PRE_TOKENIZERS)}"
        )
    tokens: list[str] = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            tokenizers.AddedToken(token, special=token_type in SPECIAL_TYPES, normalized=False)
            for token, token_type in zip(tokens, values["tokenizer.ggml.token_type"], strict=True)
            if token_type in (*SPECIAL_TYPES, gguf.TokenType.USER_DEFINED)
        ]
    )
    eos = [values[key] for key in (f"tokenizer.ggml.{key}" for key in EOS_KEYS) if key in values]
    if not eos:
        raise UnsupportedModelError(f"the tokenizer of {name} names no end-of-sequence token (tokenizer.ggml.eos_token_id)")
    bos = values.get("tokenizer.ggml.bos_token_id")
    return HFTokenizer(
        tokenizer,
        eos=eos,
        pad=values.get("tokenizer.ggml.padding_token_id"),
        bos=None if bos is None else tokens[bos],
        chat_template=values.get("tokenizer.chat_template"),
        name=name,
    )
