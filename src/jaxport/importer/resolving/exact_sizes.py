"""Sizes that a file computes in floating point, as integers: half of a height, or one and a half of it.

    Cast(height, FLOAT) → Mul(·, 1.5) → Floor → Cast(·, INT64)      becomes      Mul(height, 3) → Div(·, 2)

JAX knows an open size by name only, which has no fractions. Both are the same as long as the float is exact: of factors
and terms with few bits. With any other factor, such as 1.2, the size is rounded as floats are, so that only its number
tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from jaxport.importer.values.stored import tensor_value
from jaxport.onnx_facts import ARITHMETIC, CHOICES, MEASURES, SELECTIONS

MOST = 256
"""Factors and terms are less than this number of parts, which are powers of two: products with sizes up to 65,536 are
exact in float32."""

_FLOATS = {ir.DataType.FLOAT, ir.DataType.DOUBLE}
_INTEGERS = {ir.DataType.INT64, ir.DataType.INT32}
_ROUNDED = {"Floor", "Ceil"}


def with_exact_sizes(model: ir.Model) -> ir.Model:
    """Return the model with the sizes that it computes in floating point as integers; itself if it has none."""
    graph = model.graph
    if not any(node.op_type in MEASURES for node in graph):
        return model
    chains = {node: chain for node in graph if node.op_type == "Cast" and (chain := _chain(node)) is not None}
    if not chains:
        return model
    copy = model.clone()
    same = dict(zip(graph, copy.graph, strict=True))
    for node, chain in chains.items():
        _replace(copy.graph, same[node], [(same[one], numbers) for one, numbers in chain])
    return copy


@dataclass(frozen=True)
class _Fractions:
    """Numbers as `integers / divisor`, where the divisor is a power of two."""

    integers: np.ndarray
    divisor: int


Chain = list[tuple[ir.Node, _Fractions | None]]
"""The operators between two casts, each with the constant that it takes."""


def _chain(node: ir.Node) -> Chain | None:
    """Return the operators by which an integer is made of a size in floating point, or None."""
    chain: Chain = []
    if node.attributes["to"].as_int() not in _INTEGERS:
        return None
    value = node.inputs[0]
    while value is not None and (maker := value.producer()) is not None and maker.domain == "" and maker.inputs:
        operator, first, numbers = maker.op_type, maker.inputs[0], None
        if operator == "Cast":
            if maker.attributes["to"].as_int() not in _FLOATS or first is None:
                return None
            if _is_size(first):
                return [*reversed([*chain, (maker, None)])] if _is_exact(chain) else None
        elif operator in ARITHMETIC:
            first, numbers = _with_number(maker)
            if numbers is None:
                return None
        elif operator not in SELECTIONS | _ROUNDED or len(maker.outputs) > 1:
            return None
        chain.append((maker, numbers))
        value = first
    return None


def _with_number(node: ir.Node) -> tuple[ir.Value | None, _Fractions | None]:
    """Return the operand of a sum, a product or a quotient with a constant, and that as a factor or a term."""
    first, second = node.inputs
    if node.op_type in ("Add", "Mul") and (constant := _constant(first)) is not None:
        return second, _fractions(constant)
    constant = _constant(second)
    if constant is None or node.op_type == "Sub":
        return None, None
    with np.errstate(all="ignore"):
        return first, _fractions(1 / constant if node.op_type == "Div" else constant)


def _is_exact(chain: Chain) -> bool:
    """Whether operators compute with few bits, at least with one number or by rounding."""
    factors = [int(numbers.integers.max(initial=1)) for one, numbers in chain if numbers and one.op_type != "Add"]
    return bool(chain) and math.prod(factors) < MOST


def _is_size(value: ir.Value | None) -> bool:
    """Whether integers are computed of sizes and constants alone."""
    pending, seen, found = [value], set(), False
    while pending:
        value = pending.pop()
        if value is None or value in seen or value.const_value is not None:
            continue
        seen.add(value)
        maker = value.producer()
        if maker is None or maker.domain != "":
            return False
        if maker.op_type in MEASURES:
            found = True
        elif maker.op_type in SELECTIONS:
            pending.append(maker.inputs[0])
        elif maker.op_type in CHOICES | ARITHMETIC or (
            maker.op_type == "Cast" and maker.attributes["to"].as_int() in _INTEGERS
        ):
            pending += maker.inputs
        elif maker.op_type != "Constant":
            return False
    return found


def _constant(value: ir.Value | None) -> np.ndarray | None:
    tensor = value.const_value if value is not None else None
    maker = value.producer() if value is not None else None
    if tensor is None and maker is not None and maker.op_type == "Constant" and "value" in maker.attributes:
        tensor = maker.attributes["value"].as_tensor()
    return None if tensor is None or tensor.size > MOST else tensor_value(tensor).data


def _fractions(numbers: np.ndarray) -> _Fractions | None:
    """Return positive numbers as fractions; None if others are among them, or some that floats do not have exactly."""
    with np.errstate(all="ignore"):
        for divisor in 1 << np.arange(9):
            integers = numbers * float(divisor)
            if (integers == np.floor(integers)).all():
                small = ((integers >= 0) & (integers < MOST)).all() and np.isfinite(numbers).all()
                return _Fractions(integers.astype(np.int64), int(divisor)) if small else None
    return None


def _replace(graph: ir.Graph, node: ir.Node, chain: Chain) -> None:
    """Compute a chain of operators, and the cast behind it, with integers."""
    made: list[ir.Node] = []

    def run(operator: str, *inputs: ir.Value | None, like: ir.Node | None = None) -> ir.Value:
        attributes = [] if like is None else [*like.attributes.values()]
        made.append(ir.Node("", operator, inputs, attributes))
        made[-1].metadata_props.update(node.metadata_props)
        return made[-1].outputs[0]

    def number(numbers: np.ndarray | int) -> ir.Value:
        array = np.asarray(numbers, np.int64)
        return run("Constant", like=ir.node("Constant", [], {"value": ir.tensor(array)}))

    def divided(value: ir.Value, divisor: int) -> ir.Value:
        return value if divisor == 1 else run("Div", value, number(divisor))

    begin, divisor = chain[0][0].inputs[0], 1
    value = run("Cast", begin, like=ir.node("Cast", [], {"to": int(ir.DataType.INT64)}))
    for one, numbers in chain[1:]:
        if numbers is not None and one.op_type == "Add":
            common = max(divisor, numbers.divisor)
            value = value if common == divisor else run("Mul", value, number(common // divisor))
            value = run("Add", value, number(numbers.integers * (common // numbers.divisor)))
            divisor = common
        elif numbers is not None:  # Mul, and Div by its reciprocal
            value, divisor = run("Mul", value, number(numbers.integers)), divisor * numbers.divisor
        elif one.op_type in _ROUNDED:
            value = value if one.op_type == "Floor" else run("Add", value, number(divisor - 1))
            value, divisor = divided(value, divisor), 1
        elif one.op_type in SELECTIONS:
            value = run(one.op_type, value, *one.inputs[1:], like=one)
    value = divided(value, divisor)
    graph.insert_before(node, made)
    node.replace_input_with(0, value)
    for one, _ in reversed(chain):
        if not any(output.uses() or output.is_graph_output() for output in one.outputs):
            read = list(one.inputs)
            graph.remove(one, safe=True)
            for value in read:
                if value is not None and value.is_initializer() and not value.uses() and not value.is_graph_input():
                    graph.initializers.pop(value.name or "", None)
