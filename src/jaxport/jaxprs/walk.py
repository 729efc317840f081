"""Walk jaxprs: the bodies of an equation, all equations of a program, one body with another meaning for its equations;
and follow values in a body: which equation computes a value, which equations it depends on, and which it reaches.

>>> import jax
>>> nested = jax.make_jaxpr(lambda x: jax.jit(lambda y: y * 2 + 1)(x))(1.0).jaxpr
>>> [equation.primitive.name for equation in equations_within(nested)]
['jit', 'mul', 'add']
>>> [equation.primitive.name for equation in readers(nested, nested.invars[0])]
['jit']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from jaxport.jaxprs.aliases import Parameters
from jaxport.jaxprs.releases import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, closed, named

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
        elif issubclass(kind, _SEQUENCES) and not _PLAIN.issuperset(map(type, value)):
            jaxprs += _inner_jaxprs(value)
    return jaxprs


_SEQUENCES = (tuple, list)
_PLAIN = frozenset({int, str, bool, float, type(None)})
"""The types of what sizes, axes and names are: most parameters are such tuples."""


def _inner_jaxprs(value: Sequence[object]) -> Iterator[Jaxpr]:
    """Yield the jaxprs in a parameter of an equation, however deep they lie in tuples and lists."""
    for item in value:
        if isinstance(item, ClosedJaxpr):
            yield item.jaxpr
        elif isinstance(item, Jaxpr):
            yield item
        elif isinstance(item, _SEQUENCES) and not _PLAIN.issuperset(map(type, item)):
            yield from _inner_jaxprs(item)


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


def variables(atoms: Iterable[Atom]) -> set[Var]:
    """Return the variables among some atoms."""
    return {atom for atom in atoms if not isinstance(atom, Literal)}


def producers(jaxpr: Jaxpr) -> dict[Var, JaxprEqn]:
    """Return the equation that computes each variable of a body, except its inputs."""
    return {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}


def readers(jaxpr: Jaxpr, variable: Var) -> list[JaxprEqn]:
    """Return the equations of a body that have a variable as an operand."""
    return [equation for equation in jaxpr.eqns if any(atom is variable for atom in equation.invars)]


def used_variables(jaxpr: Jaxpr) -> set[Var]:
    """Return the variables that the equations of a body read, or that it returns."""
    return variables([*(atom for equation in jaxpr.eqns for atom in equation.invars), *jaxpr.outvars])


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
    needed = variables(wanted) - available
    equations = []
    for equation in reversed(jaxpr.eqns):
        if (effects and equation.effects) or not needed.isdisjoint(equation.outvars):
            equations.append(equation)
            needed |= variables(equation.invars) - available
    return equations[::-1], needed


class Read(NamedTuple):
    """An operand of an equation: the equation, and the position of the operand."""

    equation: JaxprEqn
    position: int


def reached(jaxpr: Jaxpr, start: Iterable[Var], passes: Callable[[JaxprEqn], bool]) -> tuple[set[Var], list[Read]]:
    """Follow values through the equations of a body that pass them on.

    Args:
      jaxpr: the body.
      start: the values.
      passes: whether the results of an equation are the same values, in another form.

    Returns:
      The variables that hold the values in any form, and the operands that have them in equations that do not pass
      them on, in order.

    >>> import jax
    >>> body = jax.make_jaxpr(lambda x: (x.T * 2, x + 1))(jax.numpy.ones((2, 3))).jaxpr
    >>> held, reads = reached(body, body.invars, lambda equation: equation.primitive.name == "transpose")
    >>> len(held), [read.equation.primitive.name for read in reads]
    (2, ['mul', 'add'])
    """
    held = set(start)
    reads = []
    for equation in jaxpr.eqns:
        positions = [i for i, atom in enumerate(equation.invars) if not isinstance(atom, Literal) and atom in held]
        if positions and passes(equation):
            held.update(equation.outvars)
        else:
            reads += [Read(equation, position) for position in positions]
    return held, reads
