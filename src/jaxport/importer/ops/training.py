"""Steps of optimizers, and gradients (the domain `ai.onnx.preview.training`)."""

from __future__ import annotations

from collections.abc import Callable

from jaxport.importer.host import RuntimeValue, Tensor
from jaxport.importer.namespaces import cast, grad, jnp
from jaxport.importer.registry import DifferentiatedGraph, op

DOMAIN = "ai.onnx.preview.training"


def _each(
    inputs: tuple[Tensor, ...], kinds: int, update: Callable[..., tuple[RuntimeValue, ...]]
) -> tuple[Tensor, ...]:
    """Apply `update` to every tensor; inputs and outputs are grouped by kind (parameters, gradients …)."""
    count = len(inputs) // kinds
    groups = [inputs[k * count : (k + 1) * count] for k in range(kinds)]
    updated = [update(*tensors) for tensors in zip(*groups, strict=True)]
    results = [tuple(cast(result, x.dtype) for result in row) for x, row in zip(groups[0], updated, strict=True)]
    return tuple(result for kind in zip(*results, strict=True) for result in kind)


@op(DOMAIN, "Adagrad", since=1)
def adagrad(R, T, *inputs, decay_factor=0.0, epsilon=1e-6, norm_coefficient=0.0):
    rate = R / (1 + T * decay_factor)

    def update(x: Tensor, gradient: Tensor, squares: Tensor) -> RuntimeValue:
        gradient = norm_coefficient * x + gradient
        squares = squares + gradient * gradient
        return x - rate * gradient / (jnp.sqrt(squares) + epsilon), squares

    return _each(inputs, 3, update)


@op(DOMAIN, "Adam", since=1)
def adam(R, T, *inputs, alpha=0.9, beta=0.999, epsilon=1e-6, norm_coefficient=0.0, norm_coefficient_post=0.0):
    # The first step (T = 0) has no moments to correct.
    steps = cast(jnp.maximum(T, 1), R.dtype)
    rate = jnp.where(T > 0, R * jnp.sqrt(1 - beta**steps) / (1 - alpha**steps), R)

    def update(x: Tensor, gradient: Tensor, mean: Tensor, squares: Tensor) -> RuntimeValue:
        gradient = norm_coefficient * x + gradient
        mean = alpha * mean + (1 - alpha) * gradient
        squares = beta * squares + (1 - beta) * (gradient * gradient)
        x = x - rate * (mean / (jnp.sqrt(squares) + epsilon))
        return (1 - norm_coefficient_post) * x, mean, squares

    return _each(inputs, 4, update)


@op(DOMAIN, "Momentum", since=1)
def momentum(R, T, *inputs, alpha, beta, mode, norm_coefficient):
    share = jnp.where(T > 0, beta, 1.0)

    def update(x: Tensor, gradient: Tensor, velocity: Tensor) -> RuntimeValue:
        gradient = norm_coefficient * x + gradient
        velocity = alpha * velocity + share * gradient
        step = gradient + alpha * velocity if mode == "nesterov" else velocity
        return x - R * step, velocity

    return _each(inputs, 3, update)


@op(DOMAIN, "Gradient", since=1)
def gradient(*Inputs, xs, y, zs=None, graph: DifferentiatedGraph):
    return tuple(grad(lambda *inputs: jnp.sum(graph(*inputs)[0]), tuple(range(len(xs))))(*Inputs))
