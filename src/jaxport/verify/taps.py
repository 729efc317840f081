"""Make values inside a program outputs of it, including those inside scans, loops and branches.

A program of JAX is rewritten, not run, so that both sides of a comparison can be given the same taps. A value that a
scan computes at every step becomes an output with the steps as its leading axis; a `while` loop gives the value of its
last step; a branch that is not taken gives zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from jaxport import jaxprs
from jaxport.blocks import block_p
from jaxport.export.ports import is_key
from jaxport.jaxprs import Atom, PyTree
from jaxport.jaxprs.walk import bodies

#: Primitives that run one body once: they are replaced by its equations.
_CALLS = frozenset(("checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "jit", "remat2"))


@dataclass(frozen=True)
class Tap:
    """A value that became an output.

    Attributes:
      equation: the equation that computes it.
      around: the equations whose bodies the equation is in, the outermost first: blocks, scans, calls.
      order: its place in the computation: the position of each equation on the way to it; a scan puts its direction (1
        or -1, as a `StepPosition`) after its own position.
      value: the variable, in the innermost body.
    """

    equation: jaxprs.JaxprEqn
    around: tuple[jaxprs.JaxprEqn, ...]
    order: tuple[PyTree, ...]
    value: jaxprs.Var

    @property
    def steps(self) -> int:
        """The number of leading axes that are steps of scans around it."""
        return sum(isinstance(element, StepPosition) for element in self.order)

    def time(self, steps: Sequence[int]) -> tuple[float, ...]:
        """Return when it is computed in these steps of the scans around it: earlier times compare as smaller."""
        remaining = iter(steps)
        return tuple(e.direction * next(remaining) if isinstance(e, StepPosition) else e for e in self.order)


@dataclass(frozen=True)
class StepPosition:
    """The step of a scan in an order, which runs forward (1) or in reverse (-1)."""

    direction: int


#: Whether to tap the results of an equation, given the equations around it.
Choice = Callable[[jaxprs.JaxprEqn, tuple[jaxprs.JaxprEqn, ...]], bool]
#: A variable of the current body for a tap.
_Tapped = tuple[jaxprs.Var, Tap]
#: The position of an equation's own results: after everything inside it.
_LAST = math.inf


def tapped(
    jaxpr: jaxprs.ClosedJaxpr, choice: Choice, closed: frozenset[str] = frozenset()
) -> tuple[jaxprs.ClosedJaxpr, list[Tap]]:
    """Return a program with the chosen values as further outputs, in the order of computation.

    Args:
      jaxpr: the program.
      choice: which equations are tapped.
      closed: targets of blocks that stay whole, since a rule exports them.
    """
    body, taps = _Tapping(choice, closed).body(jaxpr.jaxpr, ())
    return jaxprs.closed(body, jaxpr.consts), taps


class _Tapping:
    def __init__(self, choice: Choice, closed: frozenset[str]):
        self.choice, self.closed = choice, closed

    def body(self, jaxpr: jaxprs.Jaxpr, around: tuple[jaxprs.JaxprEqn, ...]) -> tuple[jaxprs.Jaxpr, list[Tap]]:
        """Return a body whose taps follow its own outputs."""
        equations: list[jaxprs.JaxprEqn] = []
        env: dict[jaxprs.Var, Atom] = {}
        taps = self.append(jaxpr, around, equations, env, nested=False)
        outvars = [_read(env, atom) for atom in jaxpr.outvars]
        # The names of arguments and results are those of the old ones.
        debug_info = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
        outvars += [variable for variable, _ in taps]
        return jaxpr.replace(eqns=equations, outvars=outvars, debug_info=debug_info), [tap for _, tap in taps]

    def append(
        self,
        jaxpr: jaxprs.Jaxpr,
        around: tuple[jaxprs.JaxprEqn, ...],
        out: list[jaxprs.JaxprEqn],
        env: dict[jaxprs.Var, Atom],
        nested: bool,
    ) -> list[_Tapped]:
        """Append the equations of a body to `out`; `env` maps its variables to their replacements.

        The variables of a body that replaces a call are renamed: two calls may share a body.
        """
        tapped_values: list[_Tapped] = []
        for position, equation in enumerate(jaxpr.eqns):
            outvars = [jaxprs.Var(v.aval) if nested or isinstance(v, jaxprs.DropVar) else v for v in equation.outvars]
            moved = equation.replace(invars=[_read(env, atom) for atom in equation.invars], outvars=outvars)
            results, taps = self.equation(moved, around, out, self.choice(equation, around))
            env.update(zip(equation.outvars, results, strict=True))
            tapped_values += [(variable, replace(tap, order=(position, *tap.order))) for variable, tap in taps]
        return tapped_values

    def equation(
        self,
        equation: jaxprs.JaxprEqn,
        around: tuple[jaxprs.JaxprEqn, ...],
        out: list[jaxprs.JaxprEqn],
        wanted: bool,
    ) -> tuple[Sequence[Atom], list[_Tapped]]:
        """Append one equation to `out`; return its results and its taps, which follow those inside it."""
        name, params, results = equation.primitive.name, equation.params, equation.outvars
        source = equation
        inner = bodies(params)
        tapped_values: list[_Tapped] = []
        if equation.primitive is block_p:
            if params["block"].target not in self.closed:
                equation, tapped_values = self._block(equation, around)
        elif name == "scan":
            equation, tapped_values = self._scan(equation, around)
        elif name == "while":
            equation, tapped_values = self._while(equation, around, out)
        elif name == "cond":
            equation, tapped_values = self._cond(equation, around)
        elif name in _CALLS and len(inner) == 1 and not inner[0].constvars:
            inside: list[jaxprs.JaxprEqn] = []
            env: dict[jaxprs.Var, Atom] = dict(zip(inner[0].invars, equation.invars, strict=True))
            tapped_values = self.append(inner[0], (*around, equation), inside, env, nested=True)
            if tapped_values:
                out += inside
                return [_read(env, atom) for atom in inner[0].outvars], tapped_values
        out.append(equation)
        if wanted:
            tapped_values += [(v, Tap(source, around, (_LAST,), v)) for v in results if _is_array(v.aval)]
        return results, tapped_values

    def _block(
        self, equation: jaxprs.JaxprEqn, around: tuple[jaxprs.JaxprEqn, ...]
    ) -> tuple[jaxprs.JaxprEqn, list[_Tapped]]:
        inner = equation.params["jaxpr"]
        body, taps = self.body(inner.jaxpr, (*around, equation))
        return _extended(equation, {"jaxpr": jaxprs.closed(body, inner.consts)}, _variables(body, taps), taps)

    def _scan(
        self, equation: jaxprs.JaxprEqn, around: tuple[jaxprs.JaxprEqn, ...]
    ) -> tuple[jaxprs.JaxprEqn, list[_Tapped]]:
        inner, length = equation.params["jaxpr"], equation.params["length"]
        body, taps = self.body(inner.jaxpr, (*around, equation))
        stacked = [
            jaxprs.Var(variable.aval.update(shape=(length, *variable.aval.shape)))
            for variable in _variables(body, taps)
        ]
        step = StepPosition(-1 if equation.params["reverse"] else 1)
        taps = [replace(tap, order=(step, *tap.order)) for tap in taps]
        return _extended(equation, {"jaxpr": jaxprs.closed(body, inner.consts)}, stacked, taps)

    def _while(
        self, equation: jaxprs.JaxprEqn, around: tuple[jaxprs.JaxprEqn, ...], out: list[jaxprs.JaxprEqn]
    ) -> tuple[jaxprs.JaxprEqn, list[_Tapped]]:
        """Carry the taps of a loop, starting from zeros."""
        params = equation.params
        body, taps = self.body(params["body_jaxpr"].jaxpr, (*around, equation))
        if not taps:
            return equation, []
        carried = _variables(body, taps)
        zeros = _zeros(carried, out)
        condition = params["cond_jaxpr"].jaxpr
        unused = [[jaxprs.Var(v.aval) for v in carried] for _ in range(2)]
        new = {
            "body_jaxpr": jaxprs.closed(body.replace(invars=[*body.invars, *unused[0]]), params["body_jaxpr"].consts),
            "cond_jaxpr": jaxprs.closed(
                condition.replace(
                    invars=[*condition.invars, *unused[1]], debug_info=condition.debug_info._replace(arg_names=None)
                ),
                params["cond_jaxpr"].consts,
            ),
        }
        equation = equation.replace(invars=[*equation.invars, *zeros])
        return _extended(equation, new, carried, taps)

    def _cond(
        self, equation: jaxprs.JaxprEqn, around: tuple[jaxprs.JaxprEqn, ...]
    ) -> tuple[jaxprs.JaxprEqn, list[_Tapped]]:
        """Return the taps of all branches from each; those of the other branches are zeros."""
        branches = equation.params["branches"]
        tapped = [self.body(branch.jaxpr, (*around, equation)) for branch in branches]
        everything = [tap for _, taps in tapped for tap in taps]
        if not everything:
            return equation, []
        variables = [variable for body, taps in tapped for variable in _variables(body, taps)]
        new, start = [], 0
        for (body, taps), branch in zip(tapped, branches, strict=True):
            own = range(start, start + len(taps))
            start += len(taps)
            equations = list(body.eqns)
            zeros = _zeros([v for index, v in enumerate(variables) if index not in own], equations)
            results = list(body.outvars[: len(body.outvars) - len(taps)])
            results += [*zeros[: own.start], *_variables(body, taps), *zeros[own.start :]]
            new.append(jaxprs.closed(body.replace(eqns=equations, outvars=results), branch.consts))
        return _extended(equation, {"branches": tuple(new)}, variables, everything)


def _extended(
    equation: jaxprs.JaxprEqn, params: dict[str, PyTree], results: Sequence[jaxprs.Var], taps: Sequence[Tap]
) -> tuple[jaxprs.JaxprEqn, list[_Tapped]]:
    """Return an equation with other bodies and, at its end, one more result per tap."""
    if not taps:
        return equation, []
    new = [jaxprs.Var(variable.aval) for variable in results]
    equation = jaxprs.with_parameters(equation, params, outvars=[*equation.outvars, *new])
    return equation, list(zip(new, taps, strict=True))


def _variables(body: jaxprs.Jaxpr, taps: Sequence[Tap]) -> list[PyTree]:
    """Return the variables of the taps in a body: its last outputs."""
    return list(body.outvars[len(body.outvars) - len(taps) :])


def _zeros(like: Sequence[PyTree], out: list[jaxprs.JaxprEqn]) -> list[Atom]:
    """Return zeros of the shapes and dtypes of some variables; append the equations that make them to `out`."""
    made = jax.make_jaxpr(lambda: [jnp.zeros(v.aval.shape, v.aval.dtype) for v in like])().jaxpr
    out += made.eqns
    return list(made.outvars)


def _read(env: dict[jaxprs.Var, Atom], atom: Atom) -> Atom:
    return env.get(atom, atom) if isinstance(atom, jaxprs.Var) else atom


def _is_array(aval: PyTree) -> bool:
    return hasattr(aval, "dtype") and hasattr(aval, "shape") and not is_key(aval.dtype)
