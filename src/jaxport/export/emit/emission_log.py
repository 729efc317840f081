"""What is noted while a template is being recorded: each node, each movement of a constant, and what was withdrawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from jaxport.jaxprs import Parameters

if TYPE_CHECKING:
    from jaxport.export.emit.places import Place
    from jaxport.export.emit.value import Value


@dataclass(eq=False, slots=True)
class Watch:
    """What rules have read of a value that enters a block: what they emitted depends on it.

    Attributes:
      elements_read: whether the elements of a constant were read.
      origin_read: whether the node that computes the value was asked for.
    """

    elements_read: bool = False
    origin_read: bool = False


class OperatorCall(NamedTuple):
    """An operator with its operands; its attributes as Python values and as they are written."""

    domain: str
    op_type: str
    operands: tuple[Value | None, ...]
    attributes: Parameters
    written: tuple[ir.Attr, ...]


class Emission(NamedTuple):
    """A node was appended."""

    call: OperatorCall
    results: tuple[Value, ...]
    node: ir.Node
    place: Place


class Move(NamedTuple):
    """The elements of a watched constant, the first operand, were moved."""

    op_type: str
    operands: tuple[Value | None, ...]
    attributes: Parameters
    result: Value


class Withdrawal(NamedTuple):
    """Nodes were removed again; their names stay taken."""

    steps: tuple[Step, ...]


Step = Emission | Move | Withdrawal


@dataclass(eq=False, slots=True)
class Log:
    """What enters a graph while a template is being recorded.

    Attributes:
      steps: in order.
      graph_seen: whether a rule looked at the graph itself, which may be anything outside the block.
    """

    steps: list[Step] = field(default_factory=list)
    graph_seen: bool = False
