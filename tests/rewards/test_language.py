"""Scripts of a completion's letters, and its characters."""

import time

import pytest

from grpo_jax.rewards.language import (
    LanguageConfig,
    ascii_only,
    charset_reward,
    count_letters,
    language_consistency,
    language_reward,
    script_of,
)
from grpo_jax.rewards.protocol import RewardInput


def row(completion):
    return RewardInput(prompt="", completion=completion, reference="", ids=(), end="eos")


def judge(text, **fields):
    return language_reward(LanguageConfig(**fields))(row(text))


@pytest.mark.parametrize(
    ("scripts", "text"),
    [
        (("latin",), "Über den Wolken, naïve café, Øre, ﬁ"),
        (("cyrillic",), "Сколько ног у трёх кошек?"),
        (("greek",), "Πόσα πόδια έχουν τρεις γάτες;"),
        (("han",), "三只猫有多少条腿？"),
        (("japanese",), "三匹の猫には足が何本ありますか。カー"),
        (("korean",), "고양이 세 마리의 다리는 몇 개입니까?"),
        (("arabic",), "كم عدد أرجل ثلاث قطط؟"),
        (("hebrew",), "כמה רגליים יש לשלושה חתולים?"),
        (("devanagari",), "तीन बिल्लियों के कितने पैर होते हैं?"),
        (("thai",), "แมวสามตัวมีกี่ขา"),
    ],
)
def test_a_text_in_its_own_script_scores_1_and_in_any_other_0(scripts, text):
    assert judge(text, scripts=scripts, min_share=1.0) == 1
    others = {"latin", "cyrillic", "greek", "han", "arabic", "hebrew", "devanagari", "thai", "hangul"}
    for other in others - LanguageConfig(scripts=scripts).allowed:
        assert judge(text, scripts=(other,), min_share=0.5) == 0


def test_digits_signs_and_punctuation_do_not_count():
    assert count_letters("3 + 4 = 7, ≤ ∞ ∑ ℝ µ … — ½ 🙂 \u0661", frozenset({"latin"})) == count_letters("", frozenset())
    assert judge("3 + 4 = 7") is None
    assert judge("") is None


def test_the_threshold_is_a_share_of_letters():
    text = "abcdefghi" + " " + "ж"  # nine of ten
    assert judge(text, min_share=0.9) == 1
    assert judge(text, min_share=0.91) == 0
    assert judge(text, score="share") == 0.9


def test_a_word_of_letters_that_look_alike_from_two_scripts_is_a_disguise():
    hidden = "the p\u0430ypal account is a long and harmless English sentence " * 5  # a Cyrillic а
    assert judge(hidden, min_share=0.5) == 0
    assert judge(hidden, min_share=0.5, max_mixed_words=5) == 1
    assert judge(hidden, scripts=("latin", "cyrillic"), min_share=0.5) == 0
    counts = count_letters("p\u0430ypal pal", frozenset({"latin", "cyrillic"}))
    assert (counts.allowed, counts.other, counts.mixed_words) == (3, 6, 1)


def test_an_invisible_character_does_not_part_a_disguised_word():
    assert count_letters("p\u200b\u0430\u2060ypal", frozenset({"latin"})).mixed_words == 1


@pytest.mark.parametrize("text", ["Δx = 2", "sinθ and cosφ", "2πr", "μm", "α, β, γ"])
def test_greek_symbols_are_no_disguise(text):
    assert judge(text + " is English", min_share=1.0) == 1


def test_a_greek_letter_that_passes_for_a_latin_one_is_a_disguise():
    assert count_letters("g\u03bfod", frozenset({"latin"})).mixed_words == 1  # omicron


@pytest.mark.parametrize("text", ["𝐡𝐞𝐥𝐥𝐨", "ｈｅｌｌｏ", "Ꭺ Ꮯ Ꮋ"])
def test_other_alphabets_that_look_latin_are_not_latin(text):
    assert judge(text) == 0


def test_chinese_that_names_a_latin_word_is_not_mixed():
    counts = count_letters("使用GPU计算", frozenset({"han"}))
    assert (counts.allowed, counts.other, counts.mixed_words) == (4, 3, 0)


def test_commands_of_formulas_and_code_are_neutral_and_other_scripts_in_them_are_not():
    text = "<think>面积是 $\\frac{a}{b}$ 和 \\(x\\) 和 \\[\\sqrt{y}\\] 和 `len(größe)`\n```python\nprint(1)\n```\n好</think>"
    assert judge(text, scripts=("han",), min_share=1.0) == 1
    assert judge(text, scripts=("han",), min_share=1.0, neutral_markup=False) == 0
    assert judge("a $ привет мир как дела $ b") == 0
    assert judge("English ```привет мир``` text") == 0


def test_a_dollar_that_nothing_closes_hides_nothing():
    assert judge("三 $5 English words go on", scripts=("han",)) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scripts": ()}, "scripts is"),
        ({"scripts": ("english",)}, "scripts is .*'english'.* one of .*'latin'"),
        ({"score": "mean"}, r"score is 'mean', but it must be one of \['share', 'threshold'\]"),
        ({"min_share": 0.0}, "min_share is 0.0"),
        ({"min_share": 1.1}, "min_share is 1.1"),
        ({"score": "share", "min_share": 0.5}, "min_share is 0.5, but it must be null"),
        ({"max_mixed_words": -1}, "max_mixed_words is -1"),
    ],
)
def test_impossible_settings_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        LanguageConfig(**fields)


def test_two_words_of_another_script_are_enough_in_a_short_text():
    assert language_consistency(row("The answer is 4.")) == 1
    assert language_consistency(row("The answer это 4.")) == 0


def test_ascii_only_is_printable_ascii_and_line_ends():
    assert ascii_only(row("x = 1\n\t[2]\r\n")) == 1
    assert ascii_only(row("")) == 1
    for character in "é\u00a0\u200b\x00\x1b\x7f\u2212а":
        assert ascii_only(row("x" + character)) == 0


def test_a_character_set_is_the_ranges_given():
    digits = charset_reward([(0x30, 0x39), (0x5D, 0x5D), (0x4E00, 0x9FFF)])
    assert digits(row("12]三")) == 1
    assert digits(row("12[")) == 0
    for ranges in ([], [(5, 4)], [(0, 0x110000)], [(-1, 3)]):
        with pytest.raises(ValueError, match="ranges is"):
            charset_reward(ranges)


def test_script_names():
    assert [script_of(letter) for letter in "aжα三のカ한Ω"] == [
        "latin", "cyrillic", "greek", "han", "hiragana", "katakana", "hangul", "greek",
    ]  # fmt: skip
    assert script_of("\u2126") is None  # the sign of ohm


@pytest.mark.parametrize(
    "text", ["\\(" * 100_000, "$" * 200_000, "`" * 200_000, "а" * 200_000, "<a" * 100_000, "$`" * 90_000]
)
def test_a_very_long_text_takes_linear_time(text):
    start = time.perf_counter()
    language_consistency(row(text))
    assert time.perf_counter() - start < 10.0
