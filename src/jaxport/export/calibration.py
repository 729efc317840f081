"""Calibration: the range of each value that is quantized, found by running the model on batches of the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.export.delivery.runtime import Session
from jaxport.export.precision.calibrated import Range, layers, observed
from jaxport.export.precision.dense import NodeFilter

if TYPE_CHECKING:
    from jaxport.export.exported import Exported

Method = Literal["minmax", "percentile", "entropy"]

PERCENTILE = 99.99
"""The default share of the elements that is kept by "percentile", in percent."""
BINS = 2048
"""The number of bins of a histogram; half of them may be empty after the range has grown."""
LEVELS = 128
"""The number of levels that "entropy" compares a distribution with, as TensorRT and ONNX Runtime do."""
SMOOTHING = 1e-4
"""The count of an empty bin, so that the logarithm of a ratio of counts is finite."""


@dataclass(frozen=True)
class Calibration:
    """Batches from which `precision="int8"` determines the ranges of activations, and the method it uses.

    >>> import numpy as np, jaxport
    >>> batches = [np.random.default_rng(seed).normal(size=(8, 64)).astype(np.float32) for seed in range(4)]
    >>> calibration = jaxport.Calibration(batches, method="percentile", percentile=99.9)
    >>> weights = np.eye(64, dtype=np.float32)
    >>> exported = jaxport.to_onnx(lambda x: x @ weights, [("B", 64)], precision="int8", calibration=calibration)
    >>> exported.pass_reports[-1].text.split(";")[0]
    '1 MatMul of 8 bits'

    Attributes:
      batches: each is the positional argument of the function, or a tuple of several.
      method: "minmax" covers every element that occurs. "percentile" clips the same small fraction of elements at both
        ends, so that a few outliers do not reduce the resolution of the rest. "entropy" clips where the distribution in
        128 levels is closest to the original one (Kullback-Leibler divergence), as TensorRT does.
      percentile: the percentage of elements that "percentile" keeps: more than 50, at most 100; by default 99.99.

    Raises:
      InvalidArgument: the method is unknown, the percentile is out of range or belongs to another method, there is no
        batch, or a batch contains NaN.
    """

    batches: Iterable[Any]
    method: Method = "minmax"
    percentile: float | None = None

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            _refuse(f"unknown method {self.method!r}", "method", ", ".join(map(repr, get_args(Method))))
        if self.percentile is not None and self.method != "percentile":
            _refuse(f'`percentile` does not apply to the method "{self.method}"', "percentile", "leave it out")
        if self.percentile is not None and not 50 < self.percentile <= 100:
            _refuse(f"percentile={self.percentile!r} is out of range", "percentile", "more than 50, at most 100")
        batches = tuple(batch if isinstance(batch, tuple) else (batch,) for batch in self.batches)
        if not batches:
            _refuse("`calibration` has no batches", "batches", "pass at least one")
        if any(_has_nan(leaf) for leaf in jax.tree.leaves(batches)):
            _refuse(
                "a calibration batch contains NaN",
                "batches",
                "give batches that are representative of the model's inputs",
            )
        object.__setattr__(self, "batches", batches)


def read_calibration(calibration: Calibration | Iterable[object]) -> Calibration:
    """Return a calibration unchanged, and batches as a calibration by their extremes."""
    return calibration if isinstance(calibration, Calibration) else Calibration(calibration)


def _refuse(problem: str, argument: str, instead: str) -> None:
    raise InvalidArgument(problem, where=f"`Calibration({argument}=...)`", instead=instead)


def _has_nan(leaf: object) -> bool:
    dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
    return bool(jnp.issubdtype(dtype, np.inexact)) and bool(np.isnan(np.asarray(leaf)).any())


@dataclass
class Extremes:
    """The least and the greatest element of a value."""

    least: float = float("inf")
    greatest: float = float("-inf")

    def add(self, array: np.ndarray) -> None:
        """Take the elements of one batch into account."""
        if array.size:
            self.least = min(self.least, float(array.min()))
            self.greatest = max(self.greatest, float(array.max()))

    def clipped(self, least: float, greatest: float) -> Range:
        """Return a range without the parts in which there is no element."""
        return max(least, self.least), min(greatest, self.greatest)


@dataclass
class Histogram(Extremes):
    """The distribution of a value's elements, in constant memory.

    The bins go from `-limit` to `limit`. If an element is outside, the limit is doubled and pairs of bins are merged.

    >>> histogram = Histogram()
    >>> for batch in np.float32([[0, 1], [-3, 2]]):
    ...     histogram.add(batch)
    >>> histogram.limit, int(histogram.counts.sum()), histogram.zeros
    (4.0, 3, 1)

    Attributes:
      limit: the end of the last bin.
      counts: the number of elements in each bin, zeros excluded.
      zeros: the number of elements that are zero, which every quantization represents exactly.
    """

    limit: float = 0.0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    zeros: int = 0

    def add(self, array: np.ndarray) -> None:
        super().add(array)
        elements = np.asarray(array, np.float64).ravel()
        elements = elements[elements != 0]
        self.zeros += array.size - elements.size
        if not elements.size:
            return
        largest = float(np.abs(elements).max())
        self.limit = self.limit or largest
        while self.limit < largest:
            merged = self.counts.reshape(-1, 2).sum(1)
            self.counts = np.pad(merged, BINS // 4)
            self.limit *= 2
        self.counts += np.histogram(elements, BINS, (-self.limit, self.limit))[0]

    @property
    def edges(self) -> np.ndarray:
        """The edges of the bins: `BINS + 1` numbers."""
        return np.linspace(-self.limit, self.limit, BINS + 1)

    def percentile(self, percent: float) -> Range:
        """Return the range that contains so many percent of the elements, with as many on either side of it."""
        counts = self.counts.copy()
        counts[BINS // 2] += self.zeros
        shares = np.cumsum(counts) / counts.sum()
        outside = (100 - percent) / 200
        first, last = np.searchsorted(shares, [outside, 1 - outside])
        return self.clipped(float(self.edges[first]), float(self.edges[last + 1]))

    def entropy(self) -> Range:
        """Return the range around zero in which `LEVELS` levels preserve the distribution best.

        Elements outside are counted in the first and the last bin. The nonempty bins of a level share its count
        equally. The range minimizes the Kullback-Leibler divergence from the observed distribution.
        """
        if not self.counts.any():
            return self.least, self.greatest
        middle = BINS // 2
        half = min(
            range(LEVELS // 2, middle + 1), key=lambda half: _divergence(self.counts, middle - half, middle + half + 1)
        )
        return self.clipped(float(self.edges[middle - half]), float(self.edges[min(middle + half + 1, BINS)]))


def _divergence(counts: np.ndarray, start: int, stop: int) -> float:
    """Return the divergence of the bins `start` to `stop`, merged into levels, from the whole distribution."""
    inside = counts[start:stop]
    seen = inside.copy()
    seen[0] += counts[:start].sum()
    seen[-1] += counts[stop:].sum()
    width = seen.size // LEVELS
    level = np.minimum(np.arange(seen.size) // width, LEVELS - 1)
    whole = np.arange(seen.size) < LEVELS * width  # a last level that is wider keeps the excess to itself
    members = np.bincount(level, (seen != 0) & whole, LEVELS)
    shared = (np.bincount(level, inside, LEVELS) / np.maximum(members, 1)).astype(np.int64)
    distribution, approximation = _smoothed(seen), _smoothed(np.where(whole & (members[level] > 0), shared[level], 0))
    if distribution is None or approximation is None:
        return float("inf")
    distribution, approximation = distribution / distribution.sum(), approximation / approximation.sum()
    return float((distribution * np.log(distribution / approximation)).sum())


def _smoothed(counts: np.ndarray) -> np.ndarray | None:
    """Return the counts with the zeros replaced, and the same sum; None if nearly all are zero."""
    empty = counts == 0
    taken = SMOOTHING * empty.sum() / max(1, (~empty).sum())
    return np.where(empty, SMOOTHING, counts - taken) if taken < 1 and not empty.all() else None


def ranges_of(exported: Exported, calibration: Calibration, where: NodeFilter) -> Mapping[str, Range]:
    """Return the range of each value to quantize, by name.

    Args:
      exported: the model.
      calibration: the batches, and how ranges are found.
      where: whether a node may be changed.

    Raises:
      InvalidArgument: a batch is not what the function takes, or a value is not finite.
      NotInstalled: ONNX Runtime is not installed.
    """
    if not layers(exported.model, where)[0]:
        return {}
    names = [value.name or "" for value in observed(exported.model, where)]
    model = exported.model.clone()
    known = {value.name: value for value in (*model.graph.inputs, *_values(model))}
    present = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    model.graph.outputs.extend(known[name] for name in names if name not in present)
    session = Session(model)
    collector = Extremes if calibration.method == "minmax" else Histogram
    collected = {name: collector() for name in names}
    for batch in calibration.batches:
        inputs = {**exported.defaults, **exported.flatten(batch, {})}
        values = {**inputs, **dict(zip(session.output_names, session.run(inputs), strict=True))}
        for name in names:
            array = np.asarray(values[name])
            if not np.isfinite(array).all():
                raise InvalidArgument(
                    f"a calibration batch makes `{name}` infinite or NaN",
                    where="`to_onnx(calibration=...)`",
                    instead="give batches that are representative of the model's inputs",
                )
            collected[name].add(array)
    empty = [name for name in names if collected[name].least > collected[name].greatest]
    if empty:
        raise InvalidArgument(
            f"`{empty[0]}` has no elements in any calibration batch",
            where="`to_onnx(calibration=...)`",
            instead="give batches that are not empty",
        )
    return {name: _range_of(elements, calibration) for name, elements in collected.items()}


def _range_of(collected: Extremes, calibration: Calibration) -> Range:
    if not isinstance(collected, Histogram):
        return collected.least, collected.greatest
    if calibration.method == "entropy":
        return collected.entropy()
    return collected.percentile(PERCENTILE if calibration.percentile is None else calibration.percentile)


def _values(model: ir.Model) -> list[ir.Value]:
    return [value for node in model.graph for value in node.outputs]
