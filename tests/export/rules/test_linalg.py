"""Primitives of linear algebra against LAPACK: all parameters, derivatives, what fails, and the size of the graphs.

The functions built of them are swept in `tests/export/sweeps`.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax._src.lax.linalg import geqp3
from jax.lax import linalg

import jaxport
from jaxport.jaxprs import release
from jaxport.testing import check, f32, i32, spec

pytestmark = pytest.mark.sampled(2)

B, T = "B", "T"
SINCE_10 = pytest.mark.skipif(release < (0, 10), reason="JAX 0.9 has no products with Q")
#: Condition numbers here are below 100: two algorithms that are backward stable differ by some hundred roundings.
TOLERANCES: Any = {"rtol": 1e-4, "atol": 1e-4}


def c64(*shape):
    return spec(*shape, dtype=np.complex64)


def positive(x):
    return x @ jnp.conj(jnp.swapaxes(x, -1, -2)) + 2 * jnp.eye(x.shape[-1])


def regular(x):
    return x / 4 + 3 * jnp.eye(x.shape[-1])


def up_to_signs(results):
    return [jnp.abs(x) for x in results]


def nodes(fn, *specs):
    return sum(1 for _ in jaxport.to_onnx(fn, list(specs)).model.graph.all_nodes())


# Values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(("transpose_a", "unit_diagonal"), [(False, True), (True, False)])
@pytest.mark.parametrize("of", [f32, c64])
def test_triangular_solve(of, left_side, lower, transpose_a, unit_diagonal):
    b = (4, 3) if left_side else (3, 4)
    parameters = {"left_side": left_side, "lower": lower, "transpose_a": transpose_a, "unit_diagonal": unit_diagonal}
    solve = lambda a, b: linalg.triangular_solve(regular(a), b, conjugate_a=transpose_a, **parameters)
    check(solve, of(2, 4, 4), of(2, *b), **TOLERANCES)


def test_triangular_solve_of_symbolic_size():
    check(lambda a, b: linalg.triangular_solve(regular(a), b, left_side=True), f32(B, T, T), f32(B, T, 2), **TOLERANCES)


@pytest.mark.parametrize("shape", [(B, T, T), (4, 3), (B, 3, 4), (1, 1)])
@pytest.mark.parametrize(
    "function", [linalg.lu, linalg.qr, lambda a: up_to_signs(linalg.svd(a))], ids=["lu", "qr", "svd"]
)
def test_factorizations(function, shape):
    check(function, f32(*shape), **TOLERANCES)


@pytest.mark.parametrize("parameters", list(itertools.product([True, False], repeat=2)))
def test_qr_parameters(parameters):
    full, pivoting = parameters
    check(lambda a: linalg.qr(a, full_matrices=full, pivoting=pivoting), f32(5, 3), **TOLERANCES)


@SINCE_10
@pytest.mark.parametrize("parameters", list(itertools.product([True, False], repeat=2)))
def test_products_with_q(parameters):
    left, transpose = parameters

    def multiplied(a, c):
        packed, taus = jnp.linalg.qr(a, mode="raw")
        return linalg.ormqr(packed.mT, taus, c, left=left, transpose=transpose), linalg.householder_product(
            packed.mT, taus
        )

    check(multiplied, f32(4, 3), f32(4, 4), **TOLERANCES)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("of", [f32, c64])
def test_symmetric_matrices(lower, of):
    def tridiagonal(a):
        return linalg.tridiagonal(a + jnp.conj(a.mT), lower=lower)

    def values(a):
        return linalg.eigh(a, lower=lower, symmetrize_input=False)[1]

    check(tridiagonal, of(2, 4, 4), **TOLERANCES)
    check(values, of(2, 4, 4), **TOLERANCES)


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        pytest.param(lambda x: linalg.cholesky(positive(x)), [f32(B, T, T)], id="cholesky"),
        pytest.param(lambda x: linalg.cholesky(positive(x), symmetrize_input=False), [c64(3, 3)], id="cholesky-complex"),
        pytest.param(lambda r, z: linalg.cholesky_update(jnp.triu(r), z), [f32(4, 4), f32(4)], id="cholesky-update"),
        pytest.param(lambda a, c: linalg.symmetric_product(a, c, alpha=2.0, beta=0.5), [f32(3, 2), f32(3, 3)], id="symmetric-product"),
        pytest.param(lambda p: linalg.lu_pivots_to_permutation(jnp.abs(p) % 3 + 2, 6), [i32(B, 4)], id="pivots"),
        pytest.param(linalg.tridiagonal_solve, [f32(B, 5), f32(B, 5), f32(B, 5), f32(B, 5, 2)], id="tridiagonal-solve"),
        pytest.param(linalg.tridiagonal_solve, [c64(4), c64(4), c64(4), c64(4, 1)], id="tridiagonal-solve-complex"),
        pytest.param(lambda a, c: jax.scipy.linalg.qr_multiply(a, c, pivoting=True), [f32(4, 3), f32(2, 4)], id="qr-multiply", marks=SINCE_10),
        pytest.param(lambda a, p: geqp3(a, p % 2), [f32(2, 5, 4), i32(2, 4)], id="columns-that-come-first"),
        pytest.param(linalg.hessenberg, [f32(B, 4, 4)], id="hessenberg"),
        pytest.param(lambda a: jax.vmap(jnp.linalg.inv)(jax.vmap(regular)(a)), [f32(B, 3, 3)], id="vmap"),
    ],
)  # fmt: skip
def test_primitives(fn, specs):
    check(fn, *specs, **TOLERANCES)


@pytest.mark.parametrize(
    "eigenvalues",
    [[1, 1, 1, 1], [0, 0, 0, 0], [3, 0, 0, 0], [1, 1 + 1e-3, 2, 2], [1e-8, 1e-4, 1, 1e4]],
    ids=["equal", "zero", "one", "close", "far apart"],
)
def test_eigenvalues_that_are_close_or_zero(eigenvalues):
    basis = np.linalg.qr(np.arange(16).reshape(4, 4) % 7 - 3.0 + np.eye(4))[0]
    matrix = ((basis * eigenvalues) @ basis.T).astype(np.float32)

    def solved(a):
        (w, v), (u, s, vt) = jnp.linalg.eigh(a), jnp.linalg.svd(a)
        return w, v.T @ v, a @ v - v * w, s, u.T @ u, vt @ vt.T, (u * s) @ vt

    check(solved, f32(4, 4), values=(matrix,), rtol=1e-5, atol=1e-6 * max(1, *eigenvalues))


MATRICES = {
    "pairs": scipy.linalg.block_diag([[1, 5], [-0.1, 1]], [[0, 1], [-1, 0]])
    + np.triu(np.arange(16).reshape(4, 4) % 5, 2),
    "cycle": np.roll(np.eye(5), 1, 0),
    "defective": np.eye(4, k=-1),
    "multiple": 2 * np.eye(4) + np.eye(4, k=1),
    "skew": scipy.linalg.toeplitz([0, 1, 2, 0], [0, -1, -2, 0]),
    "zero": np.zeros((3, 3)),
    "tiny": np.float32(1e-30) * (np.arange(16).reshape(4, 4) % 7 - 2),
    "one": np.ones((1, 1)),
}


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_schur_of_real_matrices(matrix):
    def solved(a):
        t, z = linalg.schur(a)
        pairs = jnp.diagonal(t, -1) != 0
        unequal = jnp.where(pairs, jnp.diff(jnp.diagonal(t)), 0)
        return z.T @ z, z @ t @ z.T, jnp.tril(t, -2), pairs.sum(), unequal, pairs[1:] & pairs[:-1]

    check(solved, f32(*matrix.shape), values=(matrix.astype(np.float32),), rtol=1e-5, atol=2e-5)


def test_schur_of_a_batch():
    check(lambda a: jnp.stack([z @ t @ z.T for t, z in zip(*linalg.schur(a), strict=True)]), f32(2, 5, 5), **TOLERANCES)


def test_some_of_the_eigenvalues():
    some = jaxport.to_onnx(lambda a: linalg.eigh(a + a.T, subset_by_index=(1, 3)), [(4, 4)])
    matrix = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    vectors, values = some(matrix)
    wanted = np.linalg.eigh(matrix + matrix.T)
    np.testing.assert_allclose(values, wanted[0][1:3], rtol=1e-4)
    np.testing.assert_allclose(np.abs(vectors), np.abs(wanted[1][:, 1:3]), rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(release < (0, 10), reason="JAX has no `perturb_singular` before 0.10")
@pytest.mark.parametrize("of", [f32, c64])
def test_a_singular_tridiagonal_system_of_a_matrix_nearby(of):
    def direction(*xs):  # the length depends on how near the other matrix is
        found = linalg.tridiagonal_solve(*xs, perturb_singular=True)
        return found / jnp.max(jnp.abs(found))

    diagonals = np.array([[7, 1, 2, 1, 0], [1, 1, 4, 3, 2], [1, 2, 1, 0, 9]], of().dtype)
    check(direction, *[of(5)] * 3, of(5, 1), values=(*diagonals, np.ones((5, 1), of().dtype)), **TOLERANCES)


def test_a_large_matrix():
    matrix = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    check(
        lambda a: (jnp.linalg.eigvalsh(a + a.T), jnp.linalg.svdvals(a)),
        f32(40, 40),
        values=(matrix,),
        rtol=2e-5,
        atol=1e-4,
    )


# Derivatives ----------------------------------------------------------------------------------------------------------

WEIGHTS = np.arange(12.0).reshape(4, 3) % 5


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: (jnp.linalg.cholesky(positive(x)) * WEIGHTS[:3]).sum(), id="cholesky"),
        pytest.param(lambda x: (jnp.linalg.solve(regular(x), x) * WEIGHTS[:3]).sum(), id="solve"),
        pytest.param(lambda x: (jnp.linalg.inv(regular(x)) * WEIGHTS[:3]).sum(), id="inv"),
        pytest.param(lambda x: jnp.linalg.slogdet(x)[1] + jnp.linalg.det(x), id="det"),
        pytest.param(lambda x: (jnp.linalg.qr(x)[0] * WEIGHTS[:3]).sum() + jnp.linalg.qr(x)[1].sum(), id="qr"),
        pytest.param(lambda x: (jnp.linalg.eigh(x + x.T)[0] ** 3 / 9).sum(), id="eigenvalues"),
        pytest.param(lambda x: (jnp.abs(jnp.linalg.eigh(x + x.T)[1]) * WEIGHTS[:3]).sum(), id="eigenvectors"),
        pytest.param(lambda x: jnp.linalg.svdvals(x).prod() + jnp.linalg.norm(x, "nuc"), id="singular-values"),
        pytest.param(lambda x: jnp.abs(jnp.linalg.pinv(x)).sum(), id="pinv"),
        pytest.param(lambda x: jax.scipy.linalg.expm(x / 4).sum(), id="expm"),
        pytest.param(lambda x: linalg.tridiagonal_solve(x[0], x[1] + 9, x[2], x.T).sum(), id="tridiagonal"),
    ],
)
def test_gradients(function):
    matrix = np.array([[2, 1, -1], [0.5, 3, 1], [1, -0.5, 4]], np.float32)
    check(jax.grad(function), f32(3, 3), values=(matrix,), rtol=5e-4, atol=1e-3)


def test_a_training_step_with_a_gaussian_process():
    def loss(scale, x, y):
        kernel = jnp.exp(-((x[:, None] - x) ** 2) / scale) + 0.1 * jnp.eye(x.shape[0])
        factor = jax.scipy.linalg.cho_factor(kernel, lower=True)
        return y @ jax.scipy.linalg.cho_solve(factor, y) / 2 + jnp.log(jnp.diagonal(factor[0])).sum()

    step = jax.value_and_grad(lambda scale, x, y: loss(jnp.abs(scale) + 1, x, y))
    check(step, f32(), f32(T), f32(T), rtol=1e-3, atol=1e-3, constraints=["T >= 2"])


# What fails -----------------------------------------------------------------------------------------------------------


def test_a_matrix_without_a_factorization_gives_nan():
    definite, indefinite, broken = np.eye(3), np.diag([1.0, -1, 1]), np.full((3, 3), np.nan)
    matrices = np.stack([definite, indefinite, broken]).astype(np.float32)
    check(linalg.cholesky, f32(3, 3, 3), values=(matrices,))
    check(lambda a: jnp.linalg.eigvalsh(a), f32(3, 3, 3), values=(matrices,))


def test_singular_systems():
    zero = np.zeros((2, 2), np.float32)
    check(jnp.linalg.inv, f32(2, 2), values=(zero,))
    check(jnp.linalg.det, f32(2, 4, 4), values=(np.ones((2, 4, 4), np.float32),))
    row = np.float32([0, 0, 0])
    check(linalg.tridiagonal_solve, f32(3), f32(3), f32(3), f32(3, 1), values=(row, row, row, row[:, None]))


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3), (3, 0), (0, 2, 2)])
def test_nothing(shape):
    square = shape[-1] == shape[-2]
    functions = [jnp.linalg.qr, lambda a: jnp.linalg.svd(a, full_matrices=False)]
    functions += [jnp.linalg.inv, jnp.linalg.det, jnp.linalg.eigh, jnp.linalg.cholesky] if square else []
    for function in functions:
        check(function, f32(*shape))


# The graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "most"),
    [
        pytest.param(lambda x: linalg.cholesky(x, symmetrize_input=False), 30, id="cholesky"),
        pytest.param(lambda x: linalg.triangular_solve(x, x), 25, id="triangular_solve"),
        pytest.param(lambda x: linalg.lu(x)[0], 60, id="lu"),
        pytest.param(lambda x: linalg.qr(x)[0], 100, id="qr"),
        pytest.param(lambda x: linalg.eigh(x)[0], 160, id="eigh"),
        pytest.param(lambda x: jnp.linalg.svdvals(x), 140, id="svd"),
        pytest.param(lambda x: linalg.schur(x)[0], 480, id="schur"),
    ],
)
def test_the_graph_does_not_grow_with_the_matrix(function, most):
    small, large = (nodes(function, f32(n, n)) for n in (6, 60))
    assert abs(large - small) <= 12  # what is constant is computed at export only while it is small
    assert large <= most
