"""The process of the tested code: loads it, then makes the calls that the judge asks for. Nothing here is trusted."""

import posix
import sys

from grpo_jax.rewards.code.inside.start import close_others, compiled, confine, module, silence
from grpo_jax.rewards.code.inside.wire import Decoder, Encoder, Malformed, Unsendable, base_name, base_of

DEEP = 6000
"""Frames that the deepest value takes to cross."""


def main(job, confinement, control, channel):
    """Serves calls until the judge hangs up."""
    close_others(control, channel)
    confine(confinement, control)
    silence()
    close_others(channel)
    service = Service(channel, job["message_limit"])
    namespace = module("solution")
    try:
        for code in compiled(job["variants"], "solution.py"):
            exec(code, namespace)
    except BaseException as error:
        service.send(service.failure(error))
        return
    service.names = namespace
    service.send(service.reply(None))
    service.serve()


class Service:
    """Makes calls and sends what they give."""

    def __init__(self, channel, limit):
        self.channel = channel
        self.limit = limit
        self.names = {}
        self.classes = {}
        self.handles = []
        self.numbers = {}

    def serve(self):
        """Answers requests until there are no more."""
        while True:
            data = self.receive()
            if data is None:
                return
            self.send(self.answer(data))

    def answer(self, data):
        """What one request gives, encoded."""
        limit = sys.getrecursionlimit()
        try:
            sys.setrecursionlimit(max(limit, DEEP))
            request = Decoder(data, self.known, classes={name: made for made, name in self.classes.items()})
            operation = request.value()
            target = request.value()
            begin = request.at
            args, kwargs = request.value(), request.value()
            sent = data[begin:]
            sys.setrecursionlimit(limit)
            try:
                result = OPERATIONS[operation](self, target, *args, **kwargs)
            finally:
                limit = sys.getrecursionlimit()
                sys.setrecursionlimit(max(limit, DEEP))
            now = Encoder(self.limit, self.opaque, classes=self.classes)
            now.value(args)
            now.value(kwargs)
            changed = now.bytes() != sent
            return self.reply(result, request.table, changed)
        except Unsendable as error:
            return self.unsendable(error)
        except BaseException as error:
            return self.failure(error)
        finally:
            sys.setrecursionlimit(limit)

    def reply(self, result, table=(), changed=False):
        """A value, and what became of the arguments where the call changed them."""
        encoder = Encoder(self.limit, self.opaque, table, self.classes)
        encoder.value("value")
        encoder.value(result)
        encoder.value(changed)
        if changed:
            for container in table:
                encoder.content(container)
        return encoder.bytes()

    def failure(self, error):
        """An exception, by the names of its classes."""
        try:
            names = [base.__name__ for base in type(error).__mro__]
            text = str(error)[:2000]
        except BaseException:
            names, text = ["Exception"], ""
        encoder = Encoder(self.limit)
        try:
            for part in ("raise", names, text):
                encoder.value(part)
            return encoder.bytes()
        except BaseException as trouble:
            return self.unsendable(trouble)

    def unsendable(self, error):
        encoder = Encoder()
        encoder.value("unsendable")
        return encoder.bytes()

    def opaque(self, value):
        """A reference for the judge to what is no plain data."""
        if type(value) is Callback:
            return "k", value.number
        if type(value) is Opaque:
            value = value.value
        number = self.numbers.setdefault(id(value), len(self.handles))
        if number == len(self.handles):
            self.handles.append(value)
        return "h", number

    def known(self, tag, text):
        """What a reference by the judge means."""
        if tag == "h":
            return self.handles[int(text)]
        if tag == "k":
            return Callback(self, int(text))
        raise Malformed(tag)

    def send(self, data):
        """Writes one message."""
        data = len(data).to_bytes(4, "big") + data
        while data:
            data = data[posix.write(self.channel, data) :]

    def receive(self):
        """Reads one message, None at the end."""
        head = self.read(4)
        return None if head is None else self.read(int.from_bytes(head, "big"))

    def read(self, count):
        parts = []
        while count:
            part = posix.read(self.channel, min(count, 1 << 20))
            if not part:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def kind(self, wanted, classes):
        """What each name of the tested code is: (kind, what the judge needs of it).

        The judge has classes of its own by the names in `classes`: instances of those of this process cross by their fields.
        """
        self.classes = {self.names[name]: name for name in classes if isinstance(self.names.get(name), type)}
        return tuple([self.kind_of(self.names[name]) if name in self.names else ("missing", None) for name in wanted])

    def kind_of(self, value):
        if isinstance(value, type) and issubclass(value, BaseException):
            return "exception", ([base.__name__ for base in value.__mro__], Opaque(value))
        if callable(value):
            return "callable", Opaque(value)
        if base_of(type(value)) or base_name(type(value)):
            return "data", value
        return "object", value


class Opaque:
    """Sent as a reference even where it could cross."""

    def __init__(self, value):
        self.value = value


class Callback:
    """A function of the judge's."""

    def __init__(self, service, number):
        self.service = service
        self.number = number

    def __call__(self, /, *args, **kwargs):
        encoder = Encoder(self.service.limit, self.service.opaque, classes=self.service.classes)
        for part in ("callback", self.number, args, kwargs):
            encoder.value(part)
        self.service.send(encoder.bytes())
        answer = Decoder(self.service.receive(), self.service.known)
        if answer.value() == "value":
            return answer.value()
        name, text = answer.value(), answer.value()
        kind = getattr(__import__("builtins"), name, RuntimeError)
        raise kind(text)


OPERATIONS: dict = {
    "names": lambda service, target, wanted, classes: service.kind(wanted, classes),
    "call": lambda service, target, /, *args, **kwargs: target(*args, **kwargs),
    "get": lambda service, target, name: getattr(target, name),
    "set": lambda service, target, name, value: setattr(target, name, value),
    "item": lambda service, target, key: target[key],
    "set_item": lambda service, target, key, value: target.__setitem__(key, value),
    "delete_item": lambda service, target, key: target.__delitem__(key),
    "length": lambda service, target: len(target),
    "iterate": lambda service, target: iter(target),
    "next": lambda service, target: _next(target),
    "text": lambda service, target: str(target),
    "repr": lambda service, target: repr(target),
    "instance": lambda service, target, value: bool(isinstance(value, target)),
    "enter": lambda service, target: target.__enter__(),
    "exit": lambda service, target: bool(target.__exit__(None, None, None)),
    "add": lambda service, target, value: target + value,
    "subtract": lambda service, target, value: target - value,
    "multiply": lambda service, target, value: target * value,
    "matrix_multiply": lambda service, target, value: target @ value,
    "divide": lambda service, target, value: target / value,
    "negative": lambda service, target: -target,
}


def _next(iterator):
    """(True, the next item), or (False, None) at the end."""
    try:
        return True, next(iterator)
    except StopIteration:
        return False, None
