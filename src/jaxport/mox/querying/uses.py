"""How a block uses a parameter: the equations that it reaches, through calls and casts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from jaxport import jaxprs
from jaxport.blocks.ungrouping import ungroup
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Atom, Aval, Var
from jaxport.jaxprs.dataflow import Read, producers, reached
from jaxport.jaxprs.widen import entered_by, runs_bodies
from jaxport.mox.querying.tree import name_below

if TYPE_CHECKING:
    from jaxport.mox.querying.match import Match

__all__ = ["Kernel", "Use", "cast_of", "is_passed_on", "kernels", "kernels_to", "plain_body", "uses"]

# Primitives that return their operand in another representation.
_CASTS = frozenset({"convert_element_type", "copy", "copy_p", "pvary", "reduce_precision", "stop_gradient"})


@dataclass(frozen=True)
class Use:
    """An equation that a value is an operand of: its position there, and how deep in calls the equation is."""

    equation: jaxprs.JaxprEqn
    position: int
    depth: int
    body: jaxprs.Jaxpr


def uses(jaxpr: jaxprs.Jaxpr, variable: Var, depth: int = 0, through: frozenset[str] = frozenset()) -> Iterator[Use]:
    """Yield the equations that a value reaches; casts, calls and the primitives `through` are looked through."""
    for equation, position in _reached(jaxpr, variable, through)[1]:
        if not runs_bodies(equation):
            yield Use(equation, position, depth, jaxpr)
        for body, index, source in entered_by(equation, position):
            if not source.sliced:
                yield from uses(body, body.invars[index], depth + 1, through)


def is_passed_on(jaxpr: jaxprs.Jaxpr, start: Var, through: frozenset[str]) -> bool:
    """Whether a value reaches the first result of a body through the given primitives and casts alone."""
    held, reads = _reached(jaxpr, start, through)
    return not reads and jaxpr.outvars[0] in held


def _reached(jaxpr: jaxprs.Jaxpr, start: Var, through: frozenset[str]) -> tuple[set[Var], list[Read]]:
    return reached(jaxpr, [start], lambda equation: equation.primitive.name in _CASTS | through)


def plain_body(match: Match) -> jaxprs.Jaxpr:
    """Return the body of a block with the blocks inside it inlined (the operators of a layer of an imported model)."""
    return ungroup(match.node.equation.params["jaxpr"]).jaxpr


def cast_of(jaxpr: jaxprs.Jaxpr, atom: Atom) -> Atom:
    """Return the value that casts made `atom` of."""
    made = producers(jaxpr)
    while isinstance(atom, jaxprs.Var) and atom in made and made[atom].primitive.name in _CASTS:
        atom = made[atom].invars[0]
    return atom


@dataclass(frozen=True)
class Kernel:
    """A parameter that its block multiplies with its input, or looks up in.

    Attributes:
      index: which input of the block's body it is.
      path: of the parameter.
      name: its name below the block.
      inputs: the axes that the input of the layer meets.
      outputs: the other axes.
      dtype: that the block takes it in.
    """

    index: int
    path: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dtype: np.dtype | None = None


_ARRANGED = frozenset({"reshape", "transpose"})


def kernels(match: Match) -> list[Kernel]:
    """Return the parameters of a block that are multiplied, convolved or looked up in; a bias is none of these."""
    block = match.block
    if block is None:
        return []
    jaxpr = match.node.equation.params["jaxpr"].jaxpr
    used = []
    for index, path in block.named.items():
        variable = jaxpr.invars[index]
        if variable.aval.ndim < 2 or not jnp.issubdtype(variable.aval.dtype, jnp.floating):
            continue
        if not any(_meets(use) for use in uses(jaxpr, variable, through=_ARRANGED)):
            continue
        inputs = _input_axes(jaxpr, variable)
        outputs = tuple(axis for axis in range(variable.aval.ndim) if axis not in inputs)
        used.append(Kernel(index, path, name_below(path, block.path), inputs, outputs, variable.aval.dtype))
    return used


def kernels_to(match: Match, change: str) -> list[Kernel]:
    """Return the kernels of a block for an edit that is to change them.

    Raises:
      InvalidArgument: it has none.
    """
    used = kernels(match)
    if not used:
        raise InvalidArgument(
            f"`{match.shown}` has no weight to {change}",
            where=f"`{change}`",
            why=f"`{match.type}` does not multiply by any of its parameters",
        )
    return used


def _meets(use: Use) -> bool:
    name = use.equation.primitive.name
    return name == "dot_general" or (name, use.position) in (("conv_general_dilated", 1), ("gather", 0))


def _input_axes(jaxpr: jaxprs.Jaxpr, variable: Var) -> tuple[int, ...]:
    """Return the axes of a kernel that the input meets, told by its first plain use.

    All but the last if there is none.
    """
    aval: Aval = variable.aval
    axes = range(aval.ndim)
    for use in uses(jaxpr, variable):
        params = use.equation.params
        match use.equation.primitive.name:
            case "dot_general":
                contracted, batch = params["dimension_numbers"]
                return (*batch[use.position], *contracted[use.position])
            case "conv_general_dilated" if use.position == 1:
                made = params["dimension_numbers"].rhs_spec[0]
                return tuple(axis for axis in axes if axis != made)
            case "gather" if use.position == 0:
                return (0,)
    return tuple(axes[:-1])
