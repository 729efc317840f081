"""Parts of values: lookups of rows, slices, and single elements of an axis.

    jnp.take(x, 0, axis=1)                       →   x[:, 0]
    x[:4][:, 2:]                                 →   x[:4, 2:]
    jnp.squeeze(jnp.split(x, 3, axis=1)[2], 1)   →   x[:, 2]
    jnp.transpose(x, (2, 0, 1))[0]               →   x[:, :, 0]

Known positions 0, 1 … into a parameter become those of `jnp.arange`, so that a table of positions is an embedding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxport.codegen.rewriting.producers import added_axes, as_tuple, axes_of, index_of
from jaxport.codegen.rewriting.step_rewriting import StepRewriting
from jaxport.codegen.rewriting.steps import JOINS, in_place
from jaxport.codegen.structure.spelling.idioms import AS_WRITTEN
from jaxport.importer.values.host import HostValue, is_dim
from jaxport.importer.values.namespaces import HELPERS
from jaxport.importer.values.recording import Step, Variable

REPEATED = 5
"""The elements of an axis by which a repetition is told, if positions are the same from element to element."""

OF_WHOLE = ("align_corners", "tf_crop_and_resize")
"""Coordinates of a Resize that depend on the number of elements."""


def _index(x: object, at: object, axis: int | None) -> object:
    """Return the index of a known position along an axis, if there is one."""
    if not isinstance(x, Variable) or not isinstance(at, HostValue) or at.ndim or at.symbolic or axis is None:
        return None
    index, size = int(at.item()), x.shape[axis]
    inside = -size <= index < size if isinstance(size, int) else is_dim(size) and index in (0, -1)
    return index_of(*[slice(None)] * (axis % len(x.shape)), index) if inside else None


AS_WRITTEN.rewrite("jnp.take(x, at, axis=axis)", "x[index]", index=_index)


def _first_rows(x: object, at: object, step: Step, rewriting: StepRewriting) -> object:
    """Return known positions 0, 1 … in a parameter as those of `arange`: a table of positions is an embedding."""
    if (
        not isinstance(x, Variable)
        or x not in rewriting.weights
        or not isinstance(at, HostValue)
        or at.symbolic
        or at.dtype.kind not in "iu"
    ):
        return None
    if (
        at.size < 2
        or at.shape not in ((at.size,), (1, at.size))
        or not np.array_equal(at.data.ravel(), np.arange(at.size))
    ):
        return None
    indices = rewriting.call(step, "jnp.arange", (at.size,), Variable((at.size,), at.dtype))
    if at.ndim == 1:
        return indices
    return rewriting.call(step, "jnp.expand_dims", (indices, 0), Variable(at.shape, at.dtype))


AS_WRITTEN.rewrite("jnp.take(x, at, axis=0)", "jnp.take(x, indices, axis=0)", indices=_first_rows)
AS_WRITTEN.rewrite(
    "helper.gather_nd(x, (at := jnp.expand_dims(i, _)), 0)", "jnp.take(x, i, axis=0)",
    when=lambda x, at, i: isinstance(x, Variable) and isinstance(i, Variable) and at.shape == (*i.shape, 1),
)  # fmt: skip


def _of_split(split: Step, axis: int, place: int, axes: object, part: Variable) -> object:
    """Return the index of an element of an axis that is split into its elements, and left out then."""
    axis %= len(part.shape)
    is_element = axes_of(axes, len(part.shape)) == [axis] and all(one.shape[axis] == 1 for one in split.outputs)
    return index_of(*[slice(None)] * axis, place) if is_element else None


AS_WRITTEN.rewrite("jnp.squeeze((part := (split := jnp.split(x, _, axis=axis))[place]), axes)", "x[index]", index=_of_split,
                   when=lambda x: isinstance(x, Variable))  # fmt: skip


def _joined(first: object, second: object) -> object:
    """Return the slices that one takes of what another one has taken, if they are along other axes."""
    cuts, further = map(as_tuple, (first, second))
    if not all(isinstance(cut, slice) for cut in (*cuts, *further)):
        return None
    whole, length = slice(None), max(len(cuts), len(further))
    pairs = [*zip(*([*part, *[whole] * (length - len(part))] for part in (cuts, further)), strict=True)]
    if any(one != whole and other != whole for one, other in pairs):
        return None
    return index_of(*(one if other == whole else other for one, other in pairs))


AS_WRITTEN.rewrite("x[first][second]", "x[index]", index=_joined)
AS_WRITTEN.rewrite("jnp.broadcast_to(full, _)[_]", "jnp.broadcast_to(full, shape)",
                   when=lambda full: isinstance(full, HostValue) and not full.ndim, shape=lambda out: tuple(out.shape))  # fmt: skip


@AS_WRITTEN.on("")
def part_of_transposed(step: Step, rewriting: StepRewriting) -> Step | None:
    """`x.transpose(2, 0, 1)[0]` is `x[:, :, 0]`."""
    moved = rewriting.producers.step(step.args[0], "jnp.transpose") if step.form == "index" else None
    if moved is None or len(moved.args) != 2 or not isinstance(moved.args[0], Variable):
        return None
    index = as_tuple(step.args[1])
    taken = [at for at, part in enumerate(index) if type(part) is int]
    if not taken or not all(type(part) is int or part == slice(None) for part in index):
        return None
    origin, order = moved.args
    axes = {order[at]: index[at] for at in taken}
    kept = [axis for axis in range(len(order)) if axis not in axes]
    rest = tuple(kept.index(axis) for axis in order if axis in kept)
    whole = index_of(*(axes.get(axis, slice(None)) for axis in range(max(axes) + 1)))
    part = rewriting.call(step, "", (origin, whole), [origin.shape[axis] for axis in kept], "index")
    return in_place(step, "jnp.transpose", part, rest)


def _times(x: Variable, axis: int, size: Any, scale: tuple[object, ...], options: dict[str, object]) -> int | None:
    """Return how often each element is taken by a Resize, if all are as often."""
    times = size // x.shape[axis]
    if options.get("mode") != "nearest" or options.get("transform") in OF_WHOLE:
        return None
    if not isinstance(times, int) or times * x.shape[axis] != size:
        return None
    row = np.arange(REPEATED)
    resized = HELPERS["resized_along"].function(row, 0, times * row.size, *scale, **options)
    return times if np.array_equal(resized, row.repeat(times)) else None


AS_WRITTEN.rewrite(
    "helper.resized_along(x, axis, size, *scale, **options)", "jnp.repeat(x, times, axis=axis)", times=_times
)


@AS_WRITTEN.on("")
def part_of_joined(step: Step, rewriting: StepRewriting) -> object:
    """`stack([a, b], axis=2)[:, :, 1]` is `b`, and `concatenate((a, b), axis=1)[:, 0]`, of one column each, `a[:, 0]`."""
    joined = rewriting.producers.step(step.args[0], *JOINS) if step.form == "index" else None
    if joined is None or len(joined.args) != 1 or joined.kwargs.keys() - {"axis"}:
        return None
    rank, parts = len(joined.outputs.shape), joined.args[0]
    axis, index = joined.kwargs.get("axis", 0) % rank, _whole_index(step.args[1], rank)
    if index is None or type(index[axis]) is not int or not all(isinstance(part, Variable) for part in parts):
        return None
    sizes = [1 if joined.name == "jnp.stack" else part.shape[axis] for part in parts]
    if not all(isinstance(size, int) for size in sizes) or not -sum(sizes) <= index[axis] < sum(sizes):
        return None
    begin, place = 0, index[axis] % sum(sizes)
    while place - begin >= sizes[0]:
        begin += sizes.pop(0)
    part = parts[len(parts) - len(sizes)]
    cuts = [*index[:axis], *([] if joined.name == "jnp.stack" else [place - begin]), *index[axis + 1 :]]
    cut = index_of(*cuts)
    return part if cut is None else in_place(step, "", part, cut, form="index")


def _whole_index(index: object, rank: int) -> list[slice | int] | None:
    """Return an index with a part for each axis; None if it has others than slices and numbers."""
    parts = [*index] if isinstance(index, tuple) else [index]
    if ... in parts:
        place = parts.index(...)
        parts[place : place + 1] = [slice(None)] * (rank - len(parts) + 1)
    parts += [slice(None)] * (rank - len(parts))
    known = [part for part in parts if isinstance(part, slice) or type(part) is int]
    return known if len(known) == len(parts) else None


@AS_WRITTEN.on("")
def part_of_expanded(step: Step, rewriting: StepRewriting) -> object:
    """`expand_dims(x, 1)[:, 0, :, 2:]` is `x[:, :, 2:]`; a first axis is that of the directions of a recurrent layer."""
    added = rewriting.producers.step(step.args[0], "jnp.expand_dims") if step.form == "index" else None
    axes = added_axes(added) if added is not None else None
    if added is None or axes is None or 0 in axes or not isinstance(added.args[0], Variable):
        return None
    index = _whole_index(step.args[1], len(added.outputs.shape))
    if index is None or any(type(index[axis]) is not int or index[axis] not in (0, -1) for axis in axes):
        return None
    rest = index_of(*(part for axis, part in enumerate(index) if axis not in axes))
    return added.args[0] if rest is None else in_place(step, "", added.args[0], rest, form="index")
