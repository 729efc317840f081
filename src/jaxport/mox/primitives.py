"""The primitives that a document may name, and the values of jax that it may name: a closed list."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxport import jaxprs
from jaxport.blocks.block import block_p
from jaxport.jaxprs import Array, PythonFunction
from jaxport.jaxprs.body_inputs import jit_parameters
from jaxport.jaxprs.meshes import NO_MESH, abstract_mesh, without_explicit_axes
from jaxport.jaxprs.rewrite import traced_equation
from jaxport.jaxprs.walk import equations_within

# Python on the host, and what only makes sense in the process that traced it.
_FORBIDDEN = frozenset({"call", "core_call", "custom_lin", "device_put", "name", "pmap", "xla_pmap"})


@cache
def primitives() -> dict[str, jaxprs.Primitive]:
    """Return the primitives by name.

    >>> "dot_general" in primitives(), "pure_callback" in primitives()
    (True, False)
    """
    listed = [
        value for space in (jaxprs.known_primitives, lax) for key, value in vars(space).items() if key.endswith("_p")
    ]
    by_name = {p.name: p for p in listed if isinstance(p, jaxprs.Primitive)}
    # Those without a public name are met in a trace, whatever the mesh of the caller.
    with without_explicit_axes():
        key = jax.random.key(0)
        (size,) = jax.export.symbolic_shape("n")
        sizes: Any = np.ones(1, np.int32)  # arrays of JAX would lie on the mesh
        for probe, argument in (
            (jax.random.key_data, key),
            (jax.random.wrap_key_data, jax.random.key_data(key)),
            (jax.random.clone, key),
            (lambda x: jnp.array(x, copy=True), jnp.zeros(1)),
            (lax.composite(lambda y: -y, "jaxport.probe"), jnp.zeros(1)),
            (lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), jnp.zeros(1)),
            (lambda x: lax.ragged_dot(x, x[None], sizes), np.zeros((1, 1), np.float32)),
            (lambda x: x.shape[0] * jnp.ones(()), jax.ShapeDtypeStruct((size,), jnp.float32)),
        ):
            for equation in equations_within(jax.make_jaxpr(probe)(argument).jaxpr):
                by_name.setdefault(equation.primitive.name, equation.primitive)
    by_name |= collectives()
    by_name["block"] = block_p
    by_name |= dict.fromkeys(("closed_call", "eval_jaxpr"), jaxprs.closed_call_p)  # its name depends on the release
    return {name: primitive for name, primitive in by_name.items() if name not in _FORBIDDEN}


@cache
def collectives() -> dict[str, jaxprs.Primitive]:
    """Return `shard_map`, and the primitives by which the devices in it exchange values, by name.

    >>> {"shard_map", "psum", "axis_index", "all_gather"} <= collectives().keys()
    True
    """
    with ThreadPoolExecutor(1) as aside:  # in this thread, the user's mesh may be in force, which is another one
        return aside.submit(_collectives).result()


def _collectives() -> dict[str, jaxprs.Primitive]:
    def exchanged(x: Array) -> list[Array]:
        return [
            lax.psum(x, "i"),
            lax.pmax(x, "i"),
            lax.pmin(x, "i"),
            lax.ppermute(x, "i", [(0, 0)]),
            lax.axis_index("i") * x,
            lax.all_gather(x, "i"),
            lax.all_to_all(x, "i", 0, 0),
            lax.psum_scatter(x, "i"),
            lax.pcast(lax.psum(x, "i"), "i", to="varying"),
        ]

    made: dict[str, jaxprs.Primitive] = {}
    for checked, spec in ((False, PartitionSpec("i")), (True, PartitionSpec())):
        mesh, out = abstract_mesh([("i", 1)]), PartitionSpec("i")
        mapped = jax.shard_map(exchanged, mesh=mesh, in_specs=spec, out_specs=out, check_vma=checked)
        for equation in equations_within(jax.make_jaxpr(mapped)(np.zeros((1, 1), np.float32)).jaxpr):
            axes = [equation.params.get(key) or () for key in ("axes", "axis_name")]
            if equation.primitive.name == "shard_map" or any("i" in names for names in axes):
                made[equation.primitive.name] = equation.primitive
    return made


def implementation(name: str) -> PythonFunction | None:
    """Return what computes a primitive that this release of JAX lacks, and newer ones have; None for others."""
    return None if name in primitives() else _NEWER.get(name)


def _polynomial(x: Array, *coefficients: Array, **_: object) -> Array:
    """Return the polynomial with these coefficients, the constant one first."""
    greatest = jnp.broadcast_to(coefficients[-1], jnp.broadcast_shapes(x.shape, *(c.shape for c in coefficients)))
    return functools.reduce(lambda total, coefficient: total * x + coefficient, reversed(coefficients[:-1]), greatest)


_NEWER: dict[str, PythonFunction] = {
    "log2": lambda x, **_: jnp.log2(x),
    "polynomial": _polynomial,
    "stack": lambda *arrays, axis: jnp.stack(arrays, axis),
    "one_minus_square": lambda x: (1 + x) * (1 - x),
    "unstack": lambda x, axis: [lax.index_in_dim(x, index, axis, keepdims=False) for index in range(x.shape[axis])],
}


@cache
def keyword_values() -> dict[str, Any]:
    """Return JAX's objects for an unspecified sharding, for no mesh, and for the kinds of keys."""
    params = jit_parameters()
    values = {"unspecified": params["in_shardings"][0], "no mesh": NO_MESH}
    for name in ("threefry2x32", "rbg", "unsafe_rbg"):
        data = jax.random.key_data(jax.random.key(0, impl=name))
        wrap = traced_equation(lambda d, name=name: jax.random.wrap_key_data(d, impl=name), [data])
        values[f"keys {name}"] = wrap.params["impl"]
    for name in dir(jax.checkpoint_policies):
        policy = getattr(jax.checkpoint_policies, name)
        if name in _POLICIES:
            values[f"policy {name}"] = policy
    return values


_POLICIES = frozenset({
    "everything_saveable", "nothing_saveable", "dots_saveable", "checkpoint_dots", "dots_with_no_batch_dims_saveable",
    "checkpoint_dots_with_no_batch_dims",
})  # fmt: skip
