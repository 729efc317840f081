"""Custom calls that JAX writes, as the primitives that they come from."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.jaxprs import releases
from jaxport.stablehlo import host
from jaxport.stablehlo.ops.contractions import cholesky
from jaxport.stablehlo.registry import define


def _lapack(routine, kinds="sdcz"):
    return define(*(f"@lapack_{kind}{routine}_ffi" for kind in kinds))


def _letter(value):
    return chr(int(value)) if not isinstance(value, str) else value


def _no_error(a):
    return jnp.zeros(a.shape[:-2], np.int32)


def _unset(a, kinds):
    """Return arrays for results that were not asked for; the sizes of batches are those of an operand."""
    return [jnp.zeros((*a.shape[:-2], *kind.shape[a.ndim - 2 :]), kind.dtype) for kind in kinds]


@define("sdy.sharding_constraint", "sdy.reshard")
def sharding_constraint(x, *, sharding, **_):
    """Constrain how an array is spread, if a mesh is set that has the axes."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size < 2 or not {name for names in sharding for name in names} <= {*mesh.auto_axes}:
        return x
    return lax.with_sharding_constraint(x, jax.sharding.PartitionSpec(*sharding))


@define("sdy.propagation_barrier")
@define(
    "@Sharding", "@SPMDFullToShardShape", "@SPMDShardToFullShape", "@annotate_device_placement", "@LayoutConstraint"
)
def as_it_is(x, **_):
    return x


@define("sdy.sharding_group")
def nothing(x, **_):
    return ()


@define("@shape_assertion")
def shape_assertion(condition, *values, error_message="", context, **_):
    if host.is_known(condition) and not bool(np.all(condition)):
        shown = [value.ravel()[0] if host.is_known(value) else "?" for value in values]
        raise ValueError(error_message.format(*shown))
    return ()


@define("@check.eq", "@check.expect_eq", "@check.expect_close", "@check.expect_almost_eq")
def check(x, y, *, results, **_):
    """What test programs assert of their results: it is returned where a result is asked for."""
    wide = jnp.complex64 if jnp.iscomplexobj(x) else jnp.float32
    same = (x == y) | ((x != x) & (y != y)) | jnp.isclose(x.astype(wide), y.astype(wide), 1e-3, 1e-4)
    return jnp.all(same) if results else ()


@define("@AllocateBuffer")
def allocate_buffer(*, result, **_):
    return jnp.zeros(result.shape, result.dtype)


@_lapack("potrf")
def potrf(a, *, uplo, **_):
    factor, is_lower = cholesky(a, lower=_letter(uplo) == "L"), _letter(uplo) == "L"
    is_bad = jnp.any(jnp.isnan(factor), (-1, -2))
    kept = jnp.triu(a, 1) if is_lower else jnp.tril(a, -1)
    return factor + kept, is_bad.astype(np.int32)


@_lapack("getrf")
def getrf(a, **_):
    lu, pivots, _permutation = lax.linalg.lu(a)
    return lu, pivots + 1, _no_error(a)


@define("@LuDecomposition")
def lu_decomposition(a, **_):
    return lax.linalg.lu(a)


@define("@lu_pivots_to_permutation", "@cu_lu_pivots_to_permutation", "@hip_lu_pivots_to_permutation")
def lu_pivots_to_permutation(pivots, *, result, **_):
    return lax.linalg.lu_pivots_to_permutation(pivots, result.shape[-1])


@_lapack("geqrf")
@define("@Qr")
def geqrf(a, **_):
    return releases.geqrf(a)


@_lapack("orgqr", "sd")
@_lapack("ungqr", "cz")
@define("@ProductOfElementaryHouseholderReflectors")
def householder_product(a, taus, **_):
    return lax.linalg.householder_product(a, taus)


@_lapack("syevd", "sd")
@_lapack("heevd", "cz")
def syevd(a, *, uplo, **_):
    vectors, values = lax.linalg.eigh(a, lower=_letter(uplo) == "L", symmetrize_input=False)
    return vectors, values, _no_error(a)


@_lapack("ormqr", "sd")
@_lapack("unmqr", "cz")
def ormqr(a, taus, c, *, left, transpose, **_):
    size = c.shape[-2 if left else -1]
    none = [(0, 0, 0)] * (a.ndim - 2)
    square = lax.pad(a, jnp.zeros((), a.dtype), [*none, (0, 0, 0), (0, size - a.shape[-1], 0)])
    scales = lax.pad(taus, jnp.zeros((), taus.dtype), [*none, (0, size - taus.shape[-1], 0)])
    q = lax.linalg.householder_product(square, scales)
    q = jnp.conj(jnp.swapaxes(q, -1, -2)) if transpose else q
    return q @ c if left else c @ q


@_lapack("geqp3")
def geqp3(a, pivots, **_):
    factors, pivots, taus = releases.geqp3(a, pivots)
    return factors, pivots, taus


@define("@tridiagonal_solve_perturbed_ffi")
def tridiagonal_solve_perturbed(low, middle, high, b, **_):
    return lax.linalg.tridiagonal_solve(low, middle, high, b, perturb_singular=True)


@define("@Eigh")
def eigh(a, *, lower=True, **_):
    return lax.linalg.eigh(a, lower=bool(lower), symmetrize_input=False)


@_lapack("gesdd")
@_lapack("gesvd")
def gesdd(a, *, mode=b"A", results, **_):
    with_vectors = len(results) > 3 and _letter(mode) != "N"
    if not with_vectors:
        values = lax.linalg.svd(a, compute_uv=False)
        return (a, values, *_unset(a, results[2:4]), _no_error(a))
    u, values, vh = lax.linalg.svd(a, full_matrices=_letter(mode) == "A")
    return a, values, u, vh, _no_error(a)


@_lapack("geev")
def geev(a, *, compute_left, compute_right, results, **_):
    flags = [_letter(flag) == "V" for flag in (compute_left, compute_right)]
    values, *vectors = lax.linalg.eig(a, compute_left_eigenvectors=flags[0], compute_right_eigenvectors=flags[1])
    rest = iter(vectors)
    kinds = [kind for kind in results if len(kind.shape) == a.ndim]
    sides = [next(rest) if flag else unset for flag, unset in zip(flags, _unset(a, kinds), strict=True)]
    parts = [values] if jnp.iscomplexobj(a) else [values.real, values.imag]
    return (*parts, *sides, _no_error(a))


@_lapack("gees")
def gees(a, *, mode, results, **_):
    form, vectors = lax.linalg.schur(a, compute_schur_vectors=_letter(mode) == "V")
    return tuple(
        form if at == 0 else vectors if len(kind.shape) == a.ndim else _unset(a, [kind])[0]
        for at, kind in enumerate(results)
    )


@_lapack("sytrd", "sd")
@_lapack("hetrd", "cz")
def sytrd(a, *, uplo, **_):
    form, diagonal, beside, taus = lax.linalg.tridiagonal(a, lower=_letter(uplo) == "L")
    return form, diagonal, beside, taus, _no_error(a)


@_lapack("gehrd")
def gehrd(a, **_):
    form, taus = lax.linalg.hessenberg(a)
    return form, taus, _no_error(a)


@_lapack("gtsv")
def gtsv(low, middle, high, b, **_):
    return low, middle, high, lax.linalg.tridiagonal_solve(low, middle, high, b), jnp.zeros(b.shape[:-2], np.int32)


@_lapack("trsm")
@define(*(f"@blas_{kind}trsm" for kind in "sdcz"))
def trsm(a, b, *, side, uplo, trans_x, diag, **_):
    letter = _letter(trans_x)
    return lax.linalg.triangular_solve(
        a, b, left_side=_letter(side) == "L", lower=_letter(uplo) == "L", transpose_a=letter != "N",
        conjugate_a=letter == "C", unit_diagonal=_letter(diag) == "U",
    )  # fmt: skip


@define(
    "@ApproxTopK",
    "@PartialReduce",
    "@stablehlo.dynamic_approx_top_k",
    "@stablehlo.dynamic_top_k",
    "@TopK",
    "@mhlo.topk",
)
def top_k(x, *rest, results, largest=True, context, **_):
    k = results[0].shape[-1]
    if k is None:
        (k,) = host.dims_of(rest[0], context.where)
    if not largest:
        values, indices = lax.top_k(-x, k)
        return -values, indices
    return lax.top_k(host.as_jax(x), k)


@define("@cu_threefry2x32_ffi", "@hip_threefry2x32_ffi")
def threefry(k1, k2, x1, x2, **_):
    return releases.threefry2x32(k1, k2, x1, x2)
