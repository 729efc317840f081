"""Element types: casts, bits, and the types of few bits, whose values are held in tensors of wider ones.

A float8 is a float32 that has no more digits, an int4 an int8 from -8 to 7: casts round to the numbers that the type
has, and what is computed of such numbers is computed in the wider type, and cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from jax.typing import DTypeLike

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules.registry import PRIMITIVES, Outs, call, primitive
from jaxport.codegen.burn.values import NotPrintable, TypedValue, dtype_name, held, is_narrow, kind_of, tensor
from jaxport.codegen.rust.tree import Borrow, Identifier, Invocation, Literal, RustExpression, method, path_call
from jaxport.importer.values.host import is_dim
from jaxport.importer.values.recording import Step
from jaxport.jaxprs import Shape

_OTHERWISE = "Burn has no such numbers; cast them in the model"


@primitive("convert_element_type")
def convert_element_type(body: RustBody, x: TypedValue, *, outs: Outs, new_dtype: DTypeLike) -> TypedValue:
    return converted(body, x, np.dtype(new_dtype))


def converted(body: RustBody, x: TypedValue, dtype: np.dtype) -> TypedValue:
    """Return a value with another element type."""
    if x.dtype == dtype:
        return x
    if x.known is not None:
        if not isinstance(x.known, np.ndarray):
            known = x.known if is_dim(x.known) else _cast(np.asarray(x.known), dtype)[()]
            return TypedValue(x.shape, dtype, known=known)
        return TypedValue(x.shape, dtype, known=_cast(x.known, dtype))
    node, before, after = body.compact(x), x.kind, kind_of(dtype)
    if is_narrow(dtype) and before != "Bool":
        return TypedValue(x.shape, dtype, _narrowed(body, node, x.dtype, dtype), x.sizes)
    if after == "Bool":
        zero = Literal("0.0" if before == "Float" else "0")
        return TypedValue(x.shape, dtype, method(node, "not_equal_elem", zero), x.sizes)
    if isinstance(node, Invocation) and node.path == "Tensor::arange" and after == "Int" and dtype.itemsize >= 4:
        return TypedValue(x.shape, dtype, path_call(node.path, node.arguments[0], body.options(dtype)), x.sizes)
    return TypedValue(x.shape, dtype, _cast_to(node, x.dtype, dtype), x.sizes)


def _cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    import jax

    return np.asarray(jax.lax.convert_element_type(array, dtype))


def _cast_to(node: RustExpression, before: np.dtype, after: np.dtype) -> RustExpression:
    """Return a tensor of the type that holds elements of a type."""
    if held(before) == held(after):
        return node
    cast = method(node, "cast", Literal(f"{kind_of(after)}DType::{dtype_name(after)}"))
    cast.casts_booleans = kind_of(before) == "Bool"
    return cast


def _narrowed(body: RustBody, node: RustExpression, before: np.dtype, after: np.dtype) -> RustExpression:
    """Return numbers as those of a type of few bits, in the tensor that holds them."""
    if kind_of(after) == "Float":
        node = _cast_to(node, before, np.dtype("float32")) if kind_of(before) == "Int" else node
        return body.helper("rounded_to", node, Borrow(_grid(body, after)))
    limits = ml_dtypes.iinfo(after)
    if kind_of(before) == "Float":  # as XLA converts them; ONNX's casts go by way of int32
        return _cast_to(method(node, "clamp", body.literal(limits.min, before), body.literal(limits.max, before)),
            before, after)  # fmt: skip
    called = "low_bits" if limits.min == 0 else "signed_low_bits"
    return _cast_to(body.helper(called, node, Literal(str(limits.bits))), before, after)


def _grid(body: RustBody, dtype: np.dtype) -> RustExpression:
    """Return the constant that says which numbers a type of few bits has."""
    if np.dtype(dtype).name == "float8_e8m0fnu":
        raise NotPrintable("rounding to float8_e8m0fnu as JAX does", "cast as ONNX does")
    name = np.dtype(dtype).name.upper()
    body.helpers.add(name)
    return Identifier(name)


@primitive("reduce_precision")
def reduce_precision(
    body: RustBody, x: TypedValue, *, outs: Outs, exponent_bits: int, mantissa_bits: int
) -> TypedValue:
    narrow = {(5, 10): "F16", (8, 7): "BF16", (8, 23): "F32"}.get((exponent_bits, mantissa_bits))
    if narrow is None:
        raise NotPrintable(f"rounding to {mantissa_bits} bits", "round to float16 or bfloat16")
    rounded = method(body.compact(x), "cast", Literal(f"FloatDType::{narrow}"))
    node = method(rounded, "cast", Literal(f"FloatDType::{dtype_name(x.dtype)}"))
    return TypedValue(tuple(outs[0].shape), np.dtype(outs[0].dtype), node, x.sizes)


@primitive("bitcast_convert_type")
def bitcast_convert_type(body: RustBody, x: TypedValue, *, outs: Outs, new_dtype: DTypeLike) -> TypedValue:
    before, after = np.dtype(x.dtype), np.dtype(new_dtype)
    if before.itemsize != after.itemsize or "Bool" in (x.kind, kind_of(after)):
        raise NotPrintable("reading the bits of numbers as those of another width", "cast them in the model")
    if is_narrow(before) or is_narrow(after):
        raise NotPrintable(f"reading the bits of {before.name} as {after.name}", _OTHERWISE)
    rank, out = x.rank, outs[0]
    node = body.helper(
        "bitcast",
        body.tensor(x),
        Literal(f"DType::{dtype_name(after)}"),
        generics=f"{rank}, {x.kind}, {kind_of(after)}",
    )
    return tensor(node, out.shape, after)


@call("helper.to_power_of_two")
def to_power_of_two(body: RustBody, step: Step, x: TypedValue, saturate: int, round_mode: str) -> TypedValue | None:
    if x.node is None:
        return None
    least = {"up": "1", "nearest": "1 << 22", "down": "1 << 23"}[round_mode]
    number = x.node if x.kind == "Float" else converted(body, x, np.dtype("float32")).node
    assert number is not None
    node = body.helper("to_power_of_two", number, Literal(least), Literal("true" if saturate else "false"))
    return TypedValue(x.shape, np.dtype(step.outputs.dtype), node, x.sizes)


# Computing with few bits
# -----------------------------------------------------------------------------------------------


def in_wider_types(
    body: RustBody, name: str, values: Sequence[TypedValue], outs: Outs, params: dict[str, object]
) -> list[TypedValue]:
    """Return what a primitive makes of numbers of few bits: what it makes of them in the types that hold them, cast
    back.

    Raises:
      NotPrintable: the wider type has other digits on the way, as in a sum.
    """
    narrow = next(np.dtype(one.dtype) for one in (*values, *outs) if is_narrow(one.dtype))
    if name not in _MOVING and name not in _ROUNDED_ONCE[kind_of(narrow)]:
        raise NotPrintable(f"the primitive `{name}` of {narrow.name}", _OTHERWISE)
    if name == "gather":
        params = params | {"fill_value": _outside(narrow, params.get("fill_value"))}
    wide = [_Wide(tuple(out.shape), held(out.dtype)) for out in outs]
    made = PRIMITIVES[name](body, *map(_widened, values), outs=wide, **params)
    results = [made] if isinstance(made, TypedValue) else list(made)
    back = _relabelled if name in _MOVING else lambda value, dtype: converted(body, value, dtype)
    return [back(value, np.dtype(out.dtype)) for value, out in zip(results, outs, strict=True)]


def _outside(dtype: np.dtype, wanted: object) -> object:
    """Return what stands where indices are outside, as JAX has it for a type of few bits, as a number of the wider
    one.
    """
    if wanted is None:
        limits = ml_dtypes.iinfo(dtype) if kind_of(dtype) == "Int" else None
        wanted = np.nan if limits is None else limits.min or limits.max
    return np.asarray(wanted).astype(dtype).astype(held(dtype))[()]


@dataclass(frozen=True)
class _Wide:
    """The type of a result in the wider type."""

    shape: Shape
    dtype: np.dtype


def _widened(value: TypedValue) -> TypedValue:
    return _relabelled(value, held(value.dtype))


def _relabelled(value: TypedValue, dtype: np.dtype) -> TypedValue:
    """Return a value whose numbers are those of another type already."""
    if value.dtype == dtype:
        return value
    known = value.known
    if known is not None and not is_dim(known):
        array = np.asarray(known).astype(dtype)
        known = array if isinstance(known, np.ndarray) else array[()]
    return replace(value, dtype=dtype, known=known)


_MOVING = frozenset(
    "broadcast_in_dim clamp concatenate copy copy_p dynamic_slice dynamic_update_slice eq expand_dims gather ge gt "
    "is_finite le le_to lt lt_to max min ne optimization_barrier pad reshape rev scatter select_n slice split squeeze "
    "stack stop_gradient tile transpose".split()
)
"""Primitives whose results are operands, or how these compare."""
_OF_NUMBERS = frozenset("abs add add_any div mul neg rem sign square sub".split())
_ROUNDED_ONCE = {"Float": _OF_NUMBERS | {"sqrt"}, "Int": _OF_NUMBERS | {"and", "not", "or", "xor"}}
"""Primitives whose results are right if they are rounded once, behind a wider type."""
OF_TYPES = frozenset(("convert_element_type", "bitcast_convert_type"))
"""Primitives whose rules know the types of few bits."""
