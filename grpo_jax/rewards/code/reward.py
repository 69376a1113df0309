"""The reward of code: unit tests or cases of input and output, from the metadata of a problem."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from grpo_jax.rewards.code.config import CodeConfig
from grpo_jax.rewards.code.extract import extract_code, variants
from grpo_jax.rewards.code.program import run_variants
from grpo_jax.rewards.code.sandbox import check_sandbox
from grpo_jax.rewards.code.unit_tests import UnitTests, passed_tests
from grpo_jax.rewards.protocol import Reward, RewardInput


def code_reward(config: CodeConfig) -> Reward:
    """The reward of a completion that is Python code, by the problem's metadata.

    `tests`: Python source that asserts, or defines check(candidate), or a list of such sources, each one test.
    `cases`: a list of {"input": text, "output": text}: what the program reads, and what it must write.
    `entry_point` and `preamble` (of tests and cases alike, both optional): see `UnitTests`.

    A problem that has neither tests nor cases is not judged: None. Otherwise 1 for a completion that passes all of them,
    else 0, or with partial credit the share that passed.

    Raises:
      SandboxFault: the sandbox does not work here.
    """
    check_sandbox(config)

    def code(row: RewardInput) -> float | None:
        if row.metadata.get("tests") is None and row.metadata.get("cases") is None:
            return None
        problem = Problem.of(row.metadata)
        source = extract_code(row.completion, problem.entry_point, unit_tests=problem.tests is not None)
        if not source.strip() or len(source.encode("utf-8", "surrogatepass")) > config.limits.source_kb << 10:
            return 0.0
        ways = variants(source, problem.preamble, problem.entry_point)
        if problem.tests is not None:
            passed, total = passed_tests(ways, problem.tests, config)
        else:
            passed, total = _passed_cases(ways, problem.cases, config), len(problem.cases)
        return passed / total if config.partial_credit else float(passed == total)

    return code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """What a problem's metadata says of how to judge it.

    Attributes:
      tests: unit tests, or None.
      cases: (input, output) pairs where there are no unit tests.
      entry_point: the name of what is tested, or None.
      preamble: what comes before the completion.
    """

    tests: UnitTests | None
    cases: list[tuple[str, str]]
    entry_point: str | None
    preamble: str

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Problem:
        """The problem of a metadata record.

        Raises:
          ValueError: it is not as described at `code_reward`.
        """
        # Columns of a data set of several kinds are null where they do not apply.
        metadata = {key: value for key, value in metadata.items() if value is not None}
        if ("tests" in metadata) == ("cases" in metadata):
            raise ValueError("metadata holds both tests and cases, but a problem must have one of them; leave the other out")
        entry_point, preamble = metadata.get("entry_point"), metadata.get("preamble") or ""
        if not (entry_point is None or (isinstance(entry_point, str) and entry_point)):
            raise ValueError(f"metadata.entry_point is {entry_point!r}, but it must be a name")
        if not isinstance(preamble, str):
            raise ValueError(f"metadata.preamble is {preamble!r}, but it must be Python source")
        tests = None
        if "tests" in metadata:
            given = metadata["tests"]
            sources = [given] if isinstance(given, str) else given
            if not isinstance(sources, list) or not sources or not all(isinstance(one, str) and one for one in sources):
                raise ValueError(f"metadata.tests is {given!r:.200}, but it must be Python source, or a list of sources")
            tests = UnitTests(sources=sources, entry_point=entry_point, preamble=preamble)
        cases = _cases(metadata["cases"]) if tests is None else []
        return cls(tests=tests, cases=cases, entry_point=entry_point, preamble=preamble)


def _cases(given: Any) -> list[tuple[str, str]]:
    if not isinstance(given, list) or not given:
        raise ValueError(f"metadata.cases is {given!r:.200}, but it must be a list of at least one case")
    for case in given:
        if not (isinstance(case, Mapping) and isinstance(case.get("input"), str) and isinstance(case.get("output"), str)):
            raise ValueError(f'metadata.cases holds {case!r:.200}, but a case must be {{"input": text, "output": text}}')
    return [(case["input"], case["output"]) for case in given]


def _passed_cases(ways: list[list[str]], cases: list[tuple[str, str]], config: CodeConfig) -> int:
    """How many cases the program passes, each in a sandbox of its own; without partial credit up to the first failure."""
    deadline = time.monotonic() + config.limits.total_seconds
    passed = 0
    for given, wanted in cases:
        if time.monotonic() > deadline:
            break
        # The right output is always within the limit.
        limit = max(config.limits.output_kb << 10, 2 * len(wanted.encode()))
        result = run_variants(ways, stdin=given, config=config, output_limit=limit)
        if result.status == "ok" and same_output(result.stdout, wanted):
            passed += 1
        elif not config.partial_credit:
            break
    return passed


def same_output(written: str, wanted: str) -> bool:
    """Whether two outputs are the same but for white space at the ends of lines and empty lines at the end."""
    return _lines(written) == _lines(wanted)


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines
