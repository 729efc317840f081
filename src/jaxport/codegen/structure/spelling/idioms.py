"""Steps as a person would have written them: one function instead of several operators, and no operator without effect.

Most rules are text; a new idiom is a line. Rules that reorder arithmetic apply to float32 only, where they change no more than the
last digits. Steps without a reader are dropped afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from jaxport.codegen.rewriting.producers import added_axes, as_tuple, axes_of
from jaxport.codegen.rewriting.step_rewriting import RuleTable, StepRewriting
from jaxport.codegen.rewriting.steps import in_place
from jaxport.importer.values.host import Dim, HostValue
from jaxport.importer.values.recording import Step, Variable
from jaxport.jaxprs import Parameters

AS_WRITTEN = RuleTable()
"""Rules whose results have the values of the steps, written as a person does."""

REDUCTIONS = ("jnp.mean", "jnp.sum", "jnp.max", "jnp.min")
"""Functions that reduce axes."""

FURTHER = ("nn.logsumexp", "jnp.linalg.norm", "jnp.any", "jnp.all")
"""Functions of frameworks, and of truth values, that reduce axes as well."""


def is_single(out: Variable) -> bool:
    """Whether a result is in single precision."""
    return out.dtype == np.float32


def _are_nothing(widths: object) -> bool:
    return isinstance(widths, list | tuple) and all(tuple(pair) == (0, 0) for pair in widths)


AS_WRITTEN.rewrite("jnp.matmul(x, y)", "x @ y")
AS_WRITTEN.rewrite("jnp.negative(x)", "-x")
AS_WRITTEN.rewrite("jnp.reciprocal(jnp.sqrt(x))", "lax.rsqrt(x)", when=is_single)
AS_WRITTEN.rewrite("1 / jnp.sqrt(x)", "lax.rsqrt(x)", when=is_single)
AS_WRITTEN.rewrite("jnp.pad(x, widths, **_)", "x", when=_are_nothing)
AS_WRITTEN.rewrite(
    "nn.softmax(x, axis=axis)", "nn.softmax(x, axis=-1)", when=lambda axis, out: axis == len(out.shape) - 1
)
for _name in (*REDUCTIONS, "jnp.any", "jnp.all"):
    AS_WRITTEN.rewrite(
        f"{_name}(x, axis=axes, keepdims=False, **options)", f"{_name}(x, axis=axis, **options)",
        when=lambda axes: isinstance(axes, tuple), axis=lambda axes: axes[0] if len(axes) == 1 else axes,
    )  # fmt: skip

# Choices

AS_WRITTEN.rewrite("jnp.where(~c, x, y)", "jnp.where(c, y, x)", when=lambda c: c.dtype == bool)


def _number(value: object) -> object:
    """Return the number that an array of one axis has, if it has but one."""
    if isinstance(value, HostValue) and value.shape == (1,) and not value.symbolic and not value.name:
        return HostValue(value.data.reshape(()))
    return value


def _with_numbers(condition: Variable, x: object, y: object, out: Variable) -> tuple[object, ...] | None:
    """Return the values of a choice with numbers for arrays of one element; None if there are none."""
    numbers = _number(x), _number(y)
    is_other = numbers[0] is not x or numbers[1] is not y
    return numbers if is_other and len(condition.shape) == len(out.shape) else None


AS_WRITTEN.rewrite("jnp.where(condition, x, y)", "jnp.where(condition, *others)", others=_with_numbers)


# Axes


def _rest_of_order(a: object, order: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the order of the axes without those that were added before."""
    added = axes_of(a, len(order))
    kept = [axis for axis in range(len(order)) if axis not in (added or ())]
    return None if added is None else tuple(kept.index(axis) for axis in order if axis in kept)


def _are_left_out(a: object, order: tuple[int, ...], axes: object) -> bool:
    """Whether the axes that were added are those that are left out, wherever they were moved."""
    added, left = axes_of(a, len(order)), axes_of(axes, len(order))
    return added is not None and left is not None and {order[axis] for axis in left} == {*added}


def _all_added(a: object, b: object, out: Variable) -> tuple[int, ...] | None:
    """Return the axes that are added one after the other."""
    rank = len(out.shape)
    added = axes_of(b, rank)
    first = None if added is None else axes_of(a, rank - len(added))
    if added is None or first is None:
        return None
    kept = [axis for axis in range(rank) if axis not in added]
    return tuple(sorted([*added, *(kept[axis] for axis in first)]))


def _swapped(out: Variable, a: int = -2, b: int = -1) -> tuple[int, ...]:
    order = [*range(len(out.shape))]
    order[a], order[b] = order[b], order[a]
    return tuple(order)


AS_WRITTEN.rewrite(
    "jnp.squeeze(jnp.transpose(jnp.expand_dims(x, a), order), axes)", "jnp.transpose(x, rest)",
    when=_are_left_out, rest=_rest_of_order,
)  # fmt: skip
AS_WRITTEN.rewrite(
    "jnp.reshape(jnp.transpose(jnp.expand_dims(x, a), order), shape)", "jnp.reshape(jnp.transpose(x, rest), shape)",
    when=lambda x: isinstance(x, Variable), rest=_rest_of_order,
)  # fmt: skip
AS_WRITTEN.rewrite("jnp.expand_dims(jnp.expand_dims(x, a), b)", "jnp.expand_dims(x, axes)", axes=_all_added)
AS_WRITTEN.rewrite(
    "jnp.transpose(jnp.transpose(x, p), q)", "jnp.transpose(x, order)", order=lambda p, q: tuple(p[axis] for axis in q)
)


def _moved_axis(order: Sequence[int], options: Parameters) -> int | None:
    """Return where an order has the axis of a stack, if it moves no other."""
    axis = options.get("axis", 0) % len(order)
    rest = [other for other in order if other != axis]
    return [*order].index(axis) if rest == sorted(rest) else None


AS_WRITTEN.rewrite(
    "jnp.transpose(jnp.stack(parts, **options), order)", "jnp.stack(parts, axis=place)", place=_moved_axis
)


AS_WRITTEN.rewrite("jnp.swapaxes(x, a, b)", "jnp.transpose(x, order)", order=_swapped)
AS_WRITTEN.rewrite("x.mT", "jnp.transpose(x, order)", order=_swapped)


def _are_repeated_once(x: object, repeats: object) -> bool:
    if not isinstance(x, Variable) or not isinstance(repeats, list | tuple) or len(repeats) != len(x.shape):
        return False
    return all(size == 1 or times == 1 for size, times in zip(x.shape, repeats, strict=True))


AS_WRITTEN.rewrite(
    "jnp.tile(x, repeats)", "jnp.broadcast_to(x, shape)", when=_are_repeated_once, shape=lambda out: tuple(out.shape)
)


# Reshapes


AS_WRITTEN.rewrite(
    "jnp.reshape(jnp.transpose((merged := jnp.reshape(x, _)), (0, 2, 1)), _)", "jnp.transpose(jnp.reshape(x, shape), order)",
    when=lambda x, merged, out: isinstance(x, Variable) and len(out.shape) > 2 and out.shape[-2:] == (*merged.shape[:0:-1],),
    shape=lambda merged, out: [*out.shape[:-2], *merged.shape[1:]], order=_swapped,
)  # fmt: skip


@AS_WRITTEN.on("jnp.reshape", "jnp.squeeze")
def squeezed_reduction(step: Step, rewriting: StepRewriting) -> Step | None:
    """`mean(x, axis=1, keepdims=True)` without the axis that is kept is `mean(x, axis=1)`."""
    moved = rewriting.producers.step(step.args[0], "jnp.transpose")
    kept = rewriting.producers.step(moved.args[0] if moved is not None else step.args[0], *REDUCTIONS, *FURTHER)
    if kept is None or kept.kwargs.get("keepdims") is not True or kept.kwargs.keys() != {"axis", "keepdims"}:
        return None
    rank, axis = len(kept.outputs.shape), kept.kwargs["axis"]
    axes = {*range(rank)} if axis is None else {*(axes_of(axis, rank) or ())}
    order = [place for place in (moved.args[1] if moved is not None else range(rank)) if place not in axes]
    if order != sorted(order) or step.outputs.shape != tuple(kept.outputs.shape[place] for place in order):
        return None
    options = {"axis": tuple(sorted(axes)) if len(axes) > 1 else axes.pop()} if order else {}
    return Step(kept.form, kept.name, kept.args, options, step.outputs, step.node)


for _view in ("jnp.reshape", "jnp.expand_dims", "jnp.squeeze"):
    AS_WRITTEN.rewrite(
        f"jnp.reshape({_view}(x, _), shape)", "jnp.reshape(x, shape)", when=lambda x: isinstance(x, Variable)
    )


def sizes_as_written(shape: Sequence[Dim]) -> list[Dim]:
    """Return the sizes of a reshape, with -1 for the first one if no other is open.

    >>> sizes_as_written((2, 3))
    [2, 3]
    """
    first, *rest = shape
    return [-1 if not isinstance(first, int) and all(isinstance(size, int) for size in rest) else first, *rest]


def _divided_axes(one: Sequence[Dim], other: Sequence[Dim]) -> int | None:
    """Return which axis of a shape is two of the other's, if that is the only difference."""
    place = next((at for at, (size, part) in enumerate(zip(one, other, strict=False)) if size != part), None)
    if place is None or len(other) != len(one) + 1 or one[place + 1 :] != other[place + 2 :]:
        return None
    return place if other[place] * other[place + 1] == one[place] else None


@AS_WRITTEN.on("jnp.reshape")
def split_before(step: Step, rewriting: StepRewriting) -> Step | None:
    """`x.reshape(n, a * b, m).transpose(1, 0, 2).reshape(a, b, n, m)` is `x.reshape(n, a, b, m).transpose(1, 2, 0, 3)`."""
    moved = rewriting.producers.step(step.args[0], "jnp.transpose")
    shaped = rewriting.producers.step(moved.args[0], "jnp.reshape") if moved is not None else None
    if moved is None or shaped is None or len(moved.args) != 2 or not isinstance(shaped.args[0], Variable):
        return None
    parts, order = step.outputs.shape, moved.args[1]
    place = _divided_axes(moved.outputs.shape, parts)
    if place is None:
        return None
    axis = order[place]
    shape = [*shaped.outputs.shape]
    shape[axis : axis + 1] = parts[place : place + 2]
    further = [at + (at > axis) for at in order]
    further[place : place + 1] = [axis, axis + 1]
    x = rewriting.call(step, "jnp.reshape", (shaped.args[0], shape), shape)
    return in_place(step, "jnp.transpose", x, tuple(further))


def _come_back(p: tuple[int, ...], q: tuple[int, ...], before: Variable, after: Variable) -> bool:
    """Whether axes, one of which is two between the transposes or beside them, are in their order again."""
    axes: list[tuple[tuple[int, ...], ...]] = [((axis,),) for axis in p]
    if (place := _divided_axes(before.shape, after.shape)) is not None:
        axes[place : place + 1] = [((p[place], 0),), ((p[place], 1),)]
    elif (place := _divided_axes(after.shape, before.shape)) is not None:
        axes[place : place + 2] = [axes[place] + axes[place + 1]]
    else:
        return False
    order = [part for axis in q for part in axes[axis]]
    return order == sorted(order)


AS_WRITTEN.rewrite(
    "jnp.transpose((after := jnp.reshape((before := jnp.transpose(x, p)), _)), q)", "jnp.reshape(x, sizes)",
    when=_come_back, sizes=lambda out: sizes_as_written(out.shape),
)  # fmt: skip


AS_WRITTEN.rewrite(
    "jnp.roll(jnp.roll(x, i, axis=a), j, axis=b)", "jnp.roll(x, shifts, axis=axes)",
    when=lambda a, b: all(type(axis) is int for axis in as_tuple(a) + as_tuple(b)) and not {*as_tuple(a)} & {*as_tuple(b)},
    shifts=lambda i, j: as_tuple(i) + as_tuple(j), axes=lambda a, b: as_tuple(a) + as_tuple(b),
)  # fmt: skip


# Concatenations


@AS_WRITTEN.on("jnp.concatenate")
def stacked(step: Step, rewriting: StepRewriting) -> Step | None:
    """`concatenate([expand_dims(a, 0), expand_dims(b, 0)], axis=0)` is `stack([a, b], axis=0)`."""
    added = [rewriting.producers.step(part, "jnp.expand_dims") for part in step.args[0]]
    axis, rank = step.kwargs.get("axis", 0), len(step.outputs.shape)
    if len(step.args) != 1 or step.kwargs.keys() - {"axis"} or len(added) < 2:
        return None
    if any(one is None or added_axes(one) != [axis % rank] for one in added):
        return None
    parts = [one.args[0] for one in added if one is not None]
    if not all(isinstance(part, Variable) for part in parts):
        return None
    return in_place(step, "jnp.stack", parts, **({"axis": axis} if axis else {}))


@AS_WRITTEN.on("jnp.roll")
def joined_the_other_way(step: Step, rewriting: StepRewriting) -> Step | None:
    """`roll(concatenate((a, b), axis=1), -4, axis=1)` is `concatenate((b, a), axis=1)` if `a` has four columns."""
    x, shift, *others = step.args
    joined, axis = rewriting.producers.step(x, "jnp.concatenate"), step.kwargs.get("axis")
    if joined is None or others or type(shift) is not int or type(axis) is not int or len(joined.args) != 1:
        return None
    parts, rank = [*joined.args[0]], len(step.outputs.shape)
    sizes = [part.shape[axis] for part in parts]
    if joined.kwargs.get("axis", 0) % rank != axis % rank or not all(isinstance(size, int) for size in sizes):
        return None
    ends = [*itertools.accumulate(sizes)]
    place = -shift % ends[-1]
    if place not in ends:
        return None
    first = ends.index(place) + 1
    return in_place(step, joined.name, (*parts[first:], *parts[:first]), **joined.kwargs)


# Constants


AS_WRITTEN.rewrite(
    "jnp.broadcast_to(full, shape).astype(kind)", "jnp.broadcast_to(number, shape)",
    when=lambda full: isinstance(full, HostValue) and not full.ndim and not full.symbolic and bool(np.isfinite(full.data)),
    number=lambda full, kind: HostValue(full.data.astype(kind)),
)  # fmt: skip
