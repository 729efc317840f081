"""Walk jaxprs: the bodies of an equation, all equations of a program, those that compute some values.

>>> import jax
>>> nested = jax.make_jaxpr(lambda x: jax.jit(lambda y: y * 2 + 1)(x))(1.0).jaxpr
>>> [equation.primitive.name for equation in equations_within(nested)]
['jit', 'mul', 'add']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from jaxport.jaxprs.aliases import Parameters, PyTree
from jaxport.jaxprs.names import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, closed

__all__ = [
    "bodies",
    "bodies_within",
    "equations_within",
    "inner_jaxprs",
    "needed_equations",
    "producers",
    "replace_bodies",
    "with_equations",
]


def bodies(params: Parameters) -> list[Jaxpr]:
    """Return the jaxprs in the parameters of an equation, closed or not, in a fixed order."""
    jaxprs = []
    for value in params.values():
        kind = type(value)  # every equation of every program passes here
        if kind is ClosedJaxpr:
            jaxprs.append(value.jaxpr)
        elif kind is Jaxpr:
            jaxprs.append(value)
        elif kind is tuple or kind is list:
            for item in value:
                if type(item) is ClosedJaxpr:
                    jaxprs.append(item.jaxpr)
                elif type(item) is Jaxpr:
                    jaxprs.append(item)
    return jaxprs


def replace_bodies(params: Parameters, new: Iterator[Jaxpr]) -> dict[str, PyTree]:
    """Return the parameters with their jaxprs replaced, in the order in which `bodies` gives them."""

    def replaced(item: PyTree) -> PyTree:
        if isinstance(item, ClosedJaxpr):
            jaxpr = next(new)
            return item if jaxpr is item.jaxpr else closed(jaxpr, item.consts)
        return next(new) if isinstance(item, Jaxpr) else item

    return {
        name: type(value)(map(replaced, value)) if type(value) in (tuple, list) else replaced(value)
        for name, value in params.items()
    }


def inner_jaxprs(value: object) -> Iterator[Jaxpr]:
    """Yield the jaxprs in a parameter of an equation, however deep they lie in tuples and lists."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from inner_jaxprs(item)
    elif isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value


def bodies_within(jaxpr: Jaxpr, enters: Callable[[JaxprEqn], bool] | None = None) -> Iterator[Jaxpr]:
    """Yield a jaxpr and those in it, at any depth; one that is shared is visited once.

    Args:
      jaxpr: the jaxpr.
      enters: whether to visit the jaxprs in an equation; by default in all.
    """
    waiting, known = [jaxpr], set()
    while waiting:
        body = waiting.pop()
        if id(body) in known:
            continue
        known.add(id(body))
        yield body
        for equation in body.eqns:
            if enters is None or enters(equation):
                for value in equation.params.values():
                    waiting += inner_jaxprs(value)


def equations_within(jaxpr: Jaxpr, enters: Callable[[JaxprEqn], bool] | None = None) -> Iterator[JaxprEqn]:
    """Yield the equations of a jaxpr and of those in it: see `bodies_within`."""
    return (equation for body in bodies_within(jaxpr, enters) for equation in body.eqns)


def producers(jaxpr: Jaxpr) -> dict[Var, JaxprEqn]:
    """Return the equation that computes each variable of a body, except its inputs."""
    return {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}


def needed_equations(
    jaxpr: Jaxpr, wanted: Iterable[Atom], available: Set[Var] = frozenset(), effects: bool = False
) -> tuple[list[JaxprEqn], set[Var]]:
    """Return the equations of a body that some values depend on, in order, and all variables that these read.

    Args:
      jaxpr: the body.
      wanted: the values.
      available: the variables that are known, so that nothing need compute them.
      effects: whether equations with an effect are needed, too.

    >>> import jax
    >>> body = jax.make_jaxpr(lambda x: (x + 1, (x * 2) ** 2))(1.0).jaxpr
    >>> [equation.primitive.name for equation in needed_equations(body, body.outvars[1:])[0]]
    ['mul', 'integer_pow']
    """
    needed = {atom for atom in wanted if not isinstance(atom, Literal)} - available
    equations = []
    for equation in reversed(jaxpr.eqns):
        if (effects and equation.effects) or not needed.isdisjoint(equation.outvars):
            equations.append(equation)
            needed.update(v for v in equation.invars if not isinstance(v, Literal) and v not in available)
    return equations[::-1], needed


def with_equations(jaxpr: Jaxpr, equations: Sequence[JaxprEqn]) -> Jaxpr:
    """Return a jaxpr with other equations; the same object if all of them are its own."""
    same = len(equations) == len(jaxpr.eqns) and all(new is old for new, old in zip(equations, jaxpr.eqns, strict=True))
    return jaxpr if same else jaxpr.replace(eqns=list(equations))
