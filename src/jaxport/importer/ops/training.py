"""Training: losses of classification, and steps of optimizers and gradients (`ai.onnx.preview.training`)."""

from __future__ import annotations

from collections.abc import Callable

from jaxport.importer.ops.arithmetic import divide
from jaxport.importer.resolving.registry import DifferentiatedGraph, op
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.namespaces import cast, grad, jnp, nn

DOMAIN = "ai.onnx.preview.training"


def _each(inputs: tuple[Tensor, ...], kinds: int, update: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Apply `update` to every tensor; inputs and outputs are grouped by kind (parameters, gradients …)."""
    count = len(inputs) // kinds
    groups = [inputs[k * count : (k + 1) * count] for k in range(kinds)]
    updated = [update(*tensors) for tensors in zip(*groups, strict=True)]
    results = [tuple(cast(result, x.dtype) for result in row) for x, row in zip(groups[0], updated, strict=True)]
    return tuple(result for kind in zip(*results, strict=True) for result in kind)


@op(DOMAIN, "Adagrad", since=1)
def adagrad(R, T, *inputs, decay_factor=0.0, epsilon=1e-6, norm_coefficient=0.0):
    rate = R / (1 + T * decay_factor)

    def update(x: Tensor, gradient: Tensor, squares: Tensor) -> tuple[Tensor, ...]:
        gradient = norm_coefficient * x + gradient
        squares = squares + gradient * gradient
        return x - rate * gradient / (jnp.sqrt(squares) + epsilon), squares

    return _each(inputs, 3, update)


@op(DOMAIN, "Adam", since=1)
def adam(R, T, *inputs, alpha=0.9, beta=0.999, epsilon=1e-6, norm_coefficient=0.0, norm_coefficient_post=0.0):
    # The first step (T = 0) has no moments to correct.
    steps = cast(jnp.maximum(T, 1), R.dtype)
    rate = jnp.where(T > 0, R * jnp.sqrt(1 - beta**steps) / (1 - alpha**steps), R)

    def update(x: Tensor, gradient: Tensor, mean: Tensor, squares: Tensor) -> tuple[Tensor, ...]:
        gradient = norm_coefficient * x + gradient
        mean = alpha * mean + (1 - alpha) * gradient
        squares = beta * squares + (1 - beta) * (gradient * gradient)
        x = x - rate * (mean / (jnp.sqrt(squares) + epsilon))
        return (1 - norm_coefficient_post) * x, mean, squares

    return _each(inputs, 4, update)


@op(DOMAIN, "Momentum", since=1)
def momentum(R, T, *inputs, alpha, beta, mode, norm_coefficient):
    share = jnp.where(T > 0, beta, 1.0)

    def update(x: Tensor, gradient: Tensor, velocity: Tensor) -> tuple[Tensor, ...]:
        gradient = norm_coefficient * x + gradient
        velocity = alpha * velocity + share * gradient
        step = gradient + alpha * velocity if mode == "nesterov" else velocity
        return x - R * step, velocity

    return _each(inputs, 3, update)


@op(DOMAIN, "Gradient", since=1)
def gradient(*Inputs, xs, y, zs=None, graph: DifferentiatedGraph):
    return tuple(grad(lambda *inputs: jnp.sum(graph(*inputs)[0]), tuple(range(len(xs))))(*Inputs))


@op("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(input, target, weight=None, *, ignore_index=None, reduction="mean"):
    kept = None if ignore_index is None else target != ignore_index
    index = target if kept is None else jnp.where(kept, target, 0)
    loss = -jnp.squeeze(jnp.take_along_axis(input, jnp.expand_dims(index, 1), axis=1), 1)
    weights = None if weight is None else jnp.take(weight, index)
    if kept is not None:
        loss = jnp.where(kept, loss, 0)
        weights = cast(kept, input.dtype) if weights is None else jnp.where(kept, weights, 0)
    loss = loss if weights is None else loss * weights
    if reduction == "mean" and weights is not None:
        return divide(jnp.sum(loss), jnp.sum(weights))
    return {"none": lambda x: x, "sum": jnp.sum, "mean": jnp.mean}[reduction](loss)


@op("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(scores, labels, weights=None, *, ignore_index=None, reduction="mean"):
    log_prob = nn.log_softmax(scores, axis=1)
    loss = negative_log_likelihood(log_prob, labels, weights, ignore_index=ignore_index, reduction=reduction)
    return loss, log_prob
