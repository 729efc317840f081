"""The cases of `jax.random`, `jax.image` and `jax.ops`."""

from __future__ import annotations

import jax
import numpy as np

from tests.export.sweeps.cases import FLOATS, KEY, array, between, case, definite, each, indices, positive

WIDE = ("float32", "float64")
X, PLUS, MORE, HALF = (
    array("B", "T"), array("B", "T", values=positive), array("B", "T", values=positive), array("B", "T", values=between(0.1, 0.9))
)  # fmt: skip
SHAPED = lambda f, k, x: f(k, x.shape, x.dtype)

RANDOM = {
    **each("cauchy double_sided_maxwell exponential gumbel laplace logistic maxwell normal rademacher uniform", KEY, X, call=SHAPED,
           dtypes=(*FLOATS,)),
    **each("bits", KEY, array("B", "T", dtype=None), call=SHAPED, dtypes=("uint32", "uint8", "uint16", "uint64")),
    **each("rademacher", KEY, X, call=SHAPED, dtypes=("int32", "int8", "float32")),
    "double_sided_maxwell": case(KEY, 0.5, 2.0, X, call=lambda f, k, a, b, x: f(k, a, b, x.shape, x.dtype), dtypes=FLOATS),
    "truncated_normal": case(KEY, X, call=lambda f, k, x: f(k, -1, 2, x.shape, x.dtype), dtypes=FLOATS),
    "generalized_normal": case(KEY, X, call=lambda f, k, x: f(k, 1.5, x.shape, x.dtype), dtypes=WIDE),
    "ball": case(KEY, X, call=lambda f, k, x: f(k, 3, 2, (2,), x.dtype), dtypes=WIDE),
    "bernoulli": case(KEY, HALF, dtypes=FLOATS),
    "beta": case(KEY, PLUS, MORE, dtypes=WIDE),
    "binomial": case(KEY, array("T", values=between(3, 9)), array("T", values=between(0.2, 0.8)), dtypes=WIDE),
    "categorical": case(KEY, X, dtypes=FLOATS),
    **each("chisquare gamma loggamma t rayleigh pareto wald", KEY, PLUS, call=lambda f, k, x: f(k, x, dtype=x.dtype), dtypes=WIDE),
    "lognormal": case(KEY, X, call=lambda f, k, x: f(k, 1.0, x.shape, x.dtype), dtypes=FLOATS),
    "choice": case(KEY, array("T"), (4,)),
    "dirichlet": case(KEY, PLUS, call=lambda f, k, x: f(k, x, dtype=x.dtype), dtypes=WIDE),
    "f": case(KEY, PLUS, MORE, call=lambda f, k, x, y: f(k, x, y, dtype=x.dtype), dtypes=WIDE),
    "geometric": case(KEY, HALF, dtypes=WIDE),
    "multinomial": case(KEY, np.float32(9), array(4, values=lambda g, s, d: np.full(s, 0.25, d)), dtypes=WIDE),
    "multivariate_normal": case(KEY, array(3), array(3, 3, values=definite), dtypes=WIDE),
    "orthogonal": case(KEY, array(), call=lambda f, k, x: f(k, 3, (), x.dtype), dtypes=WIDE),
    "permutation": case(KEY, array("T", "N")),
    "poisson": case(KEY, PLUS, call=lambda f, k, x: f(k, x), dtypes=WIDE),
    "randint": case(KEY, array("B", "T"), call=lambda f, k, x: f(k, x.shape, 1, 9, x.dtype), dtypes=("int32", "int8", "uint32", "int64")),
    "triangular": case(KEY, X, call=lambda f, k, x: f(k, -1.0, 0.5, 2.0, x.shape, x.dtype), dtypes=WIDE),
    "weibull_min": case(KEY, X, call=lambda f, k, x: f(k, 2.0, 1.5, x.shape, x.dtype), dtypes=WIDE),
    "PRNGKey": case(indices(bound=9)),
    "key": case(indices(bound=9)),
    "fold_in": case(KEY, indices(bound=9)),
    "split": case(KEY, 3),
    "clone": case(KEY),
    "key_data": case(KEY),
    "wrap_key_data": case(array(2, dtype=np.dtype(np.uint32))),
    "key_impl": case(KEY, call=lambda f, k: jax.random.key(3, impl=f(k))),
    "key_dtype": case(KEY, call=lambda f, k: jax.random.wrap_key_data(jax.random.key_data(k), dtype=f(str(jax.random.key_impl(k))))),
}  # fmt: skip
IMAGE = {
    "resize": case(array("B", 4, 5, 3), call=lambda f, x: f(x, (x.shape[0], 7, 3, 3), "bilinear"), dtypes=FLOATS),
    "scale_and_translate": case(
        array(4, 5),
        array(2, values=between(0.5, 2)),
        array(2, values=between(-1, 1)),
        dtypes=FLOATS,
        call=lambda f, x, s, t: f(x, (6, 7), (0, 1), s, t, "linear"),
    ),
}
RANDOM_REASONS = {"Key": "a type"}
IMAGE_REASONS = {"ResizeMethod": "a type"}
OPS = each("segment_max segment_min segment_prod segment_sum", array("L", "T"), indices("L", bound=4), num_segments=4)
