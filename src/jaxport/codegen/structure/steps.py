"""Recorded steps as operators: what they read and make, equal ones merged, unused ones left out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxport.codegen.tree import Op
from jaxport.importer.host import HostValue
from jaxport.importer.recording import Function, Recordable, Step, Variable, map_leaves

__all__ = ["leaf_key", "operators", "reads", "renamed", "variables"]

SMALL = 64
"""Elements up to which constants are compared by value."""


def variables(tree: Any) -> Iterator[Variable]:
    """The variables in a tree, those inside slices included."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, Variable):
            yield leaf
        elif isinstance(leaf, slice):
            yield from variables((leaf.start, leaf.stop, leaf.step))


def reads(step: Step) -> list[Variable]:
    """The variables that a step reads, in order, with those that its nested functions capture."""
    found = dict.fromkeys(variables((step.args, list(step.kwargs.values()))))
    for leaf in jax.tree.leaves((step.args, list(step.kwargs.values()))):
        if isinstance(leaf, Function):
            found |= dict.fromkeys(_captured(leaf))
    return list(found)


def _captured(function: Function) -> list[Variable]:
    known = set(variables(function.parameters))
    found: dict[Variable, None] = {}
    for step in function.steps:
        found |= {variable: None for variable in reads(step) if variable not in known}
        known |= set(variables(step.outputs))
    found |= {variable: None for variable in variables(function.result) if variable not in known}
    return list(found)


def operators(steps: Iterable[Step], result: Any, weights: Collection[Variable] = ()) -> tuple[list[Op], Any]:
    """The steps that a result needs, equal ones once; and the result in terms of them.

    What only brings a weight into another shape stays with each that reads it: two modules may have the same weight.
    """
    merged: dict[Variable, Variable] = {}
    known: dict[Any, Step] = {}
    kept: list[Step] = []
    for original in steps:
        step = renamed(original, merged)
        read = reads(step)
        key = None if read and all(variable in weights for variable in read) else _key(step)
        if key is not None and key in known:
            same = known[key]
            pairs = zip(variables(step.outputs), variables(same.outputs), strict=True)
            merged.update(pairs)
            continue
        if key is not None:
            known[key] = step
        kept.append(step)
    result = map_leaves(lambda leaf: merged.get(leaf, leaf) if isinstance(leaf, Variable) else leaf, result)
    needed = set(variables(result))
    found: list[Op] = []
    for step in reversed(kept):
        outputs = tuple(variables(step.outputs))
        if needed.isdisjoint(outputs):
            continue
        inputs = tuple(reads(step))
        needed |= set(inputs)
        operator = getattr(step.node, "op_type", "") or ""
        found.append(Op(operator, step, inputs, outputs))
    return found[::-1], result


def renamed(step: Step, names: Mapping[Variable, Variable]) -> Step:
    """The step on the variables that are kept; its nested functions, too."""
    if not names or names.keys().isdisjoint(reads(step)):
        return step

    def rename(leaf: Any) -> Any:
        if isinstance(leaf, Function):
            inner = [renamed(part, names) for part in leaf.steps]
            return Function(leaf.name, leaf.parameters, inner, map_leaves(rename, leaf.result))
        if isinstance(leaf, slice):
            return slice(*(rename(part) for part in (leaf.start, leaf.stop, leaf.step)))
        return names.get(leaf, leaf) if isinstance(leaf, Variable) else leaf

    return Step(
        step.form, step.name, map_leaves(rename, step.args), map_leaves(rename, step.kwargs), step.outputs, step.node
    )


def _key(step: Step) -> Any:
    """What equal steps have in common; None for a step that is not compared."""
    leaves, structure = jax.tree.flatten((step.args, sorted(step.kwargs.items())))
    parts = [leaf_key(leaf) for leaf in leaves]
    if any(part is None for part in parts):
        return None
    return (step.form, step.name, str(structure), tuple(parts))


def leaf_key(leaf: Any) -> Any:
    """What equal arguments of steps have in common; None for one that is not compared."""
    if isinstance(leaf, Variable):
        return ("variable", id(leaf))
    if isinstance(leaf, HostValue):
        if leaf.size > SMALL:
            return ("host", id(leaf.data))
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
