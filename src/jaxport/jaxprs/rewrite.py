"""Rewrite jaxprs: other operands, copies of bodies, other equations or variables throughout a program.

>>> import jax
>>> from jax.extend.core.primitives import mul_p
>>> program = jax.make_jaxpr(jax.jit(lambda x: x + 2))(1.0)
>>> product = EquationRewriting(lambda e: e.replace(primitive=mul_p) if e.primitive.name == "add" else e).closed(
...     program
... )
>>> print(jaxpr_as_fun(product)(3.0)[0])
6.0
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from operator import is_
from typing import Any

import jax
import jax.numpy as jnp

from jaxport.jaxprs.aliases import Array, Aval, Effect, PythonFunction, aval_of
from jaxport.jaxprs.releases import (
    Atom,
    ClosedJaxpr,
    DebugInfo,
    DropVar,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    closed,
    closed_call_p,
    jaxpr_as_fun,
    nameless,
    new_jaxpr_eqn,
    reference_of,
    struct_of,
    with_reference,
)
from jaxport.jaxprs.walk import bodies, map_jaxprs, with_equations

# -- equations -------------------------------------------------------------------------------------------------------


def itself(literal: Literal) -> Atom:
    """Return a literal as it is: the `literal` of `interpret` for values that are atoms."""
    return literal


def fresh(variables: Iterable[Var]) -> list[Var]:
    """Return new variables of the same types; a result that nothing reads stays one."""
    return [DropVar(variable.aval) if isinstance(variable, DropVar) else Var(variable.aval) for variable in variables]


def with_operands(equation: JaxprEqn, invars: Sequence[Atom], outvars: Sequence[Var] | None = None) -> JaxprEqn:
    """Return an equation with other operands, and results; the same object if they are its own.

    The effect of reading or writing a mutable reference names the operand, and follows it.
    """
    outvars = equation.outvars if outvars is None else outvars
    if all(map(is_, invars, equation.invars)) and all(map(is_, outvars, equation.outvars)):
        return equation
    effects: Set[Effect] = equation.effects
    if effects:
        old = (*equation.invars, *equation.outvars)
        names = {atom: new for atom, new in zip(old, (*invars, *outvars), strict=True) if isinstance(atom, Var)}
        effects = {
            effect
            if (reference := reference_of(effect)) is None
            else with_reference(effect, names.get(reference, reference))
            for effect in effects
        }
    return equation.replace(invars=list(invars), outvars=list(outvars), effects=effects)


def replaced(atoms: Iterable[Atom], names: Mapping[Var, Atom]) -> list[Atom]:
    """Return what some atoms are under other names; literals, and variables without another name, stay."""
    return [atom if isinstance(atom, Literal) else names.get(atom, atom) for atom in atoms]


def copied(equations: Iterable[JaxprEqn], names: dict[Var, Atom]) -> list[JaxprEqn]:
    """Return copies of equations with other operands and fresh results, which are added to `names`."""
    copies = []
    for equation in equations:
        outvars = fresh(equation.outvars)
        copies.append(with_operands(equation, replaced(equation.invars, names), outvars))
        names.update(zip(equation.outvars, outvars, strict=True))
    return copies


def inlined(jaxpr: Jaxpr, operands: Sequence[Atom], equations: list[JaxprEqn]) -> list[Atom]:
    """Append the equations of a body for some operands, with fresh variables; return its results.

    >>> body = jax.make_jaxpr(lambda x: x * 2 + 1)(1.0).jaxpr
    >>> twice = []
    >>> results = inlined(body, inlined(body, body.invars, twice), twice)
    >>> len(twice), results == twice[-1].outvars
    (4, True)
    """
    names = dict(zip((*jaxpr.constvars, *jaxpr.invars), operands, strict=True))
    equations += copied(jaxpr.eqns, names)
    return replaced(jaxpr.outvars, names)


def literals(body: ClosedJaxpr | Jaxpr) -> list[Atom]:
    """Return the constants of a body as literals; an open one has none."""
    if not isinstance(body, ClosedJaxpr):
        return []
    return [Literal(value, v.aval) for value, v in zip(body.consts, body.jaxpr.constvars, strict=True)]


def with_values(jaxpr: Jaxpr, values: Mapping[Var, Atom]) -> Jaxpr:
    """Return a body that takes other values in the place of variables; equations that compute only these are gone."""
    rest = [equation for equation in jaxpr.eqns if not equation.outvars or not values.keys() >= {*equation.outvars}]
    equations = [with_operands(equation, replaced(equation.invars, values)) for equation in rest]
    return with_equations(jaxpr, equations).replace(outvars=replaced(jaxpr.outvars, values)) if values else jaxpr


def alone(equation: JaxprEqn) -> ClosedJaxpr:
    """Return the program of one equation: from its operands, literals among them, to its results."""
    invars = [Var(operand.aval) for operand in equation.invars]
    outvars = [Var(variable.aval) for variable in equation.outvars]
    debug_info = DebugInfo("equation", equation.primitive.name, None, None)
    only = with_operands(equation, invars, outvars)
    return closed(Jaxpr((), invars, outvars, [only], only.effects, debug_info), ())


def evaluated(equation: JaxprEqn, operands: Sequence[object]) -> list[Array]:
    """Return the results of an equation for some operands.

    >>> (sine,) = evaluated(jax.make_jaxpr(jnp.sin)(1.0).eqns[0], [0.0])
    >>> float(sine)
    0.0
    """
    return jaxpr_as_fun(alone(equation))(*operands)


def call_of(
    body: ClosedJaxpr, invars: Sequence[Atom], outvars: Sequence[Atom], instead: JaxprEqn | None = None
) -> JaxprEqn:
    """Return an equation that calls a jaxpr, with the source line of the equation that it replaces."""
    source = None if instead is None else instead.source_info
    return new_jaxpr_eqn(invars, outvars, closed_call_p, {"call_jaxpr": body}, set(), source)


def traced(function: PythonFunction, operands: Sequence[object]) -> ClosedJaxpr:
    """Return the jaxpr of a function, given the abstract values of its operands, or trees of them."""
    return jax.make_jaxpr(function)(*jax.tree.map(struct_of, list(operands)))


def traced_equation(function: PythonFunction, operands: Sequence[object]) -> JaxprEqn:
    """Return the only equation of a function, as this release of JAX makes it.

    >>> traced_equation(jnp.sin, [jax.typeof(jnp.float32(0))]).primitive
    sin
    """
    (equation,) = traced(function, operands).eqns
    return equation


def zeros(aval: Aval, equations: list[JaxprEqn]) -> Atom:
    """Append the equations that make zeros of a type; return the value."""
    (value,) = inlined(traced(lambda: jnp.zeros(aval.shape, aval.dtype), []).jaxpr, (), equations)
    return value


# -- programs --------------------------------------------------------------------------------------------------------


class Rewriting:
    """One rewriting of programs, body by body. A body that several equations share is rewritten once, and stays shared.

    A subclass says what becomes of an equation, or of a whole body.
    """

    def __init__(self) -> None:
        self._done: dict[Jaxpr, Jaxpr] = {}

    def closed(self, program: ClosedJaxpr) -> ClosedJaxpr:
        """Rewrite a closed jaxpr; return the same object if nothing in it changes."""
        jaxpr = self.body(program.jaxpr)
        return program if jaxpr is program.jaxpr else closed(jaxpr, self.constants(program.consts))

    def constants(self, values: Sequence[Array]) -> Sequence[Array]:
        """Rewrite the constants of a program."""
        return values

    def body(self, jaxpr: Jaxpr) -> Jaxpr:
        """Rewrite a body; return the same object if nothing in it changes."""
        if jaxpr not in self._done:
            self._done[jaxpr] = self.rewritten(jaxpr)
        return self._done[jaxpr]

    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        """Rewrite a body that is met for the first time: by default equation by equation."""
        return with_equations(jaxpr, [self.equation(equation) for equation in jaxpr.eqns])

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        """Rewrite an equation: by default the bodies in it; return the same object if nothing changes."""
        if not bodies(equation.params):  # most equations have none
            return equation
        params = {name: map_jaxprs(self._jaxpr, value) for name, value in equation.params.items()}
        same = all(params[name] is value for name, value in equation.params.items())
        return equation if same else equation.replace(params=params)

    def _jaxpr(self, jaxpr: Any) -> object:
        return self.closed(jaxpr) if isinstance(jaxpr, ClosedJaxpr) else self.body(jaxpr)


class EquationRewriting(Rewriting):
    """A rewriting that applies a function to each equation, after the bodies in it are rewritten."""

    def __init__(self, function: Callable[[JaxprEqn], JaxprEqn]):
        super().__init__()
        self.function = function

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        """Rewrite the bodies of an equation, then the equation."""
        return self.function(super().equation(equation))


Atoms = Callable[[Iterable[Atom]], list[Any]]
"""The replacements of some variables and literals, in order."""


class VariableRewriting(Rewriting, abc.ABC):
    """A rewriting that replaces variables of one kind by variables of another throughout a program.

    A subclass says which variables it concerns, and how to rewrite the equations that use them.
    """

    @abc.abstractmethod
    def avals(self, aval: Aval) -> Sequence[Aval] | None:
        """Return the abstract values of a variable's replacements; None if the variable stays."""

    @abc.abstractmethod
    def values(self, value: Array) -> Sequence[Array]:
        """Return the replacements of a constant."""

    @abc.abstractmethod
    def changed(self, equation: JaxprEqn, atoms: Atoms) -> JaxprEqn:
        """Rewrite an equation that has such a variable, or holds a jaxpr that changed."""

    def constants(self, values: Sequence[Array]) -> Sequence[Array]:
        """Return the replacements of all constants of a program."""
        return [part for constant in values for part in self.values(constant)]

    def concerns(self, equation: JaxprEqn) -> bool:
        """Whether an operand or a result of an equation is of the kind that is rewritten."""
        return any(self.avals(aval_of(atom)) is not None for atom in (*equation.invars, *equation.outvars))

    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        """Rewrite a body."""
        renamed: dict[Var, list[Var]] = {}

        def atoms(whole: Iterable[Atom]) -> list[object]:
            return [part for atom in whole for part in self._parts(atom, renamed)]

        constvars, invars = atoms(jaxpr.constvars), atoms(jaxpr.invars)
        equations = []
        for old in jaxpr.eqns:
            new = self.equation(old)
            equations.append(self.changed(new, atoms) if new is not old or self.concerns(old) else old)
        if not renamed:
            return with_equations(jaxpr, equations)
        outvars = atoms(jaxpr.outvars)
        return jaxpr.replace(
            constvars=constvars, invars=invars, eqns=equations, outvars=outvars, debug_info=nameless(jaxpr)
        )

    def _parts(self, atom: Atom, renamed: dict[Var, list[Var]]) -> Sequence[Atom]:
        avals = self.avals(aval_of(atom))
        if avals is None:
            return [atom]
        if isinstance(atom, Literal):
            return [Literal(part, aval) for part, aval in zip(self.values(atom.val), avals, strict=True)]
        if atom not in renamed:
            dropped = isinstance(atom, DropVar)
            renamed[atom] = [DropVar(aval) if dropped else Var(aval) for aval in avals]
        return renamed[atom]
