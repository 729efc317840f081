"""Fourier transforms of all lengths: by ONNX's operator, by a matrix, by a chirp; their accuracy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.numpy import fft

import jaxport
from jaxport.testing import check, f32, spec
from tests.exports import operators

pytestmark = pytest.mark.sampled(2)

B, T = "B", "T"


def c64(*shape):
    return spec(*shape, dtype=np.complex64)


#: Powers of two, short ones by a matrix, a prime and others by a chirp.
LENGTHS = [1, 2, 3, 8, 60, 64, 67, 100]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("function", [fft.fft, fft.ifft], ids=["fft", "ifft"])
def test_complex_transforms(function, length):
    check(function, c64(B, length), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("length", LENGTHS)
def test_real_transforms(length):
    check(fft.rfft, f32(B, length), rtol=1e-5, atol=1e-4)
    check(lambda z: fft.irfft(z, n=length), c64(B, length // 2 + 1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        pytest.param(lambda z: fft.fft(z, axis=0), [c64(8, B)], id="axis-operator"),
        pytest.param(lambda z: fft.fftn(z, axes=(0, 2)), [c64(3, B, 8)], id="axes"),
        pytest.param(lambda z: fft.fft(z, n=4), [c64(B, 6)], id="shorter"),
        pytest.param(lambda z: fft.fft(z, n=8), [c64(B, 6)], id="longer"),
        pytest.param(fft.fft, [c64(T)], id="symbolic"),
        pytest.param(fft.ifft2, [c64(T, T)], id="symbolic-2d"),
        pytest.param(lambda x: fft.irfft(fft.rfft(x) * 2, n=6), [f32(B, 6)], id="filter"),
        pytest.param(jax.grad(lambda x: jnp.abs(fft.rfft(x)).sum()), [f32(6)], id="grad"),
        pytest.param(jax.grad(lambda x: (fft.irfft(fft.rfft(x), n=5) ** 3).sum()), [f32(5)], id="grad-inverse"),
        pytest.param(jax.vmap(fft.fft), [c64(B, 2, 6)], id="vmap"),
        pytest.param(lambda x: jax.scipy.signal.fftconvolve(x, x[:3]), [f32(8)], id="fftconvolve"),
        pytest.param(lambda x: jax.scipy.fft.dct(x, norm="ortho"), [f32(B, 8)], id="dct"),
    ],
)  # fmt: skip
def test_programs(fn, specs):
    check(fn, *specs, rtol=1e-5, atol=1e-4)


def test_a_symbolic_real_transform():
    check(fft.rfft, f32(B, T), rtol=1e-5, atol=1e-4, without={"empty": "JAX cannot lower it"})


@pytest.mark.parametrize("length", [1000, 1021, 1024])
@pytest.mark.parametrize("double", [False, True])
def test_accuracy(length, double):
    """Beside the largest element some units in the last place, where the runtime's own transform is off by 2e-4."""
    dtype = np.complex128 if double else np.complex64
    generator = np.random.default_rng(0)
    z = (generator.normal(size=length) + 1j * generator.normal(size=length)).astype(dtype)
    for function, reference in ((fft.fft, np.fft.fft), (fft.ifft, np.fft.ifft)):
        exported = jaxport.to_onnx(function, [spec(length, dtype=dtype)], double_precision=double)
        exact = reference(z.astype(np.complex128))
        error = np.abs(exported(z) - exact).max() / np.abs(exact).max()
        assert error < 20 * np.finfo(dtype).eps, error


def test_a_power_of_two_is_one_operator():
    exported = jaxport.to_onnx(fft.fft, [c64(B, 16)])
    assert operators(exported).count("DFT") == 1


def test_a_short_real_transform_is_two_products():
    exported = jaxport.to_onnx(lambda x: fft.rfft(x), [f32(B, 12)])
    assert operators(exported).count("MatMul") == 2
