"""The process of the judge: runs the tests, which are trusted, against the tested process at the other end of a socket.

What comes from there is plain data, or a `Handle` whose every use is another message. The verdict leaves on a descriptor
that the tested process does not have.
"""

import builtins
import posix
import sys

from grpo_jax.rewards.code.inside.remote import Broken, CannotCross, Connection
from grpo_jax.rewards.code.inside.source import (
    Names,
    count_asserts,
    has_star_import,
    never_run,
    parse,
    test_functions,
    tests_something,
)
from grpo_jax.rewards.code.inside.start import close_others, confine, silence

_PASSED = "__one_test_passed__"


class BadTests(Exception):
    """The tests cannot judge anything: a fault of the data, not of the tested code."""


def main(job, confinement, control, channel):
    """Judges, and says "verdict PASSED TOTAL" or "bad TEXT" once."""
    close_others(control, channel)
    confine(confinement, control)
    silence()
    sys.setrecursionlimit(8000)  # reading a deep answer takes several frames a level, on top of what the tests use
    try:
        judgement = Judgement(job)
        passed, total = judgement.verdict(Connection(channel, job["message_limit"]))
        line = f"verdict {passed} {total}\n"
    except (BadTests, CannotCross) as error:
        line = f"bad {str(error)[:500]}".replace("\n", " ") + "\n"
    except Broken:
        line = "verdict 0 1\n"
    posix.write(control, line.encode("ascii", "backslashreplace"))
    posix._exit(0)  # what the tests left behind (threads, exit handlers) has no say


class Judgement:
    """The tests of one completion, read before the tested code has said anything.

    Raises:
      BadTests: they cannot judge.
    """

    def __init__(self, job):
        self.entry_point = job["entry_point"]
        self.partial = job["partial"]
        self.preamble = job["preamble"]
        self.counted = 0
        self.trees = [self._parsed(source) for source in job["tests"]]
        self.functions = [test_functions(tree) for tree in self.trees]
        names = [Names(tree) for tree in self.trees]
        self.bound = set().union(*(name.bound for name in names))
        self.called = set().union(*(name.called for name in names))
        self.wanted = set().union(*(name.free() for name in names)) - self.bound
        if self.entry_point is None and any("check" in functions for functions in self.functions):
            raise BadTests("tests define check(candidate), but entry_point does not say what the candidate is")
        self.roots = self._roots()
        # Of one source the asserts are the tests, of a list its items.
        self.asserts = [count_asserts(tree, _PASSED) if self.partial and len(self.trees) == 1 else 0 for tree in self.trees]
        self.codes = [compile(tree, "tests.py", "exec", dont_inherit=True) for tree in self.trees]
        made = type(sys)("tests")
        sys.modules["tests"] = made
        self.namespace = made.__dict__
        self.namespace["__builtins__"] = builtins
        self.namespace[_PASSED] = self._one_passed

    def verdict(self, connection):
        """(tests passed, tests in all).

        Raises:
          Broken: the tested process cannot be judged.
        """
        self._own_names()
        connection.start()
        classes = {
            name: value
            for name, value in self.namespace.items()
            if isinstance(value, type)
            and value.__module__ == "tests"
            and value.__new__ is object.__new__
            and value.__dictoffset__
            and name not in self.roots
        }
        found = connection.names(self.roots | (self.wanted - self.namespace.keys()), classes)
        self.namespace.update(found)
        passed, total = 0, 0
        for code, functions, asserts in zip(self.codes, self.functions, self.asserts):
            total += asserts or 1
            if not self.partial and passed < total - 1:
                continue
            self.counted = 0
            done = self._run(code, functions)
            # What fails beside the asserts that are counted is a failure too.
            passed += min(self.counted, asserts if done else asserts - 1) if asserts else done
        # Tests that pass without asking anything of the tested code have tested nothing.
        if connection.broken or not connection.calls:
            return 0, total
        return passed, total

    def _parsed(self, source):
        try:
            tree = parse(source, "tests.py")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BadTests(f"tests do not compile: {error}") from None
        if (what := never_run(tree)) is not None:
            raise BadTests(f"tests hold {what}, which nothing here would run: call it, or write it as a function test…()")
        if not tests_something(tree):
            raise BadTests("tests neither assert nor raise anything, so every completion would pass")
        return tree

    def _roots(self):
        """The names that come from the tested code whatever else they may mean."""
        if self.entry_point is not None:
            try:
                return Names(parse(self.entry_point, "entry_point")).used
            except (SyntaxError, ValueError) as error:
                raise BadTests(f"entry_point is {self.entry_point!r}, but it must be the name of what is tested") from error
        if self.wanted:
            return set()
        # Tests of a function that is named like a builtin: a builtin that all of them call first.
        roots = set.intersection(*({_first_called(tree)} for tree in self.trees)) - {None}
        if not roots:
            raise BadTests("tests use no name that the completion could define")
        return roots

    def _own_names(self):
        """What the tests use without defining it, and the completion need not define: the preamble's names and modules."""
        if self.preamble:
            tree, code = self._preamble()
            if (self.wanted - self.roots) & Names(tree).bound or has_star_import(tree):
                self._execute(code)
        for name in self.wanted - self.roots - self.called - self.namespace.keys():
            if name in sys.stdlib_module_names:
                self.namespace[name] = __import__(name)

    def _preamble(self):
        bodies = ["\n" + " " * depth + "pass\n" for depth in (4, 8, 12, 16, 2, 6)] + ["\n\tpass\n", "\n\t\tpass\n"]
        for source in (self.preamble, *(self.preamble + body for body in bodies)):
            try:
                return parse(source, "preamble.py"), compile(source, "preamble.py", "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                pass
        raise BadTests("the preamble does not compile, neither by itself nor with a body after its last line")

    def _execute(self, code):
        try:
            exec(code, self.namespace)
        except BaseException as error:
            raise BadTests(f"the preamble fails by itself: {type(error).__name__}: {error}") from None

    def _run(self, code, functions):
        """Whether one source of tests ran to its end without an exception."""
        try:
            exec(code, self.namespace)
            for name in functions:
                arguments = [eval(self.entry_point, self.namespace)] if name == "check" else []
                self.namespace[name](*arguments)
            return self._unittest()
        except (Broken, CannotCross):
            raise
        except ImportError as error:
            if hasattr(error, "from_tested"):
                return False
            raise BadTests(f"tests need what the sandbox has not: {error}") from None
        except BaseException:
            return False

    def _unittest(self):
        """Runs the test cases of unittest, where the tests are written so."""
        unittest = sys.modules.get("unittest")
        if unittest is None:
            return True
        cases = [
            value
            for value in self.namespace.values()
            if isinstance(value, type) and issubclass(value, unittest.TestCase) and value is not unittest.TestCase
        ]
        suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
        result = unittest.TestResult()
        suite.run(result)
        return result.wasSuccessful()

    def _one_passed(self):
        self.counted += 1


def _first_called(tree):
    """The name that the first assert of a module calls first."""
    for statement in tree.body:
        if type(statement).__name__ == "Assert":
            node = statement.test
            while True:
                if type(node).__name__ == "Compare":
                    node = node.left
                elif type(node).__name__ == "UnaryOp":
                    node = node.operand
                elif type(node).__name__ == "Call":
                    return getattr(node.func, "id", None)
                else:
                    return None
    return None
