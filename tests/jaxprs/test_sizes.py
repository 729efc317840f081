from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import pytest

from jaxport.blocks.marking.window import activation
from jaxport.jaxprs import CHECKS_OF_SIZES, DECISIONS_ON_SIZES, dims, release
from jaxport.jaxprs.releases import TESTED


def errors_left(window):
    """Trace with a symbolic size, and return the errors about it that are still alive."""
    (batch,) = jax.export.symbolic_shape("B")
    gc.collect()
    gc.disable()  # the errors are in cycles
    try:
        with window():
            closed = jax.make_jaxpr(lambda x: jnp.sin(x).reshape(-1) + 1)(jax.ShapeDtypeStruct((batch, 3), jnp.float32))
        assert str(closed.out_avals[0].shape) == "(3*B,)"
        return [error for error in gc.get_objects() if type(error) is TypeError and "_DimExpr" in str(error)]
    finally:
        gc.enable()


def test_a_trace_leaves_no_errors_behind():
    assert not errors_left(activation)


def test_the_functions_are_restored():
    before = [getattr(owner, name) for owner, name, _ in CHECKS_OF_SIZES]
    with activation():
        assert all(
            getattr(owner, name) is not old for (owner, name, _), old in zip(CHECKS_OF_SIZES, before, strict=True)
        )
    assert [getattr(owner, name) for owner, name, _ in CHECKS_OF_SIZES] == before


def test_the_tested_releases_have_a_function_to_wrap():
    assert (CHECKS_OF_SIZES and DECISIONS_ON_SIZES) or (release.major, release.minor) > TESTED[-1][:2]


H, W, B = jax.export.symbolic_shape("h, w, b", constraints=["h >= 32", "w >= 32"])

PRODUCTS = {
    "names": (H * W * 3, 3),
    "grown": ((H + 1) * (W - 2), 2),
    "nested": (8 * ((H - 3) // 4 // 2 + 1) * ((W - 3) // 4 // 2 + 1), 3),
    "of three": (B * (H // 2) * (W % 5 + 1), 3),
    "with a common factor": (B * H + B * 4, 2),
}


@pytest.mark.parametrize(("size", "count"), PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_has_its_factors(size, count):
    product = [factor for factor in dims._factored(size) if factor != 1]
    assert len(product) == count
    for values in ({"h": 37, "w": 50, "b": 3}, {"h": 32, "w": 131, "b": 1}):
        found = 1
        for factor in product:
            found *= dims.evaluate(factor, values)
        assert found == dims.evaluate(size, values)


@pytest.mark.parametrize(
    "size", [H + W, H * W + 1, H * W - H * 2 + W, H * H + 2 * H + 1, 2 * H * W + H + W, -H * W, H - W]
)
def test_what_is_no_product_is_left_to_jax(size):
    assert dims._factored(size) == []


def test_products_are_compared_in_linear_time():
    """Each convolution halves the image; a Reshape then asks whether the number of its pixels is negative."""
    steps = 0

    def counted(size, precision):
        nonlocal steps
        steps += 1
        return bounds(size, precision)

    height, width = H, W
    (module, name, wrap), *_ = DECISIONS_ON_SIZES
    bounds = getattr(module, name)
    for _ in range(6):
        height, width = (height - 1) // 2 + 1, (width - 1) // 2 + 1
        lowest, _ = wrap(counted)(height * width, module.BoundsPrecision.FOR_GEQ0_OR_LT0)
        assert lowest >= 0
    assert steps == 6 * 3
