"""Resizing by interpolation along axes, and sampling at positions of a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxport.errors import Refusal, Unsupported
from jaxport.importer.limits import budget_in_force
from jaxport.importer.resolving.registry import REQUIRED, Host, earlier, op
from jaxport.importer.values.host import Tensor, is_dim
from jaxport.importer.values.namespaces import helper, jnp, vmap
from jaxport.jaxprs import Dim


@helper
def resized_positions(n, size, scale, transform, roi):
    """Return the position in an axis of `n` elements of each of the `size` elements of the result, in float32 as ONNX
    Runtime.
    """
    xp = np if isinstance(n, int) and isinstance(size, int) else jnp
    length, last = xp.asarray(n).astype(xp.float32), xp.asarray(n - 1).astype(xp.float32)
    at, count = xp.arange(size).astype(xp.float32), xp.asarray(size).astype(xp.float32)
    scale = count / length if scale is None else np.float32(scale)
    if transform == "align_corners":
        return at * last / xp.where(count == 1, 1, count - 1).astype(xp.float32)
    if transform == "asymmetric":
        return at / scale
    if transform == "tf_crop_and_resize":
        start, end = np.float32(roi[0]), np.float32(roi[1])
        middle = (start + end) * last / 2
        along = start * last + at * (end - start) * last / xp.where(count == 1, 1, count - 1).astype(xp.float32)
        return xp.where(count == 1, middle, along)
    if transform == "tf_half_pixel_for_nn":
        return (at + np.float32(0.5)) / scale
    if transform == "half_pixel_symmetric":
        middle = length / 2 * (1 - count / (scale * length))
        # ONNX Runtime adds up in doubles; of open sizes the last bit may differ.
        at, scale = (at.astype(np.float64), scale.astype(np.float64)) if xp is np else (at, scale)
        return (middle + (at + 0.5) / scale - 0.5).astype(xp.float32)
    half = (at + np.float32(0.5)) / scale - np.float32(0.5)
    return xp.where(count == 1, 0, half).astype(xp.float32) if transform == "pytorch_half_pixel" else half


@helper
def cubic_weights(distance, a):
    """Return Keys' kernel of cubic interpolation with the constant `a`."""
    xp = np if isinstance(distance, np.ndarray) else jnp
    x = xp.abs(distance)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((x - 5) * x + 8) * a * x - 4 * a
    return xp.where(x <= 1, near, xp.where(x < 2, far, 0.0))


@helper
def resized_along(
    x,
    axis,
    size,
    scale=None,
    mode="nearest",
    transform="half_pixel",
    nearest="round_prefer_floor",
    cubic_a=-0.75,
    antialias=False,
    exclude_outside=False,
    roi=None,
    extrapolation=0.0,
):
    """Resize `x` to `size` elements along `axis` as ONNX's Resize; `scale` defaults to `size / x.shape[axis]`."""
    n = x.shape[axis]
    at = resized_positions(n, size, scale, transform, roi)
    xp = np if isinstance(at, np.ndarray) else jnp
    column = [-1 if a == axis else 1 for a in range(x.ndim)]
    if mode == "nearest":
        below = xp.floor(at)
        rounded = {  # as near to the middle of two elements ONNX Runtime sees a position as there
            "round_prefer_floor": lambda: below + (at - below > np.float32(0.5 + 1e-6)),
            "round_prefer_ceil": lambda: below + (at - below >= np.float32(0.5 - 1e-6)),
            "floor": lambda: below,
            "ceil": lambda: xp.ceil(at),
        }[nearest]()
        y = jnp.take(x, xp.clip(rounded, 0, n - 1).astype(int), axis=axis, mode="clip")
    else:
        shrink = min(1.0, size / n if scale is None else scale) if antialias else 1.0
        reach = (1 if mode == "linear" else 2) / shrink
        taps = np.arange(int(np.ceil(2 * reach)) + (shrink < 1))[:, None] + xp.floor(at - reach) + 1
        distance = (taps - at) * shrink
        weights = xp.maximum(1 - xp.abs(distance), 0) if mode == "linear" else cubic_weights(distance, cubic_a)
        if exclude_outside:
            weights = xp.where((taps < 0) | (taps > n - 1), 0.0, weights)
        if antialias or exclude_outside:
            weights = weights / weights.sum(0)
        indices = xp.clip(taps, 0, n - 1).astype(int)
        x = x if x.dtype == jnp.float64 else x.astype(jnp.float32)
        terms = [
            jnp.take(x, index, axis=axis, mode="clip") * weight.reshape(column).astype(x.dtype)
            for index, weight in zip(indices, weights, strict=True)
        ]
        y = sum(terms[1:], terms[0])
    if transform == "tf_crop_and_resize":
        y = jnp.where(((at < 0) | (at > n - 1)).reshape(column), extrapolation, y)
    return y


@helper
def resized(x, axes, sizes, scales=None, **options):
    """Resize `x` along each of `axes` in turn, as `resized_along` does."""
    for axis, size, scale in zip(axes, sizes, scales or [None] * len(axes), strict=True):
        x = resized_along(x, axis, size, scale, **options)
    return x


def _scaled_size(n: Dim, scale: float) -> Dim:
    """Return `floor(n * scale)`, rounded as in single precision."""
    if not is_dim(n):
        return int(np.float32(int(n)) * np.float32(scale))
    sizes = np.arange(1, 2**16)
    found = np.floor(np.float32(sizes) * np.float32(scale))
    quotients = ((round(scale * below), below) for below in range(1, 1025))
    above, below = next(((p, q) for p, q in quotients if np.array_equal(sizes * p // q, found)), (0, 0))
    if not below:
        why = f"the scale {scale} of a symbolic size is not a simple fraction; give the axis a fixed size"
        raise Unsupported("a size cannot be scaled", [Refusal("", "", why)])
    return n * above // below


def _kept_aspect(shape: Sequence[Dim], sizes: Sequence[Dim], policy: str) -> tuple[list[Dim], list[float | None]]:
    """Return sizes and scales of the resized axes; a scale of None is the quotient of the sizes."""
    if policy == "stretch":
        return list(sizes), [None] * len(sizes)
    ratios = [int(size) / int(n) for n, size in zip(shape, sizes, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [int(scale * int(n) + 0.5) for n in shape], [scale] * len(sizes)


@op("Resize", since=18)
def resize_axes(
    X,
    roi: Host | None = None,
    scales: Host | None = None,
    sizes: Host | None = None,
    *,
    antialias=0,
    axes=None,
    coordinate_transformation_mode="half_pixel",
    cubic_coeff_a=-0.75,
    exclude_outside=0,
    extrapolation_value=0.0,
    keep_aspect_ratio_policy="stretch",
    mode="nearest",
    nearest_mode="round_prefer_floor",
):
    axes = [axis % X.ndim for axis in axes or range(X.ndim)]
    shape = [X.shape[axis] for axis in axes]
    if scales is not None and scales.size:
        factors = scales.tolist()
        wanted = [_scaled_size(n, scale) for n, scale in zip(shape, factors, strict=True)]
    elif sizes is not None:
        wanted, factors = _kept_aspect(shape, sizes.tolist(), keep_aspect_ratio_policy)
    else:
        why = "it has neither `scales` nor `sizes`; one of them is required"
        raise Unsupported("a size is missing", [Refusal("", "", why)])
    options: dict[str, Any] = {"mode": mode, "transform": coordinate_transformation_mode}
    if mode == "nearest":
        options["nearest"] = nearest_mode
    if mode == "cubic":
        options["cubic_a"] = cubic_coeff_a
    if antialias:
        options["antialias"] = True
    if exclude_outside:
        options["exclude_outside"] = True
    cropped = coordinate_transformation_mode == "tf_crop_and_resize"
    if cropped:
        options["extrapolation"] = extrapolation_value
    bounds = roi.tolist() if cropped and roi is not None else [0] * len(axes) + [1] * len(axes)
    if [*map(str, wanted)] == [*map(str, shape)]:
        return X  # whatever the scales: ONNX Runtime copies it
    changed = []
    for i, (axis, n, size, scale) in enumerate(zip(axes, shape, wanted, factors, strict=True)):
        part = (bounds[i], bounds[len(axes) + i]) if cropped else (0, 1)
        unchanged = scale == 1 or (scale is None and str(size) == str(n))
        if not unchanged or part != (0, 1):
            changed.append((axis, size, scale, part))
    _check_size(X, {axis: size for axis, size, *_ in changed})
    if mode == "linear" and len(changed) > 1 and not cropped:
        axes, wanted, factors, _ = zip(*changed, strict=True)
        given = () if all(scale is None for scale in factors) else (factors,)
        return resized(X, axes, wanted, *given, **options)
    for axis, size, scale, part in changed:
        if cropped and roi is not None:
            options["roi"] = part
        X = resized_along(X, axis, size, scale, **options)
    return X


def _check_size(x: Tensor, sizes: Mapping[int, Dim]) -> None:
    """Refuse a result that is too large before the position of each of its elements is computed."""
    shape = [sizes.get(axis, size) for axis, size in enumerate(x.shape)]
    count = math.prod(n for n in shape if isinstance(n, int))
    budget_in_force().check(count * x.dtype.itemsize, "", f"the result of shape {shape}")


earlier("Resize", since=13, until=17, without="antialias axes keep_aspect_ratio_policy")
earlier("Resize", since=11, until=12, roi=REQUIRED, scales=REQUIRED)


@op("Resize", since=10, until=10)
def resize_scaled(X, scales: Host, *, mode="nearest"):
    return _resized_from_corner(X, scales.tolist(), mode)


def _resized_from_corner(X: Tensor, scales: Sequence[float], mode: str) -> Tensor:
    """Resize as opset 10 and older do, with coordinates from the corner of the first element."""
    for axis, scale in enumerate(scales):
        if scale != 1:
            options = {"nearest": "ceil" if scale < 1 else "floor"} if mode == "nearest" else {}
            size = _scaled_size(X.shape[axis], scale)
            _check_size(X, {axis: size})
            X = resized_along(
                X, axis, size, scale, mode="linear" if mode == "bilinear" else mode, transform="asymmetric", **options
            )
    return X


@op("Upsample", since=9, until=9)
def upsample(X, scales: Host, *, mode="nearest"):
    return _resized_from_corner(X, scales.tolist(), mode)


@op("Upsample", since=7, until=8)
def upsample_constant(X, *, mode="nearest", scales):
    return _resized_from_corner(X, scales, mode)


@op("Upsample", since=1, until=6)
def upsample_image(X, *, height_scale, mode="nearest", width_scale):
    return _resized_from_corner(X, (1.0, 1.0, height_scale, width_scale), mode)


@helper
def grid_positions(at, n, align_corners, padding, rounded):
    """Return positions in an axis of `n` elements for grid values from -1 to 1, moved inside as `padding` says."""
    at = (at + 1) / 2 * (n - 1) if align_corners else ((at + 1) * n - 1) / 2
    at = jnp.round(at) if rounded else at
    if padding == "border":  # three elements beyond the border, all taps of a cubic sample read the border
        return jnp.clip(at, -3, n + 2)
    return reflected(at, n, align_corners) if padding == "reflection" else at


@helper
def reflected(at, n, align_corners):
    """Reflect positions at both ends of an axis until they are inside."""
    low, high = (0.0, n - 1.0) if align_corners else (-0.5, n - 0.5)
    span = jnp.maximum(high - low, 1.0)  # where there is one element, it is read whatever the position
    away = jnp.mod(at - low, 2 * span)
    return jnp.where((at < low) | (at > high), low + jnp.minimum(away, 2 * span - away), at)


@helper
def grid_sample(x, grid, mode, padding, align_corners):
    """Sample one array (channels, *spatial) at the positions of a grid (*points, axes), last axis first."""
    spatial = x.shape[1:]
    taps, weights = [], []
    for axis, n in enumerate(spatial):
        at = grid_positions(grid[..., -1 - axis], n, align_corners, padding, mode == "nearest")
        if mode == "nearest":
            near, share = at[None], jnp.ones_like(at)[None]
        else:
            reach = 1 if mode == "linear" else 2
            offsets = jnp.arange(1 - reach, reach + 1).reshape(-1, *[1] * at.ndim)
            near = jnp.floor(at) + offsets
            distance = jnp.abs(near - at)
            share = jnp.maximum(1 - distance, 0) if mode == "linear" else cubic_weights(distance, -0.75)
        if padding == "zeros":
            share = jnp.where((near < 0) | (near > n - 1), 0, share)
        elif padding == "reflection":
            near = reflected(near, n, align_corners)
        taps.append(jnp.clip(jnp.trunc(near), 0, n - 1).astype(int))
        weights.append(share)
    y = 0.0
    for choice in np.ndindex(*(len(near) for near in taps)):
        weight = 1.0
        for axis, tap in enumerate(choice):
            weight = weight * weights[axis][tap]
        y = y + x[(slice(None), *(taps[axis][tap] for axis, tap in enumerate(choice)))] * weight
    return y


@op("GridSample", since=20)
def grid_sample_axes(X, grid, *, align_corners=0, mode="linear", padding_mode="zeros"):
    return vmap(lambda x, points: grid_sample(x, points, mode, padding_mode, bool(align_corners)))(X, grid)


@op("GridSample", since=16, until=19)
def grid_sample_image(X, grid, *, align_corners=0, mode="bilinear", padding_mode="zeros"):
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return grid_sample_axes(X, grid, align_corners=align_corners, mode=mode, padding_mode=padding_mode)
