"""Layouts of arrays over devices, which do not matter to a model that runs on one device.

A mesh of one device is supported: each of its axes has one array, so a collective returns its operand. The rules for
collectives see no other case, since a `shard_map` over several devices is refused as a whole.
"""

from __future__ import annotations

import math

from jax import lax

from jaxport.export.emit.registry import rule


@rule("sharding_constraint", "reshard", "layout_constraint", "relayout", broadcasts=True)
def constraint(op, x, **_):
    return x


@rule(
    "pvary",
    "pbroadcast",
    "preduced",
    "reduced_vary_cast",
    "reduced_vary_cast_p",
    "vary_unreduced_cast",
    "vary_unreduced_cast_p",
    broadcasts=True,
)
def typed(op, *xs, **_):
    return xs


@rule("shard_map", broadcasts=True)
def shard_map(op, *operands, mesh, jaxpr, **_):
    sizes = dict(mesh.shape)
    if math.prod(sizes.values()) > 1:
        axes = ", ".join(f"`{name}` of {size}" for name, size in sizes.items())
        op.refuse(
            f"runs on several devices (the mesh has {axes}); export the function that one device runs, over all data"
        )
    return op.inline(jaxpr, *operands)


def reduced(reduce):
    """Return a reduction over axes of the array (left by `vmap`), and over named axes with one array each."""

    def over_axes(op, *xs, axes, axis_index_groups=None, **_):
        positions = tuple(axis for axis in axes if isinstance(axis, int))
        return [op.call(reduce, x, axes=positions) for x in xs] if positions else xs

    return over_axes


rule("psum", "psum_invariant", "unreduced_psum")(reduced(lax.reduce_sum))
rule("pmax", "unreduced_pmax")(reduced(lax.reduce_max))
rule("pmin", "unreduced_pmin")(reduced(lax.reduce_min))


@rule(
    "all_gather",
    "all_gather_invariant",
    "all_gather_reduced",
    "all_to_all",
    "reduce_scatter",
    "unreduced_reduce_scatter",
)
def regrouped(op, *xs, **_):
    """Split into one piece or concatenate one piece: at most an axis of size one is added, removed or moved."""
    return [op.reshape(x, aval.shape) for x, aval in zip(xs, op.outs, strict=True)]


@rule("ppermute", broadcasts=True)
def ppermute(op, *xs, axis_name, perm):
    return xs if perm else [op.const(0, x.dtype) for x in xs]


@rule("axis_index", broadcasts=True)
def axis_index(op, *, axis_name):
    return op.const(0, op.out.dtype)
