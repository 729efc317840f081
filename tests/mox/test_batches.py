"""Under `vmap` modules, functions and operations are replaced alike: a replacement is given one example."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.mox import factory

pytestmark = pytest.mark.sampled(4)

X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4, 4)), jnp.float32)  # square: axes cannot be told by sizes
ROW = jnp.asarray([0.3, -1.2, 0.7, 2.0])
LINEAR = eqx.nn.Linear(4, 4, key=jax.random.key(0))


def new(v):
    """What depends on which elements belong to an example."""
    return jnp.cumsum(v) - v.mean()


@jax.custom_jvp
def with_rule(v):
    return jnp.sinh(v) - v.sum()


with_rule.defjvp(lambda values, moved: (with_rule(*values), 7 * moved[0]))

# What is replaced: a function of one example, and the query that finds it.
REPLACED = {
    "a module": (LINEAR, "//Linear"),
    "a function": (jax.nn.relu, '//pjit[@name="relu"]'),
    "an operation": (jnp.tanh, "//tanh"),
    "an operation on what is shared": (lambda v: lax.atan2(v, ROW), "//atan2"),
    "a function of something shared": (lambda v: jax.jit(lambda v: lax.atan2(v, ROW))(v), "//atan2"),
    "a derivative's own rule": (with_rule, "//custom_jvp_call"),
}

# Programs of a function of one example. The last axes of what they take are examples and values, in any order.
PROGRAMS = {
    "rows": lambda f: lambda x: jax.vmap(f)(x[0]),
    "columns": lambda f: lambda x: jax.vmap(lambda v: f(v) + v, in_axes=1)(x[0]),
    "columns to columns": lambda f: lambda x: jax.vmap(f, in_axes=1, out_axes=1)(x[0]),
    "last axes": lambda f: lambda x: jax.vmap(f, in_axes=-1, out_axes=-1)(x[0]),
    "two vmaps": lambda f: lambda x: jax.vmap(jax.vmap(f))(x),
    "two vmaps over other axes": lambda f: jax.vmap(jax.vmap(f, in_axes=1, out_axes=0), in_axes=1, out_axes=2),
    "two vmaps of which one has it": lambda f: lambda x: jax.vmap(lambda s: jax.vmap(lambda v: f(v) * s)(x[0]))(ROW),
    "a value that all share": lambda f: lambda x: jax.vmap(lambda v: f(ROW) * v)(x[0]),
    "jit": lambda f: lambda x: jax.vmap(jax.jit(lambda v: f(2 * v) + v))(x[0]),
    "jit around": lambda f: jax.jit(lambda x: jax.vmap(f, in_axes=1)(x[0])),
    "scan": lambda f: lambda x: jax.vmap(lambda v: lax.scan(lambda c, t: (f(c * t), t), v, ROW)[0])(x[0]),
    "scan over values": lambda f: lambda x: jax.vmap(lambda v: lax.scan(lambda c, r: (f(c + r), r), v[0], v)[0])(x),
    "in a scan": lambda f: lambda x: lax.scan(lambda c, r: (jax.vmap(f, 1)(c) + r, None), x[0], x)[0],
    "vmap in a scan in a vmap": lambda f: jax.vmap(
        lambda m: lax.scan(lambda c, r: (jax.vmap(lambda v: f(v + r))(c), None), m, m)[0]
    ),
    "cond": lambda f: lambda x: jax.vmap(lambda v: lax.cond(v[0] > 0, lambda v: f(v), lambda v: 2 * v, v))(x[0]),
    "while": lambda f: (
        lambda x: jax.vmap(
            lambda v: lax.while_loop(lambda c: c[0] < v[0] + 3, lambda c: (c[0] + 1, f(c[1])), (0.0, v))[1]
        )(x[0])
    ),
    "remat": lambda f: lambda x: jax.vmap(jax.checkpoint(lambda v: f(v) * v), in_axes=1)(x[0]),
    "a named axis": lambda f: lambda x: jax.vmap(lambda v: f(v) - lax.pmean(v, "rows"), axis_name="rows")(x[0]),
    "an axis of a mesh": lambda f: lambda x: jax.vmap(f, in_axes=1, spmd_axis_name="rows")(x[0]),
    "a Mox": lambda f: lambda x: jax.vmap(jaxport.make_mox(lambda v: f(v) + v)(ROW), in_axes=1)(x[0]),
    "a Mox of a vmap": lambda f: lambda x: jax.vmap(jaxport.make_mox(jax.vmap(f, in_axes=1))(x[0]), in_axes=1)(x),
}


def assert_same(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("replaced", REPLACED)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_replacement_is_given_one_example(program, replaced):
    function, query = REPLACED[replaced]
    make = PROGRAMS[program]
    takes = 2 if query == "//atan2" else 1
    mox = jaxport.make_mox(make(function))(X)
    assert_same(mox(X), make(function)(X))
    shapes = []

    def replacement(*args):
        shapes.append([arg.shape for arg in args])
        return new(args[0])

    edited = mox.sub(query, replacement)
    assert shapes[0] == [(4,)] * takes
    wanted = make(new)(X)
    assert_same(edited(X), wanted)
    assert_same(jax.jit(edited)(X), wanted)
    around = mox.sub(query, factory(lambda match: lambda v, *rest: jnp.cumsum(match(jnp.flip(v), *rest))))
    assert_same(around(X), make(lambda v: jnp.cumsum(function(jnp.flip(v))))(X))


def test_a_file_keeps_what_a_batch_is(tmp_path):
    make = PROGRAMS["columns"]
    mox = jaxport.make_mox(make(lambda v: lax.atan2(jnp.tanh(v), ROW)))(X)
    mox.save(tmp_path / "mox.json")
    again = jaxport.mox.load(tmp_path / "mox.json")
    edited = again.sub("//tanh", new).sub("//atan2", lambda v, row: new(v))
    assert_same(edited(X), make(lambda v: new(new(v)))(X))
    grad = jaxport.make_mox(jax.grad(lambda x: jnp.tanh(x).sum()))(X)
    grad.save(tmp_path / "grad.json")
    with pytest.raises(jaxport.Unsupported, match="was differentiated before it was traced"):
        jaxport.mox.load(tmp_path / "grad.json").sub("//tanh", jnp.sin)


# What `vmap` computes in another way: the function that is mapped, and a query for what is refused.
REFUSED = {
    "an axis that it moves": (jax.vmap(jnp.tanh, in_axes=0, out_axes=1), "//transpose"),
    "an operand that it repeats": (jax.vmap(lambda v: lax.atan2(v, ROW)), "//broadcast_in_dim"),
    "a branch that it selects": (jax.vmap(lambda v: lax.cond(v[0] > 0, jnp.sin, jnp.cos, v)), "//select_n"),
    "a derivative": (jax.vmap(jax.grad(lambda v: jnp.tanh(v).sum())), "//tanh"),
    "a program that was traced before": (
        jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(jax.vmap(jax.jit(jnp.tanh)))(X[0])),
        "//tanh",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_operation_of_one_example_is_refused(name):
    program, query = REFUSED[name]
    mox = jaxport.make_mox(program)(X[0])
    message = (
        "was differentiated" if name == "a derivative" else "differently for the batch of a `vmap` than for one example"
    )
    with pytest.raises(jaxport.Unsupported, match=message):
        mox.sub(query, lambda *args: args[0])


def test_an_unrolled_scan_and_edits_of_edits_keep_what_a_batch_is():
    make = PROGRAMS["scan over values"]
    mox = jaxport.make_mox(make(lambda v: lax.atan2(jnp.tanh(v), ROW)))(X).unroll()
    edited = (
        mox.sub("//tanh", new)
        .sub("//atan2", lambda v, row: new(v))
        .select("//cumsum")
        .wrap(lambda cumsum, v: cumsum(v) - v.sum())
    )

    def twice(v):
        once = new(v) - v.sum()
        return new(once) - once.sum()

    wanted = make(twice)(X)
    assert_same(edited(X), wanted)


def test_captures_and_patches_are_of_the_whole_batch_for_all_kinds():
    mox = jaxport.make_mox(jax.vmap(lambda v: jnp.tanh(jax.nn.relu(LINEAR(v)))))(X[0])
    queries = ["//Linear", '//pjit[@name="relu"]', "//tanh"]
    captured = [next(iter(mox.capture(query)(X[0]).values())) for query in queries]
    layer = jax.vmap(LINEAR)(X[0])
    for one, wanted in zip(captured, (layer, jax.nn.relu(layer), jnp.tanh(jax.nn.relu(layer))), strict=True):
        assert_same(one, wanted)
    for query, value in zip(queries, captured, strict=True):
        assert_same(mox.patch({query: value})(X[0]), mox(X[0]))
        assert_same(mox.patch({query: lambda y: y - y.mean(0)})(X[0]), mox.patch({query: value - value.mean(0)})(X[0]))


class Feed(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self):
        self.up, self.down = (eqx.nn.Linear(4, 4, key=jax.random.key(seed)) for seed in (0, 1))

    def __call__(self, v, act=jnp.tanh):
        return v + self.down(act(self.up(v)))


def test_layers_and_operations_of_a_model_that_is_mapped():
    """The idiom of Equinox: a model of one example, mapped over a batch by the caller."""
    model = Feed()
    edited = jaxport.make_mox(jax.vmap(model))(X[0]).sub("//tanh", lambda v: v / jnp.linalg.norm(v))
    assert_same(edited(X[0]), jax.vmap(lambda v: model(v, lambda u: u / jnp.linalg.norm(u)))(X[0]))
    adapted = edited.sub("//Linear", jaxport.mox.lora(2))
    assert_same(adapted(X[0]), edited(X[0]))
