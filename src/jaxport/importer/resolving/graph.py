"""A model ready to be evaluated: every node bound to the function that computes it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import operator_name
from jaxport.importer.resolving.registry import POSITION, Operator
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.image_layout import OIHW
from jaxport.jaxprs import Shape


@dataclass(frozen=True, slots=True)
class Reference:
    """An attribute whose value is an attribute of the enclosing function."""

    name: str


@dataclass(eq=False, slots=True)
class Body:
    """The nodes of a graph, in order: of the model, of a branch or loop, or of a function.

    `initializers` maps values to tensors; `captured` are the outer values that the nodes use, in order of use;
    `operations` is the number of nodes including those of nested bodies and functions, counted once per call.
    """

    name: str
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    initializers: dict[ir.Value, ir.TensorProtocol]
    nodes: list[BoundNode] = field(default_factory=list)
    captured: tuple[ir.Value, ...] = ()
    operations: int = 0

    def expire(self) -> None:
        """Record at each node which values of the body nothing uses later."""
        made = {value for node in self.nodes for value in node.outputs if value is not None}
        seen = set(self.outputs)
        for node in reversed(self.nodes):
            used = [value for value in (*node.inputs, *node.halves) if value in made]
            used += [value for inner in node.bodies() for value in inner.captured if value in made]
            node.expired = tuple(value for value in dict.fromkeys(used) if value not in seen)
            seen.update(node.expired)


@dataclass(eq=False, slots=True)
class BodyFunction:
    """An operator that the model or its schema defines by a body.

    `positions` maps each output of the body to an output of the operator, if the body does not have all of them.
    """

    label: str
    body: Body
    defaults: dict[str, Attribute]
    positions: tuple[int, ...] | None = None


Attribute: TypeAlias = "int | float | str | HostValue | Body | Reference | tuple[Attribute, ...] | None"
"""What an attribute of a node holds: a number, a text, a tensor, a body, or several of these; None for one left out."""

InputType = tuple[np.dtype, Shape] | None
"""The dtype and shape of an input, or None for an omitted one."""


@dataclass(eq=False, slots=True)
class SchemaFunction:
    """An operator whose schema builds a body from the types of the inputs, once they are known.

    `references` are the attributes of the node that refer to attributes of the enclosing function; `body_for` takes the
    types, and those attributes with their values.
    """

    label: str
    body_for: Callable[[tuple[InputType, ...], tuple[tuple[str, Attribute], ...]], BodyFunction]
    references: tuple[str, ...]


@dataclass(eq=False, slots=True)
class BoundNode:
    """A node and the function that computes it.

    `attributes` holds the node's attributes in the function's form: Python values, host values for tensors, a `Body`
    for a graph, a `Reference` inside functions. `output_types` has for each output the input with the same dtype (an
    int), or the dtype itself, or None if the schema leaves it open. `expired` are the values that nothing uses later;
    `kernel_layout` is the layout of a convolution's kernel among the inputs, `channels_last` whether images have that
    layout where the node is computed, if it can be; `version` is that of the domain's opset, None for a function of the
    model; `bound` is the maximum number of rows of the result, `extent` the size of a slice along its axes if that does
    not depend on where it is, `decided_by` are the inputs of the model whose values alone decide which branch of an
    `If` runs, `foreseen` are inputs whose result was found not to be too large, `halves` the operands of a product
    before they are cast from half precision.
    """

    node: ir.Node
    target: Operator | BodyFunction | SchemaFunction
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value | None, ...]
    attributes: dict[str, Attribute]
    output_types: tuple[int | np.dtype | None, ...]
    index: int
    expired: tuple[ir.Value, ...] = ()
    kernel_layout: str = OIHW
    channels_last: bool = False
    version: int | None = None
    bound: int | None = None
    extent: tuple[int, ...] | None = None
    decided_by: tuple[str, ...] = ()
    foreseen: tuple[tuple[Hashable, ...], ...] = ()
    halves: tuple[ir.Value, ...] = ()

    def input_mark(self, index: int) -> str | None:
        """Return the requirement of the input at `index`, as its operator's signature has it."""
        mark = self.target.input_mark(index) if isinstance(self.target, Operator) else None
        return mark if mark != POSITION else None if self.extent is not None else "host"

    def bodies(self) -> Iterator[Body]:
        """Yield the graphs among the attributes."""
        return (attribute for attribute in self.attributes.values() if isinstance(attribute, Body))


def integers_of(attribute: Attribute) -> tuple[int, ...]:
    """Return an attribute of integers, whose kind was compared with the schema when its node was bound.

    >>> integers_of((0, 2)), integers_of(None)
    ((0, 2), ())
    """
    numbers = attribute if isinstance(attribute, tuple) else ()
    return tuple(number for number in numbers if isinstance(number, int))


def nodes_within(body: Body) -> Iterator[BoundNode]:
    """Yield the nodes of a graph, those of branches and functions included; of a function that is called twice,
    twice.
    """
    for node in body.nodes:
        yield node
        for inner in node.bodies():
            yield from nodes_within(inner)
        if isinstance(node.target, BodyFunction):
            yield from nodes_within(node.target.body)


def describe(node: ir.Node) -> str:
    """Return the name of a node in messages: its name or, if it has none, its first output.

    >>> describe(ir.node("Relu", [ir.val("x")], name="/encoder/act"))
    'node `/encoder/act` (Relu)'
    """
    operator = operator_name(node)
    if node.name:
        return f"node `{node.name}` ({operator})"
    made = next((value.name for value in node.outputs if value.name), "?")
    return f"the {operator} that makes `{made}`"
