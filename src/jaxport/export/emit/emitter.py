"""The interface of rules: one small object, `op`.

`op.MatMul(x, y)`, and every other operator of ONNX by its own name, emits a node and returns its result; operands may
be values, NumPy arrays, Python numbers (which take the dtype that the operator's schema asks for) and tuples of
integers or dims; attributes are keywords. In addition:

=====================  ==============================================================================================
`op.out`, `op.outs`    the abstract value (shape, dtype) of the equation's result, or of all its results
`op.opset`             the opset that is being written
`op.const(x, dtype)`   a constant
`op.constant(x)`       the NumPy value of an operand that must be constant; refused if it is not
`op.dim(d)`            a dim, which may be symbolic, as an int64 scalar
`op.dims(shape)`       dims as an int64 vector
`op.cast(x, dtype)`    `x` in another dtype; no node if it has that dtype already
`op.reshape(x, s)`, `op.transpose(x, p)`, `op.expand(x, s)`, `op.unsqueeze`, `op.squeeze`, `op.concat`, `op.slice`
                       movements that emit nothing if nothing moves, and take symbolic dims
`op.call(fn, *xs)`     a JAX function of the values, in place
`op.inline(jaxpr, *xs)`  the equations of a jaxpr, in place
`op.graph(fn, inputs)` a subgraph for If, Loop and Scan
`op.refuse(why)`       refuse the equation: it is reported to the user together with all others
`op.decline(why)`      a block rule gives the block back: its body is exported instead
`op.remark`            a remark on the equation that `explain()` shows with its nodes
`op.emit(...)`         a node of any domain
=====================  ==============================================================================================
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import jax
import numpy as np
import onnx_ir as ir
from jax.typing import DTypeLike
from numpy.typing import ArrayLike

from jaxport.blocks.block import Block
from jaxport.errors import Refusal, RuleError
from jaxport.export.choices import Nonfinite
from jaxport.export.emit import bodies, dim_values, folding, intervals, legalize, shapes
from jaxport.export.emit.registry import Rule
from jaxport.export.emit.value import Move, Operand, OperatorCall, Scope, Stamp, Value, data_type
from jaxport.graph.editing import Held
from jaxport.jaxprs import ClosedJaxpr, Dim, Jaxpr, JaxprEqn, Parameters, PythonFunction, dims
from jaxport.onnx_facts import CONTROL_FLOW, schema

if TYPE_CHECKING:
    from jaxport.export.emit.places import Place, Record

INT64 = np.dtype(np.int64)
#: Attributes that hold a data type.
DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "stash_type")
#: From here to the next power of two or so, the runtime's cast overflows to another number than JAX's; the double does
#: not.
MISROUNDED = {"float8_e4m3fn": 480.0, "float8_e5m2": 61440.0}


class Refused(Exception):
    """An equation cannot be exported; the walker turns it into a row of `Unsupported`."""


class Declined(Exception):
    """A block rule does not want this block; the walker exports its body instead."""


class Walk(Protocol):
    """The walk over one program that an emitter is part of, as far as rules and the emitter ask it:
    `walk.walker.Walker`.
    """

    opset: int
    rules: Mapping[str, Rule]
    is_whole: Callable[[Block], bool]
    legalize: bool
    nonfinite: Nonfinite
    discards_checks: bool
    unroll_scans: int | None
    offers: Callable[[str, str], bool]
    domains: dict[str, int]
    functions: Any
    derived: dict[tuple, Value]
    records: list[Record]
    refusals: list[Refusal]

    @property
    def keeps_nan(self) -> bool:
        """Whether results have JAX's NaN."""
        ...

    def walk_block(self, op: Emitter, equation: JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        """Export a block."""
        ...

    def inline(self, op: Emitter, jaxpr: ClosedJaxpr | Jaxpr, operands: Sequence[Value]) -> list[Value]:
        """Export a jaxpr in place."""
        ...

    def call(self, op: Emitter, function: PythonFunction, operands: Sequence[Value], parameters: dict) -> Any:
        """Export a JAX function of the operands in place."""
        ...

    def traced(
        self, function: PythonFunction, avals: Sequence[jax.ShapeDtypeStruct], parameters: dict
    ) -> tuple[ClosedJaxpr, Any]:
        """Return a JAX function of these abstract values as a jaxpr, and the tree of its results."""
        ...

    def finish_graph(self, op: Emitter, outputs: Sequence[Value], name: str) -> ir.Graph:
        """Return the graph of the scope of `op`, with these outputs."""
        ...

    def source_lines(self, equation: JaxprEqn) -> tuple[str, str]:
        """Return the user's line of an equation, and that of a library."""
        ...


class Emitter:
    """The interface with which a rule builds the graph: see the module's docstring."""

    __slots__ = ("outs", "place", "remark", "scope", "walker")

    def __init__(self, walker: Walk, scope: Scope, place: Place, outs: Sequence[Any] = ()):
        self.walker, self.scope, self.place, self.outs, self.remark = walker, scope, place, outs, ""

    def __getattr__(self, name: str) -> PythonFunction:
        if name[:1].isupper():
            return functools.partial(self.emit, name)
        raise AttributeError(f"an emitter has no {name!r}")

    # What a rule may ask

    @property
    def out(self) -> Any:
        """The abstract value of the only result."""
        (aval,) = self.outs
        return aval

    @property
    def opset(self) -> int:
        """The opset of the default domain that is being written."""
        return self.walker.opset

    def has(self, op_type: str) -> bool:
        """Whether the default domain has this operator at the opset being written."""
        return schema.find("", op_type, self.opset) is not None

    def constant(self, value: Value) -> np.ndarray:
        """Return the NumPy value of an operand; refuse the equation if it is not a constant."""
        if value.constant is None:
            self.refuse(f"{value} must be a constant here")
        return value.constant

    def refuse(self, why: str) -> NoReturn:
        """Refuse this equation: the user sees `why`, which should say what to do instead, and their own line."""
        raise Refused(why)

    def decline(self, why: str) -> NoReturn:
        """Decline a block: its body is exported instead, and `explain()` shows `why`."""
        raise Declined(why)

    # Constants and dims

    def const(
        self, value: ArrayLike, dtype: DTypeLike | None = None, name: str = "", held: Held | None = None
    ) -> Value:
        """Return a constant: anything that NumPy takes, in `dtype` or its own; `held` is the array of a model that it
        holds.
        """
        array = np.asarray(value, dtype=None if dtype is None else np.dtype(dtype))
        return Value(array.dtype, array.shape, constant=array, name=name, held=held)

    def dims(self, shape: Sequence[Dim]) -> Value:
        """Return dims as an int64 vector: a constant if all are integers."""
        if dims.all_static(shape):
            return self.const([int(d) for d in shape], INT64)
        key = str(tuple(dims.label(d) for d in shape))
        known = self.scope.root.dim_values
        if key not in known:
            at_root = self.at_root()
            pieces: list[Value] = []
            for dim in shape:
                if dims.is_static(dim) and pieces and pieces[-1].constant is not None:
                    pieces[-1] = self.const([*pieces[-1].constant, int(dim)], INT64)
                else:
                    pieces.append(at_root.dim_vector(dim))
            known[key] = at_root.concat(pieces, 0)
        return known[key]

    def dim(self, dim: Dim, dtype: DTypeLike = INT64) -> Value:
        """Return a dim as a scalar of `dtype`."""
        if dims.is_static(dim):
            return self.const(int(dim), dtype)
        key = f"scalar {dim}"
        known = self.scope.root.dim_values
        if key not in known:
            at_root = self.at_root()
            known[key] = at_root.squeeze(at_root.dim_vector(dim), (0,))
            known[key].is_size(dim)
        return self.cast(known[key], dtype)

    def dim_vector(self, dim: Dim) -> Value:
        """Return a dim as a vector of one element."""
        return self.dims((dim,)) if dims.is_static(dim) else dim_values.vector(self.at_root(), dim)

    def at(self, scope: Scope, base: str | None = None) -> Emitter:
        """Return an emitter for another graph; with `base`, the paths in it are relative to that block's."""
        place = self.place if base is None else self.place.inside(base)
        return Emitter(self.walker, scope, place, self.outs)

    def inside(self, block: Block) -> Emitter:
        """Return an emitter whose nodes are those of a block inside this one."""
        return Emitter(self.walker, self.scope, self.place.enter(block), self.outs)

    def at_root(self) -> Emitter:
        """Return an emitter at the root, where all subgraphs see the values that are computed once."""
        return self.at(self.scope.root)

    # Nodes

    def emit(
        self,
        op_type: str,
        *operands: Operand,
        domain: str = "",
        outputs: int = 1,
        results: Sequence[Stamp] | None = None,
        **attributes: object,
    ) -> Any:
        """Emit one node.

        Args:
          op_type: the operator.
          operands: values, arrays, numbers, tuples of integers or dims, or None for an omitted input.
          domain: the operator's domain.
          outputs: the number of results.
          results: dtype and shape of each result, if there is no schema.
          attributes: Python values, dtypes, or subgraphs; those that are None are omitted.

        Returns:
          The result, or a tuple of `outputs` results.

        Raises:
          RuleError: the operator, an attribute or a dtype does not exist at this opset.
        """
        facts = schema.find(domain, op_type, max(self.opset, legalize.WRITTEN_LATER.get(op_type, 0)))
        attributes = {name: value for name, value in attributes.items() if value is not None}
        if facts is None and (not domain or results is None):
            brought = schema.first_opset(domain, op_type)
            if brought and brought > self.opset:
                newer = schema.find("", op_type, brought)
                given = [self._operand(newer, operands, i) for i in range(len(operands))]
                written = {name: _attribute(name, value, newer) for name, value in attributes.items()}
                return bodies.written_out(self, op_type, given, written, outputs)
            if results is None:
                raise RuleError(f"the domain `{domain or 'ai.onnx'}` has no operator {op_type} at opset {self.opset}")
        inputs = list(operands)
        while inputs and inputs[-1] is None:
            inputs.pop()
        if facts is not None:
            self._inputs_to_attributes(facts, inputs, attributes)
        values = [self._operand(facts, inputs, i) for i in range(len(inputs))]
        if facts is None:
            return self._append(domain, op_type, values, attributes, results or [], None)
        if self.walker.legalize:
            if op_type in CONTROL_FLOW:
                given = [v.dtype for v in values if v is not None]
                self._refuse_narrow([*given, *(dtype for dtype, _ in results or ())])
            values = legalize.for_a_kernel(self.cast, op_type, facts, values)
        wider = legalize.compute_dtype(op_type, facts, values) if self.walker.legalize else None
        if wider is not None:
            return self._in_wider_dtype(wider, facts, (domain, op_type), values, attributes, outputs, results)
        dtypes = [self._result_dtype(facts, i, values, attributes) for i in range(outputs)]
        if outputs == 1 and not domain:
            folded = folding.fold(op_type, values, attributes, dtypes[0])
            if folded is not None and folded.watch is not None and self.scope.log is not None:
                self.scope.log.steps.append(Move(op_type, tuple(values), attributes, folded))
            folded = folded or folding.without_neutral(op_type, values)
            if folded is not None:
                return folded
        self._check_dtypes(facts, values)
        for index, dtype in enumerate([np.dtype(dtype) for dtype, _ in results] if results else dtypes):
            self._check_dtype(facts, facts.output(index), dtype)
        inferred = shapes.infer(op_type, values, attributes, outputs) if not domain else [None] * outputs
        stamps = results or list(zip(dtypes, inferred, strict=True))
        return self._append(domain, op_type, values, attributes, stamps, facts)

    def _refuse_narrow(self, dtypes: Sequence[DTypeLike]) -> None:
        """Refuse control flow of integers that are narrower than a byte, for which runtimes have no kernel."""
        for name in (np.dtype(dtype).name for dtype in dtypes):
            if name in legalize.BELOW_A_BYTE:
                self.refuse(f"has {name} in the state or results of control flow, which runtimes lack; use int8 there")

    def _inputs_to_attributes(
        self, facts: schema.Schema, operands: list[Operand], attributes: dict[str, object]
    ) -> None:
        """Turn inputs that were attributes at an older opset into attributes (the axes of the reductions, for one)."""
        newest = schema.find("", facts.name, schema.NEWEST)
        while newest and facts.input(len(operands) - 1) is None and operands:
            formal = newest.input(len(operands) - 1)
            if formal is None or formal.name not in facts.attributes:
                raise RuleError(f"{facts.name} takes {len(facts.inputs)} inputs, {len(operands)} were given")
            name = formal.name
            value = operands.pop()
            if value is not None:
                attributes[name] = self.constant(value).tolist() if isinstance(value, Value) else value
        for name in [n for n in attributes if n not in facts.attributes]:
            if (opset := schema.first_with(facts.name, name, self.opset)) is not None:
                what = f"needs {facts.name} with `{name}`, which is new in opset {opset}"
                self.refuse(f"{what}; export with opset={opset} or newer")
            raise RuleError(f"{facts.name} has no attribute `{name}` at opset {self.opset}")

    def _operand(self, facts: schema.Schema | None, operands: Sequence[Operand], index: int) -> Value | None:
        operand = operands[index]
        if operand is None or isinstance(operand, Value):
            return operand
        if isinstance(operand, (np.ndarray, np.generic)):
            return self.const(operand)
        formal = facts.input(index) if facts else None
        if formal is None:
            raise RuleError(f"the operand {operand!r} needs a dtype", instead="write `op.const(value, dtype)`")
        dtype = schema.dtype_of(formal.type)
        if dtype is None and formal.dtypes == {INT64}:
            dtype = INT64
        if dtype is None:  # a type parameter: another operand decides it
            for other_index, other in enumerate(operands):
                other_formal = facts.input(other_index) if facts else None
                if isinstance(other, (Value, np.ndarray)) and other_formal and other_formal.type == formal.type:
                    dtype = other.dtype
                    break
        if dtype is None and isinstance(operand, (tuple, list)):
            dtype = INT64
        if dtype is None:
            raise RuleError(f"the operand {operand!r} needs a dtype", instead="write `op.const(value, dtype)`")
        if isinstance(operand, (tuple, list)):
            return self.dims(operand) if dtype == INT64 else self.const(np.asarray(operand), dtype)
        number: Any = operand
        return self.dim(number, dtype) if dtype.kind in "iu" else self.const(number, dtype)

    def _result_dtype(
        self, facts: schema.Schema, index: int, values: Sequence[Value | None], attributes: Parameters
    ) -> np.dtype:
        formal = facts.output(index)
        concrete = schema.dtype_of(formal.type)
        if concrete is not None:
            return concrete
        for i, value in enumerate(values):
            accepted = facts.input(i)
            if value is not None and accepted is not None and accepted.type == formal.type:
                return value.dtype
        chosen = attributes.get("to", attributes.get("dtype", attributes.get("output_dtype", attributes.get("value"))))
        if chosen is not None:
            return np.dtype(getattr(chosen, "dtype", chosen))
        if len(formal.dtypes) == 1:
            return next(iter(formal.dtypes))
        first = next((v.dtype for v in values if v is not None), np.dtype(np.float32))
        return np.dtype(np.float32) if facts.name == "ConstantOfShape" else first

    def _check_dtypes(self, facts: schema.Schema, values: Sequence[Value | None]) -> None:
        """Fail if the schema does not accept an operand's dtype, or asks two operands for the same one."""
        chosen: dict[str, np.dtype] = {}
        for index, value in enumerate(values):
            formal = facts.input(index)
            if value is None or formal is None:
                continue
            self._check_dtype(facts, formal, value.dtype)
            dtype = chosen.setdefault(formal.type, value.dtype)
            if dtype != value.dtype and not (formal.variadic and not formal.homogeneous):
                raise RuleError(f"{facts.name} got {dtype} and {value.dtype} where its schema asks for one dtype")

    def _check_dtype(self, facts: schema.Schema, formal: schema.Formal, dtype: np.dtype) -> None:
        """Fail if a formal input or output cannot have this dtype; refuse if a newer opset allows it."""
        if not formal.dtypes or dtype in formal.dtypes:
            return
        for opset in range(self.opset + 1, schema.NEWEST + 1):
            newer = schema.find("", facts.name, opset)
            if newer and any(f.name == formal.name and dtype in f.dtypes for f in (*newer.inputs, *newer.outputs)):
                instead = f"export with opset={opset}" if opset <= schema.NEWEST else "use another dtype"
                self.refuse(f"needs {facts.name} of {dtype}, which is new in opset {opset}; {instead}")
        raise RuleError(f"{facts.name} does not take {dtype} as `{formal.name}` at opset {self.opset}")

    def _in_wider_dtype(
        self,
        wider: np.dtype,
        facts: schema.Schema,
        operator: tuple[str, str],
        values: Sequence[Value | None],
        attributes: dict[str, object],
        outputs: int,
        results: Sequence[Stamp] | None,
    ) -> Any:
        """Emit an operator in a dtype that the runtime has a kernel for, and cast the results back."""
        parameter, narrow = legalize.type_parameter(facts, values)
        operands = [
            self.cast(v, wider) if v is not None and v.dtype == narrow and wider in facts.accepts(i) else v
            for i, v in enumerate(values)
        ]
        computed = [facts.output(i).type == parameter for i in range(outputs)]
        if results:
            results = [(wider if c else d, shape) for (d, shape), c in zip(results, computed, strict=True)]
        domain, op_type = operator
        emitted = self.emit(op_type, *operands, domain=domain, outputs=outputs, results=results, **attributes)
        many = emitted if isinstance(emitted, tuple) else (emitted,)
        back = tuple(self.cast(x, narrow) if c else x for x, c in zip(many, computed, strict=True))
        return back if isinstance(emitted, tuple) else back[0]

    def _append(
        self,
        domain: str,
        op_type: str,
        values: Sequence[Value | None],
        attributes: Parameters,
        stamps: Sequence[Stamp],
        facts: schema.Schema | None,
    ) -> Any:
        for value in values:
            if value is not None and not self.scope.sees(value):
                raise RuleError(f"{op_type} uses {value}, a value of another graph")
        written = tuple(_attribute(key, value, facts) for key, value in attributes.items())
        call = OperatorCall(domain, op_type, tuple(values), attributes, written)
        results = [Value(dtype, shape) for dtype, shape in stamps]
        self.scope.add(call, results, self.place)
        return results[0] if len(results) == 1 else tuple(results)

    # Movements that emit nothing if nothing moves

    def cast(self, x: Value, dtype: DTypeLike) -> Value:
        """Return `x` in `dtype`, by ONNX's Cast; `x` itself if it has that dtype. Float8 overflows as in JAX."""
        dtype = np.dtype(dtype)
        if x.dtype == dtype:
            return x
        bound = MISROUNDED.get(dtype.name)
        if bound is not None and x.constant is None and not intervals.lies_within(x, -bound, bound):
            x = self.cast(x, np.float32)
            beyond = self.emit("GreaterOrEqual", self.emit("Abs", x), self.const(bound, x.dtype))
            x = self.emit("Where", beyond, self.emit("Add", x, x), x)
        is_float8 = dtype.name.startswith("float8") and self.opset >= 19
        return self.emit("Cast", x, to=dtype, saturate=0 if is_float8 else None)

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        """Return `x` with axis `i` taken from `permutation[i]`."""
        permutation = [int(p) for p in permutation]
        return x if permutation == sorted(permutation) else self.emit("Transpose", x, perm=permutation)

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """Return `x` reshaped; the dims may be symbolic."""
        shape = tuple(shape)
        old = x.shape
        if old is not None and len(old) == len(shape) and all(map(dims.same, old, shape)):
            return x
        ones = None if old is None else _only_ones_differ(old, shape)
        if ones is not None and not dims.all_static(shape):
            return self.unsqueeze(self.squeeze(x, ones[0]), ones[1])
        if dims.all_static(shape):
            if (zero := any(int(d) == 0 for d in shape)) and not self.zero_is_zero:
                return self.const(np.empty([int(d) for d in shape], x.dtype))
            return self.emit("Reshape", x, shape, allowzero=1 if zero else None, results=[(x.dtype, shape)])
        # 0 copies the axis at the same place and -1 is what remains, so no shape has to be computed.
        target: list[Dim] = [
            0 if old is not None and i < len(old) and not dims.is_static(d) and old[i] == d else d
            for i, d in enumerate(shape)
        ]
        symbolic = [i for i, d in enumerate(target) if not dims.is_static(d)]
        positive = all(dims.known(lambda d=d: d >= 1) for d, t in zip(shape, target, strict=True) if dims.is_static(t))
        if len(symbolic) <= 1 and positive:
            vector = [-1 if i in symbolic else int(t) for i, t in enumerate(target)]
            return self.emit("Reshape", x, tuple(vector), results=[(x.dtype, shape)])
        return self.emit("Reshape", x, self.dims(shape), allowzero=self.zero_is_zero, results=[(x.dtype, shape)])

    @property
    def zero_is_zero(self) -> int | None:
        """The attribute of Reshape by which a size of zero is one; before opset 14 it is the size at its place."""
        return 1 if self.opset >= 14 else None

    def expand(self, x: Value, shape: Sequence[Dim]) -> Value:
        """Return `x` broadcast to `shape` by ONNX's rule (axes are aligned at the end)."""
        if x.shape is not None and len(x.shape) == len(shape) and all(map(dims.same, x.shape, shape)):
            return x
        return self.emit("Expand", x, self.dims(shape), results=[(x.dtype, shape)])

    def expanded(self, x: Value) -> Value:
        """Return `x` with its deferred broadcast carried out."""
        if x.broadcast is None:
            return x
        added, shape = len(x.broadcast) - x.rank, x.shape or ()
        if all(map(dims.same, (*[1] * added, *shape), x.broadcast)):
            return self.reshape(x.stored(), x.broadcast)
        return self.expand(x.stored(), x.broadcast)

    def unsqueeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Return `x` with axes of size one added at these places of the result."""
        return self.emit("Unsqueeze", x, tuple(axes)) if len(axes) else x

    def squeeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Return `x` without these axes of size one."""
        return self.emit("Squeeze", x, tuple(axes)) if len(axes) else x

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        """Concatenate values along an axis; a single value is returned as it is."""
        return xs[0] if len(xs) == 1 else self.emit("Concat", *xs, axis=axis)

    def slice(
        self,
        x: Value,
        starts: Sequence[Dim],
        limits: Sequence[Dim],
        axes: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> Value:
        """Return `x[start:limit:step]` along some axes; `x` itself if no axis is given."""
        if not axes:
            return x
        stepped = tuple(steps) if steps is not None and any(s != 1 for s in steps) else None
        return self.emit("Slice", x, tuple(starts), tuple(limits), tuple(axes), stepped)

    def alias(self, x: Value) -> Value:
        """Return `x` under another name, in this graph."""
        wider = legalize.dtype_of_kernel("Identity", self.opset, x.dtype) if self.walker.legalize else x.dtype
        if wider != x.dtype:
            wide = self.cast(x, wider)
            return self._append(
                "", "Cast", [wide], {"to": x.dtype}, [(x.dtype, x.shape)], schema.find("", "Cast", self.opset)
            )
        return self._append("", "Identity", [x], {}, [(x.dtype, x.shape)], schema.find("", "Identity", self.opset))

    # JAX functions and subgraphs

    def call(self, function: PythonFunction, *operands: Value, **parameters: object) -> Any:
        """Export a JAX function of the operands in place; return one value, or a list of them."""
        return self.walker.call(self, function, operands, parameters)

    def inline(self, jaxpr: ClosedJaxpr | Jaxpr, *operands: Value) -> list[Value]:
        """Export the equations of a (closed) jaxpr in place."""
        return self.walker.inline(self, jaxpr, operands)

    def graph(
        self, build: Callable[..., Sequence[Value]], inputs: Sequence[tuple[DTypeLike, Sequence[Dim], str]] = ()
    ) -> ir.Graph:
        """Return a subgraph for If, Loop or Scan, which may use all values of this graph.

        Args:
          build: called with an emitter of the subgraph and one value per input; returns the subgraph's outputs.
          inputs: dtype, shape and name of each input.
        """
        scope = Scope("subgraph", parent=self.scope)
        values = [scope.add_input(Value(dtype, shape, name=name)) for dtype, shape, name in inputs]
        inner = Emitter(self.walker, scope, self.place)
        return self.walker.finish_graph(inner, build(inner, *values), name="body")


def _only_ones_differ(old: Sequence[Dim], new: Sequence[Dim]) -> tuple[list[int], list[int]] | None:
    """Return the axes of size one to remove from `old` and to add in `new`, or None if other axes differ too."""
    drop = [i for i, d in enumerate(old) if dims.same(d, 1)]
    add = [i for i, d in enumerate(new) if dims.same(d, 1)]
    kept = [d for i, d in enumerate(old) if i not in drop]
    wanted = [d for i, d in enumerate(new) if i not in add]
    if len(kept) != len(wanted) or not all(map(dims.same, kept, wanted)):
        return None
    if not drop or not add:
        return drop, add
    # Axes of size one in both stay in place, as far as the order allows.
    while drop and add and drop[0] == add[0]:
        drop, add = drop[1:], add[1:]
    return drop, add


def _attribute(name: str, value: Any, facts: schema.Schema | None) -> ir.Attr:
    """Return an attribute from a Python value, in the type that the schema asks for."""
    kind = facts.attributes[name] if facts else None
    if isinstance(value, ir.Graph):
        return ir.AttrGraph(name, value)
    if name in DTYPE_ATTRIBUTES:
        return ir.AttrInt64(name, int(value if isinstance(value, int) else data_type(value)))
    match kind:
        case ir.AttributeType.INT:
            return ir.AttrInt64(name, int(value))
        case ir.AttributeType.FLOAT:
            return ir.AttrFloat32(name, float(value))
        case ir.AttributeType.STRING:
            return ir.AttrString(name, value)
        case ir.AttributeType.INTS:
            return ir.AttrInt64s(name, [int(v) for v in value])
        case ir.AttributeType.FLOATS:
            return ir.AttrFloat32s(name, [float(v) for v in value])
        case ir.AttributeType.STRINGS:
            return ir.AttrStrings(name, list(value))
        case ir.AttributeType.TENSOR:
            return ir.AttrTensor(name, ir.Tensor(np.atleast_1d(value), dtype=data_type(np.asarray(value).dtype)))
        case None if isinstance(value, np.ndarray):
            return ir.AttrTensor(name, ir.Tensor(value, dtype=data_type(value.dtype)))
        case None:
            return ir.convenience.convert_attribute(name, value)
        case _:
            raise RuleError(f"the attribute `{name}` of type {kind.name} cannot be written from {value!r}")
