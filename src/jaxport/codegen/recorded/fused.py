"""Record a program with one operator for each computation that its file spells out.

Exporters write GELU, normalizations and the like with the operators that their opset has. The fusions of
`jaxport.graph` recognise them in a copy of the graph, whatever opset the file has, so that the printers only see
operators. Their values are those of the file for all finite inputs and weights: fusions that other passes need for
speed and that change a value (a row that is masked as a whole) are not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from jaxport.codegen.recorded.caches import cached_attention
from jaxport.codegen.recorded.conjunctions import conjunctions
from jaxport.codegen.recorded.extremes import of_values_once
from jaxport.codegen.recorded.functions import functions, possible
from jaxport.codegen.recorded.fusions import DOMAIN, attention, gated, gelu
from jaxport.codegen.recorded.integers import integer_products
from jaxport.codegen.recorded.lines import convolved_lines
from jaxport.codegen.recorded.merged import products, unmerged
from jaxport.codegen.recorded.turned import weights_second
from jaxport.graph.editing import graphs, is_op, nodes_of, numpy_dtype
from jaxport.graph.fusions.activations import activations, limits_as_operands
from jaxport.graph.fusions.choices import choices
from jaxport.graph.fusions.group_normalization import group_normalization
from jaxport.graph.fusions.log_sum_exp import log_sum_exp
from jaxport.graph.fusions.normalization import normalization
from jaxport.graph.fusions.positions import positions
from jaxport.graph.fusions.rotary import rotary
from jaxport.graph.fusions.softmax import softmax
from jaxport.graph.identities import identities
from jaxport.importer.interface import ImportedProgram, rebuilt
from jaxport.importer.resolving.graph import BodyFunction, BoundNode
from jaxport.importer.running.evaluate import observing
from jaxport.importer.traced.counted_sizes import counts_anew
from jaxport.importer.traced.recorded_program import RecordedProgram, arguments, completed, record_once
from jaxport.importer.values.dtypes import canonical
from jaxport.importer.values.host import HostValue

FUSIONS = (
    identities,
    choices,
    softmax,
    log_sum_exp,
    normalization,
    group_normalization,
    activations,
    rotary,
    products,
    unmerged,
    weights_second,
    convolved_lines,
    integer_products,
)
Round = tuple[Sequence[Callable[[ir.Model], object]], Callable[[ir.DataType | None, np.dtype], bool]]
"""Fusions, and whether they may see values that the file declares to be of a dtype."""
FIRST = (limits_as_operands,)
"""Other forms of operators, in which the fusions know them."""
IN_ANY_PRECISION = (gated, rotary)
"""Fusions to operators that round where their parts do."""
ROUNDING_LESS = (gelu, attention)
"""Fusions to operators that, in half precision, round less often than their parts."""
OPSET = 24
"""An opset that has the operators of the fusions; nodes of the file keep the versions that they have in it."""
FIRST_OPSET = 7
"""The opset from which on operators broadcast as NumPy does, which the fusions rely on."""
SMALL = 64
"""Elements up to which a value that is computed from sizes alone counts as a constant."""


def record_fused(
    program: ImportedProgram,
    inputs: Mapping[str, object] | None = None,
    *,
    strict: bool = False,
    reads_sizes: bool = False,
    has_helpers: bool = False,
    primitives: Collection[str] | None = None,
    only_functions: bool = False,
) -> RecordedProgram:
    """Record a program as `jaxport.importer.traced.recorded_program.record` does, after the fusions.

    Unless it is `strict`, guards that act on NaN alone are gone if finite inputs and weights give none, and attention
    in bfloat16 and GELU in half precision are one operator, which rounds less often than the file. `reads_sizes` is for
    targets whose arrays have their sizes as the program runs. `has_helpers` is for those that copy functions in Python:
    attention that JAX has no function for is one. `primitives` are those of JAX that the target has; all if None.
    With `only_functions`, the file is as it is, but for functions of JAX that an export has spelled out.

    >>> import onnx.parser
    >>> from jaxport.importer.program import from_onnx
    >>> program = from_onnx(
    ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     agraph (float[n] x) => (float[n] y) <float one = {1}>
    ...     { a = Neg(x) b = Exp(a) c = Add(one, b) y = Div(one, c) }''')
    ... )
    >>> [step.name for step in record_fused(program).steps]
    ['nn.sigmoid']
    """
    program = program if only_functions else of_values_once(program)

    def rounds(sizes: Mapping[ir.Value, np.ndarray]) -> Sequence[Round]:
        derived = ((partial(functions, opset=_opset(program), primitives=primitives),), _is_declared)
        if only_functions:
            return (derived,)
        folding = partial(positions, sizes=sizes, strict=strict)
        return (
            derived,
            ((folding, *FIRST, partial(cached_attention, has_helpers=has_helpers)), _is_declared),
            ((*FUSIONS, folding, conjunctions, partial(attention, strict=strict, has_helpers=has_helpers)), _is_exact),
            ((*IN_ANY_PRECISION, *(() if strict else ROUNDING_LESS)), _is_declared),
        )

    def attempt(inputs: dict[str, object]) -> RecordedProgram:
        if only_functions and not possible(program.model):
            return record_once(program, inputs)
        fused = _fused(program, _seen(program, inputs), rounds)
        return replace(
            record_once(fused, inputs), is_finite=not only_functions and _guards(fused.model) < _guards(program.model)
        )

    return completed(program, inputs, attempt, reads_sizes)


def _opset(program: ImportedProgram) -> int:
    return program.model.opset_imports.get("", 0)


def _guards(model: ir.Model) -> int:
    """Return how often a model asks whether something is NaN."""
    return len(nodes_of(model, "IsNaN"))


def _seen(program: ImportedProgram, inputs: Mapping[str, object]) -> dict[ir.Value, list[object]]:
    """Return what each value of a graph is while the program is traced: in each call of its function."""
    specs, known = arguments(program, inputs)
    computed: dict[ir.Value, list[Any]] = {}
    taken: dict[ir.Value, list[Any]] = {}

    def observe(node: BoundNode, inputs: Sequence[object], outputs: Sequence[object]) -> None:
        noted = [*zip(node.outputs, outputs, strict=False)]
        if isinstance(node.target, BodyFunction):  # which has been called with these
            noted += zip(node.target.body.inputs, inputs, strict=False)
        for value, result in noted:
            if value is not None:
                computed.setdefault(value, []).append(result)
        for value, result in zip(node.inputs, inputs, strict=False):
            results = [] if value is None else taken.setdefault(value, [])
            if not results or results[-1] is not result:  # what a body takes differs from call to call
                results.append(result)

    def run(params: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        counts_anew()
        program.evaluate(params, {**values, **known})

    with observing(observe):
        jax.eval_shape(run, program.param_specs, specs)
    return taken | computed


def _type(results: Sequence[Any]) -> tuple[np.dtype, list[int | str]] | None:
    """Return the dtype and the sizes of a value, or None if it is not an array of one rank.

    A size that differs from call to call is named after all of them, so that it equals those that change alike.
    """
    if not all(isinstance(result, jax.Array | HostValue) for result in results):
        return None
    dtypes, ranks = {np.dtype(result.dtype) for result in results}, {result.ndim for result in results}
    if len(dtypes) != 1 or len(ranks) != 1:
        return None
    sizes: list[int | str] = []
    for along in zip(*(result.shape for result in results), strict=True):
        texts = [*map(str, along)]
        every = texts[0] if len({*texts}) == 1 else f"each({', '.join(texts)})"
        sizes.append(int(every) if every.isdecimal() else every)
    return dtypes.pop(), sizes


def _constant(results: Sequence[object]) -> np.ndarray | None:
    """Return the elements of a value that is small, known, and the same in each call."""
    first, *others = results
    if not isinstance(first, HostValue) or first.symbolic or first.size > SMALL:
        return None
    alike = (isinstance(other, HostValue) and np.array_equal(first.data, other.data) for other in others)
    return first.data if all(alike) else None


def _is_of_sizes(results: Sequence[object]) -> bool:
    """Whether a value is known, depends on sizes alone, and is the same in each call."""
    first, *others = results
    if not isinstance(first, HostValue) or not first.symbolic or first.size > SMALL:
        return False
    texts = [*map(str, first.data.ravel())]
    return all(isinstance(other, HostValue) and texts == [*map(str, other.data.ravel())] for other in others)


def _fused(
    program: ImportedProgram,
    seen: Mapping[ir.Value, Sequence[Any]],
    rounds: Callable[[Mapping[ir.Value, np.ndarray]], Sequence[Round]],
) -> ImportedProgram:
    """Return the program with operators instead of what spells them out; the program itself if nothing does."""
    model = program.model.clone()
    for root in (model, *model.functions.values()):
        version = root.opset_imports.get("", 0)
        if version < FIRST_OPSET:
            return program
        for node in root.graph.all_nodes():
            node.version = version if not node.domain else node.version
        root.opset_imports.update({"": max(version, OPSET), DOMAIN: 1})
    for node in nodes_of(model):
        if not node.outputs and node.graph is not None:  # it computes nothing, and fusions read results
            node.graph.remove(node, safe=True)
    count = len(nodes_of(model))
    parameters = [model.graph.initializers[name] for name in program.weights if name in model.graph.initializers]
    copies = dict(zip(_values(program.model), _values(model), strict=True))
    known = {copies[value]: results for value, results in seen.items() if value in copies}
    declared = [(value.name, value.shape) for value in model.graph.outputs]
    sizes = {value: results[0].data for value, results in known.items() if _is_of_sizes(results)}
    for fusions, is_admitted in rounds(sizes):
        with _annotated(known, [*copies.values()], parameters, is_admitted):
            for fusion in fusions:
                fusion(model)
    for value, (name, shape) in zip(model.graph.outputs, declared, strict=True):
        value.name, value.shape = name, shape
    nodes = nodes_of(model)
    is_changed = len(nodes) < count or any(node.version is None and node.domain in ("", DOMAIN) for node in nodes)
    return rebuilt(program, model) if is_changed else program


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the values that a model computes or takes, in the order of its nodes."""
    for graph in graphs(model):
        yield from graph.inputs
        for node in graph:
            yield from node.outputs


@contextmanager
def _annotated(
    known: Mapping[ir.Value, Sequence[object]],
    values: Sequence[ir.Value],
    parameters: Sequence[ir.Value],
    is_admitted: Callable[[ir.DataType | None, np.dtype], bool],
) -> Iterator[None]:
    """Give values the shapes that they had, and those that depend on nothing but sizes their elements, inside the
    context.

    Parameters are not constants, whatever they are before they are trained. Values of dtypes that are not admitted, as
    the file declares them and as they are, have no shape, so that nothing is recognised.
    """
    declared = [(value, value.type, value.shape, value.const_value) for value in (*values, *parameters)]
    for parameter in parameters:
        parameter.const_value = None
    for value in values:
        results, value.shape = known.get(value, ()), None
        kind = _type(results) if results else None
        if kind is None or not is_admitted(value.dtype, kind[0]):
            continue
        dtype, sizes = kind
        value.shape = ir.Shape(sizes)
        if value.dtype is None:
            value.type = ir.TensorType(_undeclared(value, dtype))
        constant = None if value.producer() is None else _constant(results)
        if constant is not None:
            value.const_value = ir.Tensor(constant.astype(numpy_dtype(value)), name=value.name)
    yield
    for value, kind, shape, constant in declared:
        value.type, value.shape, value.const_value = kind, shape, constant


def _undeclared(value: ir.Value, traced: np.dtype) -> ir.DataType:
    """Return the dtype of a value that the file does not declare: JAX may have computed it with 32 bits instead of
    64.
    """
    node = value.producer()
    if is_op(node, "Cast"):
        return ir.DataType(node.attributes["to"].as_int())
    operands = (
        [] if node is None else [operand.dtype for operand in node.inputs if operand is not None and operand.dtype]
    )
    wide = [dtype for dtype in operands if not dtype.is_string() and canonical(dtype.numpy()) == traced]
    return max(wide, key=lambda dtype: dtype.bitwidth, default=ir.DataType.from_numpy(traced))


def _is_exact(declared: ir.DataType | None, dtype: np.dtype) -> bool:
    """Whether a value is of integers or booleans, or in single precision: in others, an operator may round where its
    parts do not.
    """
    return dtype.kind in "biu" or (dtype == np.float32 and declared in (None, ir.DataType.FLOAT))


def _is_declared(declared: ir.DataType | None, dtype: np.dtype) -> bool:
    """Whether a value has the dtype that the file declares."""
    return declared is None or declared.numpy() == dtype
