"""The cases of `jax.numpy.linalg`, `jax.scipy.linalg` and `jax.numpy.fft`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from tests.export.sweeps.cases import COMPLEX, array, between, case, definite, each, positive

WIDE = ("float32", "float64", *COMPLEX)
REAL = ("float32", "float64")
S, R, DEFINITE = array("B", 4, 4), array("B", 4, 3), array("B", 4, 4, values=definite)
X, Y, V = array("B", "T"), array("B", "T"), array("B", 4)
NEAR = {"dtypes": WIDE, "rtol": 1e-3, "atol": 1e-3}

NUMPY = {
    **each("cholesky eigh eigvalsh inv det slogdet", DEFINITE, **NEAR),
    "cond": case(DEFINITE, **NEAR),
    "eig": case(S, **NEAR, call=lambda f, x: [part if i == 0 else abs(part) for i, part in enumerate(f(x))]),
    "eigvals": case(S, **NEAR),
    **each("pinv svdvals matrix_rank", R, **NEAR),
    "svd": case(R, **NEAR, call=lambda f, x: [abs(part) for part in f(x, full_matrices=False)]),
    "eigh": case(DEFINITE, **NEAR, call=lambda f, x: [abs(part) for part in f(x)]),
    "qr": case(R, **NEAR, call=lambda f, x: [abs(part) for part in f(x)]),
    "lstsq": case(array(5, 3), array(5, 2), **NEAR),
    "solve": case(DEFINITE, R, **NEAR),
    "matrix_power": case(S, 3, rtol=1e-4, atol=1e-3),
    "tensorinv": case(array(6, 2, 3), 1, **NEAR),
    "tensorsolve": case(array(2, 3, 6), array(2, 3), **NEAR),
    "cross": case(array("B", 3), array("B", 3)),
    "diagonal": case(S),
    "trace": case(S),
    "matrix_norm": case(S),
    "matrix_transpose": case(X),
    "multi_dot": case([array("B", "T"), array("T", "N"), array("N", "M")]),
    "norm": case(X, axis=1),
    "outer": case(array("B"), array("T")),
    "matmul": case(X, array("T", "N")),
    "tensordot": case(X, array("T", "N"), axes=1),
    "vecdot": case(X, Y),
    "vector_norm": case(X, axis=1),
}
TRIANGULAR = array(4, 4, values=lambda g, s, d: np.tril(definite(g, s, d)))
SYMMETRIC = array(4, 4, values=definite)
SCIPY = {
    **each("cholesky det inv", SYMMETRIC, **NEAR),
    "cho_factor": case(SYMMETRIC, **NEAR, call=lambda f, x: jnp.triu(f(x)[0])),
    "cho_solve": case(TRIANGULAR, array(4, 2), **NEAR, call=lambda f, c, b: f((c, True), b)),
    "eigh": case(SYMMETRIC, **NEAR, call=lambda f, x: [abs(part) for part in f(x)]),
    "eigh_tridiagonal": case(array(4), array(3), eigvals_only=True, dtypes=REAL, rtol=1e-3, atol=1e-3),
    **each("expm sqrtm", SYMMETRIC, **NEAR),
    "expm_frechet": case(SYMMETRIC, array(4, 4), **NEAR),
    "funm": case(SYMMETRIC, dtypes=COMPLEX, rtol=1e-3, atol=1e-3, call=lambda f, x: f(x, jnp.exp)),
    "hessenberg": case(array(4, 4), **NEAR, call=lambda f, x: abs(f(x))),
    "lu": case(array(4, 4), **NEAR),
    "lu_factor": case(array(4, 4), **NEAR),
    "lu_solve": case(array(4, 4), array(4, 2), **NEAR, call=lambda f, a, b: f((a, jnp.arange(4)), b)),
    "polar": case(array(4, 3), **NEAR, call=lambda f, x: f(x, method="svd")),
    "qr": case(array(4, 3), **NEAR, call=lambda f, x: [abs(part) for part in f(x, mode="economic")]),
    "qr_multiply": case(array(4, 3), array(2, 4), **NEAR, call=lambda f, a, c: [abs(part) for part in f(a, c)]),
    "schur": case(SYMMETRIC, **NEAR, call=lambda f, x: [abs(part) for part in f(x, output="complex")]),
    "rsf2csf": case(TRIANGULAR, array(4, 4), **NEAR, call=lambda f, t, z: [abs(part) for part in f(t.T, z)]),
    "solve": case(SYMMETRIC, array(4, 2), **NEAR),
    "solve_sylvester": case(SYMMETRIC, SYMMETRIC, array(4, 4), **NEAR),
    "solve_triangular": case(TRIANGULAR, array(4, 2), lower=True, **NEAR),
    "svd": case(array(4, 3), **NEAR, call=lambda f, x: [abs(part) for part in f(x, full_matrices=False)]),
    "block_diag": case(array(2, 3), array(2, 2)),
    **each("circulant companion fiedler hankel toeplitz", array(4, values=positive)),
    "fiedler_companion": case(
        array(4, values=positive),
        without={"bool": "the divisor may be zero, and XLA gives zero for 0 / 0 of booleans"},
    ),
    "convolution_matrix": case(array(3), 5),
    "leslie": case(array(4), array(3)),
    **each("dft hadamard helmert hilbert invhilbert invpascal", array(), call=lambda f, x: x * f(4)),
    "pascal": case(array(), call=lambda f, x: x * f(4), narrow=True, rtol=1e-5, atol=1e-5),
}
LINE, PLANE = array("B", 6), array("B", 4, 6)


def rebuilt(upper, unitary):
    """What is left of a Schur form where the order of the eigenvalues is open."""
    return unitary @ upper @ jnp.conj(jnp.swapaxes(unitary, -1, -2)), jnp.tril(upper, -1)


SIZES_OF = lambda f, *xs, **kwargs: [abs(part) for part in f(*xs, **kwargs)]
REFLECTORS, FACTORS = array("B", 4, 3), array("B", 3)
LAX = {
    **each("cholesky lu", DEFINITE, **NEAR),
    "cholesky_update": case(array(4, 4, values=lambda g, s, d: np.triu(definite(g, s, d))), array(4), **NEAR),
    **each("eigh svd hessenberg tridiagonal eig", DEFINITE, call=SIZES_OF, **NEAR),
    "schur": case(DEFINITE, call=lambda f, x: rebuilt(*f(x)), **NEAR),
    "qr": case(R, call=SIZES_OF, full_matrices=False, **NEAR),
    "householder_product": case(REFLECTORS, FACTORS, **NEAR),
    "ormqr": case(REFLECTORS, FACTORS, array("B", 4, 2), **NEAR),
    "lu_pivots_to_permutation": case(array("B", 3, dtype=np.dtype(np.int32), values=lambda g, s, d: np.sort(g.integers(0, 4, s)).astype(d)), 4),
    "qdwh": case(SYMMETRIC, call=lambda f, x: f(x)[:2], **NEAR),
    "symmetric_product": case(R, DEFINITE, alpha=2.0, beta=0.5, **NEAR),
    "triangular_solve": case(DEFINITE, R, left_side=True, lower=True, **NEAR),
    "tridiagonal_solve": case(*[array("B", 4, values=v) for v in (between(-1, 1), between(3, 4), between(-1, 1))], array("B", 4, 2), **NEAR),
}  # fmt: skip
LAX_REASONS = dict.fromkeys(("EigImplementation", "EighImplementation", "SvdAlgorithm"), "a type")
# A sum over all elements is rounded by its largest terms, whatever it comes to.
SUM = {"rtol": 1e-5, "atol": 1e-3}
FFT = {
    **each("fft ifft rfft ihfft irfft hfft", LINE, **SUM),
    **each("fft2 ifft2 fftn ifftn rfft2 rfftn irfft2 irfftn", PLANE, **SUM),
    **each("fftshift ifftshift", LINE),
    **each("fftfreq rfftfreq", array(), call=lambda f, x: x * f(6, 0.5)),
}
