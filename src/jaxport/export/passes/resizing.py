"""Recognise `Resize`, and fold the constants that a resize is computed with.

`jax.image.resize` interpolates by a product with a matrix of weights for each axis, or picks the nearest element of
each axis; programs that upsample by whole numbers repeat elements. The matrix, or the picked positions, decide:

1. Matrices of products and vectors of positions that depend only on constants other than parameters: folded.
2. Linear interpolation between the centers of pixels, without antialiasing, along two neighbouring axes of an image:
   Resize, half_pixel.
3. Each element repeated along two axes or more: Resize by nearest neighbours, asymmetric.
4. The element nearest to the center along two axes or more: Resize by nearest neighbours, half_pixel. Not if a center
   lies between two elements, which ONNX Runtime rounds either way, unless the factor is a power of two.

Cubic and antialiased interpolation remain products, since ONNX Runtime's Resize is several times slower.

https://onnx.ai/onnx/operators/onnx__Resize.html
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.export.passes.constants import known
from jaxport.export.passes.layout_ops import INTERPOLATED
from jaxport.graph.arranging import goes_into_transpose, sizes_of
from jaxport.graph.editing import (
    PARAMETER,
    Dim,
    Editor,
    begins_at,
    constant_of,
    dims_of,
    discard,
    integer,
    is_op,
    nodes_of,
    rank_of,
    source,
    static_dims,
)
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse, obstacle
from jaxport.graph.matching import Part, Seen, look

#: The rounding error of a position in float32, relative to the number of elements.
ROUNDING = 1e-6
#: The first operator set whose Resize takes axes.
NAMED_AXES = 18

#: The operands of each operator that may be computed from constants.
_PLACES = {"MatMul": (0, 1), "Gather": (1,)}


@begins_at({*_PLACES, "Transpose", "Reshape"})
def resizing(model: ir.Model) -> str:
    """Recognise Resize and fold constant matrices, in the graph, its subgraphs and its functions."""
    editor, opset, computed = Editor(model), model.opset_imports[""], 0
    memory: dict[ir.Value, np.ndarray | None] = {}
    for node in nodes_of(model, *_PLACES):
        computed += _computed(editor, node, memory) if node.graph is not None else 0
    report = fuse(model, lambda node: _find(node, opset), Anchor(at=(*_PLACES, "Transpose", "Reshape")))
    return report + (f"; {computed} constants computed" if computed else "")


def _computed(editor: Editor, node: ir.Node, memory: dict[ir.Value, np.ndarray | None]) -> int:
    """Fold the matrix of a product, or the positions of a Gather, if it depends on constants only."""
    stored = 0
    for place in _PLACES[node.op_type]:
        value = node.inputs[place]
        array = None if constant_of(value) is not None else known(value, memory)
        if array is None or value is None or (node.op_type == "Gather" and array.ndim != 1):
            continue
        node.replace_input_with(place, editor.constant(node.graph, array, value.name or "constant"))
        discard(value.producer())
        stored += 1
    return stored


@dataclass
class Resized:
    """An image, and how its axes are resized.

    Attributes:
      seen: the image before; its axes have the labels of those of the result.
      weights: by axis of the result, the matrix that the axis is multiplied with.
      picked: by axis of the result, the positions that are picked.
      repeated: by axis of the result, how often each element is repeated.
      places: by axis of the image, the axis of the result.
    """

    seen: Seen
    weights: dict[int, np.ndarray] = field(default_factory=dict)
    picked: dict[int, np.ndarray] = field(default_factory=dict)
    repeated: dict[int, int] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)

    @property
    def axes(self) -> set[int]:
        """The axes that are resized."""
        return {*self.weights, *self.picked, *self.repeated}


def _find(node: ir.Node, opset: int) -> Fusion | str | None:
    result = node.outputs[0]
    if rank_of(result) not in (4, 5):
        return None
    if is_op(node, "MatMul") and goes_into_transpose(result):  # the last node of the resize
        return None
    resized = _resized(result)
    if resized is None or len(resized.axes) < 2:
        return None
    before = dict(zip(resized.places, dims_of(resized.seen.value) or (), strict=True))
    after = dims_of(result) or []
    attributes = _linear(resized, before) if resized.weights else _nearest(resized, before, after)
    if isinstance(attributes, str):
        return attributes
    if "scales" not in attributes and opset < NAMED_AXES:
        return f"axes of Resize need opset {NAMED_AXES}"
    return obstacle("Resize", resized.seen.value.dtype, opset) or _fusion(resized, result, attributes)


def _resized(result: ir.Value) -> Resized | None:
    """Trace a result back to the image that it was resized from."""
    seen = Seen.whole(result)
    if seen is None or len(dims_of(result) or ()) != len(seen.axes):
        return None
    resized = Resized(seen)
    while (behind := _picked(resized) or _weighted(resized)) is not None:
        resized.seen = behind
    sizes = sizes_of(resized.seen)
    labels: list[int | None] = []
    for label in resized.seen.axes:
        if isinstance(label, Part) and (label.place, label.count) == (0, 2) and label.whole not in resized.axes:
            factor, label = sizes.get(Part(label.whole, 1, 2)), label.whole
            if not isinstance(factor, int) or not isinstance(label, int):
                return None
            resized.repeated[label] = factor
        if not isinstance(label, int | None):
            return None
        labels.append(label)
    every = set(range(len(dims_of(result) or ())))
    if len(labels) != len(every):
        return None
    missing = iter(sorted(every - set(labels)))  # of size one
    resized.places = [next(missing) if label is None else label for label in labels]
    return resized


def _held(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of a constant that is not a parameter."""
    return None if value is None or value.meta.get(PARAMETER) else constant_of(value)


def _picked(resized: Resized) -> Seen | None:
    """Return the image from which elements are picked along one axis."""
    seen = resized.seen
    if not seen.is_op("Gather"):
        return None
    data, indices = source(seen.node), _held(source(seen.node, 1))
    axis = integer(seen.node, "axis", 0) % len(seen.axes)
    label, dims = seen.axes[axis], dims_of(data)
    if data is None or dims is None or indices is None or indices.ndim != 1 or not isinstance(dims[axis], int):
        return None
    if not isinstance(label, int) or label in resized.axes:
        return None
    resized.picked[label] = np.where(indices < 0, indices + dims[axis], indices)
    return look(data, seen.axes)


def _weighted(resized: Resized) -> Seen | None:
    """Return the image whose last or second-to-last axis is multiplied with a constant matrix."""
    seen = resized.seen
    if not seen.is_op("MatMul"):
        return None
    for place, axis in ((1, -1), (0, -2)):
        matrix, data, label = _held(source(seen.node, place)), source(seen.node, 1 - place), seen.axes[axis]
        if matrix is None or data is None or matrix.ndim != 2 or rank_of(data) != len(seen.axes):
            continue
        if isinstance(label, int) and label not in resized.axes:
            resized.weights[label] = matrix if place else matrix.T
            return look(data, seen.axes)
    return None


def _linear(resized: Resized, before: Mapping[int, Dim]) -> dict[str, Any] | str:
    if resized.picked or resized.repeated:
        return "elements are picked along one axis and interpolated along another"
    for label, matrix in resized.weights.items():
        expected = linear_weights(*matrix.shape)
        if before[label] != len(matrix) or not np.allclose(matrix, expected, rtol=0, atol=ROUNDING * max(matrix.shape)):
            return "the weights are not those of linear interpolation"
    if resized.seen.value.dtype != ir.DataType.FLOAT:
        return "it interpolates in another type than float32"
    if len(resized.places) != 4 or resized.axes not in INTERPOLATED:
        return "the runtime interpolates neighbouring axes of images alone"
    return {"mode": "linear"}


def linear_weights(before: int, after: int) -> np.ndarray:
    """Return the matrix of linear interpolation between the centers of pixels, which repeats those at the border.

    >>> linear_weights(2, 4)
    array([[1.  , 0.75, 0.25, 0.  ],
           [0.  , 0.25, 0.75, 1.  ]])
    """
    center = np.clip((np.arange(after) + 0.5) * before / after - 0.5, 0, before - 1)
    return np.maximum(0, 1 - np.abs(center - np.arange(before)[:, None]))


def _nearest(resized: Resized, before: Mapping[int, Dim], after: list[Dim]) -> dict[str, Any] | str:
    factors = [1.0] * len(after)
    for label, positions in resized.picked.items():
        size = before[label]
        assert isinstance(size, int)
        factor = len(positions) // size if size else 0
        if not factor or not np.array_equal(positions, np.repeat(np.arange(size), factor)):
            return _nearest_centers(resized, before)
        factors[label] = factor
    for label, factor in resized.repeated.items():
        factors[label] = factor
    options = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return {**options, "scales": factors}


def _nearest_centers(resized: Resized, before: Mapping[int, Dim]) -> dict[str, Any] | str:
    if resized.repeated:
        return "elements are repeated along one axis and picked along another"
    for label, positions in resized.picked.items():
        size, count = before[label], len(positions)
        assert isinstance(size, int)
        centers = (np.arange(count) + 0.5) * size / count
        if not np.array_equal(positions, np.floor(centers)):
            return "what is picked is not nearest to the centers"
        exact = math.frexp(size / count)[0] == 0.5  # a power of two
        if not exact and (np.abs(centers - np.round(centers)) < ROUNDING * size).any():
            return "a center lies between two elements, and the runtime may round it the other way"
    return {"mode": "nearest", "nearest_mode": "round_prefer_ceil"}


def _fusion(resized: Resized, result: ir.Value, attributes: dict[str, Any]) -> Fusion:
    dims, axes = dims_of(result) or [], sorted(resized.axes)
    scales = attributes.pop("scales", None)
    order = np.argsort(resized.places).tolist()

    def build(builder: Builder) -> ir.Value:
        image = builder.transposed(resized.seen.value, order)
        if scales is not None:
            factors = builder.constant(np.array(scales, np.float32), "scales")
            return builder.emit("Resize", [image, None, factors], dims, **attributes)
        sizes = builder.integers(static_dims([dims[axis] for axis in axes]) or [], "sizes")
        return builder.emit("Resize", [image, None, None, sizes], dims, axes=axes, **attributes)

    return Fusion("Resize", result, [resized.seen.value], build)
