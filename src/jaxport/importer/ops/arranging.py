"""Operators that split, pad, crop or rearrange elements by sizes: blocks to depth and back, columns to images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from jaxport.errors import AGAIN, ModelError, Refusal, Unsupported
from jaxport.importer.ops.indexing import columns_to_image
from jaxport.importer.resolving.registry import Host, OutputCount, earlier, op
from jaxport.importer.values.host import SizesDiffer, Tensor, dims_compare, is_dim
from jaxport.importer.values.namespaces import jnp, known, lax
from jaxport.jaxprs import Dim


def _split_evenly(input: Tensor, count: int, axis: int) -> tuple[Tensor, ...]:
    """Return `count` parts of the same size; the last one may be smaller."""
    return _parts_of_sizes(input, [-(-input.shape[axis] // count)] * count, axis)


def _parts_of_sizes(input: Tensor, sizes: Sequence[Dim], axis: int) -> tuple[Tensor, ...]:
    """Return the parts of these sizes; the last one is what is left, which the model may state otherwise if it is
    known.
    """
    total = sum(sizes)
    if is_dim(total) and total != input.shape[axis]:
        raise SizesDiffer(input.shape[axis], total)
    if all(isinstance(size, int) and size * len(sizes) == input.shape[axis] for size in sizes):
        return tuple(jnp.split(input, len(sizes), axis=axis))
    return tuple(jnp.split(input, list(accumulate(sizes))[:-1], axis=axis))


@op("Split", since=1, until=1)
def split_at(input, split: Host | None = None, *, axis=None, split_=None, outputs: OutputCount):
    if axis is None:
        raise Unsupported("the axis is not given", [Refusal("", "", "version 1 has no default for `axis`; set it")])
    sizes = split_ if split is None else [int(size) for size in split.tolist()]
    return split_attribute(input, axis=axis, split=sizes, outputs=outputs)


@op("Split", since=2, until=12)
def split_attribute(input, *, axis=0, split=None, outputs: OutputCount):
    return _split_evenly(input, outputs, axis) if split is None else _parts_of_sizes(input, split, axis)


@op("Split", since=18)
def split(input, split: Host | None = None, *, axis=0, num_outputs=None, outputs: OutputCount):
    if split is not None:
        return _parts_of_sizes(input, split.tolist(), axis)
    if num_outputs is not None and num_outputs != outputs:
        raise ModelError(f"`num_outputs` is {num_outputs}, the node has {outputs} outputs", instead=AGAIN)
    return _split_evenly(input, outputs, axis)


earlier("Split", since=13, until=17, without="num_outputs")

MODES = ("constant", "reflect", "edge", "wrap")


def _padded(data: Tensor, pads: Sequence[Dim], axes: Sequence[int], mode: str, value: Tensor | float) -> Tensor:
    """Return `data` with `pads` elements added (or removed) at both ends of each axis: all befores, then all afters."""
    if mode not in MODES:
        raise Unsupported(
            "an attribute has a value that ONNX does not define",
            [Refusal("", "", f"`mode` is {mode!r}; it has to be one of {', '.join(MODES)}")],
        )
    widths: list[tuple[Dim, Dim]] = [(0, 0)] * data.ndim
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        widths[axis] = (before, after)
    dims = any(is_dim(width) for pair in widths for width in pair)
    if mode == "constant" and (dims or any(width < 0 for pair in widths for width in pair)):
        filler = jnp.asarray(value, dtype=data.dtype)
        return lax.pad(data, filler, [(before, after, 0) for before, after in widths])
    crop = [
        slice(-before if dims_compare("<", before, 0) else None, after if dims_compare("<", after, 0) else None)
        for before, after in widths
    ]
    if any(part != slice(None) for part in crop):
        data = data[tuple(crop)]
        widths = [(max(before, 0), max(after, 0)) for before, after in widths]
    if isinstance(value, int) and value.bit_length() > 31:
        value = jnp.asarray(value, dtype=data.dtype)  # JAX takes no such Python number
    zero = mode != "constant" or (isinstance(value, int | float) and value == 0)
    return jnp.pad(data, widths, mode=mode) if zero else jnp.pad(data, widths, mode=mode, constant_values=value)


def _scalar(value: Tensor | None) -> Tensor | float:
    """Return a fill value: as a Python number if it is known."""
    if value is None:
        return 0
    host_value = known(value)
    if (
        host_value is None or host_value.dtype == np.uint64
    ):  # JAX does not accept its largest numbers as Python integers
        return jnp.reshape(value, ())
    return host_value.item()


@op("Pad", since=18)
def pad(data, pads: Host, constant_value=None, axes: Host | None = None, *, mode="constant"):
    return _padded(data, list(pads), range(data.ndim) if axes is None else list(axes), mode, _scalar(constant_value))


earlier("Pad", since=11, until=17, without="axes")


@op("Pad", since=2, until=10)
def pad_attributes(data, *, mode="constant", pads, value=0.0):
    return _padded(data, pads, range(data.ndim), mode, value)


@op("Pad", since=1, until=1)
def pad_paddings(data, *, mode="constant", paddings, value=0.0):
    return _padded(data, paddings, range(data.ndim), mode, value)


@op("CenterCropPad", since=18)
def center_crop_pad(input_data, shape: Host, *, axes=None):
    widths: list[tuple[Dim, Dim]] = [(0, 0)] * input_data.ndim
    index = [slice(None)] * input_data.ndim
    for axis, size in zip(range(input_data.ndim) if axes is None else axes, shape, strict=True):
        more = size - input_data.shape[axis]
        if dims_compare("<", more, 0):
            index[axis] = slice(-more // 2, -more // 2 + size)
        else:
            widths[axis] = (more // 2, more - more // 2)
    return jnp.pad(input_data[tuple(index)], widths)


@op("DepthToSpace", since=11)
def depth_to_space(input, *, blocksize, mode="DCR"):
    n, c, h, w = input.shape
    block, depth = (blocksize, blocksize), c // blocksize**2
    if mode == "DCR":
        y = jnp.transpose(jnp.reshape(input, (n, *block, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = jnp.transpose(jnp.reshape(input, (n, depth, *block, h, w)), (0, 1, 4, 2, 5, 3))
    return jnp.reshape(y, (n, depth, h * blocksize, w * blocksize))


earlier("DepthToSpace", since=1, until=10, without="mode")


@op("SpaceToDepth", since=28)
def space_to_depth(input, *, blocksize, mode="DCR"):
    n, c, h, w = input.shape
    h, w = h // blocksize, w // blocksize
    y = jnp.reshape(input, (n, c, h, blocksize, w, blocksize))
    y = jnp.transpose(y, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return jnp.reshape(y, (n, c * blocksize**2, h, w))


earlier("SpaceToDepth", since=1, until=27, without="mode")


@op("Col2Im", since=18)
def column_to_image(input, image_shape: Host, block_shape: Host, *, dilations=None, pads=None, strides=None):
    image, ones = image_shape.tolist(), (1,) * len(image_shape)
    return columns_to_image(
        input, image, block_shape.tolist(), dilations or ones, pads or (0,) * 2 * len(image), strides or ones
    )
