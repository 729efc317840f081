"""Floor division and remainders of integers: JAX's values in few operators."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxport.testing import check, spec
from tests.exports import export, operators

SIGNED, UNSIGNED = ("int8", "int16", "int32"), ("uint8", "uint16", "uint32")


def edges(dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    near = [limits.min, limits.min + 1, limits.max - 1, limits.max, *range(max(limits.min, -9), 10)]
    return np.array(near, dtype)


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 64, 127, -1, -2, -7])
def test_by_constants(dtype: str, divisor: int) -> None:
    if divisor < 0 and dtype in UNSIGNED:
        return
    x, y = edges(dtype), np.array(divisor, dtype)
    check(lambda x: (x // y, x % y, *jnp.divmod(x, y)), spec(*x.shape, dtype=dtype), values=[x])


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_by_arrays(dtype: str) -> None:
    x, y = (side.ravel() for side in np.meshgrid(edges(dtype), edges(dtype)))
    check(lambda x, y: (x // y, x % y), spec(*x.shape, dtype=dtype), spec(*y.shape, dtype=dtype), values=[x, y])


def test_by_several_constants() -> None:
    x, y = edges("int32")[:, None], np.array([3, -3, 8], np.int32)
    check(lambda x: (x // y, x % y), spec(*x.shape, dtype="int32"), values=[x])


def test_what_only_looks_like_one() -> None:
    def shifted(x):
        rest = jnp.fmod(x, 5)
        return jnp.where((rest != 0) & ((rest < 0) != (x < 0)), rest + 5, rest)

    def corrected_by_two(x):
        quotient = jnp.sign(x) * (abs(x) // 5)
        return jnp.where((jnp.fmod(x, 5) != 0) & (jnp.sign(x) != 1), quotient - 2, quotient)

    for fn in (shifted, corrected_by_two):
        check(fn, spec(*(23,), dtype="int32"), values=[edges("int32")])


@pytest.mark.parametrize(
    ("fn", "dtype", "expected"),
    [
        (lambda x: x % 50, "int32", ["Mod"]),
        (lambda x: x % 50, "uint32", ["Mod"]),
        (lambda x: x // 3, "uint32", ["Div"]),
        (lambda x: x // 3, "int32", ["Div", "Mul", "Sub", "Less", "Where"]),
        (lambda x: jnp.clip(x, 0, 9) // 3, "int32", ["Max", "Min", "Div"]),
    ],
)
def test_the_operators(fn, dtype: str, expected: list[str]) -> None:
    assert operators(export(fn, spec(*(5,), dtype=dtype))) == expected
