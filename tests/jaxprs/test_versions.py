from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport import jaxprs
from jaxport.jaxprs.releases import Release, failures_name_untested_jax, untested


def test_a_failure_names_the_newer_release_once():
    note = untested(Release(99, 0, 0))
    for expected in ([note], []):
        with pytest.raises(ValueError, match="what went wrong") as caught, failures_name_untested_jax(note):
            raise ValueError("what went wrong")
        assert getattr(caught.value, "__notes__", []) == expected


def test_a_tested_release_is_not_mentioned():
    with pytest.raises(ValueError, match="what went wrong") as caught, failures_name_untested_jax(""):
        raise ValueError("what went wrong")
    assert not hasattr(caught.value, "__notes__")


def test_a_newer_patch_of_a_tested_release_is_no_news():
    last = jaxprs.TESTED[-1]
    assert untested(Release(last.major, last.minor, 99)) == ""
    assert str(Release(last.major, last.minor + 1)) in untested(Release(last.major, last.minor + 1))


# The parameters of scan -------------------------------------------------------------------------------------------------


def scans(fn, *args):
    return [equation for equation in jax.make_jaxpr(fn)(*args).eqns if equation.primitive.name == "scan"]


def looped(k, start, xs):
    return lax.scan(lambda carry, x: ((carry[0] * k + x, carry[1] - x), carry[0]), (start, start), xs)


@pytest.mark.parametrize(
    ("fn", "counts"),
    [
        (looped, [(1, 2)]),
        (lambda k, start, xs: lax.fori_loop(0, 3, lambda i, c: c * k, start), [(1, 2)]),
        (lambda k, start, xs: lax.map(jnp.sin, xs), [(0, 0)]),
    ],
)
def test_the_counts_of_operands(fn, counts):
    found = scans(fn, 2.0, 1.0, jnp.ones(3))
    assert [(jaxprs.parameters(e)["num_consts"], jaxprs.parameters(e)["num_carry"]) for e in found] == counts


def test_no_other_primitive_is_touched():
    (equation,) = jax.make_jaxpr(jnp.sin)(1.0).eqns
    assert jaxprs.parameters(equation) is equation.params


@pytest.mark.parametrize("function", [looped, jax.grad(lambda k, start, xs: looped(k, start, xs)[0][0])])
def test_an_equation_made_again_computes_the_same(function):
    arguments = 0.5, 1.0, jnp.arange(3.0)
    closed = jax.make_jaxpr(function)(*arguments)
    made = [jaxprs.with_parameters(e, {}) if e.primitive.name == "scan" else e for e in closed.jaxpr.eqns]
    again = jaxprs.ClosedJaxpr(closed.jaxpr.replace(eqns=made), closed.consts)
    for run in (jaxprs.jaxpr_as_fun(again), jax.jit(jaxprs.jaxpr_as_fun(again))):
        for a, b in zip(run(*arguments), jax.tree.leaves(function(*arguments)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_an_equation_made_again_is_differentiated_and_batched():
    closed = jax.make_jaxpr(looped)(0.5, 1.0, jnp.arange(3.0))
    made = [jaxprs.with_parameters(e, {}) if e.primitive.name == "scan" else e for e in closed.jaxpr.eqns]
    again = jaxprs.jaxpr_as_fun(jaxprs.ClosedJaxpr(closed.jaxpr.replace(eqns=made), closed.consts))
    gradient = jax.grad(lambda k, xs: again(k, jnp.float32(1), xs)[0])
    expected = jax.grad(lambda k, xs: looped(k, jnp.float32(1), xs)[0][0])
    rows = jnp.arange(6.0).reshape(2, 3)
    given = jax.vmap(gradient, (None, 0))(jnp.float32(0.5), rows)
    np.testing.assert_allclose(given, jax.vmap(expected, (None, 0))(jnp.float32(0.5), rows), rtol=1e-6)
