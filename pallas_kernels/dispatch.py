"""Which implementation of an op runs: by the platform that a program is lowered for, or by name.

An op is a table of implementations, its reference among them. Left alone, an op takes the first implementation of its
platform that is installed and serves the given shapes, and the reference where there is none. `impl=` forces one by name;
what that one cannot serve is an error that names those which can.

The choice is made while a function is traced, so nothing but the chosen implementation is imported, traced or compiled. The
platform is that of the mesh in use (`jax.sharding.use_abstract_mesh`, or inside `shard_map`) where the mesh knows its
devices, then that of `jax_default_device`, then JAX's default backend.
"""

import dataclasses
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import jax

REFERENCE = "reference"

# The packages that an implementation needs besides jax, and what pip installs to bring them: an extra of grpo_jax as a rule.
EXTRAS = {"jax_triton": "grpo_jax[cuda]", "tokamax": "tokamax"}


def _serves_all(*args: Any, **kwargs: Any) -> str | None:
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Implementation:
    """One way to compute an op.

    Attributes:
        name: what `impl=` calls it: reference, gpu_triton, gpu_mosaic or tpu.
        module: where its function is, imported when it is first used.
        function: the function's name there; it takes the op's arguments.
        platform: "gpu" or "tpu"; None runs everywhere.
        refuses: takes the op's arguments and gives the reason why this implementation cannot serve them, or None. It
            looks at shapes, dtypes and options only, and imports nothing.
        by_default: whether it is chosen without being named.
        package: a package that it needs besides jax.
    """

    name: str
    module: str
    function: str
    platform: str | None = None
    refuses: Callable[..., str | None] = _serves_all
    by_default: bool = True
    package: str | None = None

    @property
    def installed(self) -> bool:
        return self.package is None or importlib.util.find_spec(self.package) is not None

    def load(self) -> Callable[..., Any]:
        return getattr(importlib.import_module(self.module), self.function)


def lowering_platform() -> str:
    """The platform that what is traced now will be compiled for: "cpu", "gpu" or "tpu"."""
    described = jax.sharding.get_abstract_mesh().abstract_device
    if described is not None and described.platform is not None:
        return described.platform
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    if device is not None:
        return device if isinstance(device, str) else {"cuda": "gpu"}.get(device.platform, device.platform)
    return jax.default_backend()


def choose(op: str, table: tuple[Implementation, ...], impl: str | None, *args: Any, **kwargs: Any) -> Implementation:
    """The implementation that `impl` names, or the one that suits the platform and the arguments.

    Args:
        op: the op's name, for errors.
        table: its implementations, in the order in which they are preferred; one of them is the reference.
        impl: the name of one, or None.
        *args: what the implementations take.
        **kwargs: likewise.

    Raises:
        ValueError: `impl` is unknown, or that implementation cannot serve these arguments.
        ModuleNotFoundError: `impl` needs a package that is not installed.
    """
    if impl is None:
        platform, reasons = lowering_platform(), []
        for candidate in table:
            if candidate.platform == platform and candidate.by_default:
                reason = candidate.refuses(*args, **kwargs) if candidate.installed else f"{candidate.package} is missing."
                if reason is None:
                    return candidate
                reasons.append(f"{candidate.name}: {reason}")
        if reasons:
            # Slower, and with more memory, than the caller may think.
            warnings.warn(f"{op} runs by its reference in plain jnp. {' '.join(reasons)}", stacklevel=3)
        return _named(op, table, REFERENCE)
    chosen = _named(op, table, impl)
    if not chosen.installed:
        raise ModuleNotFoundError(
            f"{op}: impl={impl!r} needs the package {chosen.package}, which is not installed: "
            f"pip install '{EXTRAS[chosen.package or '']}', or choose impl='reference'."
        )
    reason = chosen.refuses(*args, **kwargs)
    if reason is not None:
        able = [other.name for other in table if other.refuses(*args, **kwargs) is None]
        raise ValueError(f"{op}: impl={impl!r} does not take these arguments: {reason} These do: {', '.join(able)}.")
    return chosen


def _named(op: str, table: tuple[Implementation, ...], name: str) -> Implementation:
    for implementation in table:
        if implementation.name == name:
            return implementation
    known = ", ".join(implementation.name for implementation in table)
    raise ValueError(f"{op}: impl={name!r} is unknown; the known ones are {known}.")
