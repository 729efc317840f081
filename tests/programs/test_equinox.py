"""Models of Equinox."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jaxport.testing import f32, i32
from tests.programs.checker import built
from tests.programs.models import KEY, of_equinox


@built(f32("B", 5))
def test_perceptron():
    return jax.vmap(of_equinox(eqx.nn.MLP, 5, 3, 8, 2, activation=jax.nn.gelu))


@built(f32("B", 5))
def test_jitted_model_with_arguments_that_are_no_arrays():
    model = of_equinox(eqx.nn.MLP, 5, "scalar", 8, 1)
    call = eqx.filter_jit(lambda model, x, scale: jax.vmap(model)(x) * scale["factor"] + len(scale["name"]))
    return lambda x: call(model, x, {"factor": 2.0, "name": "four"})


class ConvolutionalNetwork(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    pool: eqx.nn.MaxPool2d
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(3, 6, 3, padding=1, key=keys[0])
        self.norm = eqx.nn.BatchNorm(6, axis_name="batch", mode="batch")
        self.pool = eqx.nn.MaxPool2d(2, 2)
        self.dropout = eqx.nn.Dropout(0.5)
        self.head = eqx.nn.Linear(6, 4, key=keys[1])

    def __call__(self, x, state):
        x, state = self.norm(self.conv(x), state)
        x = self.dropout(self.pool(jax.nn.relu(x)).mean((1, 2)), key=KEY)
        return self.head(x), state


@built(f32("B", 3, 8, 8))
def test_batch_normalization_in_inference_mode():
    model, state = of_equinox(eqx.nn.make_with_state(ConvolutionalNetwork))
    model, state = eqx.nn.inference_mode(model), jax.tree.map(jnp.abs, state)
    call = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    return lambda x: call(x, state)[0]


@built(f32(4, 3, 8, 8), state="discard")  # one mask; JAX wants to know over how many examples a collective runs
def test_batch_normalization_in_training_with_its_state_closed_over():
    model, state = of_equinox(eqx.nn.make_with_state(ConvolutionalNetwork))
    call = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))

    def step(x):
        y, new = call(x, state)
        again, _ = call(x, new)
        return y, again, jax.tree.leaves(new)

    return step


class Recurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key):
        self.cell, self.head = eqx.nn.GRUCell(4, 6, key=key), eqx.nn.Linear(6, 2, key=key)

    def __call__(self, x):
        step = lambda hidden, v: (self.cell(v, hidden), hidden)
        hidden, states = lax.scan(step, jnp.zeros(self.cell.hidden_size), x)
        return self.head(hidden), states


@built(f32("T", 4))
def test_gated_units_by_scan():
    return of_equinox(Recurrent)


@built(f32("B", "T", 4))
def test_memory_cell_by_scan_in_a_batch():
    cell = of_equinox(eqx.nn.LSTMCell, 4, 6)

    def run(x):
        start = jnp.zeros(6), jnp.zeros(6)
        return lax.scan(lambda carry, v: (cell(v, carry), None), start, x)[0]

    return jax.vmap(run)


class Transformer(eqx.Module):
    embedding: eqx.nn.Embedding
    rotary: eqx.nn.RotaryPositionalEmbedding
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.RMSNorm
    mlp: eqx.nn.MLP

    def __init__(self, key):
        self.embedding = eqx.nn.Embedding(11, 8, key=key)
        self.rotary = eqx.nn.RotaryPositionalEmbedding(4)
        self.attention = eqx.nn.MultiheadAttention(2, 8, key=key)
        self.norm = eqx.nn.RMSNorm(8)
        self.mlp = eqx.nn.MLP(8, 8, 16, 1, activation=jax.nn.silu, key=key)

    def __call__(self, ids):
        x = jax.vmap(self.embedding)(ids)
        y = jax.vmap(self.norm)(x)
        rotated = lambda query, key, value: (*(jax.vmap(self.rotary, 1, 1)(v) for v in (query, key)), value)
        mask = jnp.tril(jnp.ones((ids.shape[0], ids.shape[0]), bool))
        x = x + self.attention(y, y, y, mask=mask, process_heads=rotated)
        x = x + jax.vmap(self.mlp)(jax.vmap(self.norm)(x))
        return x @ self.embedding.weight.T


@built(i32(6))
def test_transformer_with_rotary_positions():
    return of_equinox(Transformer)


@built(i32("B", 6))
def test_transformer_in_a_batch():
    return jax.vmap(of_equinox(Transformer))


@built(f32("B", 3, 9, 9))
def test_sequential_of_layers():
    return jax.vmap(
        of_equinox(
            lambda key: eqx.nn.Sequential(
                [
                    eqx.nn.Conv2d(3, 4, 3, stride=2, key=key),
                    eqx.nn.GroupNorm(2, 4),
                    eqx.nn.Lambda(eqx.nn.PReLU(0.1)),
                    eqx.nn.ConvTranspose2d(4, 4, 3, stride=2, key=key),
                    eqx.nn.AdaptiveAvgPool2d(2),
                    eqx.nn.Lambda(jnp.ravel),
                    eqx.nn.LayerNorm(16),
                    eqx.nn.Linear(16, 3, key=key),
                ]
            )
        )
    )


@built(f32("B", 5), KEY)
def test_dropout_with_a_key_per_example():
    model = of_equinox(lambda key: eqx.nn.Sequential([eqx.nn.Linear(5, 8, key=key), eqx.nn.Dropout(0.4)]))
    return lambda x, key: jax.vmap(lambda v, key: model(v, key=key))(x, jax.random.split(key, x.shape[0]))


@built(f32("B", 5))
def test_ensemble_made_and_called_by_vmap():
    make = eqx.filter_vmap(lambda key: eqx.nn.MLP(5, 3, 8, 1, key=key))
    models = of_equinox(lambda key: make(jax.random.split(key, 3)))
    call = eqx.filter_vmap(lambda model, x: jax.vmap(model)(x), in_axes=(eqx.if_array(0), None))
    return lambda x: call(models, x).std(0)


@built(f32("B", 5))
def test_layers_by_scan():
    make = eqx.filter_vmap(lambda key: eqx.nn.Linear(5, 5, key=key))
    layers = of_equinox(lambda key: make(jax.random.split(key, 3)))
    arrays, static = eqx.partition(layers, eqx.is_array)

    def call(x):
        return lax.scan(lambda x, layer: (jnp.tanh(eqx.combine(layer, static)(x)), None), x, arrays)[0]

    return jax.vmap(call)


@built(f32("B", 5))
def test_gradient_of_some_leaves():
    model = of_equinox(eqx.nn.MLP, 5, 2, 6, 1)
    only = eqx.tree_at(lambda tree: tree.layers[-1].weight, jax.tree.map(lambda _: False, model), True)
    chosen, rest = eqx.partition(model, only)
    loss = lambda chosen, x: (jax.vmap(eqx.combine(chosen, rest))(x) ** 2).mean()
    return lambda x: eqx.filter_value_and_grad(loss)(chosen, x)[1].layers[-1].weight


class Counted(eqx.Module):
    linear: eqx.nn.Linear
    calls: eqx.nn.StateIndex

    def __init__(self, key):
        self.linear = eqx.nn.Linear(5, 5, key=key)
        self.calls = eqx.nn.StateIndex(jnp.array(0))

    def __call__(self, x, state):
        count = state.get(self.calls) + 1
        return self.linear(x) / count, state.set(self.calls, count)


@built(f32(5))
def test_state_of_one_s_own():
    model, state = of_equinox(eqx.nn.make_with_state(Counted))

    leaves, structure = jax.tree.flatten(state)  # Equinox lets a state be used once

    def call(x):
        x, new = model(x, jax.tree.unflatten(structure, leaves))
        return model(x, new)[0]

    return call


@built(f32("B", 5))
def test_spectral_and_weight_normalization():
    def make(key):
        layer = eqx.nn.SpectralNorm(eqx.nn.Linear(5, 4, key=key), "weight", inference=True, key=key)
        return layer, eqx.nn.WeightNorm(eqx.nn.Linear(4, 3, key=key))

    (layer, weighted), state = of_equinox(eqx.nn.make_with_state(make))
    return jax.vmap(lambda x: weighted(layer(x, state)[0]))


@built(f32("B", 5))
def test_one_weight_in_two_layers():
    shared = eqx.nn.Shared(
        of_equinox(lambda key: (eqx.nn.Linear(5, 4, key=key), eqx.nn.Linear(4, 5, key=key))),
        lambda pair: pair[1].weight,
        lambda pair: pair[0].weight.T,
    )

    def call(x):
        first, second = shared()
        return second(jax.nn.relu(first(x)))

    return jax.vmap(call)
