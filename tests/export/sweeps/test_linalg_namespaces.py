"""Every public function of `jax.numpy.linalg`, `jax.numpy.fft` and `jax.scipy.linalg`, exported and compared.

A function is in the table of its namespace; a new one of JAX's makes a test fail.
What a factorization leaves open (the sign of a vector, the order of eigenvalues) is taken out before the comparison.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest
from jax.numpy import fft, linalg

from jaxport.testing import check, f32, spec

B, T = "B", "T"
#: The functions of `jax.scipy.linalg` that JAX 0.9 lacks.
SINCE_10 = """circulant companion convolution_matrix dft fiedler fiedler_companion hadamard helmert invhilbert invpascal
leslie qr_multiply""".split()
scipy_linalg: Any = SimpleNamespace(**{**dict.fromkeys(SINCE_10), **vars(jax.scipy.linalg)})


def c64(*shape):
    return spec(*shape, dtype=np.complex64)


def adjoint(x):
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def hermitian(x):
    return x + adjoint(x)


def positive(x):
    """A positive definite matrix, whose condition number is small."""
    return x @ adjoint(x) + 2 * jnp.eye(x.shape[-1])


def regular(x):
    """A matrix whose diagonal outweighs the rest."""
    return x / 4 + 4 * jnp.eye(x.shape[-1])


def sorted_values(values):
    return jnp.sort(values, axis=-1)


def product(*factors):
    """The product of factors whose signs are left open, some of them vectors that stand for diagonal matrices."""
    result, *rest = factors
    for factor in rest:
        result = result * factor[..., None, :] if factor.ndim < result.ndim else result @ factor
    return result


def up_to_signs(results):
    return [jnp.abs(x) for x in results]


def rebuilt_eigh(results):
    values, vectors = results
    return product(vectors, values, adjoint(vectors))


def rebuilt_schur(t, z):
    return z @ t @ adjoint(z), jnp.tril(t, -1)


def eigenpairs(x):
    """The eigenvalues, and what is left of the equation that they and the vectors solve."""
    values, vectors = linalg.eig(x)
    return x @ vectors - vectors * values, jnp.linalg.norm(vectors, axis=0), sorted_values(values)


def orthonormal(name):
    transform = getattr(fft, name)
    return lambda x: transform(x, norm="ortho")


LINALG = {
    "cholesky": [
        (lambda x: linalg.cholesky(positive(x)), f32(B, T, T)),
        (lambda x: linalg.cholesky(positive(x), upper=True), c64(3, 3)),
        (lambda x: linalg.cholesky(hermitian(x)), f32(3, 3)),
    ],
    "cond": [(linalg.cond, f32(B, 4, 3)), (lambda x: linalg.cond(regular(x), 1), f32(3, 3))],
    "cross": [(linalg.cross, f32(B, 3), f32(B, 3))],
    "det": [(linalg.det, f32(B, T, T)), (linalg.det, c64(4, 4)), (linalg.det, f32(2, 2)), (linalg.det, f32(3, 3))],
    "diagonal": [(linalg.diagonal, f32(B, T, T))],
    "eig": [(eigenpairs, f32(4, 4))],
    "eigh": [
        (lambda x: up_to_signs(linalg.eigh(x)), f32(B, T, T)),
        (lambda x: rebuilt_eigh(linalg.eigh(x)), c64(4, 4)),
    ],
    "eigvals": [(lambda x: sorted_values(linalg.eigvals(x)), c64(B, 3, 3))],
    "eigvalsh": [(linalg.eigvalsh, f32(B, 5, 5)), (lambda x: linalg.eigvalsh(x, "U"), c64(4, 4))],
    "inv": [(lambda x: linalg.inv(regular(x)), f32(B, T, T)), (lambda x: linalg.inv(regular(x)), c64(3, 3))],
    "lstsq": [(linalg.lstsq, f32(5, 3), f32(5, 2)), (lambda x, y: linalg.lstsq(x, y)[0], c64(3, 4), c64(3))],
    "matmul": [(linalg.matmul, f32(B, 3, T), f32(B, T, 4)), (linalg.matmul, c64(2, 3), c64(3, 4))],
    "matrix_norm": [(linalg.matrix_norm, f32(B, T, 3)), (lambda x: linalg.matrix_norm(x, ord=2), f32(B, 4, 3))],
    "matrix_power": [(lambda x: linalg.matrix_power(regular(x), -3), f32(B, 3, 3)), (lambda x: linalg.matrix_power(x, 5), c64(2, 2))],
    "matrix_rank": [(linalg.matrix_rank, f32(B, 4, 3)), (lambda x: linalg.matrix_rank(x[:, :1] * x[:1]), f32(4, 3))],
    "matrix_transpose": [(linalg.matrix_transpose, f32(B, T, 3))],
    "multi_dot": [(lambda *xs: linalg.multi_dot(xs), f32(2, T), f32(T, 4), f32(4, 3))],
    "norm": [
        *((lambda x, order=order: linalg.norm(x, order), f32(4, 3)) for order in ("fro", "nuc", 1, -1, 2, -2, np.inf)),
        *((lambda x, order=order: linalg.norm(x, order, axis=-1), f32(B, T)) for order in (None, 0, 1, 3, np.inf)),
        (linalg.norm, c64(4, 3)),
    ],
    "outer": [(linalg.outer, f32(B), f32(T))],
    "pinv": [(linalg.pinv, f32(B, 4, 3)), (lambda x: linalg.pinv(hermitian(x), hermitian=True), f32(3, 3)), (linalg.pinv, c64(3, 2))],
    "qr": [
        (linalg.qr, f32(B, T, T)),
        (lambda x: linalg.qr(x, mode="complete"), f32(B, 5, 3)),
        (lambda x: linalg.qr(x, mode="raw"), f32(3, 5)),
        (lambda x: linalg.qr(x, mode="r"), c64(4, 3)),
    ],
    "slogdet": [(linalg.slogdet, f32(B, T, T)), (lambda x: linalg.slogdet(x, method="qr"), f32(4, 4)), (linalg.slogdet, c64(3, 3))],
    "solve": [
        (lambda x, y: linalg.solve(regular(x), y), f32(B, T, T), f32(B, T, 2)),
        (lambda x, y: linalg.solve(regular(x), y), c64(3, 3), c64(3)),
    ],
    "svd": [
        (lambda x: product(*linalg.svd(x, full_matrices=False)), f32(B, T, 3)),
        (lambda x: up_to_signs(linalg.svd(x)), f32(3, 4)),
        (lambda x: product(*linalg.svd(x, full_matrices=False)), c64(4, 3)),
        (lambda x: linalg.svd(x, compute_uv=False), f32(B, 3, 4)),
    ],
    "svdvals": [(linalg.svdvals, f32(B, T, 3)), (linalg.svdvals, c64(3, 3))],
    "tensordot": [(linalg.tensordot, f32(2, B, T), f32(B, T, 3))],
    "tensorinv": [(lambda x: linalg.tensorinv(x), f32(2, 3, 6))],
    "tensorsolve": [(linalg.tensorsolve, f32(2, 3, 6), f32(2, 3))],
    "trace": [(linalg.trace, f32(B, T, T))],
    "vecdot": [(linalg.vecdot, f32(B, T), f32(B, T)), (linalg.vecdot, c64(B, 3), c64(B, 3))],
    "vector_norm": [(linalg.vector_norm, f32(B, T)), (lambda x: linalg.vector_norm(x, ord=3, axis=0), f32(B, T))],
}  # fmt: skip

FFT = {
    **{name: [(getattr(fft, name), c64(B, 6)), (getattr(fft, name), f32(B, 8))] for name in ("fft", "ifft", "hfft")},
    **{name: [(getattr(fft, name), f32(B, 6)), (getattr(fft, name), f32(B, 5))] for name in ("rfft", "ihfft")},
    "irfft": [(fft.irfft, c64(B, 5)), (lambda x: fft.irfft(x, n=7), c64(B, 4)), (lambda x: fft.irfft(x, axis=0), f32(5, 2))],
    **{name: [(getattr(fft, name), c64(B, 4, 6))] for name in ("fft2", "ifft2", "irfft2")},
    **{name: [(orthonormal(name), c64(3, 4, 5))] for name in ("fftn", "ifftn", "irfftn")},
    "rfft2": [(fft.rfft2, f32(B, 4, 6))],
    "rfftn": [(fft.rfftn, f32(3, 2, 4, 5)), (lambda x: fft.rfftn(x, axes=(0, 2)), f32(3, 4, 5))],
    "fftfreq": [(lambda x: x + fft.fftfreq(6), f32(B, 6)), (lambda x: x * fft.fftfreq(x.shape[0], 2.0), f32(5))],
    "rfftfreq": [(lambda x: x + fft.rfftfreq(6), f32(B, 4))],
    "fftshift": [(fft.fftshift, f32(B, 5)), (lambda x: fft.fftshift(x, axes=1), c64(B, 6))],
    "ifftshift": [(fft.ifftshift, f32(B, 5))],
}  # fmt: skip

SCIPY = {
    "block_diag": [(scipy_linalg.block_diag, f32(2, 3), f32(1, 2))],
    "cho_factor": [(lambda x: jnp.tril(scipy_linalg.cho_factor(positive(x), lower=True)[0]), f32(B, T, T))],
    "cho_solve": [(lambda x, y: scipy_linalg.cho_solve(scipy_linalg.cho_factor(positive(x)), y), f32(T, T), f32(T, 2))],
    "cholesky": [(lambda x: scipy_linalg.cholesky(positive(x), lower=True), f32(B, T, T))],
    "circulant": [(scipy_linalg.circulant, f32(4))],
    "companion": [(scipy_linalg.companion, f32(4))],
    "convolution_matrix": [(lambda x: scipy_linalg.convolution_matrix(x, 3), f32(4))],
    "det": [(scipy_linalg.det, f32(B, 4, 4))],
    "dft": [(lambda x: x @ scipy_linalg.dft(4), c64(B, 4))],
    "eigh": [
        (lambda x: scipy_linalg.eigh(hermitian(x), eigvals_only=True), f32(4, 4)),
        (lambda x: rebuilt_eigh(scipy_linalg.eigh(hermitian(x))), c64(3, 3)),
    ],
    "eigh_tridiagonal": [
        (lambda d, e: scipy_linalg.eigh_tridiagonal(d, e, eigvals_only=True), f32(5), f32(4)),
        (lambda d, e: up_to_signs(scipy_linalg.eigh_tridiagonal(d, e)), f32(5), f32(4)),
    ],
    "expm": [(lambda x: scipy_linalg.expm(x / 2), f32(B, 3, 3)), (lambda x: scipy_linalg.expm(x / 2), c64(3, 3))],
    "expm_frechet": [(lambda x, e: scipy_linalg.expm_frechet(x / 2, e), f32(3, 3), f32(3, 3))],
    "fiedler": [(scipy_linalg.fiedler, f32(4))],
    "fiedler_companion": [(scipy_linalg.fiedler_companion, f32(5))],
    "funm": [(lambda x: scipy_linalg.funm(hermitian(x), jnp.exp, disp=False)[0], c64(3, 3))],
    "hadamard": [(lambda x: x @ scipy_linalg.hadamard(4, dtype=x.dtype), f32(B, 4))],
    "hankel": [(scipy_linalg.hankel, f32(3), f32(4))],
    "helmert": [(lambda x: x @ scipy_linalg.helmert(4, full=True), f32(B, 4))],
    "hessenberg": [
        (lambda x: scipy_linalg.hessenberg(x, calc_q=True), f32(B, 4, 4)),
        (lambda x: scipy_linalg.hessenberg(x), c64(4, 4)),
    ],
    "hilbert": [(lambda x: x @ scipy_linalg.hilbert(3), f32(B, 3))],
    "inv": [(lambda x: scipy_linalg.inv(regular(x)), f32(B, T, T))],
    "invhilbert": [(lambda x: x @ scipy_linalg.invhilbert(3).astype(x.dtype), f32(B, 3))],
    "invpascal": [(lambda x: x @ scipy_linalg.invpascal(3).astype(x.dtype), f32(B, 3))],
    "leslie": [(scipy_linalg.leslie, f32(4), f32(3))],
    "lu": [
        (jax.vmap(scipy_linalg.lu), f32(B, 4, 4)),
        (lambda x: scipy_linalg.lu(x, permute_l=True), f32(4, 3)),
        (scipy_linalg.lu, c64(3, 4)),
    ],
    "lu_factor": [(scipy_linalg.lu_factor, f32(B, T, T))],
    "lu_solve": [(lambda x, y: scipy_linalg.lu_solve(scipy_linalg.lu_factor(x), y, trans=1), f32(4, 4), f32(4, 2))],
    "pascal": [(lambda x: x @ scipy_linalg.pascal(3).astype(x.dtype), f32(B, 3))],
    "polar": [(lambda x: scipy_linalg.polar(regular(x)), f32(3, 3)), (lambda x: scipy_linalg.polar(x, method="svd"), f32(4, 3))],
    "qr": [
        (lambda x: scipy_linalg.qr(x, mode="economic"), f32(B, 5, 3)),
        (lambda x: scipy_linalg.qr(x, pivoting=True), f32(4, 4)),
    ],
    "qr_multiply": [
        (lambda x, y: scipy_linalg.qr_multiply(x, y), f32(4, 3), f32(2, 4)),
        (lambda x, y: scipy_linalg.qr_multiply(x, y, mode="left"), c64(3, 3), c64(3, 2)),
    ],
    "rsf2csf": [(lambda x: up_to_signs(scipy_linalg.rsf2csf(jnp.triu(x), jnp.eye(3))), f32(3, 3))],
    "schur": [
        (lambda x: rebuilt_schur(*scipy_linalg.schur(x, "complex")), f32(4, 4)),
        (lambda x: product(*scipy_linalg.schur(x)[::-1], scipy_linalg.schur(x)[1].T), f32(4, 4)),
    ],
    "solve": [
        (lambda x, y: scipy_linalg.solve(regular(x), y), f32(B, 3, 3), f32(B, 3, 2)),
        (lambda x, y: scipy_linalg.solve(positive(x), y, assume_a="pos"), c64(3, 3), c64(3)),
    ],
    "solve_sylvester": [(lambda a, b, c: scipy_linalg.solve_sylvester(regular(a), regular(b), c), c64(3, 3), c64(2, 2), c64(3, 2))],
    "solve_triangular": [
        (lambda x, y: scipy_linalg.solve_triangular(regular(x), y, lower=True), f32(T, T), f32(T, 2)),
        (lambda x, y: scipy_linalg.solve_triangular(regular(x), y, trans=2), c64(3, 3), c64(3)),
    ],
    "sqrtm": [(lambda x: scipy_linalg.sqrtm(regular(x)), f32(3, 3)), (lambda x: scipy_linalg.sqrtm(regular(x)), c64(3, 3))],
    "svd": [(lambda x: scipy_linalg.svd(x, compute_uv=False), f32(B, 4, 3))],
    "toeplitz": [(scipy_linalg.toeplitz, f32(3), f32(4)), (scipy_linalg.toeplitz, c64(3))],
}  # fmt: skip

for _name in SINCE_10:
    if not hasattr(jax.scipy.linalg, _name):
        del SCIPY[_name]

NAMESPACES: dict[ModuleType, dict] = {linalg: LINALG, fft: FFT, jax.scipy.linalg: SCIPY}

#: Condition numbers here are below 100: two algorithms that are backward stable differ by some hundred roundings.
TOLERANCES: Any = {"rtol": 2e-4, "atol": 2e-4}


def public(namespace):
    return {name for name in dir(namespace) if not name.startswith("_") and callable(getattr(namespace, name))}


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda n: n.__name__)
def test_every_public_function_has_a_case(namespace):
    assert set(NAMESPACES[namespace]) == public(namespace)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        pytest.param(fn, specs, id=f"{namespace.__name__}.{name}-{index}")
        for namespace, table in NAMESPACES.items()
        for name, cases in table.items()
        for index, (fn, *specs) in enumerate(cases)
    ],
)
def test_function(fn, specs):
    check(fn, *specs, **TOLERANCES)
