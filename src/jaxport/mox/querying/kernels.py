"""The kernels of a block: the parameters that it multiplies by, and the purpose of each of their axes.

This is the only definition. A parameter is followed through casts, transposes, reshapes and arithmetic with other
parameters, into and out of calls, so that a kernel has the same axes however it is stored: (in, out), (out, in), or
with an axis for heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax.numpy as jnp
import numpy as np

from jaxport import jaxprs
from jaxport.blocks.ungrouping import ungroup
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Aval, Dim, aval_of
from jaxport.mox.programs.tree import name_below
from jaxport.mox.querying.axes import AxisPart, joined_parts
from jaxport.mox.querying.calls import TracedCall, call_of
from jaxport.mox.querying.computed import ComputedWeight, computed_weights
from jaxport.mox.querying.flow import WEIGHT, ParameterFlow, Reading


@dataclass(frozen=True)
class Kernel:
    """A parameter that its block multiplies with its input, or looks up in.

    Attributes:
      index: which input of the block's body it is.
      path: of the parameter.
      name: its name below the block.
      inputs: the axes that are contracted with the input of the layer, or that indices select from.
      outputs: the axes that the result has.
      batch: the axes that both have: for each index it is another kernel.
      shape: its sizes, by axis.
      dtype: that the block takes it in.
      argument: the position of the argument of the call that it meets.
      met: the axes of that argument that meet `inputs`; None if not all are known.
      made: the axes of the result of the call that are `channels`; None if not all are known.
      order: of a plain layer, the axes of its result, counted in those of the argument that are left over, and
        `outputs`. None unless it is linear, and a product or a lookup of the argument itself.
      is_lookup: whether indices select from it.
      is_table: whether a call of the module selects from it by indices, and another one multiplies by it.
      is_computed: whether it is not a parameter, but computed from several, of which this is the largest, as a
        dequantized one.
      is_linear: whether the only result of the call is the product, or the rows, and what the layer adds to them.
      is_alone: whether it adds parameters only, so that arguments reach the result through the product.
    """

    index: int
    path: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    batch: tuple[int, ...] = ()
    shape: tuple[Dim, ...] = ()
    dtype: np.dtype | None = None
    argument: int = 0
    met: tuple[int, ...] | None = None
    made: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    is_lookup: bool = False
    is_table: bool = False
    is_linear: bool = False
    is_alone: bool = False
    is_computed: bool = False
    _flow: _Followed | None = field(default=None, repr=False, compare=False)

    @property
    def channels(self) -> tuple[int, ...]:
        """The axes that are not contracted: each of their indices is a column of weights."""
        return tuple(sorted((*self.batch, *self.outputs)))


@dataclass(frozen=True)
class Summand:
    """A parameter that is added to a product, such as a bias.

    Attributes:
      path: of the parameter.
      axes: for each of its axes the axis of the kernel whose indices it has; None for one of size one that has none.
      is_only_added: whether it is used nowhere else.
    """

    path: str
    axes: tuple[int | None, ...]
    is_only_added: bool


@dataclass(frozen=True)
class _Followed:
    """A kernel's way through the body of its block."""

    jaxpr: jaxprs.Jaxpr
    flow: ParameterFlow


def kernels(match: TracedCall, computed: bool = False) -> list[Kernel]:
    """Return the parameters of a block that are multiplied, convolved or looked up in; a bias is none of these.

    If asked for, also the weights that the block computes from several parameters, such as packed levels and their
    scales.
    """
    block = match.block
    if block is None:
        return []
    jaxpr = ungroup(match.node.equation.params["jaxpr"]).jaxpr
    used: list[Kernel] = []
    for index in block.named:
        aval = aval_of(jaxpr.invars[index])
        if aval.ndim >= 2 and jnp.issubdtype(aval.dtype, jnp.floating):
            used += _kernel(match, jaxpr, index, index)
    known = {kernel.index for kernel in used}
    for weight in computed_weights(jaxpr, [*block.named]) if computed else ():
        sizes = {index: _bytes(jaxpr.invars[index].aval) for index in sorted(weight.origins)}
        if known.isdisjoint(weight.origins):
            used += _kernel(match, jaxpr, weight, max(sizes, key=sizes.__getitem__))
    if block.method not in ("", "__call__"):
        return _as_tables(match, used)
    calls = match.root.tree.paths.get(match.path, ()) if any(kernel.is_lookup for kernel in used) else ()
    is_tied = any(node.block is not None and node.block.method not in ("", "__call__") for node in calls)
    return [replace(kernel, is_table=kernel.is_lookup and is_tied) for kernel in used] if is_tied else used


def _as_tables(match: TracedCall, used: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels of another method of a module, those that calls of the module look up in as the tables they
    are.

    `embed.attend` multiplies by the table of `embed`: what is made for a table has one form, whichever method asks.
    """
    others = match.root.tree.paths.get(match.path, ())
    calls = [node for node in others if node.block is not None and node.block.method == "__call__"]
    found = [kernel for node in calls for kernel in kernels(call_of(TracedCall, match.root, node))]
    tables = {kernel.path: kernel for kernel in found if kernel.is_lookup}
    plain = {"met": None, "made": None, "order": None, "is_linear": False, "is_table": True, "_flow": None}
    return [
        kernel
        if kernel.path not in tables or kernel.is_lookup
        else replace(kernel, inputs=tables[kernel.path].inputs, outputs=tables[kernel.path].outputs, **plain)
        for kernel in used
    ]


def _bytes(aval: Aval) -> int:
    return math.prod(aval.shape) * aval.dtype.itemsize


def kernels_to(match: TracedCall, change: str) -> list[Kernel]:
    """Return the kernels of a block for an edit that is to change them.

    Raises:
      InvalidArgument: it has none.
    """
    used = kernels(match)
    if not used:
        raise InvalidArgument(
            f"`{match.shown}` has no weight to {change}",
            where=f"`{change}`",
            why=f"`{match.type}` does not multiply by any of its parameters",
        )
    return used


def summands(match: TracedCall, kernel: Kernel) -> list[Summand]:
    """Return the other parameters of the block that are added to the product with a kernel."""
    block, followed = match.block, kernel._flow
    if block is None or followed is None:
        return []
    found = []
    for index, path in block.named.items():
        if index == kernel.index or not hasattr(followed.jaxpr.invars[index].aval, "shape"):
            continue
        flow = _flow(match, followed.jaxpr, index)
        for equation, axes in flow.added.items():
            product = followed.flow.added.get(equation)
            if product is not None and (met := _aligned(axes, product, flow.shape)) is not None:
                is_only = len(flow.added) == 1 and not flow.readings and not _is_returned(followed.jaxpr, index)
                found.append(Summand(path, met, is_only))
                break
    return found


def _aligned(
    summand: Sequence[Sequence[AxisPart]], product: Sequence[Sequence[AxisPart]], sizes: Sequence[Dim]
) -> tuple[int | None, ...] | None:
    """Return the axis of the kernel that each axis of a summand is along; None if they are not whole axes."""
    along: dict[int, int] = {}
    for own, other in zip(summand, product, strict=True):
        parts = [part for part in own if part.source == WEIGHT]
        if all(part.size == 1 for part in parts) and len(parts) != len(other):
            continue
        if [(part.size, part.stride) for part in parts] != [(part.size, part.stride) for part in other]:
            return None
        along |= {part.axis: their.axis for part, their in zip(parts, other, strict=True) if their.source == WEIGHT}
    axes = tuple(along.get(axis) for axis in range(len(sizes)))
    return axes if all(axis is not None or size == 1 for axis, size in zip(axes, sizes, strict=True)) else None


def _is_returned(jaxpr: jaxprs.Jaxpr, index: int) -> bool:
    return any(atom is jaxpr.invars[index] for atom in jaxpr.outvars)


def _flow(match: TracedCall, jaxpr: jaxprs.Jaxpr, weight: int | ComputedWeight) -> ParameterFlow:
    block = match.block
    named = {} if block is None else block.named
    arguments = [] if block is None else [i for i in range(len(block.arguments)) if i not in named]
    return ParameterFlow(jaxpr, weight, [*named], arguments)


def _kernel(match: TracedCall, jaxpr: jaxprs.Jaxpr, weight: int | ComputedWeight, index: int) -> list[Kernel]:
    """Return a parameter, or what is computed from it, as a kernel; none if no product has whole axes of it."""
    block = match.block
    flow = _flow(match, jaxpr, weight)
    reading = _chosen(flow.readings)
    if block is None or reading is None:
        return []
    inputs, batch = reading.axes("input"), reading.axes("batch")
    outputs = tuple(axis for axis in range(len(flow.shape)) if axis not in (*inputs, *batch))
    path = block.named[index]
    place = _Place.of(match, jaxpr, flow, reading)
    is_linear = _is_linear(match, flow)
    made = None if place is None else place.made(sorted((*batch, *outputs)))
    met = None if place is None else place.met(reading, inputs)
    is_arranged = place is not None and is_linear and not batch and reading.exact and not reading.is_constant
    found = Kernel(
        index=index,
        path=path,
        name=name_below(path, block.path),
        inputs=inputs,
        outputs=outputs,
        batch=batch,
        shape=tuple(flow.shape),
        dtype=flow.dtype,
        argument=0 if place is None else place.argument,
        met=met,
        made=made,
        order=place.order(reading, met, outputs) if place is not None and is_arranged else None,
        is_lookup=reading.kind == "lookup",
        is_linear=is_linear,
        is_alone=is_linear and flow.results[0] is not None and flow.results[0].alone,
        is_computed=isinstance(weight, ComputedWeight),
        _flow=_Followed(jaxpr, flow),
    )
    return [found]


def _chosen(readings: Sequence[Reading]) -> Reading | None:
    """Return the reading that says what the axes of a parameter are for: the first that is no product of parameters.

    Rows that are looked up and then multiplied by are kernels themselves, as those of experts.
    """
    clear = [reading for reading in readings if all(len(roles) == 1 for roles in reading.roles.values())]
    clear = [reading for reading in clear if reading.axes("input")]
    varying = [reading for reading in clear if not reading.is_constant] or clear
    if not varying:
        return None
    first = varying[0]
    selected = first.axes("input") if first.kind == "lookup" else ()
    later = [reading for reading in varying[1:] if selected and reading.axes("batch") == selected]
    return later[0] if later else first


def _is_linear(match: TracedCall, flow: ParameterFlow) -> bool:
    """Whether the only result of a block is the product with a parameter, and what is added to it."""
    block = match.block
    result = flow.results[0] if flow.results else None
    if block is None or len(block.returns) != 1 or result is None or flow.strays or len(flow.readings) != 1:
        return False
    # Values that are used outside of the block follow its results.
    others = [value for value in flow.results[1:] if value is not None and value.kind != "argument"]
    return result.exact and result.kind in ("product", "rows") and not others


@dataclass(frozen=True)
class _Place:
    """Where a block has the axes of a kernel, as one example of a batch has them.

    Attributes:
      source: the number of the argument that the kernel meets.
      argument: its position in the call.
      axes: of the argument.
      result: the parts of each axis of the result that have several elements.
      shape, weight: the sizes of the argument, with all batches, and of the kernel.
    """

    source: int
    argument: int
    axes: tuple[int, ...]
    result: tuple[tuple[AxisPart, ...], ...]
    shape: Sequence[Dim]
    weight: Sequence[Dim]

    @classmethod
    def of(cls, match: TracedCall, jaxpr: jaxprs.Jaxpr, flow: ParameterFlow, reading: Reading) -> _Place | None:
        """Return it; None if the kernel meets no argument, or the axes of the batch are not known."""
        block = match.block
        sources = {part.source for part in reading.met.values()}
        sources |= set() if reading.index is None else {reading.index.source}
        result = flow.results[0] if flow.results else None
        if block is None or block.axes is None or len(sources) > 1:
            return None
        if not sources:  # of a layer that does more before the product
            sources = {next((i for i in range(len(block.arguments)) if i not in block.named), -1)}
        (source,) = sources
        if not isinstance(source, int) or source < 0 or "." in block.arguments[source]:
            return None
        firsts = list(dict.fromkeys(name.partition(".")[0] for name in block.arguments))
        name = block.arguments[source]
        argument = int(name) if all(first.isdecimal() for first in firsts) else firsts.index(name)
        aval = aval_of(jaxpr.invars[source])
        axes = list(range(aval.ndim))
        made = [] if result is None else [tuple(part for part in axis if part.size != 1) for axis in result.axes]
        for in_axes, out_axes in reversed(block.axes):
            in_axis, out_axis = in_axes[source], out_axes[0]
            if in_axis is None or out_axis is None:
                return None
            gone = axes.pop(in_axis)
            if result is None:
                continue
            batch = made.pop(out_axis)
            if [(part.source, part.axis) for part in batch] not in ([], [(source, gone)]):
                return None
        return cls(source, argument, tuple(axes), tuple(made) if result is not None else (), aval.shape, flow.shape)

    def made(self, outputs: Sequence[int]) -> tuple[int, ...] | None:
        """Return the axes of the result that are those of the kernel."""
        found = []
        for axis in outputs:
            whole = [AxisPart(WEIGHT, axis, self.weight[axis])] if self.weight[axis] != 1 else []
            places = [place for place, parts in enumerate(self.result) if list(parts) == whole and place not in found]
            if not places:
                return None
            found.append(places[-1])
        return tuple(found)

    def met(self, reading: Reading, inputs: Sequence[int]) -> tuple[int, ...] | None:
        """Return the axes of the argument that the input axes of the kernel meet."""
        axes = [reading.met[axis].axis for axis in inputs if axis in reading.met]
        if len(axes) != len(inputs) or not set(axes) <= set(self.axes):
            return None
        return tuple(map(self.axes.index, axes))

    def order(self, reading: Reading, met: Sequence[int] | None, outputs: Sequence[int]) -> tuple[int, ...] | None:
        """Return the axes of the result, counted in those of the argument that are left over, and then `outputs`."""
        if (met is None and reading.index is None) or reading.kind == "convolution":
            return None
        left = [axis for place, axis in enumerate(self.axes) if reading.index is not None or place not in (met or ())]
        parts = [AxisPart(self.source, axis, self.shape[axis]) for axis in left]
        parts += [AxisPart(WEIGHT, axis, self.weight[axis]) for axis in outputs]
        wanted = [part for part in parts if part.size != 1]
        found = joined_parts(self.result)
        if sorted(map(repr, found)) != sorted(map(repr, wanted)):
            return None
        if found == wanted:
            return tuple(range(len(parts)))
        # Axes of one element may be anywhere.
        return (*map(parts.index, found), *(place for place, part in enumerate(parts) if part.size == 1))
