"""What the sweeps leave out of layers: training, decoding with a cache, masks, lengths, and the state that a call changes."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxport.testing import check, f32, seeded, spec

B, T = "B", "T"
KEY = jax.random.key(0)
LENGTHS = spec(B, dtype=np.int32)
HALVES = {"without": {"float64": "the layers have their own dtypes"}}


def training(cls, *args, **kwargs):
    layer = seeded(cls, *args, **kwargs)
    layer.train()
    return layer


def decoding(shape, **kwargs):
    attention = seeded(nnx.MultiHeadAttention, 2, 4, decode=True, **kwargs)
    attention.init_cache(shape)
    attention.cache_index.set_value(jnp.uint32(1))
    return attention


#: A call of the layer changes its state, which the exported model returns.
NNX_STATE = {
    "BatchNorm": lambda: (training(nnx.BatchNorm, 4), f32(B, T, 4)),
    "Dropout": lambda: (training(nnx.Dropout, 0.5, rngs=nnx.Rngs(0)), f32(B, 4)),
    "SpectralNorm": lambda: (training(nnx.SpectralNorm, seeded(nnx.Linear, 4, 3)), f32(B, 4)),
    "MultiHeadAttention, decoding": lambda: (decoding((2, 3, 4)), f32(2, 1, 4)),
    "MultiHeadAttention, decoding with normalized queries": lambda: (decoding((2, 3, 4), normalize_qk=True), f32(2, 1, 4)),
    "RNN, dropout on the carry": lambda: (seeded(nnx.RNN, seeded(nnx.OptimizedLSTMCell, 4, 3), rngs=nnx.Rngs(0)), f32(B, 3, 4)),
}  # fmt: skip


def fresh(module):
    """A copy in each trace: a recurrence makes streams of random numbers, which belong to the trace that they are made in."""
    definition, state = nnx.split(module)
    return lambda *xs, **kwargs: nnx.merge(definition, state, copy=True)(*xs, **kwargs)


def recurrent(cell=nnx.GRUCell, **kwargs):
    return fresh(nnx.RNN(seeded(cell, 4, 3), **kwargs))


def attention():
    return seeded(nnx.MultiHeadAttention, 2, 4, decode=False)


def calling(module, call):
    return lambda *xs: call(module, *xs)


NNX = {
    "RNN, lengths": lambda: (calling(recurrent(), lambda rnn, x, n: rnn(x, seq_lengths=n % 4)), f32(B, 3, 4), LENGTHS),
    "RNN, reverse": lambda: (calling(recurrent(), lambda rnn, x: rnn(x, reverse=True, keep_order=True)), f32(B, 3, 4)),
    "RNN, carry": lambda: (recurrent(nnx.LSTMCell, return_carry=True, time_major=True), f32(3, B, 4)),
    "RNN, unrolled": lambda: (recurrent(unroll=2), f32(B, 4, 4)),
    "MultiHeadAttention, causal": lambda: (calling(attention(), lambda heads, x: heads(x, mask=nnx.make_causal_mask(x[..., 0]))), f32(B, T, 4)),
    "MultiHeadAttention, mask": lambda: (calling(attention(), lambda heads, x, k, m: heads(x, k, mask=m)), f32(B, T, 4), f32(B, 5, 4), spec(B, 1, T, 5, dtype=bool)),
    "Embed, attend": lambda: (seeded(nnx.Embed, 5, 4).attend, f32(B, T, 4)),
    "BatchNorm, mask": lambda: (calling(seeded(nnx.BatchNorm, 4, use_running_average=True), lambda norm, x, m: norm(x, mask=m)), f32(B, 4), spec(B, 1, dtype=bool)),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NNX_STATE)
def test_nnx_with_its_state(name):
    layer, *specs = NNX_STATE[name]()
    check(layer, *specs, state="outputs", changes_state=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NNX)
def test_nnx(name):
    fn, *specs = NNX[name]()
    check(fn, *specs, **HALVES)


def applied(module, *examples, mutable=False, **kwargs):
    """A layer of Linen as a function of its inputs, which gives what it changes too."""
    variables = module.init({"params": KEY, "dropout": KEY}, *examples, **kwargs)
    return lambda *xs: module.apply(variables, *xs, mutable=mutable, rngs={"dropout": KEY}, **kwargs)


X, ONE = np.ones((2, 3, 4), np.float32), np.ones((2, 1, 4), np.float32)
CACHED = linen.MultiHeadDotProductAttention(2, decode=True)
LINEN = {
    "BatchNorm": lambda: (applied(linen.BatchNorm(use_running_average=False), X, mutable=["batch_stats"]), f32(B, T, 4)),
    "Dropout": lambda: (applied(linen.Dropout(0.5, deterministic=False), X), f32(B, T, 4)),
    "SpectralNorm": lambda: (applied(linen.SpectralNorm(linen.Dense(3)), X, mutable=["batch_stats"], update_stats=True), f32(B, 4)),
    "RNN, reverse": lambda: (applied(linen.RNN(linen.LSTMCell(3), reverse=True, return_carry=True), X), f32(B, 3, 4)),
    "MultiHeadDotProductAttention, dropout": lambda: (applied(linen.MultiHeadDotProductAttention(2, dropout_rate=0.5, deterministic=False), X), f32(2, 3, 4)),
    "BatchNorm, over axes": lambda: (applied(linen.BatchNorm(use_running_average=False, axis=(1, 2)), X, mutable=["batch_stats"]), f32(B, 3, 4)),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LINEN)
def test_linen(name):
    fn, *specs = LINEN[name]()
    check(fn, *specs, state="discard" if "ropout" in name else "refuse", **HALVES)  # one mask is what is compared


def test_linen_decodes_with_a_cache_as_input_and_output():
    variables = CACHED.init(KEY, X)

    def step(cache, x):
        return CACHED.apply({**variables, "cache": cache}, x, mutable=["cache"])

    cache = jax.tree.map(lambda a: a + 1 if a.dtype == np.int32 else a, variables["cache"])
    check(
        step,
        jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), cache),
        f32(2, 1, 4),
        values=[cache, ONE],
        **HALVES,
    )


def test_linen_recurrence_with_lengths():
    module = linen.RNN(linen.GRUCell(3))
    variables = module.init(KEY, X)
    check(lambda x, n: module.apply(variables, x, seq_lengths=n % 4), f32(B, 3, 4), LENGTHS, **HALVES)


def with_state(cls, *args, **kwargs):
    return eqx.nn.make_with_state(cls)(*args, **kwargs)


def results(layer, state, x):
    """What the layer gives, and the arrays of its state, which may be used once."""
    out, state = layer(x, jax.tree.map(lambda leaf: leaf, state))
    return out, jax.tree.leaves(state)


def normalized(mode):
    layer, state = with_state(eqx.nn.BatchNorm, 3, "batch", mode=mode)
    return jax.vmap(lambda x: results(layer, state, x), axis_name="batch", out_axes=(0, None))


def spectral():
    layer, state = with_state(eqx.nn.SpectralNorm, eqx.nn.Linear(4, 3, key=KEY), "weight", key=KEY)
    return lambda x: results(layer, state, x)


def heads():
    return eqx.nn.MultiheadAttention(2, 4, key=KEY)


EQUINOX = {
    "BatchNorm, training": lambda: (normalized("batch"), f32(4, 3, 5)),
    "BatchNorm, moving": lambda: (normalized("ema"), f32(4, 3, 5)),
    "SpectralNorm, training": lambda: (spectral(), f32(4)),
    "Dropout": lambda: (lambda x: eqx.nn.Dropout(0.5)(x, key=KEY), f32(B, 4)),
    "MultiheadAttention, mask": lambda: (calling(heads(), lambda made, *xs: made(*xs)), f32(T, 4), f32(5, 4), f32(5, 4), spec(T, 5, dtype=bool)),
    "MultiheadAttention, rotary": lambda: (
        calling(heads(), lambda made, x: made(x, x, x, process_heads=lambda q, k, v: (*(jax.vmap(eqx.nn.RotaryPositionalEmbedding(2), 1, 1)(h) for h in (q, k)), v))), f32(3, 4),
    ),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", EQUINOX)
def test_equinox(name):
    fn, *specs = EQUINOX[name]()
    check(fn, *specs, state="discard" if "ropout" in name else "refuse", **HALVES)  # one mask is what is compared
