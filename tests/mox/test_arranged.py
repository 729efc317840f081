"""Weights and results in another order: an adapter is merged exactly, or refused; tables are quantized by rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.mox import dora, ia3, lora, merge_lora, quantize

pytestmark = pytest.mark.sampled(4)

NUMBERS = np.random.default_rng(0)
X = jnp.asarray(NUMBERS.normal(size=(5, 8)), jnp.float32)
KERNEL = jnp.asarray(NUMBERS.normal(size=(8, 6)), jnp.float32)
SHIFT = ((0, 0, 0), (1, -1, 0))
LAYERS = {
    "plain": lambda w, x: x @ w,
    "reversed result": lambda w, x: (x @ w)[:, ::-1],
    "reversed rows of the result": lambda w, x: (x @ w)[::-1],
    "reversed argument": lambda w, x: x[:, ::-1] @ w,
    "reversed inputs": lambda w, x: x @ w[::-1],
    "reversed outputs": lambda w, x: x @ w[:, ::-1],
    "reversed twice": lambda w, x: (x @ w[:, ::-1])[:, ::-1],
    "reversed and split": lambda w, x: (x @ w[:, ::-1]).reshape(-1, 2, 3).reshape(-1, 6),
    "both reversed": lambda w, x: jnp.flip(x, 1) @ jnp.flip(w, 0),
    "part of a split axis": lambda w, x: (x @ w).reshape(-1, 2, 3)[:, ::-1].reshape(-1, 6),
    "slice of the result": lambda w, x: (x @ w)[:, 1:5],
    "every second result": lambda w, x: (x @ w)[:, ::2],
    "every second from the end": lambda w, x: x @ w[:, ::-2],
    "some inputs": lambda w, x: x[:, :4] @ w[::2],
    "padded result": lambda w, x: jnp.pad(x @ w, ((0, 0), (1, 2))),
    "padded inputs": lambda w, x: jnp.pad(x, ((0, 0), (1, 1))) @ jnp.pad(w, ((1, 1), (0, 0))),
    "shifted result": lambda w, x: lax.pad(x @ w, 0.0, SHIFT),
    "shifted outputs": lambda w, x: x @ lax.pad(w, 0.0, SHIFT),
    "rolled result": lambda w, x: jnp.roll(x @ w, 2, 1),
    "rolled outputs": lambda w, x: x @ jnp.roll(w, 2, 1),
    "halves exchanged": lambda w, x: jnp.concatenate([(x @ w)[:, 3:], (x @ w)[:, :3]], 1),
    "sorted result": lambda w, x: jnp.sort(x @ w, 1),
    "sorted outputs": lambda w, x: x @ jnp.sort(w, 1),
    "summed result": lambda w, x: jnp.cumsum(x @ w, 1),
    "summed outputs": lambda w, x: x @ jnp.cumsum(w, 1),
    "permuted result": lambda w, x: (x @ w)[:, jnp.asarray([1, 0, 2, 3, 5, 4])],
    "permuted outputs": lambda w, x: x @ w[:, jnp.asarray([1, 0, 2, 3, 5, 4])],
    "transposed": lambda w, x: (w.T @ x.T).T,
}
EDITS = {"lora": lambda: lora(2), "dora": lambda: dora(2), "ia3": ia3, "ia3 of inputs": lambda: ia3(inputs=True)}


class Layer(nnx.Module):
    def __init__(self, function):
        self.kernel, self.function = nnx.Param(KERNEL), function

    def __call__(self, x):
        return self.function(self.kernel[...], x)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("layer", LAYERS)
def test_adapters_of_arranged_weights_are_merged_or_refused(layer, edit):
    mox = jaxport.make_mox(Layer(LAYERS[layer]))(X)
    try:
        adapted = mox.sub("//Layer", EDITS[edit]())
        noise = {path: NUMBERS.normal(size=v.shape) / 3 for path, v in adapted.params.items() if path != "kernel"}
        params = {path: jnp.asarray(v + noise.get(path, 0), v.dtype) for path, v in adapted.params.items()}
        merged = mox.with_params(merge_lora(adapted, params))
    except jaxport.InvalidArgument:
        assert layer != "plain"
        return
    np.testing.assert_allclose(adapted.apply(params, X), merged(X), rtol=1e-4, atol=1e-4)


class Tied(nnx.Module):
    def __init__(self):
        sizes = np.logspace(-3, 2, 16)[:, None]
        self.embed = nnx.Embed(16, 8, rngs=nnx.Rngs(0))
        self.embed.embedding[...] = jnp.asarray(NUMBERS.normal(size=(16, 8)) * sizes, jnp.float32)

    def __call__(self, ids):
        return self.embed.attend(self.embed(ids))


@pytest.mark.parametrize("options", [{}, {"group": 4}, {"symmetric": False}])
@pytest.mark.parametrize("query", ["//Embed", "//Embed[@method='attend']", "//Embed[@method='__call__']"])
def test_rows_of_a_table_are_quantized_by_themselves(query, options):
    mox = jaxport.make_mox(Tied())(jnp.arange(16))
    small = mox.sub(query, quantize(**options))
    assert {value.shape[0] for path, value in small.state.items() if path.endswith("scale")} == {16}
    found, wanted = np.asarray(small(jnp.arange(16))), np.asarray(mox(jnp.arange(16)))

    assert (np.abs(found - wanted).max(0) < 0.06 * np.abs(wanted).max(0)).all()
    exported = jaxport.to_onnx(small, [jax.ShapeDtypeStruct((16,), jnp.int32)])
    assert exported.verify().ok
