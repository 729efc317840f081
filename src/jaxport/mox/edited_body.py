"""The body of an equation while it is edited: its equations, its new inputs, and what stands for its old values."""

from __future__ import annotations

from collections.abc import Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from typing import cast

from jaxport import jaxprs
from jaxport.jaxprs import Atom
from jaxport.mox.aliases import Aval, Effect

__all__ = ["EditedBody", "InputKey"]

Var = jaxprs.Var
Jaxpr = jaxprs.Jaxpr
JaxprEqn = jaxprs.JaxprEqn


@dataclass(frozen=True)
class InputKey:
    """A new input of a body: the leaf `name`, with `slices` axes of steps taken off."""

    name: str
    slices: int = 0


@dataclass
class EditedBody:
    """An edited body, while it is made: its equations, and the new inputs that they use."""

    names: dict[Var, Atom] = field(default_factory=dict)
    equations: list[JaxprEqn] = field(default_factory=list)
    inputs: dict[InputKey, Var] = field(default_factory=dict)

    def input(self, key: InputKey, aval: Aval) -> Var:
        """Return the new input for a key, of this type."""
        if key not in self.inputs:
            self.inputs[key] = Var(aval)
        return self.inputs[key]

    def read(self, atom: Atom) -> Atom:
        """Return what stands for a value from here on."""
        # A body may use the very variables that stand around it: one step, never a chain.
        return self.names.get(atom, atom) if isinstance(atom, Var) else atom

    def typed(self, variable: Var, aval: Aval) -> Var:
        """Return what stands for a result from here on, if it has another shape or dtype now."""
        if isinstance(variable, jaxprs.DropVar):
            return Var(aval)
        before: Aval = variable.aval
        if (before.shape, before.dtype) == (aval.shape, aval.dtype):
            return variable
        changed = Var(aval)
        self.names[variable] = changed
        return changed

    def renamed(self, equation: JaxprEqn) -> JaxprEqn:
        """Return the equation with what stands for its operands."""
        if not self.names or not any(isinstance(a, Var) and a in self.names for a in equation.invars):
            return equation
        effects = {
            effect if (reference := jaxprs.reference_of(effect)) is None else effect.replace(self.read(reference))
            for effect in cast("AbstractSet[Effect]", equation.effects)
        }
        return equation.replace(invars=[self.read(atom) for atom in equation.invars], effects=effects)

    def transposed(self, equation: JaxprEqn) -> JaxprEqn:
        """Return the equation with a result of another shape if it transposes what has one now."""
        if equation.primitive.name != "transpose":
            return equation
        aval: Aval = equation.invars[0].aval
        shape = tuple(aval.shape[axis] for axis in equation.params["permutation"])
        return equation.replace(outvars=[self.typed(equation.outvars[0], aval.update(shape=shape))])

    def inline(self, jaxpr: Jaxpr, operands: Sequence[Atom], outvars: Sequence[Var]) -> None:
        """Append what a body does, under new names; `outvars` stand for its results from here on."""
        inner = EditedBody(dict(zip(jaxpr.invars, operands, strict=True)))
        for equation in jaxpr.eqns:
            equation = inner.renamed(equation)
            new = [v if isinstance(v, jaxprs.DropVar) else Var(v.aval) for v in equation.outvars]
            inner.names.update(zip(equation.outvars, new, strict=True))
            self.equations.append(equation.replace(outvars=new))
        for outvar, atom in zip(outvars, jaxpr.outvars, strict=True):
            self.names[outvar] = inner.read(atom)
