"""What the source of tests says of itself: its names, its checks, its asserts. On syntax trees, without importing ast."""

import _ast
import builtins

_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST


def parse(source, filename):
    """The syntax tree of a module.

    Raises:
      SyntaxError, ValueError, RecursionError, MemoryError: there is none.
    """
    return compile(source, filename, "exec", _ONLY_AST, dont_inherit=True)


def walk(node):
    """The node and all that are in it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        for field in node._fields:
            child = getattr(node, field, None)
            if isinstance(child, list):
                waiting.extend(item for item in child if isinstance(item, _ast.AST))
            elif isinstance(child, _ast.AST):
                waiting.append(child)


class Names:
    """The names of a module.

    Attributes:
      used: those that it reads.
      bound: those that it gives a meaning anywhere, parameters included.
      called: those that it calls as they stand.
    """

    def __init__(self, tree):
        self.used: set = set()
        self.bound: set = set()
        self.called: set = set()
        for node in walk(tree):
            if isinstance(node, _ast.Name):
                (self.used if isinstance(node.ctx, _ast.Load) else self.bound).add(node.id)
            elif isinstance(node, _ast.Call):
                if isinstance(node.func, _ast.Name):
                    self.called.add(node.func.id)
            elif isinstance(node, (_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.ClassDef)):
                self.bound.add(node.name)
            elif isinstance(node, _ast.arg):
                self.bound.add(node.arg)
            elif isinstance(node, _ast.alias):
                self.bound.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, _ast.ExceptHandler) and node.name:
                self.bound.add(node.name)

    def free(self):
        """Those that it reads and something else must provide, builtins aside."""
        return {name for name in self.used - self.bound if not hasattr(builtins, name)}


def test_functions(tree):
    """The functions that are tests and that the module does not call itself: check, and test…() as of pytest; by name."""
    defined, calls = [], set()
    for statement in tree.body:
        if isinstance(statement, _ast.FunctionDef):
            required = len(statement.args.args) + len(statement.args.posonlyargs) - len(statement.args.defaults)
            if statement.name == "check" or (statement.name.startswith("test") and required == 0):
                defined.append(statement.name)
        elif not isinstance(statement, (_ast.ClassDef, _ast.AsyncFunctionDef)) and not _is_main_guard(statement):
            calls |= Names(statement).called
    return [name for name in defined if name not in calls]


def has_star_import(tree):
    """Whether the module takes names that it does not name."""
    return any(isinstance(node, _ast.ImportFrom) and node.names[0].name == "*" for node in tree.body)


def never_run(tree):
    """What is written to be run by others than Python itself or unittest, in words; None where nothing is."""
    calls = set()
    for statement in tree.body:
        if not isinstance(statement, (_ast.FunctionDef, _ast.ClassDef, _ast.AsyncFunctionDef)):
            calls |= Names(statement).called
    for statement in tree.body:
        if _is_main_guard(statement) and Names(statement).called - set(test_functions(tree)) - {"print"}:
            return "a guard by __name__ that calls more than test functions"
        if not _asserts(statement):
            continue
        if isinstance(statement, _ast.AsyncFunctionDef) and statement.name not in calls:
            return f"the async function {statement.name}"
        if isinstance(statement, _ast.FunctionDef) and statement.name.startswith("test"):
            required = len(statement.args.args) + len(statement.args.posonlyargs) - len(statement.args.defaults)
            if required and statement.name not in calls:
                return f"the function {statement.name} with arguments"
        is_class = isinstance(statement, _ast.ClassDef) and not statement.bases and statement.name.startswith("Test")
        if is_class and statement.name not in calls:
            return f"the class {statement.name}"
    return None


def _asserts(statement):
    return any(isinstance(node, _ast.Assert) for node in walk(statement))


def _is_main_guard(statement):
    return (
        isinstance(statement, _ast.If)
        and isinstance(statement.test, _ast.Compare)
        and getattr(statement.test.left, "id", None) == "__name__"
        and any(isinstance(node, _ast.Call) for part in statement.body for node in walk(part))
    )


def tests_something(tree):
    """Whether the module can fail at all: whether anything in it asserts or raises, by itself or by unittest."""
    return any(
        isinstance(node, (_ast.Assert, _ast.Raise)) or (isinstance(node, _ast.Attribute) and node.attr.startswith("assert"))
        for node in walk(tree)
    )


def count_asserts(tree, name):
    """Has later asserts run after one that failed: each top-level statement that asserts becomes one test of its own.

    The statements are those of the test functions where there are any, else the module's. `name` is that of a function
    that the code calls after each that passed.

    Returns:
      how many there are.
    """
    wanted = set(test_functions(tree))
    bodies = [statement.body for statement in tree.body if getattr(statement, "name", None) in wanted] or [tree.body]
    count = 0
    for body in bodies:
        for index, statement in enumerate(body):
            if isinstance(statement, (_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.ClassDef)):
                continue
            if any(isinstance(node, _ast.Assert) for node in walk(statement)):
                body[index] = _guarded(statement, name)
                count += 1
    return count


def _guarded(statement, name):
    """try: statement / except Exception: pass / else: name()"""
    guard = parse(f"try:\n    pass\nexcept Exception:\n    pass\nelse:\n    {name}()\n", "tests.py").body[0]
    for node in walk(guard):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = statement.lineno
            node.col_offset = node.end_col_offset = 0
    guard.body = [statement]
    return guard
