"""Replacing inside of bodies: the edited program is the program that would have been written that way."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.mox import Replacement, factory

pytestmark = pytest.mark.sampled(2)

X = jnp.asarray([0.3, -1.2, 0.7])
ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)


def custom_jvp(f):
    """A function whose rule is that of another: a rule that is left behind is seen."""

    @jax.custom_jvp
    def wrapped(x):
        return f(x)

    wrapped.defjvp(lambda primals, tangents: (wrapped(*primals), 7 * tangents[0]))
    return wrapped


def custom_vjp(f):
    @jax.custom_vjp
    def wrapped(x):
        return f(x)

    wrapped.defvjp(lambda x: (f(x), None), lambda _, g: (7 * g,))
    return wrapped


PROGRAMS = {
    "plain": lambda f: lambda x: f(x) * 2,
    "jit": lambda f: lambda x: jax.jit(lambda x: f(x) + 1)(x) * 2,
    "jit in jit": lambda f: jax.jit(lambda x: jax.jit(lambda y: f(y) * x)(x + 1)),
    "one body, two calls": lambda f: lambda x, g=None: (h := jax.jit(lambda y: f(y) + 1))(x) * h(2 * x),
    "scan over rows": lambda f: lambda x: lax.scan(lambda c, row: (c + f(c * row), f(row)), x, ROWS)[0],
    "scan in scan": lambda f: (
        lambda x: lax.scan(
            lambda c, row: lax.scan(lambda d, r: (d * 0.5 + f(r + d), None), c, ROWS), x, None, length=2
        )[0]
    ),
    "scan in reverse": lambda f: lambda x: lax.scan(lambda c, row: (f(c) + row, c), x, ROWS, reverse=True)[1].sum(0),
    "cond": lambda f: lambda x: lax.cond(x.sum() > 0, lambda x: x, lambda x: f(x) * x, x),
    "all branches": lambda f: lambda x: lax.switch(jnp.int32(1), [f, lambda x: f(2 * x), lambda x: x], x),
    "while": lambda f: lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1]) + 1), (0, x))[1],
    "condition of a while": lambda f: lambda x: lax.while_loop(lambda c: f(c).sum() < 2, lambda c: c + 0.5, x),
    "fori": lambda f: lambda x: lax.fori_loop(0, 3, lambda _, c: f(c) * x, x),
    "remat": lambda f: lambda x: jax.checkpoint(lambda x: f(f(x)))(x),
    "vmap": lambda f: lambda x: jax.vmap(lambda row: f(row) * x)(ROWS).sum(0),
    "map": lambda f: lambda x: lax.map(lambda row: f(row) * x, ROWS).sum(0),
    "vmap of scan": lambda f: (
        lambda x: jax.vmap(lambda s: lax.scan(lambda c, row: (f(c * s) + row, None), x, ROWS)[0])(X).sum(0)
    ),
    "scan of remat of cond": lambda f: (
        lambda x: lax.scan(
            jax.checkpoint(lambda c, row: (lax.cond(row.sum() > 0, f, lambda y: y, c) + row, None)), x, ROWS
        )[0]
    ),
}
NO_REVERSE = ("while", "condition of a while")
#: Their own rule of differentiation goes with what they were.
WRAPPERS = {"custom_jvp": custom_jvp, "custom_vjp": custom_vjp}


def assert_same_function(found, wanted, reverse=True, rtol=0.0):
    np.testing.assert_allclose(jax.jit(found)(X), jax.jit(wanted)(X), rtol=rtol)
    if not reverse:
        tangents = [jax.jit(lambda x, f=f: jax.jvp(f, (x,), (jnp.ones_like(x),))[1])(X) for f in (found, wanted)]
        np.testing.assert_allclose(*tangents, rtol=1e-6)
    if reverse:
        gradients = [jax.jit(jax.grad(lambda x, f=f: f(x).sum()))(X) for f in (found, wanted)]
        np.testing.assert_allclose(*gradients, rtol=1e-6)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_operation_is_replaced_everywhere(name):
    program = PROGRAMS[name]
    mox = jaxport.make_mox(program(jnp.sin))(X)
    found = mox.select("//sin")
    assert found.count() > 0
    edited = found.sub(jnp.tanh)
    assert edited.select("//sin").count() == 0
    assert_same_function(edited, program(jnp.tanh), name not in NO_REVERSE)
    assert_same_function(mox, program(jnp.sin), name not in NO_REVERSE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_new_parameter_reaches_everywhere(name):
    program = PROGRAMS[name]
    scaled = Replacement(lambda original, params, x: params["scale"] * original(x), {"scale": jnp.float32(1.5)})
    edited = jaxport.make_mox(program(jnp.sin))(X).sub("//sin", scaled)
    assert edited.params
    assert_same_function(edited, program(lambda x: 1.5 * jnp.sin(x)), name not in NO_REVERSE)
    if name not in NO_REVERSE and edited.params.keys() == {"sin.scale"}:
        found = jax.jit(jax.grad(lambda p: edited.apply(p, X).sum()))(edited.params)["sin.scale"]
        wanted = jax.jit(jax.grad(lambda s: program(lambda x: s * jnp.sin(x))(X).sum()))(1.5)
        np.testing.assert_allclose(found.sum(), wanted, rtol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_new_input_reaches_everywhere(name):
    program = PROGRAMS[name]
    scaled = Replacement(
        lambda original, params, x, scale: scale * original(x), inputs={"scale": jax.ShapeDtypeStruct((), jnp.float32)}
    )
    edited = jaxport.make_mox(program(jnp.sin))(X).sub("//sin", scaled)
    assert edited.inputs == ("scale",)
    assert_same_function(
        lambda x: edited(x, scale=jnp.float32(1.5)), program(lambda x: 1.5 * jnp.sin(x)), name not in NO_REVERSE
    )


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", ["plain", "jit", "scan over rows", "vmap", "cond", "remat"])
def test_the_rule_of_what_was_replaced_is_gone(wrapper, name):
    program = PROGRAMS[name]
    mox = jaxport.make_mox(program(WRAPPERS[wrapper](jnp.sin)))(X)
    assert_same_function(mox, program(WRAPPERS[wrapper](jnp.sin)))
    assert_same_function(mox.sub("//sin", jnp.tanh), program(jnp.tanh))
    assert_same_function(mox.sub("//custom_jvp_call | //custom_vjp_call", jnp.tanh), program(jnp.tanh))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_new_rule_stays(wrapper):
    mox = jaxport.make_mox(jnp.sin)(X)
    assert_same_function(mox.sub("//sin", WRAPPERS[wrapper](jnp.cos)), WRAPPERS[wrapper](jnp.cos))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_original_can_be_called(name):
    program = PROGRAMS[name]
    mox = jaxport.make_mox(program(jnp.sin))(X)
    twice = mox.sub("//sin", factory(lambda match: lambda x: match(x) + match(2 * x)))
    assert_same_function(twice, program(lambda x: jnp.sin(x) + jnp.sin(2 * x)), name not in NO_REVERSE)
    gradient = mox.sub("//sin", factory(lambda match: lambda x: jax.jvp(match, (x,), (x,))[1]))
    assert_same_function(gradient, program(lambda x: x * jnp.cos(x)), name not in NO_REVERSE)
    reverse = mox.sub("//sin", factory(lambda match: lambda x: jax.vjp(match, x)[1](x)[0]))
    assert_same_function(reverse, program(lambda x: x * jnp.cos(x)), name not in NO_REVERSE)
    looped = mox.sub("//sin", factory(lambda match: lambda x: lax.fori_loop(0, 2, lambda _, c: match(c), x)))
    assert_same_function(looped, program(lambda x: jnp.sin(jnp.sin(x))), name not in NO_REVERSE, rtol=1e-6)


def test_before_after_remove_and_wrap():
    found = jaxport.make_mox(lambda x: jnp.sin(x) * 3)(X).select("//sin")
    for edited, wanted in (
        (found.before(lambda x: x + 1), lambda x: jnp.sin(x + 1) * 3),
        (found.after(lambda y: y + 1), lambda x: (jnp.sin(x) + 1) * 3),
        (found.remove(), lambda x: x * 3),
        (found.wrap(lambda sin, x: sin(sin(x))), lambda x: jnp.sin(jnp.sin(x)) * 3),
    ):
        assert_same_function(edited, wanted)


TAPS = {
    "plain": lambda x: jnp.sin(x),
    "jit": lambda x: jnp.sin(x),
    "jit in jit": lambda x: jnp.sin(x + 1),
    "one body, two calls": lambda x: (jnp.sin(x), jnp.sin(2 * x)),
    "scan in reverse": lambda x: None,
    "while": lambda x: jnp.sin(jnp.sin(jnp.sin(x) + 1) + 1),
    "cond": lambda x: jnp.sin(x),
    "all branches": lambda x: (jnp.zeros(3), jnp.sin(2 * x)),
    "remat": lambda x: (jnp.sin(x), jnp.sin(jnp.sin(x))),
    "vmap": lambda x: jnp.sin(ROWS),
    "map": lambda x: jnp.sin(ROWS),
}


@pytest.mark.parametrize("name", TAPS)
def test_values_are_captured_everywhere(name):
    mox = jaxport.make_mox(PROGRAMS[name](jnp.sin))(X)
    captured = jax.jit(mox.capture("//sin"))(X)
    assert list(captured) == ["sin"]
    result, again = jax.jit(mox.select("//sin").tap())(X)
    np.testing.assert_array_equal(result, jax.jit(mox)(X))
    assert jax.tree.structure(again) == jax.tree.structure(captured)
    wanted = TAPS[name](X)
    if name == "scan in reverse":
        carries = jax.jit(lambda x: lax.scan(lambda c, row: (jnp.sin(c) + row, jnp.sin(c)), x, ROWS, reverse=True)[1])
        wanted = carries(X)
    assert jax.tree.structure(captured["sin"]) == jax.tree.structure(wanted)
    for found, value in zip(jax.tree.leaves(captured["sin"]), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-6)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_tap_keeps_the_rule_of_differentiation(wrapper):
    program = WRAPPERS[wrapper](jnp.sin)
    tapped = jaxport.make_mox(program)(X).select("//sin").tap()
    np.testing.assert_array_equal(tapped(X)[1]["sin"], jnp.sin(X))
    assert_same_function(lambda x: tapped(x)[0], program)


@pytest.mark.parametrize("wrapper", [custom_jvp, custom_vjp])
def test_a_wrapper_and_its_body_are_replaced_at_once(wrapper):
    """Both run: the body inside of the wrapper, without the old rule, in a loop and under remat too."""
    program = lambda f: jax.checkpoint(lambda x: lax.scan(lambda c, row: (f(c) + row, f(row)), x, ROWS))
    scaled = Replacement(lambda original, params, *args: params["scale"] * original(*args), {"scale": jnp.float32(0.5)})
    edited = jaxport.make_mox(program(wrapper(jnp.sin)))(X).sub("//sin | //custom_jvp_call | //custom_vjp_call", scaled)
    wanted = program(lambda x: jnp.sin(x) / 4)
    total = lambda f: lambda x: sum(leaf.sum() for leaf in jax.tree.leaves(f(x)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), edited(X), wanted(X))
    np.testing.assert_allclose(jax.grad(total(edited))(X), jax.grad(total(wanted))(X), rtol=1e-4)
    identity = jaxport.make_mox(program(wrapper(jnp.sin)))(X).sub("//*", factory(lambda match: lambda *a: match(*a)))
    jax.tree.map(np.testing.assert_array_equal, identity(X), program(jnp.sin)(X))
