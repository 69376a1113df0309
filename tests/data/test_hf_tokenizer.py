"""Hugging Face tokenizers behind the protocol, on a tiny one built here."""

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from grpo_jax.data import HFTokenizer, Tokenizer

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def library_tokenizer():
    vocabulary = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "hello": 3, "world": 4, "[UNK]": 5}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def wrapped(**changes):
    return HFTokenizer(library_tokenizer(), **{"eos": ["<|im_end|>", "<|endoftext|>"], **changes})


def test_it_is_a_tokenizer():
    assert isinstance(wrapped(), Tokenizer)


def test_specials_in_the_text_are_single_ids_and_stay_in_the_decoded_text():
    tokenizer = wrapped()
    ids = tokenizer.encode("<|im_start|>hello world<|im_end|>")
    assert ids == [1, 3, 4, 2]
    assert tokenizer.decode(ids) == "<|im_start|> hello world <|im_end|>"


def test_every_eos_given_is_honoured_by_text_or_id_and_counted_once():
    assert wrapped().eos_ids == (2, 0)
    assert wrapped(eos=[0, "<|endoftext|>", 2]).eos_ids == (0, 2)


def test_encoding_adds_nothing_even_where_the_file_asks_for_a_bos():
    library = library_tokenizer()
    library.post_processor = processors.TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    assert library.encode("hello").ids == [1, 3]
    assert HFTokenizer(library, eos=[2]).encode("hello") == [3]


def test_truncation_and_padding_of_the_file_do_not_apply():
    library = library_tokenizer()
    library.enable_truncation(1)
    library.enable_padding(length=4)
    assert HFTokenizer(library, eos=[2]).encode("hello world hello") == [3, 4, 3]
    assert library.truncation is not None, "the caller's own tokenizer was changed"


def test_an_id_without_a_token_is_visible_in_its_place():
    assert wrapped().decode([3, 99, 4]) == "hello\ufffdworld"


def test_vocab_size_covers_the_largest_id_even_over_gaps():
    library = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    assert HFTokenizer(library, eos=["b"]).vocab_size == 10


def test_a_file_and_the_same_tokenizer_in_memory_agree(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(library_tokenizer().to_str())
    from_file = HFTokenizer.from_file(path, eos=["<|im_end|>", "<|endoftext|>"])
    assert from_file.encode("hello world") == wrapped().encode("hello world")
    assert from_file.fingerprint() == wrapped().fingerprint()


def test_the_fingerprint_changes_with_vocabulary_eos_and_pad():
    library = library_tokenizer()
    library.add_tokens(["more"])
    prints = {
        wrapped().fingerprint(),
        wrapped(eos=["<|endoftext|>"]).fingerprint(),
        wrapped(pad=5).fingerprint(),
        HFTokenizer(library, eos=["<|im_end|>", "<|endoftext|>"]).fingerprint(),
    }
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eos": []}, "at least one"),
        ({"eos": "<|im_end|>"}, "list"),
        ({"eos": ["</s>"]}, "eos '</s>' is not in the vocabulary"),
        ({"eos": [77]}, "eos 77 is not in the vocabulary"),
        ({"pad": "[PAD]"}, "pad '\\[PAD\\]' is not"),
        ({"bos": "<s>"}, "bos '<s>' is not"),
    ],
)
def test_tokens_that_do_not_exist_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        wrapped(**arguments)


@pytest.mark.parametrize("content", ["", "not json", json.dumps({"model": 3})])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"cannot read a tokenizer from .*tokenizer\.json"):
        HFTokenizer.from_file(path, eos=["a"])
    with pytest.raises(ValueError, match=r"missing\.json"):
        HFTokenizer.from_file(tmp_path / "missing.json", eos=["a"])
