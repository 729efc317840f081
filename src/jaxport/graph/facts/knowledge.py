"""What is known of the values of a graph: the analysis, and what it starts from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, dims_of, is_op, is_weight, size_in
from jaxport.graph.facts.facts import Facts, Operand, SeenNode, of_constant
from jaxport.graph.facts.forms import Form, uniform
from jaxport.graph.facts.moves import Places, places_of
from jaxport.graph.facts.operators import RULES
from jaxport.onnx_facts import ARITHMETIC, COMPARISONS, SELECTIONS, VIEWS
from jaxport.sizes.sums import SizeSum, size_sum

Key = TypeVar("Key")

LARGEST = 1 << 22
"""The bytes up to which the elements of a constant are looked at."""

FOLLOWED = VIEWS | ARITHMETIC | {"Cast", "ConstantOfShape", "Neg"} | {"Trilu", "Where"}
"""Operators whose floats are followed for all inputs: they make masks of positions."""

FINITE = Facts(never_nan=True, never_infinite=True, never_minus_infinite=True)


def follow(
    value: Key, found: dict[Key, Facts], operands: Callable[[Key], Iterable[Key]], facts: Callable[[Key], Facts]
) -> Facts:
    """Return what is known of a value, after what is known of all that it is computed from: programs may be deeper than
    Python's stack.

    Args:
      value: the value.
      found: what is known already; changed in place.
      operands: the values that one is computed from.
      facts: what is known of a value, if its operands are in `found`.
    """
    stack = [value]
    while stack:
        last = stack[-1]
        unseen = [] if last in found else [operand for operand in operands(last) if operand not in found]
        if unseen:
            stack += unseen
            continue
        stack.pop()
        if last not in found:
            found[last] = facts(last)
    return found[value]


@dataclass(eq=False)
class Knowledge:
    """What is known of values, asked one by one; what was found is kept, since a value never becomes another.

    Args:
      model: the model.
      are_finite: whether inputs and weights are taken to be finite, but for masks, which may be minus infinity. If not,
        what is known holds for all of them, and nothing is known of comparisons of floats.
      sizes: by value, its elements as texts of sizes, if they depend on sizes alone.

    >>> import onnx.parser
    >>> model = ir.from_proto(
    ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     a (float[4] x) => (bool[4, 4] y) <int64 zero = {0}, int64 one = {1}, int64 four = {4}, int64[1] axis = {1}>
    ...     { i = Range(zero, four, one) q = Unsqueeze(i, axis) y = LessOrEqual(i, q) }''')
    ... )
    >>> for value, shape in zip([node.outputs[0] for node in model.graph], ([4], [4, 1], [4, 4])):
    ...     value.shape, value.dtype = (
    ...         ir.Shape(shape),
    ...         ir.DataType.INT64 if len(shape) < 2 or 1 in shape else ir.DataType.BOOL,
    ...     )
    >>> Knowledge(model).of(model.graph.outputs[0]).band
    Band(conditions=frozenset({Form(constant=SizeSum(0), slopes=(SizeSum(1), SizeSum(-1)))}), is_never=False)
    """

    model: ir.Model
    sizes: Mapping[ir.Value, np.ndarray] = field(default_factory=dict)
    are_finite: bool = True
    _found: dict[ir.Value, Facts] = field(default_factory=dict)

    def of(self, value: ir.Value | None) -> Facts:
        """Return what is known of a value."""
        return Facts() if value is None else follow(value, self._found, self._operands, self._facts)

    def _operands(self, value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        if node is None or self._is_given(value):
            return []
        return [operand for operand in node.inputs if operand is not None]

    def _is_given(self, value: ir.Value) -> bool:
        if value in self.sizes or constant_of(value) is not None or is_weight(value):
            return True
        floats = value.dtype is None or value.dtype.is_floating_point()
        return not self.are_finite and floats and not is_op(value.producer(), *FOLLOWED)

    def _facts(self, value: ir.Value) -> Facts:
        dims, dtype = dims_of(value), value.dtype
        array = constant_of(value)
        if is_weight(value):
            return (FINITE if self.are_finite else Facts()).completed(dtype, dims)
        if array is not None:
            facts = of_constant(array) if array.nbytes <= LARGEST else Facts()
            return facts.completed(dtype, array.shape)
        if not self.are_finite and self._is_given(value) and value not in self.sizes:
            return Facts()
        if value in self.sizes:
            return of_sizes(self.sizes[value]).completed(dtype, dims)
        operation = self.operation(value)
        rule = None if operation is None or self._is_of_floats(operation) else RULES.get(operation.op_type)
        if operation is None or rule is None:
            is_whole = self.are_finite and value.producer() is None and self._is_whole(value)
            is_whole = is_whole and not (value.is_graph_input() and _is_questioned(value))
            hides = is_whole and value.is_graph_input() and _may_hide(value)
            return (replace(FINITE, never_minus_infinite=not hides) if is_whole else Facts()).completed(dtype, dims)
        size = size_in(value)
        facts = rule(operation)
        if size is not None and facts.form is None:
            facts = replace(facts, form=Form(size_sum(size)))
        return facts.completed(dtype, dims)

    def _is_whole(self, value: ir.Value) -> bool:
        """Whether a value is an input or a weight of the model."""
        return value.is_initializer() or (value.is_graph_input() and value.graph is self.model.graph)

    def _is_of_floats(self, operation: SeenNode) -> bool:
        """Whether a node compares floats, which may be NaN."""
        first = operation.operand(0)
        floats = first is None or first.dtype is None or first.dtype.is_floating_point()
        return not self.are_finite and floats and operation.op_type in COMPARISONS | {"Clip", "Max", "Min"}

    def operation(self, value: ir.Value) -> SeenNode | None:
        """Return the node that computes a value as rules see it; None if its operator or its shape is unknown."""
        node, dims, dtype = value.producer(), dims_of(value), value.dtype
        if node is None or node.domain or dims is None or dtype is None:
            return None
        if any(attribute.is_ref() for attribute in node.attributes.values()):
            return None
        operands = [None if operand is None else self._operand(operand) for operand in node.inputs]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        place = next(place for place, output in enumerate(node.outputs) if output is value)
        return SeenNode(node.op_type, attributes, operands, dims, dtype, place, node.version)

    def places(self, value: ir.Value) -> Places | None:
        """Return from where in its first operand a value takes its elements, if an operator only moves them."""
        node = value.producer()
        for operand in () if node is None else node.inputs[1:]:
            self.of(operand)
        operation = self.operation(value)
        return None if operation is None else places_of(operation)

    def _operand(self, value: ir.Value) -> Operand:
        return Operand(self._found.get(value, Facts()), dims_of(value), value.dtype, constant_of(value), value)


def _may_hide(value: ir.Value) -> bool:
    """Whether an input is added to the scores of a softmax, as it is or scaled: it is a mask, which may be minus
    infinity.
    """
    return any(is_op(user, "Softmax") for user in _readers(value, VIEWS | ARITHMETIC | {"Cast"}))


def _is_questioned(value: ir.Value) -> bool:
    """Whether a model asks if elements of an input are finite, which then some of them may not be."""
    readers = _readers(value, SELECTIONS | {"Abs", "Cast", "Neg"})
    return any(is_op(user, "IsInf") or (is_op(user, "IsNaN") and not _places_nan(user)) for user in readers)


def _places_nan(node: ir.Node) -> bool:
    """Whether a node says where NaN is for `ArgMax` alone, whose own result runtimes disagree on then."""
    casts = node.outputs[0].consumers()
    places = [user for cast in casts if is_op(cast, "Cast") for user in cast.outputs[0].consumers()]
    return all(is_op(cast, "Cast") for cast in casts) and any(is_op(user, "ArgMax") for user in places)


def _readers(value: ir.Value, through: Collection[str]) -> Iterator[ir.Node]:
    """Yield the nodes that read a value, or what operators make of it."""
    stack, seen = [value], set[ir.Value]()
    while stack:
        for user in stack.pop().consumers():
            yield user
            if is_op(user, *through):
                more = [output for output in user.outputs if output not in seen]
                seen.update(more)
                stack += more


def of_sizes(array: np.ndarray) -> Facts:
    """Return what is known of integers, given as numbers, sizes or their texts."""
    elements = np.vectorize(lambda size: size if isinstance(size, SizeSum) else size_sum(_dim(size)), otypes=[object])(
        array
    )
    flat: Sequence[SizeSum] = list(elements.ravel())
    is_same = bool(flat) and all(size == flat[0] for size in flat)
    form = uniform(flat[0], array.ndim) if is_same else None
    return Facts(form=form, elements=elements if array.ndim < 2 else None)


def _dim(size: object) -> int | str:
    text = str(size)
    return int(text) if text.lstrip("-").isdecimal() else text
