"""User-defined bounds for sizes that depend on data, so that nodes such as NonZero can be traced."""

from __future__ import annotations

from collections.abc import Mapping

from jaxport.errors import InvalidArgument
from jaxport.importer.resolving.graph import Body, BoundNode, nodes_within
from jaxport.importer.resolving.registry import BOUND, Operator

__all__ = ["set_bounds"]


def set_bounds(body: Body, sizes: Mapping[str, int]) -> None:
    """Set the maximum number of rows of nodes.

    Args:
      body: the graph.
      sizes: bounds by the name of a node, or of one of its outputs.

    Raises:
      InvalidArgument: a name is not that of a node whose size depends on data, or a bound is not a size.
    """
    nodes = {name: node for node in nodes_within(body) for name in _names(node)}
    bounded = {name: node for name, node in nodes.items() if _takes_bound(node)}
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
        if isinstance(bound, bool) or not isinstance(bound, int) or bound < 0:
            raise InvalidArgument(
                f"{bound!r} is not a size", where=f"`from_onnx(sizes={{{name!r}: …}})`", instead="give an integer"
            )
        bounded[name].bound = bound


def _names(node: BoundNode) -> list[str]:
    """Return the node's own name and those of its outputs."""
    names = [node.node.name, *(value.name for value in node.outputs if value is not None)]
    return [name for name in names if name]


def _takes_bound(node: BoundNode) -> bool:
    return isinstance(node.target, Operator) and BOUND in node.target.context.values()
