"""Random numbers that would be drawn once: a Dropout that is on, and what draws like it."""

from __future__ import annotations

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jaxport

KEY = jax.random.key(3)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.drop = nnx.Linear(8, 4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.hidden(x))


class Noisy(nnx.Module):
    """Draws from a stream of its own, or from a key that it writes down."""

    def __init__(self, rngs, *, fixed):
        self.rngs, self.fixed = rngs, fixed

    def __call__(self, x):
        return x + (jax.random.normal(jax.random.key(0), (8,)) if self.fixed else self.rngs.normal((8,)))


def attention(**options):
    return nnx.MultiHeadAttention(2, 8, dropout_rate=0.3, decode=False, rngs=nnx.Rngs(0), **options)


def applied(layer, *shape, key=KEY):
    """A layer of Linen whose streams begin with one key."""
    variables = layer.init({"params": key, "dropout": key}, jnp.ones(shape))
    return lambda x: layer.apply(variables, x, rngs={"dropout": key})


NET = Net(nnx.Rngs(0))
DROPOUT = linen.Dropout(0.5, deterministic=False)
ON = {
    "nnx": (Net(nnx.Rngs(0)), ("B", 8), r"`drop` \(flax.nnx.Dropout\)"),
    "closed over": (lambda x: NET(x) + 1, ("B", 8), "flax.nnx.Dropout"),
    "nnx attention": (attention(deterministic=False), ("B", 3, 8), "flax.nnx.MultiHeadAttention"),
    "nnx stream": (Noisy(nnx.Rngs(0), fixed=False), ("B", 8), "rngs.default.key"),
    "linen": (applied(DROPOUT, 1, 8), ("B", 8), "flax.linen.Dropout"),
    "linen, words": (applied(DROPOUT, 1, 8, key=jax.random.PRNGKey(1)), ("B", 8), "flax.linen.Dropout"),
    "linen attention": (
        applied(linen.MultiHeadDotProductAttention(2, dropout_rate=0.2, deterministic=False), 1, 3, 8),
        ("B", 3, 8), "flax.linen.MultiHeadDotProductAttention",
    ),
    "equinox": (lambda x: equinox.nn.Dropout(0.5)(x, key=KEY), (8,), "equinox.nn.Dropout"),
    "gradient": (jax.grad(lambda x: Net(nnx.Rngs(0))(x).sum()), (2, 8), "flax.nnx.Dropout"),
}  # fmt: skip
MEANT = {
    "a key written down": lambda x: x + jax.random.normal(jax.random.key(0), (8,)),
    "a key closed over": lambda x: x + jax.random.normal(KEY, (8,)),
    "a key in a module": Noisy(nnx.Rngs(0), fixed=True),
    "evaluation": nnx.Sequential(Net(nnx.Rngs(0))),
    "attention": lambda x: attention(deterministic=True)(x[:, None]),
}
MEANT["evaluation"].eval()


@pytest.mark.parametrize("name", ON)
def test_a_mask_of_one_call_is_refused(name):
    fn, shape, place = ON[name]
    with pytest.raises(jaxport.StateChanged, match=rf"(?s){place}.*model\.eval\(\).*state=.discard.") as refused:
        jaxport.to_onnx(fn, [shape])
    assert "draws random numbers" in str(refused.value)
    assert jaxport.to_onnx(fn, [shape], state="discard").verify().ok


@pytest.mark.parametrize("name", MEANT)
def test_what_is_meant_is_exported(name):
    assert jaxport.to_onnx(MEANT[name], [("B", 8)]).verify().ok


def test_a_key_or_a_stream_as_an_input():
    dropout = lambda x, key: nnx.Dropout(0.5)(x, rngs=nnx.Rngs(key))
    exported = jaxport.to_onnx(dropout, [("B", 8), jax.random.key(0)])
    x = np.ones((2, 8), np.float32)
    first, second = (np.asarray(exported(x, jax.random.key(seed))) for seed in (1, 2))
    np.testing.assert_array_equal(first, dropout(x, jax.random.key(1)))
    assert (first != second).any()
    apply = lambda x, key: DROPOUT.apply({}, x, rngs={"dropout": key})
    assert jaxport.to_onnx(apply, [("B", 8), jax.random.key(0)]).verify().ok
    inputs = [port.name for port in jaxport.to_onnx(Net(nnx.Rngs(0)), [("B", 8)], weights="inputs").inputs]
    assert any(name.endswith(".key") for name in inputs)
