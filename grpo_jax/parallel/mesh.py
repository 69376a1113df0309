"""The mesh: five named axes, parsed from a short text and built over the devices at hand."""

import contextlib
import dataclasses
import math

import jax
from jax.sharding import AxisType, Mesh

AXES = ("data", "fsdp", "tensor", "expert", "context")

# What the bare numbers of "8", "8x8" and "2x4x2" mean, by how many there are.
_POSITIONAL = {1: ("fsdp",), 2: ("fsdp", "tensor"), 3: ("data", "fsdp", "tensor")}

# Axes that exist so that meshes keep their shape, but that nothing is split over yet.
_RESERVED = ("expert", "context")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshShape:
    """How many devices each mesh axis has; their product is the number of devices used.

    Attributes:
        data: copies of the parameters; each works on its own rows.
        fsdp: shards of parameters and optimizer state; rows are split over it as well.
        tensor: shards of heads, feed-forward width and vocabulary.
        expert: reserved for shards of experts; must be 1.
        context: reserved for shards of the token axis; must be 1.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    expert: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        for axis in AXES:
            size = self[axis]
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"mesh.{axis}={size!r}: a mesh axis has a whole number of devices, at least 1.")
        for axis in _RESERVED:
            if self[axis] > 1:
                raise ValueError(
                    f"mesh.{axis}={self[axis]}: nothing is sharded over the {axis} axis yet, so it must be 1; "
                    "put the devices on data, fsdp or tensor."
                )

    def __getitem__(self, axis: str) -> int:
        return self.as_dict()[axis]

    def as_dict(self) -> dict[str, int]:
        """Axis name -> size, in mesh order."""
        return {
            "data": self.data,
            "fsdp": self.fsdp,
            "tensor": self.tensor,
            "expert": self.expert,
            "context": self.context,
        }

    @property
    def size(self) -> int:
        """The number of devices the mesh covers."""
        return math.prod(self.as_dict().values())

    @property
    def row_shards(self) -> int:
        """Into how many parts the rows of a batch are split: data x fsdp."""
        return self.data * self.fsdp

    @classmethod
    def parse(cls, text: str) -> "MeshShape":
        """Reads "4" (fsdp), "8x8" (fsdp x tensor), "2x4x2" (data x fsdp x tensor) or "data=2,fsdp=8,tensor=4".

        Raises:
            ValueError: the text is none of these, or names an unknown axis, or names one twice.
        """
        return cls(**(_parse_named(text) if "=" in text else _parse_positional(text)))

    def __str__(self) -> str:
        named = [f"{axis}={size}" for axis, size in self.as_dict().items() if size > 1]
        return ",".join(named) or "fsdp=1"


def _parse_positional(text: str) -> dict[str, int]:
    parts = text.strip().lower().split("x")
    if len(parts) not in _POSITIONAL:
        raise ValueError(
            f"mesh {text!r}: give one to three numbers (fsdp; fsdp x tensor; data x fsdp x tensor), or name the axes, "
            f"as in 'data=2,fsdp=8,tensor=4'; the axes are {', '.join(AXES)}."
        )
    return {axis: _parse_size(text, axis, part) for axis, part in zip(_POSITIONAL[len(parts)], parts, strict=True)}


def _parse_named(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = (piece.strip() for piece in part.partition("="))
        if axis not in AXES:
            raise ValueError(f"mesh {text!r}: unknown axis {axis!r}; the axes are {', '.join(AXES)}.")
        if axis in sizes:
            raise ValueError(f"mesh {text!r}: axis {axis!r} is given twice; give each axis once.")
        sizes[axis] = _parse_size(text, axis, size)
    return sizes


def _parse_size(text: str, axis: str, size: str) -> int:
    if not size.strip().isdecimal():
        raise ValueError(
            f"mesh {text!r}: the size of axis {axis!r} is {size.strip()!r}, not a whole number; write it as "
            f"'8x8' or 'fsdp=8,tensor=8' (axes: {', '.join(AXES)})."
        )
    return int(size)


def ensure_devices(shape: MeshShape, hosts: int = 1) -> str | None:
    """Makes sure that there are `shape.size` devices; a CPU host makes the missing ones of its share virtual.

    Call it before anything asks jax for a device, and after `start_hosts`: the number of virtual CPU devices is fixed
    when the backend starts.

    Args:
        shape: the mesh.
        hosts: processes of the run; each has equally many of the mesh's devices.

    Returns:
        One line that says how many virtual devices were made, or None where nothing had to be done.

    Raises:
        ValueError: there are other than `hosts` processes, the mesh cannot be shared out evenly, the accelerators are
            more or fewer than the mesh's devices, or the CPU backend is already running with too few.
    """
    if shape.size % hosts:
        raise ValueError(
            f"mesh {shape} covers {shape.size} devices, but {hosts} hosts cannot take equally many of them: choose axis "
            f"sizes whose product is divisible by {hosts}."
        )
    share = shape.size // hosts
    configured = jax.config.jax_num_cpu_devices  # -1 where nobody has set it
    if configured < share and shape.size > 1:
        # Whether this is a CPU host is known only once the backends run, and then it is too late to add devices, so
        # they are asked for first. An accelerator host ignores them.
        with contextlib.suppress(RuntimeError):  # raised where the backends already run
            jax.config.update("jax_num_cpu_devices", share)
    devices = jax.devices()
    platform, count = devices[0].platform, len(devices)
    if hosts > 1 and jax.process_count() != hosts:
        raise ValueError(
            f"hosts is {hosts}, but {jax.process_count()} processes found each other: set hosts to the number of "
            "processes that are started, or start the command on as many hosts."
        )
    if hosts > 1 and count != shape.size:
        raise ValueError(
            f"mesh {shape} covers {shape.size} devices, but the {hosts} hosts have {count} {platform} devices together: "
            f"choose axis sizes whose product is {count}."
        )
    if platform == "cpu":
        if count < shape.size:
            raise ValueError(
                f"mesh {shape} covers {shape.size} devices, but the CPU backend already runs with {count}: call "
                f"ensure_devices before the first jax computation, or set JAX_NUM_CPU_DEVICES={shape.size}."
            )
        made = jax.config.jax_num_cpu_devices != configured
        return f"mesh {shape}: this CPU host's {share} devices are virtual." if made else None
    if count != shape.size:
        raise ValueError(
            f"mesh {shape} covers {shape.size} devices, but this machine has {count} {platform} devices: choose axis "
            f"sizes whose product is {count}."
        )
    return None


def make_mesh(shape: MeshShape) -> Mesh:
    """A mesh of all five axes over the first `shape.size` devices, axis types Auto (GSPMD propagates shardings).

    Raises:
        ValueError: there are fewer devices than the mesh covers.
    """
    devices = jax.devices()
    if len(devices) < shape.size:
        raise ValueError(
            f"mesh {shape} covers {shape.size} devices, but there are {len(devices)} {devices[0].platform} devices: "
            "make the mesh smaller, or call ensure_devices first (it adds virtual devices on a CPU host)."
        )
    return jax.make_mesh(
        tuple(shape.as_dict().values()),
        AXES,
        axis_types=(AxisType.Auto,) * len(AXES),
        devices=devices[: shape.size],
    )
