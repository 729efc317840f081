"""`Pad` with mirrored and repeated borders, in the ways that programs write it, and what is none."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from flax import nnx

from jaxport.testing import check, spec
from tests.exports import operators

CONV = nnx.Conv(3, 4, (3, 3), padding="VALID", rngs=nnx.Rngs(0))


def pad(*widths, mode):
    return lambda x: jnp.pad(x, widths, mode=mode)


PADS = {
    "reflect": (pad((0, 0), (1, 2), (2, 1), mode="reflect"), ("B", 4, 6)),
    "reflect before": (pad((0, 0), (3, 0), mode="reflect"), ("B", 4)),
    "edge": (pad((0, 0), (1, 2), (2, 1), mode="edge"), ("B", 4, 6)),
    "edge of all axes": (pad((1, 1), (0, 3), mode="edge"), (2, 5)),
    "edge longer than the axis": (pad((0, 0), (5, 0), mode="edge"), ("B", 4)),
    "one row": (pad((0, 0), (2, 2), mode="edge"), ("B", 1)),
    "written by hand": (lambda x: jnp.concatenate([x[:, 2:0:-1], x, x[:, -2:-3:-1]], 1), ("B", 4)),
    "of a part": (lambda x: jnp.pad(x[:, 2:], ((0, 0), (3, 3)), mode="reflect"), ("B", 9)),
    "repeated first row": (lambda x: jnp.concatenate([x[:, :1], x], 1), ("B", 4)),
    "before a convolution": (lambda x: CONV(pad((0, 0), (1, 1), (1, 1), (0, 0), mode="reflect")(x)), ("B", 6, 6, 3)),
}


@pytest.mark.parametrize(("fn", "shape"), PADS.values(), ids=PADS)
def test_borders_are_one_pad(fn, shape):
    emitted = operators(check(fn, spec(*shape)))
    assert emitted.count("Pad") == 1
    assert "Concat" not in emitted


@pytest.mark.parametrize("dtype", ["float16", "int32", "uint8", "bool"])
def test_of_every_dtype(dtype):
    assert "Pad" in operators(check(pad((0, 0), (1, 2), mode="edge"), spec("B", 4, dtype=dtype)))


OTHERS = {
    "wrap": (pad((0, 0), (1, 2), mode="wrap"), ("B", 4)),
    "symmetric": (pad((0, 0), (3, 2), mode="symmetric"), ("B", 4)),
    "twice": (lambda x: jnp.concatenate([x, x], 1), ("B", 4)),
    "rolled": (lambda x: jnp.roll(x, 1, 1), ("B", 4)),
    "mirrored twice": (pad((0, 0), (5, 0), mode="reflect"), ("B", 3)),
    "another value": (lambda x: jnp.concatenate([(-x)[:, 1:2], x], 1), ("B", 4)),
    "another axis": (lambda x: jnp.concatenate([x[:, :, 1], x[:, :, 0]], 1), ("B", 4, 2)),
}


@pytest.mark.parametrize(("fn", "shape"), OTHERS.values(), ids=OTHERS)
def test_what_is_no_border(fn, shape):
    emitted = operators(check(fn, spec(*shape)))
    assert "Concat" in emitted


def test_different_modes_are_two_pads():
    def fn(x):
        return pad((0, 0), (0, 0), (2, 2), mode="edge")(pad((0, 0), (2, 2), (0, 0), mode="reflect")(x))

    assert operators(check(fn, spec("B", 4, 5))) == ["Pad", "Pad"]


def test_an_axis_that_is_padded_again():
    def fn(x):
        for widths in (((0, 0), (2, 1), (0, 0)), ((0, 0), (0, 0), (1, 2)), ((0, 0), (2, 2), (0, 0))):
            x = jnp.pad(x, widths, mode="reflect")
        return x

    assert operators(check(fn, spec("B", 4, 5))) == ["Pad", "Pad"]
