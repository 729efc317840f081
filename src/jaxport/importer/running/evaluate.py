"""Evaluate bound nodes on arrays, under a trace, on the host, or while recording, all by the same walk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from jaxport.blocks.marking.recorder import Boundary
from jaxport.blocks.marking.window import comparing_sizes, current_recorder
from jaxport.errors import (
    LONGEST_REASON,
    InvalidArgument,
    JaxportError,
    ModelError,
    Refusal,
    Unsupported,
    ValueNotKnown,
    noted,
)
from jaxport.importer.names import unique_identifiers
from jaxport.importer.resolving.graph import (
    Attribute,
    Body,
    BodyFunction,
    BoundNode,
    Reference,
    SchemaFunction,
    describe,
)
from jaxport.importer.resolving.layouts import RANK, arranged
from jaxport.importer.resolving.node_settings import BRANCH_NOT_KNOWN
from jaxport.importer.resolving.registry import BOUND, EXTENT, Operator, OperatorFunction
from jaxport.importer.resolving.result_sizes import check_results, foresee
from jaxport.importer.running import marking
from jaxport.importer.running.halves import of_halves
from jaxport.importer.running.scope import EvaluationScope
from jaxport.importer.segments import Item, Nested, Segment
from jaxport.importer.traced.assumptions import demand
from jaxport.importer.traced.counted_sizes import counted_size, is_counting, uncounted
from jaxport.importer.values.dtypes import STRING, canonical
from jaxport.importer.values.host import HostValue, Key, RuntimeValue, as_array, is_dim
from jaxport.importer.values.image_layout import HWIO, OIHW, ImageLayout, order
from jaxport.importer.values.namespaces import cast, known, random
from jaxport.importer.values.recording import Recorded, active, check_size
from jaxport.importer.values.stored import tensor_value
from jaxport.jaxprs import InconclusiveDimensionOperation
from jaxport.scoped import scoped

Observer = Callable[[BoundNode, Sequence[RuntimeValue], Sequence[RuntimeValue]], None]
"""Called with each node that was evaluated, its inputs and its outputs."""

_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)


def observing(observer: Observer) -> AbstractContextManager[object]:
    """Show `observer` each node that is evaluated inside."""
    return scoped(_observer, observer)


def observed() -> bool:
    """Whether an observer is shown each node."""
    return _observer.get() is not None


class Subgraph:
    """A graph attribute as an operator function sees it: called with the body's inputs, it returns a tuple of
    outputs.
    """

    def __init__(self, body: Body, scope: EvaluationScope):
        self.body, self.scope = body, scope
        self.__name__ = body.name or "body"

    @property
    def output_count(self) -> int:
        return len(self.body.outputs)

    @property
    def input_names(self) -> list[str]:
        return [value.name or "" for value in self.body.inputs]

    def uses(self, name: str) -> bool:
        """Whether a node reads the input of this name."""
        return any(value.name == name and bool(value.uses()) for value in self.body.inputs)

    def input_sizes(self, index: int) -> tuple[int | None, ...] | None:
        """Return the sizes that the model declares for the input at `index`, None for an open one, if it declares
        any.
        """
        declared = self.body.inputs[index].shape
        return None if declared is None else tuple(n if isinstance(n, int) else None for n in declared.dims)

    def empty_output(self, index: int) -> HostValue:
        """Return the output at `index` with no rows, of the type that the model declares for it."""
        declared = self.body.outputs[index]
        sizes = (
            [size if isinstance(size, int) else 0 for size in declared.shape.dims] if declared.shape is not None else []
        )
        return HostValue(np.zeros((0, *sizes), declared.dtype.numpy() if declared.dtype is not None else np.float32))

    @property
    def is_counted(self) -> bool:
        """Whether the condition that this body of a loop returns is the one that it takes, or a constant."""
        made_by = {value: node for node in self.body.nodes for value in node.outputs}
        value = self.body.outputs[0]
        while value in made_by and made_by[value].node.op_type == "Identity":
            value = made_by[value].inputs[0]
        others = (*self.body.inputs[:1], *self.body.inputs[2:])
        return value not in others and (value not in made_by or made_by[value].node.op_type == "Constant")

    def __call__(self, *inputs: RuntimeValue) -> tuple[RuntimeValue, ...]:
        _suggest_names(self.body.inputs, inputs)
        values: dict[ir.Value, RuntimeValue] = dict(zip(self.body.inputs, inputs, strict=True))
        with uncounted():
            return _run(self.body, self.scope.inner(values), self.scope.bodies)


def evaluate(body: Body, values: dict[ir.Value, RuntimeValue], key: Key | None = None) -> tuple[RuntimeValue, ...]:
    """Return the outputs of a model's graph.

    Args:
      body: the graph.
      values: the inputs, and the initializers that are not to be read from the model.
      key: a `jax.random` key for the random operators; a fixed one if None.
    """
    with _comparing(values):
        return _run(body, EvaluationScope(values, {}, key))


def evaluate_blocks(
    body: Body, items: Sequence[Item], values: dict[ir.Value, RuntimeValue], key: Key | None = None
) -> tuple[RuntimeValue, ...]:
    """Return the outputs as `evaluate` does, with each segment of `items` (the body's nodes) as a block."""
    with _comparing(values):
        return _run(body, EvaluationScope(values, {}, key), {body: items})


def _comparing(values: Mapping[ir.Value, RuntimeValue]) -> AbstractContextManager[None]:
    """Return what is open while values of symbolic sizes are computed with."""
    has_names = any(is_dim(size) for value in values.values() for size in getattr(value, "shape", ()))
    return comparing_sizes() if has_names or is_counting() else nullcontext()


def _run_items(items: Sequence[Item], scope: EvaluationScope) -> None:
    for item in items:
        # Nothing is forgotten: the order is not that of the file, for which nodes know what nothing uses later.
        if isinstance(item, BoundNode):
            _run_nodes([item], scope, forget=False)
        elif isinstance(item, Nested):
            inner = scope.inner(bodies=item.bodies)
            _run_nodes([item.node], inner, forget=False)
            scope.update(inner)
        else:
            scope.values.update(_run_segment(item, scope))


def _run_segment(segment: Segment, scope: EvaluationScope) -> dict[ir.Value, RuntimeValue]:
    """Compute the outputs of a segment, between the markers of a call of its module."""
    recorder = current_recorder()
    assert recorder is not None
    arrays = {value: scope[value] for value in segment.inputs if isinstance(scope[value], jax.Array)}
    names = dict(zip(unique_identifiers(value.name or "" for value in arrays), arrays, strict=True))
    known: dict[ir.Value, RuntimeValue] = {}

    def call(**arguments: RuntimeValue) -> RuntimeValue | list[RuntimeValue]:
        inner = scope.inner({names[name]: array for name, array in arguments.items()})
        _run_items(segment.items, inner)
        results = {value: inner[value] for value in segment.outputs}
        known.update((value, result) for value, result in results.items() if not isinstance(result, jax.Array))
        computed = [result for value, result in results.items() if value not in known]
        return computed[0] if len(computed) == 1 else computed

    boundary = Boundary(segment.module.type or "onnx.Module")
    arguments = {name: arrays[value] for name, value in names.items()}
    results = recorder.call_method(segment.module, "__call__", call, (), arguments, boundary)
    traced = [value for value in segment.outputs if value not in known]
    return known | dict(zip(traced, [results] if len(traced) == 1 else results, strict=True))


def _run(
    body: Body, scope: EvaluationScope, bodies: Mapping[Body, Sequence[Item]] | None = None
) -> tuple[RuntimeValue, ...]:
    """Compute the outputs of a body, in the order of its nodes, or of the items that `bodies` has for it."""
    for value, tensor in body.initializers.items():
        if value not in scope.values:
            scope.values[value] = tensor_value(tensor)
    if bodies and body in bodies:
        _run_items(bodies[body], scope)
    else:
        _run_nodes(body.nodes, scope)
    return tuple(scope[value] for value in body.outputs)


def _run_nodes(nodes: Sequence[BoundNode], scope: EvaluationScope, forget: bool = True) -> None:
    observer = _observer.get()
    for node in nodes:
        _run_node(node, scope)
        if observer is not None:
            observer(
                node, *([None if v is None else scope[v] for v in values] for values in (node.inputs, node.outputs))
            )
        for value in node.expired if forget else ():
            scope.forget(value)


def _spec_in_file(kernel: Any) -> Any:
    """Return the shape and dtype of a kernel, with its axes in the model's order."""
    return jax.ShapeDtypeStruct([kernel.shape[axis] for axis in order(HWIO, OIHW)], kernel.dtype)


_OF_INPUTS = (
    AttributeError,  # of an omitted input
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AssertionError,
    MemoryError,
    RuntimeError,
)
"""What JAX, NumPy and Python raise for inputs that an operator cannot take."""


def _instead(error: Exception) -> str:
    """Return what to do about sizes that a program cannot have, if that is what an error is about."""
    told = demand(error)
    return f"{told}: give numbers, or say so where the sizes have names, `constraints=[…]`" if told else ""


def _explained(error: Exception, node: BoundNode) -> Exception:
    """Return the error to raise for an error of a node: one that names the node, or the same one if it does already."""
    where = describe(node.node)
    match error:
        case Unsupported(refusals=(Refusal(where=""), *_)):
            return _placed(error, node)
        case ModelError(where="") | InvalidArgument(where=""):
            return type(error)(error.refused, where=where, why=error.why, instead=error.instead)
        case JaxportError():
            return error
        case jax.errors.ConcretizationTypeError() | jax.errors.TracerArrayConversionError():
            return _not_known(node, "a value inside it")
        case _ if isinstance(error, _OF_INPUTS):
            return ModelError(
                f"`{node.node.op_type}` cannot be computed",
                where=where,
                why=f"{error}"[:LONGEST_REASON],
                instead=_instead(error) or "check the sizes and types of the inputs",
            )
        case InconclusiveDimensionOperation():
            needs = f"; {told}" if (told := demand(error)) else ""
            refusal = Refusal(node.node.op_type, where, str(error).partition("\n")[0] + needs)
            return ValueNotKnown("symbolic sizes are not enough here", [refusal])
    noted(error, where)
    return error


def _undecided(error: Exception, node: BoundNode) -> Exception:
    """Return the error to raise for an `If` of which not all branches can be traced, though its inputs could say which
    runs.
    """
    if isinstance(error, ValueNotKnown) and error.headline == BRANCH_NOT_KNOWN:
        return error  # of an `If` inside
    if isinstance(error, ModelError) and not error.where:
        return _explained(error, node)  # the `If` itself is not valid
    if not isinstance(error, JaxportError | TypeError | ValueError):
        return _explained(error, node)
    why = error.refusals[0].why if isinstance(error, Unsupported) else getattr(error, "why", "") or str(error)
    names = " and ".join(f"`{name}`" for name in node.decided_by)
    values = ", ".join(f"{name!r}: value" for name in node.decided_by)
    decides = "decides" if len(node.decided_by) == 1 else "decide"
    return ValueNotKnown(
        BRANCH_NOT_KNOWN,
        [
            Refusal(
                node.node.op_type,
                describe(node.node),
                f"{names} {decides} which branch runs, and one of the branches cannot be traced: give the value, as a "
                "NumPy "
                f"scalar that the jitted function closes over, or by `to_onnx(…, static_params={{{values}}})` or "
                f"`to_source(inputs={{{values}}})`; the branch fails: {why.partition(chr(10))[0]}",
            )
        ],
    )


def _run_node(node: BoundNode, scope: EvaluationScope) -> None:
    recording, arrangement = active(), None
    if recording is not None:
        recording.node = node.node
    try:
        attributes = {
            name: scope.attributes.get(value.name, value) if isinstance(value, Reference) else value
            for name, value in node.attributes.items()
        }
        # If a call omits an attribute, a reference to it is omitted, too.
        attributes = {name: value for name, value in attributes.items() if not isinstance(value, Reference)}
        target, recorder = node.target, current_recorder()
        if recorder is None or recorder.operators == "none":  # as a block it has the model's own order
            arrangement = arranged(node, attributes, scope)
        if arrangement is not None:
            inputs, attributes = arrangement.inputs, arrangement.attributes
        else:
            inputs = [None if value is None else scope[value] for value in node.inputs]
            if node.kernel_layout != OIHW:  # which only convolutions know
                inputs = [_spec_in_file(x) if node.input_mark(at) == "shape only" else x for at, x in enumerate(inputs)]
        layout = ImageLayout(kernel=node.kernel_layout) if arrangement is None else arrangement.layout
        is_plain = recording is None and recorder is None
        if is_plain and (product := of_halves(node, inputs, attributes, layout, scope)) is not None:
            outputs: tuple[RuntimeValue, ...] = (product,)
        elif isinstance(target, Operator):
            outputs = _call(node, target, target.in_layout(layout), inputs, attributes, scope)
        else:
            outputs = _call_body(target, inputs, attributes, scope)
        check_results(node, outputs)
        for output in outputs:
            _check_held(output)
    except Exception as error:
        undecided = node.decided_by and known(scope[node.inputs[0]]) is None  # type: ignore[index]
        explained = _undecided(error, node) if undecided else _explained(error, node)
        if explained is error:
            raise
        raise explained from error
    outputs = tuple(_typed(output, kind, inputs) for output, kind in zip(outputs, node.output_types, strict=False))
    if recording is not None:
        _suggest_names(node.outputs, outputs)
    for value, output in zip(node.outputs, outputs, strict=False):
        if value is None:
            continue
        if arrangement is not None and arrangement.held and as_array(output).ndim == RANK:
            scope.last[value] = output
        else:
            scope.values[value] = output


LARGE = 2**30
"""Elements of an array that may exceed the machine's memory."""


def _check_held(output: RuntimeValue) -> None:
    """Refuse an array that is too large: XLA allocates lazily, and aborts the process if that failed."""
    if isinstance(output, jax.Array) and check_size(output.shape) > LARGE:
        jax.block_until_ready(output)


def _suggest_names(values: Sequence[ir.Value | None], recorded: Sequence[RuntimeValue]) -> None:
    """Suggest the model's names for recorded values, for use in printed source."""
    for value, result in zip(values, recorded, strict=False):
        if value is not None and isinstance(result, Recorded) and not result.variable.hint:
            result.variable.hint = value.name or ""


def _call(
    node: BoundNode,
    operator: Operator,
    function: OperatorFunction,
    inputs: list[RuntimeValue],
    attributes: Mapping[str, Attribute],
    scope: EvaluationScope,
) -> tuple[RuntimeValue, ...]:
    marks = [node.input_mark(index) for index in range(len(inputs))]
    deciding = [value for mark, value in zip(marks, inputs, strict=True) if mark == "known" and value is not None]
    bound = node.bound
    if bound is None and any(known(value) is None for value in deciding):
        bound = counted_size(node, deciding, attributes)
    for index, (mark, value) in enumerate(zip(marks, inputs, strict=True)):
        if value is not None and (mark == "host" or (mark == "known" and bound is None)):
            inputs[index] = _on_host(node, operator, index, value)
    keywords: dict[str, object] = {
        operator.keyword(name): Subgraph(value, scope) if isinstance(value, Body) else value
        for name, value in attributes.items()
    }
    for name, kind in operator.context.items():
        if kind != "graph":  # which was refused when the node was bound
            keywords[name] = bound if kind == BOUND else _context(kind, node, scope)
    if operator.plain:
        inputs = [value for value in inputs if value is not None]
    if not any(isinstance(value, Body) for value in attributes.values()):
        foresee(node, inputs, attributes, lambda operands: function(*operands, **keywords))
    recorder = current_recorder()
    if recorder is None or recorder.operators == "none" or marking.is_alias(node):
        result = function(*inputs, **keywords)
    elif recorder.operators == "all":
        boundary = marking.boundary(node, inputs, attributes)
        result = recorder.call_function(boundary, _typing(function, node), tuple(inputs), keywords)
    else:
        result = marking.call(recorder, node, _typing(function, node), inputs, attributes, keywords)
    return result if isinstance(result, tuple) else (result,)


def _context(kind: str, node: BoundNode, scope: EvaluationScope) -> object:
    """Return what the evaluator provides in addition to inputs and attributes."""
    if kind == "output count":
        return len(node.outputs)
    if kind == "outputs named":
        return tuple(value is not None for value in node.outputs)
    if kind == EXTENT:
        return node.extent
    # A random key for this node only.
    return random.fold_in(random.key(0) if scope.key is None else scope.key, node.index)


def _call_body(
    target: BodyFunction | SchemaFunction,
    inputs: list[RuntimeValue],
    attributes: Mapping[str, Attribute],
    scope: EvaluationScope,
) -> tuple[RuntimeValue, ...]:
    if isinstance(target, SchemaFunction):
        types = tuple(
            None if value is None else (np.dtype((array := as_array(value)).dtype), tuple(array.shape))
            for value in inputs
        )
        references = tuple((name, attributes[name]) for name in target.references if name in attributes)
        target = target.body_for(types, references)
    body = target.body
    padded = [*inputs, *[None] * (len(body.inputs) - len(inputs))]
    bound: dict[str, object] = {
        name: Subgraph(value, scope) if isinstance(value, Body) else value for name, value in attributes.items()
    }
    values = dict(zip(body.inputs, padded, strict=True))
    results = _run(body, EvaluationScope(values, target.defaults | bound, scope.key), scope.bodies)
    if target.positions is None:
        return results
    placed = dict(zip(target.positions, results, strict=True))
    return tuple(placed.get(index) for index in range(max(placed, default=-1) + 1))


def _on_host(node: BoundNode, operator: Operator, index: int, value: RuntimeValue) -> HostValue:
    host_value = known(value)
    if host_value is None:
        parameter = operator.inputs[index] if index < len(operator.inputs) else operator.variadic
        bounded = BOUND in operator.context.values()
        sizes = _sizes_behind(node.inputs[index]) if index < len(node.inputs) else []
        raise _not_known(node, f"`{parameter.name if parameter else index}`", bounded, sizes)
    return host_value


def _placed(error: Unsupported, node: BoundNode) -> Unsupported:
    """Return an error that an operator function raised, with the node it came from."""
    refusals = [
        Refusal(refusal.name or node.node.op_type, describe(node.node), refusal.why) for refusal in error.refusals
    ]
    return type(error)(str(error).partition("\n")[0], refusals)


def _sizes_behind(value: ir.Value | None) -> list[str]:
    """Return the open sizes that a value is computed from, if it is computed from nothing else."""
    pending, found, seen = [value], dict[str, None](), set[ir.Value | None]()
    while pending:
        value = pending.pop()
        node = None if value is None else value.producer()
        if value is None or value in seen or value.const_value is not None:
            continue
        seen.add(value)
        if node is None:
            return []
        if node.op_type not in ("Shape", "Size"):
            pending += node.inputs
        elif node.inputs[0] is not None and node.inputs[0].shape is not None:
            found |= {str(size): None for size in node.inputs[0].shape if not isinstance(size, int)}
    return [*found]


def _not_known(node: BoundNode, subject: str, bounded: bool = False, sizes: Sequence[str] = ()) -> ValueNotKnown:
    name = node.node.name or next((value.name for value in node.outputs if value is not None), "")
    instead = (
        f"say how large its result is at most: `from_onnx(…, sizes={{{name!r}: bound}})`"
        if bounded
        else (
            "pass those inputs as NumPy arrays that the jitted function closes over, or give them to "
            "`to_source(inputs={name: value})`"
        )
    )
    why = f"it depends on the values of inputs; call the program outside `jax.jit`, or {instead}"
    if sizes and not bounded:
        names = " and ".join(f"`{size}`" for size in sizes)
        why = (
            f"it is computed in floating point from {names}, which is open; give a number for each such size: "
            f"`inputs={{…}}`"
        )
    headline = f"{subject} of an operation has to be known before the program is traced"
    return ValueNotKnown(headline, [Refusal(node.node.op_type, describe(node.node), why)])


def _typing(function: OperatorFunction, node: BoundNode) -> OperatorFunction:
    """Return the function of a node with results of the dtypes that the schema requires, as inside of a block."""

    @wraps(function)
    def typed(*inputs: RuntimeValue, **keywords: RuntimeValue) -> RuntimeValue:
        result = function(*inputs, **keywords)
        if not isinstance(result, tuple):
            return _typed(result, node.output_types[0], list(inputs)) if node.output_types else result
        types = (*node.output_types, *[None] * len(result))
        return tuple(_typed(output, kind, list(inputs)) for output, kind in zip(result, types, strict=False))

    return typed


def _typed(output: RuntimeValue, kind: int | np.dtype | None, inputs: list[RuntimeValue]) -> RuntimeValue:
    """Return `output` with the dtype that the schema requires."""
    own = getattr(output, "dtype", None)
    if kind is None or own is None:
        return output
    dtype = getattr(inputs[kind], "dtype", None) if isinstance(kind, int) else kind
    if dtype is None or dtype == STRING or is_dim(output):
        return output
    wanted = np.dtype(dtype) if isinstance(output, HostValue) else canonical(np.dtype(dtype))
    return output if own == wanted else cast(output, dtype)
