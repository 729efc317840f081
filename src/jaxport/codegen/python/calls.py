"""The computation of a module in Python: what calls, values, loops and assignments are."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jax.typing import DTypeLike

from jaxport.codegen.python.functions import Printer, with_inferred_size
from jaxport.codegen.python.sizes import sizes_in_python
from jaxport.codegen.rewriting.steps import JOINS
from jaxport.codegen.writing.dialect import Dialect
from jaxport.codegen.writing.literals import attribute, call, dtype_expression, name, number, restored
from jaxport.codegen.writing.naming.names import ModuleNames
from jaxport.codegen.writing.size_names import SizeStatement
from jaxport.codegen.writing.statements import LONGEST_DISTANT, LONGEST_INLINE, CellText, SizeName, begin_in, stored_as
from jaxport.importer.values.dtypes import canonical
from jaxport.importer.values.host import HostValue, has_stand_ins, is_dim
from jaxport.importer.values.recording import Step, Variable

METHODS = {"jnp.reshape": "reshape", "jnp.transpose": "transpose"}
"""Functions that are methods of arrays, and take an array and sizes or axes."""

WEAK = {"jnp.clip", "helper.fake_quantized"}
"""Functions whose operands behind the first may be plain numbers."""


@dataclass
class PythonCalls(Printer):
    """Writes the computation of a module in Python, for a framework: see `Language`."""

    names: ModuleNames[ast.expr]  # pyright: ignore[reportIncompatibleVariableOverride]  # names of functions are a module's, too
    library: Dialect = field(kw_only=True)
    tables: dict[str, HostValue] = field(default_factory=dict)
    tied: dict[Variable, str] = field(default_factory=dict)
    lists: dict[str, list[Variable]] = field(default_factory=dict)
    result_names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def of_round(self, names: ModuleNames[ast.expr]) -> PythonCalls:
        return replace(self, names=names, lists={})

    def part(self, path: str) -> ast.expr:
        return name(path) if path.isidentifier() else ast.parse(path, mode="eval").body

    def name_of(self, expression: ast.expr) -> str:
        return expression.id if isinstance(expression, ast.Name) else ""

    def names_in(self, expression: ast.expr) -> list[str]:
        return [node.id for node in ast.walk(expression) if isinstance(node, ast.Name)]

    def text(self, expression: ast.expr) -> str:
        return ast.unparse(expression)

    def function_name(self, path: str) -> ast.expr:
        """Return a function, or a part of the module."""
        if path.startswith("self") or path in self.names.fields.elements.values():
            return self.part(path)
        return super().function_name(path)

    def stored(self, value: HostValue) -> ast.expr:
        """Return a tensor that the module keeps beside its parameters."""
        if has_stand_ins(value):  # a file has one width for all
            value = HostValue(value.to_jax(), name=value.name)
        key = stored_as(self.tables, value, self.names.fields)
        return restored(value.data, self.library.frozen(attribute(f"self.{key}")))

    def longest(self, step: Step, following: Sequence[Step]) -> int:  # noqa: ARG002
        """Return how many characters a step of a nested function has at most in its only reader: as many as in a
        method.
        """
        return LONGEST_INLINE if len(following) < 2 else LONGEST_DISTANT

    def invoked(self, called: ast.expr, arguments: list[ast.expr], sizes: Sequence[str]) -> ast.expr:
        return ast.Call(called, arguments, [ast.keyword(size, self.size(name(size))) for size in sizes])

    def rows(self, row: Variable | tuple[Variable, ...]) -> ast.expr:
        return self.value(row)

    def appended(self, chosen: str, values: list[ast.expr]) -> list[ast.stmt]:
        method = attribute(f"{chosen}.append") if len(values) == 1 else attribute(f"{chosen}.extend")
        argument = values[0] if len(values) == 1 else ast.Tuple(values, ast.Load())
        return [ast.Expr(ast.Call(method, [argument], []))]

    def element(self, chosen: str, index: int) -> ast.expr:
        return ast.Subscript(name(chosen), ast.Constant(index), ast.Load())

    def value(self, value: object) -> ast.expr:
        """Return any argument as an expression."""
        if isinstance(value, SizeName):
            return self.size(name(value))
        if isinstance(value, CellText):
            return self.part(f"lambda carry, row: {value}(carry, row)")
        if isinstance(value, tuple | list) and not hasattr(value, "_asdict"):
            for chosen, made in self.lists.items():
                begin = begin_in(value, made)
                if begin is None:
                    continue
                if len(value) == len(made):
                    return name(chosen) if isinstance(value, list) else call("tuple", name(chosen))
                parts = [*map(self.value, value[:begin]), ast.Starred(name(chosen), ast.Load())]
                parts += map(self.value, value[begin + len(made) :])
                return ast.Tuple(parts, ast.Load()) if isinstance(value, tuple) else ast.List(parts, ast.Load())
        return super().value(value)

    def expression(self, step: Step) -> ast.expr:
        """Return a call, of a method of arrays if there is one."""
        if step.form != "call" or not step.args:
            return super().expression(step)
        function = self.library.functions.get(step.name)
        step = (function(step) if function is not None else None) or with_inferred_size(with_plain_axis(step))
        array, *rest = step.args
        if step.name in JOINS and any(
            begin_in(array, made) == 0 and len(array) == len(made) for made in self.lists.values()
        ):
            step = replace(step, args=([*array], *rest))
        if step.name == "jnp.where" and len(rest) == 2 and all(map(is_single_number, rest)):
            return call("jnp.where", self.value(array), number(rest[0].item()), self.value(rest[1]))
        if step.name in WEAK and isinstance(array, Variable) and array.dtype in (np.float32, np.int32, np.int64):
            return call(
                step.name.removeprefix("helper."),
                self.value(array),
                *(number(x.data[()]) if is_single_number(x, array.dtype) else self.value(x) for x in rest),
            )
        if step.name in METHODS and isinstance(array, Variable) and len(rest) == 1 and not step.kwargs:
            (axes,) = rest
            if step.name == "jnp.transpose" and swaps_last(axes):
                return ast.Attribute(self.value(array), "T" if len(axes) == 2 else "mT", ast.Load())
            if isinstance(axes, list | tuple) and axes and all(isinstance(axis, int) or is_dim(axis) for axis in axes):
                return call(ast.Attribute(self.value(array), METHODS[step.name], ast.Load()), *map(self.value, axes))
        if step.name == "jnp.broadcast_to" and isinstance(array, HostValue) and not array.ndim and not array.symbolic:
            return uniform(array, self.value(rest[0]))
        return super().expression(step)

    def host_value(self, value: HostValue) -> ast.expr:
        """Return a tensor that is known; the smallest number of float32, which masks are made of, by its name."""
        if is_single_number(value) and value.item() == np.finfo(np.float32).min:
            return ast.parse("jnp.finfo(jnp.float32).min", mode="eval").body
        return super().host_value(value)

    def empty_list(self) -> ast.expr:
        return ast.List([], ast.Load())

    def statements_of(
        self,
        step: Step,  # noqa: ARG002  other languages have statements of their own for some
        uses: Counter[Variable],  # noqa: ARG002
        reader: int | None,
        usual: Callable[[int | None], list[ast.stmt]],
    ) -> list[ast.stmt]:
        return usual(reader)

    def pattern(self, names: Sequence[str]) -> ast.expr:
        stored: list[ast.expr] = [ast.Name(one, ast.Store()) for one in names]
        return stored[0] if len(stored) == 1 else ast.Tuple(stored, ast.Store())

    def assigned(self, target: ast.expr, value: ast.expr) -> ast.stmt:
        return ast.Assign([target], value, lineno=0)

    def loop(self, iterated: Sequence[tuple[str, ast.expr]], count: int, body: list[ast.stmt]) -> ast.stmt:
        if not iterated:
            return ast.For(self.pattern(["_"]), call("range", ast.Constant(count)), body, [], lineno=0)
        target, (first, *others) = self.pattern([chosen for chosen, _ in iterated]), [values for _, values in iterated]
        together = call("zip", first, *others, strict=ast.Constant(True)) if others else first
        return ast.For(target, together, body, [], lineno=0)

    def returned(self, value: ast.expr) -> ast.stmt:
        return ast.Return(value)

    def finished(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return statements

    def sizes(self, statements: Iterable[SizeStatement]) -> list[ast.stmt]:
        return sizes_in_python(statements)

    def unread(self) -> set[str]:
        return self.dims


def with_plain_axis(step: Step) -> Step:
    """Return `mean(x, axis=(1,))` as `mean(x, axis=1)`."""
    axis = step.kwargs.get("axis")
    kwargs = {**step.kwargs, "axis": axis[0]} if isinstance(axis, tuple) and len(axis) == 1 else step.kwargs
    array, *rest = step.args
    if step.name in ("jnp.expand_dims", "jnp.squeeze") and rest and isinstance(rest[0], tuple) and len(rest[0]) == 1:
        rest = [rest[0][0]]
    return replace(step, args=(array, *rest), kwargs=kwargs)


def is_single_number(value: object, dtype: DTypeLike = np.float32) -> bool:
    """Whether a value is a known number of a dtype, as wide as JAX has it."""
    if not isinstance(value, HostValue) or value.ndim or value.symbolic:
        return False
    return canonical(value.dtype) == canonical(np.dtype(dtype))


def swaps_last(order: Sequence[int]) -> bool:
    """Whether a transpose exchanges the last two axes, and moves no others.

    >>> swaps_last((1, 0)), swaps_last((0, 2, 1)), swaps_last((1, 0, 2))
    (True, True, False)
    """
    rank = len(order)
    return rank > 1 and tuple(order) == (*range(rank - 2), rank - 1, rank - 2)


def uniform(element: HostValue, shape: ast.expr) -> ast.expr:
    """Return an array whose elements are all the same: `jnp.zeros((batch, 16), jnp.float32)`."""
    short = {0: "jnp.zeros", 1: "jnp.ones"}.get(element.item()) if element.dtype.kind in "iuf" else None
    dtype = dtype_expression(element.dtype)
    return call(short, shape, dtype) if short else call("jnp.full", shape, number(element.item()), dtype)
