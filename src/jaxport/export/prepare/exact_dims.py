"""Compute floating-point functions of dims in double precision, as Python does.

If a size is a number, `256 / x.shape[0]` is Python's division, rounded to float32 when it meets an array. If it is a
symbol, JAX computes the same in float32 from the start. Positions in an image are then wrong in the fifth digit.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from jax.core import ShapedArray

from jaxport.jaxprs import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, convert_element_type_p, new_jaxpr_eqn
from jaxport.jaxprs.rewrite import Rewriting

#: The primitives that Python arithmetic on dims is traced to.
ARITHMETIC = frozenset("add sub mul div neg max min abs floor ceil integer_pow pow sqrt convert_element_type".split())
DOUBLE = ShapedArray((), np.dtype(np.float64))


def with_exact_dims(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the program with the arithmetic on its dims in float64; the same object if it has none.

    >>> import jax
    >>> (b,) = jax.export.symbolic_shape("B")
    >>> half = jax.make_jaxpr(lambda x: x * (1 / x.shape[0]))(jax.ShapeDtypeStruct((b,), "float32"))
    >>> [str(equation.outvars[0].aval.dtype) for equation in with_exact_dims(half).eqns]
    ['int32', 'float64', 'float64', 'float32', 'float32']
    """
    return _ExactDims().closed(closed)


class _ExactDims(Rewriting):
    """Rewrites each jaxpr separately: the values passed into it are rounded already."""

    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        return _in_double(super().rewritten(jaxpr))


def _in_double(jaxpr: Jaxpr) -> Jaxpr:
    from_dims: set[Var] = set()
    doubles: dict[Var, Var] = {}
    equations: list[JaxprEqn] = []
    used: set[Var] = set(filter(_is_variable, jaxpr.outvars))
    for equation in jaxpr.eqns:
        name, results = equation.primitive.name, [*equation.outvars]
        result: Any = results[0] if results else None
        if name == "dim_as_value":
            from_dims.add(result)
        elif name in ARITHMETIC and _is_known(equation, from_dims, doubles) and not result.aval.shape:
            if result.aval.dtype == np.float32 and result.aval.weak_type:
                doubles[result] = Var(DOUBLE)
                equations.append(_doubled(equation, doubles))
                continue
            if result.aval.dtype.kind in "iu":
                from_dims.add(result)
        operand: Any = equation.invars[0] if name == "convert_element_type" else None
        if _is_variable(operand) and operand in doubles:
            equation = equation.replace(invars=[doubles[operand]])
        used.update(filter(_is_variable, equation.invars))
        equations.append(equation)
    if not doubles:
        return jaxpr
    return jaxpr.replace(eqns=_rounded(equations, {double: old for old, double in doubles.items()}, used))


def _is_variable(atom: object) -> TypeGuard[Var]:
    return isinstance(atom, Var)


def _is_known(equation: JaxprEqn, from_dims: set[Var], doubles: dict[Var, Var]) -> bool:
    """Whether an equation computes with dims and literals only."""
    variables = list(filter(_is_variable, equation.invars))
    return bool(variables) and all(atom in from_dims or atom in doubles for atom in variables)


def _doubled(equation: JaxprEqn, doubles: dict[Var, Var]) -> JaxprEqn:
    def double(atom: Atom) -> Atom:
        if isinstance(atom, Literal):
            value = np.asarray(atom.val)
            return Literal(np.float64(value), DOUBLE) if value.dtype.kind == "f" else atom
        return doubles.get(atom, atom)

    params = dict(equation.params)
    if equation.primitive is convert_element_type_p:
        params |= {"new_dtype": DOUBLE.dtype, "weak_type": False}
    outvars = [doubles[equation.outvars[0]]]
    return equation.replace(invars=[double(atom) for atom in equation.invars], outvars=outvars, params=params)


def _rounded(equations: list[JaxprEqn], single: dict[Var, Any], used: set[Var]) -> list[JaxprEqn]:
    """Return the equations with a conversion to float32 after each result that is used in float32."""
    rounded = []
    for equation in equations:
        rounded.append(equation)
        old = single.get(equation.outvars[0]) if equation.outvars else None
        if old is not None and old in used:
            params = {"new_dtype": old.aval.dtype, "weak_type": True, "sharding": None}
            rounded.append(
                new_jaxpr_eqn(equation.outvars, [old], convert_element_type_p, params, set(), equation.source_info)
            )
    return rounded
