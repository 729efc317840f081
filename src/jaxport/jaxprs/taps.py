"""Make values inside a program outputs of it, out of all bodies that they are in.

A value that a scan computes at every step becomes an output with the steps as its leading axis; a `while` loop gives
the value of its last step, zeros if there was none; a branch that is not taken gives zeros.

>>> import jax, jax.numpy as jnp
>>> from jax import lax
>>> program = jax.make_jaxpr(lambda x: lax.scan(lambda c, x: (c + jnp.sin(x), None), 0.0, x)[0])(jnp.ones(3))
>>> sines = lambda equation, around, location: equation.outvars if equation.primitive.name == "sin" else ()
>>> made, (tap,) = tapped(program, sines)
>>> made.out_avals[1].shape, tap.location
((3,), (0, 0, 0))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxport.jaxprs.body_inputs import DISSOLVED, Widening, body_names, takes_outputs, widened
from jaxport.jaxprs.identity import IdentityMap
from jaxport.jaxprs.releases import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Var, closed, nameless
from jaxport.jaxprs.rewrite import inlined, literals
from jaxport.jaxprs.walk import Location, bodies


@dataclass(frozen=True)
class Tap:
    """A value that became an output.

    Attributes:
      location: that of the equation.
      around: the equations whose bodies the equation is in, the outermost first: blocks, scans, calls.
      equation: an equation that computes or takes the value.
      value: the result or operand of it, as its body names it.
    """

    location: Location
    around: tuple[JaxprEqn, ...]
    equation: JaxprEqn
    value: Atom


#: Returns which results and operands of an equation are tapped, given the equations around it and its location.
Choice = Callable[[JaxprEqn, tuple[JaxprEqn, ...], Location], Sequence[Atom]]


def tapped(
    program: ClosedJaxpr, choice: Choice, enters: Callable[[JaxprEqn], bool] = lambda _: True
) -> tuple[ClosedJaxpr, list[Tap]]:
    """Return a program with the chosen values as further outputs, and these values, in order.

    Args:
      program: the program.
      choice: which values are tapped.
      enters: whether to look into the bodies of an equation.
    """
    body, taps = _Tapping(choice, enters).body(program.jaxpr, (), ())
    return (closed(body, program.consts) if taps else program), taps


@dataclass(frozen=True)
class _Tapping:
    choice: Choice
    enters: Callable[[JaxprEqn], bool]

    def body(self, jaxpr: Jaxpr, location: Location, around: tuple[JaxprEqn, ...]) -> tuple[Jaxpr, list[Tap]]:
        """Return a body whose taps follow its own outputs."""
        equations: list[JaxprEqn] = []
        outputs: list[Atom] = []
        taps: list[Tap] = []
        for index, equation in enumerate(jaxpr.eqns):
            here = (*location, index)
            before, made, values, below = self.within(equation, here, around)
            chosen = self.choice(equation, around, here)
            if chosen:
                outvars = [Var(v.aval) if isinstance(v, DropVar) else v for v in made.outvars]
                made = made.replace(outvars=outvars)
                names = IdentityMap[Atom, Atom](zip(equation.outvars, outvars, strict=False))
                values = [*values, *(names.get(atom, atom) for atom in chosen)]
                below = [*below, *(Tap(here, around, equation, atom) for atom in chosen)]
            equations += [*before, made]
            outputs += values
            taps += below
        if not taps:
            return jaxpr, []
        made = jaxpr.replace(eqns=equations, outvars=[*jaxpr.outvars, *outputs], debug_info=nameless(jaxpr))
        return made, taps

    def within(
        self, equation: JaxprEqn, here: Location, around: tuple[JaxprEqn, ...]
    ) -> tuple[list[JaxprEqn], JaxprEqn, Sequence[Atom], list[Tap]]:
        """Return the equations to put before an equation, the equation, and the values and taps of its bodies."""
        is_wrapper = equation.primitive.name in DISSOLVED
        if not (is_wrapper or takes_outputs(equation)) or not self.enters(equation):
            return [], equation, (), []
        made, counts, taps = [], [], []
        names = body_names(equation)
        for number, body in enumerate(bodies(equation.params)):
            # The condition of a loop has one result.
            is_condition = equation.primitive.name == "while" and names[number] == "cond"
            tapped = (body, []) if is_condition else self.body(body, (*here, number), (*around, equation))
            made.append(tapped[0])
            counts.append(len(tapped[1]))
            taps += tapped[1]
        if not taps:
            return [], equation, (), []
        if not is_wrapper:
            (*before, equation), values = widened(equation, Widening(made, [()] * len(made), {}, outputs=counts))
            return before, equation, values, taps
        # The wrapper keeps its rule of differentiation; the values inside it are computed again beside it.
        before = []
        (inner,) = (value for value in equation.params.values() if isinstance(value, ClosedJaxpr | Jaxpr))
        values = inlined(made[0], [*literals(inner), *equation.invars], before)[len(equation.outvars) :]
        return before, equation, values, taps
