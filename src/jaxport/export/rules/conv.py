"""Convolutions: `conv_general_dilated` in any layout, as Conv, ConvTranspose, ConvInteger or a product."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxport.export.emit.registry import rule
from jaxport.export.rules.shape import rev
from jaxport.export.rules.sliding import Window, attributes, fitted, gathered, padded, windows
from jaxport.jaxprs import dims


@rule("conv_general_dilated", irrelevant=("precision", "preferred_element_type"))
def conv_general_dilated(
    op,
    x,
    kernel,
    *,
    dimension_numbers,
    window_strides,
    padding,
    lhs_dilation,
    rhs_dilation,
    feature_group_count,
    batch_group_count,
):
    if any(dims.same(size, 0) for size in (*x.shape, *kernel.shape, *op.out.shape)):
        return op.expand(op.const(0, op.out.dtype), op.out.shape)  # an empty sum of products
    x_order, kernel_order, out_order = dimension_numbers
    x, kernel = op.transpose(x, x_order), op.transpose(kernel, kernel_order)
    window = windows(kernel.shape[2:], window_strides, padding, rhs_dilation, lhs_dilation)
    shape = [op.out.shape[axis] for axis in out_order]
    if not dims.same(batch_group_count, 1):
        x = batch_groups_as_features(op, x, batch_group_count)
    groups = feature_group_count * batch_group_count  # one of them is 1
    if window:
        result = convolved(op, x, kernel, window, groups, shape)
    else:  # Conv requires a spatial axis
        x, kernel = op.unsqueeze(x, (2,)), op.unsqueeze(kernel, (2,))
        result = op.squeeze(convolved(op, x, kernel, [Window(1)], groups, [*shape, 1]), (2,))
    return op.transpose(op.cast(result, op.out.dtype), np.argsort(out_order))


def batch_groups_as_features(op, x, groups):
    """Return `(groups * N, C, ...)` as `(N, groups * C, ...)`: groups of the batch become groups of features."""
    batch, features, *spatial = x.shape
    x = op.transpose(op.reshape(x, (groups, batch // groups, features, *spatial)), (1, 0, *range(2, x.rank + 1)))
    return op.reshape(x, (batch // groups, groups * features, *spatial))


def convolved(op, x, kernel, window, groups, shape):
    """Convolve `x` (N, C, ...) with `kernel` (O, C / groups, ...), by an operator that takes the dtype."""
    group = None if dims.same(groups, 1) else groups
    known = dims.all_static([groups])  # not for a `vmap` of kernels over a symbolic axis, as `group` is an attribute
    if known and x.dtype in (np.int8, np.uint8) and op.out.dtype.itemsize <= 4:
        x, options = fitted(op, x, window, 0)
        return op.ConvInteger(x, kernel, group=group, **options)
    dtype = np.dtype(np.float32) if op.out.dtype == bool else op.out.dtype  # of booleans: whether any product is true
    x, kernel = op.cast(x, dtype), op.cast(kernel, dtype)
    # Without a kernel in the runtime and without a wider dtype to compute in, use a product.
    if not known or x.dtype == np.float64 or x.dtype.kind in "iu":
        x = gathered(op, padded(op, x, window, 0), window, shape[2:])
        return op.call(contracted, x, kernel, groups=groups)
    options = scatter_attributes(window)
    if options is not None:
        return op.ConvTranspose(x, scatter_kernel(op, kernel, groups), group=group, **options)
    x, options = fitted(op, x, window, 0)
    return op.Conv(x, kernel, group=group, **options)


def contracted(x, kernel, *, groups):
    """Multiply the windows' elements (N, C, places and elements of each axis) with a kernel."""
    batch, _, *seen = x.shape
    outputs, features, *sizes = kernel.shape
    places, elements = "abcdefgh"[: len(sizes)], "ABCDEFGH"[: len(sizes)]
    both = "".join(map("".join, zip(places, elements, strict=True)))
    x = x.reshape(batch, groups, features, *seen)
    kernel = kernel.reshape(groups, outputs // groups, features, *sizes)
    result = jnp.einsum(f"ngx{both},gyx{elements}->ngy{places}", x, kernel)
    return result.reshape(batch, outputs, *seen[::2])


def scatter_attributes(window):
    """Return the attributes of the ConvTranspose that equals a convolution over dilated data, or None."""
    plain = all(w.stride == 1 and dims.all_static((w.size, *w.pads)) for w in window)
    if not plain or all(w.base_dilation == 1 for w in window):
        return None
    cut = [(w.reach - w.pads[0], w.reach - w.pads[1]) for w in window]
    extra = [max(0, -after) for _, after in cut]
    if min(cut)[0] < 0 or any(more >= w.base_dilation for more, w in zip(extra, window, strict=True)):
        return None
    pads = [(before, max(0, after)) for before, after in cut]
    swapped = [w._replace(stride=w.base_dilation, pads=pad) for w, pad in zip(window, pads, strict=True)]
    return {**attributes(swapped), "output_padding": extra if any(extra) else None}


def scatter_kernel(op, kernel, groups):
    """Return the mirrored kernel (C, O / groups, ...) of a ConvTranspose from that of a Conv, (O, C / groups, ...)."""
    outputs, features, *sizes = kernel.shape
    split = op.reshape(mirrored(op, kernel), (groups, outputs // groups, features, *sizes))
    swapped = op.transpose(split, (0, 2, 1, *range(3, split.rank)))
    return op.reshape(swapped, (groups * features, outputs // groups, *sizes))


def mirrored(op, kernel):
    """Reverse the spatial axes of a kernel; a view of a constant."""
    axes = tuple(range(2, kernel.rank))
    if kernel.constant is not None:
        return op.const(np.flip(kernel.constant, axes), name=kernel.name, held=kernel.held)
    return rev(op, kernel, dimensions=axes)
