"""The cases of `jax.scipy`: special functions, statistics, signals, images."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tests.export.sweeps.cases import (
    FLOATS,
    Case,
    array,
    below,
    between,
    case,
    distinct,
    each,
    indices,
    names_of,
    positive,
)

WIDE = ("float32", "float64")
X, Y = array("B", "T"), array("B", "T")
UNIT, HALF, SMALL, OVER_ONE = (
    array("B", "T", values=between(*b)) for b in ((-0.9, 0.9), (0.1, 0.9), (0.2, 2), (1.1, 3))
)
PLUS, MORE, MOST = (array("B", "T", values=positive) for _ in range(3))
COUNT = array("B", "T", values=below(5))

SPECIAL = {
    **each("dawsn erf erfc erfcx entr expit i0 i0e i1 i1e log_ndtr ndtr exp1 expi fresnel sici spence wofz", X, rtol=3e-5),
    **each("digamma gamma gammaln gammasgn loggamma", X, rtol=3e-5),
    **each("logit ndtri", HALF),
    **each("erfinv", UNIT),
    **each("erfcinv", HALF),
    **each("log_softmax logsumexp softmax", X, axis=-1),
    **each("beta betaln", PLUS, MORE, rtol=3e-5),
    **each("gammainc gammaincc kl_div rel_entr xlogy xlog1py", PLUS, MORE),
    **each("boxcox boxcox1p", PLUS, Y),
    "betainc": case(PLUS, MORE, HALF),
    "bernoulli": case(X, call=lambda f, x: f(5).astype(x.dtype) * x[0, 0]),
    "bessel_jn": case(SMALL, v=3, dtypes=WIDE),
    "comb": case(array("B", "T", values=between(3, 6)), array("B", "T", values=between(0, 3)), rtol=3e-5),
    "expn": case(indices("B", "T", bound=4), PLUS, dtypes=WIDE),
    "factorial": case(COUNT),
    "hyp1f1": case(SMALL, OVER_ONE, HALF, dtypes=WIDE),
    "hyp2f1": case(HALF, SMALL, OVER_ONE, HALF, dtypes=WIDE),
    "multigammaln": case(array("B", "T", values=between(3, 5)), 2),
    "owens_t": case(X, Y),
    "poch": case(PLUS, MORE, rtol=3e-5),
    "polygamma": case(indices("B", "T", bound=3), PLUS, rtol=3e-5, dtypes=WIDE),
    "sph_harm_y": case(
        indices(4, bound=3), indices(4, bound=1), array(4, values=between(0.1, 3)), array(4, values=between(0.1, 3)),
        n_max=4, dtypes=WIDE,
    ),
    "zeta": case(OVER_ONE, PLUS),
}  # fmt: skip
SPECIAL["spence"] = case(PLUS)
OVERFLOWS = {"float16": "intermediate values overflow in JAX, while a runtime computes in float32"}
SPECIAL["expi"] = SPECIAL["exp1"] = case(PLUS, rtol=3e-5, without=OVERFLOWS)

P, Q, N3 = HALF, PLUS, array("B", "T", values=below(4))
DISTRIBUTIONS = {
    "bernoulli": (array("B", "T", values=below(2)), P), "beta": (P, PLUS, MORE), "betabinom": (N3, 5, PLUS, MORE),
    "binom": (N3, 5, P), "cauchy": (X,), "chi2": (PLUS, MORE), "dirichlet": (np.float32([0.2, 0.3, 0.5]), array(3, values=positive)),
    "expon": (PLUS,), "gamma": (PLUS, MORE), "gennorm": (X, MORE), "geom": (array("B", "T", values=lambda g, s, d: (1 + g.integers(0, 4, s)).astype(d)), P),
    "gumbel_l": (X,), "gumbel_r": (X,), "laplace": (X,), "logistic": (X,), "nbinom": (N3, 5, P), "norm": (X,),
    "pareto": (OVER_ONE, PLUS), "poisson": (N3, PLUS), "t": (X, PLUS), "truncnorm": (P, -1, 2), "uniform": (X, -1, 3),
    "vonmises": (UNIT, PLUS), "wrapcauchy": (PLUS, P), "multinomial": (indices(3, bound=3), 5, np.float32([0.2, 0.3, 0.5])),
    "multivariate_normal": (array("B", "T"), np.zeros(3, np.float32), np.eye(3, dtype=np.float32)),
}  # fmt: skip


def distribution(name: str) -> Case:
    """All the functions of a distribution, at the same points; quantiles at probabilities."""

    def call(module, *args):
        names = [n for n in names_of(module) if n not in ("ppf", "isf")]
        inverse = [n for n in names_of(module) if n in ("ppf", "isf")]
        points = [getattr(module, n)(*args) for n in names if n in PARTS]
        return [*points, *(getattr(module, n)(jax.nn.sigmoid(args[0]), *args[1:]) for n in inverse)]

    return case(*DISTRIBUTIONS[name], call=call, dtypes=WIDE, rtol=1e-4, atol=1e-5)


PARTS = ("pdf", "logpdf", "pmf", "logpmf", "cdf", "logcdf", "sf", "logsf", "entropy")
STATS = {
    **{name: distribution(name) for name in DISTRIBUTIONS},
    "gaussian_kde": case(array(12), array(5), call=lambda f, data, x: f(data)(x), dtypes=WIDE),
    "mode": case(array("B", "L", values=below(3)), axis=1),
    "rankdata": case(array("L", values=distinct)),
    "sem": case(array("B", "L"), axis=1),
}
SIGNAL = {
    **each("convolve correlate fftconvolve", array("L"), array(3), rtol=1e-4, atol=1e-4),
    **each("convolve2d correlate2d", array("H", "W"), array(2, 3)),
    "csd": case(array(32), array(32), nperseg=8, dtypes=WIDE),
    "detrend": case(array("B", 12)),
    "istft": case(array(5, 6, dtype=np.dtype(np.complex64)), nperseg=8),
    "stft": case(array(32), nperseg=8, dtypes=WIDE),
    "welch": case(array(32), nperseg=8, dtypes=WIDE),
}
NDIMAGE = {
    "map_coordinates": case(
        array("H", "W"), [array("T", values=between(-1, 6)), array("T", values=between(-1, 6))], order=1
    )
}
INTEGRATE = {"trapezoid": case(X, Y)}
INTERPOLATE = {
    "RegularGridInterpolator": case(
        array(4, 5),
        array("T", 2, values=between(0, 3)),
        dtypes=WIDE,
        call=lambda f, v, p: f((jnp.arange(4.0), jnp.arange(5.0)), v)(p),
    )
}
CLUSTER = {"vq": case(array("L", 3), array(4, 3), dtypes=FLOATS)}
FFT = each("dct idct dctn idctn", array("B", 6), dtypes=WIDE, rtol=1e-5, atol=1e-5)
