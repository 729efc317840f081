"""The tensors of a file and the operators around a value, as recognisers of layers query them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from jaxport.codegen.rewriting.patterns import Bindings, bindings, pattern
from jaxport.codegen.rewriting.producers import Producers
from jaxport.codegen.rewriting.steps import REARRANGING
from jaxport.codegen.structure.recognition.stored import dequantized
from jaxport.codegen.tree import Layer, Leaf, Op, Option, Weight, makers_of, present, readers_of
from jaxport.importer.calls import Chain, called
from jaxport.importer.interface import ImportedProgram
from jaxport.importer.resolving.graph import BoundNode
from jaxport.importer.values.recording import Variable
from jaxport.importer.values.stored import tensor_value
from jaxport.jaxprs.dims import static

PRODUCTS = ("jnp.matmul", "@")


@dataclass(eq=False)
class LayerWeights:
    """The tensors of the file: which variable stands for which, and which of them several operators share.

    Attributes:
      program: the imported model.
      names: the names of the parameters, by the variable that stands for each: their places in the modules.
      files: their names in the file.
      shared: the parameters that several operators read, and that are no fresh weights which only happen to be equal;
        each with the operator whose layer keeps it, if one does.
      nodes: the bound nodes of the steps' nodes.
      chains: the modules around each operator.
      channels_last: whether convolutions have their channels last.
      accepts: whether the target has a layer.
    """

    program: ImportedProgram
    names: Mapping[Variable, str]
    files: Mapping[Variable, str]
    shared: Mapping[Variable, Op | None]
    nodes: Mapping[Hashable, BoundNode]
    chains: Mapping[Leaf, Chain]
    channels_last: bool = True
    accepts: Callable[[Layer], bool] = lambda _: True

    def weight(self, variable: Variable, axes: Sequence[int] | None = None) -> Weight:
        """Return a parameter, with its axes in another order."""
        name, file, weights = self.names[variable], self.files[variable], self.program.weights
        dtype, order = np.dtype(variable.dtype), weights.axes(file)
        weight = Weight(
            name, static(variable.shape), dtype, lambda: weights.host_array(file), file not in weights.states, order,
            origin=file,
        )  # fmt: skip
        return weight if axes is None else weight.transposed(axes)

    def initializer(self, node: BoundNode, index: int) -> Weight | None:
        """Return the tensor that a node has as an input, if it is one of the file."""
        value = node.inputs[index] if index < len(node.inputs) else None
        body = self.program.body
        if value is None or value not in body.initializers:
            return None
        name, weights = value.name or "", self.program.weights
        trained = name in weights and name not in weights.states
        tensor = body.initializers[value]
        shape = tuple(tensor.shape.numpy())
        dtype, axes = np.dtype(tensor.dtype.numpy()), tuple(range(len(shape)))
        return Weight(name, shape, dtype, lambda: tensor_value(tensor).data, trained, axes)


class MatrixProduct(NamedTuple):
    """A product with a matrix: its operator, the operands, the bias that is added to it if there is one, and the
    result.
    """

    op: Op
    x: Variable
    kernel: Any
    bias: Weight | None
    out: Variable

    def layer(self, kind: str, config: Mapping[str, Option], **weights: Weight | None) -> Layer:
        """Return the linear layer that computes it, of those weights that there are."""
        return Layer(kind, config, present(**weights, bias=self.bias), (self.x,), (self.out,), "linear")


class Matcher:
    """Queries on the neighbours of a value in a list of operators.

    Attributes:
      weights: the tensors of the file.
      made: the operator that makes each value.
      producers: the same steps, as patterns look at them.
      uses: how often each value is read.
      last: the last operator of each node.
      readers: the operators that read each value.
    """

    def __init__(self, ops: Sequence[Op], result: Sequence[Variable], weights: LayerWeights):
        self.weights = weights
        self.made, self.producers = makers_of(ops), Producers.of(op.step for op in ops)
        self.uses = Counter(variable for op in ops for variable in op.inputs)
        self.uses.update(result)
        self.last = {op.step.node: op for op in ops}
        self.readers = readers_of(ops)

    def step(self, value: object, *names: str) -> Op | None:
        """Return the operator that makes a value, if it is one of these."""
        op = self.made.get(value) if isinstance(value, Variable) else None  # perhaps one of several results
        return op if op is not None and op.step.name in names and op.step.form != "vmap" else None

    def bound(self, text: str, value: object) -> Bindings | None:
        """Return what the names of a pattern stand for in a value or a step; None if it does not match."""
        return next(bindings(pattern(text), value, self.producers), None)

    def is_parameter(self, value: object) -> bool:
        """Whether a value is a tensor of the file that may be trained."""
        file = self.weights.files.get(value) if isinstance(value, Variable) else None
        return file is not None and file not in self.weights.program.weights.states

    def is_state(self, value: Variable, weight: Weight) -> bool:
        """Whether a value is a tensor of the file that is not trained, wherever its axes were moved."""
        while (moved := self.step(value, *REARRANGING)) is not None:
            value = moved.step.args[0]
        return not weight.trained and self.weights.files.get(value) == weight.name

    def belongs_to(self, parameter: Variable, op: Op) -> bool:
        """Whether only the node of an operator reads a parameter, or the same node in other calls of its module."""
        chain = self.weights.chains[op]

        def is_further_call(other: Chain) -> bool:
            return other != chain and [*map(called, other)] == [*map(called, chain)]

        return all(
            reader.step.node is op.step.node or is_further_call(self.weights.chains[reader])
            for reader in self.readers.get(parameter, [])
        )

    def parameter(self, value: object, turned: bool = True) -> Weight | None:
        """Return the weight that a value is: a parameter, or one with its axes in another order."""
        if not isinstance(value, Variable):
            return None
        if value in self.weights.names:
            is_own = self.is_parameter(value) and value not in self.weights.shared
            return self.weights.weight(value) if is_own else None
        op = self.step(value, "T", "jnp.transpose") if turned else None
        if op is None:
            return None
        turned_from: Variable = op.step.args[0]
        rank = len(turned_from.shape)
        axes = tuple(op.step.args[1]) if len(op.step.args) > 1 else tuple(reversed(range(rank)))
        squeezed = self.step(turned_from, "jnp.squeeze")
        stored = squeezed.step.args[0] if squeezed is not None else turned_from
        if not self.is_parameter(stored) or stored in self.weights.shared:
            return None
        if squeezed is not None:
            return self.weights.weight(stored).reshaped(static(turned_from.shape)).transposed(axes)
        return self.weights.weight(turned_from, axes)

    def vector(self, value: Any, size: int) -> Weight | None:
        """Return the parameter of one axis of this size, the last one, that a value is."""
        found = self._of_one_axis(value, size)
        if found is None:
            return self._part(value) if isinstance(value, Variable) and value not in self.weights.names else None
        return found if value.shape == (*[1] * (len(value.shape) - 1), size) else None

    def _of_one_axis(self, value: Any, size: int) -> Weight | None:
        """Return the parameter that a value is, wherever its only axis that is not of one element was moved."""
        while (moved := self.step(value, *REARRANGING)) is not None and self.uses[value] == 1:
            value = moved.step.args[0]
        weight = self.parameter(value, turned=False)
        if weight is None or math.prod(weight.shape) != size or max(weight.shape, default=0) != size:
            return None
        return weight if weight.shape == (size,) else weight.reshaped((size,))

    def _part(self, value: object) -> Weight | None:
        """Return the bias that a value is, if a parameter is split into nothing but biases of linear layers."""
        split = self.step(value, "jnp.split")
        whole = self.parameter(split.step.args[0], turned=False) if split is not None else None
        if split is None or whole is None or len(whole.shape) != 1 or not all(map(self._is_bias, split.outputs)):
            return None
        sizes = [part.shape[0] for part in split.outputs]
        place = split.outputs.index(value)
        part = start, stop = sum(sizes[:place]), sum(sizes[: place + 1])
        return replace(whole, shape=(stop - start,), read=lambda: whole.read()[start:stop], axes=None, part=part)

    def _is_bias(self, value: Variable) -> bool:
        """Whether a value is added once, to a product with a matrix of the file."""
        readers = self.readers.get(value, ())  # none if it is a result of the model
        if self.uses[value] != 1 or not readers or readers[0].step.name != "+":
            return False
        (product,) = (self.step(term, *PRODUCTS) for term in readers[0].step.args if term is not value)
        return product is not None and self.parameter(product.step.args[1]) is not None

    def per_channel(self, value: object, size: int, rank: int) -> Weight | None:
        """Return a parameter of one element per channel that a value spreads over channels first."""
        spread = (size, *[1] * (rank - 2))
        is_spread = isinstance(value, Variable) and value.shape in (spread, (1, *spread))
        return self._of_one_axis(value, size) if is_spread else None

    def with_bias(self, op: Op, size: int, channels_first: bool = False) -> tuple[Op, Weight | None]:
        """Return the operator in front of an addition of a bias, and the bias; or the operator itself.

        The bias is along the last axis, or along the second one.
        """
        if op.step.name != "+":
            return op, None
        for bias, other in (op.step.args, op.step.args[::-1]):
            before = self.made.get(other) if isinstance(other, Variable) else None
            if channels_first:
                weight = self.per_channel(bias, size, len(op.outputs[0].shape))
            else:
                weight = self.vector(bias, size) or dequantized(bias, op.step.node, self.made)
            weight = weight if weight is not None and weight.shape == (size,) else None
            if weight is not None and before is not None and self.uses[other] == 1:
                return before, weight
        return op, None

    def product(self, op: Op, *names: str) -> MatrixProduct | None:
        """Return the product with a matrix, or call of one of these names, that an operator ends: itself, or with a
        bias.
        """
        out = op.outputs[0]
        size = out.shape[-1] if out.shape else None
        product, bias = self.with_bias(op, size) if isinstance(size, int) else (op, None)
        step = product.step
        if step.name not in (names or PRODUCTS) or step.kwargs or product.outputs[0].shape != out.shape:
            return None
        x, kernel = step.args[:2]
        return MatrixProduct(product, x, kernel, bias, out) if isinstance(x, Variable) else None


def are_of_type(x: Variable, *weights: Weight | None) -> bool:
    """Whether tensors have the type of a value."""
    return all(weight is None or weight.dtype == x.dtype for weight in weights)
