"""What runs a jaxpr once, and the derivatives of it: nothing of it is left in the graph."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas
from jax.experimental.custom_partitioning import custom_partitioning

from jaxport.jaxprs import release
from jaxport.testing import check, f32, i32
from tests.versions import compute_on, kernel_reciprocal

B = "B"


@jax.custom_jvp
def steep_sine(x):
    return jnp.sin(x)


steep_sine.defjvp(lambda p, t: (steep_sine(p[0]), t[0] * 3))


@jax.custom_vjp
def doubling_gradient(x):
    return jnp.sin(x)


doubling_gradient.defvjp(lambda x: (doubling_gradient(x), x), lambda x, g: (2 * g * jnp.cos(x),))


def linear_solve(x):
    return lax.custom_linear_solve(
        lambda v: v * (2 + x**2), x, lambda matvec, b: b / (2 + x**2), lambda vecmat, b: b / (2 + x**2)
    )


def root(x):
    """The cube root, by Newton's steps."""

    def solve(f, start):
        return lax.fori_loop(0, 12, lambda _, y: y - f(y) / (3 * y**2), start)

    return lax.custom_root(lambda y: y**3 - x, jnp.ones_like(x), solve, lambda g, y: y / g(1.0))


@jax.custom_batching.custom_vmap
def with_own_batching(x):
    return jnp.sin(x)


with_own_batching.def_vmap(lambda size, batched, x: (jnp.sin(x) * 1, batched[0]))


def linear_call(x):
    return jax.custom_derivatives.linear_call(lambda r, x: x * r, lambda r, t: t * r, jnp.float32(2), x)


on_the_host = compute_on(jnp.sin, compute_type="device_host", out_memory_spaces=jax.memory.Space.Device)

partitioned = custom_partitioning(jnp.sin)
partitioned.def_partition(
    partition=lambda mesh, args, result: (mesh, jnp.sin, result, args),
    infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
    sharding_rule="i -> i",
)


def gradient(function):
    return jax.grad(lambda x: function(x).sum())


FUNCTIONS = {
    "jit": jax.jit(lambda x: jax.jit(jnp.sin)(x) * 2),
    "remat": jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))),
    "remat-policy": jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)), policy=jax.checkpoint_policies.dots_saveable),
    "named_call": jax.named_call(jnp.sin, name="sine"),
    "checkpoint_name": lambda x: checkpoint_name(jnp.sin(x), "sine"),
    "custom_jvp": steep_sine,
    "custom_vjp": doubling_gradient,
    "custom_gradient": jax.custom_gradient(lambda x: (jnp.sin(x), lambda g: g * 3)),
    "custom_linear_solve": linear_solve,
    "closure_convert": lambda x: jax.closure_convert(lambda y: jnp.sin(y), x)[0](x),
    "stop_gradient": lambda x: x * lax.stop_gradient(jnp.sin(x)),
    "optimization_barrier": lambda x: lax.optimization_barrier((x * 2, jnp.sin(x)))[1],
    "device_put": lambda x: jnp.array(jax.device_put(x) * 2, copy=True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("transform", [lambda f: f, gradient, lambda f: jax.vmap(f)], ids=["plain", "grad", "vmap"])
def test_calls(transform, name):
    check(transform(FUNCTIONS[name]), f32(B))


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(with_own_batching, id="custom_vmap"),
        pytest.param(jax.vmap(with_own_batching), id="custom_vmap-vmap"),
        pytest.param(
            lambda x: lax.composite(lambda x, *, by: x * by, "my.scaled")(x, by=np.float32(3)), id="composite"
        ),
        pytest.param(lambda x: jax.jvp(steep_sine, (x,), (x,)), id="custom_jvp-jvp"),
        pytest.param(lambda x: jax.linearize(steep_sine, x)[1](x), id="custom_jvp-linearize"),
        pytest.param(lambda x: jax.vjp(doubling_gradient, x)[1](x), id="custom_vjp-vjp"),
        pytest.param(jax.vmap(jax.grad(doubling_gradient)), id="custom_vjp-vmap-grad"),
        pytest.param(linear_call, id="linear_call"),
        pytest.param(gradient(linear_call), id="linear_call-grad"),
        *([pytest.param(on_the_host, id="compute_on")] if release >= (0, 10) else []),  # JAX 0.9 cannot run it
        pytest.param(partitioned, id="custom_partitioning"),
        *([pytest.param(lax.stage, id="stage")] if release >= (0, 10) else []),
    ],
)
def test_more_calls(fn):
    check(fn, f32(B))


@pytest.mark.parametrize(
    ("fn", "shape"),
    [(root, ()), (jax.grad(root), ()), (jax.vmap(jax.grad(root)), (3,))],
    ids=["plain", "grad", "vmap-grad"],
)
def test_custom_root(fn, shape):
    check(fn, f32(*shape), values=[np.full(shape, 5, np.float32)])


def test_what_kernels_say_outside_of_kernels():
    check(lambda x, i: (kernel_reciprocal(x), pallas.multiple_of(i, 2)), f32(B), i32())


LEAST, LARGEST = np.iinfo(np.int32).min, np.iinfo(np.int32).max
WHOLE = np.array([LEAST, LEAST + 1, -7, -6, -3, -1, 0, 1, 2, 5, 6, LARGEST - 1, LARGEST], np.int32)


@pytest.mark.parametrize("divisor", [1, 3, 7, LARGEST])
@pytest.mark.parametrize(
    ("fn", "nodes"), [(lambda x, d: x % d, 1), (lambda x, d: x // d, 5)], ids=["remainder", "floor_divide"]
)
def test_division_by_a_positive_number(fn, nodes, divisor):
    exported = check(lambda x: fn(x, np.int32(divisor)), i32(WHOLE.size), values=[WHOLE])
    assert len(exported.model.graph) <= nodes or divisor == LARGEST


def test_a_function_of_the_name_of_one_of_jax():
    @jax.jit
    def remainder(x, d):
        return x - d

    check(lambda x: remainder(x, np.int32(3)), i32(4))
