"""Products over groups of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.errors import RunError
from jaxport.export.rules.grouped import in_blocks
from jaxport.testing import check, f32, i32, spec
from tests.exports import operators

X, Y, WIDE = (np.random.default_rng(0).normal(size=s).astype(np.float32) for s in [(6, 4), (3, 4, 5), (6, 5)])
#: Groups that are empty, rows behind all groups, and more rows than there are.
SIZES = ([2, 3, 1], [0, 6, 0], [1, 1, 1], [0, 0, 0], [4, 1, 4])


@pytest.mark.parametrize("sizes", SIZES)
def test_groups_of_rows(sizes):
    check(lax.ragged_dot, f32(6, 4), f32(3, 4, 5), i32(3), values=(X, Y, np.array(sizes, np.int32)))


@pytest.mark.parametrize("rows", [1, 3, 4, 17])
def test_blocks_of_rows(rows):
    x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
    for sizes in (*SIZES, [rows, 0, 0], [0, 1, rows - 1]):
        expected, found = lax.ragged_dot(x, Y, np.array(sizes)), in_blocks(x, Y, np.array(sizes))
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=str(sizes))


@pytest.mark.parametrize("target", ["onnx", "portable"])
def test_any_number_of_rows(target):
    exported = jaxport.to_onnx(lambda x, sizes: lax.ragged_dot(x, Y, sizes), [("R", 4), i32(3)], target=target)
    for rows in (1, 2, 7, 20):
        x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        for sizes in (*SIZES, [1, rows - 1, 0]):
            sizes = np.array(sizes, np.int32)
            np.testing.assert_allclose(exported(x, sizes), lax.ragged_dot(x, Y, sizes), atol=1e-5, err_msg=str(sizes))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float64])
def test_types(dtype):
    exported = jaxport.to_onnx(lax.ragged_dot, [spec(6, 4, dtype=dtype), spec(3, 4, 5, dtype=dtype), i32(3)])
    exported.verify([X.astype(dtype), Y.astype(dtype), np.array([2, 3, 1], np.int32)])


def test_a_wider_result():
    fn = lambda x, y, sizes: lax.ragged_dot(x, y, sizes, preferred_element_type=np.float32)
    half = spec(6, 4, dtype=jnp.float16), spec(3, 4, 5, dtype=jnp.float16), i32(3)
    jaxport.to_onnx(fn, half).verify([X.astype(jnp.float16), Y.astype(jnp.float16), np.array([2, 3, 1], np.int32)])


def test_groups_of_the_contracted_axis():
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(([0], [0]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )
    check(
        lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, numbers),
        *(f32(6, 4), f32(6, 5), i32(3)),
        values=(X, WIDE, np.array([2, 3, 1], np.int32)),
    )


def test_matrices_that_are_transposed():
    sizes = np.array([2, 3, 1], np.int32)
    gradient = jax.grad(lambda x, y: (lax.ragged_dot(x, y, sizes) ** 2).sum())
    check(gradient, f32(6, 4), f32(3, 4, 5), values=(X, Y))


def test_a_batch_of_groups():
    fn = jax.vmap(lax.ragged_dot)
    check(
        fn,
        f32(2, 6, 4),
        f32(2, 3, 4, 5),
        i32(2, 3),
        values=(np.stack([X, -X]), np.stack([Y, Y + 1]), np.array([[2, 3, 1], [1, 1, 2]], np.int32)),
    )


class Experts(nnx.Module):
    def __init__(self):
        self.kernel = nnx.Param(jnp.asarray(np.random.default_rng(0).normal(size=(3, 32, 64)), jnp.float32))

    def __call__(self, x, sizes):
        return lax.ragged_dot(x, self.kernel[...], sizes)


@pytest.mark.parametrize(
    ("precision", "operator"), [(None, "MatMul"), ("int4", "MatMulNBits"), ("int8-dynamic", "MatMulInteger")]
)
def test_each_group_has_a_product_with_a_weight_of_its_own(precision, operator):
    model, sizes = Experts(), np.array([3, 0, 2], np.int32)
    exported = jaxport.to_onnx(model, [("R", 32), i32(3)], target="onnxruntime", precision=precision)
    assert operators(exported).count(operator) == 3
    assert any(name.startswith("kernel.2") for name in exported.model.graph.initializers)
    x = np.random.default_rng(1).normal(size=(7, 32)).astype(np.float32)
    expected = model(x, sizes)
    largest = float(jnp.abs(expected).max())
    np.testing.assert_allclose(exported(x, sizes), expected, atol=largest * (1e-6 if precision is None else 0.2))


def test_a_negative_size_ends_in_an_error():
    exported = jaxport.to_onnx(lax.ragged_dot, [X, Y, i32(3)])
    with pytest.raises(RunError, match=r"[Ss]plit"):
        exported(X, Y, np.array([2, -1, 3], np.int32))
