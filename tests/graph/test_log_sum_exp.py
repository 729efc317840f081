from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxport.testing import check, f32, f64
from tests.export.passes.fusions import operators, report
from tests.graph.test_softmax import ODD

LEAN = {"ReduceMax": 1, "IsInf": 1, "Where": 1, "Sub": 1, "Exp": 1, "ReduceSum": 1, "Log": 1, "Add": 1}
lse = jax.nn.logsumexp


@pytest.mark.parametrize(
    ("fn", "specs", "more"),
    [
        (lambda x: lse(x, -1, keepdims=True), [f32("B", 5)], {}),
        (lambda x: lse(x, 1, keepdims=True), [f32("B", 5, 3)], {}),
        (lambda x: lse(x, (0, 2), keepdims=True), [f32(4, "B", 3)], {}),
        (lambda x: lse(x, -1), [f32("B", 5)], {"Squeeze": 1}),
        (lse, [f32("B", 5)], {"Squeeze": 1}),
        (lambda x: lse(x.reshape(-1, 12), 1, keepdims=True), [f32("B", 3, 4)], {"Reshape": 1}),
        (lambda x: lse(x @ x / 4, 2, keepdims=True), [f32(1, 4, 4)], None),
        (lambda x: lse(x.reshape(-1, 12), keepdims=True), [f32(2, 3, 4)], {"Reshape": 1}),
        (jax.vmap(lse, in_axes=1), [f32(5, "B")], None),
        (lambda x: jax.lax.map(lambda row: lse(row, keepdims=True), x), [f32("B", 5)], {"Scan": 1}),
        (lambda x: jax.nn.logmeanexp(x, 1, keepdims=True), [f32("B", 5)], {"Sub": 2}),
    ],
)
def test_recognised(fn, specs, more):
    exported = check(fn, *specs)
    assert report(exported, "log_sum_exp") == "1 LogSumExp"
    found = operators(exported)
    assert "IsNaN" not in found
    assert more is None or found == LEAN | more


def test_in_double_precision():
    assert operators(check(lambda x: lse(x, -1, keepdims=True), f64("B", 5), double_precision=True)) == LEAN


@pytest.mark.parametrize("axes", [0, 1, (0, 1), None], ids=str)
def test_not_a_number_and_infinity(axes):
    exported = check(lambda x: lse(x, axes), f32(*ODD.shape), values=[ODD])
    assert report(exported, "log_sum_exp") == "1 LogSumExp"


@pytest.mark.parametrize("opset", [17, 18])
def test_axes_are_where_the_operator_set_has_them(opset):
    exported = check(lambda x: lse(x, -1, keepdims=True), f32("B", 5), values=None, opset=opset)
    assert operators(exported) == LEAN


def of_other_elements(x, y):
    largest = jnp.max(x, axis=1, keepdims=True)
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    return jnp.log(jnp.exp(y - shift).sum(1, keepdims=True)) + shift


def over_another_axis(x):
    largest = jnp.max(x, axis=1, keepdims=True)
    shift = jnp.where(jnp.isfinite(largest), largest, 0)
    return jnp.log(jnp.exp(x - shift).sum(0, keepdims=True)) + shift


def in_place_of_another_number(x):
    largest = jnp.max(x, axis=1, keepdims=True)
    shift = jnp.where(jnp.isfinite(largest), largest, 1)
    return jnp.log(jnp.exp(x - shift).sum(1, keepdims=True)) + shift


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        (of_other_elements, [f32(3, 4), f32(3, 4)]),
        (over_another_axis, [f32(3, 4)]),
        (in_place_of_another_number, [f32(3, 4)]),
        (lambda x: lse(x, 1, where=x > 0), [f32(3, 4)]),
    ],
)
def test_left_alone(fn, specs):
    assert report(check(fn, *specs), "log_sum_exp") == "nothing to do"


def test_a_maximum_that_is_used_elsewhere_is_left_alone():
    def fn(x):
        largest = jnp.max(x, axis=1, keepdims=True)
        shift = jnp.where(jnp.isfinite(largest), largest, 0)
        return jnp.log(jnp.exp(x - shift).sum(1, keepdims=True)) + shift, shift

    assert "is used elsewhere too" in report(check(fn, f32(3, 4)), "log_sum_exp")
    rows = [row for row in ODD if not np.isnan(row).any()]
    check(fn, f32(len(rows), 3), values=[np.array(rows)])
