"""Special functions that ONNX has no operator for, as JAX functions.

If JAX itself computes a function by JAX code, that code is the rule. The others are written here: Lanczos' sum for the
gamma function and its derivative, Euler and Maclaurin's for zeta, Cody's and Cephes' rational functions for the error
function, Giles' polynomials for its inverse (M. Giles, "Approximating the erfinv function", GPU Computing Gems 2),
Chebyshev sums for the Bessel functions.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.emit.registry import rule
from jaxport.graph.editing import LATE
from jaxport.jaxprs import DIGAMMA_AT_ZERO
from jaxport.jaxprs.releases import (
    bessel_i0e_impl,
    igamma_grad_a_impl,
    igamma_impl,
    igammac_impl,
    random_gamma_grad_impl,
    regularized_incomplete_beta_impl,
)


def in_single_precision(function):
    """Compute half precision in single: the coefficients have more digits than it holds."""

    @functools.wraps(function)
    def computed(*operands, **parameters):
        dtype = operands[0].dtype
        if dtype.itemsize > 2:
            return function(*operands, **parameters)
        wide = (lax.convert_element_type(x, np.float32) for x in operands)
        return lax.convert_element_type(function(*wide, **parameters), dtype)

    return computed


def polynomial(x, coefficients):
    """Evaluate a polynomial by Horner's scheme, the highest power first, in the dtype of `x`."""
    result = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + np.asarray(coefficient, x.dtype)
    return result


# The error function and its relatives (Cephes, ndtr.c)
# -------------------------------------------------------------------

_ERF = (
    (9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
     5.55923013010394962768e4),
    (1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
     4.92673942608635921086e4),
)  # fmt: skip
_ERFC_BELOW_8 = (
    (2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1,
     1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
     5.57535335369399327526e2),
    (1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
     1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2),
)  # fmt: skip
_ERFC_ABOVE_8 = (
    (5.64189583547755073984e-1, 1.27536670759978104416e0, 5.01905042251180477414e0, 6.16021097993053585195e0,
     7.40974269950948939160e0, 2.97886665372100240670e0),
    (1.0, 2.26052863220117276590e0, 9.39603524938001434673e0, 1.20489539808096656605e1, 1.70814450747565897222e1,
     9.60896809063285878198e0, 3.36907645100081516050e0),
)  # fmt: skip


def _erf_near_zero(x):
    return x * polynomial(x * x, _ERF[0]) / polynomial(x * x, _ERF[1])


def _erfc_of_large(size):
    """Return 1 - erf for arguments of at least 1."""
    near = jnp.minimum(size, 8)
    below = polynomial(near, _ERFC_BELOW_8[0]) / polynomial(near, _ERFC_BELOW_8[1])
    inverse = 1 / jnp.maximum(size, 8)  # in powers of 1/x nothing overflows
    above = inverse * polynomial(inverse, _ERFC_ABOVE_8[0][::-1]) / polynomial(inverse, _ERFC_ABOVE_8[1][::-1])
    return jnp.exp(-size * size) * jnp.where(size < 8, below, above)


def erfc(x):
    """Return 1 - erf(x), with full relative precision in the tail."""
    size = jnp.abs(x)
    tail = _erfc_of_large(jnp.maximum(size, 1))
    tail = jnp.where(jnp.isinf(size), 0, tail)
    near = 1 - _erf_near_zero(jnp.clip(x, -1, 1))
    return jnp.where(jnp.isnan(x), x, jnp.where(size < 1, near, jnp.where(x < 0, 2 - tail, tail)))


def erf_in_double(x):
    """Return erf(x) if the runtime has no kernel for the dtype."""
    size = jnp.abs(x)
    far = 1 - jnp.where(size > 6, 0, _erfc_of_large(jnp.clip(size, 1, 6)))
    near = _erf_near_zero(jnp.clip(x, -1, 1))
    return jnp.where(jnp.isnan(x), x, jnp.where(size < 1, near, jnp.sign(x) * far))


_ERF_INV_SINGLE = (
    (5.0, 2.5, False, (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                       -0.00417768164, 0.246640727, 1.50140941)),
    (np.inf, 3.0, True, (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                         0.00943887047, 1.00167406, 2.83297682)),
)  # fmt: skip
_ERF_INV_DOUBLE = (
    (6.25, 3.125, False, (
        -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18, 1.115787767802518096e-17,
        -1.333171662854620906e-16, 2.0972767875968561637e-17, 6.6376381343583238325e-15, -4.0545662729752068639e-14,
        -8.1519341976054721522e-14, 2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
        1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08, 4.2347877827932403518e-07,
        -1.3654692000834678645e-06, -1.3882523362786468719e-05, 0.0001867342080340571352, -0.00074070253416626697512,
        -0.0060336708714301490533, 0.24015818242558961693, 1.6536545626831027356)),
    (16.0, 3.25, True, (
        2.2137376921775787049e-09, 9.0756561938885390979e-08, -2.7517406297064545428e-07, 1.8239629214389227755e-08,
        1.5027403968909827627e-06, -4.013867526981545969e-06, 2.9234449089955446044e-06, 1.2475304481671778723e-05,
        -4.7318229009055733981e-05, 6.8284851459573175448e-05, 2.4031110387097893999e-05, -0.0003550375203628474796,
        0.00095328937973738049703, -0.0016882755560235047313, 0.0024914420961078508066, -0.0037512085075692412107,
        0.005370914553590063617, 1.0052589676941592334, 3.0838856104922207635)),
    (np.inf, 5.0, True, (
        -2.7109920616438573243e-11, -2.5556418169965252055e-10, 1.5076572693500548083e-09, -3.7894654401267369937e-09,
        7.6157012080783393804e-09, -1.4960026627149240478e-08, 2.9147953450901080826e-08, -6.7711997758452339498e-08,
        2.2900482228026654717e-07, -9.9298272942317002539e-07, 4.5260625972231537039e-06, -1.9681778105531670567e-05,
        7.5995277030017761139e-05, -0.00021503011930044477347, -0.00013871931833623122026, 1.0103004648645343977,
        4.8499064014085844221)),
)  # fmt: skip


@in_single_precision
def erf_inv(x):
    """Return the inverse of erf, a polynomial of log(1 - x²) on each of a few intervals."""
    w = -jnp.log1p(-x * x)
    result = jnp.zeros_like(x)
    for limit, shift, root, coefficients in reversed(_ERF_INV_DOUBLE if x.dtype == np.float64 else _ERF_INV_SINGLE):
        value = polynomial((jnp.sqrt(w) if root else w) - np.asarray(shift, x.dtype), coefficients)
        result = value if limit == np.inf else jnp.where(w < limit, value, result)
    return jnp.where(jnp.abs(x) == 1, x * np.asarray(np.inf, x.dtype), result * x)


# The gamma function and its relatives
# --------------------------------------------------------------------------------------

_LANCZOS = 7.0
_LANCZOS_BASE = 0.99999999999980993227684700473478
_LANCZOS_SUM = (
    676.520368121885098567009190444019, -1259.13921672240287047156078755283, 771.3234287776530788486528258894,
    -176.61502916214059906584551354, 12.507343278686904814458936853, -0.13857109526572011689554707,
    9.984369578019570859563e-6, 1.50563273514931155834e-7,
)  # fmt: skip


@in_single_precision
def lgamma(x):
    """Return the logarithm of |gamma(x)|: Lanczos' sum, reflected for arguments below a half."""
    reflect = x < 0.5
    z = jnp.where(reflect, -x, x - 1)
    total = jnp.full_like(z, _LANCZOS_BASE)
    for index, coefficient in enumerate(_LANCZOS_SUM):
        total = total + np.asarray(coefficient, x.dtype) / (z + np.asarray(index + 1, x.dtype))
    t = z + np.asarray(_LANCZOS + 0.5, x.dtype)
    # log(t) from 7.5 (1 + z / 7.5) keeps its digits if z is small.
    log_t = np.asarray(np.log(_LANCZOS + 0.5), x.dtype) + jnp.log1p(z / np.asarray(_LANCZOS + 0.5, x.dtype))
    half = np.asarray(0.5, x.dtype)
    value = (z + half - t / log_t) * log_t + np.asarray(np.log(2 * np.pi) / 2, x.dtype) + jnp.log(total)
    fraction = jnp.abs(x) - jnp.floor(jnp.abs(x))
    fraction = jnp.where(fraction > half, 1 - fraction, fraction)
    sine = jnp.log(jnp.sin(np.asarray(np.pi, x.dtype) * fraction))
    reflected = jnp.where(jnp.isfinite(sine), np.asarray(np.log(np.pi), x.dtype) - sine - value, -sine)
    return jnp.where(jnp.isinf(x), np.asarray(np.inf, x.dtype), jnp.where(reflect, reflected, value))


@in_single_precision
def digamma(x):
    """Return the derivative of lgamma: that of Lanczos' sum, reflected for arguments below a half."""
    reflect = x < 0.5
    z = jnp.where(reflect, -x, x - 1)
    numerator, denominator = jnp.zeros_like(z), jnp.full_like(z, _LANCZOS_BASE)
    for index, coefficient in enumerate(_LANCZOS_SUM):
        below = z + np.asarray(index + 1, x.dtype)
        numerator = numerator - np.asarray(coefficient, x.dtype) / (below * below)
        denominator = denominator + np.asarray(coefficient, x.dtype) / below
    t = z + np.asarray(_LANCZOS + 0.5, x.dtype)
    log_t = np.asarray(np.log(_LANCZOS + 0.5), x.dtype) + jnp.log1p(z / np.asarray(_LANCZOS + 0.5, x.dtype))
    value = log_t + numerator / denominator - np.asarray(_LANCZOS, x.dtype) / t
    pi = np.asarray(np.pi, x.dtype)
    # tan(pi x) has period 1: without the integer part of x it keeps its digits.
    reduced = x + jnp.abs(jnp.floor(x + np.asarray(0.5, x.dtype)))
    reflected = value - pi * jnp.cos(pi * reduced) / jnp.sin(pi * reduced)
    result = jnp.where(reflect, reflected, value)
    pole = np.asarray(np.nan, x.dtype)
    if not np.isnan(DIGAMMA_AT_ZERO):
        pole = jnp.where(x == 0, np.asarray(DIGAMMA_AT_ZERO, x.dtype), pole)
    return jnp.where((x <= 0) & (x == jnp.floor(x)), pole, result)


#: (2k)! / B(2k), the divisors in Euler and Maclaurin's sum for zeta.
_ZETA = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10, -2.950130727918164224e12,
    1.1646782814350067249e14, -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip


@in_single_precision
def zeta(x, q):
    """Return Hurwitz' zeta function, the sum of (q + k)^-x: nine terms, and Euler and Maclaurin's sum for the rest."""
    terms = 9
    total = jnp.power(q, -x)
    a, b = q, total
    for _ in range(terms):
        a = a + 1
        b = jnp.power(a, -x)
        total = total + b
    total = total + b * a / (x - 1) - b * np.asarray(0.5, x.dtype)
    factor, live = jnp.ones_like(x), jnp.ones_like(x, dtype=bool)
    for index, divisor in enumerate(_ZETA):
        factor = factor * (x + np.asarray(2 * index, x.dtype))
        b = b / a
        term = factor * b / np.asarray(divisor, x.dtype)
        # A converged sum is kept: the factors of later terms overflow.
        live = live & (jnp.abs(term) > np.finfo(x.dtype).eps * jnp.abs(total))
        total = jnp.where(live, total + term, total)
        factor = factor * (x + np.asarray(2 * index + 1, x.dtype))
        b = b / a
    at_pole = (q <= 0) & (q == jnp.floor(q))
    nan, infinity = (np.asarray(v, x.dtype) for v in (np.nan, np.inf))
    undefined = (x < 1) | jnp.isinf(x) | ((q <= 0) & (x != jnp.floor(x)) & ~at_pole)
    even = x == 2 * jnp.floor(x / 2)
    pole = jnp.where(even & (x == jnp.floor(x)), infinity, nan)
    return jnp.where(x == 1, infinity, jnp.where(undefined, nan, jnp.where(at_pole, pole, total)))


@in_single_precision
def polygamma(order, x):
    """Return (-1)^(n+1) n! zeta(n + 1, x), and digamma for n = 0."""
    sign = 1 - 2 * ((order + 1) - 2 * jnp.floor((order + 1) / 2))
    value = sign * jnp.exp(lgamma(order + 1)) * zeta(order + 1, x)
    undefined = (order < 0) | (order != jnp.floor(order))
    return jnp.where(undefined, np.asarray(np.nan, x.dtype), jnp.where(order == 0, digamma(x), value))


# Bessel functions
# ------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def _i1e_coefficients():
    """Return Chebyshev coefficients of I1e(x) / x on [0, 8], and of sqrt(x) I1e(x) over 1/x beyond."""
    from scipy import special  # a dependency of JAX, and slow to import

    fit = np.polynomial.chebyshev.chebinterpolate
    below = lambda t: np.where(t > -1, special.i1e(4 * t + 4) / np.maximum(4 * t + 4, 1e-300), 0.5)
    above = lambda t: special.i1e(16 / (t + 1)) * np.sqrt(16 / (t + 1))
    return fit(below, 36), fit(above, 24)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _chebyshev_sum(t, coefficients):
    """Evaluate a Chebyshev sum by Clenshaw's recurrence."""
    ahead, further = jnp.zeros_like(t), jnp.zeros_like(t)
    for coefficient in coefficients[:0:-1]:
        ahead, further = np.asarray(coefficient, t.dtype) + 2 * t * ahead - further, ahead
    return np.asarray(coefficients[0], t.dtype) + t * ahead - further


@in_single_precision
def bessel_i1e(x):
    """Return exp(-|x|) I1(x)."""
    below, above = _i1e_coefficients()
    size = jnp.abs(x)
    near = size * _chebyshev_sum(jnp.minimum(size, 8) / 4 - 1, below)
    large = jnp.maximum(size, 8)
    far = _chebyshev_sum(16 / large - 1, above) / jnp.sqrt(large)
    return jnp.sign(x) * jnp.where(size <= 8, near, far)


def by_jax(implementation):
    """Return a definition of JAX's own, which takes operands of one shape and dtype."""

    @in_single_precision
    @functools.wraps(implementation)
    def computed(*operands):
        shape = jnp.broadcast_shapes(*(x.shape for x in operands))
        return implementation(*(jnp.broadcast_to(x, shape) for x in operands), dtype=operands[0].dtype)

    return computed


@rule("erfc")
def erfc_as_one_node(op, x):
    """Write one node, which the pass `late` writes out: a GELU is recognised by it."""
    if x.dtype.itemsize == 2:
        return op.call(in_single_precision(lax.erfc), x)
    if not op.walker.late or x.dtype != np.float32:
        return op.call(erfc, x)
    return op.emit(LATE, x, results=[(x.dtype, x.shape)])


for _name, _function in {
    "erf_inv": erf_inv,
    "lgamma": lgamma,
    "digamma": digamma,
    "zeta": zeta,
    "polygamma": polygamma,
    "bessel_i0e": bessel_i0e_impl,
    "bessel_i1e": bessel_i1e,
    "igamma": by_jax(igamma_impl),
    "igammac": by_jax(igammac_impl),
    "igamma_grad_a": by_jax(igamma_grad_a_impl),
    "random_gamma_grad": by_jax(random_gamma_grad_impl),
    "regularized_incomplete_beta": by_jax(regularized_incomplete_beta_impl),
}.items():
    rule(_name, via=_function)
