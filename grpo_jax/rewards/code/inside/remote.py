"""The tested process as the judge sees it: calls that give plain data, or handles that decide nothing by themselves."""

import builtins
import posix

from grpo_jax.rewards.code.inside.wire import Decoder, Encoder, Malformed, Unsendable

# These would stop a loop of the tests, or the judge, without a failure.
_ARRIVE_AS_RUNTIME_ERROR = ("StopIteration", "StopAsyncIteration")
# Methods by which builtin data answers yes or no: an object that merely looks like data could answer yes to anything.
_DECIDING = frozenset(
    name
    for kind in (str, bytes, bytearray, list, tuple, dict, set, frozenset, int, float)
    for name in dir(kind)
    if name.startswith("is") or name in ("startswith", "endswith")
)


class CannotCross(BaseException):
    """The tests give the tested code what cannot be sent to another process: a fault of the tests."""


class Broken(BaseException):
    """The tested process ended, or said what cannot be judged. No BaseException-proof test gets past it: see `broken`."""


class Connection:
    """The socket to the tested process.

    Attributes:
      broken: whether anything went wrong that no verdict but failure can follow.
      calls: how often the tests asked the tested code for anything.
    """

    def __init__(self, channel, limit):
        self._channel = channel
        self._limit = limit
        self._callbacks = []
        self._exceptions = {}
        self._classes = {}
        self.broken = False
        self.calls = 0

    def start(self):
        """Waits until the tested code is loaded.

        Raises:
          Broken: it could not be.
        """
        try:
            if Decoder(self._receive()).value() != "value":
                self._break("the code could not be loaded")
        except Exception as error:
            self._break(error)

    def names(self, wanted, classes):
        """What the tests can use of the tested code's names, by name.

        Args:
          wanted: the names.
          classes: the tests' own classes by name, of which the tested code should have the same.
        """
        wanted = sorted(wanted)
        found = {}
        answers = self.request("names", None, wanted, sorted(classes))
        self._classes = classes
        if type(answers) is not tuple or len(answers) != len(wanted):
            self._break("no list of names")
        for name, answer in zip(wanted, answers):
            if type(answer) is not tuple or len(answer) != 2:
                self._break("no kind of name")
            kind, value = answer
            if kind == "exception":
                found[name] = self._exception_class(name, value)
            elif kind != "missing":
                found[name] = value
        self.calls = 0
        return found

    def request(self, operation, target, /, *args, **kwargs):
        """Does something with an object of the tested process, and gives what it gives.

        Raises:
          Exception: the builtin exception that the tested code raised.
          Broken: there is no answer that can be judged.
          TypeError: the arguments cannot cross.
        """
        if self.broken:
            raise Broken("after a failure")
        encoder = self._encoder()
        try:
            for part in (operation, target, args, kwargs):
                encoder.value(part)
        except Unsendable as error:
            raise TypeError(str(error)) from None
        self.calls += 1
        self._send(encoder.bytes())
        try:
            result, raised = self._answer(encoder.table)
        except Exception as error:  # whatever reading it meets: what is no answer is no verdict
            self._break(error)
        if raised is not None:
            raise raised
        return result

    def _answer(self, table):
        """(what the request gave, None), or (None, the exception that it raised)."""
        while True:
            answer = Decoder(self._receive(), self._referred, table, self._classes)
            kind = answer.value()
            if kind == "callback":
                self._call_back(answer)
            elif kind == "value":
                result, changed = answer.value(), answer.value()
                if changed:
                    _write_back(table, answer)
                answer.end()
                return result, None
            elif kind == "raise":
                names, text = answer.value(), answer.value()
                answer.end()
                return None, self._raised(names, text)
            else:
                raise Malformed("no answer")

    def _call_back(self, answer):
        """Calls a function that the tests gave as an argument."""
        number, args, kwargs = answer.value(), answer.value(), answer.value()
        answer.end()
        if not (type(number) is int and 0 <= number < len(self._callbacks) and type(args) is tuple and type(kwargs) is dict):
            raise Malformed("a callback to nothing")
        encoder = self._encoder()
        try:
            result = self._callbacks[number](*args, **kwargs)
            encoder.value("value")
            encoder.value(result)
        except AssertionError:  # the tested code could swallow it
            self._break("an assert failed in a function that the tests gave")
        except Exception as error:
            encoder = Encoder(self._limit)
            for part in ("raise", type(error).__name__, str(error)[:1000]):
                encoder.value(part)
        self._send(encoder.bytes())

    def _refer(self, value):
        """How an argument that is no plain data crosses."""
        if type(value) is Handle:
            return "h", value._grpo_number
        if callable(value):
            self._callbacks.append(value)
            return "k", len(self._callbacks) - 1
        raise CannotCross(f"a {type(value).__name__} cannot be given to code in another process")

    def _encoder(self):
        names = {made: name for name, made in self._classes.items()}
        return Encoder(self._limit, self._refer, classes=names, drains=Handle)

    def _referred(self, tag, text):
        if not text.isdigit() or len(text) > 12:
            raise Malformed("a reference to nothing")
        if tag == "h":
            return Handle(self, int(text))
        if tag == "k" and int(text) < len(self._callbacks):
            return self._callbacks[int(text)]
        raise Malformed("no such kind of value")

    def _exception_class(self, name, value):
        if not (type(value) is tuple and len(value) == 2 and _are_names(value[0])):
            self._break("no exception")
        made = type(name, (_builtin_exception(value[0]),), {})
        self._exceptions[name] = made
        return made

    def _raised(self, names, text):
        """The exception of the tested code as one of the tests' own."""
        if not (_are_names(names) and type(text) is str):
            raise Malformed("no exception")
        kind = next((self._exceptions[name] for name in names if name in self._exceptions), None)
        kind = kind or _builtin_exception(names)
        try:
            error = kind(text)
        except TypeError:  # one that takes other arguments, UnicodeDecodeError for example
            error = kind.__new__(kind)
        error.from_tested = True
        return error

    def _break(self, reason):
        self.broken = True
        raise Broken(str(reason))

    def _send(self, data):
        data = len(data).to_bytes(4, "big") + data
        try:
            while data:
                data = data[posix.write(self._channel, data) :]
        except OSError as error:
            self._break(error)

    def _receive(self):
        size = int.from_bytes(self._read(4), "big")
        if size > self._limit:
            self._break("a message over the limit")
        return self._read(size)

    def _read(self, count):
        parts = []
        while count:
            try:
                part = posix.read(self._channel, min(count, 1 << 20))
            except OSError as error:
                self._break(error)
            if not part:
                self._break("the tested process ended")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _write_back(table, answer):
    """Gives the tests' own containers what a call made of them."""
    contents = [answer.value(numbered=False) for _ in table]
    for container, content in zip(table, contents):
        kind = type(content)
        if hasattr(container, "__dict__") and type(container) is kind:
            container.__dict__.clear()
            container.__dict__.update(content.__dict__)
            continue
        if not isinstance(container, kind):
            raise Malformed("an argument that changed its type")
        if kind in (list, bytearray):
            container[:] = content
        elif kind in (dict, set):
            container.clear()
            container.update(content)
        else:
            raise Malformed("an argument that cannot change")


def _are_names(names):
    return type(names) is list and all(type(name) is str for name in names)


def _builtin_exception(names):
    """The nearest builtin class under `Exception`; what would end the judge or its loops is a RuntimeError."""
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and name not in _ARRIVE_AS_RUNTIME_ERROR:
            return kind
        if name in _ARRIVE_AS_RUNTIME_ERROR:
            break
    return RuntimeError


class Handle:
    """An object of the tested process that is no plain data, or a function or class of it.

    Calls, attributes, items, length and iteration go there. It is equal to nothing, ordered with nothing, and neither
    true nor false: whoever asks breaks the judgement, for the object itself would answer, and could answer anything.
    """

    __slots__ = ("_grpo_connection", "_grpo_number")

    def __init__(self, connection, number):
        object.__setattr__(self, "_grpo_connection", connection)
        object.__setattr__(self, "_grpo_number", number)

    def _grpo_undecided(self, *_):
        self._grpo_connection._break("the tests compare or test an object that is no plain data")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = _grpo_undecided

    def __call__(self, /, *args, **kwargs):
        return self._grpo_connection.request("call", self, *args, **kwargs)

    def __getattr__(self, name):
        if name in _DECIDING:
            self._grpo_undecided()
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return self._grpo_connection.request("get", self, name)

    def __setattr__(self, name, value):
        self._grpo_connection.request("set", self, name, value)

    def __getitem__(self, key):
        return self._grpo_connection.request("item", self, key)

    def __setitem__(self, key, value):
        self._grpo_connection.request("set_item", self, key, value)

    def __delitem__(self, key):
        self._grpo_connection.request("delete_item", self, key)

    def __len__(self):
        length = self._grpo_connection.request("length", self)
        if type(length) is not int or length < 0:
            self._grpo_undecided()
        return length

    def __iter__(self):
        iterator = self._grpo_connection.request("iterate", self)
        if type(iterator) is not Handle:
            self._grpo_undecided()
        return iterator if iterator._grpo_number == self._grpo_number else _Iterator(iterator)

    def __next__(self):
        answer = self._grpo_connection.request("next", self)
        if type(answer) is not tuple or len(answer) != 2 or type(answer[0]) is not bool:
            self._grpo_undecided()
        if not answer[0]:
            raise StopIteration
        return answer[1]

    def __contains__(self, value):
        # By its items, which the judge compares, and not by what the object says of itself.
        return any(item is value or item == value for item in self)

    def __str__(self):
        return self._grpo_text("text")

    def __repr__(self):
        return self._grpo_text("repr")

    def _grpo_text(self, operation):
        text = self._grpo_connection.request(operation, self)
        if type(text) is not str:
            self._grpo_undecided()
        return text

    def __instancecheck__(self, value):
        return self._grpo_connection.request("instance", self, value) is True

    def __enter__(self):
        return self._grpo_connection.request("enter", self)

    def __exit__(self, *_):
        self._grpo_connection.request("exit", self)

    # Arithmetic only among objects of the tested process: one that learns the number it is compared with can answer it.
    def _grpo_arithmetic(self, operation, other):
        if type(other) is not Handle:
            return NotImplemented
        return self._grpo_connection.request(operation, self, other)

    def __add__(self, other):
        return self._grpo_arithmetic("add", other)

    def __sub__(self, other):
        return self._grpo_arithmetic("subtract", other)

    def __mul__(self, other):
        return self._grpo_arithmetic("multiply", other)

    def __matmul__(self, other):
        return self._grpo_arithmetic("matrix_multiply", other)

    def __truediv__(self, other):
        return self._grpo_arithmetic("divide", other)

    def __neg__(self):
        return self._grpo_connection.request("negative", self)


class _Iterator:
    """Goes over the items of a handle whose iterator is another object."""

    def __init__(self, handle):
        self._handle = handle

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._handle)
