"""Divide sizes once: a quotient of quotients of dims is rounded as if the sizes were numbers.

If a size is a number, `1 / (256 / x.shape[0])` is Python's arithmetic in double precision, rounded to float32 when it
meets an array. If it is a symbol, JAX computes the same in float32 from the start, and each division rounds. Positions
in an image are then wrong in the fifth digit. So such a chain is one division, of products of sizes, which float32 has
exactly.
"""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
from jax.core import ShapedArray

from jaxport.jaxprs import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, aval_of, div_p, mul_p
from jaxport.jaxprs.identity import IdentityMap
from jaxport.jaxprs.rewrite import Rewriting

#: The primitives that Python arithmetic on dims is traced to.
ARITHMETIC = frozenset("add sub mul div neg max min abs floor ceil integer_pow pow sqrt convert_element_type".split())
FLOAT = ShapedArray((), np.dtype(np.float32), weak_type=True)
ONE = Literal(np.float32(1), FLOAT)


def with_exact_dims(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the program with quotients of its dims as one division each; the same object if it has no chain of them.

    >>> import jax
    >>> (b,) = jax.export.symbolic_shape("B")
    >>> third = jax.make_jaxpr(lambda x: x * (1 / (3 / x.shape[0])))(jax.ShapeDtypeStruct((b,), "float32"))
    >>> [equation.primitive.name for equation in third.eqns]
    ['dim_as_value', 'convert_element_type', 'div', 'div', 'convert_element_type', 'mul']
    >>> with_exact_dims(third).eqns[3].invars[1]  # the size by 3
    Literal(3.0)
    """
    return _ExactDims().closed(closed)


class _ExactDims(Rewriting):
    """Rewrites each jaxpr separately: the values passed into it are rounded already."""

    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        return _divided_once(super().rewritten(jaxpr))


def _divided_once(jaxpr: Jaxpr) -> Jaxpr:
    from_dims: set[Var] = set()
    quotients: IdentityMap[Atom, tuple[Atom, Atom]] = IdentityMap()
    equations: list[JaxprEqn] = []

    def product(equation: JaxprEqn, left: Atom, right: Atom) -> Atom:
        if _is_one(left) or _is_one(right):
            return right if _is_one(left) else left
        equations.append(equation.replace(primitive=mul_p, invars=[left, right], outvars=[Var(FLOAT)]))
        return equations[-1].outvars[0]

    changed = False
    for equation in jaxpr.eqns:
        name, result = equation.primitive.name, (*equation.outvars, None)[0]
        if result is not None and name == "dim_as_value":
            from_dims.add(result)
        elif result is not None and name in ARITHMETIC and _is_known(equation, from_dims) and _is_size(result):
            from_dims.add(result)
            if name in ("div", "mul") and aval_of(result).dtype.kind == "f":
                left, right = equation.invars
                (above, below), (others, divisors) = (quotients.get(atom, (atom, ONE)) for atom in (left, right))
                if below is not ONE or divisors is not ONE:
                    others, divisors = (divisors, others) if name == "div" else (others, divisors)
                    above, below = product(equation, above, others), product(equation, below, divisors)
                    equation, changed = equation.replace(primitive=div_p, invars=[above, below]), True
                    quotients[result] = above, below
                elif name == "div":
                    quotients[result] = left, right
        equations.append(equation)
    return jaxpr.replace(eqns=equations) if changed else jaxpr


def _is_one(atom: Atom) -> bool:
    return isinstance(atom, Literal) and bool(np.all(atom.val == 1))


def _is_size(variable: Var) -> bool:
    aval = aval_of(variable)
    return not aval.shape and (aval.dtype.kind in "iu" or (aval.dtype == np.float32 and aval.weak_type))


def _is_variable(atom: object) -> TypeGuard[Var]:
    return isinstance(atom, Var)


def _is_known(equation: JaxprEqn, from_dims: set[Var]) -> bool:
    """Whether an equation computes with dims and literals only."""
    variables = list(filter(_is_variable, equation.invars))
    return bool(variables) and all(atom in from_dims for atom in variables)
