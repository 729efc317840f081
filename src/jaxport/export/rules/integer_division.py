"""Floor division and remainders of integers in few operators.

JAX computes with C's quotient and remainder, and corrects both where the signs differ. ONNX's `Mod` has the sign of the
divisor already, as Python's; a quotient is one too large where the product with the divisor exceeds the dividend.
Nothing is to correct where nothing is negative. The corrections are recognised when they are selected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from jaxport.export.emit import intervals
from jaxport.export.emit.value import Value, beside

if TYPE_CHECKING:
    from jaxport.export.emit.emitter import Emitter


def corrected(op: Emitter, condition: Value, changed: Value, plain: Value) -> Value | None:
    """Return `where(condition, changed, plain)` if it is a floor division or a remainder, else None.

    Args:
      op: the emitter.
      condition: whether the correction applies.
      changed: the remainder plus the divisor, or the quotient minus one.
      plain: the remainder or the quotient.
    """
    if plain.dtype.kind not in "iu" or condition.origin is None or condition.origin.op_type != "And":
        return None
    divisor = beside(changed, "Add", plain)
    if divisor is not None:
        return _remainder(op, condition, plain, divisor)
    one = beside(changed, "Sub", plain)
    if one is None or one.constant is None or not (one.constant == 1).all():
        return None
    return _quotient(op, condition, changed, plain)


def _remainder(op: Emitter, condition: Value, plain: Value, divisor: Value) -> Value | None:
    """Match `where((plain < 0) != (divisor < 0) and plain != 0, plain + divisor, plain)`."""
    signs = _beside_nonzero(condition, plain)
    sides = _unequal(signs)
    if sides is None or not _is_negative(sides[0], plain) or not _is_negative(sides[1], divisor):
        return None
    if plain.dtype.kind == "u":
        return plain
    origin = plain.origin
    if origin is not None and origin.op_type == "Where":  # the divisor may be 0
        zero, x, inner = origin.operands
        found = _divided(inner)
        if zero is None or x is None or found is None or not _is_same(x, found[0]):
            return None
        safe = found[1].origin.operands if found[1].origin and found[1].origin.op_type == "Where" else ()
        is_safe = len(safe) == 3 and safe[1] is not None and _equals(safe[1], 1) and _is_same(safe[2], divisor)
        return op.Where(zero, x, op.Mod(*found)) if is_safe else None
    found = _divided(plain)
    return op.Mod(*found) if found is not None and _equals(found[1], divisor) else None


def _quotient(op: Emitter, condition: Value, changed: Value, plain: Value) -> Value | None:
    """Match `where(sign(x) != sign(divisor) and x % divisor != 0, plain - 1, plain)`, for a positive constant
    divisor.
    """
    is_divided = plain.origin is not None and plain.origin.op_type == "Div"
    x, divisor = plain.origin.operands if is_divided and plain.origin is not None else (plain, _one(plain))
    if x is None or divisor is None or divisor.constant is None or not (divisor.constant > 0).all():
        return None
    origin = condition.origin
    assert origin is not None
    for one, other in (origin.operands, origin.operands[::-1]):
        sides, rest = _unequal(one), _unequal(other)
        remainder = None if rest is None or not _equals(rest[1], 0) else _divided(rest[0])
        signs = sides is not None and _is_computed(sides[0], "Sign", x) and _equals(sides[1], 1)
        if remainder is None or not signs or not _is_same(remainder[0], x) or not _equals(remainder[1], divisor):
            continue
        if not is_divided or intervals.within(x, 0, int(jnp.iinfo(x.dtype).max)):
            return plain
        return op.Where(op.Less(x, op.Mul(plain, divisor)), changed, plain)
    return None


def _divided(remainder: Value | None) -> tuple[Value, Value] | None:
    """Return the operands of C's remainder, which is written `x - x / divisor * divisor`."""
    if remainder is None or remainder.origin is None or remainder.origin.op_type != "Sub":
        return None
    x, product = remainder.origin.operands
    if (
        x is not None and product is not None and _is_same(x, product)
    ):  # a quotient by one is the dividend, and has no operator
        return x, _one(x)
    if x is None or product is None or product.origin is None or product.origin.op_type != "Mul":
        return None
    quotient, divisor = product.origin.operands
    again = beside(quotient, "Div", x)
    return (x, divisor) if divisor is not None and again is not None and _equals(again, divisor) else None


def _one(value: Value) -> Value:
    return Value(value.dtype, (), constant=np.ones((), value.dtype))


def _beside_nonzero(condition: Value, value: Value) -> Value | None:
    """Return the other operand of a conjunction with `value != 0`."""
    assert condition.origin is not None
    for one, other in (condition.origin.operands, condition.origin.operands[::-1]):
        sides = _unequal(one)
        if sides is not None and _is_same(sides[0], value) and _equals(sides[1], 0):
            return other
    return None


def _unequal(value: Value | None) -> tuple[Value, Value] | None:
    """Return the operands of `x != y`."""
    inner = value.origin.operands[0] if value is not None and value.origin and value.origin.op_type == "Not" else None
    if inner is None or inner.origin is None or inner.origin.op_type != "Equal":
        return None
    x, y = inner.origin.operands
    return None if x is None or y is None else (x, y)


def _is_negative(value: Value, of: Value) -> bool:
    """Whether a value is `of < 0`."""
    if value.constant is not None and of.constant is not None:
        return bool((value.constant == (of.constant < 0)).all())
    zero = beside(value, "Less", of)
    return zero is not None and _equals(zero, 0)


def _is_computed(value: Value, op_type: str, operand: Value) -> bool:
    """Whether a value is computed as `op_type(operand)`."""
    return value.origin is not None and value.origin.op_type == op_type and _is_same(value.origin.operands[0], operand)


def _is_same(one: Value | None, other: Value) -> bool:
    return one is other or (one is not None and one._ir is not None and one._ir is other._ir)


def _equals(value: Value, other: Value | int) -> bool:
    """Whether all elements of two values are known to be equal."""
    if isinstance(other, Value):
        if other.constant is None or value.constant is None:
            return _is_same(value, other)
        other_array = other.constant
    else:
        other_array = np.asarray(other)
    return value.constant is not None and value.constant.size > 0 and bool((value.constant == other_array).all())
