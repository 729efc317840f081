"""Replace primitives without a rule by their implementations, which JAX traces.

A jaxpr in a parameter of such a primitive stays whole. While tracing, it is replaced by one that makes a single opaque
call; wherever the implementation runs it (once, twice or in a loop), a call of the original replaces the opaque one. So
a primitive that only calls its jaxpr becomes a call of it, under any name, and its blocks are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax.core import ShapedArray

from jaxport.blocks.block import block_p
from jaxport.export.emit.registry import Rule
from jaxport.export.prepare import complex as complex_numbers
from jaxport.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, Parameters, Primitive, PythonFunction, Var, dims, new_jaxpr_eqn
from jaxport.jaxprs.releases import implementations
from jaxport.jaxprs.rewrite import EquationRewriting, Rewriting, call_of, traced
from jaxport.jaxprs.walk import equations_within, map_jaxprs

#: How deep implementations of one primitive may nest: more is an infinite recursion.
DEEPEST = 20

opaque_p = Primitive("opaque_call")
opaque_p.multiple_results = True


@opaque_p.def_effectful_abstract_eval
def _results_of_body(*_: object, body: ClosedJaxpr) -> tuple:
    return body.out_avals, _effects(body)


def with_implementations(closed: ClosedJaxpr, rules: Mapping[str, Rule]) -> ClosedJaxpr:
    """Return the program without primitives that have no rule and whose implementation JAX can trace.

    >>> import jax
    >>> from jaxport.jaxprs import Primitive
    >>> twice_p = Primitive("twice")
    >>> twice_p.def_impl(lambda x: x + x)  # doctest: +ELLIPSIS
    <function ...>
    >>> aval = twice_p.def_abstract_eval(lambda x: x)
    >>> program = jax.make_jaxpr(lambda x: twice_p.bind(x) * 3)(1.0)
    >>> [equation.primitive.name == "twice" for equation in with_implementations(program, {"mul": None}).eqns]
    [False, False]
    """
    return _Implementations(rules).closed(closed)


class _Implementations(Rewriting):
    def __init__(self, rules: Mapping[str, Rule]):
        super().__init__()
        self.rules = rules
        self.entered: list[Primitive] = []

    def concerns(self, equation: JaxprEqn) -> bool:
        primitive, atoms = equation.primitive, (*equation.invars, *equation.outvars)
        if primitive.name in self.rules or primitive in (block_p, opaque_p):
            return False
        if complex_numbers.is_known(primitive.name, [atom.aval for atom in atoms], self.rules):
            return False
        # Mutable arrays are not values: another step handles them.
        return all(isinstance(atom.aval, ShapedArray) for atom in atoms)

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        equation = super().equation(equation)
        primitive = equation.primitive
        if not self.concerns(equation) or self.entered.count(primitive) >= DEEPEST:
            return equation
        for function in implementations(primitive):
            meaning = _meaning(function, equation)
            if meaning is not None:
                self.entered.append(primitive)
                meaning = EquationRewriting(_opened).closed(self.closed(meaning))
                self.entered.pop()
                return call_of(meaning, equation.invars, equation.outvars, equation)
        return equation


def _opened(equation: JaxprEqn) -> JaxprEqn:
    """Replace an opaque call by a call of the original jaxpr."""
    if equation.primitive is not opaque_p:
        return equation
    return call_of(equation.params["body"], equation.invars, equation.outvars, equation)


def _meaning(function: PythonFunction, equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the jaxpr of an implementation; None if it cannot be traced, or only defers to the compiler."""
    params = {name: map_jaxprs(_opaque, value) for name, value in equation.params.items()}
    try:
        made = traced(lambda *operands: function(*operands, **params), [atom.aval for atom in equation.invars])
    except Exception:  # noqa: BLE001  it may do anything that is not a program, and then is no meaning
        return None
    inside = equations_within(made.jaxpr, lambda inner: inner.primitive is not opaque_p)
    if any(_is_same(inner, equation.primitive, params) for inner in inside):
        return None
    wanted = [atom.aval for atom in equation.outvars]
    if len(made.out_avals) != len(wanted) or not all(map(_fits, made.out_avals, wanted)):
        return None
    return made


def _opaque(jaxpr: ClosedJaxpr | Jaxpr) -> ClosedJaxpr | Jaxpr:
    """Return a jaxpr of one opaque call in place of the given one; mutable arrays cannot be passed to it."""
    closed = isinstance(jaxpr, ClosedJaxpr)
    inner = jaxpr.jaxpr if closed else jaxpr
    if any(not isinstance(variable.aval, ShapedArray) for variable in inner.invars) or (inner.constvars and not closed):
        return jaxpr
    body = jaxpr if closed else ClosedJaxpr(inner, ())
    outvars = [Var(aval) for aval in body.out_avals]
    call = new_jaxpr_eqn(inner.invars, outvars, opaque_p, {"body": body}, _effects(body))
    opaque: Jaxpr = inner.replace(eqns=[call], outvars=outvars)
    return ClosedJaxpr(opaque, jaxpr.consts) if closed else opaque


def _effects(body: ClosedJaxpr) -> set[Any]:
    """Return the effects of a jaxpr except those on mutable arrays, which name an input."""
    return {effect for effect in body.effects if not hasattr(effect, "input_index")}


def _is_same(equation: JaxprEqn, primitive: Primitive, params: Parameters) -> bool:
    """Whether an equation applies a primitive with these parameters."""
    return equation.primitive is primitive and all(
        value is params.get(name) or _equal(value, params.get(name)) for name, value in equation.params.items()
    )


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  arrays, and whatever else does not compare
        return False


def _fits(made: Any, wanted: Any) -> bool:
    return made.dtype == wanted.dtype and not dims.shapes_differ(made.shape, wanted.shape)
