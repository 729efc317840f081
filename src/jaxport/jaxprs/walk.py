"""Walk jaxprs: the bodies of an equation, all equations of a program, one body with another meaning for its equations.

>>> import jax
>>> nested = jax.make_jaxpr(lambda x: jax.jit(lambda y: y * 2 + 1)(x))(1.0).jaxpr
>>> [equation.primitive.name for equation in equations_within(nested)]
['jit', 'mul', 'add']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from jaxport.jaxprs.aliases import Parameters
from jaxport.jaxprs.releases.names import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, closed, named

__all__ = [
    "Location",
    "bodies",
    "bodies_within",
    "equations_run",
    "equations_within",
    "interpret",
    "map_jaxprs",
    "replace_bodies",
    "with_equations",
]

Value = TypeVar("Value")

Location = tuple[int, ...]
"""The place of an equation in a program: its index, or that of the one around it, a body in that, an index there, …"""


def bodies(params: Parameters) -> list[Jaxpr]:
    """Return the jaxprs in the parameters of an equation, closed or not, in a fixed order."""
    jaxprs = []
    for value in params.values():
        kind = type(value)  # every equation of every program passes here
        if kind is ClosedJaxpr:
            jaxprs.append(value.jaxpr)
        elif kind is Jaxpr:
            jaxprs.append(value)
        elif issubclass(kind, tuple | list):
            jaxprs += _inner_jaxprs(value)
    return jaxprs


def _inner_jaxprs(value: object) -> Iterator[Jaxpr]:
    """Yield the jaxprs in a parameter of an equation, however deep they lie in tuples and lists."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from _inner_jaxprs(item)
    elif isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value


def map_jaxprs(function: Callable[[Any], object], value: object) -> Any:
    """Replace each jaxpr in a parameter of an equation; return the same object if nothing changes."""
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return function(value)
    if not isinstance(value, tuple | list):
        return value
    items = [map_jaxprs(function, item) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def replace_bodies(params: Parameters, new: Iterator[Jaxpr]) -> dict[str, Any]:
    """Return the parameters with their jaxprs replaced, in the order in which `bodies` returns them."""

    def replaced(item: object) -> object:
        if not isinstance(item, ClosedJaxpr):
            return next(new)
        jaxpr = next(new)
        return item if jaxpr is item.jaxpr else closed(named(jaxpr), item.consts)

    return {name: map_jaxprs(replaced, value) for name, value in params.items()}


def bodies_within(jaxpr: Jaxpr, enters: Callable[[JaxprEqn], bool] | None = None) -> Iterator[Jaxpr]:
    """Yield a jaxpr and those in it, at any depth; one that is shared is visited once.

    Args:
      jaxpr: the jaxpr.
      enters: whether to visit the jaxprs in an equation; by default in all.
    """
    waiting, known = [jaxpr], set[Jaxpr]()
    while waiting:
        body = waiting.pop()
        if body in known:
            continue
        known.add(body)
        yield body
        for equation in body.eqns:
            if enters is None or enters(equation):
                waiting += bodies(equation.params)


def equations_within(jaxpr: Jaxpr, enters: Callable[[JaxprEqn], bool] | None = None) -> Iterator[JaxprEqn]:
    """Yield the equations of a jaxpr and of those in it: see `bodies_within`."""
    return (equation for body in bodies_within(jaxpr, enters) for equation in body.eqns)


def equations_run(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Yield all equations that a program runs: those of a shared body once for each equation that holds it."""
    for equation in jaxpr.eqns:
        yield equation
        for body in bodies(equation.params):
            yield from equations_run(body)


def interpret(
    jaxpr: Jaxpr,
    inputs: Iterable[Value],
    rule: Callable[[JaxprEqn, list[Value]], Iterable[Value]],
    literal: Callable[[Literal], Value] = attrgetter("val"),
) -> list[Value]:
    """Run a body with another meaning for its equations, on values of any kind; return those of its results.

    Args:
      jaxpr: the body.
      inputs: the values of its constants and inputs.
      rule: returns the values of the results of an equation, given the equation and the values of its operands.
      literal: returns the value of a literal.

    >>> import jax
    >>> body = jax.make_jaxpr(lambda x, y: (x + 1) * y)(1.0, 2.0).jaxpr
    >>> interpret(body, [0, 2], lambda equation, depths: [1 + max(depths)], lambda literal: 0)
    [3]
    """
    values: dict[Var, Value] = dict(zip((*jaxpr.constvars, *jaxpr.invars), inputs, strict=True))

    def read(atom: Atom) -> Value:
        return literal(atom) if isinstance(atom, Literal) else values[atom]

    last = {}  # what nothing needs any more is forgotten: it may be an array
    for equation in jaxpr.eqns:
        last.update({atom: equation for atom in (*equation.invars, *equation.outvars) if isinstance(atom, Var)})
    for atom in jaxpr.outvars:
        if isinstance(atom, Var):
            last.pop(atom, None)
    for equation in jaxpr.eqns:
        results = rule(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
        for atom in (*equation.invars, *equation.outvars):
            if isinstance(atom, Var) and last.get(atom) is equation:
                values.pop(atom, None)
    return [read(atom) for atom in jaxpr.outvars]


def with_equations(jaxpr: Jaxpr, equations: Sequence[JaxprEqn]) -> Jaxpr:
    """Return a jaxpr with other equations; the same object if all of them are its own."""
    same = len(equations) == len(jaxpr.eqns) and all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True))
    return jaxpr if same else jaxpr.replace(eqns=list(equations))
