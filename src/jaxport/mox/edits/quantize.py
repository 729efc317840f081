"""Quantization to int8: of weights, and of the results of blocks (a pair of quantize and dequantize).

`quantize_linear` and `dequantize_linear` are what ONNX's `QuantizeLinear` and `DequantizeLinear` compute, and are
exported as these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.blocks import boundary
from jaxport.errors import InvalidArgument
from jaxport.mox.match import Match
from jaxport.mox.replacement import Factory, Original, Replacement, factory
from jaxport.mox.uses import kernels

if TYPE_CHECKING:
    from jaxport.mox.mox import Mox

__all__ = ["calibrate", "dequantize_linear", "qdq", "quantize", "quantize_linear"]


def _scale_along(scale: Any, ndim: int, axis: int) -> Any:
    return scale if scale.ndim == 0 else jnp.reshape(scale, [-1 if a == axis else 1 for a in range(ndim)])


def _quantize_linear(x: Any, scale: Any, *, axis: int = -1) -> Any:
    """int8 of `x`: rounded to even, and clipped."""
    return jnp.clip(jnp.round(x / _scale_along(scale, x.ndim, axis % max(x.ndim, 1))), -128, 127).astype(jnp.int8)


def _dequantize_linear(q: Any, scale: Any, *, axis: int = -1) -> Any:
    """What int8 stands for."""
    return q.astype(scale.dtype) * _scale_along(scale, q.ndim, axis % max(q.ndim, 1))


quantize_linear = boundary(_quantize_linear, target="jaxport.mox.quantize_linear")
dequantize_linear = boundary(_dequantize_linear, target="jaxport.mox.dequantize_linear")


def quantize(*, axis: int | None = None) -> Factory:
    """Weight-only int8: each weight of the selected layers that is multiplied is stored as int8 with scales.

    The scales are symmetric, one per output channel: the axes that the input does not meet, or `axis`. Both are in
    `Mox.state`: training does not change them.

    Args:
      axis: the axis of the weights that has a scale for each index; by default their last output axis.

    Raises:
      InvalidArgument: a selected block has no such weight, or the program does not hold its value.

    >>> import jaxport
    >>> from flax import nnx
    >>> mox = jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(jnp.ones((1, 3)))
    >>> small = mox.sub("//Linear", jaxport.mox.quantize())
    >>> {path: (str(value.dtype), value.shape) for path, value in {**small.params, **small.state}.items()}
    {'bias': ('float32', (4,)), 'kernel.quantized': ('int8', (3, 4)), 'kernel.scale': ('float32', (4,))}
    """

    def make(match: Match) -> Replacement:
        found = kernels(match)
        if not found:
            raise InvalidArgument(
                f"`{match.shown}` has no weight to quantize",
                where="`quantize`",
                why=f"`{match.type}` multiplies none of its parameters",
            )
        params: dict[str, Any] = {}
        axes: list[tuple[str, int]] = []
        for kernel in found:
            value = np.asarray(match.param(kernel.name)).astype(kernel.dtype)
            made = kernel.outputs[-1] if axis is None and kernel.outputs else (axis or 0) % value.ndim
            others = tuple(a for a in range(value.ndim) if a != made)
            scale = np.maximum(np.abs(value).max(axis=others), np.finfo(np.float32).tiny) / 127
            scale = jnp.asarray(scale, value.dtype)
            axes.append((kernel.name, made))
            params[f"{kernel.name}.quantized"] = _quantize_linear(jnp.asarray(value), scale, axis=made)
            params[f"{kernel.name}.scale"] = scale
        return Replacement(_apply(tuple(axes)), params, name="jaxport.mox.quantize", trainable=False)

    return factory(make)


@cache
def _apply(axes: tuple[tuple[str, int], ...]) -> Callable[..., Any]:
    """The quantized layer, one function for all layers with these weights, so that it is traced once."""

    def quantized(original: Original, parts: Mapping[str, Any], *args: Any) -> Any:
        params = {
            name: dequantize_linear(parts[f"{name}.quantized"], parts[f"{name}.scale"], axis=axis)
            for name, axis in axes
        }
        return original(*args, params=params)

    return quantized


def qdq(scales: Mapping[str, float] | float) -> Factory:
    """Rounds the results of the selected blocks to int8 and back, as a quantized runtime would.

    Its derivative is that of a straight-through estimator: one where nothing is clipped, zero where something is.

    Args:
      scales: what 1 of int8 stands for: one number, or one per path (see `calibrate`).

    Raises:
      InvalidArgument: a block has no scale, or returns something else than one floating-point array.

    >>> import jaxport
    >>> mox = jaxport.make_mox(jnp.tanh)(jnp.ones(2))
    >>> mox.sub("//tanh", jaxport.mox.qdq(0.25))(jnp.asarray([0.1, 2.0]))
    Array([0., 1.], dtype=float32)
    """

    def make(match: Match) -> Callable[..., Any]:
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
                f"`{match.shown}` has no scale", where="`qdq`", instead="take the scales from `calibrate`, same query"
            )
        scale = jnp.asarray(value, avals[0].dtype)
        return lambda *args: _rounded(match(*args), scale)

    return factory(make)


@jax.custom_jvp
def _rounded(x: Any, scale: Any) -> Any:
    return dequantize_linear(quantize_linear(x, scale), scale)


@_rounded.defjvp
def _straight_through(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
    """Rounding is passed straight through; what is clipped has no derivative."""
    (x, scale), (moved, moved_scale) = primals, tangents
    result = _rounded(x, scale)
    inside = (jnp.round(x / scale) >= -128) & (jnp.round(x / scale) <= 127)
    of_scale = (result - jnp.where(inside, x, 0)) / scale
    return result, jnp.where(inside, moved, 0) + of_scale * moved_scale


def calibrate(mox: Mox, query: Any, *args: Any, **kwargs: Any) -> dict[str, float]:
    """The scale for `qdq` of each selected block, by path: its largest result for these arguments becomes 127.

    >>> import jaxport
    >>> mox = jaxport.make_mox(jnp.sin)(jnp.ones(2))
    >>> scales = jaxport.mox.calibrate(mox, "//sin", jnp.asarray([0.0, jnp.pi / 2]))
    >>> round(scales["sin"] * 127, 3)
    1.0
    """
    captured = mox.capture(query)(*args, **kwargs)
    largest = {
        path: max((float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(value)), default=0.0)
        for path, value in captured.items()
    }
    return {path: (value or 1.0) / 127 for path, value in largest.items()}
