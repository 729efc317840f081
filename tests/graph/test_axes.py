"""Elements as sums of products, on random graphs of operators that move elements and compute: against NumPy, index by index."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
import pytest

from jaxport.graph.axes.elements import pieces
from jaxport.graph.axes.sums import AppliedOperator, Element, ElementSum, Index, KnownElement
from jaxport.graph.axis_groups import product
from jaxport.graph.facts.forms import Form
from jaxport.graph.facts.knowledge import Knowledge
from jaxport.jaxprs.dims import evaluate

ROWS = 3
"""What the symbolic size is while values are computed."""
COMPUTED: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add, "Div": np.divide, "Mul": np.multiply, "Neg": np.negative, "Sin": np.sin, "Sub": np.subtract,
    "Where": np.where,
}  # fmt: skip


class Network:
    """A graph that grows by random operators, with the array that each value is."""

    def __init__(self, seed: int):
        self.random, self.arrays = random.Random(seed), dict[ir.Value, np.ndarray]()
        self.constants: list[ir.Value] = []
        x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", 4, 6]))
        y = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", 1, 6]))
        generator = np.random.default_rng(seed)
        for value in (x, y):
            self.arrays[value] = generator.normal(size=self.sizes(value)).astype(np.float32)
        self.graph = ir.Graph([x, y], [], nodes=[], opset_imports={"": 21}, name="net")
        self.values = [x, y]

    def sizes(self, value: ir.Value) -> list[int]:
        return [eval(str(dim), {"n": ROWS}) for dim in value.shape]  # sizes that this file made

    def constant(self, array: np.ndarray) -> ir.Value:
        tensor = ir.Tensor(array, name=f"c{len(self.arrays)}")
        value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape))
        value.const_value, self.arrays[value] = tensor, array
        self.graph.register_initializer(value)
        return value

    def put(self, operator: str, inputs: list[ir.Value], dims: list, array: np.ndarray, **attributes) -> None:
        node = ir.node(operator, inputs, attributes)
        self.graph.append(node)
        (value,) = node.outputs
        value.name, value.type, value.shape = f"v{len(self.arrays)}", ir.TensorType(ir.DataType.FLOAT), ir.Shape(dims)
        assert list(array.shape) == self.sizes(value)
        self.arrays[value] = array
        self.values.append(value)

    def grow(self) -> None:
        x, rng = self.random.choice(self.values[-6:]), self.random
        a, dims = self.arrays[x], [dim if isinstance(dim, int) else str(dim) for dim in x.shape]
        static = [axis for axis, dim in enumerate(dims) if isinstance(dim, int)]
        axis = rng.choice(static)
        size = a.shape[axis]
        match rng.choice(
            "transpose split-axis merge slice concat gather tile pad binary number sign neg sin matrix pair where".split()
        ):
            case "transpose":
                order = rng.sample(range(a.ndim), a.ndim)
                self.put("Transpose", [x], [dims[i] for i in order], a.transpose(order), perm=order)
            case "split-axis" if a.ndim < 5 and (by := [k for k in (2, 3) if size % k == 0]):
                new = [*dims[:axis], k := rng.choice(by), size // k, *dims[axis + 1 :]]
                self._reshape(x, new)
            case "merge" if len(static) > 1:
                at = rng.randrange(a.ndim - 1)
                self._reshape(x, [*dims[:at], product(dims[at : at + 2]), *dims[at + 2 :]])
            case "slice" if size > 1:
                start, stop, step = rng.choice([(0, size - 1, 1), (1, size, 1), (0, size, 2), (-1, -size - 1, -1)])
                vectors = [self.constant(np.array([each])) for each in (start, stop, axis, step)]
                taken = a[(slice(None),) * axis + (slice(start, None if stop < 0 else stop, step),)]
                self.put("Slice", [x, *vectors], [*dims[:axis], taken.shape[axis], *dims[axis + 1 :]], taken)
            case "concat" if size < 12:
                like = [v for v in self.values if [*map(str, v.shape)] == [*map(str, dims)]]
                other = rng.choice(like)
                made = np.concatenate([a, self.arrays[other]], axis)
                self.put("Concat", [x, other], [*dims[:axis], 2 * size, *dims[axis + 1 :]], made, axis=axis)
            case "gather":
                places = np.array(rng.choice([rng.sample(range(size), size), [-1, 0], [*range(size)][::-1]]))
                new = [*dims[:axis], len(places), *dims[axis + 1 :]]
                self.put("Gather", [x, self.constant(places)], new, a.take(places, axis), axis=axis)
            case "tile" if size < 12:
                times = self.constant(np.array([1 + (at == axis) for at in range(a.ndim)]))
                self.put(
                    "Tile", [x, times], [*dims[:axis], 2 * size, *dims[axis + 1 :]], np.tile(a, self.arrays[times])
                )
            case "pad":
                pads = np.zeros(2 * a.ndim, np.int64)
                pads[axis], pads[axis + a.ndim] = rng.randrange(3), rng.randrange(3)
                made = np.pad(a, [(pads[i], pads[i + a.ndim]) for i in range(a.ndim)])
                self.put("Pad", [x, self.constant(pads)], [*dims[:axis], made.shape[axis], *dims[axis + 1 :]], made)
            case "binary":
                like = [v for v in self.values if [*map(str, v.shape)] == [*map(str, dims)]]
                operator, other = rng.choice(["Add", "Sub", "Mul"]), rng.choice(like)
                self.put(operator, [x, other], dims, COMPUTED[operator](a, self.arrays[other]))
            case "number":
                operator = rng.choice(["Add", "Mul", "Div", "Sub"])
                number = np.float32(rng.choice([0, 2, -1]) if operator != "Div" else 2)
                self.put(operator, [x, self.constant(np.asarray(number))], dims, COMPUTED[operator](a, number))
            case "sign" | "where" as kind:
                row = np.array([rng.choice([1, -1]) for _ in range(a.shape[-1])], np.float32)
                if kind == "sign":
                    self.put("Mul", [x, self.constant(row)], dims, a * row)
                else:
                    like = rng.choice([v for v in self.values if [*map(str, v.shape)] == [*map(str, dims)]])
                    made = np.where(row > 0, a, self.arrays[like])
                    self.put("Where", [self.constant(row > 0), x, like], dims, made)
            case "neg" | "sin" as kind:
                operator = kind.capitalize()
                self.put(operator, [x], dims, COMPUTED[operator](a))
            case "matrix" if a.ndim > 1 and isinstance(dims[-1], int):
                order = rng.sample(range(a.shape[-1]), a.shape[-1])
                matrix = np.eye(a.shape[-1], dtype=np.float32)[order] * -1
                self.put("MatMul", [x, self.constant(matrix)], dims, a @ matrix)
            case "pair" if a.ndim > 1 and dims[-1] == 2:
                self.put(
                    "MatMul", [x, m := self.constant(np.array([[1, 2], [3, 4]], np.float32))], dims, a @ self.arrays[m]
                )

    def _reshape(self, x: ir.Value, new: list) -> None:
        vector = self.constant(np.array([0]))  # shapes say what it is
        sizes = [eval(str(dim), {"n": ROWS}) for dim in new]
        self.put("Reshape", [x, vector], new, self.arrays[x].reshape(sizes))


def place(form: Form, labels: tuple[int, ...]) -> int:
    number = lambda size: evaluate(str(size), {"n": ROWS})
    return number(form.constant) + sum(number(slope) * at for slope, at in zip(form.slopes, labels, strict=True))


def value_of(total: ElementSum, arrays: Mapping[ir.Value, np.ndarray], labels: tuple[int, ...]) -> float:
    def at(index: Index) -> tuple[int, ...]:
        return tuple(place(form, labels) for form in index)

    def one(atom: Element | KnownElement | AppliedOperator) -> float:
        match atom:
            case Element(value, index):
                return arrays[value][at(index)]
            case KnownElement(_, index, array):
                return array[at(index)]
            case AppliedOperator(operator, _, operands):
                return COMPUTED[operator](*(value_of(operand, arrays, labels) for operand in operands))

    return sum(factor * math.prod(one(atom) ** power for atom, power in atoms) for atoms, factor in total.terms)


@pytest.mark.parametrize("seed", range(40))
def test_elements_of_random_graphs_have_the_values_that_numpy_gives(seed):
    network = Network(seed)
    for _ in range(14):
        network.grow()
    knowledge, arrays = Knowledge(ir.Model(network.graph, ir_version=10)), network.arrays
    for value in network.values[2:]:
        axis = network.random.choice([a for a, dim in enumerate(value.shape) if isinstance(dim, int)])
        opened = {network.random.choice(network.values)}
        places = []
        for piece in pieces(value, axis, opened, knowledge):
            places += piece.places
            sizes = [len(piece.places) if at == axis else size for at, size in enumerate(network.sizes(value))]
            for labels in itertools.product(*map(range, sizes)):
                index = tuple(piece.places[at] if k == axis else at for k, at in enumerate(labels))
                found = value_of(piece.total, arrays, labels)
                assert found == pytest.approx(float(arrays[value][index]), rel=1e-4, abs=1e-4), (value.name, index)
        if len(places) == value.shape[axis]:
            assert sorted(places) == [*range(len(places))]
