"""Signals: discrete Fourier transforms, of whole signals and of frames."""

from __future__ import annotations

import numpy as np

from jaxport.importer.host import Tensor
from jaxport.importer.namespaces import cast, jnp, lax
from jaxport.importer.registry import Host, op


def _transformed(x: Tensor, length: Tensor | None, axis: int, inverse: int, onesided: int) -> Tensor:
    """Transform along `axis` of `x`, whose last axis has one element (real) or two (real and imaginary part)."""
    x = cast(x, np.float32) if x.dtype.itemsize < 4 else x  # there are no transforms of smaller types
    z = x[..., 0] if x.shape[-1] == 1 else lax.complex(x[..., 0], x[..., 1])
    axis %= x.ndim
    if inverse and onesided:
        return jnp.expand_dims(jnp.fft.irfft(z, length, axis), -1)
    if x.shape[-1] == 1 and not inverse:
        y = jnp.fft.rfft(z, length, axis)
        return _parts(y if onesided else _mirrored(y, x.shape[axis] if length is None else length, axis))
    y = (jnp.fft.ifft if inverse else jnp.fft.fft)(z, length, axis)
    return _parts(lax.slice_in_dim(y, 0, y.shape[axis] // 2 + 1, axis=axis) if onesided else y)


def _mirrored(half: Tensor, length: Tensor, axis: int) -> Tensor:
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
    step = frame_step.item()
    samples = signal.shape[1]
    length = frame_length.item() if frame_length is not None else samples if window is None else window.shape[0]
    starts = jnp.arange((samples - length) // step + 1) * step
    frames = jnp.take(signal, jnp.expand_dims(starts, 1) + jnp.arange(length), axis=1)
    if window is not None:
        frames = frames * jnp.expand_dims(window, 1)
    return cast(_transformed(frames, length, 2, 0, onesided), signal.dtype)
