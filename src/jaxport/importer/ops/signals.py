"""Signals: discrete Fourier transforms, of whole signals and of frames; window functions and filter banks."""

from __future__ import annotations

import math

import numpy as np

from jaxport.importer.ops.casting import at_least_single
from jaxport.importer.resolving.registry import Host, op
from jaxport.importer.values.dtypes import dtype_of
from jaxport.importer.values.host import Tensor, host
from jaxport.importer.values.namespaces import cast, jnp, lax
from jaxport.jaxprs import Dim


def _transformed(x: Tensor, length: Tensor | None, axis: int, inverse: int, onesided: int) -> Tensor:
    """Transform along `axis` of `x`, whose last axis has one element (real) or two (real and imaginary part)."""
    x = at_least_single(x)
    z = x[..., 0] if x.shape[-1] == 1 else lax.complex(x[..., 0], x[..., 1])
    axis %= x.ndim
    if inverse and onesided:
        return jnp.expand_dims(jnp.fft.irfft(z, length, axis), -1)
    if x.shape[-1] == 1 and not inverse:
        y = jnp.fft.rfft(z, length, axis)
        return _parts(y if onesided else _mirrored(y, x.shape[axis] if length is None else length, axis))
    y = (jnp.fft.ifft if inverse else jnp.fft.fft)(z, length, axis)
    return _parts(lax.slice_in_dim(y, 0, y.shape[axis] // 2 + 1, axis=axis) if onesided else y)


def _mirrored(half: Tensor, length: Tensor | Dim, axis: int) -> Tensor:
    """Return the whole transform of a real signal, whose second half has the conjugates of the first."""
    inner = lax.slice_in_dim(half, 1, (length + 1) // 2, axis=axis)
    return jnp.concatenate([half, jnp.conj(jnp.flip(inner, axis))], axis=axis)


def _parts(y: Tensor) -> Tensor:
    return jnp.stack([jnp.real(y), jnp.imag(y)], axis=-1)


@op("DFT", since=20)
def dft(input, dft_length: Host | None = None, axis: Host | None = None, *, inverse=0, onesided=0):
    length = None if dft_length is None else dft_length.item()
    return cast(_transformed(input, length, -2 if axis is None else axis.item(), inverse, onesided), input.dtype)


@op("DFT", since=17, until=19)
def dft_axis(input, dft_length: Host | None = None, *, axis=1, inverse=0, onesided=0):
    length = None if dft_length is None else dft_length.item()
    return cast(_transformed(input, length, axis, inverse, onesided), input.dtype)


@op("STFT", since=17)
def stft(signal, frame_step: Host, window=None, frame_length: Host | None = None, *, onesided=1):
    if signal.ndim == 2:  # ONNX Runtime takes real signals without their last axis
        signal = jnp.expand_dims(signal, -1)
    step = frame_step.item()
    samples = signal.shape[1]
    length = frame_length.item() if frame_length is not None else samples if window is None else window.shape[0]
    starts = jnp.arange((samples - length) // step + 1) * step
    frames = jnp.take(signal, jnp.expand_dims(starts, 1) + jnp.arange(length), axis=1)
    if window is not None:
        frames = frames * jnp.expand_dims(window, 1)
    return cast(_transformed(frames, length, 2, 0, onesided), signal.dtype)


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
