"""Base of jaxpr rewritings: replace variables of one kind by variables of another throughout a program."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import ShapedArray

from jaxport import jaxprs
from jaxport.jaxprs import (
    Array,
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    PythonFunction,
    PyTree,
    Var,
    closed_call_p,
    new_jaxpr_eqn,
)
from jaxport.jaxprs.walk import bodies_within, inner_jaxprs

Atoms = Callable[[Iterable[Atom]], list[Any]]
"""The replacements of some variables and literals, in order."""


class Rewriting(abc.ABC):
    """One rewriting. A jaxpr that several equations share is rewritten once, and stays shared.

    A subclass says which variables it concerns, and how to rewrite the equations that use them.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Jaxpr, Jaxpr]] = {}

    @abc.abstractmethod
    def avals(self, aval: object) -> Sequence[ShapedArray] | None:
        """Return the abstract values of a variable's replacements; None if the variable stays."""

    @abc.abstractmethod
    def values(self, value: Array) -> Sequence[Array]:
        """Return the replacements of a constant."""

    @abc.abstractmethod
    def changed(self, equation: JaxprEqn, atoms: Atoms) -> JaxprEqn:
        """Rewrite an equation that has such a variable, or holds a jaxpr that changed."""

    def closed(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Rewrite a closed jaxpr; return the same object if nothing in it is concerned."""
        jaxpr = self.jaxpr(closed.jaxpr)
        if jaxpr is closed.jaxpr:
            return closed
        return jaxprs.closed(jaxpr, [part for constant in closed.consts for part in self.values(constant)])

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        """Rewrite a jaxpr; return the same object if nothing in it is concerned."""
        if id(jaxpr) not in self._known:
            self._known[id(jaxpr)] = jaxpr, self._rewritten(jaxpr)
        return self._known[id(jaxpr)][1]

    def _rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        renamed: dict[Var, list[Var]] = {}

        def atoms(whole: Iterable[Atom]) -> list[Any]:
            return [part for atom in whole for part in self._parts(atom, renamed)]

        constvars, invars = atoms(jaxpr.constvars), atoms(jaxpr.invars)
        equations = [self._equation(equation, atoms) for equation in jaxpr.eqns]
        if not renamed and all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True)):
            return jaxpr
        return jaxpr.replace(constvars=constvars, invars=invars, eqns=equations, outvars=atoms(jaxpr.outvars))

    def _parts(self, atom: Atom, renamed: dict[Var, list[Var]]) -> Sequence[Atom]:
        avals = self.avals(atom.aval)
        if avals is None:
            return [atom]
        if isinstance(atom, Literal):
            return [Literal(part, aval) for part, aval in zip(self.values(atom.val), avals, strict=True)]
        if atom not in renamed:
            renamed[atom] = [Var(aval) for aval in avals]
        return renamed[atom]

    def _equation(self, equation: JaxprEqn, atoms: Atoms) -> JaxprEqn:
        params = {name: self._replaced(value) for name, value in equation.params.items()}
        if any(params[name] is not value for name, value in equation.params.items()):
            return self.changed(equation.replace(params=params), atoms)
        return self.changed(equation, atoms) if self.concerns(equation) else equation

    def concerns(self, equation: JaxprEqn) -> bool:
        """Whether an operand or a result of an equation is of the kind that is rewritten."""
        return any(self.avals(atom.aval) is not None for atom in (*equation.invars, *equation.outvars))

    def _replaced(self, value: PyTree) -> PyTree:
        """Rewrite the jaxprs in a parameter; return the same object if nothing changes."""
        return map_jaxprs(
            lambda inner: self.closed(inner) if isinstance(inner, ClosedJaxpr) else self.jaxpr(inner), value
        )


class Local(Rewriting):
    """A rewriting of each jaxpr separately, whose inputs, outputs and their kinds stay."""

    @abc.abstractmethod
    def local(self, jaxpr: Jaxpr) -> Jaxpr:
        """Rewrite a jaxpr except the jaxprs in it; return the same object if nothing in it is concerned."""

    def avals(self, aval: object) -> Sequence[ShapedArray] | None:  # noqa: ARG002 (no kind of variable is replaced everywhere)
        return None

    def values(self, value: Array) -> Sequence[Array]:
        return [value]

    def changed(self, equation: JaxprEqn, atoms: Atoms) -> JaxprEqn:  # noqa: ARG002
        return equation

    def _rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        return self.local(super()._rewritten(jaxpr))


@dataclass(frozen=True)
class Contents:
    """The kinds of things in a program, at any depth, so that a step that does not apply need not visit each equation.

    Attributes:
      primitives: the names of its primitives.
      dtypes: the dtypes of its variables and literals.
      effects: the effects of the whole program.
    """

    primitives: Set[str]
    dtypes: Set[Any]
    effects: Set[Any]

    @classmethod
    def of(cls, closed: ClosedJaxpr) -> Contents:
        """Collect the contents of a closed jaxpr; a shared jaxpr is visited once."""
        primitives: set[str] = set()
        dtypes: set[Any] = set()
        for jaxpr in bodies_within(closed.jaxpr):
            dtypes.update(getattr(atom.aval, "dtype", None) for atom in (*jaxpr.invars, *jaxpr.constvars))
            for equation in jaxpr.eqns:
                primitives.add(equation.primitive.name)
                dtypes.update(getattr(atom.aval, "dtype", None) for atom in (*equation.invars, *equation.outvars))
        return cls(primitives, dtypes - {None}, closed.effects)


def map_jaxprs(function: PythonFunction, value: PyTree) -> PyTree:
    """Replace each jaxpr in a parameter of an equation; return the same object if nothing changes."""
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return function(value)
    if not holds_jaxpr(value):
        return value
    items = [map_jaxprs(function, item) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def holds_jaxpr(value: object) -> bool:
    """Whether a parameter of an equation is a jaxpr, or contains one."""
    return next(inner_jaxprs(value), None) is not None


def traced(function: PythonFunction, operands: Sequence[PyTree]) -> ClosedJaxpr:
    """Return the jaxpr of a function, given the abstract values of its operands, or trees of them."""
    structs = jax.tree.map(lambda aval: jax.ShapeDtypeStruct(aval.shape, aval.dtype), list(operands))
    return jax.make_jaxpr(function)(*structs)


def call_of(
    body: ClosedJaxpr, invars: Sequence[Atom], outvars: Sequence[Atom], instead: JaxprEqn | None = None
) -> JaxprEqn:
    """Return an equation that calls a jaxpr, with the source line of the equation that it replaces."""
    source = None if instead is None else instead.source_info
    return new_jaxpr_eqn(invars, outvars, closed_call_p, {"call_jaxpr": body}, set(), source)
