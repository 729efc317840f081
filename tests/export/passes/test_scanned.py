"""Products with scanned rows are computed before the loop, for all steps at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.export.passes import DEFAULT
from jaxport.export.passes.scanned import scanned
from jaxport.testing import check, expect_graph, f32

B, T = "B", "T"


def weights(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / np.float32(shape[-1] ** 0.5)


W, R, V = weights(3, 4), weights(4, 4, seed=1), weights(4, seed=2)


def products(exported):
    """How many products there are before the loops, and in them."""
    nodes = list(exported.model.graph.all_nodes())
    inside = [n for n in nodes if n.graph is not exported.model.graph and n.op_type == "MatMul"]
    return sum(n.op_type == "MatMul" for n in nodes) - len(inside), len(inside)


def report(exported):
    return next(r.text for r in exported.pass_reports if r.name == "scanned")


def over(step, **options):
    """A scan of a residual step, which no recurrent operator is."""
    return lambda x: lax.scan(lambda h, row: (h + step(h, row), h), jnp.zeros((x.shape[1], 4)), x, **options)


LEAVES = {
    "product": over(lambda h, x: jnp.tanh(x @ W + h @ R)),
    "reversed": over(lambda h, x: jnp.tanh(x @ W + h @ R), reverse=True),
    "bias and activation": over(lambda h, x: jax.nn.softplus(x @ W + V) * jnp.tanh(h @ R)),
    "functions before it": over(lambda h, x: (jnp.tanh(x) * 2) @ W + h @ R * h),
    "transposed weights": over(lambda h, x: jnp.einsum("bd,hd->bh", x, W.T) * jnp.tanh(h @ R)),
    "of vectors": jax.vmap(lambda x: lax.scan(lambda h, r: (h + jnp.tanh(W.T @ r + R @ h), None), jnp.zeros(4), x)[0], 1),
    "axes": over(lambda h, x: jnp.squeeze(x[:, None] @ W, 1) * jnp.tanh(h @ R)),
    "the only one": over(lambda h, x: jnp.sin(x @ W) * h),
}  # fmt: skip


@pytest.mark.parametrize("fn", LEAVES.values(), ids=LEAVES)
def test_what_leaves(fn):
    exported = check(fn, f32(T, B, 3))
    before, inside = products(exported)
    assert (before, inside) in {(1, 1), (1, 0)}
    assert report(exported).endswith("nodes computed for all steps at once")


def test_two_layers_that_the_rows_alone_decide():
    step = lambda h, x: jnp.tanh(jnp.tanh(x @ W + V) @ R + V) * jnp.tanh(h @ R)
    exported = check(over(step), f32(T, B, 3))
    assert products(exported) == (2, 1)
    (scan,) = [n for n in exported.model.graph if n.op_type == "Scan"]
    assert len(scan.inputs) == 2  # the state, and rows of the last layer


def test_rows_that_are_still_used_stay():
    exported = check(over(lambda h, x: (x @ W + h @ R) * x[:, :1]), f32(T, 2, 3))
    (scan,) = [n for n in exported.model.graph if n.op_type == "Scan"]
    assert len(scan.inputs) == 3
    assert products(exported) == (1, 1)


def test_weights_that_are_inputs():
    fn = lambda x, w: lax.scan(lambda h, r: (h + jnp.tanh(r @ w + h @ R), h), jnp.zeros((2, 4)), x)
    assert products(check(fn, f32(T, 2, 3), f32(3, 4))) == (1, 1)


def test_from_a_loop_in_a_loop():
    def fn(x):
        inner = lambda h, rows: lax.scan(lambda h, r: (h + jnp.tanh(r @ W + h @ R), None), h, rows)
        return lax.scan(inner, jnp.zeros((x.shape[2], 4)), x)[0]

    exported = check(fn, f32(T, 2, B, 3))
    nodes = [n for n in exported.model.graph.all_nodes() if n.op_type == "MatMul"]
    assert len(nodes) == 2
    assert products(exported)[1] == 1


STAYS = {
    "a product with the state": over(lambda h, x: (x[:, :1] * h) @ R),
    "a product of rows": over(lambda h, x: h * (x @ x.T).sum()),
    "no product": over(lambda h, x: h * jnp.tanh(x).sum()),
}  # fmt: skip


@pytest.mark.parametrize("fn", STAYS.values(), ids=STAYS)
def test_what_stays(fn):
    exported = check(fn, f32(T, B, 3))
    assert products(exported)[0] == 0
    assert report(exported) == "nothing to do"


def test_what_would_take_too_much_memory_stays():
    wide = weights(2, 400)
    step = lambda h, x: (jnp.tanh(x[:, :2] @ wide) @ weights(400, 4)) * h
    exported = check(lambda x: over(step)(x[:, :, :2]), f32(T, B, 3))
    assert report(exported).endswith("more than 64 times as large as their rows")
    assert products(exported) == (0, 2)


def test_results_of_the_body_stay():
    exported = check(lambda x: lax.scan(lambda c, r: (c + r.sum(), r @ W), 0.0, x), f32(T, B, 3))
    assert products(exported) == (0, 1)


def test_it_can_be_switched_off():
    passes = [p for p in DEFAULT if p is not scanned]
    assert products(jaxport.to_onnx(LEAVES["product"], [(T, B, 3)], passes=passes)) == (0, 2)


def test_the_graph():
    exported = jaxport.to_onnx(LEAVES["product"], [(T, B, 3)])
    expect_graph(exported, ["MatMul[T, B, 4] -> Scan"])


def test_gradients():
    loss = lambda x, w: lax.scan(lambda h, r: (h + jnp.tanh(r @ w + h @ R), h), jnp.zeros((2, 4)), x)[0].sum()
    check(jax.grad(loss, argnums=(0, 1)), f32(T, 2, 3), f32(3, 4), rtol=1e-5)
