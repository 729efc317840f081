"""Meshes, and how arrays are split over them, as plain data. The devices are those of the process that reads them."""

from __future__ import annotations

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jaxport.errors import ModelError
from jaxport.jaxprs.meshes import abstract_mesh, mesh_of_devices
from jaxport.mox.serialize.json_values import JsonValue, list_of, texts_of
from jaxport.mox.serialize.values import Unwritable


def mesh_data(mesh: Mesh | AbstractMesh) -> JsonValue:
    """Return the names and sizes of the axes of a mesh.

    >>> mesh_data(abstract_mesh([("data", 2), ("model", 4)]))
    [['data', 2], ['model', 4]]
    """
    return [[str(name), size] for name, size in mesh.shape.items()]


def mesh_from(data: JsonValue) -> Mesh | AbstractMesh:
    """Return the mesh of `mesh_data`: of this process's devices; inside a `shard_map`, the mesh of that.

    Raises:
      ModelError: the data are malformed, or the process has too few devices.
    """
    axes = [_axis(item) for item in list_of(data)]
    if not axes or len(dict(axes)) != len(axes):
        raise _malformed()
    mesh, around = abstract_mesh(axes), jax.sharding.get_abstract_mesh()
    if around.manual_axes:
        if around.shape != mesh.shape:
            raise ModelError("a `shard_map` uses another mesh than the one around it")
        return around
    found = mesh_of_devices(mesh)
    if found is None:
        shown = ", ".join(f"`{name}`: {size}" for name, size in axes)
        raise ModelError(
            f"the program needs {mesh.size} devices, and this process has {jax.device_count()}",
            where="a `shard_map`",
            why=f"it is over a mesh of {shown}",
            instead="read it where there are that many; a CPU is that many devices with "
            f"`XLA_FLAGS=--xla_force_host_platform_device_count={mesh.size}`",
        )
    return found


def _axis(data: JsonValue) -> tuple[str, int]:
    match data:
        case [str(name), int(size)] if type(size) is int and 0 < size < 1 << 31:
            return name, size
    raise _malformed()


def _malformed() -> ModelError:
    return ModelError("a mesh is malformed", why="it has to be a list of names and sizes")


def spec_data(spec: PartitionSpec) -> JsonValue:
    """Return how an array is split: for each axis None, the name of an axis of the mesh, or a list of them.

    Raises:
      Unwritable: it says of axes that parts are still to be summed over them.

    >>> spec_data(PartitionSpec("data", None, ("model", "pipe")))
    ['data', None, ['model', 'pipe']]
    """
    if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
        raise Unwritable("a `PartitionSpec` with `unreduced` or `reduced` axes")
    return [list(part) if isinstance(part, tuple) else part for part in spec]


def spec_from(data: JsonValue) -> PartitionSpec:
    """Return the `PartitionSpec` of `spec_data`.

    Raises:
      ModelError: the data are malformed.
    """
    return PartitionSpec(*map(_part, list_of(data)))


def _part(data: JsonValue) -> str | tuple[str, ...] | None:
    match data:
        case None | str():
            return data
        case [*names] if all(isinstance(name, str) for name in names):
            return texts_of(names)
    raise ModelError("a `PartitionSpec` is malformed", why="each of its parts is None, a name, or a list of names")
