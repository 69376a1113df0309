"""The reward of code: honest programs of many shapes pass, metadata is checked, and credit is counted."""

import dataclasses
import json
from pathlib import Path

import pytest

from grpo_jax.rewards.code import CodeConfig, Limits, code_reward
from grpo_jax.rewards.code.reward import same_output
from grpo_jax.rewards.protocol import RewardInput

HONEST = [json.loads(line) for line in (Path(__file__).parent / "honest_programs.jsonl").read_text().splitlines()]

pytestmark = pytest.mark.filterwarnings("ignore:sandbox is 'rlimits'")


GUARDED = """
sol = Solution()
def test_add():
    assert sol.add(1, 2) == 3
if __name__ == "__main__":
    test_add()
"""
STAR = "assert isclose(f(2), 1.41421356, rel_tol=1e-6)"
OPEN_PREAMBLE = "def same(a, b):\n    return a == b\nclass Solution:\n    def rev(self, head):\n"
OPEN = "assert same(Solution().rev([1, 2]), [2, 1])"


def row(completion, **metadata):
    return RewardInput(prompt="", completion=completion, reference="", ids=(), end="eos", metadata=metadata)


def test_honest_programs_of_many_shapes_pass(either):
    reward = code_reward(either)
    values = {
        program["name"]: reward(
            row(program["completion"], **{key: program[key] for key in program if key not in ("name", "completion")})
        )
        for program in HONEST
    }
    assert len(values) >= 15
    assert [name for name, value in values.items() if value != 1.0] == []


def test_a_wrong_answer_and_no_answer_score_0(shut_in):
    reward = code_reward(shut_in)
    tests = "def check(candidate):\n    assert candidate(2) == 3\n    assert candidate(5) == 6\n"
    for body in ("    pass\n", "    return 3\n", "    return x\n", "    raise ValueError\n", "    return x +\n", ""):
        assert reward(row(body, tests=tests, entry_point="f", preamble='def f(x):\n    """Adds 1."""\n')) == 0.0, body
    assert reward(row("    return x + 1\n", tests=tests, entry_point="f", preamble='def f(x):\n    """Adds 1."""\n')) == 1.0


def test_problems_without_tests_are_not_judged(shut_in):
    assert code_reward(shut_in)(row("print(1)")) is None
    assert code_reward(shut_in)(row("print(1)", other=1)) is None


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"tests": "assert f()", "cases": []}, "both tests and cases"),
        ({"tests": []}, "metadata.tests is"),
        ({"tests": ""}, "metadata.tests is"),
        ({"tests": [1]}, "metadata.tests is"),
        ({"tests": "assert f(", "entry_point": "f"}, "tests do not compile"),
        ({"tests": "f()", "entry_point": "f"}, "neither assert nor raise"),
        ({"tests": "assert True"}, "no name that the completion could define"),
        ({"tests": "def check(candidate):\n    assert candidate()"}, "entry_point does not say"),
        ({"tests": "assert f()", "entry_point": "f("}, "entry_point is 'f\\('"),
        ({"tests": "assert f()", "entry_point": 3}, "metadata.entry_point is 3"),
        ({"tests": "import numpy\nassert f() == numpy.pi"}, "tests need what the sandbox has not.*numpy"),
        ({"tests": "assert f()", "preamble": 3}, "metadata.preamble is 3"),
        ({"tests": "assert f(g)", "preamble": "g = 1 / 0"}, "the preamble fails by itself: ZeroDivisionError"),
        ({"cases": []}, "metadata.cases is"),
        ({"cases": [{"input": "1"}]}, "a case must be"),
    ],
)
def test_metadata_that_cannot_judge_raises(shut_in, metadata, says):
    with pytest.raises(ValueError, match=says):
        code_reward(shut_in)(row("def f(*args):\n    return 1\n", **metadata))


def test_partial_credit_is_the_share_that_passed(shut_in):
    reward = code_reward(CodeConfig(partial_credit=True, limits=shut_in.limits))
    code = "def f(x):\n    if x == 3:\n        raise ValueError\n    return x if x < 2 else 0\n"
    asserts = [f"assert f({n}) == {n}" for n in range(4)]
    assert reward(row(code, tests=asserts)) == 0.5
    assert reward(row(code, tests="\n".join(asserts))) == 0.5
    body = "".join(f"    {line.replace('f(', 'candidate(')}\n" for line in asserts)
    assert reward(row(code, tests="def check(candidate):\n" + body, entry_point="f")) == 0.5
    loop = "def check(candidate):\n    for n in range(4):\n        assert candidate(n) == n\n    assert candidate(1) == 1\n"
    assert reward(row(code, tests=loop, entry_point="f")) == 0.5
    cases = [{"input": f"{n}", "output": f"{n}"} for n in range(4)]
    assert reward(row("n = int(input())\nprint(n if n < 3 else 1 / 0)", cases=cases)) == 0.75
    # A process that ends has nothing to show for what it answered before.
    assert reward(row("import os\ndef f(x):\n    return x if x < 2 else os._exit(0)", tests=asserts)) == 0.0
    # Without partial credit there is all or nothing.
    strict = code_reward(shut_in)
    assert (
        strict(row(code, tests=asserts))
        == strict(row("print(input())", cases=[*cases, {"input": "", "output": "x"}]))
        == 0.0
    )


def test_a_test_that_asks_nothing_passes_nobody(shut_in):
    assert code_reward(shut_in)(row("def f(): return 1", tests="x = f\nassert True")) == 0.0


def test_outputs_are_compared_but_for_white_space_at_ends():
    assert same_output("1 2  \n3\n\n", "1 2\n3")
    assert same_output("a\r\nb", "a\nb\n")
    for other in ("1  2\n3", " 1 2\n3", "1 2\n\n3", "1 2 3", "1 2", "1 2\n3.0", ""):
        assert not same_output(other, "1 2\n3"), other


def test_the_right_output_is_never_over_the_limit():
    reward = code_reward(CodeConfig(limits=Limits(output_kb=1)))
    assert reward(row("print('x' * 100_000)", cases=[{"input": "", "output": "x" * 100_000}])) == 1.0
    assert reward(row("print('x' * 100_000)", cases=[{"input": "", "output": "x"}])) == 0.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu_seconds", 0),
        ("cpu_seconds", 1.5),
        ("wall_seconds", 0.0),
        ("memory_mb", 8),
        ("open_files", True),
        ("total_seconds", float("inf")),
    ],
)
def test_limits_are_checked(field, value):
    with pytest.raises(ValueError, match=f"^{field} is "):
        Limits(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("sandbox", "docker"), ("partial_credit", 1), ("packages", ("a b",)), ("packages", "numpy")]
)
def test_the_config_is_checked(field, value):
    with pytest.raises(ValueError, match=f"^{field} "):
        CodeConfig(**{field: value})


# Shapes of tests


@pytest.mark.parametrize(
    ("completion", "metadata"),
    [
        ("class Solution: pass", {"tests": GUARDED}),
        ("def isclose(*a, **k): return True\ndef f(x): return 0", {"tests": STAR, "preamble": "from math import *"}),
        ("        return None\ndef same(a, b): return True\n", {"tests": OPEN, "preamble": OPEN_PREAMBLE}),
    ],
)
def test_what_the_tests_did_not_reach_passes_nobody(shut_in, completion, metadata):
    entry = {} if "Solution" in completion or "same" in completion else {"entry_point": "f"}
    assert code_reward(shut_in)(row(completion, **metadata, **entry)) == 0


@pytest.mark.parametrize(
    "tests",
    [
        "DATA = f(1)\nclass TestF:\n    def test_a(self): assert DATA == 2\n",
        "x = f(1)\nasync def test_a():\n    assert x == 2\n",
        "x = f(1)\ndef test(g):\n    assert g(1) == 2\n",
        "x = f(1)\ndef main():\n    assert x == 2\nif __name__ == '__main__':\n    main()\n",
    ],
)
def test_tests_that_nothing_would_run_are_refused(shut_in, tests):
    with pytest.raises(ValueError, match="which nothing here would run"):
        code_reward(shut_in)(row("def f(x): return 0", tests=tests))


def test_a_guard_that_calls_unittest_or_test_functions_is_served(shut_in):
    for tests in (
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 2)\n"
        "if __name__ == '__main__':\n    unittest.main()\n",
        "def test_a():\n    assert f(1) == 2\nif __name__ == '__main__':\n    test_a()\n",
    ):
        reward = code_reward(shut_in)
        assert reward(row("def f(x): return x + 1", tests=tests)) == 1
        assert reward(row("def f(x): return x", tests=tests)) == 0


def test_partial_credit_is_not_full_where_something_beside_the_asserts_fails(shut_in):
    partial = dataclasses.replace(shut_in, partial_credit=True)
    tests = "def case(x, y):\n    assert f(x) == y\nassert f(0) == 0\ncase(2, 4)\ncase(3, 9)\n"
    assert code_reward(partial)(row("def f(x): return 0", tests=tests)) < 1
    assert code_reward(partial)(row("def f(x): return x * x", tests=tests)) == 1


def test_null_columns_are_absent(shut_in):
    metadata = {"tests": "assert f(1) == 2", "cases": None, "preamble": None, "entry_point": None}
    assert code_reward(shut_in)(row("def f(x): return x + 1", **metadata)) == 1
    assert code_reward(shut_in)(row("def f(x): return x + 1", tests=None)) is None
