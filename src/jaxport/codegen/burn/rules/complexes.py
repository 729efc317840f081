"""Complex numbers inside of a program, as pairs of real and imaginary parts in an axis behind the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules.registry import PRIMITIVES, Outs, primitive
from jaxport.codegen.burn.values import NotPrintable, TypedValue, is_complex, tensor
from jaxport.codegen.rust.tree import Literal, Vector, method, path_call
from jaxport.importer.values.host import is_dim

Params = dict[str, Any]
_OTHERWISE = "Burn has no complex numbers; pass their parts on"


def of_pairs(body: RustBody, name: str, values: Sequence[TypedValue], outs: Outs, params: Params) -> Any:
    """Return what a primitive makes of complex numbers by its rule for real ones, of which the parts are one axis more.

    Raises:
      NotPrintable: the primitive does not treat real and imaginary parts alike.
    """
    if name == "convert_element_type" and values[0].dtype == _real(outs[0].dtype):  # a real number
        (x,) = values
        return complex_(body, x, TypedValue(x.shape, x.dtype, known=x.dtype.type(0)), outs=outs)
    if name not in _ALIKE:
        raise NotPrintable(f"the primitive `{name}` of complex numbers", _OTHERWISE)
    rank = len(values[0].shape)
    pairs = [TypedValue((*out.shape, 2), _real(out.dtype)) for out in outs]
    made = PRIMITIVES[name](body, *map(_as_pairs, values), outs=pairs, **_ALIKE[name](rank, params))
    (result,) = made if isinstance(made, list) else [made]
    return TypedValue(result.shape[:-1], np.dtype(outs[0].dtype), result.node, result.sizes[:-1])


def _real(dtype: np.dtype) -> np.dtype:
    return np.dtype("float64" if np.dtype(dtype).itemsize == 16 else "float32")


def _as_pairs(value: TypedValue) -> TypedValue:
    if value.known is not None:  # zeros around a signal
        if value.number is None or is_dim(value.number) or value.number != 0:
            raise NotPrintable("complex numbers that are constants", _OTHERWISE)
        shape = (*value.shape, 2) if value.shape else ()
        return TypedValue(shape, _real(value.dtype), known=_real(value.dtype).type(0))
    return replace(value, shape=(*value.shape, 2), dtype=_real(value.dtype), sizes=(*value.sizes, 2))


def _same(_: int, params: Params) -> Params:
    return params


_ALIKE: dict[str, Callable[[int, Params], Params]] = {
    **dict.fromkeys(("add", "sub", "neg", "concatenate", "rev", "squeeze", "expand_dims", "copy"), _same),
    "reshape": lambda _, __: {},
    "transpose": lambda rank, params: {"permutation": (*params["permutation"], rank)},
    "broadcast_in_dim": lambda _, params: {
        "broadcast_dimensions": (*params["broadcast_dimensions"], len(params["shape"]))
    },
    "pad": lambda _, params: {"padding_config": [*params["padding_config"], (0, 0, 0)]},
    "slice": lambda _, params: {
        "start_indices": (*params["start_indices"], 0),
        "limit_indices": (*params["limit_indices"], 2),
        "strides": (*params["strides"], 1) if params["strides"] else None,
    },
}
"""Primitives that treat real and imaginary parts alike, and their parameters with one axis more."""


@primitive("complex")
def complex_(body: RustBody, real: TypedValue, imaginary: TypedValue, *, outs: Outs) -> TypedValue:
    rank = len(outs[0].shape)
    if not rank:
        raise NotPrintable("a complex number without axes", _OTHERWISE)
    parts = Vector([body.tensor(part) for part in (real, imaginary)])
    node = path_call(f"Tensor::stack::<{rank + 1}>", parts, Literal(str(rank)))
    return tensor(node, outs[0].shape, np.dtype(outs[0].dtype))


def _part(number: int) -> Callable[..., TypedValue]:
    def rule(body: RustBody, x: TypedValue, *, outs: Outs) -> TypedValue:
        rank = len(x.shape)
        if not rank:
            raise NotPrintable("a complex number without axes", _OTHERWISE)
        cut = method(body.tensor(x), "narrow", Literal(str(rank)), Literal(str(number)), Literal("1"))
        node = method(cut, "squeeze_dim", Literal(str(rank)), generics=str(rank))
        return tensor(node, outs[0].shape, np.dtype(outs[0].dtype))

    return rule


primitive("real")(_part(0))
primitive("imag")(_part(1))


@primitive("conj")
def conj(body: RustBody, x: TypedValue, *, outs: Outs, **_: object) -> TypedValue:
    if not is_complex(x.dtype):
        return complex_(body, x, TypedValue(x.shape, x.dtype, known=x.dtype.type(0)), outs=outs)
    return tensor(body.helper("conjugate", body.tensor(x)), outs[0].shape, np.dtype(outs[0].dtype))


@primitive("fft")
def fft(body: RustBody, x: TypedValue, *, outs: Outs, fft_type: object, fft_lengths: Sequence[Any]) -> TypedValue:
    kind, out = jax.lax.FftType(fft_type).name, outs[0]
    if len(fft_lengths) != 1:
        raise NotPrintable("a Fourier transform of several axes", "transform one axis after the other")
    node = body.tensor(x)
    if kind == "RFFT":
        made = body.helper("rfft", node, generics=f"{len(out.shape)}, {len(out.shape) + 1}")
    elif kind == "IRFFT":
        made = body.helper("irfft", node, body.size(fft_lengths[0]), generics=f"{len(out.shape) + 1}, {len(out.shape)}")
    else:
        made = body.helper("fourier", node, Literal("true" if kind == "IFFT" else "false"))
    return tensor(made, out.shape, np.dtype(out.dtype))


OF_PARTS = frozenset("complex real imag conj fft".split())
"""Primitives with a rule of their own for complex numbers."""
