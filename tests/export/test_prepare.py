"""From what was traced to what the walker takes: PRNG keys become words, mutable arrays become values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random
from jax.experimental import pallas

import jaxport
from jaxport.blocks.liveness import without_dead_code
from jaxport.blocks.tracing import trace
from jaxport.export.prepare.exact_dims import with_exact_dims
from jaxport.export.prepare.keys import without_keys
from jaxport.export.prepare.references import without_references
from jaxport.jaxprs import ClosedJaxpr, Literal, parameters, release
from jaxport.testing import boolean, check, f32
from tests.exports import operators

KEYS = jax.ShapeDtypeStruct((3,), random.key(0).dtype)


def dtypes(jaxpr):
    """The dtypes of all variables, those of inner jaxprs included."""
    found = {v.aval.dtype.name for v in (*jaxpr.invars, *jaxpr.outvars)}
    for equation in jaxpr.eqns:
        found |= {v.aval.dtype.name for v in (*equation.invars, *equation.outvars)}
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple) else (value,):
                if hasattr(inner, "jaxpr") or hasattr(inner, "eqns"):
                    found |= dtypes(getattr(inner, "jaxpr", inner))
    return found


def everything(keys):
    def step(carry, key):
        carry = lax.cond(random.bits(key) > 9, lambda k: k, random.clone, carry)
        return jax.jit(random.split)(carry)[0], key

    last, _ = lax.scan(step, keys[0], keys)
    return lax.while_loop(lambda k: random.bits(k) > 9, lambda k: random.fold_in(k, 1), last)


def test_no_key_is_left_anywhere():
    closed = jax.make_jaxpr(everything)(KEYS)
    assert "key<fry>" in dtypes(closed.jaxpr)
    assert "key<fry>" not in dtypes(without_keys(closed).jaxpr)
    assert [a.shape for a in without_keys(closed).out_avals] == [(2,)]


@pytest.mark.parametrize("step", [without_keys, without_references])
def test_a_program_without_them_is_left_alone(step):
    closed = jax.make_jaxpr(lambda x: lax.scan(lambda c, r: (c + r, jax.jit(jnp.sin)(c)), x[0], x))(jnp.ones((3, 2)))
    assert step(closed) is closed


def test_a_shared_jaxpr_stays_shared():
    once = jax.jit(random.split)
    closed = without_keys(jax.make_jaxpr(lambda k: once(once(k)[0]))(random.key(0)))
    calls = [equation.params["jaxpr"].jaxpr for equation in closed.eqns if equation.primitive.name == "jit"]
    assert calls[0] is calls[-1]


def test_a_primitive_that_looks_into_keys_is_refused():
    key = jax.extend.core.Primitive("peek")
    key.def_abstract_eval(lambda keys: jax.core.ShapedArray(keys.shape, jnp.dtype("int32")))
    with pytest.raises(jaxport.ExportError) as error:
        without_keys(jax.make_jaxpr(key.bind)(random.key(0)))
    assert str(error.value) == (
        "`peek` is not supported on PRNG keys\n  instead: apply it to `jax.random.key_data` of the keys"
    )


# Mutable arrays -------------------------------------------------------------------------------------------------------


def in_place(x):
    array = jax.new_ref(x)
    array[...] = array[...] * 2
    array[0] = x[0]
    return array[...]


def in_loop(x):
    array = jax.new_ref(x)
    lax.fori_loop(0, 3, lambda i, _: array.__setitem__(i, array[i] * 2), None)
    return jax.freeze(array)


def in_while(x):
    array = jax.new_ref(x)
    lax.while_loop(lambda i: i < 3, lambda i: (array.__setitem__(i, array[i] * 2), i + 1)[1], 0)
    return array[...]


def in_branch(chosen, x):
    array = jax.new_ref(x)
    lax.cond(chosen, lambda: array.__setitem__(0, 3.0), lambda: array.__setitem__(slice(None), x * 2))
    return array[...]


@jaxport.onnx_function
def scaled(array, x):
    array[...] = array[...] * 2 + x
    return array[0]


def in_block(x):
    array = jax.new_ref(x)
    return scaled(array, x) + array[...]


def in_state_of_its_own(pair):
    def body(refs):
        x, y = refs
        lax.fori_loop(0, 3, lambda i, _: y.__setitem__(..., y[...] + x[i] * scaled(y, y[...])), None)
        lax.cond(y[0] > 0, lambda: x.__setitem__(0, x[1]), lambda: None)

    return pallas.run_state(body)(pair)


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        pytest.param(in_place, [f32("B")], id="plain"),
        pytest.param(in_loop, [f32(4)], id="loop"),
        pytest.param(in_while, [f32(4)], id="while"),
        pytest.param(in_branch, [boolean(), f32(4)], id="branch"),
        pytest.param(jax.jit(in_loop), [f32(4)], id="jit"),
        *([pytest.param(jax.vmap(in_loop), [f32("B", 4)], id="vmap")] if release >= (0, 10) else []),  # JAX 0.9 fails
        pytest.param(jax.grad(lambda x: (in_loop(x) ** 2).sum()), [f32(4)], id="grad"),
        pytest.param(in_block, [f32(4)], id="block"),
        pytest.param(in_state_of_its_own, [(f32(3, 4), f32(4))], id="run-state"),
        pytest.param(
            lambda x: pallas.run_state(lambda r: r.__setitem__(0, r[1] * 2j))(x * 1j), [f32(3)], id="run-state-complex"
        ),
        pytest.param(
            lambda x, xs: lax.scan(lambda c, y: in_state_of_its_own((c, y)), x, xs),
            [f32(3, 4), f32("B", 4)],
            id="run-state-scan",
        ),
    ],
)
def test_mutable_arrays(fn, specs):
    check(fn, *specs)


def test_a_mutable_key():
    def draw(key):
        stream = jax.new_ref(key)
        stream[...] = random.split(stream[...])[0]
        return random.bits(stream[...])

    check(draw, jax.ShapeDtypeStruct((), KEYS.dtype))


def test_mutable_arrays_are_gone():
    closed = without_references(jax.make_jaxpr(in_loop)(jnp.ones(4)))
    assert not closed.effects
    assert "new_ref" not in str(closed)


# Dead code ------------------------------------------------------------------------------------------------------------


def test_what_a_loop_does_for_nothing_goes():
    closed = jax.make_jaxpr(lambda x: lax.fori_loop(0, 5, lambda i, c: c * 2, x))(jnp.ones(3))
    (loop,) = without_dead_code(closed).eqns
    assert parameters(loop)["num_carry"] == 1


def test_dead_code_inside_of_a_block_goes_and_the_block_keeps_its_ends():
    block = jaxport.onnx_function(lambda x: (lax.scan(lambda c, r: (c + r, r * 2), 0.0, x)[0], x.sum()))
    closed = trace(lambda x: block(x)[0], (jnp.ones(3),)).jaxpr
    (before,), (after,) = closed.eqns, without_dead_code(closed).eqns
    assert len(before.outvars) == len(after.outvars)
    assert [len(e.outvars) for e in before.params["jaxpr"].eqns if e.primitive.name == "scan"] == [2]
    assert [len(e.outvars) for e in after.params["jaxpr"].eqns if e.primitive.name == "scan"] == [1]


def test_results_of_a_block_that_nobody_reads_go_unless_it_is_whole():
    block = jaxport.onnx_function(lambda x: (x + 1, x.sum(), x * 2))
    closed = trace(jax.vmap(lambda x: block(x)[::2]), (jnp.ones((2, 3)),)).jaxpr
    (after,) = without_dead_code(closed, lambda _: False).eqns
    left = after.params["block"]
    assert len(after.outvars) == left.results == 2
    assert left.returns == ("0", "2")
    assert [results for _, results in left.axes] == [(0, 0)]
    (whole,) = without_dead_code(closed, lambda _: True).eqns
    assert len(whole.outvars) == whole.params["block"].results == 3


def test_what_is_not_needed_is_neither_computed_nor_refused():
    exported = check(
        lambda x: (jax.pure_callback(jnp.sin, x, x), lax.scan(lambda c, r: (c + r, r), 0.0, x)[0])[1], f32("T")
    )
    assert [len(node.outputs) for node in exported.model.graph] == [1]


@pytest.mark.parametrize("size", [253, 517])
def test_arithmetic_on_dims_is_as_exact_as_on_numbers(size):
    """Positions of pixels are wrong in the fifth digit where the scale is rounded twice."""

    def resized(x):
        return jax.image.resize(x, (256,), "bilinear")

    exported = jaxport.to_onnx(resized, [("H",)])
    x = np.random.default_rng(0).normal(size=size).astype(np.float32)
    np.testing.assert_allclose(exported(x), resized(x), atol=2e-6)


def test_dims_in_integers_stay_integers():
    check(lambda x: jnp.full((2,), x.shape[0] // 2 + 1) / x.shape[0], f32("B"))


def test_numbers_that_are_converted_are_left_alone():
    """Where a part of a program is exported by itself, what it converts may be a number."""
    (batch,) = jax.export.symbolic_shape("B")
    traced = jax.make_jaxpr(lambda x: x / x.shape[0])(jax.ShapeDtypeStruct((batch,), np.float32))
    (convert, *_) = jax.make_jaxpr(lambda n: lax.convert_element_type(n, jnp.float32))(2).eqns
    convert = convert.replace(invars=[Literal(np.int32(2), convert.invars[0].aval)])
    jaxpr = traced.jaxpr.replace(eqns=[convert, *traced.jaxpr.eqns])
    assert with_exact_dims(ClosedJaxpr(jaxpr, traced.consts)).eqns[0] is convert


@pytest.mark.parametrize("size", [2, 7, 8])
@pytest.mark.parametrize("reverse", [False, True])
def test_what_an_associative_scan_joins_is_not_padded(size, reverse):
    def recurrence(a, b):
        return lax.associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b), reverse=reverse, axis=1)

    exported = check(recurrence, f32("B", size, 3), f32("B", size, 3))
    assert "Pad" not in operators(exported, nested=True)


def test_flags_are_joined_too():
    exported = check(lambda x: lax.associative_scan(jnp.logical_or, x), boolean(6))
    assert "Pad" not in operators(exported, nested=True)


@pytest.mark.parametrize(
    ("even", "odd", "value"),
    [
        (((0, 1, 1),), ((1, 0, 1),), 1.0),
        (((0, 1, 1),), ((0, 1, 1),), 0.0),
        (((0, 2, 1),), ((1, 1, 1),), 0.0),
    ],
)
def test_other_sums_of_padded_arrays_stay(even, odd, value):
    exported = check(lambda x, y: lax.pad(x, value, even) + lax.pad(y, value, odd), f32(4), f32(4))
    assert "Pad" in operators(exported)
