"""`to_onnx`: from a JAX callable to an ONNX model, step by step.

trace → jaxpr with blocks → walk → graph passes → names, opset, metadata → `Exported`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from jaxport import collecting, jaxprs
from jaxport.arguments import takes
from jaxport.blocks.tracing import State, Traced
from jaxport.errors import ExportError, InvalidArgument, Unsupported
from jaxport.export import failures, passes as graph_passes, precisions, prepare
from jaxport.export.calibration import Calibration
from jaxport.export.choices import (
    Checks,
    Fold,
    Nonfinite,
    Weights,
    check_choices,
    check_rules,
    knows_other_exporters,
    weight_selector,
)
from jaxport.export.delivery import minimal_opset, older_opsets, opsets, roles, targets
from jaxport.export.delivery.requirements import CHECKS
from jaxport.export.delivery.roles import role_of
from jaxport.export.delivery.scopes import check_scopes
from jaxport.export.delivery.targets import Target, TargetName
from jaxport.export.emit.emitter import Emitter
from jaxport.export.emit.places import Place
from jaxport.export.emit.registry import Rule
from jaxport.export.emit.value import Scope, Value
from jaxport.export.exported import Exported
from jaxport.export.flags.tracing_flags import traced_with_flags
from jaxport.export.functions import FunctionBuilder, Functions, IsWhole, Selector, selector
from jaxport.export.generation import buffers, decoders, encoders
from jaxport.export.passes import Pass
from jaxport.export.ports import NCHW_TO_NHWC, NHWC_TO_NCHW, Port, check_nchw, in_single, port_of, stored, unique_names
from jaxport.export.precision.names import Border, Chosen, Named
from jaxport.export.prepare import PreparedProgram
from jaxport.export.prepare.drawn_once import refuse_drawn_once
from jaxport.export.rules import BLOCK_RULES, RULES, imported
from jaxport.export.rules.refused import CHECK_LEFT_OUT
from jaxport.export.specs import Inputs, read_inputs
from jaxport.export.walk import plugins
from jaxport.export.walk.walker import Walker
from jaxport.graph.editing import Held
from jaxport.jaxprs import Parameters, PythonFunction
from jaxport.onnx_facts import releases
from jaxport.phases import phase


@knows_other_exporters
@jaxprs.failures_name_untested_jax()
@takes(
    "to_onnx",
    input_params="named",
    static_params="named",
    input_names="names",
    output_names="names",
    inputs_as_nchw="positions",
    outputs_as_nchw="positions",
    double_precision="flag",
    weights="patterns",
    unroll_scans="count",
    rules="named",
    passes="functions",
    name="text",
)
@collecting.paused()
def to_onnx(
    fn: PythonFunction,
    inputs: Sequence[object] = (),
    *,
    input_params: Parameters | None = None,
    static_params: Parameters | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    inputs_as_nchw: Sequence[int] = (),
    outputs_as_nchw: Sequence[int] = (),
    double_precision: bool = False,
    opset: int | None = None,
    target: TargetName | Target = "onnx",
    precision: Named | Mapping[str, Chosen] | None = None,
    calibration: Calibration | Iterable[object] | None = None,
    io: Border | None = None,
    fold: Fold = "constants",
    weights: Weights = "constants",
    state: State = "refuse",
    functions: Functions | None = None,
    constraints: Sequence[str] | None = (),
    nonfinite: Nonfinite = "runtime",
    checks: Checks = "discard",
    unroll_scans: int | None = None,
    rules: Mapping[str, Rule | PythonFunction] | None = None,
    passes: Sequence[Pass] | None = None,
    name: str | None = None,
) -> Exported:
    """Export a JAX callable to ONNX.

    The types of the signature: an `object` is anything that JAX takes (arrays in tuples, lists, dicts, modules);
    `Parameters` a mapping from names to values; `PythonFunction` any callable; `Named` the name of a precision, a
    `jaxport.Int4` or a `jaxport.Int8`; `Chosen` one of these or "float32"; `Weights` and `Functions` what `weights` and
    `functions` below describe; `Rule` a rule and `Pass` a function of an `onnx_ir.Model` that changes it in place.

    Args:
      fn: a function, a Flax NNX module, a bound or partial `apply` of a Flax Linen module, an Equinox module, …
      inputs: one specification per positional argument: a tuple of sizes and names is a shape of the default float
        (`("B", 224, 224, 3)`), anything else a pytree of `jax.ShapeDtypeStruct` and arrays, or of such shapes. Dims are
        integers, names, or expressions of names such as `"2*B + 1"`; None is an open size that gets a name (`batch` if
        it comes first, else `size_1`, …). The model's inputs have the dtypes that are declared here, including 64-bit
        ones that JAX narrows; a bare shape of an input of an imported model has the dtype that the model declares.
      input_params: keyword arguments that become inputs of the graph, each given by a specification or a value.
        `bool` stands for a Python flag that the model takes at run time (`{"deterministic": bool}`).
      static_params: keyword arguments that are baked in.
      input_names: names of the inputs in the model, one per leaf; by default the argument names and pytree paths.
      output_names: names of the outputs in the model, one per leaf.
      inputs_as_nchw: positions of inputs of rank 4 that are NHWC in JAX and become NCHW in the model.
      outputs_as_nchw: the same for outputs.
      double_precision: trace with 64-bit types; bare shapes are float64 then.
      opset: the version of the default operator domain. By default the model is built from the operators of the
        target's opset, and written in the lowest opset, 18 or newer, in which they mean the same.
      target: where the model will run: "onnx" (any runtime that implements the standard), "portable" (ONNX Runtime 1.19
        or newer, opset 18), "web", "webgpu", "openvino", "edge" (compilers for small devices, opset 13), "onnxruntime",
        "genai" (a decoder step: see `jaxport.decoder_inputs`), or a `jaxport.Target`. Operators that cannot run there
        are refused.
      precision: the precision of weights and products: "float16", "bfloat16", "int8-dynamic" (8 bits, ranges
        determined at run time), "int8" (8 bits, ranges determined by `calibration`) or "int4" (weights only, in
        groups of 32); `jaxport.Int4` and `jaxport.Int8` have options. By default it is that of the function. A
        mapping chooses a precision for the modules that queries match: `{"//Linear": "int4", "//head": "float32"}`.
      calibration: for "int8", some representative batches: each is the positional argument of the function, or a
        tuple of several; `jaxport.Calibration(batches, method="percentile")` leaves outliers out of the ranges.
      io: the dtype of the inputs and outputs that are floats. "float16" or "bfloat16", with that precision, replaces
        float32, which they keep by default; "float32" replaces 16-bit floats of the function.
      fold: what is computed in advance. "constants" keeps the parameters and statistics of the model, with their
        paths, and writes computations on them as nodes, which runtimes compute once, while loading. "weights" also
        folds these computations: the graph is smaller, but `from_onnx` cannot recover the parameters (two scales may
        have become their product, for example).
      weights: "constants" stores parameters in the model; "inputs" makes them inputs of the graph, whose values are
        the defaults of the returned object; a path pattern, a list of patterns, or a predicate on paths makes some of
        them inputs.
      state: how to treat state that the call changes (batch statistics, caches): "refuse", "outputs" or "discard".
      functions: the blocks to export as ONNX functions: a qualified name, a class, a predicate on blocks, or several.
      constraints: constraints on the symbols (`"T >= 2"`), as `jax.export.symbolic_shape` takes them; None is none.
      nonfinite: how NaN and infinities are treated where operators differ from JAX: "runtime", as the runtime's kernels
        do in max pooling and recurrent layers, and as JAX does elsewhere; "exact", as JAX does, signs of zeros
        included, which takes several more operators, or a loop; "ignore" promises that nothing is NaN, and leaves out
        what only
        NaN needs: the `max`, `argmax`, `sort` or `top_k` of floats is one operator or two.
      checks: how to treat checks that raise Python errors while the program runs (`eqx.error_if`, which lineax and
        diffrax call). An ONNX model cannot raise errors, and checks compute nothing: "discard" leaves them out, and
        `explain()` and `requirements` list them; "refuse" refuses them.
      unroll_scans: unroll scans of at most this many steps, which then run faster than a loop. By default, scans over
        stacked weights, whose steps are layers, are unrolled up to about 4,000 operations; 0 keeps all loops.
      rules: rules for this export only, by primitive name: functions, or `jaxport.export.emit.registry.Rule`.
      passes: the graph passes to run instead of `jaxport.export.passes.DEFAULT`.
      name: the name of the graph; by default that of `fn`.

    Returns:
      The exported model: `.save(path)`, `.verify()`, `.run(...)`, `.explain()`, `.model`, and callable like `fn`.

    Raises:
      InvalidArgument: an argument is malformed or contradicts another.
      Unsupported: operations cannot be exported, or cannot run on the target; all of them are named, with the user's
        lines.
      StateChanged: the call changes state and `state` is "refuse".
      ExportError: the function fails under tracing with these inputs.

    Example:
      >>> import jax.numpy as jnp, jaxport
      >>> exported = jaxport.to_onnx(lambda x: jnp.tanh(x) * 2, [("B", 3)])
      >>> [node.op_type for node in exported.model.graph]
      ['Tanh', 'Mul']
    """
    plugins.load()
    lowers = opset is None
    chosen, opset = targets.validated(target, opset)
    choice = precisions.validated(precision, calibration, io, chosen, opset, double_precision)
    check_choices(state=state, nonfinite=nonfinite, fold=fold, checks=checks)
    name = name or _name_of(fn)
    with phase(f"Exporting {name}"), jax.enable_x64(True) if double_precision else contextlib.nullcontext():
        read = read_inputs(inputs, input_params, constraints, double_precision, fn)
        wanted = selector(functions)
        traced, flags = _trace(fn, read, static_params, state, name, wanted)
        if state == "refuse" and not flags:
            refuse_drawn_once(traced, name, weight_selector(weights, [weight.path for weight in traced.weights]))
        options = Options(
            fn=functools.partial(fn, **static_params) if static_params else fn,
            name=name,
            declared=read.declared,
            flags=flags,
            opset=opset,
            lowers=lowers,
            target=chosen,
            choice=choice,
            single=io == "float32",
            input_names=input_names,
            output_names=output_names,
            inputs_as_nchw=inputs_as_nchw,
            outputs_as_nchw=outputs_as_nchw,
            fold=fold,
            weights=weights,
            state=state,
            wanted=wanted,
            nonfinite=nonfinite,
            checks=checks,
            unroll_scans=unroll_scans,
            rules={key: _rule(key, rule) for key, rule in (rules or {}).items()},
            passes=passes
            if passes is not None
            else graph_passes.default(caches=chosen.caches, experts=chosen.experts, exact=nonfinite == "exact"),
        )
        exported = None
        try:
            exported = _finished(traced, options)
            _check_target(exported, options)
            return exported
        except Unsupported as error:
            other = _target_that_can(traced, options, exported)
            if other is None:
                raise
            raise Unsupported(f'{error.headline}; the target "{other.name}" can run it', error.refusals) from None


@dataclass(frozen=True)
class Options:
    """The arguments of `to_onnx`, read and checked.

    Attributes:
      fn: the function, with its static parameters bound.
      name: the name of the graph.
      declared: the arguments as the user declared them.
      flags: the positions of the Python flags among the leaves of the arguments.
      opset: the opset that the walk writes.
      lowers: whether the lowest opset is written in which the model means the same.
      target: where the model has to run.
      choice: the precision, None for that of the trace.
      single: whether inputs and outputs of 16-bit floats become float32.
      input_names, output_names: the user's names of the ports, None for those of the arguments and results.
      inputs_as_nchw, outputs_as_nchw: the positions of images whose channels come second in the model, but last in the
        function.
      fold: what is computed while exporting: what depends on constants alone, or on weights, too.
      weights: whether weights are stored in the model, or are inputs.
      state: what becomes of the state that a call changes.
      wanted: the blocks that become ONNX functions.
      nonfinite: how NaN and infinities are treated where operators differ from JAX.
      checks: whether checks that raise Python errors are left out or refused.
      unroll_scans: the greatest length of a scan that is unrolled; if None, that depends on what is scanned.
      rules: the user's own rules, by primitive or block target.
      passes: the graph passes, in order.
    """

    fn: PythonFunction
    name: str
    declared: Sequence[Any]
    flags: frozenset[int]
    opset: int
    lowers: bool
    target: Target
    choice: precisions.Choice | None
    single: bool
    input_names: Sequence[str] | None
    output_names: Sequence[str] | None
    inputs_as_nchw: Sequence[int]
    outputs_as_nchw: Sequence[int]
    fold: Fold
    weights: Weights
    state: State
    wanted: Selector
    nonfinite: Nonfinite
    checks: Checks
    unroll_scans: int | None
    rules: Mapping[str, Rule]
    passes: Sequence[Pass]


def export_traced(traced: Traced, options: Options) -> Exported:
    """Export a trace, under the precision that it was traced with."""
    exported = _finished(traced, options)
    _check_target(exported, options)
    return exported


def _finished(traced: Traced, options: Options) -> Exported:
    """Export a trace, without asking whether the target can run all of it."""
    with releases.made_for(options.target.release, web=options.target.build):
        exported = _export(traced, options)
        if options.single and options.choice is None:
            precisions.check_border(exported)
        if options.choice is not None:
            exported = precisions.applied(exported, options.choice, options.target)
        reports = graph_passes.run(exported.model, (*options.target.passes, *older_opsets.passes(options.opset)))
        exported.pass_reports = (*exported.pass_reports, *reports)
        _name_outputs(exported.model.graph, exported.outputs)
        if options.lowers:
            minimal_opset.lower(exported.model)
        minimal_opset.record(exported.model)
        if options.fold == "constants":
            roles.record(exported.model)
        check_scopes(exported.model)
        buffers.record(exported.model)
    return exported


def _target_that_can(traced: Traced, options: Options, exported: Exported | None) -> Target | None:
    """Return the nearest target that can run what another one cannot; None if there is none, or none was asked for.

    It can run the finished model; where a rule refused, and there is none, the model for the target that has
    everything.
    """
    larger = list(targets.larger(options.target))
    if exported is None and larger:
        try:
            exported = _finished(traced, replace(options, target=larger[-1], opset=larger[-1].opset))
        except (Unsupported, ExportError):
            return None
    return next((other for other in larger if exported and targets.runs(exported.model, other)), None)


def _export(traced: Traced, options: Options) -> Exported:
    rules = {**RULES, **options.rules}
    walker = Walker(
        options.opset,
        rules,
        BLOCK_RULES,
        IsWhole(frozenset(BLOCK_RULES), options.wanted),
        nonfinite=options.nonfinite,
        discards_checks=options.checks == "discard",
        unroll_scans=options.unroll_scans,
        operator_rule=imported.RULE,
        offers=functools.partial(targets.offers, options.target),
        functions=FunctionBuilder(options.wanted),
        late=True,
    )
    program = prepare.prepare(traced, rules, walker.is_whole)
    check_rules(options.rules, traced.jaxpr.jaxpr, program.jaxpr.jaxpr)
    op = Emitter(walker, Scope("main"), Place())
    operands, ports, defaults = _enter(op, traced, program, options)
    with phase("Writing operators"):
        outputs = walker.inline(op, program.jaxpr, operands)
    if walker.refusals:
        count = len(set(walker.refusals))
        noun = "1 operation" if count == 1 else f"{count} operations"
        raise Unsupported(f"{noun} of `{options.name}` cannot be exported", walker.refusals)
    walker.functions.check_all_used()
    outputs, out_ports = _leave(op, traced, program, outputs, options)
    graph = walker.finish_graph(op, outputs, options.name)
    graph.opset_imports[""] = options.opset
    ir_version = targets.ir_version(options.target, options.opset)
    model = ir.Model(graph, ir_version=ir_version, producer_name="jaxport")
    _describe(model, options.fn)
    walker.functions.attach(model, options.opset, walker.domains)
    if model.functions:
        model.ir_version = max(ir_version, opsets.FUNCTIONS)
    if left_out := sum(record.note == CHECK_LEFT_OUT for record in walker.records):
        model.metadata_props[CHECKS] = str(left_out)
    reports = graph_passes.run(model, options.passes)
    graph_passes.late(model)  # whatever passes the user chose
    return Exported(
        model=model,
        fn=options.fn,
        inputs=tuple(ports),
        outputs=tuple(out_ports),
        defaults=defaults,
        traced=traced,
        state=options.state,
        flags=options.flags,
        x64=bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64),
        records=tuple(walker.records),
        function_calls=tuple(walker.functions.calls),
        pass_reports=tuple(reports),
        again=functools.partial(_again, options),
    )


def _describe(model: ir.Model, fn: PythonFunction) -> None:
    """Write what an imported program says of itself into the model that is made of it; jaxport's own entries are of
    another model.
    """
    said = getattr(fn, "metadata", None) if hasattr(fn, "to_source") else None
    if isinstance(said, dict):
        said = {key: text for key, text in said.items() if not key.startswith("jaxport.")}
        model.doc_string, model.graph.doc_string = said.pop("doc_string", None), said.pop("graph.doc_string", None)
        model.metadata_props.update(said)


def _again(options: Options, other: Traced, passes: int | None = None, reduced: bool = False) -> Exported:
    """Export another trace of the function, which may have more outputs than a caller of the target knows."""
    return export_traced(
        other,
        replace(
            options,
            output_names=None,
            choice=options.choice if reduced else None,
            target=replace(options.target, decoder=False),
            passes=options.passes[:passes],
        ),
    )


def _check_target(exported: Exported, options: Options) -> None:
    """Refuse all operators that cannot run on the target; record the target if it is not the default."""
    target, model = options.target, exported.model
    if target.decoder:
        part = encoders.Encoder if encoders.is_encoder(exported.outputs) else decoders.Decoder
        part.of(model, exported.inputs, exported.outputs)
        decoders.name_dims(model)
        decoders.attach_defaults(model, exported.defaults)
    refusals = targets.refusals(model, target)
    if refusals:
        count = len(set(refusals))
        noun = "1 operator" if count == 1 else f"{count} operators"
        raise Unsupported(f'{noun} of `{options.name}` cannot run on the target "{target.name}"', refusals)
    if target != targets.DEFAULT:
        model.metadata_props["jaxport.target"] = target.name


def _trace(
    fn: PythonFunction,
    inputs: Inputs,
    static_params: Parameters | None,
    state: State,
    name: str,
    wanted: Selector,
) -> tuple[Traced, frozenset[int]]:
    both = sorted(set(inputs.kwargs) & set(static_params or {}))
    if both:
        raise InvalidArgument(
            f"`{both[0]}` is in `input_params` and in `static_params`",
            where="`to_onnx`",
            why="a keyword argument is either an input of the graph or baked in",
            instead="leave it in one of them",
        )
    bound = functools.partial(fn, **static_params) if static_params else fn
    # Functions of this package have their boundary already.
    ruled = [target for target in plugins.block_targets() if not target.startswith("jaxport.")]
    with failures.explaining(name, bound, inputs):
        boundaries = (*ruled, *wanted.boundaries())
        traced, flags = traced_with_flags(bound, inputs, name=name, state=state, functions=boundaries)
    failures.check_result(traced, name)
    return traced.owning(), flags


def _enter(
    op: Emitter, traced: Traced, program: PreparedProgram, options: Options
) -> tuple[list[Value], list[Port], dict[str, np.ndarray]]:
    """Return the operands of the program: weights as constants or inputs, and the user's inputs."""
    jax_avals, avals = traced.jaxpr.in_avals, program.jaxpr.in_avals
    count = len(program.weights)
    names = unique_names(options.input_names, program.input_paths, "input_names")
    is_input = weight_selector(options.weights, [weight.path for weight in program.weights])
    check_nchw(options.inputs_as_nchw, [a.shape for a in jax_avals[count:]], "inputs_as_nchw")
    ports, operands, defaults = [], [], {}
    for index, (name, jax_aval, aval) in enumerate(zip(names, jax_avals[count:], avals[count:], strict=True)):
        nchw = index in options.inputs_as_nchw
        shape = [aval.shape[a] for a in _axes(NHWC_TO_NCHW, aval)] if nchw else aval.shape
        declared = options.declared[index]
        port = port_of(name, jax_aval, nchw, in_single(declared) if options.single else declared)
        ports.append(port)
        value = op.scope.add_input(Value(port.model_dtype, shape, name=name))
        if port.declared is not None:
            value = op.cast(value, aval.dtype)
        operands.append(op.transpose(value, _axes(NCHW_TO_NHWC, aval)) if nchw else value)
    held: list[Value] = []
    for weight, jax_aval, aval in zip(program.weights, jax_avals[:count], avals[:count], strict=True):
        array = stored(weight.value)
        if is_input(weight.path):
            value = op.scope.add_input(Value(aval.dtype, aval.shape, name=weight.path))
            name = str(op.scope.use(value).name)
            ports.append(Port(name, tuple(jax_aval.shape), jax_aval.dtype, weight=True))
            defaults[name] = array
        else:
            role = role_of(weight) if options.fold == "constants" else "constant"
            leaf = None if role == "constant" else Held(weight.path, role)
            value = Value(aval.dtype, aval.shape, constant=array, name=weight.path, held=leaf)
        held.append(value)
    return [*held, *operands], ports, defaults


def _leave(
    op: Emitter, traced: Traced, program: PreparedProgram, outputs: Sequence[Value], options: Options
) -> tuple[list[Value], list[Port]]:
    """Return the outputs of the graph, in the layout that the user wants at the border."""
    names = unique_names(options.output_names, program.output_paths, "output_names")
    jax_avals, avals = traced.jaxpr.out_avals, program.jaxpr.out_avals
    check_nchw(options.outputs_as_nchw, [a.shape for a in jax_avals], "outputs_as_nchw")
    values, ports = [], []
    for index, (name, value, jax_aval, aval) in enumerate(zip(names, outputs, jax_avals, avals, strict=True)):
        nchw = index in options.outputs_as_nchw
        value = op.expanded(value)
        port = port_of(name, jax_aval, nchw, in_single(jax_aval.dtype) if options.single else jax_aval.dtype)
        if port.declared is not None:
            value = op.cast(value, port.model_dtype)
        values.append(op.transpose(value, _axes(NHWC_TO_NCHW, aval)) if nchw else value)
        ports.append(port)
    return values, ports


def _axes(permutation: Sequence[int], aval: Any) -> tuple[int, ...]:
    """Return a permutation of the four axes of an image; for complex pairs, their axis stays last."""
    return (*permutation, *range(4, len(aval.shape)))


def _name_outputs(graph: ir.Graph, outputs: Sequence[Port]) -> None:
    """Give the outputs their names; a value of the graph with the same name is renamed."""
    wanted = {port.name for port in outputs}
    taken = {value.name for value in (*graph.inputs, *graph.initializers.values())}
    for node in graph.all_nodes():
        for value in node.outputs:
            if value.name in wanted and value not in graph.outputs:
                value.name = f"{value.name}_value"
    for value, port in zip(graph.outputs, outputs, strict=True):
        if port.name in taken:
            port.name = f"{port.name}_out"
        value.name = port.name


def _rule(name: str, rule: Rule | PythonFunction) -> Rule:
    if not (isinstance(rule, Rule) or callable(rule)):
        raise InvalidArgument(f"the rule for `{name}` is not a function", where="`to_onnx(rules=...)`")
    return rule if isinstance(rule, Rule) else Rule(name, rule)


def _name_of(fn: PythonFunction) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return name.rsplit(".", 1)[-1].replace("<lambda>", "lambda")
