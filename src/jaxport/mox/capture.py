"""Taps: the results of selected blocks become outputs of the program, out of all bodies that they are in.

A scan stacks what its steps compute; of a `while` loop the last step is seen, zeros if there was none; of a branch
that is not taken, zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax

from jaxport import jaxprs
from jaxport.blocks.labels import bodies
from jaxport.errors import QueryError, Unsupported
from jaxport.mox import calls
from jaxport.mox.match import nested, returns_of
from jaxport.mox.refusals import tap_refusal
from jaxport.mox.tree import Location, Node

if TYPE_CHECKING:
    from jaxport.mox.mox import Mox
    from jaxport.mox.selection import Selection

__all__ = ["capture", "tapped"]

Var = jaxprs.Var
Jaxpr = jaxprs.Jaxpr
JaxprEqn = jaxprs.JaxprEqn

#: The values of one match in the body at hand.
_Tap = tuple[Location, list[Any]]


def capture(selection: Selection) -> Callable[..., dict[str, Any]]:
    """See `Mox.capture`."""
    mox = tapped(selection)
    return lambda *args, **kwargs: mox(*args, **kwargs)[1]


def tapped(selection: Selection) -> Mox:
    """See `Selection.tap`."""
    mox, traced = selection.mox, selection.mox.traced
    if not selection.nodes:
        raise QueryError(
            f"{selection.query} hits nothing, so nothing would be captured",
            where=f"`{mox.name}`",
            instead="`print(mox)` shows what there is",
        )
    refusals = [found for node in selection.nodes if (found := tap_refusal(node)) is not None]
    if refusals:
        raise Unsupported(f"{len(set(refusals))} selected values of `{mox.name}` cannot be captured", refusals)
    nodes = {node.location: node for node in selection.nodes}
    body, taps = _Tapper(nodes).body(mox.jaxpr.jaxpr, ())
    results, count = len(traced.output_paths), len(traced.output_paths) + len(traced.state_outputs)
    outvars = body.outvars
    # Leaves are numbered, so that the tree tells their order.
    values = dict(taps)
    groups: dict[str, list[Any]] = {}
    arrays: list[Any] = []
    for location, node in nodes.items():
        numbers = []
        for value in values[location]:
            numbers.append(len(arrays))
            arrays.append(value)
        groups.setdefault(node.path, []).append(nested(returns_of(node), numbers) if numbers else ())
    captured = {path: found[0] if len(found) == 1 else tuple(found) for path, found in groups.items()}
    leaves, _ = jax.tree.flatten(captured)
    result = jax.tree.unflatten(traced.out_tree, range(traced.out_tree.num_leaves))
    jaxpr = body.replace(outvars=[*outvars[:results], *(arrays[leaf] for leaf in leaves), *outvars[results:count]])
    paths = [path for keys, _ in jax.tree_util.tree_flatten_with_path(captured)[0] for path in [_path_of(keys)]]
    return mox.replaced(
        replace(
            traced,
            jaxpr=jaxprs.closed(jaxpr, ()),
            out_tree=jax.tree.structure((result, captured)),
            output_paths=(*traced.output_paths, *paths),
        )
    )


def _path_of(keys: Any) -> str:
    return "captured." + jax.tree_util.keystr(keys, simple=True, separator=".")


class _Tapper:
    def __init__(self, nodes: dict[Location, Node]):
        self.nodes = nodes
        self.ways = {location[:end] for location in nodes for end in range(1, len(location) + 1)}

    def body(self, jaxpr: Jaxpr, location: Location) -> tuple[Jaxpr, list[_Tap]]:
        """The body with the values to tap as further outputs, and these."""
        equations: list[JaxprEqn] = []
        taps: list[_Tap] = []
        for index, equation in enumerate(jaxpr.eqns):
            here = (*location, index)
            if here in self.ways:
                before, equation, below = self.equation(equation, here)
                equations += before
                taps += below
                if here in self.nodes:
                    outvars = [Var(v.aval) if isinstance(v, jaxprs.DropVar) else v for v in equation.outvars]
                    equation = equation.replace(outvars=outvars)
                    taps.append((here, list(outvars[: len(returns_of(self.nodes[here]))])))
            equations.append(equation)
        outvars = [*jaxpr.outvars, *(value for _, values in taps for value in values)]
        debug_info = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
        return jaxpr.replace(eqns=equations, outvars=outvars, debug_info=debug_info), taps

    def equation(self, equation: JaxprEqn, here: Location) -> tuple[list[JaxprEqn], JaxprEqn, list[_Tap]]:
        """What comes before an equation, the equation, and the taps of its bodies."""
        inner = bodies(equation.params)
        below = [number for number in range(len(inner)) if (*here, number) in self.ways]
        if not below:
            return [], equation, []
        edited, found = list(inner), [list[_Tap]() for _ in inner]
        for number in below:
            edited[number], found[number] = self.body(inner[number], (*here, number))
        if equation.primitive.name in calls.DISSOLVED:
            # The wrapper keeps its rule of differentiation; what is looked at inside is computed beside it.
            return *self.beside(equation, edited[0], found[0]), found[0]
        counts = [sum(len(values) for _, values in taps) for taps in found]
        more = calls.Widening(edited, [()] * len(inner), {}, frozenset(), counts)
        widened = calls.widened(equation, more)
        assert widened is not None, equation.primitive.name  # `tap_refusal` has seen to it
        (*before, equation), outputs = widened
        waiting = iter(outputs)
        taps = [(at, [next(waiting) for _ in values]) for taps in found for at, values in taps]
        return before, equation, taps

    def beside(self, equation: JaxprEqn, body: Jaxpr, taps: list[_Tap]) -> tuple[list[JaxprEqn], JaxprEqn]:
        """The equations of a body, which stay as they are named, before the equation that runs it."""
        names = dict(zip(body.invars, equation.invars, strict=True))
        read = lambda atom: names.get(atom, atom) if isinstance(atom, Var) else atom
        copies = []
        for inside in body.eqns:
            outvars = [v if isinstance(v, jaxprs.DropVar) else Var(v.aval) for v in inside.outvars]
            copies.append(inside.replace(invars=[read(atom) for atom in inside.invars], outvars=outvars))
            names.update(zip(inside.outvars, outvars, strict=True))
        for position, (at, values) in enumerate(taps):
            taps[position] = at, [read(value) for value in values]
        return copies, equation
