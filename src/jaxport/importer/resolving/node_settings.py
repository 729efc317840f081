"""What is set on nodes before a program runs: bounds of sizes that depend on data, and the inputs that decide
branches.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.graph.editing import is_op
from jaxport.importer.resolving.graph import Body, BodyFunction, BoundNode, nodes_within
from jaxport.importer.resolving.registry import BOUND, Operator

BRANCH_NOT_KNOWN = "which branch of an `If` runs has to be known before the program is traced"

Decided = dict[ir.Value, frozenset[str]]
"""The values that are known if some inputs are, with the names of these."""

_DISCRETE = frozenset({ir.DataType.BOOL}) | {kind for kind in ir.DataType if kind.name.startswith(("INT", "UINT"))}


def set_deciding_inputs(body: Body) -> tuple[str, ...]:
    """Note at each `If` the inputs that alone decide its condition; return all of them, in the model's order.

    These are single integers and booleans from which, together with constants and shapes, the condition is computed. If
    they are known while the program is traced, only the branch that runs is traced.
    """
    inputs = [value for value in body.inputs if value not in body.initializers]
    candidates = {value: frozenset({value.name or ""}) for value in inputs if _is_single(value)}
    names = _follow(body, candidates)
    return tuple(value.name or "" for value in inputs if value.name in names)


def _is_single(value: ir.Value) -> bool:
    sizes = None if value.shape is None else value.shape.dims
    return value.dtype in _DISCRETE and sizes is not None and all(size == 1 for size in sizes)


def _follow(body: Body, around: Mapping[ir.Value, frozenset[str]]) -> frozenset[str]:
    decided: Decided = {**around, **dict.fromkeys(body.initializers, frozenset())}
    deciding: frozenset[str] = frozenset()
    for node in body.nodes:
        inner = list(node.bodies())
        read = [value for value in node.inputs if value is not None]
        if node.node.op_type == "If" and isinstance(node.target, Operator):
            node.decided_by = tuple(decided.get(read[0], ()))
            deciding |= frozenset(node.decided_by)
        deciding = deciding.union(*(_follow(each, decided) for each in inner))
        if isinstance(node.target, BodyFunction):
            passed = zip(node.target.body.inputs, node.inputs, strict=False)
            deciding |= _follow(node.target.body, {to: decided[value] for to, value in passed if value in decided})
        elif not inner and (_reads_shapes_only(node) or all(value in decided for value in read)):
            known = frozenset().union(*(decided.get(value, ()) for value in read))
            decided.update((value, known) for value in node.outputs if value is not None)
    return deciding


def _reads_shapes_only(node: BoundNode) -> bool:
    target = node.target
    return isinstance(target, Operator) and all(
        target.input_mark(index) == "shape only" for index in range(len(node.inputs))
    )


def set_bounds(body: Body, sizes: Mapping[str, int]) -> None:
    """Set the maximum number of rows of nodes.

    Args:
      body: the graph.
      sizes: bounds by the name of a node, or of one of its outputs.

    Raises:
      InvalidArgument: a name is not that of a node whose size depends on data.
    """
    nodes = {name: node for node in nodes_within(body) for name in _names(node)}
    bounded = {name: node for name, node in nodes.items() if _takes_bound(node)}
    for node in bounded.values():
        if is_op(node.node, "NonMaxSuppression") and (len(node.inputs) < 3 or node.inputs[2] is None):
            node.bound = 0  # it selects none of the boxes
    for name, bound in sizes.items():
        if name not in bounded:
            known = name in nodes
            raise InvalidArgument(
                f"the node `{name}` cannot be given a size" if known else f"there is no node `{name}`",
                where="`from_onnx(sizes=…)`",
                why=f"the size of a {nodes[name].node.op_type} is that of its inputs" if known else "",
                instead=f"the nodes whose sizes depend on data are {', '.join(f'`{n}`' for n in bounded)}"
                if bounded
                else "no size in this model depends on data: leave `sizes` out",
            )
        bounded[name].bound = int(bound)


def _names(node: BoundNode) -> list[str]:
    """Return the node's own name and those of its outputs."""
    names = [node.node.name, *(value.name for value in node.outputs if value is not None)]
    return [name for name in names if name]


def _takes_bound(node: BoundNode) -> bool:
    return isinstance(node.target, Operator) and BOUND in node.target.context.values()
