"""The tokenizer rebuilt from GGUF metadata, on a vocabulary small enough to read."""

import gguf
import pytest
import tokenizers

from grpo_jax.checkpoint import UnsupportedModelError
from grpo_jax.checkpoint.gguf_tokenizer import build_tokenizer

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
MERGES = ["1 2", "a b", "Ġ ab"]


def metadata(**changes):
    tokens = [*SPECIALS, *BYTES, *(merge.replace(" ", "") for merge in MERGES), "<user>"]
    kinds = [gguf.TokenType.NORMAL] * len(tokens)
    kinds[:3] = [gguf.TokenType.CONTROL] * 3
    kinds[-1] = gguf.TokenType.USER_DEFINED
    values = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [int(kind) for kind in kinds],
        "merges": MERGES,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "padding_token_id": 0,
        **changes,
    }
    result = {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
    return {**result, "tokenizer.chat_template": "{{ messages }}"}


def pieces(text, **changes):
    values = metadata(**changes)
    tokens = values["tokenizer.ggml.tokens"]
    return [tokens[i] for i in build_tokenizer(values, name="test").encode(text)]


def test_smollm_splits_every_digit_and_gpt2_does_not():
    assert pieces("ab12 ab") == ["ab", "1", "2", "Ġab"]
    assert pieces("ab12 ab", pre="gpt-2") == ["ab", "12", "Ġab"]


def test_special_tokens_are_whole_wherever_the_text_spells_them():
    assert pieces("<|im_start|>ab<user>1<|im_end|>") == ["<|im_start|>", "ab", "<user>", "1", "<|im_end|>"]


def test_ids_decode_to_the_text():
    tokenizer = build_tokenizer(metadata(), name="test")
    text = "<|im_start|>naïve ½ 😀 12\n\t ab <|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_and_template_are_those_of_the_metadata():
    tokenizer = build_tokenizer(metadata(eot_token_id=0), name="test")
    assert tokenizer.eos_ids == (2, 0)
    assert (tokenizer.pad_id, tokenizer.bos_token, tokenizer.chat_template) == (0, "<|im_start|>", "{{ messages }}")
    bare = build_tokenizer(metadata(bos_token_id=None, padding_token_id=None), name="test")
    assert (bare.eos_ids, bare.pad_id, bare.bos_token) == ((2,), 2, "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "llama"}, r"kind 'llama'; known is 'gpt2'"),
        ({"model": None}, r"kind None"),
        ({"pre": "qwen2"}, r"pre-tokenizer 'qwen2'; known are \['gpt-2', 'smollm'\]"),
        ({"eos_token_id": None}, r"names no end-of-sequence token"),
    ],
)
def test_what_is_unknown_is_named_with_what_is_known(changes, words):
    with pytest.raises(UnsupportedModelError, match=words):
        build_tokenizer(metadata(**changes), name="test")
