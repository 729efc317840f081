"""Patterns written as JAX functions: the nodes that the exporter emits for a function are matched in graphs.

So a pattern follows the export rules when they change. Matching is up to commutativity and associativity: a product is
the product of its factors in any order and grouping, with its constants anywhere; so is a sum.

>>> import jax.numpy as jnp
>>> pattern = Pattern.of(lambda x: x * (1 + jnp.tanh(x)), np.dtype("float32"), 23)
>>> written = Pattern.of(lambda x: (jnp.tanh(x) + 1) * x, np.dtype("float32"), 23)
>>> pattern.match(written.result) == PatternMatch(written.inputs[0], {})
True
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import constant_of, is_op, number_of, source, sources
from jaxport.graph.fusing import same_but_for_ones
from jaxport.graph.matching import close
from jaxport.graph.remembering import remembered
from jaxport.jaxprs import PythonFunction
from jaxport.onnx_facts import COMMUTATIVE, RESHAPING, releases

#: The operators that products consist of, and the exponents of their operands; powers with an integer are products,
#: too.
PRODUCTS = {"Mul": (1, 1), "Div": (1, -1), "Neg": (1,)}
SUMS = ("Add", "Sub")
#: The largest number of factors or terms in a pattern: longer products in graphs are not split further.
LIMIT = 8
#: Products and sums of more values than this are not searched for operators.
MANY = 32

T = TypeVar("T")
Bindings = dict[ir.Value, "ir.Value | float"]


@dataclass(frozen=True)
class PatternMatch:
    """The value that matches a pattern's argument, and the numbers that match its parameters."""

    x: ir.Value
    parameters: dict[str, float]


@dataclass(frozen=True, eq=False)
class Pattern:
    """A computation of one array and some numbers, as a graph.

    Attributes:
      inputs: the array, then the numbers.
      names: the names of the numbers.
      result: the computed value.
    """

    inputs: tuple[ir.Value, ...]
    names: tuple[str, ...]
    result: ir.Value

    @classmethod
    def of(cls, function: PythonFunction, dtype: np.dtype, opset: int, late: bool = False) -> Pattern:
        """Return the pattern of a JAX function of an array and keyword-only numeric parameters.

        Args:
          function: the function.
          dtype: that of the array and the numbers.
          opset: the opset of the nodes.
          late: whether what exports write out last, `LATE`, is one node.
        """
        from jaxport.export.function_graph import function_graph

        names = tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)
        graph = function_graph(function, names, dtype, opset, late)
        return cls(tuple(graph.inputs), names, graph.outputs[0])

    @functools.cached_property
    def root(self) -> str:
        """The kind of the last operator: its name, or that of products and sums."""
        return kind(self.result)

    @functools.cached_property
    def op_types(self) -> frozenset[str]:
        """The operators of the pattern."""
        producer = self.result.producer()
        assert producer is not None
        assert producer.graph is not None
        return frozenset(node.op_type for node in producer.graph)

    @functools.cached_property
    def operators(self) -> frozenset[str]:
        """The operators whose results the pattern's products and sums combine."""
        return frozenset(operators_below(self.result) or ()) - {""}

    def match(self, value: ir.Value, below: Set[str] | None = None) -> PatternMatch | None:
        """Match a value of a graph with the pattern; return None if it differs.

        `below` is the result of `operators_below` for the value: if it lacks an operator of the pattern, it is no
        match.
        """
        if kind(value) != self.root or (below is not None and not below >= self.operators):
            return None
        for bindings in self._unify(self.result, value, {}):
            x = bindings.get(self.inputs[0])
            numbers = {name: bindings.get(number) for name, number in zip(self.names, self.inputs[1:], strict=True)}
            bound = {name: number for name, number in numbers.items() if isinstance(number, float)}
            if isinstance(x, ir.Value) and len(bound) == len(numbers):
                return PatternMatch(x, bound)
        return None

    def operands_of(self, value: ir.Value) -> list[ir.Value | None] | None:
        """Return the operands of which a value is what the pattern computes, operator by operator; None if it is not.

        >>> pattern = Pattern.of(lambda x: x * abs(x), np.dtype("float32"), 23)
        >>> pattern.operands_of(pattern.result) == [pattern.inputs[0]]
        True
        """
        bound: dict[ir.Value, ir.Value | None] = {}
        return [bound.get(x) for x in self.inputs] if _is_same(self.result, value, bound, self.inputs) else None

    def is_of(self, value: ir.Value, operands: Sequence[ir.Value | None]) -> bool:
        """Whether a value is what the pattern computes of these values, operator by operator as the exporter writes it.

        >>> pattern = Pattern.of(lambda x, *, y: x * abs(y), np.dtype("float32"), 23)
        >>> pattern.is_of(pattern.result, pattern.inputs), pattern.is_of(pattern.result, pattern.inputs[::-1])
        (True, False)
        """
        return _is_same(self.result, value, dict(zip(self.inputs, operands, strict=True)))

    def _unify(self, own: ir.Value, value: ir.Value, bindings: Bindings) -> Iterator[Bindings]:
        """Yield all bindings with which `value` is what the pattern computes as `own`."""
        known, value = bindings.get(own), plain(value)
        if known is not None:
            if known is value or (isinstance(known, float) and _is_number(value, known)):
                yield bindings
            return
        for extended in self._ways(own, value, bindings):
            yield {**extended, own: value} if len(own.uses()) > 1 and own not in extended else extended

    def _ways(self, own: ir.Value, value: ir.Value, bindings: Bindings) -> Iterator[Bindings]:
        if own in self.inputs:
            number = _number(value)
            if own is self.inputs[0] and number is None and value.dtype == own.dtype:
                yield {**bindings, own: value}
            elif own is not self.inputs[0] and number is not None:
                yield {**bindings, own: number}
        elif constant_of(own) is not None:
            number = _number(own)
            if number is not None and _is_number(value, number):
                yield bindings
        elif kind(own) == "product":
            for other in _distinct(Product.of(value, depth) for depth in (LIMIT, 1)):
                yield from self._unify_products(Product.of(own, LIMIT), other, bindings)
        elif kind(own) == "sum":
            for other in _distinct(WeightedSum.of(value, depth) for depth in (LIMIT, 1)):
                yield from self._unify_sums(WeightedSum.of(own, LIMIT), other, bindings)
        else:
            yield from self._unify_nodes(own.producer(), value.producer(), bindings)

    def _unify_nodes(self, own: ir.Node | None, node: ir.Node | None, bindings: Bindings) -> Iterator[Bindings]:
        if own is None or node is None or own.op_identifier() != node.op_identifier():
            return
        if len(own.inputs) != len(node.inputs) or _attributes(own) != _attributes(node):
            return
        yield from self._unify_all(own.inputs, node.inputs, bindings)
        if own.op_type in COMMUTATIVE and own.inputs[0] is not own.inputs[-1]:
            yield from self._unify_all(own.inputs, node.inputs[::-1], bindings)

    def _unify_all(
        self, own: Sequence[ir.Value | None], values: Sequence[ir.Value | None], bindings: Bindings
    ) -> Iterator[Bindings]:
        if not own:
            yield bindings
        elif own[0] is None or values[0] is None:
            if own[0] is values[0]:
                yield from self._unify_all(own[1:], values[1:], bindings)
        else:
            for extended in self._unify(own[0], values[0], bindings):
                yield from self._unify_all(own[1:], values[1:], extended)

    def _unify_products(self, own: Product, other: Product, bindings: Bindings) -> Iterator[Bindings]:
        numbers = [value for value in own.factors if value in self.inputs[1:]]
        mine = [(value, count) for value, count in own.factors.items() if value not in numbers]
        if len(mine) != len(other.factors) or len(numbers) > 1:
            return
        ratio = other.coefficient / own.coefficient if own.coefficient else math.inf
        for extended in self._unify_factors(mine, list(other.factors.items()), bindings):
            if not numbers:
                if _close(ratio, 1):
                    yield extended
                continue
            (number,) = numbers
            fitting = ratio ** own.factors[number] if ratio else math.inf
            bound = extended.get(number, fitting)
            if isinstance(bound, float) and _close(bound, fitting):
                yield {number: fitting, **extended}

    def _unify_factors(
        self, own: Sequence[tuple[ir.Value, int]], others: list[tuple[ir.Value, int]], bindings: Bindings
    ) -> Iterator[Bindings]:
        """Pair each factor of the pattern with a factor of the graph that has the same exponent."""
        if not own:
            yield bindings
            return
        (value, exponent), *rest = own
        for place, (other, count) in enumerate(others):
            if count == exponent:
                for extended in self._unify(value, other, bindings):
                    yield from self._unify_factors(rest, others[:place] + others[place + 1 :], extended)

    def _unify_sums(self, own: WeightedSum, other: WeightedSum, bindings: Bindings) -> Iterator[Bindings]:
        if len(own.terms) == len(other.terms) and _close(own.constant, other.constant):
            yield from self._unify_terms(own.terms, other.terms, bindings)

    def _unify_terms(self, own: list[Product], others: list[Product], bindings: Bindings) -> Iterator[Bindings]:
        if not own:
            yield bindings
            return
        for place, other in enumerate(others):
            for extended in self._unify_products(own[0], other, bindings):
                yield from self._unify_terms(own[1:], others[:place] + others[place + 1 :], extended)


@dataclass
class Product:
    """A number times integer powers of values."""

    coefficient: float = 1.0
    factors: dict[ir.Value, int] = field(default_factory=dict)

    @classmethod
    def of(cls, value: ir.Value, depth: int) -> Product:
        """Return the factors of a value, looking through `depth` operators."""
        product = cls()
        product._add(value, 1, depth, root=True)
        return product

    def _add(self, value: ir.Value, exponent: int, depth: int, root: bool = False) -> None:
        value = plain(value)
        number, node = _number(value), value.producer()
        if number is not None:
            self.coefficient *= number**exponent if number or exponent > 0 else math.inf
        elif depth and node is not None and (powers := _exponents(node)) and self._is_split(value, root):
            self.coefficient *= -1 if node.op_type == "Neg" and exponent % 2 else 1
            for operand, power in zip(sources(node), powers, strict=False):
                self._add(operand, exponent * power, depth - 1)
        else:
            self.factors[value] = self.factors.get(value, 0) + exponent

    def _is_split(self, value: ir.Value, root: bool) -> bool:
        return (root or len(value.uses()) == 1) and len(self.factors) < LIMIT


@dataclass
class WeightedSum:
    """A number plus products."""

    constant: float = 0.0
    terms: list[Product] = field(default_factory=list)

    @classmethod
    def of(cls, value: ir.Value, depth: int) -> WeightedSum:
        """Return the terms of a value, looking through `depth` operators."""
        total = cls()
        total._add(value, 1, depth, root=True)
        return total

    def _add(self, value: ir.Value, sign: int, depth: int, root: bool = False) -> None:
        value = plain(value)
        number, node = _number(value), value.producer()
        if number is not None:
            self.constant += sign * number
        elif depth and is_op(node, *SUMS) and (root or len(value.uses()) == 1) and len(self.terms) < LIMIT:
            first, second = sources(node)
            self._add(first, sign, depth - 1)
            self._add(second, -sign if node.op_type == "Sub" else sign, depth - 1)
        else:
            # Only the result of a node splits; reading the uses of a weight that every node uses takes time.
            term = Product.of(value, LIMIT if node is not None and len(value.uses()) == 1 else 0)
            term.coefficient *= sign
            self.terms.append(term)


def _distinct(ways: Iterable[T]) -> Iterator[T]:
    """Yield the first of two ways to split a value, and the second if it differs."""
    first, second = ways
    yield first
    if second != first:
        yield second


@remembered
def plain(value: ir.Value) -> ir.Value:
    """Return a value without the views before it that only add or drop axes of size one, and products with one."""
    node = value.producer()  # every node of a model passes here
    while node is not None and not node.domain:
        if node.op_type in RESHAPING:
            before = source(node)
        elif node.op_type in PRODUCTS and (factor := _times_one(node)) is not None:
            before = factor
        else:
            break
        if not same_but_for_ones(before, value):
            break
        value, node = before, before.producer()
    return value


def _times_one(node: ir.Node) -> ir.Value | None:
    """Return the operand that a node multiplies by one, or divides by it."""
    first, second = node.inputs[0], node.inputs[-1]
    if first is None or second is None or first is second:
        return None
    if _number(second) == 1:
        return first
    return second if node.op_type == "Mul" and _number(first) == 1 else None


@remembered
def kind(value: ir.Value) -> str:
    """Return the operator that computes a value: its name, or that of products and sums; empty if there is none."""
    node = plain(value).producer()
    if node is None or node.domain:
        return ""
    return "product" if _exponents(node) else "sum" if node.op_type in SUMS else node.op_type


def _exponents(node: ir.Node) -> tuple[int, ...]:
    """Return the exponents of the operands that a node multiplies; none if it is no product."""
    if is_op(node, "Pow"):
        power = _number(source(node, 1))
        return (int(power),) if power is not None and power in range(2, LIMIT + 1) else ()
    return () if node.domain else PRODUCTS.get(node.op_type, ())


def operators_below(value: ir.Value) -> set[str] | None:
    """Return the operators whose results a product or sum combines, through nested ones; None if there are too many."""
    operators: set[str] = set()
    seen, waiting = {value}, [value]
    while waiting:
        value = plain(waiting.pop())
        node, operator = value.producer(), kind(value)
        if node is None or operator not in ("product", "sum"):
            operators.add(operator)
            continue
        new = {operand for operand in node.inputs if operand is not None} - seen
        if len(seen) + len(new) > MANY:
            return None
        seen |= new
        waiting += new
    return operators


@remembered
def _number(value: ir.Value) -> float | None:
    """Return the number that all elements of a constant equal."""
    array = constant_of(value)
    return number_of(value) if array is not None and array.size == 1 else None


def _is_number(value: ir.Value, expected: float) -> bool:
    number = _number(value)
    return number is not None and (_close(number, expected) or (math.isnan(number) and math.isnan(expected)))


def _close(one: float, other: float) -> bool:
    return close(one, other, ir.DataType.FLOAT)


def _is_same(
    own: ir.Value | None,
    value: ir.Value | None,
    bound: dict[ir.Value, ir.Value | None],
    free: Sequence[ir.Value] = (),
) -> bool:
    """Whether two values are the same operators of the same operands, but for values that are bound to others.

    Values that are `free` are bound to the first one in their place.
    """
    if own is None or value is None:
        return own is value
    if own in bound:
        return bound[own] is value
    if own in free:
        bound[own] = value
        return own.dtype == value.dtype
    number, (first, second) = number_of(own), (own.producer(), value.producer())
    if number is not None:
        return repr(number_of(value)) == repr(number)  # NaN is itself, and no zero is the other
    if (array := constant_of(own)) is not None:
        return (other := constant_of(value)) is not None and array.dtype == other.dtype and np.array_equal(array, other)
    if first is None or second is None or first.op_identifier() != second.op_identifier():
        return False
    if (
        len(first.inputs) != len(second.inputs)
        or own.index() != value.index()
        or _attributes(first) != _attributes(second)
    ):
        return False
    for operands in (second.inputs, second.inputs[::-1]) if first.op_type in COMMUTATIVE else (second.inputs,):
        found = dict(bound)
        pairs = [*zip(first.inputs, operands, strict=True), *_results_of_bodies(first, second, found)]
        if all(_is_same(*pair, found, free) for pair in pairs):
            bound |= {**found, own: value}
            return True
    return False


def _results_of_bodies(
    own: ir.Node, node: ir.Node, bound: dict[ir.Value, ir.Value | None]
) -> list[tuple[ir.Value | None, ir.Value | None]]:
    """Bind what the bodies of a loop or a branch take to one another; return what they return, in pairs."""
    pairs: list[tuple[ir.Value | None, ir.Value | None]] = []
    for name, attribute in own.attributes.items():
        if attribute.type is not ir.AttributeType.GRAPH:
            continue
        body, other = attribute.as_graph(), node.attributes[name].as_graph()
        if (len(body.inputs), len(body.outputs)) != (len(other.inputs), len(other.outputs)):
            return [(own.outputs[0], None)]
        bound |= dict(zip(body.inputs, other.inputs, strict=True))
        pairs += zip(body.outputs, other.outputs, strict=True)
    return pairs


def _attributes(node: ir.Node) -> dict[str, str]:
    """Return the attributes, of bodies that there are."""
    return {
        name: "" if attribute.type is ir.AttributeType.GRAPH else str(attribute.value)
        for name, attribute in node.attributes.items()
    }


@functools.lru_cache(maxsize=512)
def pattern_of(function: PythonFunction, dtype: np.dtype, opset: int, late: bool = False) -> Pattern:
    """Return the pattern of a function, independent of the runtime release of the model that first needs it; cached."""
    with releases.made_for(releases.OLDEST):
        return Pattern.of(function, dtype, opset, late)
