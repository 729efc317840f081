"""Patches: override or transform the results of blocks, chosen by path or query, in one edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxport.errors import InvalidArgument, QueryError
from jaxport.jaxprs import Array
from jaxport.jaxprs.walk import Location
from jaxport.mox.programs.program import Program
from jaxport.mox.querying.calls import Call, TracedCall
from jaxport.mox.querying.node_sets import NodeSet
from jaxport.mox.substitution.editing import substituted
from jaxport.mox.substitution.replacement import Factory, Whole


def patched(mox: Program, changes: Sequence[tuple[NodeSet[Program, Call], Any]]) -> Program:
    """See `Mox.patch`; each change comes with the blocks that it is for."""
    by_location: dict[Location, Any] = {}
    nodes = []
    for selection, change in changes:
        if not selection.nodes:
            raise QueryError(
                f"{selection.query} matches nothing, so nothing would be patched",
                where=f"`{mox.name}`",
                instead="`print(mox)` shows what there is",
            )
        several = isinstance(change, tuple) and len(selection) > 1 and len(change) == len(selection)
        for index, node in enumerate(selection.nodes):
            if node.location in by_location:
                raise InvalidArgument(
                    f"`{node.path or node.type}` is patched twice",
                    where="`Mox.patch`",
                    why=f"{selection.query} matches it, and so does another key",
                    instead="patch it once, or patch the patched Mox again",
                )
            by_location[node.location] = change[index] if several else change
            nodes.append(node)
    if not nodes:
        return mox
    blocks = replace(changes[0][0], nodes=tuple(nodes), query="the patched blocks")
    return substituted(blocks, Factory(lambda match: _patch(match, by_location[match.node.location])))


def _patch(match: TracedCall, change: object) -> Whole:
    """Return the replacement for the results of a call."""
    if callable(change):
        return Whole(lambda *args: change(match(*args)))
    avals = match.out_avals

    def fitting(value: object, index: int) -> Array:
        """Return the array that a number stands for, or of a stack over the steps of a scan that of the step."""
        aval = avals[index]
        value = jnp.asarray(value)
        if not value.ndim and aval.shape:
            return jnp.full(aval.shape, value, aval.dtype)
        steps = match.position
        if steps and value.ndim == len(steps) + len(aval.shape):
            return value[steps]
        return value

    leaves, tree = jax.tree.flatten(change)
    if len(leaves) == len(avals):
        leaves = [fitting(leaf, index) for index, leaf in enumerate(leaves)]
    value = jax.tree.unflatten(tree, leaves)
    return Whole(lambda *_: value, keeps=True)
