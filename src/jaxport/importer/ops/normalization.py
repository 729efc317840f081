"""Normalization over batches, channels, groups and trailing axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxport.errors import Refusal, Unsupported
from jaxport.importer.ops.arithmetic import divide, safe_root
from jaxport.importer.resolving.registry import REQUIRED, OutputCount, earlier, image_op, op
from jaxport.importer.values.dtypes import dtype_of
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.image_layout import ONNX, ImageLayout
from jaxport.importer.values.namespaces import cast, helper, jnp, lax


def _over(axes: Sequence[int]) -> dict[str, int | tuple[int, ...]]:
    return {"axis": axes[0] if len(axes) == 1 else tuple(axes), "keepdims": True}


def standardized(x: Tensor, axes: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return `x` with mean zero and variance one over `axes`, the mean, and the inverse standard deviation."""
    mean = jnp.mean(x, **_over(axes))
    centered = x - mean
    inverse = lax.rsqrt(jnp.mean(centered * centered, **_over(axes)) + epsilon)
    return centered * inverse, mean, inverse


def _at_least(x: Tensor, stash_type: int) -> Tensor:
    """Return `x` in the type that statistics are computed in, unless its own is more precise."""
    stash = dtype_of(stash_type)
    return x if x.dtype.itemsize > stash.itemsize else cast(x, stash)


@op("LayerNormalization", since=1)  # 17 in ONNX; ONNX Runtime writes it into older models
def layer_normalization(X, Scale, B=None, *, axis=-1, epsilon=1e-5, stash_type=1):
    y, mean, inverse = standardized(_at_least(X, stash_type), range(axis % X.ndim, X.ndim), epsilon)
    y = cast(y, X.dtype) * Scale
    return y if B is None else y + B, cast(mean, dtype_of(stash_type)), cast(inverse, dtype_of(stash_type))


@op("RMSNormalization", since=23)
def rms_normalization(X, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    x = _at_least(X, stash_type)
    y = x * lax.rsqrt(jnp.mean(x * x, **_over(range(axis % X.ndim, X.ndim))) + epsilon)
    return cast(y, X.dtype) * scale


@image_op("InstanceNormalization", since=6)
def instance_normalization(layout, input, scale, B, *, epsilon=1e-5):
    y, _, _ = standardized(input, layout.spatial(input), epsilon)
    return y * layout.per_channel(scale, input) + layout.per_channel(B, input)


earlier("InstanceNormalization", since=1, until=5, ignored={"consumed_inputs": None})


@helper
def group_norm(x, groups, epsilon):
    """`x`, with channels last, of mean 0 and variance 1 in each group of channels of each sample."""
    grouped = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    grouped = grouped - jnp.mean(grouped, axis=(1, 3), keepdims=True)
    return (grouped * lax.rsqrt(jnp.mean(grouped**2, axis=(1, 3), keepdims=True) + epsilon)).reshape(x.shape)


@image_op("GroupNormalization", since=21)
def group_normalization(layout, X, scale, bias, *, epsilon=1e-5, num_groups, stash_type=1):
    x = _at_least(X, stash_type)
    if layout.channels_last:
        y = group_norm(x, num_groups, epsilon)
    else:
        batch, channels, *spatial = X.shape
        rows = jnp.reshape(x, (batch, num_groups, channels // num_groups * math.prod(spatial)))
        y = jnp.reshape(standardized(rows, (2,), epsilon)[0], X.shape)
    y = cast(y, X.dtype)
    return y * layout.per_channel(scale, X) + layout.per_channel(bias, X)


@image_op("GroupNormalization", since=18, until=20)
def group_normalization_per_group(layout, X, scale, bias, *, epsilon=1e-5, num_groups):
    each = X.shape[layout.channels(X)] // num_groups
    scale, bias = jnp.repeat(scale, each), jnp.repeat(bias, each)
    return group_normalization(layout, X, scale, bias, epsilon=epsilon, num_groups=num_groups)


@op("MeanVarianceNormalization", since=9)
def mean_variance_normalization(X, *, axes=(0, 2, 3)):
    centered = X - jnp.mean(X, **_over(axes))
    return divide(centered, safe_root(jnp.mean(centered * centered, **_over(axes))) + 1e-9)


@op("LpNormalization", since=1)
def lp_normalization(input, *, axis=-1, p=2):
    if p not in (1, 2):
        raise Unsupported(
            "an attribute has a value that ONNX does not define",
            [Refusal("LpNormalization", "", f"`p` is {p}; it has to be one of 1, 2")],
        )
    total = jnp.sum(jnp.abs(input) if p == 1 else input * input, axis=axis, keepdims=True)
    total = jnp.where(total == 0, 1, total)
    return divide(input, total if p == 1 else jnp.sqrt(total))


@op("LRN", since=1)
def lrn(X, *, alpha=1e-4, beta=0.75, bias=1.0, size):
    none = [(0, 0)] * (X.ndim - 2)
    around = ((0, 0), ((size - 1) // 2, size // 2), *none)
    window = (1, size, *[1] * len(none))
    squares = lax.reduce_window(X * X, 0.0, lax.add, window, (1,) * X.ndim, around)
    return divide(X, (bias + alpha / size * squares) ** beta)


def _batch_normalized(
    layout: ImageLayout, X: Tensor, parameters: Sequence[Tensor], epsilon: float, spatial: int = 1
) -> Tensor:
    """Normalize by scale, bias, mean and variance, each per channel, or per element of a sample if not `spatial`."""
    precise = (cast(p, X.dtype) if p.dtype.itemsize < X.dtype.itemsize else p for p in parameters)
    scale, bias, mean, var = (layout.per_channel(p, X) if spatial else p for p in precise)
    return (X - mean) * (scale * lax.rsqrt(var + epsilon)) + bias


def _batch_normalized_training(
    layout: ImageLayout, X: Tensor, parameters: Sequence[Tensor], epsilon: float, momentum: float, spatial: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the result, the running mean and variance, and the mean and variance of the batch."""
    scale, bias, mean, var = parameters
    axes = (0, *layout.spatial(X)) if spatial else (0,)
    batch_mean, batch_var = jnp.mean(X, axis=axes), jnp.var(X, axis=axes)
    running = (mean * momentum + batch_mean * (1 - momentum), var * momentum + batch_var * (1 - momentum))
    y = _batch_normalized(layout, X, (scale, bias, batch_mean, batch_var), epsilon, spatial)
    return y, *running, batch_mean, batch_var


@image_op("BatchNormalization", since=14)
def batch_normalization(
    layout, X, scale, B, input_mean, input_var, *, epsilon=1e-5, momentum=0.9, training_mode=0
):  # fmt: skip
    if training_mode:
        return _batch_normalized_training(layout, X, (scale, B, input_mean, input_var), epsilon, momentum)[:3]
    return _batch_normalized(layout, X, (scale, B, input_mean, input_var), epsilon)


@image_op("BatchNormalization", since=9, until=13)
def batch_normalization_by_outputs(
    layout, X, scale, B, mean, var, *, epsilon=1e-5, momentum=0.9, outputs: OutputCount = 1
):  # fmt: skip
    if outputs > 1:
        return _batch_normalized_training(layout, X, (scale, B, mean, var), epsilon, momentum)
    return _batch_normalized(layout, X, (scale, B, mean, var), epsilon)


@op("BatchNormalization", since=7, until=8)
def batch_normalization_spatial(
    X, scale, B, mean, var, *, epsilon=1e-5, momentum=0.9, spatial=1, outputs: OutputCount = 1
):
    if outputs > 1:
        return _batch_normalized_training(ONNX, X, (scale, B, mean, var), epsilon, momentum, spatial)
    return _batch_normalized(ONNX, X, (scale, B, mean, var), epsilon, spatial)


@op("BatchNormalization", since=6, until=6)
def batch_normalization_testing(X, scale, B, mean, var, *, epsilon=1e-5, is_test=0, momentum=0.9, spatial=1):
    if is_test:
        return _batch_normalized(ONNX, X, (scale, B, mean, var), epsilon, spatial)
    return _batch_normalized_training(ONNX, X, (scale, B, mean, var), epsilon, momentum, spatial)


earlier("BatchNormalization", since=1, until=5, ignored={"consumed_inputs": REQUIRED})
