"""The body of a printed function, while it is made: its statements, names, sizes and helpers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from jaxport import jaxprs
from jaxport.codegen.burn.values import (
    TypedValue,
    dtype_name,
    is_complex,
    kind_of,
    rank_of,
    same,
    signed_node,
    size_node,
    tensor,
    tensor_type,
)
from jaxport.codegen.rust.text import number_text
from jaxport.codegen.rust.tree import (
    Array,
    Binary,
    Borrow,
    Identifier,
    Invocation,
    Let,
    Literal,
    Method,
    Number,
    RustExpression,
    RustRange,
    RustStatement,
    Tuple,
    Unary,
    method,
    path_call,
)
from jaxport.codegen.writing.literals import LARGEST_LITERAL
from jaxport.importer.names import unique
from jaxport.importer.traced.zero_sizes import may_be_nothing
from jaxport.importer.values.host import Dim, is_dim
from jaxport.jaxprs.dims import static


class NeedsStatements(Exception):
    """An expression cannot stand where statements are not possible."""


ProgramPrinter = Callable[["RustBody", jaxprs.Jaxpr, Sequence[ArrayLike], Sequence[TypedValue]], list[TypedValue]]


@dataclass(eq=False)
class RustBody:
    """What rules print into.

    Attributes:
      taken: the names in use.
      table: returns the expression of a tensor that is too large for the source.
      printed: prints a program of JAX on values into a body, and returns its results.
      is_inline: whether only one expression is wanted, without statements.
      statements: the statements so far.
      sizes: the names of sizes that are read.
      helpers: the names of the helper functions that are called.
      copied: the names of numbers, which are copied where they are used.
      whole: where only one expression is wanted, that of all results, if they come from one call.
    """

    taken: set[str]
    table: Callable[[np.ndarray], RustExpression]
    printed: ProgramPrinter
    is_inline: bool = False
    statements: list[RustStatement] = field(default_factory=list)
    sizes: set[str] = field(default_factory=set)
    helpers: set[str] = field(default_factory=set)
    copied: set[str] = field(default_factory=set)
    whole: RustExpression | None = None

    # Names and statements ----------------------------------------------------------------------------------------

    def fresh(self, wanted: str) -> str:
        chosen = unique(wanted, self.taken)
        self.taken.add(chosen)
        return chosen

    def let(self, node: RustExpression, wanted: str = "x", kind: str = "") -> Identifier:
        """Bind an expression to a name, which is returned."""
        if self.is_inline:
            raise NeedsStatements
        chosen = self.fresh(wanted)
        self.statements.append(Let(Identifier(chosen, type=kind), node))
        return Identifier(chosen)

    def bound(self, value: TypedValue, wanted: str = "x") -> TypedValue:
        """Return a value that may be read several times."""
        if value.node is None or isinstance(value.node, Identifier):
            return value
        return replace(value, node=self.let(value.node, wanted, tensor_type(value.sizes, value.dtype)))

    def inner(self) -> RustBody:
        """Return a body for statements inside this one; what it uses is noted here."""
        made = RustBody(self.taken, self.table, self.printed)
        made.sizes, made.helpers, made.copied = self.sizes, self.helpers, self.copied
        return made

    def program(self, jaxpr: jaxprs.ClosedJaxpr, values: Sequence[TypedValue]) -> list[TypedValue]:
        """Print a program that is inside another one, such as a branch, and return its results."""
        return self.printed(self, jaxpr.jaxpr, jaxpr.consts, values)

    # Sizes -------------------------------------------------------------------------------------------------------

    def size(self, size: Dim) -> RustExpression:
        node, names = size_node(size)
        self.sizes |= names
        return node

    def number(self, size: Dim) -> RustExpression:
        """Return a size that stays what it is in all modules of a class."""
        return self.size(size) if is_dim(size) else Literal(str(int(size)))

    def signed(self, size: Dim) -> RustExpression:
        node, names = signed_node(size)
        self.sizes |= names
        return node

    def shape(self, sizes: Sequence[Dim]) -> RustExpression:
        """Return the sizes of a tensor; of one without axes, that of its one element."""
        return Array([self.size(size) for size in sizes] or [Number(1)])

    # Tensors -----------------------------------------------------------------------------------------------------

    def helper(self, name: str, *arguments: RustExpression, generics: str = "") -> Invocation:
        """Return the call of a helper function."""
        self.helpers.add(name)
        return path_call(f"{name}::<{generics}>" if generics else name, *arguments)

    def device(self) -> RustExpression:
        return Borrow(Identifier("device"))

    def options(self, dtype: np.dtype) -> RustExpression:
        """Return where and of which type a tensor is created."""
        if kind_of(dtype) == "Bool":
            return self.device()
        return Tuple([self.device(), Literal(f"DType::{dtype_name(dtype)}")])

    def literal(self, number: Any, dtype: np.dtype) -> RustExpression:
        """Return a number that meets tensors of a dtype."""
        if is_dim(number):
            number = self.signed(number)
            return number if kind_of(dtype) == "Int" else Binary(number, "as", Literal("f64"))
        kind = kind_of(dtype)
        if kind == "Bool":
            return Literal("true" if number else "false")
        if kind == "Float":
            value = np.asarray(number).astype(dtype)[()]
            return _signed_literal(number_text(value if isinstance(value, np.floating) else float(str(value))))
        value = int(number)
        suffix = "" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
        return _signed_literal(f"{value}{suffix}")

    def tensor(self, value: TypedValue) -> RustExpression:
        """Return the whole tensor of a value."""
        if value.node is not None:
            if not value.is_broadcast:
                return value.node
            return self.expanded(value.node, (*value.shape, 2) if is_complex(value.dtype) else value.shape)
        return self.created(value.known, value.shape, value.dtype)

    def expanded(self, node: RustExpression, shape: Sequence[Dim]) -> RustExpression:
        """Return a tensor whose axes of size 1 are repeated."""
        if any(may_be_nothing(size) or (not is_dim(size) and size == 0) for size in shape):
            whole = path_call("Shape::new", self.shape(shape))
            return method(node, "expand", whole, generics=f"{rank_of(shape)}, _")
        return method(node, "expand", self.shape(shape))

    def created(self, known: Any, shape: Sequence[Dim], dtype: np.dtype) -> RustExpression:
        """Return a new tensor of known elements."""
        kind = kind_of(dtype)
        generics = f"Tensor::<{rank_of(shape)}>" if kind == "Float" else f"Tensor::<{rank_of(shape)}, {kind}>"
        uniform = known if not isinstance(known, np.ndarray) else None
        if isinstance(known, np.ndarray) and known.size and (known == known.ravel()[0]).all() and known.size > 1:
            uniform = known.ravel()[0]
        if isinstance(known, np.ndarray) and known.size == 1:
            uniform = known.ravel()[0]
        if isinstance(known, np.ndarray) and not known.size:
            uniform = dtype.type(0)
        if uniform is not None:
            made = self._uniform(uniform, shape, dtype, generics)
            made.fills = uniform
            return made
        assert isinstance(known, np.ndarray)
        steps = self._steps(known, dtype)
        if steps is not None:
            return steps
        if known.size > LARGEST_LITERAL:
            return self.table(known)
        data = self._nested(known.reshape(static(shape) or (1,)), dtype)
        return path_call(f"{generics}::from_data", data, self.options(dtype))

    def _steps(self, known: np.ndarray, dtype: np.dtype) -> RustExpression | None:
        """Return many integers that grow by the same step as what they are; None if others are known."""
        if known.ndim != 1 or known.size <= LARGEST_LITERAL or dtype.kind not in "iu" or dtype.itemsize < 4:
            return None
        first, second, last = (int(known[at]) for at in (0, 1, -1))
        step = second - first
        if step <= 0 or abs(last) + step >= 2**31 or (known != first + step * np.arange(known.size)).any():
            return None
        run = RustRange(Literal(str(first)), Literal(str(last + step if step > 1 else last + 1)), 1)
        if step == 1:
            return path_call("Tensor::arange", run, self.options(dtype))
        return path_call("Tensor::arange_step", run, Literal(str(step)), self.options(dtype))

    def _uniform(self, number: Any, shape: Sequence[Dim], dtype: np.dtype, generics: str) -> RustExpression:
        where = self.options(dtype)
        if kind_of(dtype) == "Bool":
            return path_call(f"{generics}::full", self.shape(shape), self.literal(number, dtype), where)
        short = {0: "zeros", 1: "ones"}.get(number) if not is_dim(number) and not np.signbit(float(number)) else None
        if short:
            return path_call(f"{generics}::{short}", self.shape(shape), where)
        if dtype == np.uint64 and not is_dim(number) and number >= 2**63:  # Burn fills with signed numbers
            return Binary(path_call(f"{generics}::zeros", self.shape(shape), where), "+", self.literal(number, dtype))
        return path_call(f"{generics}::full", self.shape(shape), self.literal(number, dtype), where)

    def _nested(self, array: np.ndarray, dtype: np.dtype) -> RustExpression:
        if array.ndim == 0:
            literal = self.literal(array[()], dtype)
            return literal
        return Array([self._nested(row, dtype) for row in array])

    def compact(self, value: TypedValue) -> RustExpression:
        """Return a tensor that broadcasts to a value: of the same rank, with axes of size 1 where it is repeated."""
        if value.node is not None:
            return value.node
        if isinstance(value.known, np.ndarray) and value.known.size > 1:
            return self.tensor(value)
        return self.created(value.number, (1,) * value.rank, value.dtype)

    def reshaped(self, value: TypedValue, shape: Sequence[Dim]) -> TypedValue:
        """Return the elements of a value in another shape."""
        if value.known is not None:
            known = (
                value.known.reshape(static(shape))
                if isinstance(value.known, np.ndarray) and not any(map(is_dim, shape))
                else value.known
            )
            return TypedValue(tuple(shape), value.dtype, known=known)
        if not value.is_broadcast and same(value.shape, shape):
            return value
        return tensor(self.shaped(self.tensor(value), value.shape, shape), shape, value.dtype)

    def shaped(self, node: RustExpression, before: Sequence[Dim], after: Sequence[Dim]) -> RustExpression:
        while isinstance(node, Method) and node.name in RESHAPING:
            node, before = node.receiver, ()
        if before and same(before, after or (1,)):
            return node
        if any(may_be_nothing(size) or (not is_dim(size) and size == 0) for size in (*before, *after)):
            return self.helper("reshaped", node, self.shape(after))
        return method(node, "reshape", self.shape(after))


RESHAPING = ("reshape", "squeeze_dim", "squeeze_dims", "unsqueeze", "unsqueeze_dim", "unsqueeze_dims")
"""Methods whose result has the elements of the tensor in the same order."""


def _signed_literal(text: str) -> RustExpression:
    return Unary("-", Literal(text[1:])) if text.startswith("-") else Literal(text)


def product(sizes: Sequence[Dim]) -> Dim:
    """Return the number of elements of a shape."""
    return math.prod(sizes)
