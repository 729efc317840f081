"""Taps: the results of selected blocks become outputs of the program, out of all bodies that they are in.

A scan stacks what its steps compute; of a `while` loop the last step is seen, zeros if there was none; of a branch
that is not taken, zeros.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxport import jaxprs
from jaxport.errors import InvalidArgument, QueryError, Unsupported
from jaxport.jaxprs import Array, Atom, JaxprEqn
from jaxport.jaxprs.taps import tapped as taps_of
from jaxport.jaxprs.walk import Location
from jaxport.mox.programs.program import Program
from jaxport.mox.querying.calls import Call, TracedCall, arguments_of, call_arguments, nested, returns_of
from jaxport.mox.querying.node_sets import NodeSet
from jaxport.mox.substitution.editing import substituted
from jaxport.mox.substitution.refusals import tap_refusal
from jaxport.mox.substitution.replacement import Factory, Original, Replacement


class Captured(NamedTuple):
    """The captured values of a call.

    Attributes:
      inputs: the arguments of the call, a tuple; None if they were not requested.
      output: the result of the call.
      grad: the gradient of the loss with respect to the result; None if it was not requested.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(lambda x: jnp.sin(x) + 1)(jnp.zeros(2))
    >>> [captured.output.shape for captured in mox.capture("//sin", inputs=True)(jnp.zeros(2)).values()]
    [(2,)]
    """

    inputs: Any
    output: Any
    grad: Any = None


def capture(
    selection: NodeSet[Program, Call], inputs: bool = False, grads: Callable[[Any], Any] | None = None
) -> Callable[..., dict[str, Any]]:
    """See `Mox.capture`."""
    mox = tapped(selection, inputs or grads is not None)
    if grads is None:
        return lambda *args, **kwargs: mox(*args, **kwargs)[1]
    of_loss = gradients(selection, grads)

    def captured(*args: object, **kwargs: object) -> dict[str, object]:
        outputs, moved = mox(*args, **kwargs)[1], of_loss(*args, **kwargs)
        made: OrderedDict[str, Any] = OrderedDict()
        for path, one in outputs.items():
            calls_made = [one] if isinstance(one, Captured) else one
            grouped = tuple(
                Captured(call.inputs if inputs else None, call.output, grad)
                for call, grad in zip(calls_made, moved[path], strict=True)
            )
            made[path] = grouped[0] if isinstance(one, Captured) else grouped
        return made

    return captured


def gradients(selection: NodeSet[Program, Call], loss: Callable[[Any], Any]) -> Callable[..., dict[str, list[Any]]]:
    """Return a function of the model's arguments: the derivatives of a loss by the results of the members, by path.

    Something that is zero is added to each result, as a parameter: the derivative by it is that by the result.
    """
    mox = selection.mox
    numbers = {node.location: number for number, node in enumerate(selection.nodes)}

    def make(match: TracedCall) -> Replacement:
        number = numbers[match.node.location]
        scans = sum(around.equation.primitive.name in ("scan", "while") for around in match.node.around)
        if scans > len(match.lengths) + len(match.position):
            raise InvalidArgument(
                f"`{match.shown}` runs in a loop whose steps share its parameters",
                where="`Mox.capture(grads=…)`",
                why="the derivative would be the sum over the steps",
                instead="select blocks outside the loop",
            )
        floating = [i for i, aval in enumerate(match.out_avals) if jnp.issubdtype(aval.dtype, jnp.floating)]
        zeros = {_name(number, i): jnp.zeros(match.out_avals[i].shape, match.out_avals[i].dtype) for i in floating}

        def moved(original: Original, params: Mapping[str, Array], *args: object) -> object:
            leaves, tree = jax.tree.flatten(original(*args))
            order = jax.tree.leaves(nested(returns_of(match.node), list(range(len(leaves)))))
            added = [
                leaf + params[_name(number, i)] if i in floating else leaf
                for i, leaf in zip(order, leaves, strict=True)
            ]
            return jax.tree.unflatten(tree, added)

        return Replacement(moved, zeros, name="jaxport.mox.captured", per_example=False)

    edited = substituted(selection, Factory(make))
    new = edited.params.keys() - mox.params.keys()

    def derivatives(*args: Any, **kwargs: Any) -> dict[str, list[object]]:
        def total(params: Mapping[str, Array]) -> Array:
            result = loss(edited.apply({**edited.params, **params}, *args, **kwargs))
            if jnp.shape(result):
                raise InvalidArgument(
                    f"the loss is {jax.typeof(result).str_short()}",
                    where="`Mox.capture(grads=…)`",
                    why="only a scalar has a gradient",
                    instead="give a function from the model's output to a scalar: `lambda y: y.sum()`",
                )
            return result

        moved = jax.grad(total)({path: edited.params[path] for path in new})
        by_name = {path.rpartition(".")[2]: value for path, value in moved.items()}
        made: dict[str, list[Any]] = {}
        for number, node in enumerate(selection.nodes):
            count = len(returns_of(node))
            values = [by_name.get(_name(number, index)) for index in range(count)]
            made.setdefault(node.path, []).append(nested(returns_of(node), values) if values else ())
        return made

    return derivatives


def _name(number: int, result: int) -> str:
    """Return the name of what is added to a result of a member of the selection."""
    return f"captured_{number}_{result}"


def tapped(selection: NodeSet[Program, Call], inputs: bool = False) -> Program:
    """See `Selection.tap`; with `inputs` each call is a `Captured`."""
    mox, traced = selection.mox, selection.mox.traced
    if not selection.nodes:
        raise QueryError(
            f"{selection.query} matches nothing, so nothing would be captured",
            where=f"`{mox.name}`",
            instead="`print(mox)` shows what there is",
        )
    refusals = [reason for node in selection.nodes if (reason := tap_refusal(node)) is not None]
    if refusals:
        raise Unsupported(f"{len(set(refusals))} selected values of `{mox.name}` cannot be captured", refusals)
    nodes = {node.location: node for node in selection.nodes}

    def chosen(equation: JaxprEqn, _: tuple, location: Location) -> list[Atom]:
        node = nodes.get(location)
        if node is None:
            return []
        arguments = equation.invars[: len(arguments_of(node))] if inputs else []
        return [*equation.outvars[: len(returns_of(node))], *arguments]

    program, taps = taps_of(mox.jaxpr, chosen)
    body = program.jaxpr
    results, count = len(traced.output_paths), len(traced.output_paths) + len(traced.state_outputs)
    outvars = body.outvars
    values: dict[Location, list[Atom]] = {location: [] for location in nodes}
    for tap, value in zip(taps, outvars[len(outvars) - len(taps) :], strict=True):
        values[tap.location].append(value)
    # Leaves are numbered, so that the tree tells their order.
    groups: OrderedDict[str, list[Any]] = OrderedDict()
    arrays: list[Atom] = []
    for location, node in nodes.items():
        numbers = []
        for value in values[location]:
            numbers.append(len(arrays))
            arrays.append(value)
        count = len(returns_of(node))
        made = nested(returns_of(node), numbers[:count]) if count else ()
        if inputs:
            made = Captured(call_arguments(node, numbers[count:]), made)
        groups.setdefault(node.path, []).append(made)
    # JAX sorts the keys of a dict; those of an ordered one stay in the order of execution, also under `jit`.
    captured = OrderedDict((path, made[0] if len(made) == 1 else tuple(made)) for path, made in groups.items())
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
