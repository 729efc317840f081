"""Models, ONNX functions, a rule and an operator of one's own."""

from __future__ import annotations

from typing import Any, assert_type

import jax
import jax.numpy as jnp
from flax import nnx

import jaxport


class Classifier(nnx.Module):
    """Two layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(8, 16, rngs=rngs)
        self.out = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return logits."""
        logits: jax.Array = self.out(jax.nn.gelu(self.hidden(x)))
        return logits


@jaxport.onnx_function
def halve(x: jax.Array) -> jax.Array:
    """Return half of an array."""
    return x / 2


@jaxport.onnx_function(namespace="stranger", static=["scale"])
def gated(x: jax.Array, *, scale: float = 1.0) -> jax.Array:
    """Return an array times its gate."""
    return x * jax.nn.sigmoid(x * scale)


@jaxport.op("stranger", "Doubled")
def doubled(x: jax.Array, *, factor: float = 2.0) -> jax.Array:
    """What an operator of one's own means."""
    return x * factor


@jaxport.rule("erf_inv", replace=True)
def erf_inv(op: Any, x: Any) -> Any:
    """How a primitive becomes ONNX."""
    return op.Erf(x)


def both(x: jax.Array) -> jax.Array:
    """Return what the two decorated functions make of an array: their types are what they were."""
    assert_type(gated(x, scale=2.0), jax.Array)
    assert_type(halve(x), jax.Array)
    return jnp.add(gated(x), halve(x))
