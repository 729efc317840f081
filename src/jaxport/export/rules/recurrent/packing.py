"""The weights of a recurrent operator, from those of the cell.

The operator has those of all gates in one tensor. The file has those of the cell, under their paths, and nodes that put
them into one, which runtimes compute while they load the file. Constants that are not weights are computed here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxport.export.emit.value import Value
from jaxport.export.rules.recurrent.cells import Cell, Sum
from jaxport.export.rules.recurrent.expressions import Dot, ElementLeaf, Indices, indices, only_atom
from jaxport.jaxprs import PythonFunction

if TYPE_CHECKING:
    from jaxport.export.emit.emitter import Emitter

#: At most this many slices are concatenated; more become one Gather.
MOST_SLICES = 8

_COMPUTED: Mapping[str, PythonFunction] = {
    "Add": np.add,
    "Concat": lambda *xs, axis: np.concatenate(xs, axis),
    "Gather": np.take,
    "Mul": np.multiply,
    "ReduceSum": lambda x, axes, keepdims: np.sum(x, tuple(axes), keepdims=bool(keepdims)),
    "Reshape": np.reshape,
    "Slice": lambda x, start, end, axis: np.take(x, np.arange(start[0], end[0]), axis[0]),
    "Transpose": lambda x, perm: x.transpose(perm),
}


class Packing:
    """The operands `W`, `R` and `B` of an operator.

    Args:
      op: the emitter.
      cell: the cell.
      size: the number of elements of a state.
      invariants: the values of the invariants, by number.
      inputs: the numbers of the inputs that the operator gets side by side, with their sizes.
      name: the prefix of the names of computed weights.
    """

    def __init__(
        self, op: Emitter, cell: Cell, size: int, invariants: Mapping[int, Any], inputs: Mapping[int, int], name: str
    ):
        self.op, self.cell, self.size, self.invariants, self.inputs, self.name = (
            op,
            cell,
            size,
            invariants,
            inputs,
            name,
        )

    def operands(self) -> tuple[Value, Value, Value | None]:
        """Return `W` (1, gates*size, features), `R` (1, gates*size, size), and `B` (1, 2*gates*size) or None."""
        gates = self.cell.gates
        blocks = [
            self._block([_of(gate.inputs, number) for gate in gates], width) for number, width in self.inputs.items()
        ]
        states = [gate.states for gate in gates]
        if self.cell.recurrent is not None:
            states[-1] = self.cell.recurrent.states
        return (
            self._stored(self._row(self._do("Concat", *blocks, axis=1)), "W"),
            self._stored(self._row(self._block(states, self.size)), "R"),
            self._biases(),
        )

    def _biases(self) -> Value | None:
        recurrent = self.cell.recurrent
        if not any(s.biases or s.number for s in (*self.cell.gates, recurrent or Sum())):
            return None
        count = len(self.cell.gates)
        parts = [self._stored(self._row(self._vectors(self.cell.gates)), "B")]
        if recurrent is not None and (recurrent.biases or recurrent.number):
            parts.append(self._row(self._zeros(((count - 1) * self.size,))))
            parts.append(self._stored(self._row(self._vectors([recurrent])), "RB"))
        else:
            parts.append(self._row(self._zeros((count * self.size,))))
        return self._stored(self._do("Concat", *parts, axis=1), "B")

    def _vectors(self, gates: Sequence[Sum]) -> Value:
        """Return the biases of some gates, concatenated."""
        alone = [gate.biases[0] for gate in gates if len(gate.biases) == 1 and not gate.number]
        leaves = [bias for _, bias in alone if isinstance(bias, ElementLeaf)]
        if len(leaves) == len(gates) and len({(c, b.number) for (c, _), b in zip(alone, leaves, strict=True)}) == 1:
            joined = np.concatenate([leaf.elements for leaf in leaves])
            whole = ElementLeaf("invariant", leaves[0].number, indices(joined))
            return self._times(self._vector(whole), alone[0][0])
        return self._do("Concat", *map(self._bias, gates), axis=0)

    def _bias(self, gate: Sum) -> Value:
        vectors = [self._times(self._vector(bias), coefficient) for coefficient, bias in gate.biases]
        if gate.number or not vectors:
            vectors.append(self.op.const(np.full(self.size, gate.number, np.float32)))
        return self._added(vectors)

    def _vector(self, bias: ElementLeaf | Dot) -> Value:
        if isinstance(bias, Dot):
            return self._do("ReduceSum", self._matrix(bias), (1,), keepdims=0)
        value = self.invariants[bias.number]
        count = math.prod(value.shape)
        return self._picked(self._do("Reshape", value, (count,)), bias.elements, 0)

    def _block(self, gates: Sequence[Sequence[tuple[float, Dot]]], width: int) -> Value:
        """Return the matrix (gates*size, width) that multiplies one operand in all gates."""
        alone = [terms[0] for terms in gates if len(terms) == 1]
        if len(alone) == len(gates) and len({(c, d.vector, d.weight, d.axes, d.rows) for c, d in alone}) == 1:
            coefficient, dot = alone[0]
            columns = indices(np.concatenate([np.asarray(d.columns, np.int64) for _, d in alone]))
            whole = Dot(dot.vector, dot.weight, dot.axes, dot.contracted, dot.rows, columns)
            return self._placed(whole, coefficient, width)
        rows = []
        for terms in gates:
            matrices = [self._placed(dot, coefficient, width) for coefficient, dot in terms]
            rows.append(self._added(matrices) if matrices else self._zeros((self.size, width)))
        return self._do("Concat", *rows, axis=0)

    def _placed(self, dot: Dot, coefficient: float, width: int) -> Value:
        """Return the matrix of a product, with zeros in the columns of elements that it does not use."""
        matrix = self._times(self._matrix(dot), coefficient)
        leaf = only_atom(dot.vector)
        assert isinstance(leaf, ElementLeaf)
        if leaf.elements == range(width):
            return matrix
        order = np.full(width, len(leaf.elements), np.int64)
        order[np.asarray(leaf.elements)] = np.arange(len(leaf.elements))
        padded = self._do("Concat", matrix, self._zeros((len(dot.columns), 1)), axis=1)
        return self._picked(padded, indices(order), 1)

    def _matrix(self, dot: Dot) -> Value:
        """Return the matrix of a product, with a row for each element of the result: gates are next to one another."""
        value = self.invariants[dot.weight]
        axes = (*dot.axes[dot.contracted :], *dot.axes[: dot.contracted])
        shape, rest = [value.shape[axis] for axis in axes], len(axes) - dot.contracted
        matrix = value if list(axes) == sorted(axes) else self._do("Transpose", value, perm=axes)
        sizes = (math.prod(shape[:rest]), math.prod(shape[rest:]))
        if tuple(shape) != sizes:
            matrix = self._do("Reshape", matrix, sizes)
        return self._picked(self._picked(matrix, dot.columns, 0), dot.rows, 1)

    def _picked(self, value: Any, chosen: Indices, axis: int) -> Value:
        """Return some rows or columns."""
        if chosen == range(value.shape[axis]):
            return value
        positions = np.asarray(chosen, np.int64)
        runs = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
        if len(runs) > MOST_SLICES:
            return self._do("Gather", value, positions, axis=axis)
        pieces = [self._do("Slice", value, (int(run[0]),), (int(run[-1]) + 1,), (axis,)) for run in runs]
        return self._do("Concat", *pieces, axis=axis)

    def _times(self, value: Value, coefficient: float) -> Value:
        return value if coefficient == 1 else self._do("Mul", value, np.float32(coefficient))

    def _added(self, values: Sequence[Value]) -> Value:
        total, *rest = values
        for value in rest:
            total = self._do("Add", total, value)
        return total

    def _zeros(self, shape: tuple[int, ...]) -> Value:
        return self.op.const(np.zeros(shape, np.float32))

    def _row(self, value: Value) -> Value:
        """Return a vector or a matrix with an axis for the only direction."""
        return self._do("Reshape", value, (1, *(value.shape or ())))

    def _do(self, op_type: str, *operands: Any, **attributes: Any) -> Any:
        """Apply an operator: return a constant if its operands are, and none of them is a weight."""
        if op_type == "Concat" and len(operands) == 1:
            return operands[0]
        values = [x for x in operands if isinstance(x, Value)]
        if any(value.constant is None or is_kept(value) for value in values):
            return self.op.emit(op_type, *operands, **attributes)
        arrays = [x.constant if isinstance(x, Value) else x for x in operands]
        return self.op.const(_COMPUTED[op_type](*arrays, **attributes))

    def _stored(self, value: Value, suffix: str) -> Value:
        """Return a computed constant under its name; one that is computed twice is stored once."""
        if value.constant is None or is_kept(value):
            return value
        array = np.ascontiguousarray(value.constant, np.float32)
        name = f"{self.name}.{suffix}"
        key = ("recurrent", name, array.shape, hashlib.sha256(array.tobytes()).digest())
        return self.op.walker.derived.setdefault(key, self.op.const(array, name=name))


def is_kept(value: Value) -> bool:
    """Whether a constant is a parameter or a statistic, which stays in the file as the model has it."""
    return value.held is not None and value.held.role != "constant"


def _of(terms: Sequence[tuple[float, Dot]], number: int) -> list[tuple[float, Dot]]:
    """Return the products of one input."""
    return [
        (c, dot) for c, dot in terms if any(isinstance(a, ElementLeaf) and a.number == number for a, _ in dot.vector)
    ]
