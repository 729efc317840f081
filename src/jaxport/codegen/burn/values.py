"""Typed values of Burn: what a printed expression is, which JAX leaves implicit.

A tensor of Burn has a rank, a kind (`Float`, `Int`, `Bool`) and, at run time, a dtype. An array of JAX without axes is
a tensor of one axis and one element. A value that only was broadcast stays as small as it is until something needs it
whole: Burn broadcasts axes of size 1 in arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxport.codegen.rust.tree import Binary, Identifier, Literal, Number, RustExpression, Unary, method
from jaxport.errors import Refusal
from jaxport.importer.traced.zero_sizes import size_text
from jaxport.importer.values.host import Dim, is_dim
from jaxport.jaxprs.dim_text import Expression, parse, symbols

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip
"""The names that Burn has for element types."""

HELD = {
    **dict.fromkeys("float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn".split(),
        "float32"),
    "int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8",
}  # fmt: skip
"""The element types of few bits, which Burn lacks, and those that have all of their numbers: tensors of them hold the
values.
"""


class NotPrintable(Exception):
    """Something has no form in Burn; the printer collects these and refuses the model with all of them.

    Attributes:
      refusal: what it is, and what to do instead.
    """

    def __init__(self, what: str, instead: str):
        super().__init__(what)
        self.what, self.instead = what, instead

    def refusal(self, where: str) -> Refusal:
        """Return the row of the report."""
        return Refusal(self.what, where, self.instead)


def held(dtype: DTypeLike) -> np.dtype:
    """Return the element type of the tensors that hold values of a type: itself, but for those of few bits.

    >>> held(np.dtype("float16")), held(jnp.dtype("int4"))
    (dtype('float16'), dtype('int8'))
    """
    return np.dtype(HELD.get(np.dtype(dtype).name, dtype))


def is_narrow(dtype: np.dtype) -> bool:
    """Whether elements have few bits, and are held in tensors of another type."""
    return isinstance(dtype, np.dtype) and dtype.name in HELD


def kind_of(dtype: np.dtype) -> str:
    """Return the kind of tensors of a dtype.

    Raises:
      NotPrintable: Burn has no tensors of it.

    >>> kind_of(np.dtype("float16")), kind_of(np.dtype("int8")), kind_of(np.dtype(bool))
    ('Float', 'Int', 'Bool')
    """
    if not isinstance(dtype, np.dtype):  # a key of random values
        raise NotPrintable(
            f"values of type {dtype}", "Burn draws its random values otherwise; draw them outside of the model"
        )
    if np.dtype(dtype) == np.bool_:
        return "Bool"
    if held(dtype).name not in DTYPES:
        raise NotPrintable(f"values of type {np.dtype(dtype).name}", "Burn has no such tensors; cast them in the model")
    return "Float" if jnp.issubdtype(dtype, jnp.floating) else "Int"


def is_complex(dtype: np.dtype) -> bool:
    """Whether elements are complex numbers: tensors have them as pairs, in an axis behind the others.

    >>> is_complex(np.dtype("complex64")), tensor_type((2, 3), np.dtype("complex64"))
    (True, 'Tensor<3>')
    """
    return isinstance(dtype, np.dtype) and dtype.kind == "c"


def dtype_name(dtype: np.dtype) -> str:
    """Return the name of an element type, or of that of the tensors that hold it: `F32`."""
    kind_of(dtype)
    return DTYPES[held(dtype).name]


def rank_of(shape: Sequence[Dim]) -> int:
    """Return the rank of the tensor that an array of a shape is."""
    return max(1, len(shape))


def tensor_type(shape: Sequence[Dim], dtype: np.dtype) -> str:
    """Return the type of a tensor.

    >>> tensor_type((2, 3), np.dtype("float32")), tensor_type((), np.dtype("int32"))
    ('Tensor<2>', 'Tensor<1, Int>')
    """
    if is_complex(dtype):
        return f"Tensor<{len(shape) + 1}>"
    kind = kind_of(dtype)
    return f"Tensor<{rank_of(shape)}>" if kind == "Float" else f"Tensor<{rank_of(shape)}, {kind}>"


@dataclass(frozen=True, eq=False)
class TypedValue:
    """An array of JAX as Rust has it.

    Attributes:
      shape: its sizes.
      dtype: its element type.
      node: the expression of a tensor, of these sizes or of size 1 where it is broadcast; None if it is known.
      sizes: the sizes that the tensor of `node` has.
      known: its elements, or the one number that all of them are; a number may be a size that only has a name.
    """

    shape: tuple[Dim, ...]
    dtype: np.dtype
    node: RustExpression | None = None
    sizes: tuple[Dim, ...] = ()
    known: Any = None

    @property
    def rank(self) -> int:
        return rank_of(self.shape)

    @property
    def kind(self) -> str:
        return kind_of(self.dtype)

    @property
    def type(self) -> str:
        return tensor_type(self.shape, self.dtype)

    @property
    def number(self) -> Any:
        """The number that all elements are, if that is known."""
        if self.known is None:
            return None
        if isinstance(self.known, np.ndarray):
            return self.known.ravel()[0] if self.known.size == 1 else None
        return self.known

    @property
    def is_broadcast(self) -> bool:
        return self.node is not None and not same(self.sizes, self.shape)


def same(sizes: Sequence[Dim], others: Sequence[Dim]) -> bool:
    """Whether sizes are the same; two expressions are if they are equal for all values of their names."""
    return len(sizes) == len(others) and all(
        one is other or one == other for one, other in zip(sizes, others, strict=True)
    )


def tensor(node: RustExpression, shape: Sequence[Dim], dtype: np.dtype) -> TypedValue:
    """Return the value of a whole tensor."""
    if not is_complex(dtype):
        kind_of(dtype)
    return TypedValue(tuple(shape), np.dtype(dtype), node, tuple(shape))


def size_node(size: Dim) -> tuple[RustExpression, frozenset[str]]:
    """Return a size as an expression of `usize`, and the names that it reads.

    >>> import jax.export
    >>> from jaxport.codegen.rust.text import expression_text
    >>> a, b = jax.export.symbolic_shape("a, b")
    >>> expression_text(size_node(a * b - 2)[0]), expression_text(size_node((a - 3) // 2 + 1)[0])
    ('a * b - 2', '((a as i64 - 3).div_euclid(2) + 1) as usize')
    >>> expression_text(size_node((a * b + 5) // 6)[0]), expression_text(size_node((a + 4) // 6)[0])
    ('(a * b).div_ceil(6)', '(a + 4) / 6')
    >>> expression_text(size_node(-1 % a)[0])
    '(-1 as i64).rem_euclid(a as i64) as usize'
    """
    if not is_dim(size):
        return Number(int(size)), frozenset()
    text = size_text(size)
    expression = parse(text)
    names = symbols(text)
    if _is_natural(expression):
        return _natural(expression), names
    return Binary(_signed(expression), "as", Literal("usize")), names


def signed_node(size: Dim) -> tuple[RustExpression, frozenset[str]]:
    """Return a size as an expression of `i64`, and the names that it reads."""
    if not is_dim(size):
        return Literal(str(int(size))), frozenset()
    text = size_text(size)
    return _signed(parse(text)), symbols(text)


def _names(expression: Expression) -> bool:
    """Whether an expression has a name in it."""
    return bool(expression.name) or any(map(_names, expression.parts))


def _terms(expression: Expression) -> tuple[list[Expression], list[Expression]]:
    """Return the terms of a sum that are added, and those that are subtracted."""
    match expression.form:
        case "+":
            added, subtracted = _terms(expression.parts[0])
            more, less = _terms(expression.parts[1])
            return added + more, subtracted + less
        case "-":
            added, subtracted = _terms(expression.parts[0])
            more, less = _terms(expression.parts[1])
            return added + less, subtracted + more
        case "neg":
            added, subtracted = _terms(expression.parts[0])
            return subtracted, added
        case "number" if expression.value < 0:
            return [], [Expression("number", value=-expression.value)]
        case "*" if expression.parts[0].form == "neg" or (
            expression.parts[0].form == "number" and expression.parts[0].value < 0
        ):
            first, second = expression.parts
            positive = first.parts[0] if first.form == "neg" else Expression("number", value=-first.value)
            rest = second if positive.form == "number" and positive.value == 1 else Expression("*", (positive, second))
            return [], [rest]
    return [expression], []


def _is_natural(expression: Expression, inside: bool = False) -> bool:
    """Whether no part of an expression may be negative, but for the last sum as a whole, which is a size."""
    added, subtracted = _terms(expression)
    if subtracted and (inside or not added):
        return False
    terms = [*added, *subtracted]
    if terms == [expression]:
        return all(_is_natural(part, True) for part in expression.parts)
    return all(_is_natural(term, True) for term in terms)


def _rounded_up(whole: Expression, divisor: Expression) -> list[Expression]:
    """Return the terms of `a` if a whole is `a + (d - 1)` for the divisor `d`, else nothing."""
    added, subtracted = _terms(whole)
    last = added[-1] if added else whole
    numbers = last.form == divisor.form == "number" and last.value == divisor.value - 1
    return added[:-1] if numbers and not subtracted else []


def _natural(expression: Expression) -> RustExpression:
    return _sum(expression, Identifier, "", "/", "%")


def _signed(expression: Expression) -> RustExpression:
    return _sum(expression, lambda name: Binary(Identifier(name), "as", Literal("i64")), "i64", "", "")


def _sum(
    expression: Expression, named: Callable[[str], RustExpression], kind: str, quotient: str, rest: str
) -> RustExpression:
    def made(part: Expression) -> RustExpression:
        return _sum(part, named, kind, quotient, rest)

    added, subtracted = _terms(expression)
    if [*added, *subtracted] != [expression]:
        first, *less = subtracted if not added else [None, *subtracted]
        whole = Unary("-", made(first)) if first is not None else made(added[0])
        for term in added[1:]:
            whole = Binary(whole, "+", made(term))
        for term in less:
            whole = Binary(whole, "-", made(term))
        return whole
    match expression.form:
        case "number":
            return Number(expression.value) if not kind else Literal(str(expression.value))
        case "name":
            return named(expression.name)
        case "*":
            return Binary(made(expression.parts[0]), "*", made(expression.parts[1]))
        case "^":
            return method(made(expression.parts[0]), "pow", Literal(str(expression.parts[1].value)))
        case "floordiv" if quotient and (rounded_up := _rounded_up(*expression.parts)):
            sum_, *more = map(made, rounded_up)
            for term in more:
                sum_ = Binary(sum_, "+", term)
            return method(sum_, "div_ceil", made(expression.parts[1]))
        case "floordiv" if quotient:
            return Binary(made(expression.parts[0]), quotient, made(expression.parts[1]))
        case "mod" if rest:
            return Binary(made(expression.parts[0]), rest, made(expression.parts[1]))
        case "floordiv" | "mod" as form:
            receiver = made(expression.parts[0])
            if not _names(expression.parts[0]):  # a number alone has no type
                receiver = Binary(receiver, "as", Literal("i64"))
            return method(receiver, "div_euclid" if form == "floordiv" else "rem_euclid", made(expression.parts[1]))
        case form:  # `max`, `min`: a number alone has no type
            first, second = sorted(expression.parts, key=lambda part: part.form == "number")
            return method(made(first), form, made(second))
