"""What recorded steps read and compute: their variables, their arguments as keys, and steps on other variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Form, Function, Recordable, Step, Variable, map_leaves

SMALL = 64
"""Elements up to which constants are compared by value."""
REARRANGING = frozenset({"T", "jnp.transpose", "jnp.reshape", "jnp.expand_dims", "jnp.squeeze"})
"""Functions whose result has the elements of their operand."""
JOINS = frozenset({"jnp.concatenate", "jnp.stack"})
"""Functions that join arrays along an axis."""
ROTATIONS = frozenset({"helper.rotary", "helper.rotary_interleaved"})
"""Functions that rotate pairs of elements by the angle of a position."""


def variables(tree: object) -> Iterator[Variable]:
    """Yield the variables in a tree, those inside slices included."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, Variable):
            yield leaf
        elif isinstance(leaf, slice):
            yield from variables((leaf.start, leaf.stop, leaf.step))


def reads(step: Step) -> list[Variable]:
    """Return the variables that a step reads, in order, with those that its nested functions capture."""
    variables_read = dict.fromkeys(variables((step.args, list(step.kwargs.values()))))
    for leaf in jax.tree.leaves((step.args, list(step.kwargs.values()))):
        if isinstance(leaf, Function):
            variables_read |= dict.fromkeys(_captured(leaf))
    return list(variables_read)


def readers_of(steps: Iterable[Step]) -> dict[Variable, list[Step]]:
    """Return the steps that read each value."""
    readers: dict[Variable, list[Step]] = {}
    for step in steps:
        for variable in reads(step):
            readers.setdefault(variable, []).append(step)
    return readers


def _captured(function: Function) -> list[Variable]:
    known = set(variables(function.parameters))
    captured: dict[Variable, None] = {}
    for step in function.steps:
        captured |= {variable: None for variable in reads(step) if variable not in known}
        known |= set(variables(step.outputs))
    captured |= {variable: None for variable in variables(function.result) if variable not in known}
    return list(captured)


def with_nested(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield steps, each before those of the functions that it calls."""
    for step in steps:
        yield step
        for leaf in jax.tree.leaves((step.args, step.kwargs)):
            if isinstance(leaf, Function):
                yield from with_nested(leaf.steps)


def in_place(step: Step, name: str, *args: object, form: Form = "call", **kwargs: object) -> Step:
    """Return a step that computes the result of another one."""
    return Step(form, name, args, kwargs, step.outputs, step.node)


def renamed(step: Step, names: Mapping[Variable, Variable | HostValue]) -> Step:
    """Return the step on the variables that are kept; its nested functions, too."""
    if not names or names.keys().isdisjoint(reads(step)):
        return step

    def rename(leaf: object) -> object:
        if isinstance(leaf, Function):
            inner = [renamed(part, names) for part in leaf.steps]
            return Function(leaf.name, leaf.parameters, inner, map_leaves(rename, leaf.result))
        if isinstance(leaf, slice):
            return slice(*(rename(part) for part in (leaf.start, leaf.stop, leaf.step)))
        return names.get(leaf, leaf) if isinstance(leaf, Variable) else leaf

    return Step(
        step.form, step.name, map_leaves(rename, step.args), map_leaves(rename, step.kwargs), step.outputs, step.node
    )


def leaves(tree: object) -> Iterator[Any]:
    """Yield the leaves of a tree, with those inside slices."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, slice):
            yield from (leaf.start, leaf.stop, leaf.step)
        else:
            yield leaf


def needed(steps: list[Step], result: object) -> tuple[list[Step], Counter[Variable]]:
    """Return the steps whose outputs are used, and how often each variable is.

    A use in a nested function counts twice.
    """
    uses: Counter[Variable] = Counter()

    def use(tree: object, weight: int) -> None:
        for leaf in leaves(tree):
            if isinstance(leaf, Variable):
                uses[leaf] += weight
            elif isinstance(leaf, Function):
                use(leaf.result, 2)
                for inner in leaf.steps:
                    use((inner.args, inner.kwargs), 2)

    use(result, 1)
    kept = []
    for step in reversed(steps):
        if any(uses[leaf] for leaf in jax.tree.leaves(step.outputs) if isinstance(leaf, Variable)):
            kept.append(step)
            use((step.args, step.kwargs), 1)
    return kept[::-1], uses


def _large_key(value: HostValue) -> Hashable:
    """Return the key of a large constant: its identity, or its element if all are the same."""
    first = value.data.flat[0]
    if value.data.dtype.kind not in "OUS" and value.data.tobytes() == first.tobytes() * value.size:  # 0 and -0 differ
        return ("uniform", str(value.dtype), value.shape, first.tobytes())
    return ("host", id(value.data))


def leaf_key(leaf: object) -> Hashable:
    """Return a key that equal arguments of steps share; None for one that is not compared."""
    if isinstance(leaf, Variable):
        return ("variable", leaf)
    if isinstance(leaf, HostValue):
        if leaf.size > SMALL:
            return ("host", id(leaf.data)) if leaf.symbolic else _large_key(leaf)
        if leaf.symbolic:
            return ("sizes", str(leaf.dtype), leaf.shape, tuple(map(str, leaf.data.ravel())))
        return (
            "host",
            str(leaf.dtype),
            leaf.shape,
            leaf.data.tobytes() if leaf.data.dtype != object else tuple(leaf.data.ravel()),
        )
    if isinstance(leaf, Recordable):
        return ("function", leaf.name)
    if isinstance(leaf, slice):
        parts = tuple(leaf_key(part) for part in (leaf.start, leaf.stop, leaf.step))
        return None if any(part is None for part in parts) else ("slice", *parts)
    if isinstance(leaf, Function | np.ndarray) or callable(leaf):
        return None
    return (type(leaf).__name__, str(leaf))
