"""Quantization: of weights to few bits, and of the results of blocks to int8 (a pair of quantize and dequantize).

`quantize_linear` and `dequantize_linear` are what ONNX's `QuantizeLinear` and `DequantizeLinear` compute, and are
exported as these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.blocks.marking.boundary import boundary
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, PythonFunction
from jaxport.jaxprs.meshes import on_host
from jaxport.mox.edits.checks import check_number
from jaxport.mox.edits.lora import is_adapted
from jaxport.mox.expressions import Match, Query, factory
from jaxport.mox.querying.kernels import kernels_to
from jaxport.mox.sharding import beside
from jaxport.mox.substitution.replacement import Factory, Original, Replacement

if TYPE_CHECKING:
    from jaxport.mox.expressions import Mox


def _along(values: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """Spread scales or zero points over an array: one, one per index of an axis, or one per block along it."""
    if values.ndim == 0:
        return values
    if not block:
        return jnp.reshape(values, [-1 if a == axis else 1 for a in range(len(shape))])
    return jax.lax.slice_in_dim(jnp.repeat(values, block, axis=axis), 0, shape[axis], axis=axis)


def _quantize_linear(x: Array, scale: Array, *, axis: int = -1) -> Array:
    """Return `x` as int8, rounded to even and clipped."""
    return jnp.clip(jnp.round(x / _along(scale, x.shape, axis % max(x.ndim, 1), 0)), -128, 127).astype(jnp.int8)


def _dequantize_linear(
    q: Array, scale: Array, zero_point: Array | None = None, *, axis: int = -1, block: int = 0
) -> Array:
    """Return the dequantized values; with `block`, that many values along the axis share a scale."""
    axis = axis % max(q.ndim, 1)
    values = q.astype(scale.dtype)
    if zero_point is not None:
        values = values - _along(zero_point.astype(scale.dtype), q.shape, axis, block)
    return values * _along(scale, q.shape, axis, block)


quantize_linear = boundary(_quantize_linear, target="jaxport.mox.quantize_linear")
dequantize_linear = boundary(_dequantize_linear, target="jaxport.mox.dequantize_linear")

# The least and the greatest value of each format; of floating-point ones both are finite.
_RANGES = {"int8": (-128, 127), "int4": (-8, 7), "float8_e4m3fn": (-448, 448), "float8_e5m2": (-57344, 57344)}


def quantize(
    *, axis: int | None = None, dtype: str = "int8", group: int | None = None, symmetric: bool = True
) -> Factory:
    """Quantize weights only: store each weight that the selected layers multiply by in few bits, with scales.

    There is one scale per output channel (each index of all axes that are not contracted; of a table that is a head,
    too, each row) or per index of `axis`; with `group`, one for each group of weights along the contracted axis, or of
    a row. The stored arrays are in `Mox.state`: training does not change them.

    Args:
      axis: the axis of the weights that has a scale for each index; by default all that are not contracted.
      dtype: "int8", "int4", "float8_e4m3fn" or "float8_e5m2".
      group: how many weights along the last input axis share a scale; it need not divide their number.
      symmetric: whether zero is stored as zero; otherwise the levels span the range from the smallest to the largest
        weight, and a zero point is stored as well. Only for integers.

    Raises:
      InvalidArgument: a selected block has no such weight, or the program does not hold its value; the format is
        unknown, floating-point and not symmetric, or has groups and an axis.

    >>> import jax.numpy as jnp
    >>> import jaxport
    >>> from flax import nnx
    >>> mox = jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(jnp.ones((1, 3)))
    >>> small = mox.sub("//Linear", jaxport.mox.quantize())
    >>> {path: (str(value.dtype), value.shape) for path, value in {**small.params, **small.state}.items()}
    {'bias': ('float32', (4,)), 'kernel.quantized': ('int8', (3, 4)), 'kernel.scale': ('float32', (4,))}
    >>> groups = mox.sub("//Linear", jaxport.mox.quantize(dtype="int4", group=2, symmetric=False))
    >>> {path: (str(value.dtype), value.shape) for path, value in groups.state.items()}
    {'kernel.quantized': ('int4', (3, 4)), 'kernel.scale': ('float32', (2, 4)), 'kernel.zero_point': ('int4', (2, 4))}
    """
    _check_format(axis, dtype, group, symmetric)

    def make(match: Match) -> Replacement:
        chosen = kernels_to(match, "quantize")
        params: dict[str, Array] = {}
        axes: list[tuple[str, tuple[int, ...], int]] = []
        for kernel in chosen:
            if is_adapted(match, kernel.path):
                raise InvalidArgument(
                    f"the weight of `{match.shown}` has adapters, which would be quantized with it",
                    where="`quantize`",
                    why="the layer is not a plain product, so it is given the adapted weight",
                    instead="quantize first, then add adapters; or merge them (`merge_lora`)",
                )
            weight = match.param(kernel.name)
            value = on_host(weight).astype(kernel.dtype)
            if axis is not None and not -value.ndim <= axis < value.ndim:
                raise InvalidArgument(
                    f"axis={axis} is out of range",
                    where="`quantize`",
                    why=f"`{kernel.path}` of `{match.shown}` has {value.ndim} axes",
                    instead="leave `axis` out, for one scale per output channel",
                )
            # Of a tied table the rows are looked up, and multiplied by as the columns of a head.
            rows, columns = (
                (kernel.inputs, kernel.outputs or kernel.inputs) if kernel.is_table else (kernel.outputs, kernel.inputs)
            )
            made = tuple(sorted((*kernel.batch, *rows))) if axis is None else (axis % value.ndim,)
            made = made if group is None else columns[-1:]
            axes.append((kernel.name, made, group or 0))
            stored = _stored(value, made, dtype, group, symmetric)
            params |= {f"{kernel.name}.{part}": beside(array, weight) for part, array in stored}
        return Replacement(_apply(tuple(axes)), params, name="jaxport.mox.quantize", trainable=False)

    return factory(make)


def _check_format(axis: int | None, dtype: str, group: int | None, symmetric: bool) -> None:
    why = ""
    if axis is not None and type(axis) is not int:
        why = f"axis={axis!r} is not the number of an axis"
    elif dtype not in _RANGES:
        why = f"`{dtype}` is not one of {', '.join(f'`{known}`' for known in _RANGES)}"
    elif dtype.startswith("float") and not symmetric:
        why = f"`{dtype}` has no zero point: it is floating-point"
    elif group is not None and (type(group) is not int or group < 1 or axis is not None):
        why = (
            "groups are along the contracted axis"
            if type(group) is int and group >= 1
            else f"group={group!r} is not a size"
        )
    if why:
        raise InvalidArgument("the weights cannot be stored in this way", where="`quantize`", why=why)


def _stored(
    value: np.ndarray, axes: tuple[int, ...], dtype: str, group: int | None, symmetric: bool
) -> Sequence[tuple[str, Array]]:
    """Return the stored form of a weight: the values in few bits, the scale, and the zero point if it is not zero."""
    wide = value.astype(np.float32)
    least, greatest = _RANGES[dtype]
    others = tuple(a for a in range(wide.ndim) if a not in axes)
    if group is None:
        # Zero is among the levels; a weight may have no elements.
        low, high = wide.min(axis=others, initial=0), wide.max(axis=others, initial=0)
    else:
        starts = np.arange(0, wide.shape[axes[0]], group)
        low, high = np.minimum.reduceat(wide, starts, axis=axes[0]), np.maximum.reduceat(wide, starts, axis=axes[0])
    tiny = np.finfo(np.float32).tiny
    if symmetric:
        scale = np.maximum(np.maximum(np.abs(low), np.abs(high)) / greatest, tiny).astype(value.dtype)
        zero = None
    else:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = np.maximum((high - low) / (greatest - least), tiny).astype(value.dtype)
        zero = np.clip(np.rint(least - low / np.maximum(scale.astype(np.float32), tiny)), least, greatest)
    if group is None:
        spread = lambda parts: np.expand_dims(parts, others)
    else:
        spread = lambda parts: np.asarray(_along(parts, wide.shape, axes[0], group))
    levels = wide / np.maximum(spread(scale.astype(np.float32)), tiny)
    levels = levels if zero is None else levels + spread(zero)
    levels = levels if dtype.startswith("float") else np.rint(levels)
    # `np.clip` first: a cast to few bits wraps.
    stored = np.clip(levels, least, greatest).astype(jnp.dtype(dtype))
    parts = [("quantized", jnp.asarray(stored)), ("scale", jnp.asarray(scale))]
    return parts if zero is None else [*parts, ("zero_point", jnp.asarray(zero.astype(jnp.dtype(dtype))))]


@cache
def _apply(plans: tuple[tuple[str, tuple[int, ...], int], ...]) -> PythonFunction:
    """Return the quantized layer, one function for all layers with these weights, so that it is traced once."""

    def quantized(original: Original, parts: Mapping[str, Array], *args: object) -> object:
        params = {}
        for name, axes, block in plans:
            stored = [
                parts[f"{name}.{part}"] for part in ("quantized", "scale", "zero_point") if f"{name}.{part}" in parts
            ]
            params[name] = _dequantized(stored, axes, block)
        return original(*args, params=params)

    return quantized


def _dequantized(stored: Sequence[Array], axes: tuple[int, ...], block: int) -> Array:
    """Return a weight from its stored form, with a scale for each index of `axes`, or for each block along the only
    one.

    ONNX has scales along one axis: several are one meanwhile.
    """
    q, *factors = stored
    if block:
        return dequantize_linear(*stored, axis=axes[0], block=block)
    if len(axes) < 2:
        return dequantize_linear(*stored, axis=axes[0] if axes else -1)
    order = (*(axis for axis in range(q.ndim) if axis not in axes), *axes)
    moved = jnp.transpose(q, order)
    flat = moved.reshape(*moved.shape[: q.ndim - len(axes)], -1)
    made = dequantize_linear(flat, *(jnp.reshape(factor, -1) for factor in factors), axis=-1)
    return jnp.transpose(made.reshape(moved.shape), np.argsort(order).tolist())


def qdq(scales: Mapping[str, float] | float) -> Factory:
    """Round the results of the selected blocks to int8 and back, as a quantized runtime would.

    Its derivative is that of a straight-through estimator: one where nothing is clipped, zero where something is.

    Args:
      scales: the size of one int8 step: one number, or one per path (see `calibrate`).

    Raises:
      InvalidArgument: a scale is not a positive number; a block has no scale, or does not return exactly one
        floating-point array.

    >>> import jax.numpy as jnp
    >>> import jaxport
    >>> mox = jaxport.make_mox(jnp.tanh)(jnp.ones(2))
    >>> mox.sub("//tanh", jaxport.mox.qdq(0.25))(jnp.asarray([0.1, 2.0]))
    Array([0., 1.], dtype=float32)
    """
    for scale in scales.values() if isinstance(scales, Mapping) else (scales,):
        check_number(scale, "scale", "`qdq`", positive=True)

    def make(match: Match) -> PythonFunction:
        avals = match.out_avals
        if len(avals) != 1 or not jnp.issubdtype(avals[0].dtype, jnp.floating):
            raise InvalidArgument(
                f"`{match.shown}` returns {', '.join(a.str_short() for a in avals)}",
                where="`qdq`",
                why="only one floating-point array is rounded",
            )
        value = scales.get(match.path) if isinstance(scales, Mapping) else scales
        if value is None:
            raise InvalidArgument(
                f"`{match.shown}` has no scale",
                where="`qdq`",
                instead="take the scales from `calibrate` with the same query",
            )
        scale = jnp.asarray(value, avals[0].dtype)
        return lambda *args: _rounded(match(*args), scale)

    return factory(make)


@jax.custom_jvp
def _rounded(x: Array, scale: Array) -> Array:
    return dequantize_linear(quantize_linear(x, scale), scale)


@_rounded.defjvp
def _straight_through(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    """Pass derivatives straight through the rounding; clipped values have none."""
    (x, scale), (moved, moved_scale) = primals, tangents
    result = _rounded(x, scale)
    inside = (jnp.round(x / scale) >= -128) & (jnp.round(x / scale) <= 127)
    of_scale = (result - jnp.where(inside, x, 0)) / scale
    return result, jnp.where(inside, moved, 0) + of_scale * moved_scale


def calibrate(mox: Mox, query: Query, *args: object, **kwargs: object) -> dict[str, float]:
    """Return the scale for `qdq` of each selected block, by path: its largest result for these arguments becomes 127.

    >>> import jax.numpy as jnp
    >>> import jaxport
    >>> mox = jaxport.make_mox(jnp.sin)(jnp.ones(2))
    >>> scales = jaxport.mox.calibrate(mox, "//sin", jnp.asarray([0.0, jnp.pi / 2]))
    >>> round(scales["sin"] * 127, 3)
    1.0
    """
    captured = mox.capture(mox.select(query).layers())(*args, **kwargs)
    largest = {
        path: max((float(jnp.max(jnp.abs(leaf), initial=0)) for leaf in jax.tree.leaves(value)), default=0.0)
        for path, value in captured.items()
    }
    return {path: (value or 1.0) / 127 for path, value in largest.items()}
