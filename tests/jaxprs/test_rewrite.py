"""Programs are rewritten, copied and looked into as a whole: they compute what they did, and share what they shared."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import cos_p, sin_p

from jaxport import jaxprs
from jaxport.blocks.constants import hoisted
from jaxport.jaxprs.rewrite import EquationRewriting, alone, inlined, replaced, with_operands, with_values
from jaxport.jaxprs.taps import tapped
from jaxport.jaxprs.walk import bodies, bodies_within, equations_within, interpret, replace_bodies

X = np.linspace(-1, 1, 4).astype(np.float32)
W = jnp.arange(16.0).reshape(4, 4)


def scan(x):
    return lax.scan(lambda c, row: (c + jnp.sin(row) + W[0, 1], c), x[0], x)


def loop(x):
    return lax.while_loop(lambda c: c[0] < W[0, 3], lambda c: (c[0] + 1, jnp.sin(c[1]) @ W), (0.0, x))


def branches(x):
    return lax.cond(x.sum() > 0, lambda y: jnp.sin(y) @ W, lambda y: W @ jnp.sin(y) + W[0], x)


@jax.custom_jvp
def wrapped(x):
    return jnp.sin(x) * 2


wrapped.defjvp(lambda primals, tangents: (wrapped(*primals), 3 * tangents[0]))

PROGRAMS = {
    "plain": lambda x: jnp.sin(x) @ W,
    "jit": lambda x: jax.jit(lambda y: jnp.sin(y) @ W)(x),
    "checkpoint": lambda x: jax.checkpoint(lambda y: jnp.sin(y) @ W)(x),
    "scan": scan,
    "while": loop,
    "cond": branches,
    "nested": lambda x: lax.map(lambda s: jax.jit(branches)(x * s), x),
    "linear solve": lambda x: lax.custom_linear_solve(lambda y: jnp.sin(W[0, 1]) * y, x, lambda f, b: b / jnp.sin(1.0)),
    "wrapper": wrapped,
}


def names(program):
    return [equation.primitive.name for equation in equations_within(program.jaxpr)]


def run(program, *operands):
    return [np.asarray(value) for value in jaxprs.jaxpr_as_fun(program)(*operands)]


def same(ours, theirs):
    return all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_equation_is_rewritten_in_every_body(name):
    program = jax.make_jaxpr(PROGRAMS[name])(X)
    swap = lambda equation: equation.replace(primitive=cos_p) if equation.primitive is sin_p else equation
    made = EquationRewriting(swap).closed(program)
    assert "sin" in names(program)
    assert "sin" not in names(made)
    assert [{"cos": "sin"}.get(one, one) for one in names(made)] == names(program)
    jaxprs.check_jaxpr(made.jaxpr)
    assert EquationRewriting(lambda equation: equation).closed(program) is program


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "wrapper"])
def test_hoisted_constants_are_inputs_once(name):
    program = jax.make_jaxpr(PROGRAMS[name])(X)
    jaxpr, arrays = hoisted(program)
    jaxprs.check_jaxpr(jaxpr)
    assert len(set(map(id, arrays))) == len(arrays)
    assert same(run(jaxprs.closed(jaxpr, ()), *arrays, X), run(program, X))
    held = [value for body in bodies_within(jaxpr) for value in body.constvars]
    assert not held or name == "linear solve"


def test_branches_share_the_operand_for_an_array_of_both():
    jaxpr, arrays = hoisted(jax.make_jaxpr(branches)(X))
    (cond,) = [equation for equation in equations_within(jaxpr) if equation.primitive.name == "cond"]
    assert [array is W for array in arrays] == [True]
    assert len(cond.invars) == 3  # the index, the argument, the array


@pytest.mark.parametrize("name", PROGRAMS)
def test_bodies_are_replaced_in_the_order_in_which_they_are_listed(name):
    for equation in jax.make_jaxpr(PROGRAMS[name])(X).eqns:
        inner = bodies(equation.params)
        new = [body.replace(eqns=list(body.eqns)) for body in inner]
        assert all(a is b for a, b in zip(bodies(replace_bodies(equation.params, iter(new))), new, strict=True))
        kept = replace_bodies(equation.params, iter(inner))
        assert all(kept[key] is value for key, value in equation.params.items())


def test_a_shared_body_stays_shared():
    inner = jax.jit(jnp.sin)
    program = jax.make_jaxpr(lambda x: inner(inner(x)))(X)
    made = EquationRewriting(lambda e: e.replace(primitive=cos_p) if e.primitive is sin_p else e).closed(program)
    one, other = (bodies(equation.params)[0] for equation in made.eqns)
    assert one is other
    assert same(run(made, X), [np.asarray(jnp.cos(jnp.cos(X)))])


def test_a_copied_body_has_variables_of_its_own():
    body = jax.make_jaxpr(lambda x: jnp.sin(x) * 2)(X).jaxpr
    equations: list = []
    results = inlined(body, inlined(body, body.invars, equations), equations)
    made = body.replace(eqns=equations, outvars=results)
    jaxprs.check_jaxpr(made)
    assert same(run(jaxprs.closed(made, ()), X), [np.asarray(jnp.sin(jnp.sin(X) * 2) * 2)])


def test_an_effect_follows_its_reference():
    def fn(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] * 2
        return ref[...]

    jaxpr = jax.make_jaxpr(fn)(X).jaxpr
    read = [equation for equation in jaxpr.eqns if any(map(jaxprs.concerns_reference, equation.effects))][-1]
    new = [jaxprs.Var(atom.aval) for atom in read.invars]
    moved = with_operands(read, new)
    named = [reference for effect in moved.effects if (reference := jaxprs.reference_of(effect)) is not None]
    assert all(reference in new for reference in named)
    assert with_operands(read, read.invars) is read


def test_known_values_take_the_place_of_variables():
    jaxpr = jax.make_jaxpr(lambda x: (jnp.sin(x) + 1) * x)(1.0).jaxpr
    sine = jaxpr.eqns[0].outvars[0]
    made = with_values(jaxpr, {sine: jaxprs.Literal(np.float32(5), sine.aval)})
    assert [equation.primitive.name for equation in made.eqns] == ["add", "mul"]
    assert run(jaxprs.closed(made, ()), 2.0) == [12.0]
    assert with_values(jaxpr, {}) is jaxpr
    assert replaced([jaxprs.Literal(1.0, sine.aval), sine], {sine: jaxpr.invars[0]})[1] is jaxpr.invars[0]


def test_one_equation_is_a_program_of_its_operands():
    equation = jax.make_jaxpr(lambda x: x + 1)(1.0).eqns[0]
    assert run(alone(equation), 2.0, 5.0) == [7.0]  # a literal is an operand, too


def test_a_body_is_interpreted_with_constants_and_literals():
    program = jax.make_jaxpr(lambda x: (x @ W, 3.0))(X)
    counts = interpret(program.jaxpr, [10, 1], lambda _, operands: [sum(operands)], lambda literal: literal.val)
    assert counts == [11, 3.0]


# -- taps ------------------------------------------------------------------------------------------------------------


def sines(equation, around, location):
    return equation.outvars if equation.primitive is sin_p else ()


def operands_of_sines(equation, around, location):
    return equation.invars if equation.primitive is sin_p else ()


TAPPED = {
    "plain": [np.sin(X)],
    "jit": [np.sin(X)],
    "checkpoint": [np.sin(X)],
    "scan": [np.sin(X)],
    "while": [np.asarray(jnp.sin(jnp.sin(jnp.sin(X) @ W) @ W))],
    "cond": [np.zeros(4, np.float32), np.sin(X)],  # the sum is not positive: the first branch is not taken
    "wrapper": [np.sin(X)],
}


@pytest.mark.parametrize("name", TAPPED)
def test_a_value_inside_becomes_an_output(name):
    program = jax.make_jaxpr(PROGRAMS[name])(X)
    made, taps = tapped(program, sines)
    jaxprs.check_jaxpr(made.jaxpr)
    results = run(made, X)
    assert same(results[: -len(taps)], run(program, X))
    order = sorted(range(len(taps)), key=lambda index: -np.abs(results[-len(taps) :][index]).sum())
    expected = sorted(TAPPED[name], key=lambda value: -np.abs(value).sum())
    for index, value in zip(order, expected, strict=True):
        np.testing.assert_allclose(results[-len(taps) :][index], value, rtol=1e-6, atol=1e-6)


def test_operands_are_tapped_too():
    made, (tap,) = tapped(jax.make_jaxpr(PROGRAMS["jit"])(X), operands_of_sines)
    assert same(run(made, X)[1:], [X])
    assert len(tap.around) == 1
    assert len(tap.location) == 3


def test_a_wrapper_keeps_its_derivative():
    made, _ = tapped(jax.make_jaxpr(wrapped)(X), sines)
    slope = jax.grad(lambda x: jaxprs.jaxpr_as_fun(made)(x)[0].sum())(X)
    assert same([np.asarray(slope)], [np.full(4, 3, np.float32)])


def test_bodies_that_are_not_entered_stay():
    program = jax.make_jaxpr(PROGRAMS["jit"])(X)
    made, taps = tapped(program, sines, lambda equation: equation.primitive.name != "jit")
    assert made is program
    assert taps == []
