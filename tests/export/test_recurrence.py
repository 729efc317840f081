"""Scans over time that are LSTMs, GRUs and RNNs become these operators; all others stay loops, and say why."""

from __future__ import annotations

import functools
import json
from collections import Counter

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.onnx_facts import ROLES
from jaxport.testing import check, expect_graph, f32

pytestmark = pytest.mark.sampled(2)

B, T = "B", "T"
OPERATORS = ("LSTM", "GRU", "RNN", "Scan", "Loop")
NO_FLOAT64 = {"float64": "ONNX Runtime has no float64 kernels of recurrent operators; the loop stays"}


def operators(exported):
    """The recurrent operators and the loops of a model."""
    found = Counter(node.op_type for node in exported.model.graph.all_nodes())
    return {name: found[name] for name in OPERATORS if found[name]}


def notes(exported):
    """Why scans did not become operators."""
    return [
        row.note.removeprefix("no recurrent operator: ") for row in exported.explain().rows if "recurrent" in row.note
    ]


def weights(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) / np.float32(shape[-1] ** 0.5)


D, H = 3, 4
WI, WH, BIAS = weights(D, 4 * H), weights(H, 4 * H, seed=1), weights(4 * H, seed=2)


def scanned(step, x, *states, **options):
    """The states after the last step, and what is stacked; `x` is time-major."""
    zeros = jnp.zeros((x.shape[1], H))
    states = states or (zeros, zeros)
    return lax.scan(step, states if len(states) > 1 else states[0], x, **options)


# LSTM ----------------------------------------------------------------------------------------------------------------


def lstm(gates, order="ifgo", sigmoid=jax.nn.sigmoid, forget=0.0, tanh=jnp.tanh, out=lambda h, c: h):
    """A step from a function of `x` and `h` to the four gates side by side."""

    def step(state, x):
        h, c = state
        parts = dict(zip(order, jnp.split(gates(x, h), 4, -1), strict=True))
        c = sigmoid(parts["f"] + forget) * c + sigmoid(parts["i"]) * tanh(parts["g"])
        h = sigmoid(parts["o"]) * tanh(c)
        return (h, c), out(h, c)

    return step


def plain(x, h):
    return x @ WI + h @ WH + BIAS


def by_four(x, h):
    """Four matrices, added one after the other."""
    return jnp.concatenate([x @ WI[:, k::4] + h @ WH[:, k::4] + BIAS[k] for k in range(4)], -1)


def one_matrix(x, h):
    return jnp.concatenate([x, h], -1) @ np.concatenate([WI, WH]) + BIAS


def turned(x, h):
    return jnp.einsum("gd,bd->bg", WI.T, x) + jnp.einsum("gh,bh->bg", WH.T, h)


def in_axes(x, h):
    gates = jnp.einsum("bd,dkh->bkh", x, WI.reshape(D, 4, H)) + jnp.einsum("bi,ikh->bkh", h, WH.reshape(H, 4, H))
    return (gates + BIAS.reshape(4, H)).reshape(*h.shape[:-1], 4 * H)


def interleaved(x, h):
    return jnp.moveaxis(plain(x, h).reshape(*h.shape[:-1], H, 4), -1, -2).reshape(*h.shape[:-1], 4 * H)


def scaled(x, h):
    return 2 * (x / 4 @ WI) - h @ -WH + (BIAS + BIAS)


LSTMS = {
    "plain": lstm(plain),
    "gate order": lstm(plain, "ofgi"),
    "four matrices": lstm(by_four),
    "one matrix": lstm(one_matrix, "gfio"),
    "transposed": lstm(turned),
    "gates in an axis": lstm(in_axes),
    "gates interleaved": lstm(interleaved),
    "scaled and without some biases": lstm(scaled),
    "forget bias": lstm(plain, forget=1.0),
    "sigmoid by exp": lstm(plain, sigmoid=lambda x: 1 / (1 + jnp.exp(-x))),
    "sigmoid by exp, positive": lstm(plain, sigmoid=lambda x: jnp.exp(x) / (1 + jnp.exp(x))),
    "sigmoid by tanh": lstm(plain, sigmoid=lambda x: (1 + jnp.tanh(x / 2)) / 2),
    "tanh by sigmoid": lstm(plain, tanh=lambda x: 2 * jax.nn.sigmoid(2 * x) - 1),
    "hard sigmoid": lstm(plain, sigmoid=jax.nn.hard_sigmoid),
    "relu": lstm(plain, tanh=jax.nn.relu),
    "softsign": lstm(plain, tanh=jax.nn.soft_sign),
    "bias of no batch": lstm(lambda x, h: plain(x, h) + np.float32(0.5)),
    "checkpointed": jax.checkpoint(lstm(plain)),
    "nothing stacked": lstm(plain, out=lambda h, c: None),
    "with a head": lstm(plain, out=lambda h, c: (jax.nn.relu(h @ WI.T[:H]), h)),
}  # fmt: skip


@pytest.mark.parametrize("step", LSTMS.values(), ids=LSTMS)
def test_lstm(step):
    exported = check(lambda x: scanned(step, x), f32(T, B, D), without=NO_FLOAT64)
    assert operators(exported) == {"LSTM": 1}


def test_the_graph_of_an_lstm():
    exported = check(lambda x: scanned(LSTMS["plain"], x)[1], f32(T, B, D), without=NO_FLOAT64)
    expect_graph(exported, ["LSTM -> Squeeze[T, B, 4]"], exact=True)
    assert {name: tuple(v.shape) for name, v in exported.model.graph.initializers.items() if len(v.shape) > 1} == {
        "lstm.W": (1, 16, 3),
        "lstm.R": (1, 16, 4),
        "lstm.B": (1, 32),
    }


@pytest.mark.parametrize("size", [1, 2, 33])
@pytest.mark.parametrize("features", [1, 5])
def test_sizes(size, features):
    wi, wh, b = weights(features, 4 * size), weights(size, 4 * size), weights(4 * size)
    step = lstm(lambda x, h: x @ wi + h @ wh + b)
    exported = check(lambda x, h: lax.scan(step, (h, 2 * h), x), f32(7, 2, features), f32(2, size), without=NO_FLOAT64)
    assert operators(exported) == {"LSTM": 1}


def test_the_state_given_and_reversed():
    step = lstm(plain)
    exported = check(
        lambda x, h, c: scanned(step, x, h, c, reverse=True),
        f32(T, B, D), f32(B, H), f32(B, H), without=NO_FLOAT64,
    )  # fmt: skip
    (node,) = [n for n in exported.model.graph if n.op_type == "LSTM"]
    assert node.attributes["direction"].as_string() == "reverse"
    assert node.inputs[5] is not None


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("unroll", [1, 3, True])
def test_unroll(length, unroll):
    exported = check(lambda x: scanned(lstm(plain), x, unroll=unroll), f32(length, 2, D), without=NO_FLOAT64)
    assert operators(exported) == {"LSTM": 1}


def test_what_the_user_wants_written_out_is():
    exported = check(lambda x: scanned(lstm(plain), x), f32(3, 2, D), without=NO_FLOAT64, unroll_scans=3)
    assert operators(exported) == {}


def test_the_states_in_the_other_order():
    def step(state, x):
        (h, c), y = lstm(plain)(state[::-1], x)
        return (c, h), y

    assert operators(check(lambda x: scanned(step, x), f32(T, B, D), without=NO_FLOAT64)) == {"LSTM": 1}


def vector_lstm(x):
    """One sequence, without a batch, by matrices that stand before the vectors."""
    gates = lambda x, h: WI.T @ x + WH.T @ h + BIAS
    return lax.scan(lstm(gates), (jnp.zeros(H), jnp.zeros(H)), x)


def columns_lstm(x):
    """The batch in the last axis."""

    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(WI.T @ x + WH.T @ h + BIAS[:, None], 4, 0)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((H, x.shape[2]))
    return lax.scan(step, (zeros, zeros), x)


BATCHES = {
    "none": (vector_lstm, [f32(T, D)]),
    "vmap": (jax.vmap(vector_lstm), [f32(B, T, D)]),
    "vmap of time-major": (jax.vmap(vector_lstm, in_axes=1, out_axes=1), [f32(T, B, D)]),
    "vmap twice": (jax.vmap(jax.vmap(vector_lstm)), [f32(2, B, T, D)]),
    "one": (lambda x: scanned(lstm(plain), x), [f32(T, 1, D)]),
    "columns": (columns_lstm, [f32(T, D, B)]),
    "as many as features": (lambda x: scanned(lstm(plain), x), [f32(T, H, D)]),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "specs"), BATCHES.values(), ids=BATCHES)
def test_batches(fn, specs):
    assert operators(check(fn, *specs, without=NO_FLOAT64)) == {"LSTM": 1}


def test_stacked_layers():
    wi = weights(H, 4 * H)

    def two(x):
        _, y = scanned(lstm(plain), x)
        return scanned(lstm(lambda x, h: x @ wi + h @ WH), y, reverse=True)

    assert operators(check(two, f32(T, B, D), without=NO_FLOAT64)) == {"LSTM": 2}


INPUTS = {
    "one in parts": lambda x: scanned(lstm(lambda x, h: x[:, 1:] @ WI[:2] + x[:, ::-1] @ WI + h @ WH), x),
    "encoded in the step": lambda x: scanned(lstm(lambda x, h: jax.nn.relu(x @ WI + BIAS) @ WI.T @ WI + h @ WH), x),
    "squared": lambda x: scanned(lstm(lambda x, h: (x * x - 1) @ WI + h @ WH), x),
    "shifted": lambda x: scanned(lstm(lambda x, h: (x - 1) @ WI + h @ WH), x),
}  # fmt: skip


@pytest.mark.parametrize("fn", INPUTS.values(), ids=INPUTS)
def test_what_the_step_does_with_its_inputs_first(fn):
    assert operators(check(fn, f32(T, B, D), without=NO_FLOAT64)) == {"LSTM": 1}


def test_several_inputs():
    step = lambda s, xs: lstm(lambda _, h: xs[0] @ WI + xs[1] @ WI[:1] + h @ WH)(s, 0)
    zeros = lambda x: jnp.zeros((x.shape[1], H))
    fn = lambda x, y: lax.scan(step, (zeros(x), zeros(x)), (x, y))
    assert operators(check(fn, f32(T, B, D), f32(T, B, 1), without=NO_FLOAT64)) == {"LSTM": 1}


def test_tokens_that_are_looked_up_in_the_step():
    table = jnp.asarray(weights(9, D))
    fn = lambda ids: lax.scan(lstm(lambda i, h: table[i] @ WI + h @ WH), (jnp.zeros((2, H)),) * 2, ids)
    ids = np.array([[1, 2], [0, 8], [3, 3], [4, 5], [8, 8]], np.int32)
    exported = check(fn, jax.ShapeDtypeStruct((T, 2), jnp.int32), values=[ids], without=NO_FLOAT64)
    assert operators(exported) == {"LSTM": 1}


def test_weights_that_are_inputs():
    fn = lambda x, wi, wh, b: scanned(lstm(lambda x, h: x @ wi + h @ wh + b, "gfoi"), x)
    exported = check(fn, f32(T, B, D), f32(D, 4 * H), f32(H, 4 * H), f32(4 * H), without=NO_FLOAT64)
    assert operators(exported) == {"LSTM": 1}


def test_a_state_that_no_step_changes_is_a_weight():
    def step(state, x):
        hc, w = state
        hc, y = lstm(lambda x, h: x @ WI + h @ w)(hc, x)
        return (hc, w), y

    fn = lambda x, w: lax.scan(step, ((jnp.zeros((2, H)),) * 2, w), x)
    assert operators(check(fn, f32(T, 2, D), f32(H, 4 * H), without=NO_FLOAT64)) == {"LSTM": 1}


# GRU and RNN ---------------------------------------------------------------------------------------------------------

GI, GH, GB = weights(D, 3 * H), weights(H, 3 * H, seed=1), weights(3 * H, seed=2)
MIXES = {
    "z*h + (1-z)*n": lambda z, n, h: z * h + (1 - z) * n,
    "n + z*(h-n)": lambda z, n, h: n + z * (h - n),
    "(1-z)*h + z*n": lambda z, n, h: (1 - z) * h + z * n,
    "h - z*(h-n)": lambda z, n, h: h - z * (h - n),
}


def gru_before(mix, sigmoid=jax.nn.sigmoid):
    """The reset gate multiplies the state."""

    def step(h, x):
        r, z = jnp.split(sigmoid((x @ GI + GB)[:, : 2 * H] + h @ GH[:, : 2 * H]), 2, -1)
        n = jnp.tanh((x @ GI + GB)[:, 2 * H :] + (r * h) @ GH[:, 2 * H :])
        h = mix(z, n, h)
        return h, h

    return step


def gru_after(mix, sigmoid=jax.nn.sigmoid):
    """The reset gate multiplies the product with the state, and its bias."""

    def step(h, x):
        (xr, xz, xn), (hr, hz, hn) = jnp.split(x @ GI, 3, -1), jnp.split(h @ GH + GB, 3, -1)
        r, z = sigmoid(xr + hr), sigmoid(xz + hz)
        h = mix(z, jnp.tanh(xn + r * hn), h)
        return h, h

    return step


@pytest.mark.parametrize("sigmoid", [jax.nn.sigmoid, jax.nn.hard_sigmoid, lambda x: (jnp.tanh(x / 2) + 1) * 0.5])
@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("kind", [gru_before, gru_after])
def test_gru(kind, mix, sigmoid):
    fn = lambda x: scanned(kind(mix, sigmoid), x, jnp.zeros((x.shape[1], H)))
    exported = check(fn, f32(T, B, D), without=NO_FLOAT64)
    assert operators(exported) == {"GRU": 1}
    (node,) = [n for n in exported.model.graph if n.op_type == "GRU"]
    assert ("linear_before_reset" in node.attributes) == (kind is gru_after)


@pytest.mark.parametrize("activation", [jnp.tanh, jax.nn.relu, jax.nn.sigmoid])
def test_rnn(activation):
    step = lambda h, x: ((n := activation(x @ WI[:, :H] + h @ WH[:, :H] + 0.5)), n)
    fn = lambda x: scanned(step, x, jnp.ones((x.shape[1], H)), reverse=True)
    assert operators(check(fn, f32(T, B, D), without=NO_FLOAT64)) == {"RNN": 1}


def test_runtime_weights_of_a_gru():
    def fn(x, wi, wh, wn, b):
        def step(h, x):
            r, z = jnp.split(jax.nn.sigmoid(x @ wi[:, : 2 * H] + h @ wh + b), 2, -1)
            n = jnp.tanh(x @ wi[:, 2 * H :] + r * (h @ wn + b[:H]))
            return (1 - z) * n + z * h, None

        return lax.scan(step, jnp.zeros((x.shape[1], H)), x)[0]

    specs = [f32(T, B, D), f32(D, 3 * H), f32(H, 2 * H), f32(H, H), f32(2 * H)]
    assert operators(check(fn, *specs, without=NO_FLOAT64)) == {"GRU": 1}


# Libraries -----------------------------------------------------------------------------------------------------------


def of_linen(layer):
    variables = layer.init(jax.random.key(0), jnp.ones((2, 5, D)))
    return lambda x: layer.apply(variables, x)


class LinenBoth(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Bidirectional(nn.RNN(nn.LSTMCell(H)), nn.RNN(nn.GRUCell(H)))(x)


def of_equinox(cell, size=1):
    state = (jnp.zeros(H),) * size if size > 1 else jnp.zeros(H)
    step = lambda h, x: ((n := cell(x, h)), n[0] if size > 1 else n)
    return jax.vmap(lambda x: lax.scan(step, state, x))


KEY = jax.random.key(0)
MODELS = {
    "nnx LSTM": (lambda: nnx.RNN(nnx.LSTMCell(D, H, rngs=nnx.Rngs(0))), {"LSTM": 1}),
    "nnx optimized LSTM": (
        lambda: nnx.RNN(nnx.OptimizedLSTMCell(D, H, rngs=nnx.Rngs(0)), time_major=True),
        {"LSTM": 1},
    ),
    "nnx GRU": (lambda: nnx.RNN(nnx.GRUCell(D, H, rngs=nnx.Rngs(0)), reverse=True, keep_order=True), {"GRU": 1}),
    "nnx simple": (lambda: nnx.RNN(nnx.SimpleCell(D, H, rngs=nnx.Rngs(0)), return_carry=True), {"RNN": 1}),
    "nnx both": (
        lambda: nnx.Bidirectional(
            nnx.RNN(nnx.GRUCell(D, H, rngs=nnx.Rngs(0))), nnx.RNN(nnx.LSTMCell(D, H, rngs=nnx.Rngs(1)))
        ),
        {"LSTM": 1, "GRU": 1},
    ),
    "linen LSTM": (lambda: of_linen(nn.RNN(nn.LSTMCell(H))), {"LSTM": 1}),
    "linen optimized LSTM": (lambda: of_linen(nn.RNN(nn.OptimizedLSTMCell(H), unroll=2)), {"LSTM": 1}),
    "linen GRU": (lambda: of_linen(nn.RNN(nn.GRUCell(H), reverse=True)), {"GRU": 1}),
    "linen simple": (lambda: of_linen(nn.RNN(nn.SimpleCell(H))), {"RNN": 1}),
    "linen both": (lambda: of_linen(LinenBoth()), {"LSTM": 1, "GRU": 1}),
    "equinox LSTM": (lambda: of_equinox(eqx.nn.LSTMCell(D, H, key=KEY), 2), {"LSTM": 1}),
    "equinox GRU": (lambda: of_equinox(eqx.nn.GRUCell(D, H, key=KEY)), {"GRU": 1}),
    "equinox jit": (lambda: eqx.filter_jit(of_equinox(eqx.nn.GRUCell(D, H, use_bias=False, key=KEY))), {"GRU": 1}),
}


@pytest.mark.parametrize(("make", "expected"), MODELS.values(), ids=MODELS)
def test_libraries(make, expected):
    model = make()
    state = {"state": "discard"} if isinstance(model, nnx.Module) else {}
    exported = check(model, f32(B, T, D), without=NO_FLOAT64, **state)
    assert operators(exported) == expected


def test_sequence_lengths_of_a_gru():
    model = nnx.RNN(nnx.GRUCell(D, H, rngs=nnx.Rngs(0)), return_carry=True)
    fn = lambda x, lengths: model(x, seq_lengths=lengths)
    values = [weights(3, 5, D), np.array([2, 5, 1], np.int32)]
    exported = check(
        fn, f32(3, 5, D), jax.ShapeDtypeStruct((3,), jnp.int32), values=values, without=NO_FLOAT64, state="discard"
    )
    assert operators(exported) == {"GRU": 1}


class LinenBothWithLengths(nn.Module):
    """Linen's `Bidirectional` asks both layers for their last states too, and drops them."""

    @nn.compact
    def __call__(self, x, lengths):
        layers = [nn.RNN(cell(H)) for cell in (nn.OptimizedLSTMCell, nn.GRUCell)]
        return nn.Bidirectional(*layers)(x, seq_lengths=lengths)


def test_results_of_layers_that_nobody_reads_do_not_keep_a_scan():
    model, values = LinenBothWithLengths(), [weights(3, 5, D), np.array([2, 5, 1], np.int32)]
    variables = model.init(KEY, *values)
    exported = check(
        lambda x, lengths: model.apply(variables, x, lengths),
        f32(3, 5, D),
        jax.ShapeDtypeStruct((3,), jnp.int32),
        values=values,
        without=NO_FLOAT64,
    )
    assert operators(exported) == {"LSTM": 1, "GRU": 1}


# Weights -------------------------------------------------------------------------------------------------------------


def held(exported: jaxport.Exported) -> Counter[str]:
    """The weights of the file by name."""
    return Counter(json.loads(exported.model.metadata_props[ROLES])["parameter"])


@pytest.mark.parametrize("cell", [nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell, nnx.SimpleCell])
def test_weights_are_those_of_the_cell(cell):
    model = nnx.RNN(cell(D, H, rngs=nnx.Rngs(0)))
    exported = jaxport.to_onnx(model, [(B, T, D)], state="discard")
    paths = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))}
    assert held(exported) == dict.fromkeys(paths, 1)
    assert jaxport.from_onnx(exported).to_source(framework="nnx").origins == {path: path for path in paths}


class Scanned(eqx.Module):
    cell: eqx.Module

    def __call__(self, x):
        state = jnp.zeros(H)
        state = (state, state) if isinstance(self.cell, eqx.nn.LSTMCell) else state
        return jax.lax.scan(lambda carry, row: (self.cell(row, carry), None), state, x)[0]


@pytest.mark.parametrize("cell", [eqx.nn.LSTMCell, eqx.nn.GRUCell])
def test_weights_are_those_of_the_cell_of_equinox(cell):
    model = Scanned(cell(D, H, key=KEY))
    paths = {f"cell.{name}" for name in ("weight_ih", "weight_hh", "bias", "bias_n") if hasattr(model.cell, name)}
    imported = jaxport.from_onnx(jaxport.to_onnx(model, [(T, D)]))
    assert set(imported.params) == paths
    assert imported.to_source(framework="equinox").origins == {path: path for path in paths}


@pytest.mark.parametrize("names", [("enc/cell.wi", "enc/cell.wh"), ("enc/cell/wi", "enc/cell/wh"), ("wi", "wh")])
def test_names_of_weights_in_other_libraries(names):
    params = {names[0]: WI, names[1]: WH}
    fn = lambda params, x: scanned(lstm(lambda x, h: x @ params[names[0]] + h @ params[names[1]]), x)
    assert held(jaxport.to_onnx(functools.partial(fn, params), [(T, B, D)])) == dict.fromkeys(names, 1)


def test_a_layer_that_is_called_twice_is_stored_once():
    model = nnx.RNN(nnx.OptimizedLSTMCell(H, H, rngs=nnx.Rngs(0)))
    exported = check(lambda x: model(model(x)), f32(B, T, H), without=NO_FLOAT64, state="discard")
    assert operators(exported) == {"LSTM": 2}
    assert held(exported) == {"cell.dense_i.kernel": 1, "cell.dense_h.kernel": 1, "cell.dense_h.bias": 1}
    assert jaxport.from_onnx(exported).to_source(framework="nnx").code.count("self.cell(carry, row), ") == 2


def test_runtimes_pack_weights_while_they_load(tmp_path):
    exported = jaxport.to_onnx(nnx.RNN(nnx.OptimizedLSTMCell(D, H, rngs=nnx.Rngs(0))), [(B, T, D)], state="discard")
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(exported.proto.SerializeToString(), settings)
    graph = onnx.load(tmp_path / "optimized.onnx").graph
    (node,) = (node for node in graph.node if node.op_type == "LSTM")
    assert {*node.input[1:4]} <= {tensor.name for tensor in graph.initializer}


@pytest.mark.parametrize("cell", [nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell, nnx.SimpleCell])
def test_parameters_as_inputs(cell):
    model = nnx.RNN(cell(D, H, rngs=nnx.Rngs(0)))
    exported = jaxport.to_onnx(model, [(B, T, D)], weights="inputs", state="discard")
    assert set(operators(exported)) <= {"LSTM", "GRU", "RNN"}
    assert not [v for v in exported.model.graph.initializers.values() if v.const_value.nbytes > 4 * H * 4]
    exported.verify()


# Loops that stay -----------------------------------------------------------------------------------------------------


def changed_lstm(change):
    """An LSTM step with one thing changed by `change(h, c, gates) -> (new h, new c)`."""

    def step(state, x):
        h, c = change(*state, *jnp.split(plain(x, state[0]), 4, -1))
        return (h, c), h

    return step


S, TANH = jax.nn.sigmoid, jnp.tanh


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def no_lstm(new_c, new_h=lambda h, c, o: S(o) * TANH(c)):
    """A step with another rule for the new states."""

    def change(h, c, i, f, g, o):
        c = new_c(h, c, i, f, g)
        return new_h(h, c, o), c

    return changed_lstm(change)


PEEP = weights(H)
OTHERS = {
    "peepholes": (no_lstm(lambda h, c, i, f, g: S(f + PEEP * c) * c + S(i) * TANH(g)), "element by element"),
    "layer norm": (lstm(lambda x, h: layer_norm(plain(x, h))), "a step computes `reduce_sum`"),
    "projection": (no_lstm(lambda h, c, i, f, g: S(f) * c + S(i) * TANH(g), lambda h, c, o: (S(o) * TANH(c)) @ WH[:, :H]), "none of the cells"),
    "coupled gates": (no_lstm(lambda h, c, i, f, g: S(f) * c + (1 - S(f)) * TANH(g)), "none of the cells"),
    "unlike gates": (no_lstm(lambda h, c, i, f, g: jax.nn.hard_sigmoid(f) * c + S(i) * TANH(g)), "different activations"),
    "another activation": (no_lstm(lambda h, c, i, f, g: S(f) * c + S(i) * jnp.sin(g)), "a step computes `sin`"),
    "two gates on the state": (no_lstm(lambda h, c, i, f, g: S(f) * S(i) * c + S(i) * TANH(g)), "none of the cells"),
    "half of the state": (no_lstm(lambda h, c, i, f, g: 0.5 * S(f) * c + S(i) * TANH(g)), "none of the cells"),
    "the old cell": (no_lstm(lambda h, c, i, f, g: S(f) * c + S(i) * TANH(g), lambda h, c, o: S(o) * TANH(c + h)), "none of the cells"),
    "the state turned": (no_lstm(lambda h, c, i, f, g: S(f) * c[:, ::-1] + S(i) * TANH(g)), ""),
    "all cells stacked": (lstm(plain, out=lambda h, c: c), "returns more than its new state"),
    "a product of the state": (lstm(lambda x, h: plain(x, h * h)), "a product is of other"),
    "a mean over the batch": (lstm(lambda x, h: plain(x, h - h.mean(0))), "a step computes `reduce_sum`"),
    "dims exchanged": (lstm(lambda x, h: plain(x, h.T)), ""),
}  # fmt: skip


@pytest.mark.parametrize(("step", "why"), OTHERS.values(), ids=OTHERS)
def test_other_cells_stay_loops(step, why):
    exported = check(lambda x: scanned(step, x), f32(T, H, D), without=NO_FLOAT64)
    assert operators(exported) == {"Scan": 1}
    (note,) = notes(exported)
    assert why in note, note


def minimal(h, x):
    z = S(x @ GI[:, :H] + h @ GH[:, :H])
    n = TANH(x @ GI[:, H : 2 * H] + (z * h) @ GH[:, H : 2 * H])
    return (1 - z) * n + z * h, None


def residual(h, x):
    return TANH(x @ GI[:, :H] + h @ GH[:, :H]) + h, None


OF_ONE_STATE = {
    "minimal gated unit": (minimal, "one gate updates and resets"),
    "residual": (residual, "none of the cells"),
    "linear": (lambda h, x: (x @ GI[:, :H] + h @ GH[:, :H], None), "none of the cells"),
    "elementwise": (lambda h, x: (TANH(x @ GI[:, :H] + h * GB[:H]), None), "element by element"),
    "masked": (lambda h, x: (jnp.where(x[:, :1] > 0, TANH(x @ GI[:, :H] + h @ GH[:, :H]), h), None), "computes with bool"),
    "blind": (lambda h, x: (TANH(x @ GI[:, :H] + 0 * h), None), "takes no state"),
    "mixed of twice the gate": (gru_after(lambda z, n, h: (1 - z) * n + 2 * z * h), "none of the cells"),
    "mixed of another gate": (gru_after(lambda z, n, h: (1 - z) * n + z * z * h), "none of the cells"),
    "products from before": (lambda h, x: (TANH(x.sum(-1, keepdims=True) + h @ GH[:, :H]), None), "takes an input as it is"),
}  # fmt: skip


@pytest.mark.parametrize(("step", "why"), OF_ONE_STATE.values(), ids=OF_ONE_STATE)
def test_other_cells_of_one_state_stay_loops(step, why):
    exported = check(lambda x: scanned(step, x, jnp.zeros((x.shape[1], H))), f32(T, B, D), without=NO_FLOAT64)
    assert operators(exported) == {"Scan": 1}
    (note,) = notes(exported)
    assert why in note, note


def test_weights_of_each_step():
    fn = lambda x, w: lax.scan(lambda h, xs: (TANH(xs[0] @ xs[1] + h @ GH[:, :H]), None), jnp.zeros((2, H)), (x, w))[0]
    exported = check(fn, f32(T, 2, D), f32(T, D, H), without=NO_FLOAT64)
    assert operators(exported) == {"Scan": 1}


def test_loops_that_may_take_no_step():
    exported = check(lambda x: scanned(lstm(plain), x[1:]), f32(T, 2, D), without=NO_FLOAT64)
    assert operators(exported) == {"Loop": 1}
    assert notes(exported) == ["the loop may have no step"]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_other_dtypes_stay_loops(dtype):
    wi, wh = WI.astype(dtype), WH.astype(dtype)
    zeros = jnp.zeros((2, H), dtype)
    fn = lambda x: lax.scan(lstm(lambda x, h: x @ wi + h @ wh), (zeros, zeros), x)
    exported = jaxport.to_onnx(fn, [jax.ShapeDtypeStruct((5, 2, D), dtype)])
    assert operators(exported) == {"Scan": 1}


def test_gradients_keep_their_loops():
    fn = lambda x, w: (scanned(lstm(lambda x, h: x @ w + h @ WH), x)[1] ** 2).sum()
    exported = check(jax.grad(fn, argnums=(0, 1)), f32(T, 2, D), f32(D, 4 * H), without=NO_FLOAT64)
    assert set(operators(exported)) == {"Scan"}


def test_nonfinite_values_as_in_jax():
    values = [np.full((3, 2, D), np.nan, np.float32)]
    exported = check(
        lambda x: scanned(lstm(plain), x), f32(3, 2, D), values=values, nonfinite="exact", without=NO_FLOAT64
    )
    assert operators(exported) == {"Scan": 1}


def test_cells_that_are_functions_keep_their_boundary():
    model = nnx.RNN(nnx.LSTMCell(D, H, rngs=nnx.Rngs(0)))
    exported = jaxport.to_onnx(model, [(B, T, D)], state="discard", functions="flax.nnx.LSTMCell")
    assert operators(exported)["Scan"] == 1
    assert notes(exported) == ["`flax.nnx.LSTMCell` keeps its boundary"]


def test_rules_of_the_user_are_obeyed():
    rules = {"tanh": lambda op, x: op.Sin(x)}
    exported = jaxport.to_onnx(lambda x: scanned(lstm(plain), x), [(T, B, D)], rules=rules)
    assert "Scan" in operators(exported)
    assert notes(exported) == ["`tanh` has a rule of its own in this export"]


def test_loops_without_products_say_nothing():
    exported = jaxport.to_onnx(lambda x: lax.scan(lambda c, r: (c + r, c), 0.0, x), [(T,)])
    assert notes(exported) == []


def test_layers_inside_of_functions():
    model = nnx.RNN(nnx.GRUCell(D, H, rngs=nnx.Rngs(0)))
    exported = check(model, f32(B, T, D), without=NO_FLOAT64, state="discard", functions="flax.nnx.RNN")
    found = Counter(n.op_type for f in exported.model.functions.values() for n in f)
    assert found["GRU"] == 1


def test_an_input_that_is_repeated():
    fn = lambda x: scanned(
        lambda h, x: (TANH(jnp.repeat(x, 2, 1) @ weights(2 * D, H) + h @ GH[:, :H]), None), x, jnp.zeros((2, H))
    )
    check(fn, f32(T, 2, D), without=NO_FLOAT64)
