"""The device at hand: what it is called, and which figures are known of it."""

import dataclasses
import pathlib
import re

import jax

from pallas_kernels.targets import TARGETS, Target

# What JAX calls the TPUs of TARGETS; it calls GPUs as TARGETS does.
TPU_KINDS = {
    "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p", "TPU v6 lite": "v6e", "TPU v6e": "v6e",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """The device that the check runs on.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        kind: its name, as JAX has it.
        target: the entry of TARGETS with its figures, or None.
        runtime: the version of the runtime beneath JAX.
        driver: the NVIDIA driver's version, or None.
    """

    platform: str
    kind: str
    target: Target | None
    runtime: str
    driver: str | None


def at_hand() -> Device:
    """JAX's first default device."""
    device = jax.devices()[0]
    return Device(
        platform={"cuda": "gpu"}.get(device.platform, device.platform),
        kind=device.device_kind,
        target=known(device.device_kind),
        runtime=device.client.platform_version,
        driver=driver(),
    )


def known(kind: str) -> Target | None:
    """The target that JAX calls `kind`."""
    return next((t for t in TARGETS.values() if kind == t.description or TPU_KINDS.get(kind) == t.name), None)


def driver(stated: pathlib.Path = pathlib.Path("/proc/driver/nvidia/version")) -> str | None:
    """The version of the NVIDIA driver that is loaded."""
    found = re.search(r"Module.*?\s(\d+(?:\.\d+)+)\s", stated.read_text()) if stated.exists() else None
    return found and found[1]
