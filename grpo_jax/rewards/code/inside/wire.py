"""How values cross between the tested process and the judge: plain data only, in a small closed format.

No pickle, no marshal, no eval: reading builds nothing but builtin data, whatever the bytes say, so no method of the tested
code runs where its answers are judged. Subclasses cross as the builtin type beneath them. Lists, dicts, sets and bytearrays
are numbered as they appear, so a value that occurs twice stays one object, and what a call did to its arguments can be told.
Imports nothing at the start that Python has not loaded, for every sandbox pays for it.
"""

import builtins

MAX_DEPTH = 1000
"""Levels of nesting that cross."""

_UNLIMITED = 1 << 62


class Unsendable(Exception):
    """The value is too big, too deep, or of a kind that cannot cross."""


class Malformed(Exception):
    """The bytes are no message."""


def refuse(value):
    """What an encoder does with a value that is no plain data, unless its side has a use for it."""
    raise Unsendable(f"a {type(value).__name__} cannot cross")


class Encoder:
    """Writes values one after the other.

    Args:
      limit: bytes that the message may have.
      other: writes a value that is no plain data: value -> (tag, text), or raises Unsendable.
      table: mutable containers that both sides know already, by their number.
      classes: names of classes that both sides have, by class; their instances cross by their fields.
      drains: None, or a class: then iterators cross by their items, but for instances of it.
    """

    def __init__(self, limit=_UNLIMITED, other=refuse, table=(), classes=None, drains=None):
        self.parts = []
        self.classes = classes or {}
        self.drains = drains
        self.room = limit
        self.other = other
        self.table = list(table)
        self._numbers = {id(container): number for number, container in enumerate(self.table)}

    def bytes(self):
        """All that was written."""
        return b"".join(self.parts)

    def value(self, value, depth=0):
        """Writes one value."""
        kind = type(value)
        writer = _WRITERS.get(kind)
        if writer is None:
            writer = self._inherited(kind, value)
            if writer is None:
                tag, text = self.other(value)
                self._write(f"{tag}{text};".encode())
                return
        if depth > MAX_DEPTH:
            raise Unsendable(f"a value nested more than {MAX_DEPTH} deep cannot cross")
        writer(self, value, depth)

    def content(self, container):
        """Writes what a container of the table holds, as a container of its own."""
        kind = type(container)
        writer = Encoder.instance if kind in self.classes else _WRITERS[base_of(kind)]
        writer(self, container, 0, False)

    def _inherited(self, kind, value):
        if kind in self.classes:
            return Encoder.instance
        if kind is type:
            return Encoder.builtin if value in _BUILTIN_CLASSES else None
        writer = _WRITERS.get(base_of(kind)) or _late_writer(base_name(kind))
        if writer is None and self.drains and hasattr(kind, "__next__") and kind is not self.drains:
            return Encoder.iterator
        return writer

    def _write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise Unsendable("a value of more than the limit's bytes cannot cross")
        self.parts.append(data)

    def _known(self, container):
        """Writes a reference to a container that was there before; otherwise numbers it."""
        number = self._numbers.get(id(container))
        if number is not None:
            self._write(b"R%d;" % number)
            return True
        self._numbers[id(container)] = len(self.table)
        self.table.append(container)
        return False

    def none(self, value, depth):
        self._write(b"N")

    def bool(self, value, depth):
        self._write(b"T" if value else b"F")

    def int(self, value, depth):
        value = int.__index__(value)
        if value.bit_length() > 4 * self.room:
            raise Unsendable("an integer of more than the limit's bytes cannot cross")
        self._write(b"i" + format(value, "x").encode() + b";")

    def float(self, value, depth):
        self._write(b"f" + float.hex(value).encode() + b";")

    def complex(self, value, depth):
        self._write(f"c{float.hex(value.real)},{float.hex(value.imag)};".encode())

    def str(self, value, depth):
        if str.__len__(value) > self.room:
            raise Unsendable("a string of more than the limit's bytes cannot cross")
        self._data(b"s", str.encode(value, "utf-8", "surrogatepass"))

    def raw(self, value, depth):
        self._data(b"b", value)

    def bytearray(self, value, depth, numbered=True):
        if not (numbered and self._known(value)):
            self._data(b"B", value)

    def list(self, value, depth, numbered=True):
        if not (numbered and self._known(value)):
            self._items(b"l", value, list.__len__(value), depth)

    def tuple(self, value, depth):
        self._items(b"t", tuple.__iter__(value), tuple.__len__(value), depth)

    def set(self, value, depth, numbered=True):
        if not (numbered and self._known(value)):
            self._items(b"S", value, len(value), depth)

    def frozenset(self, value, depth):
        self._items(b"Z", value, len(value), depth)

    def dict(self, value, depth, numbered=True):
        if not (numbered and self._known(value)):
            self._pairs(b"d", dict.items(value), dict.__len__(value), depth)

    def range(self, value, depth):
        self._write(b"r")
        for part in (value.start, value.stop, value.step):
            self.int(part, depth)

    def slice(self, value, depth):
        self._write(b":")
        for part in (value.start, value.stop, value.step):
            self.value(part, depth + 1)

    def keys(self, value, depth):
        self._items(b"K", value, len(value), depth)

    def values(self, value, depth):
        self._items(b"V", value, len(value), depth)

    def pairs(self, value, depth):
        self._pairs(b"I", value, len(value), depth)

    def iterator(self, value, depth):
        items = []
        for item in value:
            items.append(item)
            if len(items) > self.room:
                raise Unsendable("an iterator without end cannot cross")
        self._items(b"o", items, len(items), depth)

    def instance(self, value, depth, numbered=True):
        if not (numbered and self._known(value)):
            fields = getattr(value, "__dict__", None)
            if type(fields) is not dict:
                raise Unsendable("an object without fields cannot cross")
            self._data(b"P", self.classes[type(value)].encode())
            self._pairs(b"", fields.items(), len(fields), depth)

    def builtin(self, value, depth):
        self._data(b"u", _BUILTIN_CLASSES[value].encode())

    def ellipsis(self, value, depth):
        self._write(b"E")

    def deque(self, value, depth):
        self._items(b"q", value, len(value), depth)

    def decimal(self, value, depth):
        self._data(b"D", str(value).encode())

    def fraction(self, value, depth):
        self._write(b"Q")
        self.int(value.numerator, depth)
        self.int(value.denominator, depth)

    def _data(self, tag, data):
        self._write(b"%s%d:" % (tag, len(data)))
        self._write(bytes(data))

    def _items(self, tag, items, count, depth):
        self._write(b"%s%d:" % (tag, count))
        for item in items:
            self.value(item, depth + 1)

    def _pairs(self, tag, pairs, count, depth):
        self._write(b"%s%d:" % (tag, count))
        for key, value in pairs:
            self.value(key, depth + 1)
            self.value(value, depth + 1)


_WRITERS: dict = {
    type(None): Encoder.none,
    bool: Encoder.bool,
    int: Encoder.int,
    float: Encoder.float,
    complex: Encoder.complex,
    str: Encoder.str,
    bytes: Encoder.raw,
    bytearray: Encoder.bytearray,
    list: Encoder.list,
    tuple: Encoder.tuple,
    set: Encoder.set,
    frozenset: Encoder.frozenset,
    dict: Encoder.dict,
    range: Encoder.range,
    slice: Encoder.slice,
    type({}.keys()): Encoder.keys,
    type({}.values()): Encoder.values,
    type({}.items()): Encoder.pairs,
    type(...): Encoder.ellipsis,
}
# The classes of builtin data and exceptions, which are the same on both sides.
_BUILTIN_CLASSES = {
    value: name
    for name, value in vars(builtins).items()
    if type(value) is type and (value in _WRITERS or value is object or issubclass(value, BaseException))
}
_BUILTIN_NAMES = {name: value for value, name in _BUILTIN_CLASSES.items()}

# By name, for importing their modules takes longer than most tests.
_LATE_WRITERS: dict = {
    ("collections", "deque"): Encoder.deque,
    ("decimal", "Decimal"): Encoder.decimal,
    ("fractions", "Fraction"): Encoder.fraction,
}


def base_of(kind):
    """The builtin type that instances of `kind` cross as, None where there is none."""
    for base in type.mro(kind) if kind is not type else ():
        if base in _WRITERS:
            return base
    return None


def base_name(kind):
    """(module, name) of the type of the standard library that instances of `kind` cross as, None where there is none."""
    for base in type.mro(kind) if kind is not type else ():
        name = (base.__module__, base.__name__)
        if name in _LATE_WRITERS:
            return name
    return None


def _late_writer(name):
    return None if name is None else _LATE_WRITERS[name]


def _is_field(kind, name):
    """Whether an instance of the class may have a field of the name: one over a method would answer in its place."""
    if name.startswith("__"):
        return False
    for base in type.mro(kind):
        if name in base.__dict__:
            value = base.__dict__[name]
            return not (callable(value) or hasattr(type(value), "__get__"))
    return True


class Decoder:
    """Reads values one after the other.

    Args:
      data: the message.
      other: makes a value of a tag that is not of this file: (tag, text) -> value, or raises Malformed.
      table: mutable containers that both sides know already, by their number.
      classes: classes that both sides have, by name.
    """

    def __init__(self, data, other=None, table=(), classes=None):
        self.classes = classes or {}
        self.data = data
        self.at = 0
        self.other = other
        self.table = list(table)

    def value(self, depth=0, numbered=True):
        """Reads one value.

        Args:
          numbered: whether the container read joins the table; False for the content of one that is in it.

        Raises:
          Malformed: there is none.
        """
        if depth > MAX_DEPTH + 1:
            raise Malformed("nested too deep")
        tag = self.data[self.at : self.at + 1]
        self.at += 1
        reader = _READERS.get(tag)
        if reader is not None:
            return reader(self, depth, numbered)
        if self.other is None or not tag:
            raise Malformed("no such kind of value")
        return self.other(tag.decode("ascii", "replace"), self._until(b";").decode("ascii", "replace"))

    def end(self):
        """Raises Malformed where something is left over."""
        if self.at != len(self.data):
            raise Malformed("something is left over")

    def _until(self, mark):
        end = self.data.find(mark, self.at)
        if end < 0:
            raise Malformed("cut off")
        part = self.data[self.at : end]
        self.at = end + 1
        return part

    def _count(self):
        digits = self._until(b":")
        if not digits.isdigit() or len(digits) > 12:
            raise Malformed("no count")
        return int(digits)

    def _data(self):
        count = self._count()
        part = self.data[self.at : self.at + count]
        if len(part) != count:
            raise Malformed("cut off")
        self.at += count
        return part

    def _hex(self):
        digits = self._until(b";")
        try:
            return int(digits, 16)
        except ValueError:
            raise Malformed("no integer") from None

    def _float(self, mark):
        try:
            return float.fromhex(self._until(mark).decode("ascii"))
        except (ValueError, OverflowError):
            raise Malformed("no number") from None

    def _join(self, container, numbered):
        if numbered:
            self.table.append(container)
        return container

    def _items(self, depth):
        count = self._count()
        if count > len(self.data) - self.at:
            raise Malformed("cut off")
        return [self.value(depth + 1) for _ in range(count)]

    def _hashed(self, make, depth):
        try:
            return make(self._items(depth))
        except TypeError:
            raise Malformed("an item that has no hash") from None

    def none(self, depth, numbered):
        return None

    def true(self, depth, numbered):
        return True

    def false(self, depth, numbered):
        return False

    def int(self, depth, numbered):
        return self._hex()

    def float(self, depth, numbered):
        return self._float(b";")

    def complex(self, depth, numbered):
        return complex(self._float(b","), self._float(b";"))

    def str(self, depth, numbered):
        try:
            return self._data().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise Malformed("no text") from None

    def raw(self, depth, numbered):
        return bytes(self._data())

    def bytearray(self, depth, numbered):
        return self._join(bytearray(self._data()), numbered)

    def list(self, depth, numbered):
        container = self._join([], numbered)
        container += self._items(depth)
        return container

    def tuple(self, depth, numbered):
        return tuple(self._items(depth))

    def set(self, depth, numbered):
        container = self._join(set(), numbered)
        container |= self._hashed(frozenset, depth)
        return container

    def frozenset(self, depth, numbered):
        return self._hashed(frozenset, depth)

    def dict(self, depth, numbered):
        container = self._join({}, numbered)
        self._fill(container, depth)
        return container

    def _fill(self, container, depth):
        count = self._count()
        for _ in range(count):
            key = self.value(depth + 1)
            value = self.value(depth + 1)
            try:
                container[key] = value
            except TypeError:
                raise Malformed("a key that has no hash") from None
        return container

    def range(self, depth, numbered):
        parts = [self._tagged_int() for _ in range(3)]
        if not parts[2]:
            raise Malformed("a range without step")
        return range(*parts)

    def _tagged_int(self):
        value = self.value()
        if type(value) is not int:
            raise Malformed("no integer")
        return value

    def slice(self, depth, numbered):
        return slice(*[self.value(depth + 1) for _ in range(3)])

    def keys(self, depth, numbered):
        return self._hashed(dict.fromkeys, depth).keys()

    def values(self, depth, numbered):
        return dict(enumerate(self._items(depth))).values()

    def pairs(self, depth, numbered):
        return self._fill({}, depth).items()

    def iterator(self, depth, numbered):
        return iter(self._items(depth))

    def instance(self, depth, numbered):
        made = self.classes.get(self._data().decode("utf-8", "replace"))
        if made is None:
            raise Malformed("no such class")
        # Without a constructor or an attribute's setter: only fields are made.
        made = self._join(object.__new__(made), numbered)
        fields = self._fill({}, depth)
        if not all(type(name) is str and _is_field(type(made), name) for name in fields):
            raise Malformed("no field")
        made.__dict__.update(fields)
        return made

    def builtin(self, depth, numbered):
        name = self._data().decode("utf-8", "replace")
        if name not in _BUILTIN_NAMES:
            raise Malformed("no builtin class")
        return _BUILTIN_NAMES[name]

    def ellipsis(self, depth, numbered):
        return ...

    def deque(self, depth, numbered):
        from collections import deque

        return deque(self._items(depth))

    def decimal(self, depth, numbered):
        from decimal import Decimal, InvalidOperation

        try:
            return Decimal(self._data().decode("ascii"))
        except (InvalidOperation, ValueError):
            raise Malformed("no decimal") from None

    def fraction(self, depth, numbered):
        from fractions import Fraction

        numerator, denominator = self._tagged_int(), self._tagged_int()
        if not denominator:
            raise Malformed("no fraction")
        return Fraction(numerator, denominator)

    def reference(self, depth, numbered):
        digits = self._until(b";")
        if not digits.isdigit() or len(digits) > 12 or int(digits) >= len(self.table):
            raise Malformed("a reference to nothing")
        return self.table[int(digits)]


_READERS = {
    b"N": Decoder.none,
    b"T": Decoder.true,
    b"F": Decoder.false,
    b"i": Decoder.int,
    b"f": Decoder.float,
    b"c": Decoder.complex,
    b"s": Decoder.str,
    b"b": Decoder.raw,
    b"B": Decoder.bytearray,
    b"l": Decoder.list,
    b"t": Decoder.tuple,
    b"S": Decoder.set,
    b"Z": Decoder.frozenset,
    b"d": Decoder.dict,
    b"r": Decoder.range,
    b":": Decoder.slice,
    b"K": Decoder.keys,
    b"V": Decoder.values,
    b"I": Decoder.pairs,
    b"o": Decoder.iterator,
    b"E": Decoder.ellipsis,
    b"P": Decoder.instance,
    b"u": Decoder.builtin,
    b"q": Decoder.deque,
    b"D": Decoder.decimal,
    b"Q": Decoder.fraction,
    b"R": Decoder.reference,
}
