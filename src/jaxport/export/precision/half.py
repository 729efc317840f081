"""Float16 or bfloat16: weights stored in half, products and what follows them computed in half.

1. Weights are stored in half, except those that half cannot represent: too large, or nearly zero; and small ones, other
  than
   those of products, that only operators in float32 use, such as the frequencies that positions are multiplied by.
2. Products, convolutions, attention and normalizations are computed in half if there is a kernel; normalizations and
   attention keep their statistics in float32, as their operators say.
   Attention to a cache has the dtype of the cache. What hides its scores is half of the lowest number of half: a row of
   minus infinity, as that of padding, would be NaN.
3. What moves or combines values in half is computed in half, too.
4. Sums, softmax, exponentials and whatever has subgraphs or a function's body are computed in float32, behind casts.
5. Angles that are made of integers, for sines and cosines, are computed in float32: half holds no positions above
  2,048.
6. A `Concat` that gives an output in float32 is computed in float32: a cache with new rows is not cast and cast back.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import (
    Editor,
    constant_of,
    dims_of,
    is_op,
    number_of,
    set_dtype,
    source,
    subgraphs,
    substitute,
)
from jaxport.graph.fusions.caches import BIAS, KERNELS, PAST, is_cached_attention
from jaxport.onnx_facts import (
    ACTIVATIONS,
    ARITHMETIC,
    CHOICES,
    KERNEL_PRODUCTS,
    LOOKUPS,
    MATRIX_PRODUCTS,
    MEASURES,
    REDUCTIONS,
    ROW_NORMALIZATIONS,
    SIGN_CHANGES,
    VIEWS,
    releases,
    schema,
)

#: Operators that are worth a cast of their operands.
HEAVY = (MATRIX_PRODUCTS - {"Einsum"}) | KERNEL_PRODUCTS | ROW_NORMALIZATIONS | {"Attention", "RotaryEmbedding"}
#: Operators that are computed in half if an operand is in half already. A largest element and a masked one are mostly
#: for a softmax, which is in float32; some kernels compute a Softplus by an exponential that half cannot represent.
FOLLOWING = (
    (CHOICES - REDUCTIONS - {"Where"})
    | ARITHMETIC
    | (ACTIVATIONS - {"Softplus"})
    | SIGN_CHANGES
    | {"AveragePool", "GlobalAveragePool", "Pad"}
)
FLOAT = ir.DataType.FLOAT
FEW = 16
"""Constants with at most this many elements are stored in half only if operators in half use them."""
SMALL = 4096
"""Constants with at most this many elements stay in float32 if only operators in float32 use them."""
SHOWN = 5
"""The number of operator types left in float32 that a report names."""


def half(model: ir.Model, dtype: ir.DataType, *, border: bool = False) -> str:
    """Store and compute the main graph in half.

    Args:
      model: changed in place.
      dtype: float16 or bfloat16.
      border: whether inputs and outputs in float32 become half, too.
    """
    return _Halving(model, dtype, border).run()


@dataclass
class _Halving:
    """One conversion: which values are in half by now, the casts between the two, small constants as they were, and
    limited biases.
    """

    model: ir.Model
    dtype: ir.DataType
    border: bool
    halves: set[ir.Value] = field(default_factory=set)
    casts: dict[ir.Value, ir.Value] = field(default_factory=dict)
    exact: dict[ir.Value, np.ndarray] = field(default_factory=dict)
    finite: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.editor, self.graph = Editor(self.model), self.model.graph
        self.angles = _angles(self.graph)

    def run(self) -> str:
        held = self._store()
        if self.border:
            for value in self.graph.inputs:
                if value.dtype is FLOAT and not value.is_initializer():
                    set_dtype(value, self.dtype)
                    self.halves.add(value)
        computed, kept = 0, collections.Counter()
        for node in list(self.graph):
            if is_op(node, *MEASURES):
                continue
            if self._fits(node):
                self._narrow(node)
                computed += 1
            elif any(value is not None and self._is_float(value) for value in (*node.inputs, *node.outputs)):
                self._widen(node)
                kept[node.op_type] += 1
            for inner in subgraphs([node]):
                for user in inner:
                    self._widen(user)
                for index, value in enumerate(inner.outputs):
                    if value in self.halves:
                        inner.outputs[index] = self._cast(value, FLOAT)
        held -= self._restore()
        self._finish()
        name = self.dtype.numpy().name
        most = ", ".join(f"{count} {op_type}" for op_type, count in kept.most_common(SHOWN))
        more = f" ({most}{', …' if len(kept) > SHOWN else ''})" if kept else ""
        return f"{held} weights stored and {computed} nodes computed in {name}; {kept.total()} left in float32{more}"

    def _store(self) -> int:
        """Store the weights in half, except those that half cannot represent; return how many are stored."""
        count = 0
        for value in self.graph.initializers.values():
            if value.dtype is not FLOAT or value.is_graph_input() or value.is_graph_output():
                continue
            array = constant_of(value)
            if array is not None and array.size > FEW and self._holds(array):
                value.const_value = ir.Tensor(self._rounded(array), dtype=self.dtype, name=value.name)
                set_dtype(value, self.dtype)
                self.halves.add(value)
                if array.size <= SMALL:
                    self.exact[value] = array
                count += 1
        return count

    def _restore(self) -> int:
        """Store small constants in float32 again if nothing uses them in half; return how many."""
        count = 0
        for value, array in self.exact.items():
            cast = self.casts.get(value)
            if cast is None or {*value.consumers()} != {cast.producer()}:
                continue
            if any(is_op(user, *HEAVY) and user not in self.angles for user in cast.consumers()):
                continue
            if substitute(cast, value):
                value.const_value = ir.Tensor(array, dtype=FLOAT, name=value.name)
                set_dtype(value, FLOAT)
                self.halves.discard(value)
                count += 1
        return count

    def _rounded(self, array: np.ndarray) -> np.ndarray:
        with np.errstate(under="ignore"):
            return array.astype(self.dtype.numpy())

    def _holds(self, array: np.ndarray) -> bool:
        """Whether half can represent an array; elements that are small beside the others may become zero."""
        sizes = np.abs(array[np.isfinite(array)])
        largest = float(sizes.max()) if sizes.size else 0.0
        limits = ml_dtypes.finfo(self.dtype.numpy())
        return largest == 0 or float(limits.smallest_normal) <= largest <= float(limits.max)

    def _is_float(self, value: ir.Value) -> bool:
        return value.dtype is FLOAT or value in self.halves

    def _fits(self, node: ir.Node) -> bool:
        """Whether a node should be computed in half, and can be."""
        floats = [value for value in node.inputs if value is not None and self._is_float(value)]
        if is_cached_attention(node):  # which follows its cache, since that is one buffer for past and present
            return self.dtype in KERNELS and source(node, PAST) in self.halves
        if not floats or node in self.angles or not is_op(node, *HEAVY, *FOLLOWING):
            return False
        moved = source(node) in self.halves and node.op_type in LOOKUPS
        follows = moved or any(value in self.halves and not value.is_initializer() for value in floats)
        if node.op_type not in HEAVY and not follows:
            return False
        if is_op(node, "Concat") and node.outputs[0].is_graph_output() and not self.border:
            return False
        narrow = self.dtype.numpy()
        facts = schema.find("", node.op_type, self.model.opset_imports[""])
        if facts is None or narrow in releases.missing(node.op_type) or narrow not in facts.inputs[0].dtypes:
            return False
        arrays = [constant_of(value) for value in floats if value not in self.halves]
        return all(array is None or self._holds(array) for array in arrays)

    def _narrow(self, node: ir.Node) -> None:
        """Compute a node in half."""
        if is_cached_attention(node):
            for index, value in enumerate(node.inputs):
                if value is not None and self._is_float(value):
                    narrow = self._finite(value) if index == BIAS and value not in self.halves else value
                    node.replace_input_with(index, self._as_half(narrow))
            for value in node.outputs:
                set_dtype(value, self.dtype)
                self.halves.add(value)
            return
        facts = schema.find("", node.op_type, self.model.opset_imports[""])
        assert facts is not None
        parameters = set()
        for index, value in enumerate(node.inputs):
            formal = facts.input(index)
            if value is None or formal is None or not self._is_float(value):
                continue
            if self.dtype.numpy() in formal.dtypes:
                parameters.add(formal.type)
                node.replace_input_with(index, self._as_half(value))
            elif value in self.halves:
                node.replace_input_with(index, self._cast(value, FLOAT))
        for index, value in enumerate(node.outputs):
            if value.dtype is FLOAT and facts.output(index).type in parameters:
                set_dtype(value, self.dtype)
                self.halves.add(value)
        if node.op_type == "Attention":
            node.attributes["softmax_precision"] = ir.AttrInt64("softmax_precision", int(FLOAT))

    def _finite(self, bias: ir.Value) -> ir.Value:
        """Return a bias in float32 that is at least half of the lowest number of half: a sum of both is finite."""
        if bias in self.finite:
            return self.finite[bias]
        lowest, value = float(ml_dtypes.finfo(self.dtype.numpy()).min) / 2, bias
        while is_op(node := value.producer(), *VIEWS, "Expand") and all(map(_is_bias, value.consumers())):
            value = source(node)
        if is_op(node, "Where") and all(map(_is_bias, value.consumers())):
            for index in (1, 2):
                number = number_of(node.inputs[index])
                if number is not None and number < lowest:
                    low = self.editor.constant(self.graph, np.asarray(lowest, np.float32), "hidden")
                    node.replace_input_with(index, low)
            if any(number_of(operand) == lowest for operand in node.inputs[1:]):
                self.finite[bias] = bias
                return bias
        limit = self.editor.constant(self.graph, np.asarray(lowest, np.float32), "lowest")
        self.finite[bias] = self.editor.insert(
            self.graph, "Max", [bias, limit], after=bias.producer(), like=bias, shape=dims_of(bias), dtype=FLOAT
        )
        return self.finite[bias]

    def _widen(self, node: ir.Node) -> None:
        """Cast the operands of a node to float32."""
        for index, value in enumerate(node.inputs):
            if value in self.halves and not is_op(node, *MEASURES):
                node.replace_input_with(index, self._cast(value, FLOAT))

    def _as_half(self, value: ir.Value) -> ir.Value:
        if value in self.halves:
            return value
        array = constant_of(value)
        if array is None:
            return self._cast(value, self.dtype)
        return self.editor.constant(self.graph, self._rounded(array), f"{value.name}/half", value)

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return a value in the other dtype, cast once."""
        if value not in self.casts:
            shape = dims_of(value)
            self.casts[value] = self.editor.insert(
                self.graph, "Cast", [value], after=value.producer(), like=value, shape=shape, dtype=dtype, to=int(dtype)
            )
        return self.casts[value]

    def _finish(self) -> None:
        """Cast the outputs to the dtype of the border, and give them back their names."""
        for index, value in enumerate(self.graph.outputs):
            wanted = self.dtype if self.border else FLOAT
            if not self._is_float(value) or (value in self.halves) == self.border:
                continue
            name = value.name
            value.name = self.editor.unique(f"{name}/{'wide' if self.border else 'half'}")
            self.casts.pop(value, None)
            result = self._cast(value, wanted)
            result.name = name
            self.graph.outputs[index] = result


def _is_bias(node: ir.Node) -> bool:
    """Whether a node only moves a value, or adds it to the scores of attention to a cache."""
    return is_op(node, *VIEWS, "Expand", "Cast") or is_cached_attention(node)


def _angles(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes between integers and the sines and cosines that are all they serve."""
    counted: set[ir.Value] = set()
    nodes = []
    for node in graph:
        operands = [value for value in node.inputs if value is not None and constant_of(value) is None]
        is_counted = is_op(node, "Cast") and _is_integer(source(node))
        is_derived = is_op(node, *ARITHMETIC, *MATRIX_PRODUCTS, *VIEWS) and bool(operands)
        if is_counted or (is_derived and all(value in counted or _is_integer(value) for value in operands)):
            counted.update(node.outputs)
            nodes.append(node)
    angles: set[ir.Node] = set()
    for node in reversed(nodes):
        (result,) = node.outputs
        users = [] if result.is_graph_output() else list(result.consumers())
        if users and all(is_op(user, "Sin", "Cos") or user in angles for user in users):
            angles.add(node)
    return angles


def _is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()
