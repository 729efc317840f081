from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxport.testing import check, f32, spec
from tests.export.passes.fusions import operators

X, ANGLES = f32("B", 4, "T", 8), f32("B", "T", 4)


def turned(x):
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([-second, first], axis=-1)


def rotated(x, angles, scale=1.0, other=None):
    """As Hugging Face writes it: angles are repeated before their cosines and sines are computed."""
    repeated = jnp.concatenate([angles, angles if other is None else other], axis=-1)[:, None]
    return x * (jnp.cos(repeated) * scale) + turned(x) * (jnp.sin(repeated) * scale)


@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_tables_of_repeated_angles(scale):
    found = operators(check(lambda x, angles: rotated(x, angles, scale), X, ANGLES, opset=23))
    assert found["RotaryEmbedding"] == 1
    assert "Neg" not in found


def test_two_rotations_share_the_tables():
    found = operators(check(lambda x, y, angles: rotated(x, angles) + rotated(y, angles), X, X, ANGLES, opset=23))
    assert found["RotaryEmbedding"] == 2
    assert found["Cos"] == found["Sin"] == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, angles: rotated(x, angles, other=angles + 1),
        lambda x, angles: x * jnp.exp(jnp.concatenate([angles] * 2, -1))[:, None] + turned(x) * jnp.sin(angles.sum()),
    ],
)
def test_other_tables_are_no_rotation(fn):
    assert "RotaryEmbedding" not in operators(check(fn, X, ANGLES, opset=23))


def neighbours_rotated(x, angles):
    """As GPT-J writes it, in any layout: every second element, stacked and merged again."""
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(x.shape)


def test_neighbours_of_open_sizes_are_paired():
    exported = check(neighbours_rotated, X, ANGLES, opset=23)
    assert operators(exported)["RotaryEmbedding"] == 1


def test_attention_contracts_vectors_that_were_stacked():
    def attended(x, keys, angles):
        query, key = (
            neighbours_rotated(x, angles * angles + 1),
            jnp.stack([keys, -keys], -1).reshape((*keys.shape[:-1], 8)),
        )
        return jax.nn.softmax(query @ key.mT) @ keys

    found = operators(check(attended, X, f32("B", 4, "H", 4), ANGLES, opset=23))
    assert found["Attention"] == 1


def in_halves(x, cos, sin):
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def in_neighbours(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


def turned_by_repeated_tables(x, cos, sin):
    cos, sin = (jnp.concatenate([table, table], axis=-1) for table in (cos, sin))
    return x * cos + turned(x) * sin


HALVES = [np.float16, jnp.bfloat16]


@pytest.mark.parametrize("narrowed", ["tables", "result", "both"])
@pytest.mark.parametrize("form", [in_halves, in_neighbours, turned_by_repeated_tables])
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision(dtype, form, narrowed):
    """The casts of a program, and those around operators without a kernel, are no part of a rotation."""

    def fn(x, angles):
        tables = [jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]]
        if narrowed != "result":
            tables = [table.astype(dtype) for table in tables]
        return form(x if narrowed == "tables" else x.astype(jnp.float32), *tables).astype(dtype)

    x = spec("B", 4, "T", 8, dtype=dtype)
    found = operators(check(fn, x, ANGLES, opset=23, atol=0.03, without={"float64": "of half precision"}))
    assert found["RotaryEmbedding"] == 1
    assert not {"Mul", "Split", "Neg"} & {*found}
