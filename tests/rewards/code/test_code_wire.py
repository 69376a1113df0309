"""What crosses between the tested process and the judge."""

import contextlib
import sys
from collections import Counter, OrderedDict, deque
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.rewards.code.inside.wire import MAX_DEPTH, Decoder, Encoder, Malformed, Unsendable

hashable = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False)
)
values = st.recursive(
    hashable,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(hashable, inner, max_size=4),
    max_leaves=10,
)


def crossed(value):
    encoder = Encoder()
    encoder.value(value)
    decoder = Decoder(encoder.bytes())
    result = decoder.value()
    decoder.end()
    return result


@given(values)
def test_plain_data_arrives_as_it_was(value):
    result = crossed(value)
    assert result == value and repr(result) == repr(value)


class LyingList(list):
    def __eq__(self, other):
        return True


class LyingInt(int):
    def __eq__(self, other):
        return True

    def __index__(self):
        return 3


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (LyingList([1]), [1]),
        (LyingInt(7), 7),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (type("Text", (str,), {})("x"), "x"),
        (range(1, 9, 2), range(1, 9, 2)),
        (deque([1, 2]), deque([1, 2])),
        (Decimal("1.50"), Decimal("1.50")),
        (Fraction(1, 3), Fraction(1, 3)),
        ({1, "a", (2.0, None)}, {1, "a", (2.0, None)}),
        (frozenset([b"x"]), frozenset([b"x"])),
        ("\ud800\0", "\ud800\0"),
        (..., ...),
        (slice(1, None), slice(1, None)),
    ],
)
def test_subclasses_arrive_as_builtin_data(value, plain):
    result = crossed([value])[0]
    assert type(result) is type(plain) and result == plain


def test_shared_and_circular_containers_stay_so():
    inner = [1]
    circle = [inner, inner]
    circle.append(circle)
    result = crossed(circle)
    assert result[0] is result[1] and result[2] is result


@pytest.mark.parametrize("value", [object(), len, LyingList, b"x" * 2000, "x" * 2000, [1 << 20000], list(range(900))])
def test_what_is_too_big_or_no_data_is_refused(value):
    with pytest.raises(Unsendable):
        Encoder(limit=1000).value(value)


def test_deep_values_are_refused_on_both_sides():
    deep = []
    for _ in range(2 * MAX_DEPTH):
        deep = [deep]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 10 * MAX_DEPTH)
    try:
        with pytest.raises(Unsendable):
            Encoder().value(deep)
        with pytest.raises(Malformed):
            Decoder(b"l1:" * 2 * MAX_DEPTH + b"N").value()
    finally:
        sys.setrecursionlimit(limit)


class Point:
    def __init__(self, x):
        self.x = x

    def same(self, other):
        return self.x == other.x


def test_objects_of_known_classes_cross_by_fields_and_no_field_replaces_a_method():
    def received(**fields):
        point = Point(0)
        point.__dict__ = fields
        encoder = Encoder(classes={Point: "Point"})
        encoder.value([point, point])
        return Decoder(encoder.bytes(), classes={"Point": Point}).value()

    first, second = received(x=[1], y="z")
    assert first is second and type(first) is Point and vars(first) == {"x": [1], "y": "z"}
    for name in ("same", "__eq__", "__class__", "__dict__"):
        with pytest.raises(Malformed):
            received(x=1, **{name: 1})
    encoder = Encoder(classes={Point: "Point"})
    encoder.value(Point(1))
    with pytest.raises(Malformed):
        Decoder(encoder.bytes()).value()


@given(st.binary() | st.text("NTFifcsbBltSZdr:KVIoEqDQRhk0123456789-;,:").map(str.encode))
def test_no_bytes_do_more_than_fail(data):
    with contextlib.suppress(Malformed, UnicodeDecodeError):
        Decoder(data).value()
