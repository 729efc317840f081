"""Scans written out: values, gradients, paths, edits of single layers, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.mox import lora, quantize, write_back
from tests.blocks.checks import assert_same
from tests.mox.test_modules import STACKS, NnxStack, X

UNITS = 32
"""Units in the last place: a loop's body and its copies are compiled as different programs, and sums cancel."""

ROWS = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), jnp.float32)

PROGRAMS = {
    "carry": lambda x: lax.scan(lambda c, row: (jnp.sin(c) + row, None), x, ROWS)[0],
    "results": lambda x: lax.scan(lambda c, row: (jnp.sin(c) + row, (c, c * row)), x, ROWS),
    "reverse": lambda x: lax.scan(lambda c, row: (jnp.sin(c) + row, c), x, ROWS, reverse=True),
    "no carry": lambda x: lax.map(lambda row: jnp.sin(row) * x, ROWS),
    "one step": lambda x: lax.scan(lambda c, row: (jnp.sin(c) + row, c), x, ROWS[:1]),
    "no steps": lambda x: lax.scan(lambda c, row: (jnp.sin(c) + row, c), x, ROWS[:0]),
    "constants": lambda x: lax.scan(lambda c, _: (jnp.sin(c) * x, c), x, None, length=2)[0],
    "handed on": lambda x: lax.scan(lambda c, row: (row, (c, row)), x[0], ROWS),
    "scan in scan": lambda x: lax.scan(
        lambda c, row: (lax.scan(lambda d, r: (jnp.sin(d) + r, None), c, ROWS)[0], row), x, ROWS[:2]
    ),
    "in jit": lambda x: jax.jit(lambda x: lax.scan(lambda c, row: (jnp.sin(c) + row, c), x, ROWS))(x),
    "in cond": lambda x: lax.cond(
        x.sum() > 0, lambda x: lax.scan(lambda c, row: (jnp.sin(c) + row, None), x, ROWS)[0], lambda x: x, x
    ),
    "of remat": lambda x: lax.scan(jax.checkpoint(lambda c, row: (jnp.sin(c) + row, None)), x, ROWS)[0],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients_are_the_same(name):
    mox = jaxport.make_mox(PROGRAMS[name])(X)
    unrolled = mox.unroll()
    assert unrolled.select("//scan", strict=False).count() == 0
    assert_same(unrolled(X), mox(X), UNITS)
    loss = lambda program: lambda x: sum(leaf.sum() for leaf in jax.tree.leaves(program(x)))
    np.testing.assert_allclose(jax.grad(loss(unrolled))(X), jax.grad(loss(mox))(X), rtol=1e-6)


def test_one_of_two_scans():
    program = lambda x: lax.scan(lambda c, row: (jnp.cos(c), None), PROGRAMS["carry"](x), None, length=2)[0]
    mox = jaxport.make_mox(program)(X)
    first = mox.unroll("(//scan)[1]")
    assert first.select("//sin").count() == 3
    assert first.select("//scan").count() == 1
    assert_same(first(X), mox(X), UNITS)


@pytest.mark.parametrize("name", STACKS)
def test_layers_become_elements_that_share_the_stacked_parameters(name):
    make, query = STACKS[name]
    mox = jaxport.make_mox(make())(X)
    unrolled = mox.unroll(query)
    layers = unrolled.select(query, expect=3)
    assert [path.split(".")[-1 if name == "nnx" else 1 if name == "linen" else 0] for path in layers.paths()] == list(
        "012"
    )
    assert unrolled.params.keys() == mox.params.keys()
    assert_same(unrolled(X), mox(X), UNITS)
    gradients = [jax.grad(lambda p, m=m: jnp.square(m.apply(p, X)).sum())(mox.params) for m in (mox, unrolled)]
    for path in mox.params:
        np.testing.assert_allclose(gradients[0][path], gradients[1][path], rtol=1e-5, atol=1e-6)
    # Each is a Mox itself, with its slice of the parameters.
    want = mox.select(query)[0].step(1)
    np.testing.assert_allclose(layers[1](X), want(X), rtol=1e-6)


@pytest.mark.parametrize("name", STACKS)
def test_a_single_layer_is_edited_or_dropped(name):
    make, query = STACKS[name]
    mox = jaxport.make_mox(make())(X)
    unrolled = mox.unroll(query)
    steps = [mox.select(query)[0].step(index) for index in range(3)]
    wanted = X
    for index in (0, 2):
        wanted = jnp.tanh(steps[index](wanted))
    dropped = unrolled.sub(f"({query})[2] | (//tanh)[2]", jaxport.mox.factory(lambda match: lambda x: x))
    np.testing.assert_allclose(dropped(X), wanted, rtol=1e-5)
    adapted = unrolled.sub(f"({query})[2]", lora(rank=2))
    new = set(adapted.params) - set(mox.params)
    assert {path.rpartition(".")[2] for path in new} == {"lora_a", "lora_b"}
    assert all(adapted.params[path].ndim == 2 for path in new)
    assert_same(adapted(X), mox(X), UNITS)
    small = unrolled.sub(f"({query})[1]", quantize())
    np.testing.assert_allclose(small(X), mox(X), atol=0.05)
    assert sum(value.dtype == jnp.int8 for value in small.state.values()) == 1


def test_trained_parameters_go_back_into_the_stacked_model():
    model = NnxStack(nnx.Rngs(0))
    unrolled = jaxport.make_mox(model)(X).unroll("//Linear")
    trained = unrolled.with_params({path: 2 * value for path, value in unrolled.params.items()})
    assert_same(write_back(model, trained)(X), trained(X), UNITS)


def test_a_stack_that_is_called_twice_has_the_same_layers_twice():
    class Twice(nnx.Module):
        def __init__(self, rngs):
            self.stack = NnxStack(rngs)

        def __call__(self, x):
            return self.stack(self.stack(x))

    mox = jaxport.make_mox(Twice(nnx.Rngs(0)))(X)
    unrolled = mox.unroll("//Linear")
    assert unrolled.select("//Linear").paths() == [f"stack.layers.{index}" for index in range(3)] * 2
    adapted = unrolled.sub("stack.layers.1", lora(rank=2), expect=2)
    assert set(adapted.params) - set(mox.params) == {"stack.layers.1.lora_a", "stack.layers.1.lora_b"}
    assert_same(adapted(X), mox(X), UNITS)


def test_it_is_exported():
    mox = jaxport.make_mox(NnxStack(nnx.Rngs(0)))(X).unroll()
    assert jaxport.to_onnx(mox, [X]).verify().ok


def test_a_block_outside_of_scans_is_refused():
    mox = jaxport.make_mox(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))(X)
    with pytest.raises(jaxport.InvalidArgument, match="is not a layer of a scanned stack"):
        mox.unroll("//Linear")


def test_a_symbolic_number_of_steps_is_refused():
    (n,) = jax.export.symbolic_shape("n")
    mox = jaxport.make_mox(lambda x: lax.scan(lambda c, row: (c + row, None), x[0], x)[0])(
        jax.ShapeDtypeStruct((n, 4), jnp.float32)
    )
    with pytest.raises(jaxport.Unsupported, match="symbolic number of steps"):
        mox.unroll()


def test_references_are_refused():
    def program(x):
        reference = jax.new_ref(x)

        def step(c, _):
            reference[...] = reference[...] * 2
            return c, None

        return lax.scan(step, x, None, length=2)[0] + reference[...]

    mox = jaxport.make_mox(program)(X)
    with pytest.raises(jaxport.Unsupported, match="mutable reference"):
        mox.unroll()
