"""Derivatives and training steps."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training import train_state
from jax import lax

from jaxport.testing import f32, i32
from tests.programs.checker import built, program
from tests.programs.models import KEY, of_equinox, of_nnx

PARAMETERS = {
    "first": {"kernel": jnp.asarray(np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)), "bias": jnp.ones(5) / 4},
    "second": {"kernel": jnp.asarray(np.cos(np.arange(15, dtype=np.float32)).reshape(5, 3)), "bias": jnp.zeros(3)},
}
SPECS = jax.tree.map(lambda leaf: f32(*leaf.shape), PARAMETERS)


def predict(parameters, x):
    hidden = jnp.tanh(x @ parameters["first"]["kernel"] + parameters["first"]["bias"])
    return hidden @ parameters["second"]["kernel"] + parameters["second"]["bias"]


def loss(parameters, x, labels):
    return optax.softmax_cross_entropy_with_integer_labels(predict(parameters, x), labels).mean()


def specs_of(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.asarray(leaf).dtype), tree)


@program(SPECS, f32("B", 4), i32("B"))
def test_gradient_of_a_loss(parameters, x, labels):
    return jax.value_and_grad(loss)(parameters, x, labels)


@program(SPECS, f32("B", 4), i32("B"))
def test_gradient_of_each_example(parameters, x, labels):
    single = lambda parameters, x, label: loss(parameters, x[None], label[None])
    gradients = jax.vmap(jax.grad(single), in_axes=(None, 0, 0))(parameters, x, labels)
    norms = jnp.sqrt(sum(jnp.square(leaf.reshape(leaf.shape[0], -1)).sum(1) for leaf in jax.tree.leaves(gradients)))
    scale = jnp.minimum(1, 0.5 / norms)
    return jax.tree.map(lambda leaf: jnp.tensordot(scale, leaf, axes=1), gradients), norms


@program(SPECS, f32("B", 4))
def test_tangents_and_products_with_the_hessian(parameters, x):
    value = lambda parameters: (predict(parameters, x) ** 2).mean()
    return jax.jvp(value, (parameters,), (parameters,)), jax.jvp(jax.grad(value), (parameters,), (parameters,))[1]


@program(f32(3))
def test_hessian_and_jacobians(x):
    rosenbrock = lambda x: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum() / 100
    field = lambda x: jnp.stack([jnp.sin(x[0] * x[1]), x[2] ** 2, x.prod()])
    return jax.hessian(rosenbrock)(x), jax.jacrev(field)(x), jax.jacfwd(field)(x)


@jax.custom_vjp
def clipped_gradient(x):
    return x


clipped_gradient.defvjp(lambda x: (x, None), lambda _, gradient: (jnp.clip(gradient, -0.1, 0.1),))


@jax.custom_jvp
def softplus(x):
    return jnp.logaddexp(x, 0.0)


@softplus.defjvp
def _softplus_jvp(primals, tangents):
    return softplus(*primals), jax.nn.sigmoid(primals[0]) * tangents[0]


@program(f32("B", 3))
def test_derivatives_of_one_s_own(x):
    value = lambda x: (softplus(clipped_gradient(x) * 3) ** 2).sum()
    return value(x), jax.grad(value)(x), jax.grad(lambda x: jax.grad(lambda y: softplus(y).sum())(x).sum())(x)


@program(SPECS, f32("B", "T", 4))
def test_checkpointed_steps_of_a_scan(parameters, x):
    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def step(total, v):
        return jnp.tanh(total + predict(parameters, v)), total.sum()

    def value(parameters):
        total, sums = lax.scan(lambda total, v: step(total, v), jnp.zeros((x.shape[0], 3)), x.swapaxes(0, 1))
        return total.sum() + sums.mean()

    return jax.grad(value)(parameters)


def step_of(optimizer):
    def step(parameters, state, x, labels):
        value, gradients = jax.value_and_grad(loss)(parameters, x, labels)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    return step


ADAM = optax.adam(1e-2)


@built(SPECS, specs_of(ADAM.init(PARAMETERS)), f32("B", 4), i32("B"), finite=False)  # sampled moments may be negative
def test_step_of_adam():
    return step_of(ADAM)


SCHEDULED = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 20), weight_decay=1e-3)
)


@built(SPECS, f32("B", 4), i32("B"))
def test_two_steps_of_adamw_with_a_schedule_and_clipping():
    step = step_of(SCHEDULED)

    def train(parameters, x, labels):
        state = SCHEDULED.init(parameters)
        for _ in range(2):
            parameters, state, value = step(parameters, state, x, labels)
        return parameters, value

    return train


ACCUMULATED = optax.MultiSteps(optax.sgd(0.1, momentum=0.9), every_k_schedule=2)


@built(SPECS, f32(4, "B", 4), i32(4, "B"))
def test_accumulated_steps_by_scan():
    step = step_of(ACCUMULATED)

    def train(parameters, x, labels):
        def body(carry, batch):
            parameters, state, value = step(*carry, *batch)
            return (parameters, state), value

        (parameters, _), values = lax.scan(body, (parameters, ACCUMULATED.init(parameters)), (x, labels))
        return parameters, values

    return train


class Network(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.second = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.norm(self.first(x))))


@built(f32("B", 4), i32("B"), state="outputs")
def test_step_of_an_nnx_optimizer():
    model = of_nnx(Network)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, labels):
        score = lambda model: optax.softmax_cross_entropy_with_integer_labels(model(x), labels).mean()
        value, gradients = nnx.value_and_grad(score)(model)
        optimizer.update(model, gradients)
        return value

    return lambda x, labels: step(model, optimizer, x, labels)


@built(f32("B", 4), i32("B"))
def test_gradient_of_an_nnx_model_by_its_state():
    definition, parameters, rest = nnx.split(of_nnx(Network), nnx.Param, ...)

    def value(parameters, x, labels):
        model = nnx.merge(definition, parameters, rest, copy=True)
        return optax.softmax_cross_entropy_with_integer_labels(model(x), labels).mean(), nnx.state(model, nnx.BatchStat)

    return lambda x, labels: jax.value_and_grad(value, has_aux=True)(parameters, x, labels)


@built(SPECS, f32("B", 4), i32("B"))
def test_step_of_a_train_state():
    def train(parameters, x, labels):
        state = train_state.TrainState.create(apply_fn=predict, params=parameters, tx=optax.adamw(1e-2))
        for _ in range(2):
            state = state.apply_gradients(grads=jax.grad(loss)(state.params, x, labels))
        return state.params, state.step

    return train


@built(f32("B", 4), f32("B"))
def test_steps_of_an_equinox_model():
    arrays, static = eqx.partition(of_equinox(eqx.nn.MLP, 4, "scalar", 6, 1), eqx.is_inexact_array)

    @eqx.filter_value_and_grad
    def score(model, x, y):
        return ((jax.vmap(model)(x) - y) ** 2).mean()

    def train(x, y):
        def body(arrays, _):
            value, gradients = score(eqx.combine(arrays, static), x, y)
            return eqx.apply_updates(arrays, jax.tree.map(lambda g: -0.1 * g, gradients)), value

        arrays_after, values = lax.scan(body, arrays, None, length=3)
        return values, jax.tree.leaves(arrays_after)

    return train


@program(f32(4), f32("B", 4), f32("B"))
def test_line_search_of_gradient_descent(weights, x, y):
    value = lambda weights: ((x @ weights - y) ** 2).mean()
    start, gradient = jax.value_and_grad(value)(weights)
    enough = lambda rate: value(weights - rate * gradient) <= start - 0.4 * rate * (gradient**2).sum()
    rate = lax.while_loop(lambda rate: ~enough(rate) & (rate > 1e-3), lambda rate: rate / 2, jnp.float32(1))
    return weights - rate * gradient, rate


@program(SPECS, f32("B", 4), KEY)
def test_adversarial_examples(parameters, x, key):
    labels = predict(parameters, x).argmax(-1)
    x = x + 0.1 * jax.random.normal(key, x.shape)

    def step(_, moved):
        moved = moved + 0.1 * jnp.sign(jax.grad(loss, argnums=1)(parameters, moved, labels))
        return jnp.clip(moved, x - 0.2, x + 0.2)

    return lax.fori_loop(0, 3, step, x)


@program(f32("B", 2), f32("N", 2))
def test_forces_of_particles_by_gradients(positions, others):
    energy = lambda p: jnp.log1p(1 / (0.1 + ((p - others) ** 2).sum(-1))).sum()
    return jax.vmap(jax.grad(energy))(positions), jax.vmap(lambda p: jnp.trace(jax.hessian(energy)(p)))(positions)
