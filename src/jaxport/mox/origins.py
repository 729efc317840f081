"""Where the operands of an equation come from: followed out of the bodies that it is in, to the inputs of the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxport import jaxprs
from jaxport.blocks.labels import bodies
from jaxport.mox.calls import source_of
from jaxport.mox.tree import Node

if TYPE_CHECKING:
    from jaxport.mox.mox import Mox

__all__ = ["Origin", "origin_of", "stacking_scans"]


@dataclass(frozen=True)
class Origin:
    """The input of the program that a value is (None where it is computed), and the scans that hand out slices of it."""

    root: int | None
    sliced: tuple[Node, ...] = ()


def origin_of(mox: Mox, node: Node, atom: Any) -> Origin:
    """Where a value comes from that can be read at `node`."""
    sliced: list[Node] = []
    here = node
    while here.parent is not None:
        around, body = here.parent, here.location[-2]
        invars = bodies(around.equation.params)[body].invars
        if not isinstance(atom, jaxprs.Var) or atom not in invars:
            return Origin(None)
        source = source_of(around.equation, body, invars.index(atom))
        if source is None:
            return Origin(None)
        if source.sliced:
            sliced.append(around)
        atom = around.equation.invars[source.operand]
        here = around
    invars = mox.jaxpr.jaxpr.invars
    return Origin(invars.index(atom), tuple(sliced)) if atom in invars else Origin(None)


def stacking_scans(mox: Mox, node: Node) -> tuple[Node, ...]:
    """The scans around a node whose steps have parameters of their own, the outermost first.

    Those that slice the weights of the node's block; where it has none, those that slice any weights. A scan over
    time hands the same weights to each step: what is new inside is shared by the steps too.
    """
    scans = [around for around in node.around if around.equation.primitive.name == "scan"][::-1]
    if not scans:
        return ()
    block = node.block
    if block is not None and block.weights:
        found = [origin_of(mox, node, node.equation.invars[index]) for index in block.weights]
        slicing = {id(scan) for origin in found for scan in origin.sliced}
        return tuple(scan for scan in scans if id(scan) in slicing)
    return tuple(scan for scan in scans if _slices_weights(mox, scan))


def _slices_weights(mox: Mox, scan: Node) -> bool:
    params = jaxprs.parameters(scan.equation)
    first = params["num_consts"] + params["num_carry"]
    names = [*(weight.path for weight in mox.weights), *mox.traced.input_paths, *mox.inputs]
    claimed = {path for node in mox.tree.nodes if node.block is not None for path in node.block.weights.values()}
    for atom in scan.equation.invars[first:]:
        root = origin_of(mox, scan, atom).root
        if root is not None and (root < len(mox.weights) or names[root] in claimed):
            return True
    return False
