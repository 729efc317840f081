"""Values as functions of their own indices: position forms, and the bands in which comparisons of them hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxport.graph.editing import Dim
from jaxport.sizes.conditions import is_at_least
from jaxport.sizes.sums import SizeSum, size_sum

ZERO = size_sum(0)


@dataclass(frozen=True)
class Form:
    """An integer as a function of its index: `constant + slopes[0] * i0 + slopes[1] * i1 + …`.

    The slope of an axis of one element is zero, so a form broadcasts by getting more axes.
    """

    constant: SizeSum
    slopes: tuple[SizeSum, ...] = ()

    @property
    def number(self) -> int | None:
        """The number that all elements are, or None."""
        return self.constant.value if self.is_uniform else None

    @property
    def is_uniform(self) -> bool:
        """Whether all elements are equal, whatever they are."""
        return all(slope == ZERO for slope in self.slopes)

    def over(self, rank: int) -> Form:
        """Return the form with axes in front."""
        return replace(self, slopes=(*[ZERO] * (rank - len(self.slopes)), *self.slopes))

    def __add__(self, other: Form) -> Form:
        rank = max(len(self.slopes), len(other.slopes))
        slopes = zip(self.over(rank).slopes, other.over(rank).slopes, strict=True)
        return Form(self.constant + other.constant, tuple(a + b for a, b in slopes))

    def __mul__(self, factor: SizeSum | int) -> Form:
        return Form(self.constant * factor, tuple(slope * factor for slope in self.slopes))

    def __sub__(self, other: Form) -> Form:
        return self + other * -1

    def shifted(self, number: int) -> Form:
        """Return the form plus a number."""
        return replace(self, constant=self.constant + number)

    def at(self, axis: int, form: Form) -> Form:
        """Return the form with the index along an axis replaced by another form of as many axes."""
        slopes = tuple(ZERO if place == axis else slope for place, slope in enumerate(self.slopes))
        return Form(self.constant, slopes) + form * self.slopes[axis]

    def moved(self, places: Sequence[int | None], rank: int) -> Form:
        """Return the form with each axis in another place; None for an axis of one element that goes."""
        slopes = [ZERO] * rank
        for slope, place in zip(self.slopes, places, strict=True):
            if place is not None:
                slopes[place] = slope
        return Form(self.constant, tuple(slopes))

    def bounds(self, dims: Sequence[Dim]) -> tuple[SizeSum | None, SizeSum | None]:
        """Return the least and the greatest element; None for one that is not known."""
        low: SizeSum | None = self.constant
        high: SizeSum | None = self.constant
        for slope, dim in zip(self.slopes, dims, strict=True):
            end = slope * (size_sum(dim) - 1)
            if is_at_least(slope):
                high = None if high is None else high + end
            elif is_at_least(-slope):
                low = None if low is None else low + end
            else:
                low = high = None
        return low, high

    def is_at_least(self, bound: SizeSum | int, dims: Sequence[Dim]) -> bool:
        """Whether no element is known to be less than a bound."""
        low, _ = self.bounds(dims)
        return low is not None and is_at_least(low, bound)

    def is_below(self, bound: SizeSum | int, dims: Sequence[Dim]) -> bool:
        """Whether all elements are known to be less than a bound."""
        _, high = self.bounds(dims)
        return high is not None and is_at_least(-high - 1, -(ZERO + bound))


def divided(form: Form, divisor: SizeSum, dims: Sequence[Dim]) -> tuple[Form, Form] | None:
    """Return quotient and remainder of a form that is not negative by a positive size, if both are forms."""
    (whole, rest), *others = (part.split(divisor) for part in (form.constant, *form.slopes))
    quotient, remainder = Form(whole, tuple(a for a, _ in others)), Form(rest, tuple(b for _, b in others))
    known = remainder.is_at_least(0, dims) and remainder.is_below(divisor, dims) and form.is_at_least(0, dims)
    return (quotient, remainder) if known else None


def unit(axis: int, rank: int) -> Form:
    """Return the index along an axis."""
    return Form(ZERO, tuple(size_sum(int(axis == place)) for place in range(rank)))


def uniform(number: SizeSum, rank: int) -> Form:
    """Return a number as the form of a value."""
    return Form(number, (ZERO,) * rank)


def form_of(array: np.ndarray) -> Form | None:
    """Return the position form of known integers, or None.

    >>> form_of(np.arange(6).reshape(2, 3))
    Form(constant=SizeSum(0), slopes=(SizeSum(3), SizeSum(1)))
    """
    if array.dtype.kind not in "iu" or not array.size:
        return None
    first = int(array.flat[0])
    steps = [int(array[(0,) * axis + (1,) + (0,) * (array.ndim - axis - 1)]) - first if size > 1 else 0
             for axis, size in enumerate(array.shape)]  # fmt: skip
    if abs(first) + sum(abs(step) * (size - 1) for step, size in zip(steps, array.shape, strict=True)) >= 1 << 63:
        return None
    expected = np.full(array.shape, first, np.int64)
    for axis, step in enumerate(steps):
        along = np.arange(array.shape[axis], dtype=np.int64) * step
        expected += along.reshape([-1 if place == axis else 1 for place in range(array.ndim)])
    if not bool((expected == array).all()):
        return None
    return Form(size_sum(first), tuple(map(size_sum, steps)))


@dataclass(frozen=True)
class Band:
    """Where truth values hold: at the indices at which no form of `conditions` is negative.

    Attributes:
      conditions: forms of as many axes as the value has.
      is_never: whether it holds nowhere.
    """

    conditions: frozenset[Form] = frozenset()
    is_never: bool = False

    @classmethod
    def where(cls, conditions: Iterable[Form], dims: Sequence[Dim]) -> Band:
        """Return the band of some conditions, without those that always hold."""
        kept = frozenset(form for form in conditions if not form.is_at_least(0, dims))
        return NEVER if any(form.is_below(0, dims) for form in kept) else cls(kept)

    @property
    def is_always(self) -> bool:
        """Whether it holds everywhere."""
        return not self.conditions and not self.is_never

    def inverse(self) -> Band | None:
        """Return where it does not hold; None if that is no band."""
        if self.is_always:
            return NEVER
        if self.is_never:
            return ALWAYS
        if len(self.conditions) > 1:
            return None
        (form,) = self.conditions
        return Band(frozenset({(form * -1).shifted(-1)}))

    def keeps_some(self, axis: int, dims: Sequence[Dim]) -> bool:
        """Whether it holds somewhere along an axis, wherever the other indices are."""
        if self.is_always or self.is_never:
            return self.is_always
        rank, size = len(dims), size_sum(dims[axis])
        witnesses = [uniform(ZERO, rank), uniform(size - 1, rank)]
        for other, dim in enumerate(dims):
            if other != axis:
                same, behind = unit(other, rank), unit(other, rank) + uniform(size - size_sum(dim), rank)
                witnesses += [one for one in (same, behind) if one.is_at_least(0, dims) and one.is_below(size, dims)]
        return any(all(form.at(axis, one).is_at_least(0, dims) for form in self.conditions) for one in witnesses)


ALWAYS, NEVER = Band(), Band(is_never=True)
