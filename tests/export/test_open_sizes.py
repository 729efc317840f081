"""Functions of JAX and of the frameworks that ask for the number of a size, exported with symbolic sizes."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.lax import associative_scan

import jaxport
from jaxport.blocks.marking.window import activation
from jaxport.testing import check, f32

KERNEL = np.hanning(6)[1:-1].astype(np.float32)


def recurrence(earlier, later):
    return earlier[0] * later[0], earlier[1] * later[0] + later[1]


def attended(x, y, window, **options):
    """Attention to the neighbours of each position."""
    return jax.nn.dot_product_attention(x, y, y, local_window_size=window, **options)


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        pytest.param(lambda x: lax.associative_scan(jnp.add, x), [f32("T", 2)], id="associative"),
        pytest.param(lambda x: associative_scan(jnp.maximum, x), [f32("T")], id="imported-by-name"),
        pytest.param(lambda a, x: lax.associative_scan(recurrence, (jnp.tanh(a), x), axis=1)[1], [f32("B", "T", 3)] * 2, id="state-space"),
        pytest.param(lambda a, x: lax.associative_scan(recurrence, (a, x), True, 1), [f32(2, "T")] * 2, id="reverse"),
        pytest.param(jax.grad(lambda x: (lax.associative_scan(jnp.multiply, x)[-1] ** 2).sum()), [f32("T", 2)], id="grad"),
        pytest.param(jax.vmap(lambda x: lax.associative_scan(jnp.matmul, x)), [f32("B", "T", 2, 2)], id="vmap"),
        pytest.param(lambda x: (jnp.convolve(x, KERNEL), jnp.convolve(KERNEL, x)), [f32("T")], id="convolve"),
        pytest.param(lambda x: (jnp.correlate(x, KERNEL, "full"), jnp.correlate(KERNEL, x, mode="full")), [f32("T")], id="correlate"),
        pytest.param(lambda x: jnp.convolve(x.astype(jnp.int32), np.arange(3)), [f32("T")], id="integers"),
        pytest.param(lambda a, x: jnp.searchsorted(jnp.sort(a), x), [f32("H"), f32("T")], id="searchsorted"),
        pytest.param(lambda a, x: jnp.searchsorted(a, x, "right", jnp.argsort(a)), [f32("H"), f32("T")], id="sorter"),
        pytest.param(lambda a, x: jnp.digitize(x, jnp.sort(a)), [f32("H"), f32("T", 2)], id="digitize"),
    ],
)  # fmt: skip
def test_an_open_size(fn, specs):
    check(fn, *specs)


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        (lambda x: attended(x, x, (2, 1)), [f32("B", "T", 2, 4)]),
        (lambda x: attended(x, x, 1, is_causal=True), [f32("T", 2, 4)]),
        (
            lambda x, y: attended(x, y, (0, 2), mask=x[:, None, :, :1, 0] > 0),
            [f32("B", "T", 2, 4), f32("B", "H", 2, 4)],
        ),
    ],
    ids=["window", "without a batch", "other keys"],
)
def test_attention_to_an_open_window(fn, specs):
    check(fn, *specs, without={"float64": "JAX has the logits in float32"})


def test_a_search_knows_where_nan_is():
    exported = jaxport.to_onnx(lambda a, x: jnp.searchsorted(a, x), [("N",), ("T",)])
    table, values = np.array([-1, 0, 2, np.nan], np.float32), np.array([np.nan, np.inf, -0.0], np.float32)
    assert np.array_equal(exported(table, values), jnp.searchsorted(table, values))


@pytest.mark.parametrize("mode", ["same", "valid"])
@pytest.mark.parametrize("function", ["convolve", "correlate"])
def test_which_is_longer_is_asked_of_the_constraints(function, mode):
    fn = lambda x: (getattr(jnp, function)(x, KERNEL, mode), getattr(jnp, function)(KERNEL, x, mode=mode))
    least = 5 if (function, mode) == ("correlate", "same") else 4
    exported = jaxport.to_onnx(fn, [("T",)], constraints=[f"T >= {least}"])
    for size in (least, 6, 9):
        x = np.arange(size, dtype=np.float32) ** 2
        for result, expected in zip(exported(x), fn(x), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5)
    with pytest.raises(jaxport.ExportError, match=r'constraints=\["T >= 4"\]'):
        jaxport.to_onnx(fn, [("T",)])


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
def test_the_rotary_embedding_of_equinox(half):
    dtype = jnp.float16 if half else jnp.float32
    rotary = eqx.nn.RotaryPositionalEmbedding(6, theta=100.0, dtype=dtype)
    exported = jaxport.to_onnx(rotary, [jax.ShapeDtypeStruct(("T", 6), dtype)])
    for size in (3, 8):
        x = np.linspace(-1, 1, size * 6).reshape(size, 6).astype(dtype)
        # The table is rounded to float16 on both sides, at most one unit apart.
        np.testing.assert_allclose(exported(x), rotary(x), atol=2e-3 if half else 2e-6)
    with pytest.raises(jaxport.ExportError, match=r"must match self\.embedding_size"):
        jaxport.to_onnx(rotary, [("T", 4)])


def test_attention_with_rotary_embedding_is_recognised():
    attention = eqx.nn.MultiheadAttention(2, 8, key=jax.random.key(0))
    rotary = eqx.nn.RotaryPositionalEmbedding(4)

    def heads(query, key, value):
        return jax.vmap(rotary, 1, 1)(query), jax.vmap(rotary, 1, 1)(key), value

    def layer(x):
        return attention(x, x, x, mask=jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool)), process_heads=heads)

    exported = check(jax.vmap(layer), f32("B", "T", 8))
    assert "Attention" in [node.op_type for node in exported.model.graph]


@pytest.mark.filterwarnings("ignore:'.value' access:DeprecationWarning")  # Flax's own access to its table
@pytest.mark.skipif(not hasattr(nnx, "RoPE"), reason="this release of Flax has no `nnx.RoPE`")
@pytest.mark.parametrize("options", [{}, {"embedding_size": 4, "max_seq_len": 9}], ids=["computed", "stored"])
def test_the_rotary_embedding_of_flax(options):
    rotary = nnx.RoPE(**options)
    exported = check(rotary, f32("B", "T", 4))
    assert np.isnan(exported(np.ones((1, 10, 4), np.float32))[:, -1]).all() == bool(options), "the table ends"
    attend = functools.partial(nnx.dot_product_attention_with_rope, rope=rotary)
    without = {"float64": "JAX has the logits in float32"}
    check(attend, *[f32("B", "T", 2, 4)] * 3, without=without)
    layer = nnx.MultiHeadAttention(2, 8, attention_fn=attend, decode=False, rngs=nnx.Rngs(0))
    exported = check(layer, f32("B", "T", 8), without=without)
    assert "Attention" in [node.op_type for node in exported.model.graph]


def test_known_sizes_and_windows_that_are_closed_have_the_functions_of_jax():
    before = lax.associative_scan, jnp.searchsorted, eqx.nn.RotaryPositionalEmbedding.__call__
    check(lambda x: lax.associative_scan(jnp.add, x), f32(5, "B"))
    assert (lax.associative_scan, jnp.searchsorted, eqx.nn.RotaryPositionalEmbedding.__call__) == before


def test_a_selected_function_is_one_for_open_sizes_too():
    """Inside another window as well, which has patched the function before."""
    search = lambda a, x: jnp.searchsorted(jnp.sort(a), x)
    with activation():
        exported = jaxport.to_onnx(search, [("N",), ("T",)], functions=["jax.numpy.searchsorted"])
    assert [function.name for function in exported.model.functions.values()] == ["searchsorted"]
    table, values = np.array([3, 1, 2], np.float32), np.array([2.5, 0, 9, 2], np.float32)
    assert np.array_equal(exported(table, values), search(table, values))
