"""Searches in sorted arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.export.rules import RULES
from jaxport.export.rules.searching import MOST_ELEMENTS
from jaxport.export.walk.walker import Walker
from jaxport.jaxprs import jaxpr_as_fun
from jaxport.jaxprs.walk import equations_within
from jaxport.testing import expect_graph

ORDERED = np.array([-np.inf, -2, -0.0, 0.0, 0.5, 0.5, 0.5, 3, 3e4, np.inf], np.float32)
SOUGHT = np.array([np.nan, -np.inf, np.inf, -3, -2, 0.0, -0.0, 0.25, 0.5, 7, 3, 6e4], np.float32)


def operators(exported):
    return {node.op_type for node in exported.model.graph.all_nodes()}


def loop_of_a_search():
    """Return the equation of the loop, which newer releases of JAX have in the implementation of a primitive."""
    arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (ORDERED, SOUGHT)]
    program, _ = Walker(23, RULES, {}).traced(jnp.searchsorted, arrays, {})
    (scan,) = [equation for equation in equations_within(program.jaxpr) if equation.primitive.name == "scan"]
    return scan


def compared(fn, *arrays):
    """Export a function for arrays of these shapes, and compare it on them; return what was exported."""
    exported = jaxport.to_onnx(fn, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays])
    for result, expected in zip(jax.tree.leaves(exported(*arrays)), jax.tree.leaves(fn(*arrays)), strict=True):
        np.testing.assert_array_equal(result, expected)
    return exported


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8", "int8"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_few_elements_are_all_compared(side, dtype):
    kind = jnp.dtype(dtype).kind
    elements, sought = (jnp.asarray(np.nan_to_num(x, posinf=99, neginf=0).clip(0, 99) if kind in "iu" else x, dtype)
                        for x in (ORDERED, SOUGHT))  # fmt: skip
    for shape in [(12,), (), (3, 4)]:
        x = sought[8].reshape(()) if shape == () else sought.reshape(shape)
        compared_to_all = [
            compared(lambda a, x: jnp.searchsorted(a, x, side=side), elements, x),
            compared(lambda x: jnp.searchsorted(elements, x, side=side), x),
            compared(lambda a, x: jax.vmap(lambda one: jnp.searchsorted(a, one, side=side))(x), elements, x[None]),
        ]
        for exported in compared_to_all:
            assert operators(exported).isdisjoint({"Loop", "Scan", "Gather"})


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("as_constant", [True, False])
def test_nan_comes_last(as_constant, side):
    elements = np.append(ORDERED, np.array([np.nan, np.nan], np.float32))
    if as_constant:
        compared(lambda x: jnp.searchsorted(elements, x, side=side), SOUGHT)
    else:
        compared(lambda a, x: jnp.searchsorted(a, x, side=side), elements, SOUGHT)


def test_a_table_is_compared_by_one_operator():
    exported = jaxport.to_onnx(lambda x: jnp.searchsorted(ORDERED, x), [("B",)])
    expect_graph(exported, ["GreaterOrEqual -> Not -> Cast -> ReduceSum -> Cast -> Cast"], exact=True)


def test_interpolation_in_a_table():
    positions = np.linspace(-1, 1, 17, dtype=np.float32)
    exported = jaxport.to_onnx(lambda x: jnp.interp(x, positions, np.cos(positions)), [("B",)], input_names=["x"])
    assert "Loop" not in operators(exported)
    x = np.concatenate([positions, SOUGHT, np.random.default_rng(0).uniform(-2, 2, 50).astype(np.float32)])
    np.testing.assert_allclose(exported(x), jnp.interp(x, positions, np.cos(positions)), rtol=1e-6, atol=1e-7)


def test_many_elements_stay_a_loop():
    few, many = (np.arange(count, dtype=np.float32) for count in (MOST_ELEMENTS, MOST_ELEMENTS + 1))
    assert "Loop" not in operators(compared(lambda x: jnp.searchsorted(few, x), SOUGHT))
    assert "Loop" in operators(compared(lambda x: jnp.searchsorted(many, x), SOUGHT))


@pytest.mark.parametrize(("steps", "is_search"), [(4, True), (3, False), (5, False)])
def test_a_loop_with_other_steps_is_no_search(steps, is_search):
    scan = loop_of_a_search()
    step = jaxpr_as_fun(scan.params["jaxpr"])

    def bounds(elements, sought):
        low = jnp.zeros(sought.shape, jnp.uint32)
        return lax.scan(
            lambda state, _: (tuple(step(elements, sought, *state)), None), (low, low + 10), None, length=steps
        )[0]

    assert ("Loop" not in operators(compared(bounds, ORDERED, SOUGHT))) is is_search


def test_a_search_in_part_of_the_elements_stays_a_loop():
    scan = loop_of_a_search()
    step = jaxpr_as_fun(scan.params["jaxpr"])

    def bounds(elements, sought):
        low = jnp.full(sought.shape, 2, jnp.uint32)
        return lax.scan(lambda state, _: (tuple(step(elements, sought, *state)), None), (low, low + 8), None, length=4)[
            0
        ]

    assert "Loop" in operators(compared(bounds, ORDERED, SOUGHT))
