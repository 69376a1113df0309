"""The JSON file beside the table, replaced whole after each row."""

import datetime
import importlib.metadata
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from pallas_kernels.check.device import Device
from pallas_kernels.check.jobs import Job

# Packages that decide what is compiled.
PACKAGES = ("jax", "jaxlib", "jax-triton", "triton", "libtpu", "jax-cuda13-plugin", "nvidia-cuda-nvcc")


def versions() -> dict[str, str | None]:
    """The version of each of PACKAGES, None for one that is not installed."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


class Report:
    """Collects rows; with a path, the file there always holds those so far."""

    def __init__(self, path: pathlib.Path | None, device: Device | None, copy_bandwidth: float | None):
        self._path = path
        described = None
        if device is not None:
            described = {
                "platform": device.platform, "kind": device.kind, "driver": device.driver, "runtime": device.runtime,
                "bandwidth": device.target and device.target.bandwidth, "flops": device.target and device.target.flops,
                "copy_bandwidth": copy_bandwidth,
            }  # fmt: skip
        self._content: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "mode": "deviceless" if device is None else "device",
            "complete": False,
            "versions": versions(),
            "device": described,
            "rows": [],
            "not_run": [],
        }

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self._content["rows"]

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._write()

    def close(self, left: Sequence[Job]) -> None:
        """Ends the report; `left` was not run."""
        self._content |= {"complete": not left, "not_run": [job.identity() for job in left]}
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        beside.write_text(json.dumps(self._content, indent=1) + "\n")
        beside.replace(self._path)
