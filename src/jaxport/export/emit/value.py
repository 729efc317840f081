"""The values that rules take and return, the graphs under construction that contain them, and the log of what enters
these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir
from jax.typing import DTypeLike

from jaxport.graph.editing import HELD, PARAMETER, SIZE, SMALL, Held, Namer, memory_of, new_constant
from jaxport.jaxprs import Dim, Parameters, dims

if TYPE_CHECKING:
    from jaxport.export.emit.places import Place


@dataclass(eq=False, slots=True)
class Watch:
    """What rules have read of a value that enters a block: what they emitted depends on it.

    Attributes:
      elements_read: whether the elements of a constant were read.
      origin_read: whether the node that computes the value was asked for.
    """

    elements_read: bool = False
    origin_read: bool = False


class Origin(NamedTuple):
    """The node that computes a value, and the index of its result: rules look through it for simpler forms."""

    op_type: str
    operands: tuple[Value | None, ...]
    attributes: Parameters
    result: int


class Value:
    """A tensor in the graph that is being written, with its dtype and its shape if known.

    Attributes:
      dtype: its NumPy dtype (`ml_dtypes` for bfloat16 and smaller floats).
      shape: a tuple of dims (integers or symbolic dimension expressions), or None if it is unknown.
      broadcast: the shape after its broadcast, if that is deferred: see `logical_shape`.
      scope: the graph it belongs to; None for a constant, which any graph may use.
      name: its wanted name, made unique when it enters a graph.
      held: the array of the user's model that a constant holds, or None.
      watch: notes what is read of it while a template is being recorded, or None.
    """

    __slots__ = ("_constant", "_ir", "_origin", "broadcast", "dtype", "held", "name", "scope", "shape", "watch")

    def __init__(
        self,
        dtype: DTypeLike,
        shape: Sequence[Dim] | None,
        *,
        constant: np.ndarray | None = None,
        scope: Scope | None = None,
        name: str = "",
        held: Held | None = None,
        ir_value: ir.Value | None = None,
        origin: Origin | None = None,
        watch: Watch | None = None,
    ):
        self.dtype = np.dtype(dtype)
        self.shape = None if shape is None else tuple(shape)
        self.broadcast: tuple[Dim, ...] | None = None
        self._constant, self.scope, self.name, self._ir, self._origin = constant, scope, name, ir_value, origin
        self.watch, self.held = watch, held

    @property
    def constant(self) -> np.ndarray | None:
        """Its value as a NumPy array if it is constant, else None. To ask whether it is, ask `is_constant`."""
        if self.watch is not None:
            self.watch.elements_read = True
        return self._constant

    @property
    def is_constant(self) -> bool:
        """Whether its value is known."""
        return self._constant is not None

    @property
    def origin(self) -> Origin | None:
        """The node of the default domain that computes it, or None for inputs and constants."""
        if self.watch is not None:
            self.watch.origin_read = True
        return self._origin

    @property
    def ir(self) -> ir.Value | None:
        """The value in the graph, from which all of the graph can be seen."""
        if self.scope is not None and self.scope.log is not None:
            self.scope.log.graph_seen = True
        return self._ir

    @property
    def rank(self) -> int:
        """The number of axes. Raises `ValueError` if the shape is unknown."""
        if self.shape is None:
            raise ValueError(f"the rank of {self} is not known")
        return len(self.shape)

    @property
    def logical_shape(self) -> tuple[Dim, ...] | None:
        """The shape of the JAX value: a broadcast is deferred until something needs its elements one by one."""
        return self.shape if self.broadcast is None else self.broadcast

    def to(self, shape: Sequence[Dim]) -> Value:
        """Return the same stored value with a deferred broadcast to `shape`."""
        if self.shape is not None and len(self.shape) == len(shape) and all(map(dims.same, self.shape, shape)):
            return self if self.broadcast is None else self.stored()
        return self.broadcasting(shape)

    def broadcasting(self, shape: Sequence[Dim]) -> Value:
        """Return the same stored value with a deferred broadcast to `shape`, even if that is its own."""
        result = self.stored()
        result.broadcast = tuple(shape)
        return result

    def stored(self) -> Value:
        """Return the value as it is stored, without its deferred broadcast."""
        return Value(
            self.dtype,
            self.shape,
            constant=self._constant,
            scope=self.scope,
            name=self.name,
            held=self.held,
            ir_value=self._ir,
            origin=self._origin,
            watch=self.watch,
        )

    def watched(self, watch: Watch) -> Value:
        """Return the same value; `watch` notes what is read of it."""
        result = self.stored()
        result.broadcast, result.watch = self.broadcast, watch
        return result

    def moved(self, move: Callable[[np.ndarray], np.ndarray]) -> Value:
        """Return the constant with its elements elsewhere; none of them counts as read."""
        assert self._constant is not None
        array = move(self._constant)
        watch = None if self.watch is None else Watch()
        return Value(self.dtype, array.shape, constant=array, name=self.name, held=self.held, watch=watch)

    def shares_memory(self, other: Value) -> bool:
        """Whether two constants are views of the same memory."""
        return np.may_share_memory(self._constant, other._constant)

    def same_elements(self, other: Value) -> bool:
        """Whether two constants have the same bytes; this does not count as read."""
        one, two = self._constant, other._constant
        return one is two or (one is not None and two is not None and one.tobytes() == two.tobytes())

    @property
    def identity(self) -> int:
        """A number that two values share if they are the same tensor."""
        return id(self._ir) if self._constant is None else id(self._constant)

    def __repr__(self) -> str:
        shape = "unknown shape" if self.shape is None else f"[{', '.join(str(d) for d in self.shape)}]"
        return f"<{'constant ' if self.is_constant else ''}{self.dtype}{shape} {self.name}>"

    def key(self) -> tuple:
        """Return a key that distinguishes this constant from others."""
        array = self._constant
        assert array is not None
        if array.nbytes <= SMALL and self.held is None:
            return array.dtype, array.shape, self.name, array.tobytes()
        return array.dtype, self.held, *memory_of(array)

    def is_size(self, dim: Dim) -> None:
        """Note on the underlying `onnx_ir.Value` that it is a size, if this is known to be positive."""
        if self._ir is not None and dims.known(lambda: dim >= 1):
            self._ir.meta[SIZE] = str(dim)

    def stamp(self) -> None:
        """Write dtype and shape on the underlying `onnx_ir.Value`."""
        if self._ir is None:
            self._ir = ir.Value(name=self.name)
        self._ir.type = ir.TensorType(data_type(self.dtype))
        self._ir.shape = None if self.shape is None else ir.Shape([_label(d) for d in self.shape])


Operand = Value | np.ndarray | np.generic | float | Sequence[Dim] | None
"""What a rule passes to an operator: see `Emitter.emit`."""

Stamp = tuple[DTypeLike, Sequence[Dim] | None]
"""The dtype and the shape of a result; the shape is None if it is unknown."""


def beside(value: Value | None, op_type: str, first: Value | None) -> Value | None:
    """Return `y` if a value is computed as `op_type(first, y)`, else None."""
    if value is None or first is None or first._ir is None or value.origin is None or value.origin.op_type != op_type:
        return None
    x, y = value.origin.operands
    return y if x is not None and x._ir is first._ir else None


def _label(dim: Dim) -> int | ir.SymbolicDim:
    """Return a dim as a shape in the graph has it."""
    return dim if isinstance(dim, int) else int(dim) if dims.is_static(dim) else _symbolic(dim)


@functools.lru_cache(maxsize=256)
def _symbolic(dim: Dim) -> ir.SymbolicDim:
    return ir.SymbolicDim(str(dim))


@functools.lru_cache(maxsize=64)
def data_type(dtype: DTypeLike) -> ir.DataType:
    """Return the ONNX data type of a NumPy dtype.

    >>> data_type("float32").name
    'FLOAT'
    """
    return ir.DataType.from_numpy(np.dtype(dtype))


@functools.lru_cache(maxsize=64)
def has_data_type(dtype: np.dtype) -> bool:
    """Whether ONNX has a data type for a NumPy dtype.

    >>> has_data_type(np.dtype("float16")), has_data_type(np.dtype("float8_e3m4"))
    (True, False)
    """
    try:
        data_type(dtype)
    except TypeError:
        return False
    return True


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


@dataclass(frozen=True)
class Mark:
    """The state of a graph under construction: the number of its nodes, constants and dims, and of its root's.

    The number of steps in its log tells how it was reached: it is not part of the state.
    """

    nodes: int
    root_nodes: int
    constants: int
    initializers: int
    dims: int
    steps: int = field(compare=False)


@dataclass(eq=False)
class Scope:
    """A graph under construction: the main graph, the body of a function, or a subgraph of either.

    A subgraph sees the values of the graphs around it, up to its root; a root (the main graph or a function) sees only
    its own. Constants and dimension values are stored once, at the root. `log` notes what enters the graph while a
    template is being recorded.
    """

    kind: str
    parent: Scope | None = None
    nodes: list[ir.Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    initializers: dict[str, ir.Value] = field(default_factory=dict)
    constants: dict[tuple, ir.Value] = field(default_factory=dict)
    dim_values: dict[str, Value] = field(default_factory=dict)
    dim_inputs: dict[str, Value] = field(default_factory=dict)
    values: Namer = field(default_factory=Namer)
    node_names: Namer = field(default_factory=Namer)
    log: Log | None = None
    root: Scope = field(init=False)

    def __post_init__(self) -> None:
        self.root = self if self.parent is None else self.parent.root

    def mark(self) -> Mark:
        """Return the current state of this graph, to come back to."""
        root = self.root
        dim_count = len(root.dim_values) + len(root.dim_inputs)
        steps = 0 if self.log is None else len(self.log.steps)
        return Mark(len(self.nodes), len(root.nodes), len(root.constants), len(root.initializers), dim_count, steps)

    def undo(self, mark: Mark) -> None:
        """Remove what was emitted since a mark, unless dims were: later code relies on them, so all of it stays."""
        root, now = self.root, self.mark()
        if now.dims != mark.dims:
            return
        for node in (*self.nodes[mark.nodes :], *root.nodes[mark.root_nodes :]):
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
        del self.nodes[mark.nodes :], root.nodes[mark.root_nodes :]
        if self.log is not None:
            self.log.steps[mark.steps :] = [Withdrawal(tuple(self.log.steps[mark.steps :]))]
        for made, count in ((root.constants, mark.constants), (root.initializers, mark.initializers)):
            while len(made) > count:
                made.popitem()  # the newest

    def sees(self, value: Value) -> bool:
        """Whether an equation in this graph may use `value`."""
        scope: Scope | None = self
        while scope is not None and scope is not value.scope:
            scope = scope.parent
        return value.scope is None or scope is not None

    def add(self, call: OperatorCall, results: Sequence[Value], place: Place) -> ir.Node:
        """Append a node; name it and its results after the innermost block of its place."""
        inputs = [None if v is None else self.use(v) for v in call.operands]
        wish = f"{place.path}/{call.op_type}" if place.path else call.op_type
        name = self.root.node_names.unique(wish)
        for index, result in enumerate(results):
            result.name = self.root.values.unique(name if len(results) == 1 else f"{name}:{index}")
            result.scope = self
            result.stamp()
            result._origin = None if call.domain else Origin(call.op_type, call.operands, call.attributes, index)
        node = ir.Node(
            call.domain,
            call.op_type,
            inputs,
            call.written,
            outputs=[self.use(result) for result in results],
            name=name,
            metadata_props=place.metadata(),
        )
        self.nodes.append(node)
        if self.log is not None:
            self.log.steps.append(Emission(call, tuple(results), node, place))
        return node

    def add_input(self, value: Value) -> Value:
        """Make `value` an input of this graph."""
        value._ir = ir.Value(name=self.root.values.unique(value.name or "input"))
        value.scope = self
        value.stamp()
        self.inputs.append(value)
        return value

    def use(self, value: Value) -> ir.Value:
        """Return the `onnx_ir.Value` of `value` in this graph; a constant enters its root on first use."""
        if not value.is_constant:
            assert value._ir is not None
            return value._ir
        root = self.root
        key = value.key()
        if key not in root.constants:
            root.constants[key] = root.add_constant(value)
        return root.constants[key]

    def add_constant(self, value: Value) -> ir.Value:
        """Store a constant: as an initializer of the main graph, or as a node in a function, which has none."""
        array = value._constant
        assert array is not None
        constant = new_constant(array, self.values.unique(value.name or "constant"), as_node=self.kind == "function")
        constant.meta.update({PARAMETER: bool(value.name), HELD: value.held})
        node = constant.producer()
        if node is not None:
            self.nodes.append(node)
        else:
            self.initializers[constant.name or ""] = constant
        return constant
