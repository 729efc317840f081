"""What is known of a value: small lattices, of which the least known element is the default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import Dim
from jaxport.graph.facts.forms import ALWAYS, NEVER, Band, Form, form_of, uniform
from jaxport.sizes.sums import SizeSum, size_sum

Number = float | int | bool
End = SizeSum | float
"""An end of an interval: of integers a polynomial of sizes, of floats a number."""

EXACT = frozenset({"int32", "int64"})
"""The dtypes in which positions and products of sizes are exact."""
NARROW = frozenset({ir.DataType.FLOAT16})
"""The floating-point dtypes in which finite computations often become infinite."""


LONGEST = 64
"""The elements of a vector up to which they are followed one by one."""


@dataclass(frozen=True)
class Facts:
    """What is known of the elements of a value. What says "never" holds for all finite inputs and weights.

    A finite computation that leaves the range of its dtype is not looked at: `exp` apart, operators of finite operands
    that are defined for them have finite results.

    Attributes:
      form: integers as a function of their index.
      band: where truth values hold.
      choice: a band, the number in it, and the number elsewhere; in the band of everything, all elements are one
        number.
      elements: the elements of a short vector or a number, as polynomials of sizes.
      columns: the forms of the elements along the last axis, without that axis, if they are few.
      low, high: bounds of all elements; None if none is known.
      never_nan, never_infinite, never_minus_infinite: no element is NaN, positive infinite, negative infinite.
      never_negative_zero: no element is -0.0.
      is_integral: all elements are whole numbers, or infinite, or NaN.
      kept: the axes along which each row has an element that is not negative infinite.
      is_nan_of: the value that is NaN where this one is true.
    """

    form: Form | None = None
    band: Band | None = None
    choice: tuple[Band, Number, Number] | None = None
    elements: np.ndarray | None = field(default=None, compare=False)
    columns: tuple[Form | None, ...] = ()
    low: End | None = None
    high: End | None = None
    never_nan: bool = False
    never_infinite: bool = False
    never_minus_infinite: bool = False
    never_negative_zero: bool = False
    is_integral: bool = False
    kept: frozenset[int] = frozenset()
    is_nan_of: object = None

    @property
    def is_finite(self) -> bool:
        """Whether no element is NaN or infinite."""
        return self.never_nan and self.never_infinite and self.never_minus_infinite

    @property
    def number(self) -> Number | None:
        """The number that all elements are; None if it depends on sizes, or is not known."""
        if self.choice is not None and self.choice[0].is_always:
            return self.choice[1]
        return None if self.form is None else self.form.number

    def column(self, place: int) -> Form | None:
        """Return the form of the elements at a place of the last axis."""
        if self.form is None:
            return self.columns[place] if self.columns else None
        *slopes, last = self.form.slopes
        return Form(self.form.constant + last * place, tuple(slopes))

    def completed(self, dtype: ir.DataType | None, dims: Sequence[Dim] | None) -> Facts:
        """Return the facts with those that follow from them, and from the dtype."""
        if dims is None or dtype is None:
            return Facts()
        made = self if self.choice is None else self._of_choice(dims)
        if dtype.is_integer() or dtype is ir.DataType.BOOL:
            made = made._of_integers(dtype, dims)
        elif dtype in NARROW and made.choice is None:
            made = replace(made, never_infinite=False, never_minus_infinite=False)
        if not made.never_nan:  # which is in no interval
            made = replace(made, low=None, high=None)
        return replace(made, kept=frozenset(range(len(dims)))) if made.never_minus_infinite else made

    def _of_choice(self, dims: Sequence[Dim]) -> Facts:
        assert self.choice is not None
        band, *numbers = self.choice
        if band.is_always or band.is_never:
            numbers = [numbers[band.is_never]]
            band, self_choice = ALWAYS, (ALWAYS, numbers[0], numbers[0])
        else:
            self_choice = (band, numbers[0], numbers[1])
        kept = self.kept | kept_by(band, numbers[0], numbers[-1], dims)
        return replace(self, choice=self_choice, kept=kept).of_numbers(numbers)

    def of_numbers(self, numbers: Sequence[Number]) -> Facts:
        """Return the facts with those that hold because all elements are among some numbers."""
        floats = [float(number) for number in numbers]
        return replace(
            self,
            low=min(floats) if self.low is None and not any(map(math.isnan, floats)) else self.low,
            high=max(floats) if self.high is None and not any(map(math.isnan, floats)) else self.high,
            never_nan=self.never_nan or not any(map(math.isnan, floats)),
            never_infinite=self.never_infinite or math.inf not in floats,
            never_minus_infinite=self.never_minus_infinite or -math.inf not in floats,
            never_negative_zero=self.never_negative_zero
            or not any(number == 0 and math.copysign(1, number) < 0 for number in floats),
            is_integral=self.is_integral
            or all(not math.isfinite(number) or number == int(number) for number in floats),
        )

    def _of_integers(self, dtype: ir.DataType, dims: Sequence[Dim]) -> Facts:
        form, band, choice = self.form, self.band, self.choice
        low, high = (end if isinstance(end, SizeSum) else None for end in (self.low, self.high))
        if dtype is ir.DataType.BOOL:
            if choice is not None and band is None:
                of, one, other = choice
                band = of if one and not other else of.inverse() if other and not one else ALWAYS if one else NEVER
            if band is not None:
                choice = (band, True, False) if not band.is_never else (ALWAYS, False, False)
            low, high = size_sum(0), size_sum(1)
        else:
            if form is None and choice is not None and choice[0].is_always:
                form = uniform(size_sum(int(choice[1])), len(dims))
            if str(dtype.numpy()) not in EXACT:
                form = None
            if form is not None:
                ones = (size_sum(0) if dim == 1 else slope for slope, dim in zip(form.slopes, dims, strict=True))
                form = replace(form, slopes=tuple(ones))
                least, greatest = form.bounds(dims)
                low, high = (low if least is None else least), (high if greatest is None else greatest)
                if form.number is not None:
                    choice = (ALWAYS, form.number, form.number)
            if low is None and dtype.numpy().kind == "u":
                low = size_sum(0)
            if not _fits(low, dtype) or not _fits(high, dtype):  # it wraps
                form = low = high = None
        return replace(
            self, form=form, band=band, choice=choice, low=low, high=high, is_integral=True, never_nan=True,
            never_infinite=True, never_minus_infinite=True, never_negative_zero=True,
        )  # fmt: skip


def _fits(end: SizeSum | None, dtype: ir.DataType) -> bool:
    """Whether a bound is in the range of a dtype; those that depend on sizes are in that of positions."""
    if end is None:
        return True
    limits = np.iinfo(dtype.numpy()) if dtype.numpy().kind in "iu" and dtype.bitwidth >= 8 else None
    if end.value is None:
        return str(dtype.numpy()) in EXACT
    return limits is not None and limits.min <= end.value <= limits.max


def kept_by(band: Band, one: Number, other: Number, dims: Sequence[Dim]) -> frozenset[int]:
    """Return the axes along which each row has an element that is not negative infinite, if those in a band are not."""
    keeping = band if one != -math.inf else band.inverse() if other != -math.inf else None
    return frozenset() if keeping is None else kept_in(keeping, dims)


def kept_in(band: Band, dims: Sequence[Dim]) -> frozenset[int]:
    """Return the axes along which each row has an element in a band."""
    return _kept_in(band, tuple(dims))


@lru_cache(maxsize=1024)
def _kept_in(band: Band, dims: tuple[Dim, ...]) -> frozenset[int]:
    return frozenset(axis for axis in range(len(dims)) if band.keeps_some(axis, dims))  # each layer makes the same mask


def of_constant(array: np.ndarray) -> Facts:
    """Return what is known of the elements of a constant."""
    if array.dtype == object or array.dtype.kind not in "fiub":
        return Facts()
    if not array.size:
        return Facts(never_nan=True, never_infinite=True, never_minus_infinite=True, never_negative_zero=True)
    first = array.flat[0]
    is_uniform = bool((array == first).all()) or (array.size == 1)
    made = Facts(choice=(ALWAYS, first.item(), first.item()) if is_uniform else None)
    if array.dtype.kind != "f":
        ends = (int(array.min()), int(array.max()))
        form = form_of(array) if str(array.dtype) in EXACT else None
        elements = None
        if array.ndim < 2 and array.size <= LONGEST:
            elements = np.vectorize(lambda x: size_sum(int(x)), otypes=[object])(array)
        return replace(made, form=form, elements=elements, low=size_sum(ends[0]), high=size_sum(ends[1]))
    is_nan = bool(np.isnan(array).any())
    hidden = np.isneginf(array)
    kept = [axis for axis in range(array.ndim) if not hidden.all(axis).any()]
    return replace(
        made,
        low=None if is_nan else float(array.min()),
        high=None if is_nan else float(array.max()),
        never_nan=not is_nan,
        never_infinite=not bool(np.isposinf(array).any()),
        never_minus_infinite=not bool(hidden.any()),
        never_negative_zero=not bool(((array == 0) & np.signbit(array)).any()),
        is_integral=bool((np.trunc(array) == array).all()),
        kept=frozenset(kept),
    )


@dataclass(frozen=True)
class Operand:
    """What a rule sees of an operand.

    Attributes:
      facts: what is known of it.
      dims: its shape; None if it is not known.
      dtype: its dtype.
      constant: its elements, if it is a constant.
      identity: equal for operands that are the same value.
    """

    facts: Facts
    dims: Sequence[Dim] | None
    dtype: ir.DataType | None
    constant: np.ndarray | None
    identity: object

    @property
    def integers(self) -> list[SizeSum] | None:
        """The elements of a short vector of sizes or axes."""
        if self.facts.elements is not None:
            return list(self.facts.elements.ravel())
        is_single = self.dims is not None and all(dim == 1 for dim in self.dims)
        return [self.facts.form.constant] if is_single and self.facts.form is not None else None

    @property
    def numbers(self) -> list[int] | None:
        """The elements of a short vector of integers that depend on no sizes."""
        known = [each.value for each in self.integers or ()]
        return None if self.integers is None or None in known else [number for number in known if number is not None]


@dataclass(frozen=True)
class SeenNode:
    """What a rule sees of a node.

    Attributes:
      op_type: an operator of the default domain.
      attributes: its attributes.
      operands: None for one that is omitted.
      dims, dtype: of the result.
      place: which result.
      version: the version of the operator set.
    """

    op_type: str
    attributes: dict[str, object]
    operands: Sequence[Operand | None]
    dims: Sequence[Dim]
    dtype: ir.DataType
    place: int = 0
    version: int | None = None

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute, or the default."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def operand(self, place: int) -> Operand | None:
        """Return an operand, or None if it is omitted."""
        return self.operands[place] if place < len(self.operands) else None

    def axes(self, place: int, rank: int) -> list[int] | None:
        """Return axes, which are an operand or an attribute, as places; None if they are not known."""
        given = self.operand(place)
        numbers = self.attributes.get("axes") if given is None else given.numbers
        return [int(axis) % rank for axis in numbers] if isinstance(numbers, Sequence) else None
