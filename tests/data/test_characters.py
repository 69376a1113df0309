"""The character tokenizer: ids, special tokens, and what it refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.data import CharacterTokenizer, Tokenizer

ALPHABET = "0123456789+-*()=<>/thinkanswer"
TOKENIZER = CharacterTokenizer("".join(dict.fromkeys(ALPHABET)))


def test_it_is_a_tokenizer():
    assert isinstance(TOKENIZER, Tokenizer)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30))
def test_text_survives_encoding_and_decoding(ids):
    text = TOKENIZER.decode(ids)
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_each_special_token_is_one_id_even_where_its_characters_are_in_the_alphabet():
    ids = TOKENIZER.encode("<think></think>1")
    assert len(ids) == 3
    assert TOKENIZER.decode(ids[:1]) == "<think>"


def test_an_unfinished_special_token_is_its_characters():
    assert len(TOKENIZER.encode("<think")) == len("<think")


def test_the_longest_special_token_wins_whatever_the_order():
    tokenizer = CharacterTokenizer("ab", ("<e>", "ab", "abb"), eos=("<e>",))
    assert [tokenizer.decode([i]) for i in tokenizer.encode("abbaba")] == ["abb", "ab", "a"]


def test_an_unknown_character_is_named_with_its_position():
    with pytest.raises(ValueError, match=r"character 'x' \(U\+0078\) at position 2"):
        TOKENIZER.encode("12x4")


def test_unicode_digits_are_not_ascii_digits():
    with pytest.raises(ValueError, match="position 0"):
        TOKENIZER.encode("٤")


def test_an_id_outside_the_vocabulary_is_visible_and_not_an_error():
    assert TOKENIZER.decode([TOKENIZER.vocab_size, -1]) == "\ufffd\ufffd"


def test_several_eos_ids_keep_their_order_and_pad_is_the_first():
    tokenizer = CharacterTokenizer("ab", ("<x>", "<y>"), eos=("<y>", "<x>"))
    assert tokenizer.eos_ids == (1, 0)
    assert tokenizer.pad_id == 1


def test_the_fingerprint_changes_with_anything_that_changes_an_id():
    base = CharacterTokenizer("ab", ("<x>", "<y>"), eos=("<x>",))
    same = CharacterTokenizer("ab", ("<x>", "<y>"), eos=("<x>",))
    others = [
        CharacterTokenizer("ba", ("<x>", "<y>"), eos=("<x>",)),
        CharacterTokenizer("ab", ("<y>", "<x>"), eos=("<x>",)),
        CharacterTokenizer("ab", ("<x>", "<y>"), eos=("<y>",)),
    ]
    assert base.fingerprint() == same.fingerprint()
    assert len({base.fingerprint(), *(other.fingerprint() for other in others)}) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alphabet": "aa"}, "more than once"),
        ({"alphabet": "a", "specials": ("<x>", "<x>"), "eos": ("<x>",)}, "more than once"),
        ({"alphabet": "a", "specials": ("b",), "eos": ("b",)}, "two characters"),
        ({"alphabet": "a", "specials": ("<x>",), "eos": ("<eos>",)}, "eos names"),
        ({"alphabet": "a", "specials": ("<x>",), "eos": ()}, "eos names"),
    ],
)
def test_impossible_vocabularies_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CharacterTokenizer(**arguments)
