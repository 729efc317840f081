"""Networks, optimizers, graphs, search and images of DeepMind's packages: haiku, optax, jraph, mctx, dm-pix."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.clients.programs import array, f32, i32, package, parametrized, verified

hk, optax, jraph, mctx, pix = map(package, ("haiku", "optax", "jraph", "mctx", "dm_pix"))
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]

KEY = jax.random.PRNGKey(0)


def haiku(network, *specs):
    def make():
        transformed = hk.without_apply_rng(hk.transform(network))
        params = transformed.init(KEY, *(np.zeros(spec.shape, spec.dtype) for spec in specs))
        return (lambda *inputs: transformed.apply(params, *inputs)), specs, None

    return make


def unrolled(core, unroll):
    def network(x):
        cell = core(8)
        return unroll(cell, x, cell.initial_state(2))[0]

    return network


def haiku_in_training():
    transformed = hk.transform_with_state(lambda x: hk.BatchNorm(True, True, 0.9)(x, True))
    params, state = transformed.init(KEY, array(4, 3))
    return lambda x: transformed.apply(params, state, None, x), [f32(4, 3)], None


def training(optimizer):
    def make():
        transformed = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([8, 2])(x)))
        params = transformed.init(KEY, array(3, 4))

        def loss(params, x, y):
            return optax.softmax_cross_entropy_with_integer_labels(transformed.apply(params, x), y).mean()

        def step(params, state, x, y):
            value, gradients = jax.value_and_grad(loss)(params, x, y)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

        return step, [params, optimizer.init(params), f32(3, 4), i32(3)], 1e-3

    return make


def search(policy):
    def make():
        weights = array(8, 8)

        def recurrent(params, key, action, state):
            output = mctx.RecurrentFnOutput(
                reward=state.mean(-1),
                discount=jnp.full(state.shape[0], 0.9),
                prior_logits=state @ weights[:, :4],
                value=state.sum(-1),
            )
            return output, jnp.tanh(state @ weights + action[:, None])

        def plan(key, state):
            root = mctx.RootFnOutput(prior_logits=state @ weights[:, :4], value=state.sum(-1), embedding=state)
            output = policy(params=(), rng_key=key, root=root, recurrent_fn=recurrent, num_simulations=4)
            return output.action, output.action_weights

        return plan, [KEY, f32(2, 8)], 1e-3

    return make


def message_passing():
    graph = jraph.GraphsTuple(
        nodes=None,
        edges=None,
        senders=np.array([0, 1, 2, 3, 4, 0]),
        receivers=np.array([1, 2, 3, 4, 0, 2]),
        n_node=np.array([5]),
        n_edge=np.array([6]),
        globals=array(1, 2),
    )
    joined = lambda *parts: jnp.tanh(jnp.concatenate(parts, -1))
    network = jraph.GraphNetwork(joined, joined, joined)
    return lambda nodes, edges: network(graph._replace(nodes=nodes, edges=edges)), [f32(5, 4), f32(6, 3)], None


SCHEDULED = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100))
)
PROGRAMS = {
    "haiku.nets.MLP": haiku(lambda x: hk.nets.MLP([16, 4])(x), f32(3, 8)),
    "haiku.Conv2D": haiku(lambda x: hk.Conv2D(8, 3)(x), f32(2, 8, 8, 3)),
    "haiku.LSTM": haiku(unrolled(lambda size: hk.LSTM(size), lambda *args: hk.static_unroll(*args)), f32(4, 2, 3)),
    "haiku.GRU": haiku(unrolled(lambda size: hk.GRU(size), lambda *args: hk.dynamic_unroll(*args)), f32(4, 2, 3)),
    "haiku.MultiHeadAttention": haiku(
        lambda x: hk.MultiHeadAttention(2, 4, w_init=hk.initializers.VarianceScaling())(x, x, x), f32(2, 5, 8)
    ),
    "haiku.BatchNorm": haiku_in_training,
    "optax.sgd": training(optax.sgd(0.1, 0.9, nesterov=True)),
    "optax.adamw": training(optax.adamw(1e-3)),
    "optax.adafactor": training(optax.adafactor(1e-3)),
    "optax.lion": training(optax.lion(1e-3)),
    "optax.contrib.muon": training(optax.contrib.muon(1e-3)),
    "optax.MultiSteps": training(optax.MultiSteps(optax.adam(1e-3), 2)),
    "optax, clipped and scheduled": training(SCHEDULED),
    "jraph.GraphNetwork": message_passing,
    "mctx.muzero_policy": search(mctx.muzero_policy),
    "mctx.gumbel_muzero_policy": search(mctx.gumbel_muzero_policy),
    "pix.gaussian_blur": lambda: (lambda x: pix.gaussian_blur(x, 1.0, 5), [f32(8, 8, 3)], None),
    "pix.ssim": lambda: (pix.ssim, [f32(16, 16, 3), f32(16, 16, 3)], 1e-3),
    "pix.rotate": lambda: (lambda x: pix.rotate(x, 0.3), [f32(8, 8, 3)], None),
}


@parametrized(PROGRAMS)
def test_learning(make):
    verified(*make())
