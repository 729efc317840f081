"""Values of a step as symbolic arrays.

Each axis of a `Sheet` is one of the batch, which the layer treats element by element, one of features, or *free*: the
value is the same along it. Movements of features are applied to the indices of symbols, by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxport.export.rules.recurrent.expressions import Dot, ElementLeaf, Polynomial, Unfit, indices
from jaxport.jaxprs import Dim, dims

FEATURE, FREE = -1, -2
"""Labels of axes; a number from zero on is that of an axis of the batch."""

MOVED = "a step mixes the batch with the features"


@dataclass(frozen=True, eq=False)
class Sheet:
    """A symbolic array.

    Attributes:
      labels: for each axis the number of an axis of the batch, `FEATURE` or `FREE`.
      shape: its dims; those of features are integers.
      part: for each element, over the axes of features only, the index of its polynomial.
      local: and its index in that polynomial.
      polynomials: the vectors.
    """

    labels: tuple[int, ...]
    shape: tuple[Dim, ...]
    part: np.ndarray
    local: np.ndarray
    polynomials: tuple[Polynomial, ...]

    @property
    def features(self) -> list[int]:
        """The axes of features."""
        return [axis for axis, label in enumerate(self.labels) if label == FEATURE]

    def with_features(self, move: Callable[[np.ndarray], np.ndarray], labels: Sequence[int], shape: Sequence) -> Sheet:
        """Return the elements that `move` takes from an array over the features."""
        return Sheet(tuple(labels), tuple(shape), move(self.part), move(self.local), self.polynomials)

    def pieces(self) -> list[tuple[np.ndarray, Polynomial]]:
        """Return the elements by polynomial: their flat positions, and the polynomial of these elements."""
        part, local = self.part.ravel(), self.local.ravel()
        pieces = []
        for number, polynomial in enumerate(self.polynomials):
            positions = np.flatnonzero(part == number)
            if len(positions):
                pieces.append((positions, polynomial.take(local[positions])))
        return pieces

    def whole(self) -> Polynomial | None:
        """Return the polynomial of all elements in order, if there is one."""
        pieces = self.pieces()
        return pieces[0][1] if len(pieces) == 1 else None


def vector(polynomial: Polynomial, labels: Sequence[int], shape: Sequence[Dim]) -> Sheet:
    """Return a sheet of the elements of one polynomial, in order."""
    sizes = [int(d) for d, label in zip(shape, labels, strict=True) if label == FEATURE]
    local = np.arange(int(np.prod(sizes)) if sizes else 1).reshape(sizes)
    return Sheet(tuple(labels), tuple(shape), np.zeros_like(local), local, (polynomial,))


def leaf(kind: str, number: int, labels: Sequence[int], shape: Sequence[Dim]) -> Sheet:
    """Return the sheet of a whole state, input or invariant."""
    count = 1
    for dim, label in zip(shape, labels, strict=True):
        if label == FEATURE:
            if not dims.is_static(dim):
                raise Unfit("features of a symbolic size")
            count *= int(dim)
    return vector(Polynomial.of(ElementLeaf(kind, number, range(count))), labels, shape)


# Elementwise


def elementwise(function: Callable[..., Polynomial], *sheets: Sheet) -> Sheet:
    """Apply a function to the elements at the same place; sheets without axes are numbers."""
    with_axes = [sheet for sheet in sheets if sheet.shape]
    columns = zip(*(sheet.shape for sheet in with_axes), strict=True)
    shape = [next((dim for dim in column if not dims.same(dim, 1)), column[0]) for column in columns]
    labels = [common_label([(sheet.labels[a], sheet.shape[a]) for sheet in with_axes]) for a in range(len(shape))]
    sizes = [int(d) for d, label in zip(shape, labels, strict=True) if label == FEATURE]
    spread = [_spread(sheet, labels, sizes) for sheet in sheets]
    key = np.zeros(sizes, np.int64)
    for part, _, sheet in spread:
        key = key * len(sheet.polynomials) + part
    part, local, polynomials = np.zeros(sizes, np.int64), np.zeros(sizes, np.int64), []
    for number, combination in enumerate(np.unique(key)):
        where = key == combination
        operands = []
        for parts, locals_, sheet in spread:
            polynomial = sheet.polynomials[int(parts[where].flat[0])]
            operands.append(polynomial.take(locals_[where]))
        part[where], local[where] = number, np.arange(int(where.sum()))
        polynomials.append(function(*operands))
    return Sheet(tuple(labels), tuple(shape), part, local, tuple(polynomials))


def common_label(axes: Sequence[tuple[int, Dim]]) -> int:
    """Return the label of an axis of several sheets, from their labels and dims; features of size one broadcast."""
    labels = {label for label, _ in axes} - {FREE}
    if len(labels) > 1:
        labels -= {FEATURE} if all(label != FEATURE or dims.same(dim, 1) for label, dim in axes) else set()
    if len(labels) > 1:
        raise Unfit(MOVED)
    return labels.pop() if labels else FREE


def _spread(sheet: Sheet, labels: Sequence[int], sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray, Sheet]:
    """Return the parts and places of a sheet over the features of `labels`."""
    part, local = sheet.part, sheet.local
    if sheet.shape:
        place = 0
        for axis, label in enumerate(labels):
            if sheet.labels[axis] == FEATURE and label != FEATURE:
                part, local = part.squeeze(place), local.squeeze(place)  # of size one
            elif label == FEATURE:
                if sheet.labels[axis] != FEATURE:
                    part, local = np.expand_dims(part, place), np.expand_dims(local, place)
                place += 1
    return np.broadcast_to(part, sizes), np.broadcast_to(local, sizes), sheet


# Movements


def transposed(sheet: Sheet, permutation: Sequence[int]) -> Sheet:
    """Return `sheet` with its axes in another order."""
    order = [sheet.features.index(axis) for axis in permutation if sheet.labels[axis] == FEATURE]
    labels, shape = [sheet.labels[axis] for axis in permutation], [sheet.shape[axis] for axis in permutation]
    return sheet.with_features(lambda x: x.transpose(order), labels, shape)


def reshaped(sheet: Sheet, shape: Sequence[Dim]) -> Sheet:
    """Return `sheet` with its features in other axes; the axes of the batch keep their order among them."""
    sheet = as_features(sheet, [a for a, label in enumerate(sheet.labels) if label == FREE])
    labels: list[int] = []
    rest = list(shape)
    segment = 1
    ends: list[tuple[int | None, Any]] = [*zip(sheet.labels, sheet.shape, strict=True), (None, None)]
    for label, size in ends:
        if label == FEATURE:
            segment *= int(size)
            continue
        while rest and not (segment == 1 and label is not None and dims.same(rest[0], size)):
            if not dims.is_static(rest[0]) or not rest[0] or segment % int(rest[0]):
                raise Unfit(MOVED)
            segment //= int(rest[0])
            labels.append(FEATURE)
            rest.pop(0)
        if segment != 1 or (label is not None and not rest):
            raise Unfit(MOVED)
        if label is not None:
            labels.append(label)
            rest.pop(0)
    sizes = [int(d) for d, label in zip(shape, labels, strict=True) if label == FEATURE]
    return sheet.with_features(lambda x: x.reshape(sizes), labels, shape)


def broadcast(sheet: Sheet, shape: Sequence[Dim], axes: Sequence[int]) -> Sheet:
    """Return `sheet` with axis `i` as axis `axes[i]` of `shape`, and the same along the others."""
    labels = [FEATURE if dims.same(size, 1) else FREE for size in shape]
    drop = []
    for axis, (new, label) in enumerate(zip(axes, sheet.labels, strict=True)):
        if dims.same(sheet.shape[axis], shape[new]):
            labels[new] = label
        elif label == FEATURE:
            drop.append(sheet.features.index(axis))
        else:
            raise Unfit(MOVED)
    added = []
    for axis, label in enumerate(labels):
        if label == FEATURE and axis not in [n for n, old in zip(axes, sheet.labels, strict=True) if old == FEATURE]:
            added.append([a for a, other in enumerate(labels) if other == FEATURE].index(axis))

    def move(x: np.ndarray) -> np.ndarray:
        x = x.squeeze(tuple(drop))
        for place in added:
            x = np.expand_dims(x, place)
        return x

    return sheet.with_features(move, labels, shape)


def squeezed(sheet: Sheet, axes: Sequence[int]) -> Sheet:
    """Return `sheet` without some axes of size one."""
    if any(sheet.labels[axis] >= 0 for axis in axes):
        raise Unfit(MOVED)
    drop = tuple(sheet.features.index(axis) for axis in axes if sheet.labels[axis] == FEATURE)
    kept = [axis for axis in range(len(sheet.shape)) if axis not in axes]
    labels, shape = [sheet.labels[axis] for axis in kept], [sheet.shape[axis] for axis in kept]
    return sheet.with_features(lambda x: x.squeeze(drop), labels, shape)


def sliced(sheet: Sheet, starts: Sequence, limits: Sequence, strides: Sequence[int] | None) -> Sheet:
    """Return `sheet[start:limit:stride]`; axes other than those of features are taken whole."""
    where, shape = [], list(sheet.shape)
    for axis, (start, limit) in enumerate(zip(starts, limits, strict=True)):
        stride = 1 if strides is None else strides[axis]
        if sheet.labels[axis] == FEATURE:
            where.append(slice(int(start), int(limit), int(stride)))
            shape[axis] = len(range(int(start), int(limit), int(stride)))
        elif not (dims.same(start, 0) and dims.same(limit, sheet.shape[axis]) and stride == 1):
            raise Unfit(MOVED)
    return sheet.with_features(lambda x: x[tuple(where)], sheet.labels, shape)


def split(sheet: Sheet, sizes: Sequence[int], axis: int) -> list[Sheet]:
    """Split `sheet` along an axis of features."""
    parts, start = [], 0
    for size in sizes:
        starts, limits = [0] * len(sheet.shape), list(sheet.shape)
        starts[axis], limits[axis] = start, start + size
        parts.append(sliced(as_features(sheet, [axis]), starts, limits, None))
        start += size
    return parts


def reversed_(sheet: Sheet, axes: Sequence[int]) -> Sheet:
    """Reverse some axes of features."""
    if any(sheet.labels[axis] >= 0 for axis in axes):
        raise Unfit(MOVED)
    places = tuple(sheet.features.index(axis) for axis in axes if sheet.labels[axis] == FEATURE)
    return sheet.with_features(lambda x: np.flip(x, places), sheet.labels, sheet.shape)


def concatenated(sheets: Sequence[Sheet], axis: int) -> Sheet:
    """Concatenate sheets along an axis of features."""
    sheets = [as_features(sheet, [axis]) for sheet in sheets]
    shape = [*sheets[0].shape]
    common = [common_label([(sheet.labels[a], sheet.shape[a]) for sheet in sheets]) for a in range(len(shape))]
    shape[axis] = sum(int(sheet.shape[axis]) for sheet in sheets)
    parts, locals_, polynomials = [], [], []
    for sheet in sheets:
        sizes = [int(d) for d, label in zip(sheet.shape, common, strict=True) if label == FEATURE]
        part, local, _ = _spread(sheet, common, sizes)
        parts.append(part + len(polynomials))
        locals_.append(local)
        polynomials.extend(sheet.polynomials)
    place = [a for a, label in enumerate(common) if label == FEATURE].index(axis)
    joined = [np.concatenate(arrays, place) for arrays in (parts, locals_)]
    return Sheet(tuple(common), tuple(shape), joined[0], joined[1], tuple(polynomials))


def as_features(sheet: Sheet, axes: Sequence[int]) -> Sheet:
    """Return `sheet` with these axes as axes of features."""
    for axis in axes:
        if sheet.labels[axis] == FREE and dims.is_static(sheet.shape[axis]):
            labels = [FEATURE if a == axis else label for a, label in enumerate(sheet.labels)]
            sizes = [int(d) for d, label in zip(sheet.shape, labels, strict=True) if label == FEATURE]
            part, local, _ = _spread(sheet, labels, sizes)
            sheet = Sheet(tuple(labels), sheet.shape, part, local, sheet.polynomials)
        elif sheet.labels[axis] >= 0:
            raise Unfit(MOVED)
    return sheet


# Products


def product(
    sheet: Sheet, contracted: Sequence[int], weight: int, dims_: Sequence[int], rows: Sequence[int], first: bool
) -> Sheet:
    """`sheet` times a matrix.

    Args:
      sheet: the operand that depends on the step; its axes `contracted` are features.
      weight: the number of an invariant, which has the dims `dims_`, and is contracted along `rows`.
      first: whether the remaining axes of `sheet` come before those of the matrix.
    """
    sheet = as_features(sheet, contracted)
    left = [axis for axis in range(len(sheet.shape)) if axis not in contracted]
    if any(sheet.labels[axis] == FEATURE and not dims.same(sheet.shape[axis], 1) for axis in left):
        raise Unfit("a step multiplies a matrix of features by a weight")
    order = [sheet.features.index(axis) for axis in contracted]
    columns = [axis for axis in range(len(dims_)) if axis not in rows]
    sizes = [int(dims_[axis]) for axis in columns]
    count = int(np.prod(sizes)) if sizes else 1
    flat = [x.transpose([*order, *(a for a in range(x.ndim) if a not in order)]) for x in (sheet.part, sheet.local)]
    total = Polynomial({})
    for positions, polynomial in Sheet((), (), flat[0], flat[1], sheet.polynomials).pieces():
        used = indices(positions)
        for monomial, coefficient in polynomial.terms.items():
            axes = (*rows, *columns)
            dot = Dot(monomial, weight, axes, len(rows), used, range(count))
            total = total + Polynomial.of(dot) * coefficient
    mine = ([sheet.labels[axis] for axis in left], [sheet.shape[axis] for axis in left])
    its = ([FEATURE] * len(columns), sizes)
    before, after = (mine, its) if first else (its, mine)
    return vector(total, (*before[0], *after[0]), (*before[1], *after[1]))
