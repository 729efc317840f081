"""A Mox over several devices: where its parameters lie, and how what its blocks return is split."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxport.blocks.callables.places import joined
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array
from jaxport.jaxprs.meshes import automatic_mesh
from jaxport.mox.programs.program import Program, TracedProgram
from jaxport.mox.programs.tree import name_below
from jaxport.mox.querying.calls import Call, TracedCall
from jaxport.mox.querying.kernels import Kernel, kernels, summands
from jaxport.mox.querying.node_sets import NodeSet
from jaxport.mox.substitution.editing import substituted
from jaxport.mox.substitution.replacement import Factory, Whole

# What a spec by name is of, besides the parameters.
_OUTPUT = "output"


def sharded(mox: Program, mesh: Mesh, specs: Sequence[tuple[NodeSet[Program, Call], object]]) -> Program:
    """See `Mox.shard`; each spec comes with the blocks that it is for."""
    placed: dict[str, PartitionSpec] = {}
    outputs: list[tuple[NodeSet[Program, Call], PartitionSpec]] = []
    for selection, spec_or_specs in specs:
        if not len(selection):
            selection.expect(1)
        for match in selection.layers():
            for path, spec in _of_params(mox, match, spec_or_specs).items():
                if placed.setdefault(path, spec) != spec:
                    raise _refused(path, f"it is to be split as {placed[path]} and as {spec}")
        if isinstance(spec_or_specs, Mapping) and _OUTPUT in spec_or_specs:
            outputs.append((selection, spec_or_specs[_OUTPUT]))
    for selection, spec in outputs:
        _check_axes(mesh, spec, selection.query)
    weights = tuple(replace(w, value=_put(mesh, w.path, w.value, placed.get(w.path))) for w in mox.weights)
    # Blocks keep their places while parameters move: the selections hold for the outputs of all queries.
    nodes, by_location = [], {}
    for selection, spec in outputs:
        for node in selection.nodes:
            if by_location.setdefault(node.location, spec) is not spec:
                raise _refused(node.path, "two queries say how its result is split")
            nodes.append(node)
    moved = mox.replaced(replace(mox.traced, weights=weights))
    if not nodes:
        return moved
    constrained = replace(specs[0][0], mox=moved, nodes=tuple(nodes), query="the constrained blocks")
    return substituted(constrained, Factory(lambda match: _constrained(match, mesh, by_location[match.node.location])))


def beside(value: Array, weight: Array) -> Array:
    """Return a value that an edit makes from a weight, sharded like the weight if it has its shape."""
    sharding = getattr(weight, "sharding", None)
    if isinstance(sharding, NamedSharding) and value.shape == weight.shape:
        return jax.device_put(value, sharding)
    return value


def _constrained(match: TracedCall, mesh: Mesh, spec: PartitionSpec) -> Whole:
    """Return a block whose results are split; under `vmap` those of the whole batch."""
    for aval in match.out_avals:
        _check(mesh, f"the result of {match.shown}", aval.shape, spec)
    sharding = NamedSharding(automatic_mesh(mesh), spec)  # as what is evaluated, whose types say nothing of a mesh
    return Whole(
        lambda *args: jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, sharding), match(*args))
    )


def _of_params(mox: TracedProgram, match: TracedCall, spec_or_specs: object) -> dict[str, PartitionSpec]:
    """Return how the parameters of a block are split, by path."""
    held = {weight.path: weight.value for weight in mox.weights}
    block = match.block
    named = {} if block is None else block.weights
    ranks = {path: aval.ndim for path, aval in match.weight_avals.items()}
    if isinstance(spec_or_specs, Mapping):
        names = {name_below(path, match.path): path for path in named.values()}
        unknown = [name for name in spec_or_specs if name != _OUTPUT and names.get(name) not in held]
        if unknown:
            raise _refused(match.shown, f"it holds no `{unknown[0]}`, but {', '.join(map(repr, names)) or 'nothing'}")
        wanted = {names[name]: spec for name, spec in spec_or_specs.items() if name != _OUTPUT}
    elif not isinstance(spec_or_specs, PartitionSpec):
        raise InvalidArgument(
            f"{spec_or_specs!r} is not a sharding specification",
            where="`Mox.shard`",
            instead='give a `jax.sharding.PartitionSpec`, or {"kernel": spec, "output": spec}',
        )
    else:
        wanted = {}
        for kernel in kernels(match):
            stored = _stored(match, kernel, held)
            wanted |= dict.fromkeys(stored, spec_or_specs)
            ranks |= dict.fromkeys(stored, match.weight_avals[kernel.path].ndim)
            wanted |= _of_others(match, kernel, spec_or_specs) if stored else {}
        if not wanted:
            raise _refused(match.shown, f"`{match.type}` multiplies no parameter that the program holds")
    # A stack of layers has the axes of the steps before those of each layer.
    return {path: PartitionSpec(*[None] * (held[path].ndim - ranks[path]), *spec) for path, spec in wanted.items()}


def _stored(match: TracedCall, kernel: Kernel, held: Mapping[str, Array]) -> list[str]:
    """Return the arrays that hold a weight: itself, or those of its shape that an edit computes it from."""
    if match.block is not None and kernel.path in match.block.weights.values() and kernel.path in held:
        return [kernel.path]
    shape, below = match.weight_avals[kernel.path].shape, f"{joined(match.path, kernel.name)}."
    return [
        path
        for path, value in held.items()
        if path.startswith(below) and value.shape[value.ndim - len(shape) :] == shape
    ]


def _of_others(match: TracedCall, kernel: Kernel, spec: PartitionSpec) -> dict[str, PartitionSpec]:
    """Shard the summands of a product like its axes."""
    parts = [*spec, *[None] * (match.weight_avals[kernel.path].ndim - len(spec))]
    held = {weight.path for weight in match.root.weights}
    return {
        summand.path: PartitionSpec(*[None if axis is None else parts[axis] for axis in summand.axes])
        for summand in summands(match, kernel)
        if summand.path in held
    }


def _put(mesh: Mesh, path: str, value: Array, spec: PartitionSpec | None) -> Array:
    """Return a parameter where it is to lie.

    What no query names stays on the mesh as it is, or is whole on each device.
    """
    if spec is None:
        known = getattr(value, "sharding", None)
        if isinstance(known, NamedSharding) and known.mesh == mesh:
            return value
        spec = PartitionSpec()
    _check(mesh, path, value.shape, spec)
    return jax.device_put(value, NamedSharding(mesh, spec))


def _check(mesh: Mesh, what: str, shape: tuple, spec: PartitionSpec) -> None:
    _check_axes(mesh, spec, what)
    if len(spec) > len(shape):
        raise _refused(what, f"it has {len(shape)} axes, {spec} is for {len(spec)}")
    for size, part in zip(shape, spec, strict=False):
        names = (part,) if isinstance(part, str) else tuple(part or ())
        count = math.prod(mesh.shape[name] for name in names)
        if isinstance(size, int) and size % count:
            raise _refused(what, f"an axis of {size} is not split evenly over the {count} devices of {part!r}")


def _check_axes(mesh: Mesh, spec: PartitionSpec, what: str) -> None:
    for part in spec:
        for name in (part,) if isinstance(part, str) else tuple(part or ()):
            if name not in mesh.shape:
                raise _refused(what, f"the mesh has no axis `{name}`, but {', '.join(map(repr, mesh.shape))}")


def _refused(what: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"`{what}` cannot be split in this way", where="`Mox.shard`", why=why)
