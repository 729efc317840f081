"""Symbolic dims as values of the graph: read from the input that carries them, computed once per graph."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from jaxport.errors import ExportError
from jaxport.export.emit.value import Scope, Value
from jaxport.jaxprs import Dim, PythonFunction, dims
from jaxport.jaxprs.dim_text import symbols
from jaxport.sizes.sums import only_name


class Emits(Protocol):
    """What adds nodes to a graph: `op.Add(x, y)`."""

    scope: Scope

    def __getattr__(self, name: str) -> PythonFunction: ...


def vector(op: Emits, dim: Dim) -> Value:
    """Return a symbolic dim as an int64 vector of one element, at the root that `op` writes to."""
    known = op.scope.dim_values
    key = f"vector {dim}"
    if key not in known:
        symbol_values = {name: _Number(op, symbol(op, name), True) for name in sorted(symbols(str(dim)))}
        known[key] = dims.evaluate(dim, symbol_values).value
    return known[key]


def symbol(op: Emits, name: str) -> Value:
    """Return the value of one symbol: from `Shape` of an input axis that is linear in it, or an input of its own."""
    scope = op.scope
    key = f"symbol {name}"
    if key not in scope.dim_values:
        source = _source(scope, name)
        if source is not None:
            value, axis, scale, offset = source
            carried = op.Shape(value, start=axis, end=axis + 1)
            scope.dim_values[key] = (
                op.Div(op.Sub(carried, (offset,)), (scale,)) if (scale, offset) != (1, 0) else carried
            )
        elif scope.kind == "function":
            extra = scope.add_input(Value(np.int64, (1,), name=f"dim_{name}"))
            scope.dim_inputs[name] = scope.dim_values[key] = extra
        else:
            raise ExportError(
                f"the size of the dimension `{name}` cannot be read from any input",
                why=f"no input axis is `{name}`, or a multiple of it plus a constant",
                instead=f"give one input an axis that is plainly `{name}`",
            )
    return scope.dim_values[key]


def _source(scope: Scope, name: str) -> tuple[Value, int, int, int] | None:
    """Return the input axis from which a symbol is read; an axis that is the symbol itself is preferred."""
    solved = None
    for value in scope.inputs:
        for axis, dim in enumerate(value.shape or ()):
            form = only_name(str(dim))
            if form is None or form[0] != name:
                continue
            if form[1:] == (1, 0):
                return value, axis, 1, 0
            solved = solved or (value, axis, *form[1:])
    return solved


class _Number:
    """An int64 vector of one element with the operators of dimension expressions."""

    def __init__(self, op: Emits, value: Value, nonnegative: bool):
        self.op, self.value, self.nonnegative = op, value, nonnegative

    def _binary(self, op_type: str, other: _Number | int, nonnegative: bool) -> _Number:
        operand = other.value if isinstance(other, _Number) else (other,)
        return _Number(self.op, self.op.emit(op_type, self.value, operand), nonnegative)

    def _wrap(self, number: int) -> _Number:
        return _Number(self.op, self.op.const([number], np.int64), number >= 0)

    def __add__(self, other: _Number | int) -> _Number:
        return self._binary("Add", other, self.nonnegative and _nonnegative(other))

    def __mul__(self, other: _Number | int) -> _Number:
        return self._binary("Mul", other, self.nonnegative and _nonnegative(other))

    def __sub__(self, other: _Number | int) -> _Number:
        return self._binary("Sub", other, False)

    def __rsub__(self, other: int) -> _Number:
        return self._wrap(other) - self

    def __neg__(self) -> _Number:
        return _Number(self.op, self.op.Neg(self.value), False)

    def __pow__(self, exponent: int) -> _Number:
        result = self
        for _ in range(exponent - 1):
            result = result * self
        return result

    def __mod__(self, other: _Number | int) -> _Number:
        return self._binary("Mod", other, _nonnegative(other))

    def __floordiv__(self, other: _Number | int) -> _Number:
        # ONNX truncates towards zero: subtract the remainder first, which has the divisor's sign.
        exact = self if self.nonnegative and _nonnegative(other) else self - self % other
        return exact._binary("Div", other, self.nonnegative and _nonnegative(other))

    def __rfloordiv__(self, other: int) -> _Number:
        return self._wrap(other) // self

    def __rmod__(self, other: int) -> _Number:
        return self._wrap(other) % self

    def maximum(self, other: _Number | int) -> _Number:
        return self._binary("Max", other, self.nonnegative or _nonnegative(other))

    def minimum(self, other: _Number | int) -> _Number:
        return self._binary("Min", other, self.nonnegative and _nonnegative(other))

    __radd__, __rmul__ = __add__, __mul__


def _nonnegative(number: _Number | int) -> bool:
    return number.nonnegative if isinstance(number, _Number) else number >= 0
