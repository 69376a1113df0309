"""What may stand beside a number without being a part of it."""

import pytest

from grpo_jax.rewards.mathematics.units import compatible, split_currency, split_unit


@pytest.mark.parametrize(
    ("text", "rest", "unit"),
    [
        ("5 cm", "5", "cm"),
        ("5cm", "5", "cm"),
        (r"5\text{ centimeters}", "5", "cm"),
        (r"5 \text{m}", "5", "m"),
        ("5 m", "5 m", ""),
        ("5m", "5m", ""),
        ("5 square inches", "5", "in^2"),
        (r"5\text{ in}^2", "5", "in^2"),
        (r"5\text{ in}^{3}", "5", "in^3"),
        ("60 miles per hour", "60", "mph"),
        ("60 km/h", "60", "kmh"),
        ("50%", "50", "percent"),
        ("50 percent", "50", "percent"),
        (r"90^\circ", "90", "degree"),
        (r"2\pi cm", r"2\pi", "cm"),
        (r"18\text{ red apples}", "18", "red apple"),
        (r"18\text{ million}", r"18\text{ million}", ""),
        (r"18\text{ or so}", r"18\text{ or so}", ""),
        (r"18\text{ pi}", r"18\text{ pi}", ""),
        (r"x\text{i}", r"x\text{i}", ""),
        ("18 apples", "18", "apple"),
        ("18 xyz", "18 xyz", ""),
        ("18 dozen", "18 dozen", ""),
        ("cm", "cm", ""),
        (r"\pi", r"\pi", ""),
        (r"x\cup", r"x\cup", ""),
    ],
)
def test_a_known_unit_is_parted_from_what_it_counts(text, rest, unit):
    assert split_unit(text) == (rest, unit)


@pytest.mark.parametrize(
    ("text", "rest", "currency"),
    [("$5", "5", "usd"), ("-$5", "-5", "usd"), ("€-5", "-5", "eur"), ("-$-5", "-$-5", ""), ("$x", "$x", ""), ("5", "5", "")],
)
def test_a_currency_stands_before_a_number(text, rest, currency):
    assert split_currency(text) == (rest, currency)


def test_a_unit_left_out_agrees_with_any_and_two_must_be_one():
    assert compatible("", "cm") and compatible("cm", "") and compatible("cm", "cm") and compatible("", "")
    assert not compatible("cm", "in") and not compatible("cm", "cm^2")
