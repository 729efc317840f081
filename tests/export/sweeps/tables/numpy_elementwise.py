"""The cases of `jax.numpy`: elementwise functions, reductions and products."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from tests.export.sweeps.cases import FLOATS, array, below, between, case, distinct, each, indices, ordered, positive

X, Y, Z = array("B", "T"), array("B", "T"), array("B", "T")
SMALL, UNIT, OVER_ONE = (array("B", "T", values=between(*b)) for b in ((-2, 2), (-0.9, 0.9), (1.1, 3)))
PLUS, MORE = (array("B", "T", values=positive) for _ in range(2))
SHIFT = array("B", "T", values=below(7))
MASK = array("B", "T", dtype=np.dtype(bool))
DISTINCT = array("B", "L", values=distinct)
V, W = array("T"), array("T")

#: A gradient through float16 is rounded there by JAX, and not by a runtime that adds in float32.
HALF = {"narrow": True, "rtol": 4e-3, "atol": 4e-3}
ELEMENTWISE = {
    **each(
        "abs absolute angle bitwise_count bitwise_invert bitwise_not cbrt ceil conj conjugate deg2rad degrees exp "
        "exp2 expm1 fabs fix floor i0 imag invert isfinite isinf isnan isneginf isposinf isreal iscomplex "
        "logical_not nan_to_num negative positive rad2deg radians real reciprocal rint round around sign signbit "
        "sin sinc spacing square tan tanh trunc real_if_close frexp modf unwrap "
        "arctan atan arcsinh asinh".replace("fix ", "").replace("real_if_close ", ""),
        X,
    ),
    **each("cosh sinh cos", SMALL),
    **each("arccos acos arcsin asin arctanh atanh", UNIT),
    **each("arccosh acosh", OVER_ONE),
    **each("log log10 log1p log2 sqrt", PLUS),
    **each(
        "add arctan2 atan2 bitwise_and bitwise_or bitwise_xor copysign divide divmod equal floor_divide fmax fmin "
        "fmod gcd greater greater_equal heaviside hypot isclose lcm less less_equal logaddexp logaddexp2 "
        "logical_and logical_or logical_xor maximum minimum mod multiply nextafter not_equal remainder subtract "
        "true_divide allclose array_equal array_equiv",
        X,
        Y,
    ),
    **each("power pow float_power", PLUS, Y),
    **each("bitwise_left_shift bitwise_right_shift left_shift right_shift", X, SHIFT),
    "ldexp": case(X, indices("B", "T", bound=5)),
    "clip": case(X, -1, 2),
    "where": case(MASK, X, Y),
    "select": case([MASK, array("B", "T", dtype=np.dtype(bool))], [X, Y], 3),
    "piecewise": case(X, call=lambda f, x: f(x, [x < 0, x > 1], [x.dtype.type(1), lambda v: v + v, x.dtype.type(0)])),
    "astype": case(X, np.float16, **HALF),
    "ufunc": case(
        X, Y, call=lambda f, x, y: jnp.add.at(x, (0, 1), y[0, 0], inplace=False) + jnp.add.outer(x, y).sum((2, 3))
    ),
    "vectorize": case(X, V, call=lambda f, x, y: f(lambda a, b: a * b, signature="(n),(n)->(n)")(x, y)),
    "frompyfunc": case(X, Y, call=lambda f, x, y: f(lambda a, b: a * b, 2, 1, identity=1)(x, y)),
    "interp": case(X, array("L", values=ordered), array("L"), dtypes=FLOATS),
    "polyval": case(array("N"), X),
}
TYPES = each(
    "bfloat16 bool bool_ float16 float32 float64 float_ double single int_ int8 int16 int32 int64 uint uint8 uint16 "
    "uint32 uint64 cdouble csingle complex64 complex128 complex_", X,
    call=lambda f, x: f(x),
)  # fmt: skip
TYPES |= each("float16", X, call=lambda f, x: f(x), **HALF)
NARROW = each(
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu int2 int4 uint2 uint4", X,
    call=lambda f, x: f(x).astype(np.float32), options={"opset": 25}, dtypes=("float32", "int32"),
)  # fmt: skip
NO_DATA_TYPE = each(
    "float4_e2m1fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz int1", X,
    call=lambda f, x: f(x).astype(np.float32), dtypes=("float32", "int32"), without={"grad": "the type itself is refused"},
)  # fmt: skip
ELSEWHERE = each(
    "float6_e2m3fn float6_e3m2fn uint1",
    X,
    call=lambda f, x: f(x).astype(np.float32),
    dtypes=("float32",),
    without={"grad": "JAX cannot run the type itself"},
)
REDUCTIONS = {
    **each(
        "all amax amin any argmax argmin count_nonzero max mean min nanargmax nanargmin nanmax nanmean nanmin "
        "minmax nanprod nanstd nansum nanvar prod ptp std sum var",
        X,
        axis=1,
    ),
    "top_k": case(DISTINCT, 2, axis=1),
    **each("max min sum prod nanmax nanmin nansum nanprod amax amin", X, axis=1, keepdims=True, initial=3, where=MASK),
    **each("mean var std all any nanmean", X, axis=0, keepdims=True, where=MASK),
    **each("cumprod cumsum nancumprod nancumsum", X, axis=1),
    **each("cumulative_prod cumulative_sum", X, axis=1, include_initial=True),
    **each("median nanmedian", DISTINCT, axis=1),
    **each("percentile nanpercentile", DISTINCT, np.float32(30), axis=1),
    **each("quantile nanquantile", DISTINCT, np.float32(0.3), axis=1),
    "average": case(X, 1, PLUS),
    "trapezoid": case(X, Y),
    "corrcoef": case(
        array("B", "L"),
        without={"float16, static, grad": "is clipped at one, where correlations differ from one only by rounding"},
    ),
    "cov": case(array("B", "L")),
    "apply_along_axis": case(X, call=lambda f, x: f(lambda v: v * v, 1, x)),
    "apply_over_axes": case(array("B", "T", "N"), call=lambda f, x: f(jnp.sum, x, [0, 2])),
    "diff": case(X, axis=1),
    "ediff1d": case(X),
    "gradient": case(array("B", "N"), axis=1),
}
PRODUCTS = {
    "convolve": case(array("L"), array("T")),
    "correlate": case(array("L"), array("T")),
    "cross": case(array("B", 3), array("B", 3)),
    "dot": case(X, array("T", "N")),
    "einsum": case("bt,tn->bn", X, array("T", "N")),
    "einsum_path": case(
        X, array("T", "N"), call=lambda f, x, y: jnp.einsum("bt,tn->bn", x, y, optimize=f("bt,tn->bn", x, y)[0])
    ),
    "inner": case(X, array("N", "T")),
    "kron": case(X, array("N", "M")),
    "matmul": case(array("B", "T", "N"), array("B", "N", "M")),
    "matvec": case(array("B", "T", "N"), array("B", "N")),
    "outer": case(V, array("N")),
    "tensordot": case(array("B", "T", "N"), array("T", "N", "M"), 2),
    "trace": case(array("N", "N")),
    "vdot": case(X, Y),
    "vecdot": case(X, Y),
    "vecmat": case(array("B", "T"), array("B", "T", "N")),
}
CASES = {**ELEMENTWISE, **TYPES, **NARROW, **REDUCTIONS, **PRODUCTS}
