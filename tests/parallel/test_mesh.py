"""Mesh shapes: what a text means, which texts are refused, and the mesh that is built."""

import jax
import pytest
from jax.sharding import AxisType

from grpo_jax.parallel import AXES, MeshShape, make_mesh


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("4", {"fsdp": 4}),
        ("1", {}),
        ("8x8", {"fsdp": 8, "tensor": 8}),
        ("8X2", {"fsdp": 8, "tensor": 2}),
        (" 2x4 ", {"fsdp": 2, "tensor": 4}),
        ("2x4x2", {"data": 2, "fsdp": 4, "tensor": 2}),
        ("data=2,fsdp=8,tensor=4", {"data": 2, "fsdp": 8, "tensor": 4}),
        ("tensor=4, data=2", {"data": 2, "tensor": 4}),
        ("expert=1,context=1", {}),
    ],
)
def test_text_is_read_as_axes(text, sizes):
    shape = MeshShape.parse(text)
    assert shape == MeshShape(**sizes)
    assert shape.as_dict() == dict.fromkeys(AXES, 1) | sizes
    assert MeshShape.parse(str(shape)) == shape


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("", "not a whole number"),
        ("8x", "not a whole number"),
        ("axb", "'a', not a whole number"),
        ("2.5", "not a whole number"),
        ("-4", "not a whole number"),
        ("fsdp=", "not a whole number"),
        ("fsdp=two", "'two', not a whole number"),
        ("2x2x2x2", "one to three numbers"),
        ("model=2", "unknown axis 'model'"),
        ("fsdp=2,", "unknown axis ''"),
        ("2,fsdp=2", "unknown axis '2'"),
    ],
)
def test_unreadable_text_is_refused_with_the_known_axes(text, complaint):
    with pytest.raises(ValueError) as error:
        MeshShape.parse(text)
    message = str(error.value)
    assert message.startswith(f"mesh {text!r}: ") and complaint in message
    assert ", ".join(AXES) in message


@pytest.mark.parametrize("text, key", [("0", "mesh.fsdp=0"), ("2x0", "mesh.tensor=0"), ("data=0", "mesh.data=0")])
def test_an_axis_of_no_devices_is_refused(text, key):
    with pytest.raises(ValueError, match=f"{key}: .* at least 1"):
        MeshShape.parse(text)


def test_an_axis_given_twice_is_refused():
    with pytest.raises(ValueError, match="axis 'fsdp' is given twice"):
        MeshShape.parse("fsdp=2,fsdp=4")


@pytest.mark.parametrize("size", [1.0, True, "2", None])
def test_a_size_that_is_no_whole_number_is_refused(size):
    with pytest.raises(ValueError, match=f"mesh.data={size!r}: "):
        MeshShape(data=size)


@pytest.mark.parametrize("axis", ["expert", "context"])
def test_axes_that_nothing_is_split_over_are_refused_by_name(axis):
    with pytest.raises(ValueError, match=rf"mesh\.{axis}=2: nothing is sharded over the {axis} axis yet"):
        MeshShape.parse(f"{axis}=2")


def test_size_is_the_product_and_rows_are_split_over_data_and_fsdp():
    shape = MeshShape.parse("2x4x8")
    assert (shape.size, shape.row_shards, shape["tensor"]) == (64, 8, 8)


def test_mesh_has_all_axes_auto_over_the_first_devices():
    mesh = make_mesh(MeshShape.parse("2x2"))
    assert dict(mesh.shape) == {"data": 1, "fsdp": 2, "tensor": 2, "expert": 1, "context": 1}
    assert mesh.axis_names == AXES
    assert mesh.axis_types == (AxisType.Auto,) * len(AXES)
    assert sorted(device.id for device in mesh.devices.flat) == sorted(device.id for device in jax.devices()[:4])


def test_mesh_of_more_devices_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"mesh fsdp=16 covers 16 devices, but there are 8 cpu devices"):
        make_mesh(MeshShape.parse("16"))
