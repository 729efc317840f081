"""Axes followed through a program: which axes of some arrays each axis of a value is made of.

>>> rows_and_heads = axes_of("w", (6, 4))
>>> [[(part.axis, part.size, part.stride) for part in axis] for axis in reshaped(rows_and_heads, (2, 3, 4))]
[[(0, 2, 3)], [(0, 3, 1)], [(1, 4, 1)]]
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from jaxport.jaxprs.aliases import Dim, aval_of
from jaxport.jaxprs.releases import JaxprEqn

CASTS = frozenset({
    "convert_element_type", "copy", "copy_p", "pvary", "reduce_precision", "reshard", "sharding_constraint",
    "stop_gradient",
})  # fmt: skip
"""Primitives that return their operand in another representation."""

ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp",
    "cos", "cosh", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow",
    "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not",
    "or", "pow", "rem", "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "sign", "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor",
})  # fmt: skip
"""Primitives whose results have the axes of their operands."""


class AxisPart(NamedTuple):
    """A part of an axis of an array: so many indices, which are `stride` apart.

    `source` names the array; None is an axis of none. The stride is negative if the order is reversed, and None if some
    indices are left out, or added.
    """

    source: Hashable
    axis: int
    size: Dim
    stride: Dim | None = 1


Axes = tuple[tuple[AxisPart, ...], ...]
"""For each axis of a value the parts that it is made of, the slowest first."""


def axes_of(source: Hashable, shape: Sequence[Dim]) -> Axes:
    """Return the axes of an array itself."""
    return tuple((AxisPart(source, axis, size),) for axis, size in enumerate(shape))


def unknown(size: Dim) -> tuple[AxisPart, ...]:
    """Return an axis of no array."""
    return (AxisPart(None, 0, size),)


def arranged(equation: JaxprEqn, axes: Axes) -> Axes | None:
    """Return the axes of the result of an equation that casts or arranges its first operand; None if it does not."""
    rule = _ARRANGING.get(equation.primitive.name)
    return axes if equation.primitive.name in CASTS else None if rule is None else rule(equation, axes)


def _transposed(equation: JaxprEqn, axes: Axes) -> Axes:
    return tuple(axes[axis] for axis in equation.params["permutation"])


def _squeezed(equation: JaxprEqn, axes: Axes) -> Axes:
    dropped = {axis % len(axes) for axis in equation.params["dimensions"]}
    return tuple(axis for index, axis in enumerate(axes) if index not in dropped)


def _broadcast(equation: JaxprEqn, axes: Axes) -> Axes:
    shape, before = equation.params["shape"], _shape(equation)
    made = [unknown(size) for size in shape]
    for axis, place in zip(range(len(axes)), equation.params["broadcast_dimensions"], strict=True):
        if before[axis] == shape[place]:
            made[place] = axes[axis]
    return tuple(made)


def _reshape(equation: JaxprEqn, axes: Axes) -> Axes | None:
    return None if equation.params["dimensions"] is not None else reshaped(axes, equation.params["new_sizes"])


def _of_other_sizes(equation: JaxprEqn, axes: Axes) -> Axes:
    """Return the axes of a slice, or of a padded array."""
    result = aval_of(equation.outvars[0])
    pairs = zip(axes, _shape(equation), result.shape, strict=True)
    return tuple(axis if before == after else cut(axis, after) for axis, before, after in pairs)


def _padded(equation: JaxprEqn, axes: Axes) -> Axes:
    """Return the axes of a padded array; one that is cut at one end and padded at the other keeps its size alone."""
    result = aval_of(equation.outvars[0])
    config = zip(axes, result.shape, equation.params["padding_config"], strict=True)
    return tuple(axis if all(width == 0 for width in widths) else cut(axis, size) for axis, size, widths in config)


def _reversed(equation: JaxprEqn, axes: Axes) -> Axes:
    turned = lambda part: part._replace(stride=part.stride and -part.stride) if part.size != 1 else part
    dimensions = equation.params["dimensions"]
    return tuple(tuple(map(turned, axis)) if index in dimensions else axis for index, axis in enumerate(axes))


def _shape(equation: JaxprEqn) -> Sequence[Dim]:
    operand = aval_of(equation.invars[0])
    return operand.shape


_ARRANGING: dict[str, Callable[[JaxprEqn, Axes], Axes | None]] = {
    "broadcast_in_dim": _broadcast,
    "pad": _padded,
    "reshape": _reshape,
    "rev": _reversed,
    "slice": _of_other_sizes,
    "squeeze": _squeezed,
    "transpose": _transposed,
}


def cut(axis: Sequence[AxisPart], size: Dim) -> tuple[AxisPart, ...]:
    """Return an axis of which indices are left out, or to which others are added.

    >>> cut(axes_of("w", (6,))[0], 4)
    (AxisPart(source='w', axis=0, size=4, stride=None),)
    """
    known = [part for part in axis if part.source is not None]
    return (known[0]._replace(size=size, stride=None),) if len(known) == 1 else unknown(size)


def reshaped(axes: Axes, shape: Sequence[Dim]) -> Axes | None:
    """Return the axes of a value with another shape; None if they are no products of parts.

    >>> reshaped(axes_of("w", (2, 3)), (6,))
    ((AxisPart(source='w', axis=0, size=2, stride=1), AxisPart(source='w', axis=1, size=3, stride=1)),)
    """
    left = [part for axis in axes for part in axis][::-1]
    made = []
    for size in shape:
        own: list[AxisPart] = []
        rest = size
        while rest != 1:
            if not left:
                return None
            part = left.pop()
            if part.size == 1:
                own.append(part)
            elif (times := _quotient(rest, part.size)) is not None:
                own.append(part)
                rest = times
            elif (inner := _quotient(part.size, rest)) is not None and part.stride is not None:
                own.append(part._replace(size=rest, stride=part.stride * inner))
                left.append(part._replace(size=inner))
                rest = 1
            else:
                return None
        if not own and left and left[-1].size == 1:
            own.append(left.pop())
        made.append(tuple(own))
    return tuple(made) if all(part.size == 1 for part in left) else None


def _quotient(whole: Dim, part: Dim) -> Dim | None:
    """Return how often one size is in another one, None if that is no whole number, or unknown."""
    if whole == part:
        return 1
    if isinstance(part, int) and part == 0:
        return None
    times = whole // part
    return times if times * part == whole and times != 0 else None


def joined_parts(axes: Sequence[Sequence[AxisPart]]) -> list[AxisPart]:
    """Return the parts of consecutive axes in order; neighbours that are one part of an axis are one.

    >>> joined_parts(reshaped(axes_of("w", (6, 4)), (2, 3, 4)))
    [AxisPart(source='w', axis=0, size=6, stride=1), AxisPart(source='w', axis=1, size=4, stride=1)]
    """
    made: list[AxisPart] = []
    for part in (part for axis in axes for part in axis):
        last = made[-1] if made else None
        if (
            last is not None
            and last.stride is not None
            and part.stride is not None
            and (last.source, last.axis) == (part.source, part.axis)
            and last.stride == part.stride * part.size
        ):
            made[-1] = part._replace(size=last.size * part.size)
        else:
            made.append(part)
    return made
