"""The frameworks' own layers: each traces, groups, and computes what it did; nothing is a special case here."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

from jaxport.blocks.tracing import trace
from jaxport.errors import StateChanged
from jaxport.jaxprs import release
from tests.blocks.checks import blocks, check, paths

pytestmark = pytest.mark.sampled(2)

V = jnp.linspace(-1.0, 1.0, 4)
X = jnp.linspace(-1.0, 1.0, 24).reshape(2, 3, 4)
IMAGE = jnp.linspace(-1.0, 1.0, 2 * 6 * 6 * 3).reshape(2, 6, 6, 3)
IDS = jnp.array([[0, 1, 2]])
KEY = jax.random.key(0)


def rngs():
    return nnx.Rngs(0)


NNX = {
    "linear": (lambda: nnx.Linear(4, 2, rngs=rngs()), (X,)),
    "general": (lambda: nnx.LinearGeneral(4, (2, 3), rngs=rngs()), (X,)),
    "einsum": (lambda: nnx.Einsum("btd,dh->bth", (4, 2), (2,), rngs=rngs()), (X,)),
    "embed": (lambda: nnx.Embed(5, 4, rngs=rngs()), (IDS,)),
    "conv": (lambda: nnx.Conv(3, 4, (3, 3), rngs=rngs()), (IMAGE,)),
    "conv transpose": (lambda: nnx.ConvTranspose(3, 4, (3, 3), rngs=rngs()), (IMAGE,)),
    "layer norm": (lambda: nnx.LayerNorm(4, rngs=rngs()), (X,)),
    "rms norm": (lambda: nnx.RMSNorm(4, rngs=rngs()), (X,)),
    "group norm": (lambda: nnx.GroupNorm(4, num_groups=2, rngs=rngs()), (X,)),
    "attention": (lambda: nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs()), (X,)),
    "lstm": (lambda: nnx.RNN(nnx.OptimizedLSTMCell(4, 3, rngs=rngs())), (X,)),
    "gru": (lambda: nnx.RNN(nnx.GRUCell(4, 3, rngs=rngs()), return_carry=True), (X,)),
    "both ways": (lambda: nnx.Bidirectional(nnx.RNN(nnx.SimpleCell(4, 3, rngs=rngs())), nnx.RNN(nnx.SimpleCell(4, 3, rngs=rngs()))), (X,)),
    "lora": (lambda: nnx.LoRALinear(4, 2, lora_rank=1, rngs=rngs()), (X,)),
    "sequential": (lambda: nnx.Sequential(nnx.Linear(4, 4, rngs=rngs()), nnx.relu, nnx.Sequential(nnx.Linear(4, 2, rngs=rngs()))), (X,)),
    "prelu": (lambda: nnx.PReLU(), (X,)),
}  # fmt: skip

LINEN = {
    "dense": (linen.Dense(2), (X,)),
    "general": (linen.DenseGeneral((2, 3)), (X,)),
    "conv": (linen.Conv(4, (3, 3)), (IMAGE,)),
    "norms": (linen.Sequential([linen.LayerNorm(), linen.RMSNorm(), linen.GroupNorm(2)]), (X,)),
    "attention": (linen.MultiHeadDotProductAttention(2), (X,)),
    "lstm": (linen.RNN(linen.OptimizedLSTMCell(3)), (X,)),
    "both ways": (linen.Bidirectional(linen.RNN(linen.GRUCell(3)), linen.RNN(linen.GRUCell(3))), (X,)),
    "weight norm": (linen.WeightNorm(linen.Dense(2)), (X,)),
    "embed": (linen.Embed(5, 4), (IDS,)),
}

EQX = {
    "linear": lambda: (eqx.nn.Linear(4, 2, key=KEY), (V,)),
    "conv": lambda: (eqx.nn.Conv2d(3, 4, 3, key=KEY), (IMAGE[0].transpose(2, 0, 1),)),
    "mlp": lambda: (eqx.nn.MLP(4, 2, 3, 2, key=KEY), (V,)),
    "norms": lambda: (eqx.nn.Sequential([eqx.nn.LayerNorm(4), eqx.nn.RMSNorm(4), eqx.nn.GroupNorm(2, 4)]), (V,)),
    "attention": lambda: (eqx.nn.MultiheadAttention(2, 4, key=KEY), (X[0], X[0], X[0])),
    "rotary": lambda: (eqx.nn.RotaryPositionalEmbedding(4), (X[0],)),
    "weight norm": lambda: (eqx.nn.WeightNorm(eqx.nn.Linear(4, 2, key=KEY)), (V,)),
    "gru": lambda: (eqx.nn.GRUCell(4, 3, key=KEY), (V, jnp.zeros(3))),
    "lstm": lambda: (eqx.nn.LSTMCell(4, 3, key=KEY), (V, (jnp.zeros(3), jnp.ones(3)))),
    "embedding": lambda: (eqx.nn.Embedding(5, 4, key=KEY), (jnp.int32(1),)),
    "pool": lambda: (eqx.nn.AdaptiveAvgPool1d(2), (X[0],)),
    "prelu": lambda: (eqx.nn.PReLU(), (V,)),
    "identity": lambda: (eqx.nn.Identity(), (V,)),
}


def check_layer(fn, args):
    # With JAX 0.9, XLA rounds the parts of a group norm in another way if they are compiled one by one.
    traced = check(fn, *args, jit=None, units=4 if release < (0, 10) else 0)
    assert paths(traced.jaxpr.jaxpr)[0] == ""
    # Equinox keeps the tables of rotary embeddings outside of its modules.
    rotary = blocks(traced.jaxpr.jaxpr)[0].target == "equinox.nn.RotaryPositionalEmbedding"
    assert rotary or not any(weight.path.startswith("constant") for weight in traced.weights)
    for block in blocks(traced.jaxpr.jaxpr):
        assert block.target.startswith(("flax.", "equinox."))
        assert "._" not in block.target
        assert ".nnx.nn." not in block.target
        assert ".linen.linear." not in block.target


@pytest.mark.parametrize("name", NNX)
def test_nnx(name):
    make, args = NNX[name]
    check_layer(make(), args)


@pytest.mark.parametrize("name", LINEN)
def test_linen(name):
    model, args = LINEN[name]
    variables = model.init(KEY, *args)
    check_layer(functools.partial(model.apply, variables), args)


@pytest.mark.parametrize("name", EQX)
def test_equinox(name):
    model, args = EQX[name]()
    check_layer(model, args)


def test_nnx_decoding_changes_its_cache():
    attention = nnx.MultiHeadAttention(2, 4, decode=True, rngs=rngs())
    attention.init_cache((2, 3, 4))
    with pytest.raises(StateChanged, match="cached_key"):
        trace(attention, (X[:, :1],))
    traced = trace(attention, (X[:, :1],), state="outputs")
    assert traced.state_outputs == ("cache_index", "cached_key", "cached_value")


def test_equinox_power_iteration_is_a_result():
    model, state = eqx.nn.make_with_state(eqx.nn.SpectralNorm)(
        eqx.nn.Linear(4, 2, key=KEY), weight_name="weight", key=KEY
    )
    check(lambda x, state: model(x, state), V, state, expect=["", "layer"], jit=eqx.filter_jit)


def test_linen_control_flow():
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            layers = [linen.Dense(4, name=f"branch_{index}") for index in range(2)]
            if self.is_initializing():
                for layer in layers:
                    layer(x)
            x = linen.cond(x.sum() > 0, lambda m, v: layers[0](v), lambda m, v: layers[1](v), self, x)
            return linen.switch(0, [lambda m, v: layers[0](v), lambda m, v: layers[1](v)], self, x)

    model = Model()
    variables = model.init(KEY, X)
    traced = check(functools.partial(model.apply, variables), X)
    assert set(paths(traced.jaxpr.jaxpr)) == {"", "branch_0", "branch_1"}


def test_linen_named_scopes_and_shared_submodules():
    class Inner(linen.Module):
        layer: linen.Module

        @linen.compact
        def __call__(self, x):
            return self.layer(self.layer(x))

    class Outer(linen.Module):
        @linen.compact
        def __call__(self, x):
            return Inner(linen.Dense(4, name="shared"), name="inner")(x)

    model = Outer()
    variables = model.init(KEY, X)
    check(functools.partial(model.apply, variables), X, expect=["", "inner", "shared", "shared"])


def test_a_linen_module_inside_of_another_framework():
    dense = linen.Dense(4)
    variables = dense.init(KEY, X)

    class Model(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(4, 4, rngs=rngs())

        def __call__(self, x):
            return dense.apply(variables, self.linear(x))

    traced = check(Model(), X, jit=None)
    assert paths(traced.jaxpr.jaxpr) == ["", "linear", ""]


def test_the_bridge_from_linen_to_nnx():
    model = nnx.bridge.ToNNX(linen.Dense(4), rngs=rngs()).lazy_init(X)
    traced = check(model, X, jit=None)
    assert [block.target for block in blocks(traced.jaxpr.jaxpr)] == ["flax.nnx.bridge.ToNNX", "flax.linen.Dense"]
