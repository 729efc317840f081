"""Read nodes, and insert nodes and constants."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard, TypeVar

import numpy as np
import onnx_ir as ir

from jaxport.onnx_facts import CONTROL_FLOW

Dim = int | str | ir.SymbolicDim
Pass = TypeVar("Pass", bound=Callable[..., str])

#: Marks an array that the user has a name for, in the `meta` of its `onnx_ir.Value`.
PARAMETER = "jaxport.parameter"
#: Has the array of the user's model that a constant holds, a `Held`, in the `meta` of its `onnx_ir.Value`.
HELD = "jaxport.held"
#: Marks a number that is a positive size, in the `meta` of its `onnx_ir.Value`, by the text of the size.
SIZE = "jaxport.size"
#: A function that ONNX lacks, as one node of the graph until the pass `late` writes it out: fusions look for it.
LATE = "Erfc"
#: Constants of at most this many bytes are compared by content, larger ones by memory.
SMALL = 1024

Stamp = tuple[ir.DataType | None, Sequence[Dim] | None]
"""The dtype and the shape of a result; None for what is unknown."""


class Held(NamedTuple):
    """A parameter or a statistic of the user's model that a constant holds: path and role, and the part if it is not
    whole.

    Constants that hold the same part of an array, whatever their shapes and the order of their elements, are tied; all
    others are not, even if they are equal.
    """

    path: str
    role: str
    part: str = ""

    @property
    def name(self) -> str:
        """The name of the constant, unless it is taken: that of the array, with the part behind.

        >>> Held("layers.kernel", "parameter", "0").name
        'layers.kernel.0'
        """
        return f"{self.path}.{self.part}" if self.part else self.path

    def divided(self, number: int) -> Held:
        """Return one of the parts that an array is divided into."""
        return self._replace(part=f"{self.part}.{number}" if self.part else str(number))


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield all graphs of a model: the main graph, the functions, and the subgraphs of both."""
    for root in roots(model):
        yield root
        yield from subgraphs(root)


def nodes_of(model: ir.Model, *op_types: str) -> list[ir.Node]:
    """Return the nodes of these operators of the default domain, graph by graph; without an operator, all nodes.

    A pass that changes the graph meets nodes that it has removed before: these have no graph.
    """
    nodes: list[ir.Node] = []
    for root in roots(model):
        first = list(root)
        nodes += first
        for body in subgraphs(first):
            nodes += body
    return [node for node in nodes if node.op_type in op_types and not node.domain] if op_types else nodes


def begins_at(*groups: Collection[str]) -> Callable[[Pass], Pass]:
    """Declare the operators of the default domain that a pass begins at, one of each group.

    It has nothing to do in a model that lacks them, and is not run there.

    >>> @begins_at({"Concat"}, {"Slice", "Split"})
    ... def stacks(model): ...
    >>> [sorted(group) for group in stacks.begins_at]
    [['Concat'], ['Slice', 'Split']]
    """

    def declared(graph_pass: Pass) -> Pass:
        graph_pass.__dict__["begins_at"] = groups
        return graph_pass

    return declared


def subgraphs(nodes: Iterable[ir.Node]) -> Iterator[ir.Graph]:
    """Yield all graphs nested in the nodes of a graph, each before those inside it."""
    for node in nodes:
        if node.domain or node.op_type in CONTROL_FLOW:
            for body in bodies(node):
                yield body
                yield from subgraphs(body)


def bodies(node: ir.Node) -> list[ir.Graph]:
    """Return the subgraphs that are attributes of a node."""
    nested: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH and not attribute.is_ref():
            nested.append(attribute.as_graph())
        elif attribute.type is ir.AttributeType.GRAPHS and not attribute.is_ref():
            nested += attribute.as_graphs()
    return nested


def roots(model: ir.Model) -> list[ir.Graph]:
    """Return the main graph and the bodies of the functions."""
    return [model.graph, *(function.graph for function in model.functions.values())]


def is_op(node: ir.Node | None, *op_types: str) -> TypeGuard[ir.Node]:
    """Whether a node is one of these operators of the default domain."""
    return node is not None and not node.domain and node.op_type in op_types


def operator_name(node: ir.Node) -> str:
    """Return the name of the operator of a node, with its domain unless that is the default one."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def integer(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute, or the default."""
    return node.attributes[name].as_int() if name in node.attributes else default


def integers(node: ir.Node, name: str) -> list[int] | None:
    """Return a list of integers from an attribute, or None if it is absent."""
    return list(node.attributes[name].as_ints()) if name in node.attributes else None


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input, or None if it is omitted."""
    return node.inputs[index] if index < len(node.inputs) else None


def source(node: ir.Node, index: int = 0) -> ir.Value:
    """Return an input that the operator requires."""
    value = node.inputs[index]
    assert value is not None
    return value


def sources(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of an operator that requires all of them."""
    return [source(node, index) for index in range(len(node.inputs))]


def unpacked(data: np.ndarray, dtype: ir.DataType, shape: Sequence[int]) -> np.ndarray:
    """Return the elements of a dtype of less than a byte from the bytes of a file.

    >>> unpacked(np.array([0b11100100], np.uint8), ir.DataType.UINT2, (4,)).tolist()
    [0, 1, 2, 3]
    """
    # `ir.PackedTensor` of onnx-ir 0.2 reads 2-bit numbers as 4-bit ones.
    shifts = np.arange(0, 8, dtype.bitwidth, dtype=np.uint8)
    levels = (data[:, None] >> shifts) & np.uint8(2**dtype.bitwidth - 1)
    return levels.ravel()[: math.prod(shape)].view(dtype.numpy()).reshape(shape)


def numpy_dtype(value: ir.Value) -> np.dtype:
    """Return the dtype of a value, which has to be known."""
    assert value.dtype is not None
    return value.dtype.numpy()


def set_dtype(value: ir.Value, dtype: ir.DataType) -> None:
    """Give a value another dtype. Assigning `value.dtype` changes an object that other values may have as their type,
    too.
    """
    value.type = ir.TensorType(dtype)


def permutation(node: ir.Node) -> tuple[int, ...]:
    """Return the permutation of a Transpose; () if it is an attribute of the function, or an unknown number of axes."""
    attribute = node.attributes.get("perm")
    if attribute is None:
        return tuple(reversed(range(rank_of(source(node)) or 0)))
    return () if attribute.is_ref() else tuple(attribute.as_ints())


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of a constant, else None."""
    if value is None:
        return None
    tensor = value.const_value
    if tensor is None:
        node = value.producer()  # most values pass here, for most passes
        if node is None or node.op_type != "Constant" or node.domain:
            return None
        tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None or value.is_graph_input() else tensor.numpy()


def held(value: ir.Value | None) -> Held | None:
    """Return the parameter or statistic of the user's model that a constant holds, or None."""
    return None if value is None else value.meta.data.get(HELD)


def is_weight(value: ir.Value | None) -> bool:
    """Whether a constant holds a parameter or a statistic of the user's model: its elements may change, and are not
    read.
    """
    return held(value) is not None


def number_of(value: ir.Value | None) -> float | None:
    """Return the number that all elements of a constant equal; None for others, and for a weight that happens to be
    so.
    """
    array = None if is_weight(value) else constant_of(value)
    if array is None or not array.size or array.dtype == object:
        return None
    first = array.flat[0]
    return float(first) if array.size == 1 or bool((array == first).all()) else None


def memory_of(array: np.ndarray) -> tuple:
    """Return what only views of the same memory with the same elements in the same order share, while both are
    alive.
    """
    return array.shape, array.__array_interface__["data"][0], array.strides


def marks_of(value: ir.Value) -> dict[str, Any]:
    """Return the marks of a constant that another one with the same elements has, too."""
    return {key: value.meta[key] for key in (HELD, PARAMETER) if key in value.meta}


def size_in(value: ir.Value | None) -> str | None:
    """Return the positive symbolic size that a number is, perhaps cast to another type; None if it is not known to be
    one.
    """
    while value is not None and rank_of(value) == 0:
        if SIZE in value.meta:
            return value.meta[SIZE]
        node = value.producer()
        value = source(node) if is_op(node, "Cast") else None
    return None


def dims_of(value: ir.Value | None) -> list[Dim] | None:
    """Return the dims of a value: integers, the text of an expression, or an unknown dim that equals only itself."""
    shape = None if value is None else value.shape
    return None if shape is None else [d if isinstance(d, int) else d.value or d for d in shape]


def static_dims(dims: Sequence[Dim | None] | None) -> list[int] | None:
    """Return dims if all of them are integers, else None.

    >>> static_dims([2, 3]), static_dims(["B", 3]), static_dims(None)
    ([2, 3], None, None)
    """
    known = [d for d in dims or () if isinstance(d, int)]
    return None if dims is None or len(known) < len(dims) else known


def rank_of(value: ir.Value | None) -> int | None:
    """Return the number of axes, or None if it is unknown."""
    return None if value is None or value.shape is None else len(value.shape)


def added_ones(short: Sequence[Dim], long: Sequence[Dim]) -> list[int] | None:
    """Return the axes of size one that turn `short` into `long`, or None if other axes differ too.

    >>> added_ones(["B", 4], ["B", 1, 4, 1])
    [1, 3]
    """
    axes, place = [], 0
    for axis, dim in enumerate(long):
        if place < len(short) and short[place] == dim:
            place += 1
        elif dim == 1:
            axes.append(axis)
        else:
            return None
    return axes if place == len(short) else None


class Namer:
    """Hands out unique names, always the same ones for the same sequence of requests.

    Args:
      used: the names that are taken.
    """

    def __init__(self, used: Iterable[str | None] = ()) -> None:
        self._used = set(used)
        self._next: dict[str, int] = {}

    def unique(self, wish: str) -> str:
        """Return `wish`, or `wish_1`, `wish_2` … if that is taken.

        >>> namer = Namer({"x"})
        >>> namer.unique("x"), namer.unique("x"), namer.unique("y")
        ('x_1', 'x_2', 'y')
        """
        name, count = wish, self._next.get(wish, 0)
        while name in self._used:
            count += 1
            name = f"{wish}_{count}"
        self._next[wish] = count
        self._used.add(name)
        return name


def new_constant(array: np.ndarray, name: str, *, as_node: bool) -> ir.Value:
    """Return a constant that is in no graph yet: the result of a Constant node, as functions have them, or an
    initializer.
    """
    tensor = ir.Tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape))
    if as_node:
        ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value], name=name)
    else:
        value.const_value = tensor
    return value


class Editor:
    """Inserts nodes and constants into the graphs of a model, under unique names."""

    def __init__(self, model: ir.Model):
        self._model, self._main = model, model.graph
        self._small: dict[tuple, ir.Value] = {}
        self._shared: set[ir.Value] = set()

    # Most passes change nothing in most models, so names are collected at the first edit.

    @functools.cached_property
    def _namer(self) -> Namer:
        return Namer(name for graph in graphs(self._model) for name in _names(graph))

    @functools.cached_property
    def _root(self) -> dict[ir.Graph, ir.Graph]:
        return {graph: root for root in roots(self._model) for graph in (root, *subgraphs(root))}

    def unique(self, wish: str) -> str:
        """Return an unused name: `wish`, perhaps with a number."""
        return self._namer.unique(wish)

    def constant(
        self, graph: ir.Graph | None, array: np.ndarray, name: str, moved_from: ir.Value | None = None
    ) -> ir.Value:
        """Return a constant that `graph` can use: an initializer of the main graph, or a node in a function.

        Small constants with the same content are stored once, but for arrays of the user's model.

        Args:
          graph: the graph.
          array: the elements.
          name: the name, perhaps with a number.
          moved_from: a constant that has the same elements, in another shape or order.
        """
        assert graph is not None
        root = graph if graph is self._main else self._root[graph]
        marks = {} if moved_from is None else marks_of(moved_from)
        small = array.nbytes <= SMALL and not marks.get(HELD)
        key = (root, str(array.dtype), array.shape, array.tobytes()) if small else None
        if key is not None and key in self._small:
            known = self._small[key]
            node = known.producer()
            if node is None or node.graph is not None:  # not removed in the meantime
                return known
        value = new_constant(array, self.unique(name), as_node=root is not self._main)
        value.meta.update(marks)
        node = value.producer()
        if node is None:
            root.register_initializer(value)
        else:
            _put_first(root, node)
        if key is not None:
            self._small[key] = value
            self._shared.add(value)
        return value

    def replace_constant(self, node: ir.Node, index: int, array: np.ndarray) -> None:
        """Move or repeat the elements of the constant operand at `index`; a weight that only this node uses keeps its
        name.
        """
        value = source(node, index)
        assert value.dtype is not None
        array = array.astype(value.dtype.numpy(), copy=False)
        own = value.is_initializer() and len(value.uses()) == 1 and value not in self._shared
        if own and not value.is_graph_output():
            value.const_value = ir.Tensor(array, dtype=value.dtype, name=value.name)
            value.shape = ir.Shape(array.shape)
        else:
            node.replace_input_with(index, self.constant(node.graph, array, value.name or "constant", value))

    def emit(
        self,
        graph: ir.Graph | None,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        stamps: Sequence[Stamp],
        *,
        name: str,
        domain: str = "",
        before: ir.Node | None = None,
        after: ir.Node | None = None,
        metadata: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> list[ir.Value]:
        """Put a node into `graph`, by default at its start, and return its results.

        Args:
          graph: the graph.
          op_type: an operator.
          inputs: its inputs.
          stamps: the dtype and the shape of each result.
          name: the name of the node and its only result, perhaps with a number; several results are counted.
          domain: the domain of the operator.
          before, after: the node to insert it next to.
          metadata: where the node comes from.
          attributes: attributes of the node.
        """
        assert graph is not None
        name = self.unique(name)
        results = [
            ir.Value(
                name=name if len(stamps) == 1 else f"{name}:{index}",
                type=None if dtype is None else ir.TensorType(dtype),
                shape=None if shape is None else ir.Shape(shape),
            )
            for index, (dtype, shape) in enumerate(stamps)
        ]
        node = ir.node(
            op_type, inputs, attributes, domain=domain, outputs=results, name=name, metadata_props=dict(metadata or {})
        )
        if before is not None:
            graph.insert_before(before, node)
        elif after is not None:
            graph.insert_after(after, node)
        else:
            _put_first(graph, node)
        return results

    def insert(
        self,
        graph: ir.Graph | None,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        before: ir.Node | None = None,
        after: ir.Node | None = None,
        like: ir.Value,
        shape: Sequence[Dim] | None,
        dtype: ir.DataType | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """Put a node of the default domain into `graph` as `emit` does, and return its result.

        Args:
          graph, op_type, inputs, before, after, attributes: as for `emit`.
          like: the value that gives the name and, with its producer, the origin.
          shape: the shape of the result.
          dtype: the dtype of the result; by default that of `like`.
        """
        producer, stamp = like.producer(), (like.dtype if dtype is None else dtype, shape)
        metadata = None if producer is None else producer.metadata_props
        (result,) = self.emit(
            graph, op_type, inputs, [stamp], name=f"{like.name}/{op_type}", before=before, after=after,
            metadata=metadata, **attributes,
        )  # fmt: skip
        return result

    def viewed(
        self,
        graph: ir.Graph | None,
        value: ir.Value,
        dims: Sequence[Dim],
        *,
        before: ir.Node | None = None,
        after: ir.Node | None = None,
    ) -> ir.Value:
        """Return `value` with its axes of size one in other places; the other dims are those of `value`, in their
        order.

        A constant that is small, or that nothing else reads yet, is stored so; other values get operators.
        """
        old = dims_of(value) or []
        added, dropped = added_ones(old, dims), added_ones(dims, old)
        if added is None and dropped is None:  # some are added and some dropped
            kept = [dim for dim in dims if dim != 1]
            value = self.viewed(graph, value, kept, before=before, after=after)
            return self.viewed(graph, value, dims, before=before, after=value.producer() if after else None)
        axes, array = added or dropped, None if is_weight(value) else constant_of(value)
        if axes and array is not None and (array.nbytes <= SMALL or not value.uses()):
            return self.constant(graph, array.reshape(static_dims(dims) or ()), value.name or "constant", value)
        if axes:
            operands = [value, self.constant(graph, np.array(axes), "axes")]
            op_type = "Unsqueeze" if added else "Squeeze"
            value = self.insert(graph, op_type, operands, before=before, after=after, like=value, shape=dims)
        return value


def _put_first(graph: ir.Graph, node: ir.Node) -> None:
    if len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def _names(graph: ir.Graph) -> set[str | None]:
    nodes = list(graph)
    names = {value.name for value in (*graph.inputs, *graph.initializers.values())}
    names.update([node.name for node in nodes])
    names.update([value.name for node in nodes for value in node.outputs])
    return names


def substitute(old: ir.Value, new: ir.Value | None) -> bool:
    """Replace all uses of `old` by `new`, and remove the nodes that only `old` needed.

    Do nothing and return False if `old` is an output of its graph that `new` cannot be: an input, a value of another
    graph, or another output.
    """
    assert new is not None
    if old.is_graph_output() and (new.producer() is None or new.graph is not old.graph or new.is_graph_output()):
        return False
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    discard(old.producer())
    return True


def discard(node: ir.Node | None) -> None:
    """Remove an unused node, and the nodes that only it used."""
    stack = [node]
    while stack:
        node = stack.pop()
        if node is None or node.graph is None or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        if bodies(node):
            continue  # subgraphs use values, too
        stack.extend([value.producer() for value in node.inputs if value is not None])
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
        node.graph.remove((node,))


def name_with_place(node: ir.Node) -> str:
    """Return the name of a node or, if it has no modules in it, that of its result, if PyTorch's older exporter gave
    it.
    """
    name, made = node.name or "", (node.outputs[0].name or "") if node.outputs else ""
    return made if "/" not in name and re.fullmatch(r"/.+_output_\d+", made) else name
