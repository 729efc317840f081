"""Models that are merged inside a function, under every transformation: paths come from the arrays alone."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx
from jax import lax

from tests.blocks.checks import blocks, check, weights_of
from tests.frameworks.models import WIDTH, EqxModel, NnxModel, X, layer_blocks

pytestmark = pytest.mark.sampled(2)

EXPECTED = [
    ("Model", ""),
    *layer_blocks("layers.0", "none", ("Layer", "Linear", "BatchNorm", "Dropout")),
    *layer_blocks("layers.1", "none", ("Layer", "Linear", "BatchNorm", "Dropout")),
    ("Linear", "head"),
]


class FunctionalNnx:
    """The functional interface: the state is an argument, and the new state a result."""

    def __init__(self, state):
        self.graphdef, self.params = nnx.split(NnxModel(state, nnx.Rngs(0)))

    def __call__(self, params, x):
        model = nnx.merge(self.graphdef, params)
        y = model(x)
        return y, nnx.state(model, nnx.BatchStat)


class FunctionalEqx:
    def __init__(self, state):
        model = EqxModel(state, jax.random.key(0))
        self.params, self.static = eqx.partition(model, eqx.is_array)

    def __call__(self, params, x):
        return jax.vmap(lambda v: eqx.combine(params, self.static)(v, None, None)[0])(x), None


def settings(apply, params):
    """Twelve ways to transform ``apply(params, x)``; the second is how often each block appears, if it is fixed."""

    def value(params, x):
        return apply(params, x)[0]

    def loss(params, x):
        return value(params, x).sum()

    def step(carry, _):
        return carry + loss(params, carry), None

    return {
        "plain": (lambda x: value(params, x), 1),
        "jit": (lambda x: jax.jit(value)(params, x), 1),
        "jit twice": (lambda x: sum(map(jax.jit(value), (params, params), (x, x * 2))), 2),
        "grad": (lambda x: jax.grad(loss, argnums=1)(params, x), 1),
        "value_and_grad": (lambda x: jax.value_and_grad(loss)(params, x)[0], None),
        "vmap": (lambda x: jax.vmap(lambda v: value(params, v[None]))(x), 1),
        "vmap of grad": (lambda x: jax.vmap(jax.grad(lambda v: loss(params, v[None])))(x), 1),
        "jvp of grad": (lambda x: jax.jvp(jax.grad(lambda v: loss(params, v)), (x,), (x,)), 1),
        "scan": (lambda x: lax.scan(step, x, None, length=2)[0], 1),
        "remat": (lambda x: jax.checkpoint(value)(params, x), 1),
        "grad of remat": (lambda x: jax.grad(jax.checkpoint(loss), argnums=1)(params, x), None),
        "grad of remat in scan": (
            lambda x: jax.grad(lambda v: lax.scan(jax.checkpoint(step), v, None, length=2)[0].sum())(x), None),
        "cond": (lambda x: lax.cond(x.sum() > 0, lambda v: loss(params, v), lambda v: 0.0, x), 1),
        "switch": (lambda x: lax.switch(jnp.int32(x.sum()), [lambda v: loss(params, v), lambda v: 0.0], x), 1),
        "while": (lambda x: lax.while_loop(lambda c: c.sum() < 1, lambda c: c + 1 + loss(params, c) * 0, x), 1),
        "fori": (lambda x: lax.fori_loop(0, 2, lambda _, c: c + loss(params, c), x), 1),
        "map": (lambda x: lax.map(lambda v: value(params, v[None]), x), 1),
        "custom_vjp": (lambda x: with_custom_vjp(value)(params, x), 1),
        "associative_scan": (lambda x: lax.associative_scan(jnp.add, value(params, x)), 1),
        "hessian": (lambda x: jax.hessian(lambda v: loss(params, v[None]))(x[0]), None),
    }  # fmt: skip


def with_custom_vjp(value):
    fn = jax.custom_vjp(value)
    fn.defvjp(lambda p, x: (value(p, x), (p, x)), lambda residuals, g: jax.vjp(value, *residuals)[1](g))
    return fn


NAMES = list(settings(None, None))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [FunctionalNnx, FunctionalEqx])
def test_paths_and_values(make, name):
    apply = make("none")
    if name == "value_and_grad" and make is FunctionalNnx:
        pytest.skip("the state holds keys and counts, which have no gradient")
    fn, times = settings(apply, apply.params)[name]
    traced = check(fn, X, jit=None)
    short = lambda block: block.target.rpartition(".")[2].removeprefix("Nnx").removeprefix("Eqx")
    found = [(short(block), block.path) for block in blocks(traced.jaxpr.jaxpr)]
    if times is not None:
        assert found == EXPECTED * times
    else:
        assert set(found) == set(EXPECTED)
    assert weights_of(traced, "layers.0.linear")


@pytest.mark.parametrize("name", ["jit", "remat", "grad of remat"])  # NNX refuses to change state from further outside
@pytest.mark.parametrize("state", ["norm", "dropout"])
def test_state_inside_of_transformations(name, state):
    apply = FunctionalNnx(state)
    traced = check(settings(apply, apply.params)[name][0], X)
    assert {"layers.0.linear", "layers.1.dropout", "head"} <= {block.path for block in blocks(traced.jaxpr.jaxpr)}
    assert traced.state_outputs == ()


def test_stacked_weights_in_a_plain_scan():
    layers = eqx.filter_vmap(lambda key: eqx.nn.Linear(WIDTH, WIDTH, key=key))(jax.random.split(jax.random.key(0), 3))
    params, static = eqx.partition(layers, eqx.is_array)
    fn = lambda x: lax.scan(lambda c, layer: (jax.vmap(eqx.combine(layer, static))(c), None), x, params)[0]
    traced = check(fn, X, expect=[""])
    assert set(blocks(traced.jaxpr.jaxpr)[0].weights.values()) == {"weight", "bias"}


def test_the_layers_of_a_stack_taken_one_by_one():
    layers = eqx.filter_vmap(lambda key: eqx.nn.Linear(WIDTH, WIDTH, key=key))(jax.random.split(jax.random.key(0), 2))

    def fn(x):
        for index in range(2):
            x = jax.vmap(jax.tree.map(lambda leaf: leaf[index], layers, is_leaf=eqx.is_array))(x)  # noqa: B023
        return x

    traced = check(fn, X, expect=["", ""])
    assert [dict(block.weights) for block in blocks(traced.jaxpr.jaxpr)] == [{}, {}]


def test_weights_that_were_cast_still_say_where_they_are():
    model = eqx.nn.MLP(WIDTH, 2, 4, 1, key=jax.random.key(0))

    def fn(x):
        half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if eqx.is_array(leaf) else leaf, model)
        return jax.vmap(half)(x.astype(jnp.bfloat16))

    check(fn, X, expect=["", "layers.0", "layers.1"])


def test_lifted_vmap():
    class Ensemble(nnx.Module):
        def __init__(self):
            make = nnx.vmap(lambda rngs: nnx.Linear(WIDTH, 2, rngs=rngs), in_axes=0, out_axes=0)
            self.members = nnx.split_rngs(splits=2)(make)(nnx.Rngs(0))

        def __call__(self, x):
            return nnx.vmap(lambda member, v: member(v), in_axes=(0, None))(self.members, x)

    traced = check(Ensemble(), X, expect=["", "members"], jit=None)
    assert blocks(traced.jaxpr.jaxpr)[1].batched == 1

    stacked = linen.vmap(
        linen.Dense, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=2
    )
    model = stacked(2)
    variables = model.init(jax.random.key(0), X)
    check(functools.partial(model.apply, variables), X, expect=[""])

    members = eqx.filter_vmap(lambda key: eqx.nn.Linear(WIDTH, 2, key=key))(jax.random.split(jax.random.key(0), 2))
    call = eqx.filter_vmap(lambda member, v: member(v), in_axes=(eqx.if_array(0), None))
    check(lambda v: call(members, v), X[0], expect=[""])


def test_names_do_not_depend_on_the_hash_seed():
    code = """
import jax
from jaxport.blocks.tracing import trace
from tests.blocks.checks import blocks
from tests.frameworks.models import NnxModel, EqxModel, X, nnx
for fn in (NnxModel("none", nnx.Rngs(0)), lambda x: jax.vmap(lambda v: EqxModel("none", jax.random.key(0))(v, None, None)[0])(x)):
    traced = trace(fn, (X,))
    print([w.path for w in traced.weights], [e.primitive.name for e in traced.jaxpr.eqns])
    print([(b.target, b.path, b.arguments, b.weights, sorted(b.config)) for b in blocks(traced.jaxpr.jaxpr)])
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 1000
