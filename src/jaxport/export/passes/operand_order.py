"""Make constants the second operand of commutative operators: `c + x` becomes `x + c`.

Runtimes look for them there: ONNX Runtime fuses a factor or a summand into the convolution before it only if it is the
second operand. A value computed from constants only counts as one, since a runtime folds it while loading.
"""

from __future__ import annotations

import onnx_ir as ir

from jaxport.graph.editing import bodies, constant_of, roots
from jaxport.onnx_facts import COMMUTATIVE, RANDOM

#: Not commutative: of 0.0 and -0.0, and of two NaN, these may return either.
CHOOSING = frozenset({"Max", "Min"})


def operand_order(model: ir.Model) -> str:
    """Put constants second, in the graph, its subgraphs and its functions."""
    swapped = sum(_swapped(root, set()) for root in roots(model))
    return f"constants second in {swapped} nodes" if swapped else "nothing to do"


def _swapped(graph: ir.Graph, known: set[ir.Value]) -> int:
    """Swap operands in a graph; `known` collects the values computed from constants only."""

    def is_known(value: ir.Value | None) -> bool:
        return value is None or value in known or constant_of(value) is not None

    swapped = 0
    for node in graph:
        inner = bodies(node)
        swapped += sum(_swapped(subgraph, known) for subgraph in inner)
        if inner or node.domain or not node.inputs:
            continue
        operands = list(node.inputs)
        if all(map(is_known, operands)):
            known.update(node.outputs if node.op_type not in RANDOM else ())
        elif node.op_type in COMMUTATIVE - CHOOSING and len(operands) == 2 and is_known(operands[0]):
            for index, value in enumerate(reversed(operands)):
                node.replace_input_with(index, value)
            swapped += 1
    return swapped
