"""The check: its arithmetic, its order, what it prints and writes, and when it fails."""

import dataclasses
import io
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pallas_kernels
from pallas_kernels import registry, targets
from pallas_kernels.cases import Case
from pallas_kernels.check import command, device, inputs, jobs, numerics, table, timing
from pallas_kernels.check.roofline import roofline
from pallas_kernels.dispatch import REFERENCE, Implementation, choose
from pallas_kernels.resources import kernel_calls
from pallas_kernels.targets import TARGETS, compiling_for

ROOT = pathlib.Path(__file__).parents[2]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the check refuses to run under Triton's interpreter")

DOUBLE = (
    Implementation(name="gpu_triton", platform="gpu", module="no.such.module", function="double"),
    Implementation(name="gpu_mosaic", platform="gpu", module="no.such.module", function="double"),
    Implementation(name="tpu", platform="tpu", module="no.such.module", function="double"),
    Implementation(name=REFERENCE, module="no.such.module", function="double"),
)


def double(x: Any, *, impl: str) -> Any:
    return 2 * x


def a_case(op: str = "double", label: str = "n=8", run: Callable[..., Any] = double, **fields: Any) -> Case:
    given = {
        "op": op, "label": label, "dtype": "float32", "table": DOUBLE,
        "arguments": (jax.ShapeDtypeStruct((8,), jnp.float32),),
        "run": run, "expected": lambda x: 2 * x[:4].astype(np.float64), "bytes": 64, "flops": 0,
    }  # fmt: skip
    return Case(**(given | fields))


class Ticking:
    """A clock on which every look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def check(cases: list[Case], *argv: str, **options: Any) -> tuple[int, str]:
    out = io.StringIO()
    status = command.main(argv, cases=cases, out=out, **options)
    return status, out.getvalue()


# --- arithmetic


def test_a_case_that_moves_much_and_multiplies_little_is_bound_by_memory() -> None:
    floor = roofline(a_case(bytes=48 * 10**9, flops=10**9, dtype="bfloat16"), TARGETS["h200"])
    assert (floor.bound, floor.seconds) == ("memory", pytest.approx(0.01))
    assert floor.share(0.02) == pytest.approx(0.5)


def test_a_case_that_multiplies_much_is_bound_by_compute_at_the_peak_of_its_dtype() -> None:
    for dtype, seconds in (("bfloat16", 1.0), ("int8", 0.5), ("float8_e4m3fn", 1.0)):
        floor = roofline(a_case(bytes=1, flops=197 * 10**12, dtype=dtype), TARGETS["v5e"])
        assert (floor.bound, floor.seconds) == ("compute", pytest.approx(seconds))


def test_difference_is_relative_to_one_and_the_expected_and_looks_at_the_leading_part() -> None:
    got = (jnp.array([[1.0, 3.5], [100.0, 100.0]]), jnp.array([5.0]))
    assert numerics.difference(got, (np.array([[1.0, 3.0]]), np.array([5.0]))) == pytest.approx(0.125)
    assert numerics.difference(got, (np.array([[1.0], [100.0]]), np.array([8.0]))) == pytest.approx(1 / 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_differs_infinitely_unless_it_is_expected(bad: float) -> None:
    assert numerics.difference(jnp.array([1.0, bad]), np.array([1.0, 2.0])) == np.inf
    assert numerics.difference(jnp.array([1.0, 2.0]), np.array([1.0, bad])) == np.inf
    if not np.isnan(bad):
        assert numerics.difference(jnp.array([1.0, bad]), np.array([1.0, bad])) == 0.0


def test_difference_refuses_results_of_another_form() -> None:
    with pytest.raises(ValueError, match="gives 1 arrays, and its case expects 2"):
        numerics.difference(jnp.ones(2), (np.ones(2), np.ones(2)))
    for expected in (np.ones(3), np.ones((2, 1))):
        with pytest.raises(ValueError, match=r"gives an array of shape \(2,\)"):
            numerics.difference(jnp.ones(2), expected)


class SlowDevice:
    """Work is queued at once, takes a millisecond a call, and waiting for it costs five more."""

    def __init__(self, calls: int) -> None:
        self.now, self.queued, self.calls = 0.0, 0, calls

    def run(self) -> None:
        self.queued += self.calls

    def wait(self, _: Any) -> None:
        self.now += 1e-3 * self.queued + 5e-3
        self.queued = 0

    def clock(self) -> float:
        return self.now


@pytest.mark.parametrize("calls", [1, 8])
def test_a_chain_amortises_the_wait(calls: int) -> None:
    slow = SlowDevice(calls)
    taken = timing.time_program(slow.run, calls, wait=slow.wait, clock=slow.clock)
    assert slow.queued == 0
    chain = -(-timing.CHAIN_SECONDS // (1e-3 * calls + 5e-3))
    assert (taken.median, taken.least) == pytest.approx((1e-3 + 5e-3 / (chain * calls),) * 2)


def test_programs_in_flight_hold_little_memory() -> None:
    slow = SlowDevice(1)
    taken = timing.time_program(slow.run, 1, output_bytes=timing.PROGRAM_BYTES, wait=slow.wait, clock=slow.clock)
    assert taken.median == pytest.approx(6e-3)


def test_a_program_holds_several_calls_unless_they_are_large() -> None:
    assert timing.calls_of_a_program(1000) == timing.MOST_CALLS
    assert timing.calls_of_a_program(timing.PROGRAM_BYTES // 3) == 3
    assert timing.calls_of_a_program(10 * timing.PROGRAM_BYTES) == 1
    assert timing.calls_of_a_program(0) == timing.MOST_CALLS


@pytest.mark.parametrize("name,impl", [("h200", "gpu_triton"), ("v5e", "tpu"), ("v5e", REFERENCE), ("h200", REFERENCE)])
def test_the_calls_of_a_program_are_not_merged(name: str, impl: str) -> None:
    target = TARGETS[name]
    if not target.installed:
        pytest.skip(f"{target.package} is not installed: run make test-aot")

    def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
        return pallas_kernels.rms_norm(x, weight, impl=impl)

    mesh = target.mesh((1,), ("device",))
    everywhere = jax.sharding.PartitionSpec()
    run = jax.shard_map(timing.several(norm), mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    on_it = jax.sharding.NamedSharding(mesh, everywhere)
    x, weight = (jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=on_it) for s in ((4096, 1024), (1024,)))
    with compiling_for(mesh):
        compiled = jax.jit(run).lower(({},) * 4, ({0: x, 1: weight},) * 4).compile()
    text = compiled.as_text()
    assert text is not None
    # XLA computes one reciprocal root a call.
    assert (kernel_calls(text) if impl != REFERENCE else text.count(" rsqrt(")) == 4


def test_copies_lie_elsewhere() -> None:
    x = jnp.arange(4.0)
    sets = timing.copies((x,), 3)
    assert sets[0][0] is x
    assert len({array.unsafe_buffer_pointer() for (array,) in sets}) == 3
    assert all((array == x).all() for (array,) in sets)


def append(cache: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return 2 * x, cache.at[0].add(x)


def test_a_program_gives_each_call_arrays_of_its_own() -> None:
    cache, x = jnp.zeros((3, 2)), jnp.arange(1.0, 3.0)
    run = timing.Program(append, (cache, x), 2)
    for _ in range(2):
        for doubled, appended in run():
            np.testing.assert_array_equal(doubled, [2, 4])
            np.testing.assert_array_equal(appended, [[1, 2], [0, 0], [0, 0]])


def test_what_is_written_in_place_is_written_on_by_the_next_run_and_the_arrays_stay() -> None:
    cache, x = jnp.zeros((3, 2)), jnp.arange(1.0, 3.0)
    run = timing.Program(append, (cache, x), 2, in_place=((0, 1),))
    before: set[int] = set()
    for times in (1, 2, 3):
        results = run()
        assert len({appended.unsafe_buffer_pointer() for _, appended in results}) == 2
        for _, appended in results:
            np.testing.assert_array_equal(appended[0], [times, 2 * times])
        places = {appended.unsafe_buffer_pointer() for _, appended in results}
        assert times == 1 or places == before
        before = places
    assert not cache.is_deleted() and (cache == 0).all()


def test_the_copy_counts_what_it_reads_and_what_it_writes() -> None:
    # On this clock every chain, of one program, takes a second.
    assert timing.copy_bandwidth(2**20, clock=Ticking()) == 2 * 2**20


def test_drawing_on_all_cores_gives_normals_that_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (3, inputs.CHUNK // 2 + 5)
    drawn = inputs.ParallelGenerator(1).standard_normal(shape, np.float32)
    assert drawn.shape == shape and drawn.dtype == np.float32
    assert abs(drawn.mean()) < 1e-3 and abs(drawn.std() - 1) < 1e-3
    monkeypatch.setattr(inputs.os, "cpu_count", lambda: 1)
    np.testing.assert_array_equal(drawn, inputs.ParallelGenerator(1).standard_normal(shape, np.float32))
    assert (drawn != inputs.ParallelGenerator(2).standard_normal(shape, np.float32)).mean() > 0.99
    small = inputs.ParallelGenerator(1).standard_normal((2, 3), np.float32)
    assert small.shape == (2, 3) and small.dtype == np.float32
    assert np.ndim(inputs.ParallelGenerator(1).standard_normal()) == 0


# --- what there is to do


def test_the_most_important_op_comes_first_and_each_op_once_before_second_cases() -> None:
    cases = [a_case(op, label) for op in ("other", "rms_norm", "gqa_decode", "mla_decode") for label in ("a", "b")]
    cases.append(a_case("rms_norm", "gradient", backward=True))
    assert [(case.op, case.label) for case in jobs.in_order(cases)] == [
        ("mla_decode", "a"), ("gqa_decode", "a"), ("rms_norm", "a"), ("rms_norm", "gradient"), ("other", "a"),
        ("mla_decode", "b"), ("gqa_decode", "b"), ("rms_norm", "b"), ("other", "b"),
    ]  # fmt: skip


def test_a_device_runs_its_own_implementations_and_the_reference() -> None:
    def names(platform: str, target: str | None) -> list[str]:
        return [job.implementation for job in jobs.device_jobs([a_case()], platform, target and TARGETS[target])]

    assert names("cpu", None) == [REFERENCE]
    assert names("tpu", "v5e") == ["tpu", REFERENCE]
    assert names("gpu", "h200") == names("gpu", None) == ["gpu_triton", "gpu_mosaic", REFERENCE]
    assert names("gpu", "a100") == ["gpu_triton", REFERENCE]


def test_a_target_compiles_its_own_implementations_and_the_reference_only_by_name() -> None:
    def rows(with_reference: bool) -> list[tuple[str | None, str]]:
        return [(j.target, j.implementation) for j in jobs.target_jobs([a_case()], ["h200", "b200", "v6e"], with_reference)]

    kernels = [("h200", "gpu_triton"), ("h200", "gpu_mosaic"), ("b200", "gpu_triton"), ("v6e", "tpu")]
    assert rows(False) == kernels
    assert sorted(rows(True)) == sorted([*kernels, ("h200", REFERENCE), ("b200", REFERENCE), ("v6e", REFERENCE)])


def test_others_implementations_have_rows_where_they_are_installed() -> None:
    foreign = Implementation(name="tokamax", platform="gpu", module="m", function="f", package="no_such_package")
    missing, there = ((foreign,), (dataclasses.replace(foreign, package="json"),))
    assert jobs.device_jobs([a_case(table=missing)], "gpu", None) == []
    assert [job.implementation for job in jobs.device_jobs([a_case(table=there)], "gpu", None)] == ["tokamax"]


@pytest.mark.parametrize(
    "kind,name",
    [("NVIDIA H200", "h200"), ("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU v6 lite", "v6e"), ("cpu", None)],
)
def test_a_device_is_known_by_the_name_that_jax_gives_it(kind: str, name: str | None) -> None:
    assert device.known(kind) is (TARGETS[name] if name else None)


def test_the_driver_is_read_where_it_says_its_version(tmp_path: pathlib.Path) -> None:
    stated = tmp_path / "version"
    assert device.driver(stated) is None
    for line in (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build\nGCC version:  gcc 12.3.0 \n",
    ):
        stated.write_text(line)
        assert device.driver(stated) == "535.104.05"


def make_package(folder: pathlib.Path, name: str, files: dict[str, str]) -> None:
    for path, text in {"__init__.py": "", **files}.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_text(text)


def test_the_registry_has_the_cases_of_every_op_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    files = {"b/__init__.py": "", "b/cases.py": "CASES = (1, 2)", "a/__init__.py": "", "a/cases.py": "CASES = (3,)"}
    make_package(tmp_path, "ops_found", {**files, "c/__init__.py": "", "cases.py": "CASES = (4,)"})
    import ops_found

    assert registry.all_cases(ops_found) == (3, 1, 2)


@pytest.mark.parametrize("broken", ["import no_such_module", "CASE = ()"])
def test_cases_that_do_not_import_are_an_error(broken: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"ops_broken_{len(broken)}"
    make_package(tmp_path, name, {"a/__init__.py": "", "a/cases.py": broken})
    with pytest.raises((ModuleNotFoundError, AttributeError)):
        registry.all_cases(__import__(name))


def test_every_op_of_the_package_has_cases_with_names_of_their_own() -> None:
    cases = registry.all_cases()
    assert "rms_norm" in {case.op for case in cases}
    names = [(case.op, case.label, case.dtype, case.backward) for case in cases]
    assert len(set(names)) == len(names)


# --- the command


def test_a_cpu_runs_the_references_and_writes_what_it_printed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rows.json"
    before = jax.devices()
    status, printed = check([a_case(), a_case("other")], "--op", "double", "--json", str(path))
    assert status == 0 and before == jax.devices()
    assert "Kernels need a GPU or a TPU" in printed and "1 rows, 0 failed" in printed
    written = json.loads(path.read_text())
    assert list(written) == ["date", "mode", "complete", "versions", "device", "rows", "not_run"]
    assert (written["mode"], written["complete"], written["not_run"]) == ("device", True, [])
    assert written["versions"]["jax"] == jax.__version__
    assert written["device"]["platform"] == "cpu" and written["device"]["copy_bandwidth"] is None
    (row,) = written["rows"]
    assert {k: row[k] for k in ("op", "shape", "dtype", "backward", "implementation", "target", "status", "message")} == {
        "op": "double", "shape": "n=8", "dtype": "float32", "backward": False, "implementation": REFERENCE, "target": None,
        "status": "ok", "message": None,
    }  # fmt: skip
    assert row["error"] == 0.0 and row["allowed"] == 1e-5 and 0 < row["least_seconds"] <= row["seconds"]
    assert row["floor_seconds"] is row["roofline_share"] is row["copy_share"] is row["bound"] is None
    assert [p.name for p in tmp_path.iterdir()] == ["rows.json"]
    documented = __import__("pallas_kernels.check").check.__doc__
    assert all(name in documented for name in (*written, *written["device"], *row))


def test_a_device_with_a_data_sheet_gets_shares_of_its_roofline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    here = dataclasses.replace(device.at_hand(), target=TARGETS["h200"])
    monkeypatch.setattr(command.device, "at_hand", lambda: here)
    path = tmp_path / "rows.json"
    # A program is one call, and on this clock every chain of one takes a second.
    status, _ = check([a_case(bytes=48 * 10**9)], "--json", str(path), clock=Ticking())
    (row,) = json.loads(path.read_text())["rows"]
    assert status == 0 and row["seconds"] == 1.0
    assert row["bound"] == "memory" and row["roofline_share"] == pytest.approx(0.01)


def test_a_wrong_answer_fails_and_the_others_go_on(tmp_path: pathlib.Path) -> None:
    wrong = a_case(label="wrong", run=lambda x, impl: 2 * x + 0.1)
    lost = a_case(label="lost", run=lambda x, impl: 0 * x / 0)
    path = tmp_path / "rows.json"
    status, printed = check([wrong, lost, a_case()], "--json", str(path))
    assert status == 1 and "3 rows, 2 failed" in printed and printed.count("WRONG") == 2
    rows = json.loads(path.read_text())["rows"]
    assert [row["status"] for row in rows] == ["wrong", "wrong", "ok"]
    assert rows[1]["error"] == np.inf


def test_what_raises_is_a_row_with_its_first_line_and_the_others_go_on(tmp_path: pathlib.Path) -> None:
    def broken(x: Any, impl: str) -> Any:
        raise RuntimeError("no such chip\nand a long trace")

    path = tmp_path / "rows.json"
    status, printed = check([a_case(label="broken", run=broken), a_case()], "--json", str(path))
    assert status == 1 and "ERROR RuntimeError: no such chip\n" in printed and "long trace" not in printed
    rows = json.loads(path.read_text())["rows"]
    assert [(row["status"], row["message"]) for row in rows] == [("error", "RuntimeError: no such chip"), ("ok", None)]


def test_a_refused_case_is_a_row_and_no_failure() -> None:
    picky = (dataclasses.replace(DOUBLE[-1], refuses=lambda x: "it is Tuesday."),)

    def run(x: Any, impl: str) -> Any:
        return choose("double", picky, impl, x)

    status, printed = check([a_case(table=picky, run=run), a_case()])
    assert status == 0 and "it is Tuesday" in printed and "2 rows, 0 failed, 1 refused" in printed


def test_the_budget_leaves_out_what_it_cannot_hold_and_names_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rows.json"
    cases = [a_case(label=f"case{i}") for i in range(6)]
    status, printed = check(cases, "--budget", "40", "--json", str(path), clock=Ticking())
    written = json.loads(path.read_text())
    done, left = ([row["shape"] for row in written[key]] for key in ("rows", "not_run"))
    assert status == 0 and 0 < len(done) < 6 and done + left == [case.label for case in cases]
    assert written["complete"] is False
    assert f"the budget of 40 s left {len(left)} of 6 rows out:" in printed
    assert all(f"\n  double {label} float32 reference" in printed for label in left)


def test_no_row_starts_that_the_budget_would_not_see_the_end_of() -> None:
    ends: list[float] = []
    clock = Ticking()

    def run(x: Any, impl: str) -> Any:
        clock.now += 100
        ends.append(clock.now)
        return 2 * x

    check([a_case(label=f"case{i}", run=run) for i in range(9)], "--budget", "1000", clock=clock)
    # The function is traced twice a row: for its result's shape, and to be compiled.
    assert ends and ends[-1] <= 1000 < ends[-1] + 300


def test_ctrl_c_leaves_the_rows_so_far_and_names_the_others(tmp_path: pathlib.Path) -> None:
    def interrupted(x: Any, impl: str) -> Any:
        raise KeyboardInterrupt

    path = tmp_path / "rows.json"
    cases = [a_case(label="first"), a_case(label="second", run=interrupted), a_case(label="third")]
    status, printed = check(cases, "--json", str(path))
    written = json.loads(path.read_text())
    assert status == 130 and "Ctrl-C left 2 of 3 rows out" in printed
    assert [row["shape"] for row in written["rows"]] == ["first"]
    assert [row["shape"] for row in written["not_run"]] == ["second", "third"]


def test_the_file_holds_each_row_before_the_next_one_runs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rows.json"
    seen: list[list[str]] = []

    def run(x: Any, impl: str) -> Any:
        seen.append([row["shape"] for row in json.loads(path.read_text())["rows"]])
        return 2 * x

    check([a_case(label="first"), a_case(label="second", run=run)], "--json", str(path))
    assert seen and all(rows == ["first"] for rows in seen)


@pytest.mark.parametrize(
    "argv,message",
    [
        (["--op", "double,nope"], "--op: 'nope' unknown; the known ones are double."),
        (["--impl", "cuda"], "--impl: 'cuda' unknown; the known ones are gpu_mosaic, gpu_triton, reference, tpu."),
        (["--target", "h300"], "--target: 'h300' unknown; the known ones are a100, h200, b200, v5e, v6e, v5p."),
        (["--impl", "tpu"], "has a row on a cpu; those that have: reference."),
        (["--budget", "0"], "--budget must be a positive number of seconds, and is 0."),
        (["--json", "/no/such/folder/rows.json"], "--json: the folder /no/such/folder does not exist."),
    ],
)
def test_what_makes_no_sense_is_one_clear_error(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check([a_case()], *argv)
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_target_whose_compiler_is_missing_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = dataclasses.replace(TARGETS["h200"], name="nowhere", package="no_such_package")
    monkeypatch.setitem(targets.TARGETS, "nowhere", nowhere)
    with pytest.raises(SystemExit):
        check([a_case()], "--target", "nowhere")
    assert (
        "--target nowhere needs no_such_package: make test-aot sets up .venv-aot, whose Python has it"
        in capsys.readouterr().err
    )


def test_the_list_names_cases_without_running_them() -> None:
    def run(*arrays: Any, impl: str) -> Any:
        raise AssertionError

    status, printed = check([a_case(run=run, bytes=75_500_000, flops=2 * 10**9, backward=True)], "--list")
    assert status == 0
    assert printed == "double +grad: n=8 float32 (75.5 MB, 2 GFLOP): gpu_triton, gpu_mosaic, tpu, reference\n"


@pytest.mark.parametrize("name,impl", [("h200", "gpu_triton"), ("v5e", "tpu")])
def test_a_target_has_a_row_with_what_the_kernel_takes_of_it(name: str, impl: str, tmp_path: pathlib.Path) -> None:
    if not TARGETS[name].installed:
        pytest.skip(f"{TARGETS[name].package} is not installed: run make test-aot")
    path = tmp_path / "rows.json"
    shapes = (jax.ShapeDtypeStruct((64, 512), jnp.bfloat16), jax.ShapeDtypeStruct((512,), jnp.bfloat16))
    norm = a_case("rms_norm", arguments=shapes, run=pallas_kernels.rms_norm)
    broken = a_case("rms_norm", "broken")
    status, printed = check([norm, broken], "--target", name, "--impl", impl, "--json", str(path))
    written = json.loads(path.read_text())
    good, bad = written["rows"]
    assert written["mode"] == "deviceless" and written["device"] is None
    assert (good["status"], good["target"], good["implementation"], good["calls"]) == ("ok", name, impl, 1)
    if impl == "gpu_triton":
        (kernel,) = good["kernels"]
        assert kernel["registers"] > 0 and kernel["spilled_bytes"] == 0
        assert f"  {kernel['registers']} " in printed
    # A case whose program holds no kernel compiles, and shows it.
    assert (status, bad["status"], bad["calls"]) == (0, "ok", 0)


def test_the_program_starts_and_says_what_it_left_out(tmp_path: pathlib.Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pallas_kernels.check", "--op", "rms_norm", "--budget", "1e-9", "--json", "rows.json"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "rows out:\n  rms_norm " in ran.stdout
    assert json.loads((tmp_path / "rows.json").read_text())["not_run"]


# --- the table


def test_columns_stand_under_their_headings() -> None:
    out = io.StringIO()
    cases = [a_case(label="n=8"), a_case("a_much_longer_name", "n=100000")]
    todo = jobs.device_jobs(cases, "tpu", TARGETS["v5e"])
    printed = table.Table(table.DEVICE, todo, out)
    printed.headings()
    for job in todo:
        printed.row(job.identity() | {"status": "ok", "message": None, "error": 1e-3, "allowed": 1e-2, "seconds": 1e-5})
    lines = out.getvalue().splitlines()
    assert len({line.find("float32") for line in lines[1:]} | {lines[0].find("dtype")}) == 1
    assert all(line.index("1.0e-03") + 7 == lines[0].index("error") + 5 for line in lines[1:])


def test_numbers_read_easily() -> None:
    assert [table.seconds(s) for s in (2.5, 0.0125, 1.57e-5)] == ["2.5 s", "12.5 ms", "15.7 us"]
    assert [table.count(n) for n in (0, 513, 75_497_472, 1.2e9)] == ["0 B", "513 B", "75.5 MB", "1.2 GB"]
