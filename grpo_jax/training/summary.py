"""The summary of a run: what came out of it, and what it cost, in one JSON file."""

import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from grpo_jax.checkpoint.atomic import atomic_write
from grpo_jax.evaluation.scores import Scores, from_record, overall
from grpo_jax.training.alarms import ALARMS
from grpo_jax.training.config import RunConfig
from grpo_jax.training.memory import peak_memory
from grpo_jax.training.metrics_log import Record

Status = Literal["finished", "interrupted"]

# Packages whose versions a figure may depend on.
PACKAGES = ("grpo_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")

# Metrics of the log that hold seconds: `seconds/rollout` and the like.
SECONDS = "seconds/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run came to. docs/runs.md describes every key of its JSON.

    Attributes:
        status: `finished`, or `interrupted` where the run can be resumed.
        run_dir: the run's directory.
        seed: the run's seed.
        mesh: the run's mesh.
        devices: platform, kind and number of the devices.
        parameters: number of the model's parameters.
        steps: steps done of each phase.
        after_sft: the test before the first GRPO step; None where there was none.
        after_grpo: the last test after a GRPO step; None where there was none.
        alarms: how often each alarm of the monitor was raised.
        seconds: seconds spent on each kind of work, restarts included.
        tokens_per_second: tokens over seconds, of each phase and of sampling alone; None where nothing was measured.
        peak_memory_bytes: the most memory that a process of the run and its fullest device have used; None where the
            platform does not say.
        versions: version of Python and of each package.
    """

    status: Status
    run_dir: str
    seed: int
    mesh: str
    devices: Mapping[str, str | int]
    parameters: int
    steps: Mapping[str, int]
    after_sft: Scores | None
    after_grpo: Scores | None
    alarms: Mapping[str, int]
    seconds: Mapping[str, float]
    tokens_per_second: Mapping[str, float | None]
    peak_memory_bytes: Mapping[str, int | None]
    versions: Mapping[str, str]

    def document(self) -> dict[str, Any]:
        """The summary as plain JSON."""
        document = {field.name: vars(self)[field.name] for field in dataclasses.fields(self)}
        for name in ("after_sft", "after_grpo"):
            document[name] = _scores_document(document[name])
        return {key: dict(value) if isinstance(value, Mapping) else value for key, value in document.items()}

    def write(self, path: Path) -> None:
        """Writes the summary; a reader sees the old file or the new one, never half of it."""
        atomic_write(path, json.dumps(self.document(), indent=2, ensure_ascii=False) + "\n")


def summarize(config: RunConfig, records: Sequence[Record], *, status: Status, parameters: int) -> Summary:
    """The summary of a run from the records of its log, which hold what happened before a resumption as well.

    Args:
        config: the run.
        records: all records of its log.
        status: whether the run is over.
        parameters: number of the model's parameters.
    """
    first = jax.devices()[0]
    before, after = heldout_scores(records)
    return Summary(
        status=status,
        run_dir=config.run_dir,
        seed=config.seed,
        mesh=config.mesh,
        devices={"platform": first.platform, "kind": first.device_kind, "count": config.mesh_shape.size},
        parameters=parameters,
        steps={phase: max((r["step"] for r in records if r["phase"] == phase), default=0) for phase in ("sft", "grpo")},
        after_sft=before,
        after_grpo=after,
        alarms={name: sum(record.get(f"alarm/{name}", 0) for record in records) for name in ALARMS},
        seconds=_seconds(records),
        tokens_per_second=_tokens_per_second(records),
        peak_memory_bytes=peak_memory(records),
        versions={"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
    )


def heldout_scores(records: Sequence[Record]) -> tuple[Scores | None, Scores | None]:
    """The scores of the test before the first GRPO step, and of the last test after one; None for one not made."""
    made = [record for record in records if record["phase"] == "evaluation"]
    before = [record for record in made if record["step"] == 0]
    after = [record for record in made if record["step"] > 0]
    return (from_record(before[-1]) if before else None, from_record(after[-1]) if after else None)


def _scores_document(scores: Scores | None) -> dict[str, Any] | None:
    if not scores:
        return None
    return {
        "stages": {stage: dict(vars(score)) for stage, score in scores.items()},
        "mean": dict(vars(overall(scores))),
    }


def _total(records: Sequence[Record], phase: str, name: str) -> float:
    return sum(record.get(name) or 0 for record in records if record["phase"] == phase)


def _seconds(records: Sequence[Record]) -> dict[str, float]:
    """Seconds of each kind of work, summed over every record that has it."""
    kinds = ("sft", "rollout", "reward", "score", "update", "evaluation", "compile")
    seconds = {kind: sum(record.get(SECONDS + kind) or 0.0 for record in records) for kind in kinds}
    return seconds | {"total": sum(seconds.values())}


def _tokens_per_second(records: Sequence[Record]) -> dict[str, float | None]:
    def rate(phase: str, tokens: str, *kinds: str) -> float | None:
        seconds = sum(_total(records, phase, SECONDS + kind) for kind in kinds)
        return _total(records, phase, tokens) / seconds if seconds > 0 else None

    return {
        "sft": rate("sft", "tokens", "sft"),
        "rollout": rate("grpo", "completion_tokens", "rollout"),
        "grpo": rate("grpo", "completion_tokens", "rollout", "reward", "score", "update"),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
