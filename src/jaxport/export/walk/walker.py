"""The walker: from the equations of a jaxpr to nodes, by looking up one rule per equation.

It knows no operator and no framework. It does what every rule would otherwise repeat: read operands, choose the
parameters that a rule takes, check and stamp its results, and report what went wrong where.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import onnx_ir as ir
from jax.typing import DTypeLike
from numpy.typing import ArrayLike

from jaxport.blocks.liveness import all_blocks
from jaxport.errors import JaxportError, Refusal, RuleError
from jaxport.export import prepare
from jaxport.export.choices import Nonfinite
from jaxport.export.emit import folding
from jaxport.export.emit.emitter import Declined, Emitter, Refused
from jaxport.export.emit.places import Record
from jaxport.export.emit.registry import RULES, Rule
from jaxport.export.emit.templates import BlockTemplates
from jaxport.export.emit.value import Value, has_data_type
from jaxport.export.walk import plugins
from jaxport.export.walk.sources import source_lines
from jaxport.jaxprs import (
    Atom,
    ClosedJaxpr,
    Dim,
    Jaxpr,
    JaxprEqn,
    Literal,
    Parameters,
    PythonFunction,
    Var,
    dims,
    parameters,
)
from jaxport.jaxprs.walk import needed_equations
from jaxport.onnx_facts.operation import operation_of

if TYPE_CHECKING:
    from jaxport.blocks.block import Block


@dataclass(eq=False)
class Walker:
    """One walk over one program.

    Attributes:
      opset: the opset of the default domain.
      rules, block_rules: the rules by primitive name, and by block target.
      is_whole: which blocks a rule or an ONNX function exports, so that nothing looks into them.
      legalize: whether operators are computed in another dtype if the runtime has no kernel.
      nonfinite: how NaN and infinities are treated where operators differ from JAX.
      discards_checks: whether checks of values that raise Python errors are left out.
      unroll_scans: the greatest length of a scan that is unrolled; if None, that depends on what is scanned.
      late: whether a function that fusions look for is one node, which the pass `late` writes out.
      operator_rule: the rule of blocks that are operators of an imported model.
      offers: whether the target has an operator, of a domain and a name.
      domains: the versions of the domains of operators of imported models.
      functions: builds ONNX functions for the chosen blocks, or None if there are none.
      templates: what earlier blocks emitted, which is emitted again for equal ones.
      derived: constants that rules computed from others, by key, so that each is stored once.
      records: how each equation was exported, in order.
      refusals: the equations that cannot be exported.
      _sources: the user's line and function, by the traceback of an equation.
      _traced: the programs of Python functions that rules call, by the function and the types of its operands.
    """

    opset: int
    rules: Mapping[str, Rule]
    block_rules: Mapping[str, Rule]
    is_whole: Callable[[Block], bool] = all_blocks
    legalize: bool = True
    nonfinite: Nonfinite = "runtime"
    discards_checks: bool = True
    unroll_scans: int | None = None
    late: bool = False
    operator_rule: Rule | None = None
    offers: Callable[[str, str], bool] = lambda domain, name: True  # noqa: ARG005  each is there
    domains: dict[str, int] = field(default_factory=dict)
    functions: Any = None
    templates: BlockTemplates = field(default_factory=BlockTemplates)
    derived: dict[tuple, Value] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    _sources: dict[Any, tuple[str, str]] = field(default_factory=dict)
    _traced: dict[tuple, tuple[ClosedJaxpr, Any]] = field(default_factory=dict)

    @property
    def keeps_nan(self) -> bool:
        """Whether results have JAX's NaN, which some operators need others for."""
        return self.nonfinite != "ignore"

    def walk(self, op: Emitter, jaxpr: Jaxpr, operands: Sequence[Value]) -> list[Value]:
        """Export the equations of `jaxpr` in the graph of `op`; return the values of its outputs."""
        values: dict[Var, Value] = dict(zip(jaxpr.invars, operands, strict=True))

        def read(atom: Atom) -> Value:
            return constant(atom.val, _dtype(atom.aval)) if isinstance(atom, Literal) else values[atom]

        for equation in live_equations(jaxpr):
            source = op.place.source if op.place.in_rule else self.source(equation, op.place.source)
            place = op.place.of(equation.primitive.name, source)
            inner = Emitter(self, op.scope, place, [v.aval for v in equation.outvars])
            results = self.equation(inner, equation, [read(v) for v in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def equation(self, op: Emitter, equation: JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        """Export one equation. If it cannot be exported, that is recorded and placeholder values let the walk go on."""
        block = equation.params.get("block")
        empty = bool(op.outs) and all(_is_empty(getattr(aval, "shape", ())) for aval in op.outs)
        if block is None and empty and not equation.effects:
            self.records.append(Record(op.place, "a constant", (), "the result has no elements"))
            return [constant(np.zeros(aval.shape, _dtype(aval)), _dtype(aval)) for aval in op.outs]
        try:
            if block is not None:
                return self.block(op, equation, operands)
            rule = self.rules.get(equation.primitive.name)
            if rule is None:
                why = "has no rule, and no implementation that JAX can trace; register a rule with `@jaxport.rule`"
                op.refuse(f"{why}{plugins.failures()}")
            for dtype in (*(x.dtype for x in operands), *map(_dtype, op.outs)):
                if not has_data_type(dtype):
                    op.refuse(f"computes with {dtype}, which ONNX does not have; use another dtype")
            mark, records, is_ours = op.scope.mark(), len(self.records), rule is RULES.get(rule.name)
            # Calls first: their equations are computed together, and none of them is refused.
            computed = folding.computed(equation, operands) if is_ours and rule.name == "jit" else None
            results = computed or self.apply(rule, op, parameters(equation), operands)
            if op.scope.mark() != mark and is_ours:
                computed = folding.computed(equation, operands)
            if computed is None:
                return results
            op.scope.undo(mark)
            del self.records[records:]
            self.records.append(Record(op.place, "a constant", (), "computed here, by JAX"))
            return computed
        except Refused as refusal:
            name = equation.primitive.name if block is None else block.target
            self.refusals.append(Refusal(name, op.place.source, str(refusal)))
            return [
                Value(_dtype(aval), getattr(aval, "shape", ()), scope=op.scope, ir_value=ir.Value(name="refused"))
                for aval in op.outs
            ]

    def apply(self, rule: Rule, op: Emitter, parameters: Parameters, operands: Sequence[Value]) -> list[Value]:
        """Call a rule, and check its results against the abstract values of the equation."""
        taken, refused = rule.arguments(parameters)
        if refused:
            shown = ", ".join(f"`{name}={parameters[name]!r}`" for name in refused)
            op.refuse(f"its rule does not support the parameter {shown}")
        start = len(op.scope.nodes)
        if not rule.broadcasts:
            operands = [op.expanded(x) for x in operands]
        try:
            if rule.via:
                results = op.call(rule.function, *operands, **taken)
            else:
                results = rule.function(op, *operands, **taken)
        except (Refused, Declined):
            raise
        except JaxportError as error:
            if error.where or not isinstance(error, RuleError):
                raise
            raise RuleError(error.refused, where=_where(rule, op), why=error.why, instead=error.instead) from error
        except Exception as error:  # whatever a rule raises, the user should see its name and their own line
            raise RuleError(
                f"the rule for `{rule.name}` failed: {type(error).__name__}: {error}", where=_where(rule, op)
            ) from error
        results = list(results) if isinstance(results, (list, tuple)) else [] if results is None else [results]
        results = checked_results(rule, op, results)
        self.records.append(Record(op.place, _rule_name(rule), tuple(op.scope.nodes[start:]), op.remark))
        return results

    def block(self, op: Emitter, equation: JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        """Export a block, from the template of an equal one if there is one."""
        return self.templates.exported(op, equation, operands)

    def walk_block(self, op: Emitter, equation: JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        """Export a block without templates.

        A block that a user has edited is walked in place, as are blocks without a rule. Of the others, the rule may
        decline; then those that the user selected become calls of an ONNX function, and the others are walked in place,
        too.
        """
        block = equation.params["block"]
        operation = operation_of(block.options)
        place = op.place.enter(block) if operation is None else op.place
        inner = Emitter(self, op.scope, place, op.outs)
        if block.edited:
            return self.inline(inner, equation.params["jaxpr"], operands)
        known = {"block": block, "jaxpr": equation.params["jaxpr"]}
        if operation is not None:
            rule, known["operation"] = self.operator_rule, operation
        else:
            rule = self.block_rules.get(block.target)
        if rule is not None and len(op.outs) > block.results:
            note = "declined: values from inside are used outside, as a gradient does"
            self.records.append(Record(place, _rule_name(rule), (), note))
        elif rule is not None:
            mark = op.scope.mark()
            try:
                return self.apply(rule, inner, known, operands)
            except Declined as reason:
                op.scope.undo(mark)
                self.records.append(Record(place, _rule_name(rule), (), f"declined: {reason}"))
        if operation is None and self.functions is not None and self.functions.wants(block):
            return self.functions.call(inner, equation, operands)
        return self.inline(inner, equation.params["jaxpr"], operands)

    def inline(self, op: Emitter, jaxpr: ClosedJaxpr | Jaxpr, operands: Sequence[Value]) -> list[Value]:
        """Export a jaxpr, closed or not, in place."""
        if isinstance(jaxpr, ClosedJaxpr):
            operands = [*(constant(c, c.dtype) for c in jaxpr.consts), *operands]
            body = jaxpr.jaxpr
            body = body.replace(constvars=[], invars=[*body.constvars, *body.invars]) if body.constvars else body
        else:
            body = jaxpr
        return self.walk(op, body, operands)

    def call(self, op: Emitter, function: PythonFunction, operands: Sequence[Value], parameters: dict) -> Any:
        """Trace a JAX function on the abstract values of the operands, and export it in place."""
        operands = [value.stored() for value in operands]
        avals = []
        for value in operands:
            if value.shape is None:
                raise RuleError(f"{value} is passed to a JAX function, which needs its shape")
            avals.append(jax.ShapeDtypeStruct(value.shape, value.dtype))
        jaxpr, tree = self.traced(function, avals, parameters)
        inner = Emitter(self, op.scope, op.place._replace(in_rule=True))
        results = self.inline(inner, jaxpr, operands)
        return results[0] if tree == jax.tree.structure(0) else results

    def traced(
        self, function: PythonFunction, avals: Sequence[jax.ShapeDtypeStruct], parameters: dict
    ) -> tuple[ClosedJaxpr, Any]:
        """Return a JAX function of these abstract values as the walker walks it, and the tree of its results."""
        try:
            key = (function, tuple((a.shape, a.dtype) for a in avals), tuple(sorted(parameters.items())))
            jaxpr, tree = self._traced.get(key, (None, None))
        except TypeError:  # an unhashable parameter
            key = jaxpr = tree = None
        if jaxpr is None:
            specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
            jaxpr, shape = jax.make_jaxpr(functools.partial(function, **parameters), return_shape=True)(*specs)
            jaxpr, tree = prepare.rewritten(jaxpr, self.rules, self.is_whole), jax.tree.structure(shape)
            if key is not None:
                self._traced[key] = jaxpr, tree
        return jaxpr, tree

    def finish_graph(self, op: Emitter, outputs: Sequence[Value], name: str) -> ir.Graph:
        """Return the graph of the scope of `op`, with these outputs."""
        scope, results = op.scope, []
        seen = {scope.use(value) for value in scope.inputs}
        for value in outputs:
            # Each output is a distinct value that is computed in this very graph.
            value = op.expanded(value)
            own = value.scope is scope and value.ir not in seen
            result = scope.use(value if own else op.alias(value))
            seen.add(result)
            results.append(result)
        return ir.Graph(
            [scope.use(v) for v in scope.inputs],
            results,
            nodes=scope.nodes,
            initializers=list(scope.initializers.values()),
            name=name,
        )

    def source(self, equation: JaxprEqn, around: str) -> str:
        """Return the user's line of an equation, `train.py:88 in step`; in a library, that of the call of it."""
        users, librarys = self.source_lines(equation)
        return users or around or librarys

    def source_lines(self, equation: JaxprEqn) -> tuple[str, str]:
        """Return the user's line of an equation, and that of a library; each is empty if there is none."""
        traceback = equation.source_info.traceback
        if traceback is None:
            return "", ""
        if traceback not in self._sources:
            self._sources[traceback] = source_lines(traceback)
        return self._sources[traceback]


def constant(value: ArrayLike, dtype: DTypeLike) -> Value:
    """Return a constant from an array or a number."""
    array = np.asarray(value, dtype=dtype)
    return Value(array.dtype, array.shape, constant=array)


def _is_empty(shape: Sequence[Dim]) -> bool:
    """Whether an array of this shape has no elements, and no symbolic dims."""
    return any(dims.is_static(d) and d == 0 for d in shape) and dims.all_static(shape)


def _dtype(aval: object) -> np.dtype:
    """Return the stored dtype of an abstract value; `float0`, that of integer derivatives, becomes bool."""
    dtype = getattr(aval, "dtype", jax.dtypes.float0)  # a token has none
    return np.dtype(np.bool_ if dtype == jax.dtypes.float0 else dtype)


def live_equations(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """Return the equations of `jaxpr` that an output depends on, or that have an effect, in order."""
    return needed_equations(jaxpr, jaxpr.outvars, effects=True)[0]


def checked_results(rule: Rule, op: Emitter, results: Sequence[object]) -> list[Value]:
    """Return the results of a rule, stamped; fail on a wrong number, dtype or shape, or a value of another graph."""
    if len(results) != len(op.outs):
        raise RuleError(
            f"the rule for `{rule.name}` returned {len(results)} values, but its equation has {len(op.outs)}",
            where=_where(rule, op),
        )
    checked = []
    for index, (value, aval) in enumerate(zip(results, op.outs, strict=True)):
        returned = None
        if not isinstance(value, Value):
            returned = f"{value!r}, which is not a value of a graph"
        elif not op.scope.sees(value):
            returned = f"{value}, a value of another graph"
        elif value.dtype != _dtype(aval):
            returned = f"dtype {value.dtype}, not {_dtype(aval)}"
        elif value.shape is None:
            value.shape = tuple(aval.shape)
            value.stamp()
        elif not rule.broadcasts and value.broadcast is not None and dims.shapes_differ(value.broadcast, aval.shape):
            returned = f"shape {value.broadcast}, not {aval.shape}"
        elif rule.broadcasts and not fits(value.shape, aval.shape):
            returned = f"shape {value.shape}, which does not broadcast to {aval.shape}"
        elif rule.broadcasts or value.broadcast is not None:
            value = value.to(aval.shape)
        elif dims.shapes_differ(value.shape, aval.shape):
            returned = f"shape {value.shape}, not {aval.shape}"
        elif not value.is_constant and value.scope is op.scope and not dims.all_static(aval.shape):
            value.shape = tuple(aval.shape)  # JAX's own form of the same dims
            value.stamp()
        if returned:
            raise RuleError(f"the rule for `{rule.name}` returned {returned} as result {index}", where=_where(rule, op))
        checked.append(value)
    return checked


def fits(shape: Sequence[Dim], target: Sequence[Dim]) -> bool:
    """Whether `shape` may broadcast to `target`."""
    aligned = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and not any(d != 1 and dims.surely_differ(d, t) for d, t in aligned)


def _rule_name(rule: Rule) -> str:
    return f"{rule.function.__module__}.{rule.function.__qualname__}"


def _where(rule: Rule, op: Emitter) -> str:
    return f"{_rule_name(rule)}, for {op.place.source or 'an equation without a source line'}"
