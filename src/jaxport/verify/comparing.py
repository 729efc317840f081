"""Compare two arrays: their difference, and whether it is tolerated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxport.errors import JaxportError

#: Tolerance of a float in units of its precision, by the bits of its type: relative to each element, and to the largest
#: one. The two sides sum in different orders, and errors grow through a model; the narrow types are rounded after each
#: operation on both sides, so that a few units are much.
UNITS: dict[int, tuple[float, float]] = {4: (1, 1), 8: (1, 1), 16: (8, 4), 32: (1e3, 1e2), 64: (1e5, 1e4)}

#: The errors of JAX for a program that it cannot run or lower, and ours.
FAILURES = (JaxportError, NotImplementedError, RuntimeError, TypeError, ValueError)
#: The tolerated multiple of the change that rounding causes to an element in JAX itself.
MARGIN = 8.0

Changes = list[np.ndarray]
"""The largest change of each element of each result, in JAX itself under different rounding."""


@dataclass(frozen=True)
class Difference:
    """The difference between a result and the expected one.

    Attributes:
      problem: why they do not agree, or an empty string if they do.
      absolute: the largest difference of two elements.
      relative: the same, in units of the largest expected element.
      ulps: the largest number of floats that lie between two elements; None for integers.
      finite: the fraction of elements that are finite on both sides; the other figures refer to these.
      note: a remark on a result that agrees: how many elements are ill-conditioned.

    >>> import numpy as np
    >>> from jaxport.verify import difference
    >>> difference(np.float32([1, 2]), np.float32([1, 2.5])).absolute
    0.5
    """

    problem: str = ""
    absolute: float = 0.0
    relative: float = 0.0
    ulps: int | None = None
    finite: float = 1.0
    note: str = ""


def tolerances(dtype: DTypeLike, inside: DTypeLike | None = None) -> tuple[float, float]:
    """Return how much an element may differ: relative to itself, and relative to the largest element.

    Args:
      dtype: the dtype of the elements.
      inside: the narrowest float that they were rounded to before, if that is known.

    >>> tolerances(np.int32)
    (0.0, 0.0)
    """
    if not jnp.issubdtype(dtype, np.inexact):
        return 0.0, 0.0
    precision = jnp.finfo(dtype)
    if inside is not None and jnp.finfo(inside).eps > precision.eps:
        precision = jnp.finfo(inside)
    relative, scaled = UNITS[precision.bits]
    return relative * float(precision.eps), scaled * float(precision.eps)


class Tolerance(NamedTuple):
    """How far an element may be off, as `difference` takes it; None for the tolerance of the dtype.

    >>> difference(np.float32([1, 2]), np.float32([1, 3]), *Tolerance(atol=2)).problem
    ''
    """

    rtol: float | None = None
    atol: float | None = None


OF_DTYPES = Tolerance()


def difference(
    expected: Any,
    actual: Any,
    rtol: float | None = None,
    atol: float | None = None,
    *,
    inside: DTypeLike | None = None,
    spread: np.ndarray | None = None,
    scaled: float | None = None,
) -> Difference:
    """Compare an expected with a computed array: dtype, shape, and every element.

    NaN agrees with NaN, and an infinity with the same infinity, also as part of a complex number. Integers and
    booleans are compared exactly unless tolerances are given.

    Args:
      expected, actual: arrays.
      rtol: the tolerance relative to each element; by default that of the dtype.
      atol: the absolute tolerance; by default that of the dtype for the largest element.
      inside: the narrowest float dtype that the elements were rounded to on the way.
      spread: the change of each element in JAX itself under different rounding (see `conditioning`). A result that
        differs by no more than that is ill-conditioned, not wrong, unless tolerances are given.
      scaled: the tolerance of floats relative to the largest one, if the model has fewer bits than the function.

    >>> import numpy as np
    >>> from jaxport.verify import difference
    >>> difference(np.float32([1, 2]), np.float32([1, 3])).problem
    '1 of 2 elements differ, by up to 1 where 2 is expected'
    """
    expected, actual = np.asarray(expected), np.asarray(actual)
    if actual.dtype != expected.dtype:
        return Difference(f"the dtype is {actual.dtype}, {expected.dtype} is expected")
    if actual.shape != expected.shape:
        return Difference(f"the shape is {actual.shape}, {expected.shape} is expected")
    if expected.size == 0 or expected.dtype == jax.dtypes.float0:  # neither has values
        return Difference()
    inexact = jnp.issubdtype(expected.dtype, np.inexact)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):  # NumPy warns of NaN in the narrow types
        a, b = actual.astype(wide), expected.astype(wide)
        same = (actual == expected) | ((actual != actual) & (expected != expected))
    finite = np.isfinite(a) & np.isfinite(b) if inexact else np.ones(expected.shape, bool)
    if wide is np.complex128 and (infinite := ~finite & ~same).any():
        of_expected, of_actual = (np.stack([x.real, x.imag])[:, infinite] for x in (expected, actual))
        parts = difference(of_expected, of_actual, rtol, atol, inside=inside)
        if parts.problem:
            return parts
        same |= infinite
    a, b = np.where(finite, a, 0), np.where(finite, b, 0)
    error, size = np.abs(a - b), np.abs(b)
    largest = float(size.max())
    relative, of_largest = tolerances(expected.dtype, inside)
    of_largest = of_largest if scaled is None or not inexact else max(scaled, of_largest)
    has_tolerances = rtol is not None or atol is not None
    rtol = relative if rtol is None else rtol
    atol = of_largest * largest if atol is None else atol
    allowed = atol + rtol * size
    wrong = ~same & ~(
        finite & (error <= allowed) & (allowed > 0)
    )  # large integers may differ by less than float64 resolves
    problem, note = "", ""
    if wrong.any():
        unstable = np.zeros(wrong.shape, bool) if spread is None else wrong & _explained(spread, error, finite, inexact)
        if unstable.any() and not has_tolerances:
            note = _ill_conditioned(unstable, spread)
        wrong &= ~unstable if not has_tolerances else True
        problem = _problem(wrong, error, finite, expected, actual) if wrong.any() else ""
        if problem and spread is not None:
            problem += f"; {_verdict(wrong & unstable, wrong, spread)}"
    return Difference(
        problem,
        note=note,
        absolute=float(error.max()),
        relative=float(error.max() / largest) if largest else float(error.max()),
        ulps=_ulps(expected[finite], actual[finite]) if inexact and expected.dtype.kind != "c" else None,
        finite=float(finite.mean()),
    )


def compared_results(
    expected: Sequence[np.ndarray],
    actual: Sequence[np.ndarray],
    tolerance: Tolerance,
    inside: Sequence[DTypeLike | None],
    spread: Callable[[Callable[[Changes], bool]], Changes],
    scaled: float | None = None,
) -> list[Difference]:
    """Compare all results; if one differs, check by `spread` whether rounding explains it.

    Args:
      expected, actual: the results.
      tolerance: that of each element.
      inside: the narrowest float that each was rounded to.
      spread: returns the change of each result in JAX itself under different rounding; it stops as soon as what it is
        given holds.
      scaled: as `difference` takes it; then rounding explains nothing.
    """
    narrow = inside if len(inside) == len(expected) else [None] * len(expected)
    triples = list(zip(expected, actual, narrow, strict=True))
    differences = [
        difference(value, result, *tolerance, inside=dtype, scaled=scaled) for value, result, dtype in triples
    ]
    if scaled is not None or not any(how.problem for how in differences):
        return differences

    def considered(changes: Changes) -> list[Difference]:
        if [change.shape for change in changes] != [value.shape for value in expected]:
            return differences
        return [
            difference(value, result, *tolerance, inside=dtype, spread=change) if how.problem else how
            for (value, result, dtype), change, how in zip(triples, changes, differences, strict=True)
        ]

    try:
        changes = spread(lambda changes: not any(how.problem for how in considered(changes)))
    except FAILURES:  # a program that cannot be run has no verdict
        return differences
    return considered(changes)


def _explained(spread: np.ndarray, error: np.ndarray, finite: np.ndarray, inexact: bool) -> np.ndarray:
    """Return the elements whose difference is explained by rounding."""
    if not inexact:  # the distance of an index means nothing
        return spread > 0
    return np.isinf(spread) | (finite & (error <= MARGIN * spread))


def _ill_conditioned(unstable: np.ndarray, spread: Any) -> str:
    by = f"JAX itself changes them by up to {spread[unstable].max():.2g} when it rounds otherwise"
    return f"{int(unstable.sum())} of {unstable.size} elements are ill-conditioned: {by}"


def _verdict(unstable: np.ndarray, wrong: np.ndarray, spread: np.ndarray) -> str:
    """Return in words whether the differences are wrong or ill-conditioned."""
    if unstable.any() and not (wrong & ~unstable).any():
        return f"the function is ill-conditioned there: {_ill_conditioned(unstable, spread)}"
    most = float(spread[wrong & ~unstable].max())
    return f"rounding does not explain it: JAX itself changes these by {most:.2g} at most when it rounds otherwise"


def _problem(wrong: np.ndarray, error: np.ndarray, finite: np.ndarray, expected: np.ndarray, actual: np.ndarray) -> str:
    count = f"{int(wrong.sum())} of {wrong.size} elements differ"
    special = np.flatnonzero(wrong & ~finite)
    if special.size:
        where = special[0]
        return f"{count}; one is {actual.flat[where]} where {expected.flat[where]} is expected"
    where = int(np.argmax(np.where(wrong, error, -1)))
    wanted = expected.flat[where]
    number = wanted if isinstance(wanted, np.number) else float(wanted)  # a narrow float may know no format
    return f"{count}, by up to {error.flat[where]:.3g} where {number:.6g} is expected"


def _ulps(expected: np.ndarray, actual: np.ndarray) -> int:
    """Return the largest number of steps from one float to the next between two elements."""
    if expected.size == 0:
        return 0
    width = expected.dtype.itemsize
    ranks = []
    for array in (expected, actual):
        bits = np.ascontiguousarray(array).view(f"i{width}").astype(object if width == 8 else np.int64)
        # The bits of a negative float grow with its magnitude: make them grow with its value.
        ranks.append(np.where(bits < 0, -(2 ** (8 * width - 1)) - bits, bits))
    return int(np.abs(ranks[0] - ranks[1]).max())
