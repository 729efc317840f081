"""Arithmetic, comparisons and choices, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules.casting import converted
from jaxport.codegen.burn.rules.registry import PRIMITIVES, Outs, primitive
from jaxport.codegen.burn.values import NotPrintable, TypedValue, same
from jaxport.codegen.rust.tree import (
    Binary,
    Identifier,
    Invocation,
    Literal,
    Method,
    RustExpression,
    Unary,
    method,
    path_call,
)
from jaxport.importer.values.host import Dim, is_dim
from jaxport.jaxprs.dims import known

METHODS = (
    "exp log log1p sqrt tanh sin cos tan sinh cosh asin acos atan atanh abs floor ceil erf is_finite square".split()
)
"""Primitives of one operand that are methods of tensors."""
HELPERS = ("expm1", "erf_inv", "erfc", "cbrt", "exp2", "asinh", "acosh")
"""Primitives of one operand that are helper functions."""
One = Callable[[RustBody, TypedValue, RustExpression], RustExpression]
UNARY: dict[str, One] = {
    **{name: lambda _, _x, node, name=name: method(node, name) for name in METHODS},
    **{name: lambda body, _x, node, name=name: body.helper(name, node) for name in HELPERS},
    "neg": lambda _, _x, node: Unary("-", node),
    "sign": lambda body, x, node: body.helper("sign", node) if x.kind == "Float" else method(node, "sign"),
    "rsqrt": lambda _, _x, node: method(method(node, "sqrt"), "recip"),
    "logistic": lambda _, _x, node: path_call("activation::sigmoid", node),
    "one_minus_square": lambda _, _x, node: Binary(Literal("1.0"), "-", method(node, "square")),
    "not": lambda _, x, node: negated(node) if x.kind == "Bool" else method(node, "bitwise_not"),
}
"""What primitives of one operand are, of its value and the expression of its tensor."""


def result(node: RustExpression, out: Any, sizes: Sequence[Dim]) -> TypedValue:
    """Return the value of an operator whose operands have these sizes."""
    return TypedValue(tuple(out.shape), np.dtype(out.dtype), node, tuple(sizes))


def joined_sizes(out: Any, values: Sequence[TypedValue]) -> tuple[Dim, ...]:
    """Return the sizes that the result of broadcasting tensors has."""
    shape = tuple(out.shape)
    sizes: list[Dim] = []
    for axis, size in enumerate(shape):
        whole = any(value.node is not None and not _is_one(value.sizes[axis]) for value in values)
        sizes.append(size if whole else 1)
    return tuple(sizes)


def _is_one(size: Dim) -> bool:
    return not is_dim(size) and size == 1


def _unary(make: One) -> Callable[..., TypedValue]:
    return lambda body, x, *, outs: result(make(body, x, body.compact(x)), outs[0], x.sizes)


for _name, _make in UNARY.items():
    primitive(_name)(_unary(_make))


@primitive("integer_pow")
def integer_pow(body: RustBody, x: TypedValue, *, outs: Outs, y: int) -> TypedValue:
    if y == 2:
        return result(method(body.compact(x), "square"), outs[0], x.sizes)
    if y == -1 and x.kind == "Float":
        return result(method(body.compact(x), "recip"), outs[0], x.sizes)
    node = method(body.compact(x), "powi_scalar", Literal(str(abs(y))))
    return result(method(node, "recip") if y < 0 else node, outs[0], x.sizes)


@primitive("round")
def round_(body: RustBody, x: TypedValue, *, outs: Outs, rounding_method: Any) -> TypedValue:
    if int(rounding_method) == 1:  # to nearest even
        return result(method(body.compact(x), "round"), outs[0], x.sizes)
    return result(body.helper("round_away_from_zero", body.compact(x)), outs[0], x.sizes)


def negated(mask: RustExpression) -> RustExpression:
    """Return a mask that is true where another is false."""
    if isinstance(mask, Method) and mask.name == "bool_not":
        return mask.receiver
    return method(mask, "bool_not")


@primitive("copy", "copy_p", "stop_gradient", "optimization_barrier", "pvary", "sharding_constraint")
def copy(body: RustBody, *values: TypedValue, outs: Outs, **_: object) -> TypedValue | list[TypedValue]:
    return [*values] if len(values) != 1 else values[0]


# Two operands ------------------------------------------------------------------------------------------------------


def scalar_of(value: TypedValue) -> Any:
    """Return the number that all elements of a known value are."""
    return value.number if value.known is not None else None


def joined(
    body: RustBody,
    outs: Outs,
    make: Callable[[RustExpression, RustExpression], RustExpression],
    a: TypedValue,
    b: TypedValue,
    *others: TypedValue,
) -> TypedValue:
    """Return what two operands make, as tensors that broadcast to one another, and to others."""
    sizes = joined_sizes(outs[0], [*map(_sized, (a, b, *others))])
    return result(make(body.compact(a), body.compact(b)), outs[0], sizes)


def _sized(value: TypedValue) -> TypedValue:
    """Return a value with the sizes of the tensor that it becomes."""
    if value.node is not None:
        return value
    if isinstance(value.known, np.ndarray) and value.known.size > 1:
        return TypedValue(value.shape, value.dtype, Literal(""), value.shape)
    return TypedValue(value.shape, value.dtype, Literal(""), (1,) * len(value.shape))


def _arithmetic(symbol: str) -> Callable[..., TypedValue]:
    def rule(body: RustBody, a: TypedValue, b: TypedValue, *, outs: Outs, **_: object) -> TypedValue:
        folded = _of_dims(symbol, a, b, outs[0])
        if folded is not None:
            return folded
        x, y = scalar_of(a), scalar_of(b)
        for number, other, is_second in ((y, a, True), (x, b, False)):
            if number is not None and other.node is not None and _has_no_effect(symbol, number, other, is_second):
                return TypedValue(tuple(outs[0].shape), other.dtype, other.node, other.sizes)
        if y is not None and a.node is not None:
            return result(_with_number(body, a.node, symbol, y, b.dtype), outs[0], a.sizes)
        if x is not None and b.node is not None and symbol in "+*-":
            number = body.literal(x, a.dtype)
            if symbol == "-":  # a number first leaves the type of the result open
                return result(Binary(Unary("-", b.node), "+", number), outs[0], b.sizes)
            return result(_with_number(body, b.node, symbol, x, a.dtype), outs[0], b.sizes)
        return joined(body, outs, lambda left, right: Binary(left, symbol, right), a, b)

    return rule


def _with_number(body: RustBody, node: RustExpression, symbol: str, number: Any, dtype: np.dtype) -> RustExpression:
    """Return a tensor and a number, put together: a negative number is subtracted instead of added, and -1 is a
    sign.
    """
    if not is_dim(number) and number < 0:
        if symbol == "*" and number == -1:
            return Unary("-", node)
        positive = -number if dtype.kind not in "iu" else -int(number)
        if symbol in "+-" and (dtype.kind not in "iu" or positive <= np.iinfo(dtype).max):
            return Binary(node, "+" if symbol == "-" else "-", body.literal(positive, dtype))
    return Binary(node, symbol, body.literal(number, dtype))


def _has_no_effect(symbol: str, number: object, other: TypedValue, is_second: bool) -> bool:
    """Whether an operation with a number leaves all values as they are; `x + 0.0` makes 0 of -0."""
    if is_dim(number):
        return False
    if symbol == "*":
        return bool(number == 1)
    return bool(number == 0) and other.kind == "Int" and (symbol == "+" or is_second)


def _of_dims(symbol: str, a: TypedValue, b: TypedValue, out: Any) -> TypedValue | None:
    """Return a result of sizes, as a size."""
    x, y = scalar_of(a), scalar_of(b)
    if x is None or y is None or not (is_dim(x) or is_dim(y)):
        return None
    if not all(is_dim(n) or n == int(n) for n in (x, y)):
        return None
    x, y = (n if is_dim(n) else int(n) for n in (x, y))
    known = {"+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y}.get(symbol)
    return TypedValue(tuple(out.shape), np.dtype(out.dtype), known=known()) if known is not None else None


for _name, _symbol in {"add": "+", "sub": "-", "mul": "*"}.items():
    primitive(_name)(_arithmetic(_symbol))
primitive("add_any")(_arithmetic("+"))


@primitive("div")
def div(body: RustBody, a: TypedValue, b: TypedValue, *, outs: Outs) -> TypedValue:
    if a.kind == "Int":
        divisor = scalar_of(b)
        if divisor is not None and not is_dim(divisor) and divisor > 0 and a.node is not None:
            return result(method(a.node, "div_scalar", body.literal(divisor, b.dtype)), outs[0], a.sizes)
        return joined(body, outs, lambda left, right: body.helper("divide_int", left, right), a, b)
    divisor = scalar_of(b)
    if divisor is not None and a.node is not None:
        if isinstance(a.node, Binary) and not is_dim(divisor) and divisor == a.node.window:  # the sum of each window
            return result(a.node.left, outs[0], a.sizes)
        return result(Binary(a.node, "/", body.literal(divisor, b.dtype)), outs[0], a.sizes)
    if scalar_of(a) is not None and not is_dim(scalar_of(a)) and float(scalar_of(a)) == 1.0 and b.node is not None:
        return result(method(b.node, "recip"), outs[0], b.sizes)
    return joined(body, outs, lambda left, right: Binary(left, "/", right), a, b)


Two = Callable[[RustBody, TypedValue, RustExpression, RustExpression], RustExpression]
BINARY: dict[str, Two] = {
    "rem": lambda body, a, x, y: body.helper("fmod", x, y) if a.kind == "Float" else body.helper("rem_int", x, y),
    "shift_left": lambda body, _, x, y: body.helper("shift_left", x, y),
    "shift_right_logical": lambda body, _, x, y: body.helper("shift_right_logical", x, y),
    "shift_right_arithmetic": lambda body, _, x, y: body.helper("shift_right", x, y),
    "atan2": lambda _, _a, x, y: method(x, "atan2", y),
}
"""What primitives of two operands are, of the first value and the expressions of both tensors."""


def _binary(make: Two) -> Callable[..., TypedValue]:
    return lambda body, a, b, *, outs: joined(body, outs, lambda x, y: make(body, a, x, y), a, b)


for _name, _pair in BINARY.items():
    primitive(_name)(_binary(_pair))


@primitive("pow")
def pow_(body: RustBody, a: TypedValue, b: TypedValue, *, outs: Outs) -> TypedValue:
    exponent = scalar_of(b)
    if a.kind == "Int":
        return joined(body, outs, lambda left, right: method(left, "powi", right), a, b)
    if b.kind == "Int":
        b = converted(body, b, a.dtype)
    if exponent is not None and not is_dim(exponent) and a.node is not None:
        return result(method(a.node, "powf_scalar", body.literal(exponent, b.dtype)), outs[0], a.sizes)
    return joined(body, outs, lambda left, right: method(left, "powf", right), a, b)


def _is_neutral(name: str, number: Any, other: TypedValue) -> bool:
    return not is_dim(number) and other.kind == "Float" and float(number) == (-np.inf if name == "maximum" else np.inf)


def _extreme(name: str, clamp: str, logic: str) -> Callable[..., TypedValue]:
    def rule(body: RustBody, a: TypedValue, b: TypedValue, *, outs: Outs) -> TypedValue:
        if a.kind == "Bool":
            return joined(body, outs, lambda left, right: method(left, logic, right), a, b)
        for number, other in ((scalar_of(b), a), (scalar_of(a), b)):
            if number is not None and other.node is not None and _is_neutral(name, number, other):
                return TypedValue(tuple(outs[0].shape), other.dtype, other.node, other.sizes)
            if number is not None and other.node is not None and not (not is_dim(number) and number != number):
                return result(_clamped(body, other, clamp, number), outs[0], other.sizes)
        if a.kind == "Float":
            return joined(body, outs, lambda left, right: body.helper(name, left, right), a, b)
        of_pairs = "max_pair" if name == "maximum" else "min_pair"
        return joined(body, outs, lambda left, right: method(left, of_pairs, right), a, b)

    return rule


def _clamped(body: RustBody, x: TypedValue, name: str, number: Any) -> RustExpression:
    """Return a tensor with a bound; two bounds, the upper one last, are one call."""
    node = x.node
    assert node is not None
    limit, low = body.literal(number, x.dtype), node.least if isinstance(node, Method) else None
    if isinstance(node, Method) and name == "clamp_max" and low is not None and not is_dim(number) and low <= number:
        return method(node.receiver, "clamp", node.arguments[0], limit)
    made = method(node, name, limit)
    if name == "clamp_min" and not is_dim(number):
        made.least = np.asarray(number).item()
    return made


primitive("max")(_extreme("maximum", "clamp_min", "bool_or"))
primitive("min")(_extreme("minimum", "clamp_max", "bool_and"))

_COMPARED = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "lower",
    "le": "lower_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _is_one_name(a: TypedValue, b: TypedValue) -> bool:
    return isinstance(a.node, Identifier) and isinstance(b.node, Identifier) and a.node.id == b.node.id


def _of_order(name: str, a: Any, b: Any) -> bool | None:
    """Return how two numbers compare of which one is a size at least; None if that depends on the sizes."""
    if any(number is None or not (is_dim(number) or isinstance(number, int | np.integer)) for number in (a, b)):
        return None
    if not is_dim(a) and not is_dim(b):
        return None
    a, b = (number if is_dim(number) else int(number) for number in (a, b))
    below, above = known(lambda: b >= a + 1), known(lambda: a >= b + 1)
    at_most, at_least = known(lambda: b >= a), known(lambda: a >= b)
    holds = {"lt": below, "le": at_most, "gt": above, "ge": at_least, "eq": at_most and at_least, "ne": below or above}
    fails = {"lt": at_least, "le": above, "gt": at_most, "ge": below, "eq": below or above, "ne": at_most and at_least}
    return True if holds[name] else False if fails[name] else None


def _comparison(name: str) -> Callable[..., TypedValue]:
    def rule(body: RustBody, a: TypedValue, b: TypedValue, *, outs: Outs) -> TypedValue:
        decided = _of_order(name, scalar_of(a), scalar_of(b))
        if decided is not None:
            return TypedValue(tuple(outs[0].shape), np.dtype(bool), known=np.bool_(decided))
        if a.kind == "Float" and name in ("eq", "ne") and _is_one_name(a, b):
            assert a.node is not None
            undefined = method(a.node, "is_nan")
            return result(undefined if name == "ne" else negated(undefined), outs[0], a.sizes)
        if a.kind == "Bool" and name not in ("eq", "ne"):
            a, b = (converted(body, value, np.dtype("int32")) for value in (a, b))
        for value, other, key in ((b, a, name), (a, b, _SWAPPED[name])):
            number = scalar_of(value)
            if number is not None and other.node is not None and other.kind == "Bool":
                return result(
                    other.node if bool(number) == (name == "eq") else negated(other.node), outs[0], other.sizes
                )
            if number is not None and other.node is not None:
                node = method(other.node, f"{_COMPARED[key]}_elem", body.literal(number, other.dtype))
                return result(node, outs[0], other.sizes)
        return joined(body, outs, lambda left, right: method(left, _COMPARED[name], right), a, b)

    return rule


for _name in _COMPARED:
    primitive(_name)(_comparison(_name))


_NEUTRAL = {"and": True, "or": False, "xor": False}
"""The booleans that leave the other operand as it is."""


@primitive("lt_to")
def before(body: RustBody, a: TypedValue, b: TypedValue, *, outs: Outs) -> TypedValue:
    """Whether one comes before another in the order of a sort: NaN last, of which JAX has made all the same, as of
    zeros.
    """
    if a.kind != "Float":
        return _comparison("lt")(body, a, b, outs=outs)
    a, b = body.bound(a), body.bound(b)
    number, nan = _comparison("eq")(body, a, a, outs=outs), _comparison("ne")(body, b, b, outs=outs)
    last = PRIMITIVES["and"](body, number, nan, outs=outs)
    return PRIMITIVES["or"](body, _comparison("lt")(body, a, b, outs=outs), last, outs=outs)


@primitive("le_to")
def not_behind(body: RustBody, a: TypedValue, b: TypedValue, *, outs: Outs) -> TypedValue:
    behind = before(body, b, a, outs=outs)
    return result(negated(body.compact(behind)), outs[0], behind.sizes)


def _logic(name: str) -> Callable[..., TypedValue]:
    def rule(body: RustBody, a: TypedValue, b: TypedValue, *, outs: Outs) -> TypedValue:
        number = scalar_of(b)
        if number is not None and a.kind == "Int" and a.node is not None:
            return result(method(a.node, f"bitwise_{name}_scalar", body.literal(number, b.dtype)), outs[0], a.sizes)
        for number, other in ((scalar_of(b), a), (scalar_of(a), b)):
            if a.kind == "Bool" and number is not None and other.node is not None and number == _NEUTRAL.get(name):
                return result(other.node, outs[0], other.sizes)
        prefix = "bool" if a.kind == "Bool" else "bitwise"
        return joined(body, outs, lambda left, right: method(left, f"{prefix}_{name}", right), a, b)

    return rule


for _name in ("and", "or", "xor"):
    primitive(_name)(_logic(_name))


@primitive("population_count", "clz")
def counted_bits(body: RustBody, x: TypedValue, *, outs: Outs) -> TypedValue:
    raise NotPrintable("counting bits", "Burn has no such operation; compute it outside of the model")


@primitive("select_n")
def select_n(body: RustBody, which: TypedValue, *cases: TypedValue, outs: Outs) -> TypedValue:
    """`select_n(c, a, b)` is `b` where `c` is true."""
    if which.kind != "Bool":
        whole = cases[0]
        for index, case in enumerate(cases[1:], 1):
            is_it = PRIMITIVE_EQ(
                body,
                body.bound(which),
                TypedValue(which.shape, which.dtype, known=which.dtype.type(index)),
                outs=[TypedValue(which.shape, np.dtype(bool))],
            )
            whole = select_n(body, is_it, whole, case, outs=outs)
        return whole
    otherwise, then = cases
    out = outs[0]
    if which.known is not None and which.number is not None:
        return then if which.number else otherwise
    if not which.shape and out.shape:  # one condition for all
        which = spread(which, out.shape)
    if then.kind == "Bool" and which.node is not None and None not in (then.number, otherwise.number):
        node = which.node if then.number else negated(which.node)
        return result(node, out, which.sizes) if bool(then.number) != bool(otherwise.number) else then
    mask = body.compact(which)
    for kept, filled, hidden in ((otherwise, then, mask), (then, otherwise, negated(mask))):
        number = scalar_of(filled)
        if kept.node is not None and number is not None and (kept is otherwise or which.node is not None):
            node = method(kept.node, "mask_fill", hidden, body.literal(number, filled.dtype))
            return result(node, out, joined_sizes(out, [_sized(which), kept]))
    return joined(body, outs, lambda left, right: method(left, "mask_where", mask, right), otherwise, then, which)


PRIMITIVE_EQ = _comparison("eq")


def wrapped(body: RustBody, x: TypedValue, size: Dim) -> TypedValue:
    """Return indices of which the negative ones count from the end of an axis as numbers from its start."""
    if isinstance(x.known, np.ndarray) and (not is_dim(size) or (x.known >= 0).all()):
        return TypedValue(
            x.shape, x.dtype, known=np.where(x.known < 0, x.known + (0 if is_dim(size) else size), x.known)
        )
    if x.number is not None and not is_dim(x.number):
        return TypedValue(x.shape, x.dtype, known=x.number if x.number >= 0 else int(x.number) + size)
    node, counts = body.compact(x), body.compact(x)
    while isinstance(counts, Method) and counts.name in ("unsqueeze", "unsqueeze_dim", "unsqueeze_dims", "expand"):
        counts = counts.receiver
    if isinstance(counts, Invocation) and counts.path == "Tensor::arange":
        return x
    node = body.helper("wrapped", node, body.size(size))
    return TypedValue(x.shape, x.dtype, node, x.sizes if x.node is not None else (1,) * len(x.shape))


@primitive("clamp")
def clamp(body: RustBody, low: TypedValue, x: TypedValue, high: TypedValue, *, outs: Outs) -> TypedValue:
    a, b = scalar_of(low), scalar_of(high)
    if a is not None and b is not None and x.node is not None:
        node = method(x.node, "clamp", body.literal(a, x.dtype), body.literal(b, x.dtype))
        return result(node, outs[0], x.sizes)
    wide = [value if same(value.shape, x.shape) else spread(value, x.shape) for value in (low, high)]
    raised = PRIMITIVES["max"](body, x, wide[0], outs=outs)
    return PRIMITIVES["min"](body, raised, wide[1], outs=outs)


BROADCASTING = frozenset(
    "add sub mul div rem max min pow atan2 eq ne lt le gt ge lt_to le_to and or xor shift_left shift_right_logical "
    "shift_right_arithmetic add_any".split()
)
"""Primitives that take an array without axes beside one that has some."""


def spread_scalars(operands: Sequence[TypedValue], shape: Sequence[Dim]) -> list[TypedValue]:
    """Return operands with scalars for all elements of a shape."""
    return [spread(value, shape) if not value.shape and shape else value for value in operands]


def spread(value: TypedValue, shape: Sequence[Dim]) -> TypedValue:
    """Return a scalar for all elements of a shape."""
    if value.known is not None:
        return TypedValue(tuple(shape), value.dtype, known=value.number)
    assert value.node is not None
    node = method(value.node, "unsqueeze", generics=str(len(shape))) if len(shape) > 1 else value.node
    return TypedValue(tuple(shape), value.dtype, node, (1,) * len(shape))
