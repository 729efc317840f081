"""The machinery of fusions: find them, check that they pay off, insert the operator, and report.

A function finds fusions: of a node, which may be the last one of a match, it returns a `Fusion`, the reason why a
similar computation is left as it is, or None if nothing matches.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.graph.axis_groups import quotient
from jaxport.graph.editing import (
    Dim,
    Editor,
    Stamp,
    constant_of,
    dims_of,
    is_op,
    name_with_place,
    roots,
    static_dims,
    subgraphs,
    substitute,
)
from jaxport.graph.matching import between
from jaxport.graph.remembering import remembering
from jaxport.onnx_facts import VIEWS, releases, schema

SHOWN = 5
"""The number of values named for each reason why a fusion was declined."""


def spread(one: ir.Value, other: ir.Value | None) -> list[Dim]:
    """Return the dims of a value that is broadcast with another one, if there is one."""
    pairs = itertools.zip_longest(*(reversed(dims_of(each) or ()) for each in (one, other)), fillvalue=1)
    return [b if a == 1 else a for a, b in pairs][::-1]


class Builder:
    """Emits the operators that replace others, next to the node whose result is replaced.

    Attributes:
      editor: puts constants where they belong.
      node: the node whose result is replaced.
      root: the main graph or function body that contains the node.
    """

    def __init__(self, editor: Editor, root: ir.Graph, node: ir.Node, replaced: dict[ir.Value, ir.Value]):
        self.editor, self.root, self.node, self._replaced = editor, root, node, replaced

    def emit(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        shape: Sequence[Dim] | None,
        dtype: ir.DataType | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """Insert a node named after the scope of the node it replaces, by default of its dtype; return its result."""
        stamp = self.node.outputs[0].dtype if dtype is None else dtype, shape
        (result,) = self.emit_many(op_type, inputs, [stamp], domain, **attributes)
        return result

    def emit_many(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        stamps: Sequence[Stamp],
        domain: str = "",
        **attributes: Any,
    ) -> list[ir.Value]:
        """Insert a node with several results, each of its dtype and shape; return them."""
        scope, _, _ = name_with_place(self.node).rpartition("/")
        operands = [None if value is None else self.now(value) for value in inputs]
        origin = {key: text for key, text in self.node.metadata_props.items() if key != "jaxport.primitive"}
        return self.editor.emit(
            self.node.graph, op_type, operands, stamps, name=f"{scope}/{op_type}" if scope else op_type, domain=domain,
            before=self.node, metadata=origin, **attributes,
        )  # fmt: skip

    def now(self, value: ir.Value) -> ir.Value:
        """Return the current replacement of a matched value: another fusion may have replaced it in the meantime."""
        while value in self._replaced:
            value = self._replaced[value]
        return value

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Replace another value than the result: one that the inserted nodes compute, too."""
        if old.name and old.is_graph_output():
            new.name = self.editor.unique(old.name)
        substitute(old, new)
        self._replaced[old] = new

    def owned(self, value: ir.Value) -> ir.Value:
        """Return the current replacement of a matched value; a constant that is in no graph is added to this one."""
        array = constant_of(value)
        if array is None or value.is_initializer() or value.producer() is not None:
            return self.now(value)
        return self.constant(array, value.name or "constant", value)

    def constant(self, array: np.ndarray, name: str, moved_from: ir.Value | None = None) -> ir.Value:
        """Return a constant that the node can use: see `Editor.constant`."""
        return self.editor.constant(self.node.graph, array, name, moved_from)

    def pairwise(self, op_type: str, one: ir.Value, other: ir.Value) -> ir.Value:
        """Insert a node of two operands of one dtype that are broadcast, whose result has it, too."""
        return self.emit(op_type, [one, other], spread(one, other), one.dtype)

    def integers(self, numbers: Sequence[int], name: str) -> ir.Value:
        """Return a vector of int64: axes, or a shape."""
        return self.constant(np.array(numbers, np.int64), name)

    def viewed(self, value: ir.Value, dims: Sequence[Dim]) -> ir.Value:
        """Return a value with its axes of size one in other places."""
        return self.editor.viewed(self.node.graph, self.now(value), dims, before=self.node)

    def transposed(self, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """Return a value with axis `i` taken from `order[i]`; the value itself if nothing moves."""
        value, dims = self.now(value), dims_of(value) or []
        if list(order) == sorted(order):
            return value
        return self.emit("Transpose", [value], [dims[axis] for axis in order], value.dtype, perm=order)

    def cast(self, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        """Return a value in another dtype; the value itself if it has that dtype."""
        if dtype is None or value.dtype == dtype:
            return value
        return self.emit("Cast", [value], dims_of(value), dtype, to=int(dtype))

    def expanded(self, value: ir.Value, dims: Sequence[Dim]) -> ir.Value:
        """Return a value broadcast to some dims; the value itself if it has them."""
        old = dims_of(value) or []
        if old == list(dims):
            return value
        wanted = [1 if len(old) == len(dims) and old[i] == d else d for i, d in enumerate(dims)]
        return self.emit("Expand", [value, self.shape(wanted)], dims, dtype=value.dtype)

    def shape(self, dims: Sequence[Dim]) -> ir.Value:
        """Return dims as a vector; symbolic ones are read from an input of the graph that has them."""
        if (static := static_dims(dims)) is not None:
            return self.integers(static, "shape")
        pieces = [self.integers([d], "dim") if isinstance(d, int) else self._dim(d) for d in dims]
        if len(pieces) == 1:
            return pieces[0]
        return self.emit("Concat", pieces, [len(dims)], ir.DataType.INT64, axis=0)

    def _dim(self, dim: Dim) -> ir.Value:
        """Return a symbolic dim, read from an input of the graph or an operand of the node, which may have a multiple
        of it.
        """
        carriers = [
            (times, value, axis)
            for value in (*self.root.inputs, *self.node.inputs)
            for axis, own in enumerate(dims_of(value) or ())
            if isinstance(times := 1 if own == dim else quotient(own, dim), int)
        ]
        times, carrier, axis = min(carriers, key=lambda found: found[0])
        size = self.emit("Shape", [carrier], [1], ir.DataType.INT64, start=axis, end=axis + 1)
        return size if times == 1 else self.emit("Div", [size, self.integers([times], "times")], [1])


@dataclass(eq=False)
class Fusion:
    """Nodes that one operator, or a few, can replace.

    Attributes:
      operator: the name of the replacement, for the report.
      result: the value that is computed another way.
      leaves: the values that it is computed from.
      build: emits the new computation and returns its result.
      ignored: operators that may go on reading what lies between, because they cost nothing: those of shapes, where all
        sizes are known before the model runs.
    """

    operator: str
    result: ir.Value
    leaves: Sequence[ir.Value]
    build: Callable[[Builder], ir.Value]
    ignored: Sequence[str] = ()
    inner: Sequence[ir.Node] = ()

    def used_elsewhere(self, inside: set[ir.Node]) -> ir.Value | None:
        """Return an intermediate value that a node outside uses, so that fusing saves nothing.

        Views cost nothing, and next to nothing a test for NaN, which a softmax shares with what orders the same scores.
        """
        for node in self.inner:
            for value in node.outputs:
                if value is self.result or is_op(node, *VIEWS, "IsNaN"):
                    continue
                users = {user for user, _ in value.uses() if _is_used(user)} - inside
                if value.is_graph_output() or any(not is_op(user, *self.ignored) for user in users):
                    return value
        return None


def _is_used(node: ir.Node) -> bool:
    return any(value.uses() or value.is_graph_output() for value in node.outputs)


Find = Callable[[ir.Node], "Fusion | str | None"]


@dataclass(frozen=True)
class Anchor:
    """The nodes from which matching starts: those that can be the last one of a fusion.

    Attributes:
      at: the operators of that node.
      below: an operator that the node has to depend on; any if empty.
      through: the operators allowed between the two.
      domain: the domain of the operators of the last node, if it depends on no other.
    """

    at: Collection[str]
    below: Collection[str] = ()
    through: Collection[str] = VIEWS
    domain: str = ""

    def nodes(self, all_nodes: Sequence[ir.Node]) -> set[ir.Node]:
        """Return the anchors among the nodes of a graph and its subgraphs."""
        if not self.below:
            return {node for node in all_nodes if node.op_type in self.at and node.domain == self.domain}
        reached: set[ir.Node] = set()
        stack = [node for node in all_nodes if node.op_type in self.below and not node.domain]
        while stack:
            for value in stack.pop().outputs:
                for user in value.consumers():
                    if user in reached or not is_op(user, *self.at, *self.through):
                        continue
                    reached.add(user)
                    if user.op_type in self.through:
                        stack.append(user)
        return {node for node in reached if node.op_type in self.at}


def fuse(model: ir.Model, find: Find, *anchors: Anchor) -> str:
    """Replace all fusions that `find` returns, in the graph, its subgraphs and its functions; return the report.

    Args:
      model: changed in place.
      find: called with each node that one of `anchors` admits, in order.
      anchors: the nodes to start from; all nodes if none is given.
    """
    editor = Editor(model)
    made: dict[str, int] = collections.Counter()
    declined: dict[str, list[str | None]] = collections.defaultdict(list)
    for root, nodes in _candidates(model, anchors):
        fusions: dict[ir.Value, Fusion] = {}
        with remembering():
            found = [(node, find(node)) for node in nodes]
        for node, fusion in found:
            if isinstance(fusion, str):
                declined[fusion].append(node.outputs[0].name)
            elif fusion is not None and _delimited(fusion):
                fusions[fusion.result] = fusion
            elif fusion is not None:
                declined["it depends on more than what was recognised"].append(node.outputs[0].name)
        for reason, name in _unprofitable(fusions):
            declined[reason].append(name)
        _drop_parts(fusions)
        replaced: dict[ir.Value, ir.Value] = {}
        for fusion in fusions.values():
            producer = fusion.result.producer()
            assert producer is not None
            value = fusion.build(Builder(editor, root, producer, replaced))
            if fusion.result.name and fusion.result.is_graph_output():
                value.name = editor.unique(fusion.result.name)
            substitute(fusion.result, value)
            replaced[fusion.result] = value
            made[fusion.operator] += 1
    return report(made, declined)


def _candidates(model: ir.Model, anchors: Sequence[Anchor]) -> Iterator[tuple[ir.Graph, list[ir.Node]]]:
    """Yield each root graph with the nodes to start from, in order."""
    for root in roots(model):
        first = list(root)
        own = [first, *map(list, subgraphs(first))]
        all_nodes = [node for nodes in own for node in nodes]
        admitted = set().union(*(anchor.nodes(all_nodes) for anchor in anchors)) if anchors else set(all_nodes)
        for nodes in own if admitted else ():
            yield root, [node for node in nodes if node in admitted]


def _delimited(fusion: Fusion) -> bool:
    """Record the nodes of the result's graph that would be removed; nodes of enclosing graphs stay."""
    inner = between(fusion.result, fusion.leaves) or ()
    fusion.inner = [node for node in inner if node.graph is fusion.result.graph]
    return bool(inner)


def _unprofitable(fusions: dict[ir.Value, Fusion]) -> Iterable[tuple[str, str | None]]:
    """Drop the fusions whose nodes would still be needed afterwards, unless only other fusions share them."""
    before = None
    while before != len(fusions):
        before = len(fusions)
        inside = {node for fusion in fusions.values() for node in fusion.inner}
        for result, fusion in list(fusions.items()):
            needed = fusion.used_elsewhere(inside)
            if needed is not None:
                del fusions[result]
                yield f"`{needed.name}` in it is used elsewhere too", result.name


def _drop_parts(fusions: dict[ir.Value, Fusion]) -> None:
    """Drop the fusions that are parts of larger ones, which end later and stay."""
    owned: set[ir.Node | None] = set()
    for result, fusion in reversed(list(fusions.items())):
        if result.producer() in owned:
            del fusions[result]
        else:
            owned |= set(fusion.inner)


def report(made: Mapping[str, int], declined: Mapping[str, Sequence[str | None]]) -> str:
    """Return the text that a pass reports.

    >>> report({"Softmax": 2}, {"it is over two axes": ["a/Div"]})
    '2 Softmax; 1 declined: it is over two axes (a/Div)'
    """
    texts = [", ".join(f"{count} {operator}" for operator, count in made.items())] if made else []
    for reason, names in declined.items():
        more = ", …" if len(names) > SHOWN else ""
        texts.append(f"{len(names)} declined: {reason} ({', '.join(map(str, names[:SHOWN]))}{more})")
    return "; ".join(texts) or "nothing to do"


def obstacle(op_type: str, dtype: ir.DataType | None, opset: int, numbers: Iterable[float] = ()) -> str | None:
    """Return why an operator cannot be used (the opset, the dtype, or numbers in its attributes), or None.

    >>> obstacle("Gelu", ir.DataType.FLOAT, 18)
    'Gelu needs opset 20'
    >>> obstacle("LayerNormalization", ir.DataType.DOUBLE, 23, [0.1])
    'the attributes of LayerNormalization are float32, 0.1 is not'
    """
    facts = schema.find("", op_type, opset)
    if facts is None:
        return f"{op_type} needs opset {schema.first_opset('', op_type)}"
    if dtype is None:
        return "the dtype is not known"
    if dtype.numpy() in releases.missing(op_type) or dtype.numpy() not in facts.inputs[0].dtypes:
        return f"the runtime has no {op_type} of {dtype.name}"
    rounded = [x for x in numbers if dtype is ir.DataType.DOUBLE and float(np.float32(x)) != x]
    return f"the attributes of {op_type} are float32, {rounded[0]} is not" if rounded else None


def same_but_for_ones(one: ir.Value, other: ir.Value) -> bool:
    """Whether two values are known to have the same shape, except for axes of size one."""
    dims, others = dims_of(one), dims_of(other)
    return dims is not None and others is not None and is_view(dims, others)


def is_view(before: Sequence[Dim], after: Sequence[Dim]) -> bool:
    """Whether two shapes differ only in axes of size one.

    >>> is_view([1, "T", 3], ["T", 3, 1]), is_view(["T", 3], [3, "T"])
    (True, False)
    """
    return [d for d in before if d != 1] == [d for d in after if d != 1]


def same_dims(one: ir.Value, other: ir.Value) -> bool:
    """Whether two values are known to have the same shape."""
    dims = dims_of(one)
    return dims is not None and dims == dims_of(other)
