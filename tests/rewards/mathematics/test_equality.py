"""When an answer equals the reference: exactness, final form, and answers that try to cheat or to hang."""

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.rewards import RewardInput, equal_final, equal_value
from grpo_jax.rewards.mathematics import MathConfig, equality, math_reward
from grpo_jax.rewards.mathematics.numbers import parse_number


@settings(max_examples=300, deadline=None)
@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30))
def test_integers_are_equal_exactly_when_they_are_the_same(left, right):
    assert equal_final(str(left), str(right)) == (left == right)
    assert equal_final(f"{left:,}", str(left))
    assert not equal_final(str(left + 1), str(left))


@settings(max_examples=200, deadline=None)
@given(st.fractions(max_denominator=10**6))
def test_a_fraction_equals_itself_in_plain_and_latex_notation(value):
    if value.denominator == 1:
        return
    top, bottom = value.numerator, value.denominator
    for text in (f"{top}/{bottom}", rf"\frac{{{top}}}{{{bottom}}}", rf"{'-' * (top < 0)}\dfrac{{{abs(top)}}}{{{bottom}}}"):
        assert parse_number(text) == value
        assert equal_final(text, f"{top}/{bottom}")
    assert not equal_final(f"{top + 1}/{bottom}", f"{top}/{bottom}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", 7),
        ("-0", 0),
        ("+5", 5),
        ("1,234,567.50", Fraction(2469135, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("$18.00", 18),
        ("-$3", -3),
        ("50%", 50),
        (r"50\%", 50),
        ("−7", -7),
        ("1 1/2", Fraction(3, 2)),
        (r"-1\frac{1}{2}", Fraction(-3, 2)),
        (r"\frac34", Fraction(3, 4)),
        (r"\frac 59", Fraction(5, 9)),
        (r"\frac{270}7", Fraction(270, 7)),
        (r"1\frac12", Fraction(3, 2)),
        ("1½", Fraction(3, 2)),
        ("1e5", 100000),
        ("1.2E-3", Fraction(12, 10000)),
        (r"1.2 \times 10^3", 1200),
        (r"-1.2 \times 10^{-1}", Fraction(-12, 100)),
        ("1{,}234", 1234),
        (r"1\,234", 1234),
        (r"11,\! 111,\! 111", 11111111),
        ("1 234", 1234),
        ("€5", 5),
        (r"\$32,\!348", 32348),
        (r"5 \text{ cm}^2", 5),
        ("60 miles per hour", 60),
        ("3:30", None),
        ("1 23", None),
        ("1 2345", None),
        ("1.234,5", None),
        ("0.1000000000000000000000000000000000001", Fraction(10**36 + 1, 10**37)),
    ],
)
def test_numbers_have_their_exact_value(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1,23",
        "1e5000",
        "46e0e0",
        "12e3",
        r"12 \times 10^3",
        "10^3",
        "1_000",
        "0x10",
        "12:30",
        "1/0",
        "10/2",
        r"\frac{4}{2}",
        "5 dozen",
        "inf",
        "nan",
        "٤٢",
        "²",
        "１２",
    ],
)
def test_what_is_not_a_number_written_out_is_none(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("0.5", "1/2"),
        ("$42$", "42"),
        ("42.", "42"),
        (" 42\n", "42"),
        (r"90^\circ", "90"),
        (r"\text{Evelyn}", "Evelyn"),
        ("x + 1", "1+x"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"\frac{x^2-1}{x-1}", "x+1"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        (r"\frac{\sqrt{2}}{2}", "1/sqrt(2)"),
        (r"\sqrt[3]{8}x", "2*x"),
        (r"2\pi r", "2 r pi"),
        ("x**2", "x^2"),
        (r"\sin(x)^2 + \cos(x)^2 + y", "1+y"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)"),
        (r"\{1, 2\}", r"\{2,1\}"),
        ("2, 1", "1,2"),
        ("[0, 1)", "[0,1.0)"),
        ("((1,2),3)", "((1, 2), 3)"),
    ],
)
def test_answers_that_are_right(answer, reference):
    assert equal_final(answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("43", "42"),
        ("0.333", "1/3"),
        ("3.14159265358979323846264338327950288", r"\pi"),
        ("x+2", "x+1"),
        (r"\sqrt{x^2}", "x"),
        (r"\ln(6)", r"\log(6)"),
        ("act", "cat"),
        ("(1,2)", "(2,1)"),
        ("(0,1)", "[0,1]"),
        ("1", "1,2"),
        ("1,1", "1,2"),
        ("1,2,2", "1,2"),
        ("1,2", "1,2,2"),
        (r"\{\}", r"\{1\}"),
        ("1/0", "1/0+x-x"),
        ("x = 5", "y = 5"),
    ],
)
def test_answers_that_are_wrong(answer, reference):
    assert not equal_final(answer, reference)


@pytest.mark.parametrize("answer", ["12+34", "6*7+4", "(46)", "46+0", "92/2", r"\frac{92}{2}", "sqrt(2116)", "46^1", "--46"])
def test_work_left_undone_does_not_equal_the_number_it_would_give(answer):
    assert not equal_final(answer, "46")
    assert equal_value(answer, "46")


@pytest.mark.parametrize("text", ["1/2004!", "x = 5", "east", "f(g(h))", "a.b"])
def test_what_cannot_be_parsed_equals_only_the_same_text(text):
    assert equal_final(f" {text} ", text)
    assert not equal_final(text + "!", text)
    assert not equal_final("1/2006!", text)


@pytest.mark.parametrize("reference", ["", " ", "42", "x"])
@pytest.mark.parametrize("answer", ["", "  ", "$", "$$", ".", r"\left"])
def test_an_empty_answer_equals_nothing_not_even_an_empty_reference(answer, reference):
    assert not equal_final(answer, reference)


HOSTILE = {
    "power tower": "9**9**9**9",
    "power tower in LaTeX": "9^{9^{9^9}}",
    "chained powers": "((((9^64)^64)^64)^64)^64",
    "hidden exponent": "2^(sqrt(4)*1000000000)",
    "large symbolic expansion": "(a+b+c+d+f+g+h+j)^64",
    "reciprocal of zero": "1/(x-x)",
    "import": "__import__('os')",
    "import and call": "__import__('os').system('touch hacked')",
    "factorial": "factorial(10**9)",
    "factorial sign": "10000000000!",
    "attribute": "().__class__.__bases__",
    "lambda": "lambda: 0",
    "parentheses": "(" * 120 + "x" + ")" * 120,
    "braces": "{" * 120 + "x" + "}" * 120,
    "fractions": r"\frac{" * 40 + "1" + "}{2}" * 40,
    "signs": "-" * 255 + "1",
    "right powers": "^".join("2" * 120),
    "a megabyte of digits": "9" * 2**20,
    "a megabyte of brackets": "(" * 2**20,
    "many items": ",".join("1" * 120),
    "unicode digits": "٤٢",
    "fullwidth digits": "４２",
    "large exponent notation": "1e999999999",
    "null byte": "4\x002",
    "newline": "42\n43",
    "surrogate": "\ud800",
}


@pytest.mark.parametrize("reference", ["42", "x+1", r"\sqrt{2}"])
@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_answers_score_nothing_and_take_no_time(attack, reference, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    equal_final("y+y", "2y")  # the worker's start is not the attack's time
    started = time.process_time()
    assert not equal_final(HOSTILE[attack], reference)
    assert time.process_time() - started < 1, "the trainer's own process is not to wait or compute"
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789x+-*/^(){}[]\\,.sqrt $%fac", max_size=40))
def test_no_text_raises_or_equals_a_number_that_it_is_not(text):
    assert not equal_final(text, "987654321") or parse_number(text.strip(" $.")) == 987654321
    equal_value(text, "5")


NUMBERS = st.fractions(max_denominator=1000).map(str) | st.integers(-(10**6), 10**6).map(str)
LETTERS = st.sampled_from(["x", "y", "x+1", r"\sqrt{2}", r"\frac{x}{2}", r"\pi"])


def answers():
    """Answers of many kinds, each with a text that means the same."""
    leaves = NUMBERS.map(lambda text: (text, f"${text}$")) | LETTERS.map(lambda text: (text, rf"\displaystyle {text}"))

    def container(inner):
        items = st.lists(inner, min_size=2, max_size=3)

        def bracketed(opening, closing, pairs):
            left, right = zip(*pairs, strict=True)
            return opening + ",".join(left) + closing, rf"\left{opening} {' , '.join(right)}\right{closing}"

        return (
            items.map(lambda pairs: bracketed("(", ")", pairs))
            | items.map(lambda pairs: bracketed("[", ")", pairs))
            | items.map(lambda pairs: (bracketed(r"\{", r"\}", pairs)[0], bracketed(r"\{", r"\}", pairs[::-1])[1]))
        )

    return leaves | container(leaves)


@settings(max_examples=60, deadline=None)
@given(answers())
def test_another_notation_of_an_answer_is_equal_in_both_directions(pair):
    left, right = pair
    right = right.replace("$", "")
    assert equal_final(left, right) and equal_final(right, left)


@settings(max_examples=60, deadline=None)
@given(answers(), answers())
def test_equality_is_symmetric_where_nothing_is_left_to_compute(left, right):
    assert equal_final(left[0], right[0]) == equal_final(right[0], left[0])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-99, 99), min_size=2, max_size=5, unique=True), st.integers(100, 200), st.randoms())
def test_a_set_equals_its_rearrangements_and_neither_a_subset_nor_a_superset(items, other, random):
    reference = ", ".join(map(str, items))
    shuffled = random.sample(items, len(items))
    assert equal_final(" and ".join(map(str, shuffled)), reference)
    assert not equal_final(", ".join(map(str, items[1:])), reference)
    assert not equal_final(f"{reference}, {other}", reference)
    assert not equal_final(f"{reference}, {items[0]}", reference)
    assert not equal_final(reference.replace(str(items[0]), str(other), 1), reference)


@pytest.mark.parametrize(
    ("answer", "reference", "tolerance", "equal"),
    [
        ("0.3333333333", "1/3", 1e-6, True),
        ("0.3333333333", "1/3", 0, False),
        ("0.333", "1/3", 1e-2, True),
        ("0.333", "1/3", 1e-6, False),
        ("3.14", "3.1415", 1e-2, True),
        ("3.15", "3.14", 1e-2, False),  # a whole unit of the last place
        ("1234567.85", "1234567.86", 1e-6, False),
        ("42.0000001", "42", 1e-2, False),  # an integer is exact
        ("41", "42", 1e-2, False),
        ("333/1000", "1/3", 1e-2, False),  # two fractions are exact
        ("0.5", "1/2", 0, True),
        ("(0.3333333333, 1)", "(1/3, 1)", 1e-6, True),
        ("-0.3333333333", "1/3", 1e-6, False),
        ("0", "0.0000001", 1e-6, False),
        ("6.7200001e-5", "6.72e-5", 1e-6, True),
        ("3.14159265358979", r"\pi", 1e-2, False),
    ],
)
def test_the_tolerance_is_for_rounded_decimals(answer, reference, tolerance, equal):
    assert equality(MathConfig(tolerance=tolerance))(answer, reference) is equal


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tolerance": -1e-9}, "tolerance is -1e-09, but it must be in"),
        ({"tolerance": 0.02}, "tolerance is 0.02, but it must be in"),
        ({"tolerance": float("nan")}, "tolerance is nan, but it must be in"),
        ({"time_limit": 0}, "time_limit is 0, but it must be a finite number"),
        ({"time_limit": float("inf")}, "time_limit is inf, but it must be a finite number"),
    ],
)
def test_a_config_that_could_not_judge_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        MathConfig(**values)


def test_the_time_limit_is_for_a_whole_answer():
    slow = ",".join(f"(a+b+c+d)^{power}-(a-b)^{power}" for power in range(20, 32))
    other = ",".join(f"(a-b+c+d)^{power}-(a-b)^{power}+0*x" for power in range(20, 32))
    assert equality(MathConfig(time_limit=30))("x+x", "2x")
    started = time.monotonic()
    assert not equality(MathConfig(time_limit=0.2))(slow, other)
    assert time.monotonic() - started < 60


def test_the_math_reward_finds_and_compares():
    def score(completion, reference, reward=math_reward()):  # noqa: B008
        return reward(RewardInput(prompt="", completion=completion, reference=reference, ids=(), end="eos"))

    assert score(r"So $\boxed{\frac{2}{4}}$.", "0.5") == 1
    assert score(r"So $\boxed{0.51}$.", "0.5") == 0
    assert score("no answer", "0.5") == 0
    assert score("5", " ") is None
    assert score("#### 0.334", "1/3", math_reward(MathConfig(tolerance=0.01))) == 1
