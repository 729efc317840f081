"""LSTM, GRU and the plain recurrent network as cells that `lax.scan` runs over the first axis.

an LSTM of the file, whose gates are i, o, f, c, recorded as one scan
→   lax.scan(LSTM, (c, h), x), whose gates are i, f, c, o: those of the cells of Flax
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxport.codegen.rewriting.producers import as_tuple, number
from jaxport.codegen.structure.recognition.matching import Matcher
from jaxport.codegen.tree import Layer, Op, Weight
from jaxport.importer.resolving.graph import Attribute
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Function, Variable
from jaxport.jaxprs.dims import static

GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""Where the frameworks' gates are in ONNX: an LSTM's are input, forget, cell, output; a GRU's reset, update, new."""
ZERO = -1
"""The number of a row of zeros."""


def recurrent(op: Op, matcher: Matcher) -> Layer | None:
    """Return the cell of a scan over time; None for all that frameworks have no cell for.

    Its inputs are the sequence (time, batch, features) and the first carry, `(c, h)` for an LSTM; its results the last
    carry and the sequence of `h`.
    """
    step, node = op.step, matcher.weights.nodes.get(op.step.node)
    if node is None or op.operator not in GATES or not _is_plain(node.attributes, op.operator):
        return None
    peepholes = op.operator == "LSTM" and len(node.inputs) > 7 and node.inputs[7] is not None
    if len(step.args) != 3:
        return None
    function, carry, rows = step.args
    if peepholes or not isinstance(function, Function) or function.name != "plain" or not isinstance(rows, Variable):
        return None
    packed = Packed(matcher)
    source = _input_product(rows, packed)
    if source is None or rows.dtype != np.float32:
        return None
    x, of_input, bias = source
    turned = [part for value in op.inputs if (part := _recurrence(value, packed)) is not None]
    if not turned or any(not np.array_equal(turned[0].numbers, other.numbers) for other in turned):
        return None
    weights = packed.weights(op, of_input, turned[0], bias)
    if weights is None:
        return None
    kind = op.operator if "kernel" in weights else f"Gatewise{op.operator}"
    outputs: Any = step.outputs
    if op.operator == "LSTM":
        (h, c), ys = outputs
        states, outputs = (carry[1], carry[0]), ((c, h), ys)
    else:
        states, outputs = carry[0], (outputs[0][0], outputs[1])
    config = {
        "in_features": of_input.whole.shape[-1],
        "hidden_features": turned[0].whole.shape[-1],
        "reverse": bool(step.kwargs.get("reverse", False)),
        "carry": states,
        "outputs": outputs,
    }
    known = tuple(leaf for leaf in jax.tree.leaves(states) if isinstance(leaf, Variable))
    return Layer(kind, config, weights, (x, *known), op.outputs, op.operator.lower())


def _is_plain(attributes: Mapping[str, Attribute], kind: str) -> bool:
    """Whether a node computes the same as the cells of the frameworks."""
    if attributes.get("clip") is not None or attributes.get("input_forget") or attributes.get("activation_alpha"):
        return False
    if attributes.get("activation_beta") or (kind == "GRU" and not attributes.get("linear_before_reset")):
        return False
    names = attributes.get("activations")
    names = names if isinstance(names, tuple) else ()
    usual = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}[kind]
    return all(str(name).lower() == usual[at % len(usual)] for at, name in enumerate(names))


class OfDirection(NamedTuple):
    """What a tensor has for one direction: the numbers of its rows, and the index that takes some of these."""

    whole: Variable
    numbers: np.ndarray
    taken: tuple[Any, ...]


def _input_product(rows: Variable, packed: Packed) -> tuple[Variable, OfDirection, OfDirection | None] | None:
    """Return sequence, weights of the input and biases of `x @ W[d].T + (B[d, :n] + B[d, n:])`."""
    matcher = packed.matcher
    total = matcher.step(rows, "+")
    product = matcher.step(total.step.args[0], "@") if total is not None else None
    if total is None or product is None:
        return None
    x, part = product.step.args[0], packed.part(product.step.args[1], turned=True)
    if part is None or not isinstance(x, Variable) or part.taken:
        return None
    added = total.step.args[1]
    if number(added) == 0:
        return x, part, None
    both = matcher.step(added, "+")
    biases = [packed.part(bias, turned=False) for bias in (both.step.args if both is not None else (added,))]
    first = biases[0]
    if first is None or any(bias is None or bias.whole is not first.whole for bias in biases):
        return None
    return x, part, first


def _recurrence(value: Variable, packed: Packed) -> OfDirection | None:
    """Return the tensor that a step multiplies the state with, part by part and turned."""
    kept = packed.matcher.step(value, "lax.optimization_barrier")
    return packed.part(kept.step.args[0], turned=True) if kept is not None else None


class Packed:
    """The tensors with the weights of all gates: parameters, or rows of parameters that operators put into one.

    A row of a matrix, or an element of a vector, is known by its number among those of all parameters, or as `ZERO`.
    """

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self._rows: dict[Variable, np.ndarray | None] = {}
        self._first: dict[Variable, int] = {}
        self._turned: set[Variable] = set()
        self._count = 0

    def part(self, value: object, turned: bool) -> OfDirection | None:
        """Return the part of a tensor of one direction, or of the first axis for all directions, that a value is."""
        if turned:
            transposed = self.matcher.step(value, "T")
            value = transposed.step.args[0] if transposed is not None else None
        indexed = self.matcher.step(value, "")
        whole, index = indexed.step.args if indexed is not None else (value, ())
        numbers, index = self.rows(whole, is_matrix=turned), as_tuple(index)
        if numbers is not None and numbers.ndim == 2 and index and isinstance(index[0], int):
            numbers, index = numbers[index[0]], index[1:]
        if numbers is None or numbers.ndim != 1 or not isinstance(whole, Variable):
            return None
        return OfDirection(whole, numbers, index)

    def rows(self, value: object, is_matrix: bool) -> np.ndarray | None:
        """Return the numbers of the rows of a value, by all of its axes but that along a row."""
        if isinstance(value, HostValue):
            is_zero = not value.symbolic and not value.data.any()
            return np.full(value.shape[: value.ndim - is_matrix], ZERO) if is_zero else None
        if isinstance(value, Variable) and value not in self._rows:
            self._rows[value] = self._found(value, is_matrix)
        return self._rows[value] if isinstance(value, Variable) else None

    def _found(self, value: Variable, is_matrix: bool) -> np.ndarray | None:
        sizes = static(value.shape[: len(value.shape) - is_matrix])
        if self.matcher.is_parameter(value) and value not in self._turned:
            self._first[value] = self._count
            self._count += math.prod(sizes)
            return np.arange(self._first[value], self._count).reshape(sizes)
        # Any transposition of a matrix that is recorded turns it.
        transposed = self.matcher.step(value, "T", "jnp.transpose") if is_matrix and len(sizes) == 1 else None
        if transposed is not None:
            return self._columns(transposed.step.args[0])
        moved = self.matcher.step(value, "jnp.concatenate", "jnp.reshape", "jnp.expand_dims", "")
        if moved is None:
            return None
        first, *others = moved.step.args
        if moved.step.name == "jnp.concatenate":
            parts = [self.rows(part, is_matrix) for part in first]
            axis = moved.step.kwargs.get("axis", 0)
            known = [part for part in parts if part is not None]
            return np.concatenate(known, axis) if len(known) == len(parts) and axis in range(len(sizes)) else None
        rows = self.rows(first, is_matrix)
        if rows is None or (is_matrix and first.shape[-1] != value.shape[-1]):
            return None
        if moved.step.name == "":
            index = as_tuple(others[0])
            return (
                rows[index] if len(index) <= rows.ndim and all(isinstance(one, int | slice) for one in index) else None
            )
        return rows.reshape(sizes)

    def _columns(self, value: object) -> np.ndarray | None:
        """Return the numbers of the columns of a matrix: of a parameter, or of several side by side."""
        if isinstance(value, Variable) and self.matcher.is_parameter(value):
            if value in self._first and value not in self._turned:
                return None  # elsewhere its rows are those of gates
            if value not in self._first:
                self._first[value], self._count = self._count, self._count + int(value.shape[-1])
                self._turned.add(value)
            return np.arange(self._first[value], self._first[value] + int(value.shape[-1]))
        joined = self.matcher.step(value, "jnp.concatenate")
        if joined is None or joined.step.kwargs.get("axis", 0) not in (1, -1):
            return None
        parts = [self._columns(part) for part in joined.step.args[0]]
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if len(known) == len(parts) else None

    def weights(
        self, op: Op, of_input: OfDirection, of_state: OfDirection, bias: OfDirection | None
    ) -> dict[str, Weight] | None:
        """Return the tensors of a cell: kernels (inputs first) and biases, of gates in the frameworks' order.

        None if they are not whole gates of parameters that only this cell has.
        """
        order, hidden = GATES[op.operator], of_state.whole.shape[-1]
        rows = {"kernel": of_input.numbers, "recurrent_kernel": of_state.numbers}
        if bias is not None:
            rows["bias"], rows["recurrent_bias"] = np.split(bias.numbers, 2)
        gates: dict[str, list[Weight]] = {}
        for role, numbers in rows.items():
            parts = [numbers[at * hidden : (at + 1) * hidden] for at in order]
            if (np.concatenate(parts) == ZERO).all() and "bias" in role:
                continue
            if role == "recurrent_bias" and op.operator == "GRU" and (np.concatenate(parts[:-1]) == ZERO).all():
                role, parts = "new_bias", parts[-1:]
            found = [weight for part in parts if (weight := self._weight(part, "kernel" in role)) is not None]
            if len(found) < len(parts):
                return None
            gates[role] = found
        if ("bias" not in gates and len(gates) > 2) or not all(
            self.matcher.belongs_to(parameter, op) for parameter in self._first
        ):
            return None
        names = {role: [weight.name for weight in parts] for role, parts in gates.items()}
        if all(len({*of_role}) == 1 for of_role in names.values()):
            return {role: _joined(parts) for role, parts in gates.items()}
        is_whole = all(weight.part is None for parts in gates.values() for weight in parts)
        if op.operator == "LSTM" and is_whole and [*gates] == ["kernel", "recurrent_kernel", "bias"]:
            places = {"kernel": "i{}.kernel", "recurrent_kernel": "h{}.kernel", "bias": "h{}.bias"}
            return {
                places[role].format(gate): weight
                for role, parts in gates.items()
                for gate, weight in zip("ifgo", parts, strict=True)
            }
        return None

    def _weight(self, numbers: np.ndarray, is_matrix: bool) -> Weight | None:
        """Return the part of a parameter with these rows, with a column for each; None if they do not follow one
        another.
        """
        parameter = next((v for v, first in self._first.items() if 0 <= numbers[0] - first < self._length(v)), None)
        if parameter is None or not np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))):
            return None
        begin = int(numbers[0]) - self._first[parameter]
        rows = slice(begin, begin + len(numbers))
        if rows.stop > self._length(parameter):
            return None
        whole = self.matcher.weights.weight(parameter)
        if parameter in self._turned:
            if len(numbers) < self._length(parameter):
                return None  # a part that is not in one piece
            return Weight(whole.name, static(parameter.shape), whole.dtype, whole.read, origin=whole.origin)
        width = int(parameter.shape[-1]) if is_matrix else 1
        shape = (width, len(numbers)) if is_matrix else (len(numbers),)
        read = lambda: np.ascontiguousarray(whole.read().reshape(-1, *shape[:-1])[rows].T)
        part = None if len(numbers) == self._length(parameter) else (begin * width, rows.stop * width)
        axes = tuple(reversed(range(len(shape)))) if part is not None or len(shape) == len(whole.shape) else None
        return Weight(whole.name, shape, whole.dtype, read, axes=axes, part=part, origin=whole.origin)

    def _known(self, value: Variable) -> np.ndarray:
        rows = self._rows[value]
        assert rows is not None
        return rows

    def _length(self, parameter: Variable) -> int:
        return int(parameter.shape[-1]) if parameter in self._turned else self._known(parameter).size


def _joined(parts: Sequence[Weight]) -> Weight:
    """Return gates as one tensor."""
    shape = (*parts[0].shape[:-1], sum(part.shape[-1] for part in parts))
    read, axes = lambda: np.concatenate([part.read() for part in parts], axis=-1), tuple(reversed(range(len(shape))))
    return Weight(parts[0].name, shape, parts[0].dtype, read, axes=axes, pieces=tuple(parts), origin=parts[0].origin)
