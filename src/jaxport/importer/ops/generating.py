"""Constants, and tensors made from sizes: masks, identity matrices, one-hot rows, window functions, filter banks."""

from __future__ import annotations

import math

import numpy as np

from jaxport.importer.dtypes import STRING, dtype_of
from jaxport.importer.host import HostValue, Tensor, host
from jaxport.importer.namespaces import cast, jnp, nn
from jaxport.importer.registry import REQUIRED, Host, ShapeOnly, earlier, op
from jaxport.jaxprs import Dim


@op("Trilu", since=14)
def trilu(input, k: Host | None = None, *, upper=1):
    return (jnp.triu if upper else jnp.tril)(input, 0 if k is None else k.item())


@op("EyeLike", since=9)
def eye_like(input: ShapeOnly, *, dtype=None, k=0):
    return jnp.eye(*input.shape, k=k, dtype=input.dtype if dtype is None else dtype_of(dtype))


@op("OneHot", since=9)
def one_hot(indices, depth: Host, values, *, axis=-1):
    size = int(depth) if depth.dtype.kind == "f" else depth.item()
    index = cast(indices, np.int64)
    hot = nn.one_hot(jnp.where(index < 0, index + size, index), size, axis=axis, dtype=np.dtype(bool))
    return jnp.where(hot, values[1], values[0])


def _window(size: Dim, periodic: int, output_datatype: int, *coefficients: float) -> Tensor:
    """Return a sum of cosines with these coefficients, over one period."""
    angle = cast(jnp.arange(size), np.float32) * math.tau / (size if periodic else size - 1)
    window = sum(weight * jnp.cos(order * angle) for order, weight in enumerate(coefficients[1:], start=1))
    return cast(coefficients[0] + window, dtype_of(output_datatype))


@op("HannWindow", since=17)
def hann_window(size: Host, *, output_datatype=1, periodic=1):
    return _window(size.item(), periodic, output_datatype, 0.5, -0.5)


@op("HammingWindow", since=17)
def hamming_window(size: Host, *, output_datatype=1, periodic=1):
    return _window(size.item(), periodic, output_datatype, 25 / 46, -21 / 46)


@op("BlackmanWindow", since=17)
def blackman_window(size: Host, *, output_datatype=1, periodic=1):
    return _window(size.item(), periodic, output_datatype, 0.42, -0.5, 0.08)


@op("MelWeightMatrix", since=17)
def mel_weight_matrix(
    num_mel_bins: Host,
    dft_length: Host,
    sample_rate: Host,
    lower_edge_hertz: Host,
    upper_edge_hertz: Host,
    *,
    output_datatype=1,
):
    bins, length = int(num_mel_bins), int(dft_length)
    low, high = (2595 * np.log10(1 + float(edge) / 700) for edge in (lower_edge_hertz, upper_edge_hertz))
    mels = low + np.arange(bins + 2) * (high - low) / (bins + 2)
    edges = (length + 1) * (700 * (10 ** (mels / 2595) - 1)) // int(sample_rate)
    left, center, right = edges[:-2], edges[1:-1], edges[2:]
    bin_ = np.arange(length // 2 + 1)[:, None]
    # Each triangle rises to one at its center; one of zero width is its center only.
    rising = np.where(center > left, (bin_ - left) / np.maximum(center - left, 1), bin_ == center)
    falling = np.where(right > center, (right - bin_) / np.maximum(right - center, 1), bin_ == center)
    weights = np.where(bin_ <= center, rising * (bin_ >= left), falling * (bin_ < right))
    return cast(host(weights, np.float32), dtype_of(output_datatype))


@op("Constant", since=12)
def constant(
    *,
    value=None,
    sparse_value=None,
    value_float=None,
    value_floats=None,
    value_int=None,
    value_ints=None,
    value_string=None,
    value_strings=None,
):
    if value is not None:
        return value  # the loader has made a sparse value dense
    if value_string is not None or value_strings is not None:
        return HostValue(np.array(value_strings if value_string is None else value_string, dtype=object), STRING)
    if value_int is not None or value_ints is not None:
        return host(np.array(value_ints if value_int is None else value_int, np.int64))
    return host(np.array(value_floats if value_float is None else value_float, np.float32))


_NUMBERS_AND_STRINGS = "value_float value_floats value_int value_ints value_string value_strings"
earlier("Constant", since=11, until=11, without=_NUMBERS_AND_STRINGS)
earlier("Constant", since=1, until=10, without="sparse_value", value=REQUIRED)
