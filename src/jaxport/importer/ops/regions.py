"""Sampling at positions between elements: regions of interest and deformable convolution."""

from __future__ import annotations

import math

import numpy as np

from jaxport.errors import Refusal, ValueNotKnown
from jaxport.importer.ops.convolution import ConvolutionAttributes
from jaxport.importer.resolving.registry import Host, earlier, op, variant
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.image_layout import ONNX
from jaxport.importer.values.namespaces import cast, helper, jnp, known, lax, vmap
from jaxport.jaxprs import Dim


@helper
def corner_terms(x, row, column):
    """Return the four weighted neighbours of each position in maps (channels, rows, columns); zero outside the maps."""
    height, width = x.shape[1:]
    terms = []
    for near_row in (jnp.floor(row), jnp.floor(row) + 1):
        for near_column in (jnp.floor(column), jnp.floor(column) + 1):
            weight = (1 - jnp.abs(row - near_row)) * (1 - jnp.abs(column - near_column))
            inside = (near_row >= 0) & (near_row < height) & (near_column >= 0) & (near_column < width)
            at_row = jnp.clip(near_row, 0, height - 1).astype(int)
            at_column = jnp.clip(near_column, 0, width - 1).astype(int)
            terms.append(x[:, at_row, at_column] * jnp.where(inside, weight, 0))
    return terms


@helper
def roi_align(x, roi, batch, size, samples, scale, half_pixel, mode):
    """Pool one region of interest (x1, y1, x2, y2) of maps (batch, channels, rows, columns) to `size`."""
    (rows, columns), (height, width) = samples, x.shape[2:]
    first_x, first_y, last_x, last_y = roi * scale - (0.5 if half_pixel else 0.0)
    extent_y, extent_x = last_y - first_y, last_x - first_x
    if not half_pixel:
        extent_y, extent_x = jnp.maximum(extent_y, 1.0), jnp.maximum(extent_x, 1.0)
    at_y = first_y + (jnp.arange(size[0] * rows) + 0.5) * (extent_y / (size[0] * rows))
    at_x = first_x + (jnp.arange(size[1] * columns) + 0.5) * (extent_x / (size[1] * columns))
    row, column = jnp.meshgrid(at_y, at_x, indexing="ij")
    outside = (row < -1) | (row > height) | (column < -1) | (column > width)
    row, column = jnp.clip(row, 0, height - 1), jnp.clip(column, 0, width - 1)
    terms = [jnp.where(outside, 0, term) for term in corner_terms(jnp.asarray(x)[batch], row, column)]
    shape = (x.shape[1], size[0], rows, size[1], columns)
    if mode == "max":
        # By its index: the gradient of `max` looks for a value that XLA computes again, and may round differently.
        values = jnp.stack(terms).reshape(4, *shape).transpose(1, 2, 4, 0, 3, 5).reshape(shape[0], *size, -1)
        return jnp.take_along_axis(values, values.argmax(-1, keepdims=True), -1)[..., 0]
    return jnp.stack(terms).sum(0).reshape(shape).mean((2, 4))


@op("RoiAlign", since=16)
def roi_align_aligned(
    X,
    rois,
    batch_indices,
    *,
    coordinate_transformation_mode="half_pixel",
    mode="avg",
    output_height=1,
    output_width=1,
    sampling_ratio=0,
    spatial_scale=1.0,
):
    size, half_pixel = (output_height, output_width), coordinate_transformation_mode == "half_pixel"

    def pooled(roi: Tensor, batch: Dim, samples: tuple[int, int]) -> Tensor:
        return roi_align(X, roi, batch, size, samples, spatial_scale, half_pixel, mode)

    if sampling_ratio:
        return vmap(lambda roi, batch: pooled(roi, batch, (sampling_ratio, sampling_ratio)))(rois, batch_indices)
    regions = known(rois)
    if regions is None:
        why = (
            "with `sampling_ratio` 0 the number of samples depends on the size of each region; call it outside "
            "`jax.jit`, or set a ratio"
        )
        raise ValueNotKnown("the sizes of the regions must be known", [Refusal("", "", why)])
    least = 0.0 if half_pixel else 1.0
    extents = np.maximum((regions.data[:, [3, 2]] - regions.data[:, [1, 0]]) * spatial_scale, least)
    counts = [tuple(max(math.ceil(part), 1) for part in parts) for parts in (extents / np.array(size)).tolist()]
    if not counts:
        return jnp.zeros((0, X.shape[1], *size), X.dtype)
    return jnp.stack([pooled(rois[i], batch_indices[i], count) for i, count in enumerate(counts)])


earlier("RoiAlign", since=10, until=15, fixed={"coordinate_transformation_mode": "output_half_pixel"})


@helper
def deformed_patches(x, offset, mask, kernel, strides, pads, dilations):
    """Return the elements of maps (channels, rows, columns) that each tap reads: (channels, *kernel, *output)."""
    offset = offset.reshape(*kernel, 2, *offset.shape[1:])
    mask = mask.reshape(*kernel, *mask.shape[1:])
    steps = [jnp.arange(n) * s - low for n, s, low in zip(mask.shape[2:], strides, pads, strict=True)]
    taps = [jnp.arange(k) * d for k, d in zip(kernel, dilations, strict=True)]
    row = taps[0][:, None, None, None] + steps[0][:, None] + offset[:, :, 0]
    column = taps[1][:, None, None] + steps[1] + offset[:, :, 1]
    terms = corner_terms(x, row, column)
    return sum(terms[1:], terms[0]) * mask


@op("DeformConv", since=19)
@variant("auto_pad")
def deform_conv(X, W, offset, B=None, mask=None, *, offset_group=1, window: ConvolutionAttributes):
    kernel, (batch, channels, *image), (_, _, *output) = W.shape[2:], X.shape, offset.shape
    if mask is None:
        mask = jnp.ones((batch, offset.shape[1] // 2, *output), X.dtype)
    maps = jnp.reshape(X, (batch, offset_group, channels // offset_group, *image))
    offset = jnp.reshape(offset, (batch, offset_group, -1, *output))
    mask = jnp.reshape(mask, (batch, offset_group, -1, *output))
    options = (kernel, window.strides or (1, 1), (window.pads or (0, 0))[:2], window.dilations or (1, 1))
    patches = vmap(vmap(lambda x, moved, kept: deformed_patches(x, moved, kept, *options)))(maps, offset, mask)
    patches = jnp.reshape(patches, (batch, window.group, channels // window.group, *kernel, *output))
    weights = jnp.reshape(W, (window.group, W.shape[0] // window.group, *W.shape[1:]))
    y = jnp.einsum("ngcklhw,gmckl->ngmhw", patches, weights)
    return ONNX.with_bias(jnp.reshape(y, (batch, W.shape[0], *output)), B)


@helper
def roi_max_pool(x, roi, size, scale):
    """Pool one region of interest (batch, x1, y1, x2, y2) of whole pixels of `x`: the maximum of each bin, or zero."""

    def bins(first, last, count, length):
        first, last = lax.round(first * scale), lax.round(last * scale)  # halves away from zero
        step = jnp.maximum(last - first + 1, 1) / count
        edges = jnp.arange(count)[:, None] * step
        at = jnp.arange(length)
        return (at >= jnp.floor(edges) + first) & (at < jnp.ceil(edges + step) + first)

    rows, columns = bins(roi[2], roi[4], size[0], x.shape[2]), bins(roi[1], roi[3], size[1], x.shape[3])
    maps = jnp.asarray(x)[roi[0].astype(int)]
    maps = jnp.where(columns, maps[:, :, None], -jnp.inf).max(-1)
    maps = jnp.where(rows[:, :, None], maps[:, None], -jnp.inf).max(2)
    return jnp.where(rows.any(1)[:, None] & columns.any(1), maps, 0)


@op("MaxRoiPool", since=1)
def max_roi_pool(X, rois, *, pooled_shape, spatial_scale=1.0):
    return vmap(lambda roi: roi_max_pool(X, roi, pooled_shape, spatial_scale))(rois)


def _centers(size: Dim, corners: int, dtype: np.dtype) -> Tensor:
    """Return the positions of an axis's elements between -1 and 1: corner to corner, or the centers of equal parts."""
    steps = cast(jnp.arange(size), dtype)
    return steps * (2 / max(size - 1, 1)) - 1 if corners else (2 * steps + 1) / size - 1


@op("AffineGrid", since=20)
def affine_grid(theta, size: Host, *, align_corners=0):
    axes = jnp.meshgrid(*(_centers(n, align_corners, theta.dtype) for n in size[2:]), indexing="ij")
    points = jnp.stack([*reversed(axes), jnp.ones_like(axes[0])], axis=-1)
    grid = jnp.reshape(points, (-1, len(axes) + 1)) @ theta.mT
    return jnp.reshape(grid, (*grid.shape[:1], *size[2:], len(axes)))
