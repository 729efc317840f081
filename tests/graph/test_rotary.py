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


def in_pairs(x, cos, sin):
    """As the first Llama did it: neighbours have an axis of their own."""
    a, b = (x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)[..., place] for place in (0, 1))
    return jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


def turned_by_repeated_tables(x, cos, sin):
    cos, sin = (jnp.concatenate([table, table], axis=-1) for table in (cos, sin))
    return x * cos + turned(x) * sin


def exchanged(x):
    return jnp.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)


def exchanged_by_repeated_tables(x, cos, sin):
    """As GPT-J, Cohere and GLM write it: each element of the tables is repeated."""
    cos, sin = (jnp.repeat(table, 2, axis=-1) for table in (cos, sin))
    return x * cos + exchanged(x) * sin


def exchanged_by_stacked_angles(x, angles):
    """As Cohere 2 writes it: angles are stacked with themselves."""
    repeated = jnp.stack([angles, angles], axis=-1).reshape((*angles.shape[:-1], x.shape[-1]))[:, None]
    return x * (jnp.cos(repeated) * 0.7) + exchanged(x) * (jnp.sin(repeated) * 0.7)


def exchanged_by_known_tables(x, angles):
    table = np.arange(4, dtype=np.float32).repeat(2)
    return x * np.cos(table) + exchanged(x) * np.sin(table)


@pytest.mark.parametrize("fn", [exchanged_by_stacked_angles, exchanged_by_known_tables])
def test_neighbours_are_exchanged(fn):
    length = "T" if fn is exchanged_by_stacked_angles else 1
    found = operators(check(fn, f32("B", 4, length, 8), f32("B", length, 4), opset=23))
    assert found["RotaryEmbedding"] == 1
    assert not {"Neg", "Slice", "Add"} & {*found}


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, angles: (
            x * jnp.tile(jnp.cos(angles), 2)[:, None] + exchanged(x) * jnp.tile(jnp.sin(angles), 2)[:, None]
        ),
        lambda x, angles: (
            x * jnp.repeat(jnp.cos(angles[..., :2]), 4, -1)[:, None]
            + exchanged(x) * jnp.repeat(jnp.sin(angles[..., :2]), 4, -1)[:, None]
        ),
    ],
)
def test_other_tables_of_neighbours_are_no_rotation(fn):
    assert "RotaryEmbedding" not in operators(check(fn, X, ANGLES, opset=23))


def pairs(x):
    return x.reshape(*x.shape[:-1], 4, 2)


def in_rows(x, cos, sin):
    a, b = (x.reshape(*x.shape[:-1], 2, 4)[..., place, :] for place in (0, 1))
    return jnp.stack([a * cos - b * sin, a * sin + b * cos], -2).reshape(x.shape)


def by_matrices(x, cos, sin):
    matrices = jnp.stack([jnp.stack([cos, -sin], -1), jnp.stack([sin, cos], -1)], -2)
    return jnp.einsum("...ij,...j->...i", matrices, pairs(x)).reshape(x.shape)


def of_complex_halves(x, cos, sin):
    turned = (x[..., :4] + 1j * x[..., 4:]) * (cos + 1j * sin)
    return jnp.concatenate([turned.real, turned.imag], -1)


def of_complex_pairs(x, cos, sin):
    turned = jax.lax.complex(x[..., ::2], x[..., 1::2]) * jax.lax.complex(cos, sin)
    return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape)


def in_place(x, cos, sin):
    a, b = x[..., :4], x[..., 4:]
    return jnp.zeros_like(x).at[..., :4].set(a * cos - b * sin).at[..., 4:].set(b * cos + a * sin)


def in_padded_halves(x, cos, sin):
    a, b = x[..., :4], x[..., 4:]
    around = lambda part, *widths: jnp.pad(part, [(0, 0)] * 3 + [widths])
    return around(a * cos - b * sin, 0, 4) + around(b * cos + a * sin, 4, 0)


def with_pairs_in_front(x, cos, sin):
    a, b = jnp.moveaxis(pairs(x), -1, 0)
    return jnp.moveaxis(jnp.stack([a * cos - b * sin, b * cos + a * sin]), 0, -1).reshape(x.shape)


def flipped(x, cos, sin):
    halves, signs = x.reshape(*x.shape[:-1], 2, 4), np.array([[-1], [1]], np.float32)
    return (halves * cos[..., None, :] + jnp.flip(halves, -2) * signs * sin[..., None, :]).reshape(x.shape)


def turned_back(x, cos, sin):
    return turned_by_repeated_tables(x, cos, -sin)


SIGNS = np.repeat(np.array([-1, 1], np.float32), 4)
EXCHANGE = np.roll(np.diag(SIGNS), 4, axis=0)
LANES = np.arange(8) % 2 == 0


def exchanging(exchange, repeat):
    """Return `x cos + t sin`, with `t` exchanged in one of many ways."""
    return lambda x, cos, sin: x * repeat(cos) + exchange(x) * repeat(sin)


WRITTEN = {
    "rows": in_rows,
    "matrices": by_matrices,
    "complex halves": of_complex_halves,
    "complex pairs": of_complex_pairs,
    "in place": in_place,
    "padded": in_padded_halves,
    "pairs in front": with_pairs_in_front,
    "flipped": flipped,
    "back": turned_back,
    "rolled": exchanging(lambda x: jnp.roll(x, 4, -1) * SIGNS, lambda table: jnp.tile(table, 2)),
    "gathered": exchanging(lambda x: x[..., np.r_[4:8, 0:4]] * SIGNS, lambda table: jnp.tile(table, 2)),
    "one matrix": exchanging(lambda x: x @ EXCHANGE, lambda table: jnp.tile(table, 2)),
    "chosen": exchanging(
        lambda x: jnp.where(LANES, -jnp.roll(x, -1, -1), jnp.roll(x, 1, -1)), lambda table: jnp.repeat(table, 2, -1)
    ),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_however_it_is_written(form):
    def fn(x, angles):
        return WRITTEN[form](x, jnp.cos(angles)[:, None], jnp.sin(angles)[:, None])

    found = operators(check(fn, X, ANGLES, opset=23))
    assert found["RotaryEmbedding"] == 1
    assert not {"Mul", "MatMul", "Where", "Concat", "Pad"} & {*found}


HALVES = [np.float16, jnp.bfloat16]


@pytest.mark.parametrize("narrowed", ["tables", "result", "both"])
@pytest.mark.parametrize("form", [in_halves, in_neighbours, turned_by_repeated_tables, exchanged_by_repeated_tables])
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision(dtype, form, narrowed):
    """The casts of a program, and those around operators without a kernel, are not part of a rotation."""

    def fn(x, angles):
        tables = [jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]]
        if narrowed != "result":
            tables = [table.astype(dtype) for table in tables]
        return form(x if narrowed == "tables" else x.astype(jnp.float32), *tables).astype(dtype)

    x = spec("B", 4, "T", 8, dtype=dtype)
    found = operators(check(fn, x, ANGLES, opset=23, atol=0.03, without={"float64": "of half precision"}))
    assert found["RotaryEmbedding"] == 1
    assert not {"Mul", "Split", "Neg"} & {*found}


def of_neighbours_in_place(x, angles):
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    even, odd, rest = x[..., :8:2], x[..., 1:8:2], x[..., 8:]
    stacked = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return jnp.concatenate([stacked.reshape((*x.shape[:-1], 8)), rest], axis=-1)


def of_three_parts(x, angles):
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b, rest = jnp.split(x, [4, 8], axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def beside(form):
    """As Phi, GPT-NeoX and StableLM do it, or GLM with neighbours: the first elements are rotated."""

    def fn(x, angles):
        tables = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        return jnp.concatenate([form(x[..., :8], *tables), x[..., 8:]], axis=-1)

    return fn


PARTIAL = {
    "halves": beside(in_halves),
    "neighbours": beside(in_neighbours),
    "pairs": beside(in_pairs),
    "repeated tables": beside(turned_by_repeated_tables),
    "neighbours exchanged": beside(exchanged_by_repeated_tables),
    "repeated angles": lambda x, angles: jnp.concatenate([rotated(x[..., :8], angles), x[..., 8:]], axis=-1),
    "three parts": of_three_parts,
    "neighbours in place": of_neighbours_in_place,
}


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 1, 3)])
@pytest.mark.parametrize("form", PARTIAL)
def test_the_first_elements_alone(form, axes):
    """In a layout with the heads first or, as projections give it, last."""

    def fn(x, angles):
        turned = PARTIAL[form](x.transpose(axes), angles)
        return turned.transpose(axes)

    x = f32("B", 4, "T", 12) if axes[1] == 1 else f32("B", "T", 4, 12)
    exported = check(fn, x, ANGLES, opset=23)
    (node,) = [node for node in exported.model.graph if node.op_type == "RotaryEmbedding"]
    assert node.attributes["rotary_embedding_dim"].as_int() == 8
    assert not {"Concat", "Slice", "Split", "Neg"} & {*operators(exported)}


@pytest.mark.parametrize("count", [8, 12])
@pytest.mark.parametrize(
    "form", [in_halves, in_neighbours, in_pairs, turned_by_repeated_tables, exchanged_by_repeated_tables]
)
def test_heads_of_a_projection(form, count):
    """Vectors are a part of an axis of what they are seen in."""

    def fn(x, angles):
        heads = x.reshape(*x.shape[:2], 4, 12)
        cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
        turned = form(heads[..., :count], cos, sin)
        return jnp.concatenate([turned, heads[..., count:]], axis=-1).reshape(x.shape)

    exported = check(fn, f32("B", "T", 48), f32("B", "T", count // 2), opset=23)
    assert {*operators(exported)} == {"Cos", "Sin", "RotaryEmbedding"}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("narrowed", ["before", "after"])
def test_the_first_elements_in_half_precision(narrowed, dtype):
    def fn(x, angles):
        wide, cos, sin = x.astype(jnp.float32), jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        turned = turned_by_repeated_tables(wide[..., :8], cos, sin)
        if narrowed == "before":
            return jnp.concatenate([turned.astype(dtype), x[..., 8:]], axis=-1)
        return jnp.concatenate([turned, wide[..., 8:]], axis=-1).astype(dtype)

    x = spec("B", 4, "T", 12, dtype=dtype)
    found = operators(check(fn, x, ANGLES, opset=23, atol=0.03, without={"float64": "of half precision"}))
    assert found["RotaryEmbedding"] == 1
    assert "Concat" not in found


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, angles: jnp.concatenate([rotated(x[..., :8], angles), x[..., 4:8]], axis=-1),  # the wrong rest
        lambda x, angles: jnp.concatenate([rotated(x[..., 4:], angles), x[..., :4]], axis=-1),  # the last are rotated
        lambda x, angles: jnp.concatenate([x[..., 8:], rotated(x[..., :8], angles)], axis=-1),
        lambda x, angles: jnp.concatenate([rotated(x[..., :8], angles), x[::-1, ..., 8:]], axis=-1),
    ],
)
def test_other_elements_beside_a_rotation_stay_beside_it(fn):
    exported = check(fn, f32("B", 4, "T", 12), ANGLES, opset=23)
    assert operators(exported)["RotaryEmbedding"] == 1
    assert "Concat" in operators(exported)


def test_what_would_be_rounded_with_the_rotated_elements_stays_beside_them():
    def fn(x, angles):
        turned = turned_by_repeated_tables(
            x[..., :8].astype(np.float16), *(f(angles)[:, None].astype(np.float16) for f in (jnp.cos, jnp.sin))
        )
        return jnp.concatenate([turned.astype(np.float32), x[..., 8:]], axis=-1)

    exported = check(fn, f32("B", 4, "T", 12), ANGLES, opset=23, atol=0.03, without={"float64": "of half precision"})
    assert "Concat" in operators(exported)


def outer_angles(form):
    """Angles as products with a single term, as strangers write them."""
    frequencies = 0.5 ** np.arange(4, dtype=np.float32)
    if form == "matrices":
        return lambda positions: (frequencies[None, :, None] @ positions[:, None]).transpose(0, 2, 1)
    if form == "columns":
        return lambda positions: positions[..., None] @ frequencies[None]
    return lambda positions: jnp.einsum("bt,f->btf", positions, frequencies)


@pytest.mark.parametrize("form", ["matrices", "columns", "einsum"])
def test_angles_are_products_of_positions_and_frequencies(form):
    angles = outer_angles(form)
    found = operators(check(lambda x, positions: rotated(x, angles(positions)), X, f32("B", "T"), opset=23))
    assert found["RotaryEmbedding"] == 1
    assert "MatMul" not in found
