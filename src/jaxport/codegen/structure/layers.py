"""Operators that are a layer: a weight, and what is done with it.

A layer stands for exactly the steps that compute its result, whatever operators of the file they came from. A recogniser
looks at one step, and from there backwards; what it does not know for sure stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxport.codegen.tree import Layer, Leaf, Op, Weight
from jaxport.importer.graph import BoundNode
from jaxport.importer.host import HostValue
from jaxport.importer.program import Program
from jaxport.importer.recording import Step, Variable
from jaxport.importer.resolve import tensor_value

__all__ = ["LayerWeights", "recognised"]

FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(eq=False)
class LayerWeights:
    """The tensors of the file: which variable stands for which, and which of them several operators share.

    Attributes:
      program: the imported model.
      names: the names of the parameters, by the variable that stands for each.
      shared: the parameters that several operators read, and that are no fresh weights which only happen to be equal;
        each with the operator whose layer keeps it, if one does.
      nodes: the bound nodes of the steps' nodes.
    """

    program: Program
    names: Mapping[Variable, str]
    shared: Mapping[Variable, Op | None]
    nodes: Mapping[Any, BoundNode]

    def weight(self, variable: Variable, axes: Sequence[int] | None = None) -> Weight:
        """A parameter, with its axes in another order."""
        name, weights = self.names[variable], self.program.weights

        def read() -> np.ndarray:
            array = weights.host_array(name)
            return array if axes is None else array.transpose(axes)

        shape = variable.shape if axes is None else tuple(variable.shape[axis] for axis in axes)
        return Weight(name, shape, np.dtype(variable.dtype), read)

    def constant(self, value: HostValue, trained: bool = False) -> Weight:
        """A tensor that is no parameter of the program."""
        return Weight(value.name, value.shape, value.dtype, lambda: value.data, trained)

    def initializer(self, node: BoundNode, index: int) -> Weight | None:
        """The tensor that a node has as an input, if it is one of the file."""
        value = node.inputs[index] if index < len(node.inputs) else None
        body = self.program.body
        if value is None or value not in body.initializers:
            return None
        name, trained = value.name or "", value.name in self.program.weights.values
        tensor = body.initializers[value]
        shape = tuple(tensor.shape.numpy())
        return Weight(name, shape, np.dtype(tensor.dtype.numpy()), lambda: tensor_value(tensor).data, trained)


class _Recogniser:
    """Looks for layers in a list of operators."""

    def __init__(self, ops: Sequence[Op], result: Sequence[Variable], weights: LayerWeights):
        self.weights = weights
        self.made = {variable: op for op in ops for variable in op.outputs}
        self.uses = Counter(variable for op in ops for variable in op.inputs)
        self.uses.update(result)
        self.last = {id(op.step.node): op for op in ops}

    def layer(self, op: Op) -> Layer | None:
        if len(op.outputs) != 1 or op.outputs[0].dtype.name not in FLOATS:
            return None
        for recognise in (self.linear, self.convolution, self.embedding, self.normalization, self.batch_normalization):
            found = recognise(op)
            if found is not None:
                return found
        return None

    def step(self, value: Any, *names: str) -> Op | None:
        """The operator that makes a value, if it is one of these."""
        op = self.made.get(value) if isinstance(value, Variable) else None
        return op if op is not None and op.step.name in names and not _transformed(op.step) else None

    def parameter(self, value: Any, turned: bool = True) -> Weight | None:
        """The weight that a value is: a parameter, or one with its axes in another order."""
        if not isinstance(value, Variable):
            return None
        if value in self.weights.names:
            return None if value in self.weights.shared else self.weights.weight(value)
        op = self.step(value, "T", "jnp.transpose") if turned else None
        if op is None or op.step.args[0] not in self.weights.names or op.step.args[0] in self.weights.shared:
            return None
        turned_from: Variable = op.step.args[0]
        rank = len(turned_from.shape)
        axes = tuple(op.step.args[1]) if len(op.step.args) > 1 else tuple(reversed(range(rank)))
        return self.weights.weight(turned_from, axes)

    def vector(self, value: Any, size: int) -> Weight | None:
        """A parameter of one axis of this size; one of a single element is a constant of the program."""
        if isinstance(value, HostValue) and value.name and value.shape == (size,) == (1,) and not value.symbolic:
            return self.weights.constant(value, trained=True)
        weight = self.parameter(value, turned=False)
        return weight if weight is not None and weight.shape == (size,) else None

    def with_bias(self, op: Op, size: int) -> tuple[Op, Weight | None]:
        """The operator in front of an addition of a bias, and the bias; or the operator itself."""
        if op.step.name != "+":
            return op, None
        for bias, other in (op.step.args, op.step.args[::-1]):
            weight, before = self.vector(bias, size), self.made.get(other) if isinstance(other, Variable) else None
            if weight is not None and before is not None and self.uses[other] == 1:
                return before, weight
        return op, None

    def linear(self, op: Op) -> Layer | None:
        out = op.outputs[0]
        if not out.shape or not isinstance(out.shape[-1], int):
            return None
        product, bias = self.with_bias(op, out.shape[-1])
        if product.step.name not in ("jnp.matmul", "@") or product.step.kwargs:
            return None
        x, kernel = product.step.args
        weight = self.parameter(kernel)
        if weight is None or len(weight.shape) != 2 or not isinstance(x, Variable) or x in self.weights.names:
            return None
        if not _same_type(x, weight, bias) or len(x.shape) < 1 or product.outputs[0].shape != out.shape:
            return None
        weights = {"kernel": weight} | ({"bias": bias} if bias is not None else {})
        config = {"in_features": weight.shape[0], "out_features": weight.shape[1]}
        return Layer("Linear", config, weights, (x,), (out,), "linear")

    def convolution(self, op: Op) -> Layer | None:
        out = op.outputs[0]
        if len(out.shape) < 3 or not isinstance(out.shape[-1], int):
            return self._convolution(op, op, None)
        product, bias = self.with_bias(op, out.shape[-1])
        return self._convolution(op, product, bias)

    def _convolution(self, op: Op, product: Op, bias: Weight | None) -> Layer | None:
        step, out = product.step, op.outputs[0]
        if step.name.rpartition(".")[2] not in CONVOLUTIONS or product.outputs[0].shape != out.shape:
            return None
        x, kernel, strides, pads = step.args
        weight = self.parameter(kernel, turned=False)
        if weight is None or not isinstance(x, Variable) or not _same_type(x, weight, bias) or isinstance(pads, str):
            return None
        if step.kwargs.get("dimension_numbers") != ("NHWC", "HWIO", "NHWC"):
            return None
        unknown = step.kwargs.keys() - {"dimension_numbers", "feature_group_count", "rhs_dilation"}
        groups, dilation = step.kwargs.get("feature_group_count", 1), step.kwargs.get("rhs_dilation")
        rank = len(weight.shape) - 2
        if unknown or not all(isinstance(n, int) for pair in pads for n in pair):
            return None
        config = {
            "in_features": weight.shape[-2] * groups,
            "out_features": weight.shape[-1],
            "kernel_size": weight.shape[:rank],
            "strides": tuple(int(n) for n in strides),
            "padding": tuple(tuple(int(n) for n in pair) for pair in pads),
            "kernel_dilation": tuple(int(n) for n in dilation) if dilation is not None else (1,) * rank,
            "feature_group_count": groups,
        }
        weights = {"kernel": weight} | ({"bias": bias} if bias is not None else {})
        return Layer("Conv", config, weights, (x,), (out,), "conv")

    def embedding(self, op: Op) -> Layer | None:
        """`take(table, indices)`; or the same of indices that are clipped, with NaN for those that were outside."""
        lookup, indices = op, None
        if op.step.name == "jnp.where" and len(op.step.args) == 3 and np.isnan(_number(op.step.args[2]) or 0):
            found = self.step(op.step.args[1], "jnp.take")
            if found is None or self.uses[found.outputs[0]] != 1 or found.outputs[0].shape != op.outputs[0].shape:
                return None
            lookup, indices = found, self._unclipped(op.step.args[0], found)
            if indices is None:
                return None
        if lookup.step.name != "jnp.take" or lookup.step.kwargs != {"axis": 0}:
            return None
        table = lookup.step.args[0]
        indices = lookup.step.args[1] if indices is None else indices
        if table not in self.weights.names or self.weights.shared.get(table, lookup) is not lookup:
            return None
        weight = self.weights.weight(table)
        if len(weight.shape) != 2 or weight.shape[0] < 2:
            return None
        if not isinstance(indices, Variable) or np.dtype(indices.dtype).kind not in "iu":
            return None
        config = {"num_embeddings": weight.shape[0], "features": weight.shape[1]}
        return Layer("Embed", config, {"embedding": weight}, (indices,), op.outputs, "embed")

    def _unclipped(self, condition: Any, lookup: Op) -> Variable | None:
        """The indices that were clipped for a lookup, if a condition says which of them were not changed by that."""
        expanded = self.step(condition, "jnp.expand_dims")
        equal = self.step(expanded.step.args[0], "==", "jnp.equal") if expanded is not None else None
        clip = self.step(lookup.step.args[1], "jnp.clip")
        if expanded is None or equal is None or clip is None or len(clip.step.args) != 3:
            return None
        indices, low, high = clip.step.args
        rows, rank = lookup.step.args[0].shape[0], len(indices.shape) if isinstance(indices, Variable) else -1
        same = {id(part) for part in equal.step.args} == {id(indices), id(clip.outputs[0])}
        last = len(expanded.step.args) > 1 and list(np.atleast_1d(expanded.step.args[1])) in ([rank], [-1])
        return indices if same and last and (_number(low), _number(high)) == (-rows, rows - 1) else None

    def normalization(self, op: Op) -> Layer | None:
        """`(x - mean(x)) / sqrt(mean((x - mean(x))²) + epsilon) * scale + bias`, and the same without the mean."""
        out = op.outputs[0]
        if out.dtype != np.float32 or not out.shape or not isinstance(out.shape[-1], int):
            return None
        size = out.shape[-1]
        scaled, bias = self.with_bias(op, size)
        if scaled.step.name != "*":
            return None
        for scale, normal in (scaled.step.args, scaled.step.args[::-1]):
            weight = self.vector(scale, size)
            found = self.standardized(normal) if weight is not None else None
            if found is None or weight is None:
                continue
            x, epsilon, centered = found
            if x.shape != out.shape or x.dtype != out.dtype or (bias is not None and not centered):
                return None
            weights = {"scale": weight} | ({"bias": bias} if bias is not None else {})
            kind = "LayerNorm" if centered else "RMSNorm"
            config = {"num_features": size, "epsilon": epsilon}
            return Layer(kind, config, weights, (x,), (out,), "norm")
        return None

    def standardized(self, value: Any) -> tuple[Variable, float, bool] | None:
        """What was divided by its root mean square over the last axis, the epsilon, and whether it was centered."""
        product, quotient = self.step(value, "*"), self.step(value, "/")
        if product is not None:
            pairs = [(a, self.step(b, "lax.rsqrt")) for a, b in (product.step.args, product.step.args[::-1])]
        elif quotient is not None:
            pairs = [(quotient.step.args[0], self.step(quotient.step.args[1], "jnp.sqrt"))]
        else:
            return None
        for numerator, root in pairs:
            shifted = self.step(root.step.args[0], "+") if root is not None else None
            if shifted is None or not isinstance(numerator, Variable):
                continue
            for mean, epsilon in (shifted.step.args, shifted.step.args[::-1]):
                number, square = _number(epsilon), self.mean_of(mean)
                if number is None or square is None or not self.is_square(square, numerator):
                    continue
                difference = self.step(numerator, "-")
                if difference is not None:
                    x, average = difference.step.args
                    if isinstance(x, Variable) and self.mean_of(average) is x:
                        return x, number, True
                return numerator, number, False
        return None

    def mean_of(self, value: Any) -> Any:
        """What a value is the mean of, over the last axis, which is kept."""
        op = self.step(value, "jnp.mean")
        if op is None or len(op.step.args) != 1 or not isinstance(op.step.args[0], Variable):
            return None
        averaged: Variable = op.step.args[0]
        axis, rank = op.step.kwargs.get("axis"), len(averaged.shape)
        axes = (axis,) if isinstance(axis, int) else axis
        last = isinstance(axes, tuple) and len(axes) == 1 and axes[0] in (-1, rank - 1)
        return averaged if last and op.step.kwargs == {"axis": axis, "keepdims": True} else None

    def is_square(self, value: Any, of: Variable) -> bool:
        op = self.step(value, "*", "**", "jnp.power", "jnp.square")
        if op is None or op.step.args[0] is not of:
            return False
        return (
            op.step.name == "jnp.square"
            or op.step.args[1] is of
            or (op.step.name != "*" and _number(op.step.args[1]) == 2)
        )

    def batch_normalization(self, op: Op) -> Layer | None:
        """Batch normalization by statistics: the whole of an operator, whose last step this is."""
        node = self.weights.nodes.get(op.step.node)
        if op.operator != "BatchNormalization" or node is None or self.last[id(op.step.node)] is not op:
            return None
        if node.attributes.get("training_mode") or node.attributes.get("spatial", 1) != 1 or len(node.outputs) != 1:
            return None
        found = [self.weights.initializer(node, index) for index in range(1, 5)]
        scale, bias, mean, var = found
        first = self._difference(op)
        if scale is None or bias is None or mean is None or var is None or first is None or op.step.name != "+":
            return None
        x, average = first.step.args
        sizes = {weight.shape for weight in (scale, bias, mean, var)}
        if not isinstance(x, Variable) or not isinstance(average, HostValue) or len(sizes) != 1:
            return None
        if x.shape != op.outputs[0].shape or not all(
            w.dtype == x.dtype == np.float32 for w in (scale, bias, mean, var)
        ):
            return None
        if not {scale.name, bias.name}.isdisjoint(self.weights.names[variable] for variable in self.weights.shared):
            return None
        axis = len(x.shape) - 1 if average.ndim == 1 else 1
        if x.shape[axis] != scale.shape[0]:
            return None
        config = {
            "num_features": scale.shape[0],
            "epsilon": float(np.float32(node.attributes.get("epsilon", 1e-5))),
            "momentum": float(np.float32(node.attributes.get("momentum", 0.9))),
            "axis": -1 if axis == len(x.shape) - 1 else axis,
        }
        weights = {"scale": scale, "bias": bias, "mean": mean, "var": var}
        return Layer("BatchNorm", config, weights, (x,), op.outputs, "norm")

    def _difference(self, op: Op) -> Op | None:
        """The first step of a batch normalization: `x - mean`."""
        product = self.made.get(op.step.args[0]) if op.step.args and isinstance(op.step.args[0], Variable) else None
        if product is None or product.step.node is not op.step.node or product.step.name != "*":
            return None
        first = self.step(product.step.args[0], "-")
        return first if first is not None and first.step.node is op.step.node else None


CONVOLUTIONS = {"conv_general_dilated", "depthwise_convolution", "grouped_convolution"}


def _transformed(step: Step) -> bool:
    return step.form == "vmap"


def _same_type(x: Variable, *weights: Weight | None) -> bool:
    return all(weight is None or weight.dtype == x.dtype for weight in weights)


def _number(value: Any) -> float | None:
    """A scalar that is known, or None."""
    if isinstance(value, HostValue) and value.size == 1 and not value.symbolic and value.dtype.kind in "iuf":
        return float(value.data.reshape(())[()])
    return float(value) if isinstance(value, int | float | np.number) and not isinstance(value, bool) else None


def recognised(ops: Sequence[Op], result: Sequence[Variable], weights: LayerWeights) -> list[Leaf]:
    """The operators with layers in place of those that are one; what only a layer read is left out."""
    recogniser = _Recogniser(ops, result, weights)
    needed = set(result)
    leaves: list[Leaf] = []
    for op in reversed(ops):
        if needed.isdisjoint(op.outputs):
            continue
        leaf: Leaf = recogniser.layer(op) or op
        needed |= set(leaf.inputs)
        leaves.append(leaf)
    return leaves[::-1]
