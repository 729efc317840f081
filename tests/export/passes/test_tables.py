"""Tables that depend on constants only are stored; what runtimes and recognisers compute with stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import onnx_ir as ir
import pytest
from flax import nnx
from jax import lax

from jaxport.testing import check, f32, i32


def noised(x, t, noise):
    product = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, 1000))
    return jnp.sqrt(product)[t][:, None] * x + jnp.sqrt(1 - product)[t][:, None] * noise


def cosine(x, t):
    steps = (jnp.arange(501) / 500 + 0.008) / 1.008
    kept = jnp.cos(steps * jnp.pi / 2) ** 2
    return x * jnp.clip(1 - kept[1:] / kept[:-1], 0, 0.999)[t][:, None]


STORED: dict[str, tuple[Callable[..., Any], list[Any], int]] = {
    "a linear schedule": (noised, [f32(4, 8), i32(4), f32(4, 8)], 8),
    "a cosine schedule": (cosine, [f32(4, 8), i32(4)], 4),
    "a sum": (lambda x: x + jnp.cumsum(jnp.arange(512) / 7), [f32(2, 512)], 1),
    "a maximum from the end": (lambda x: x * lax.cummax(jnp.sin(jnp.arange(400) / 9), reverse=True), [f32(400)], 1),
}


@pytest.mark.parametrize("name", STORED)
def test_tables_are_stored(name: str) -> None:
    function, specs, nodes = STORED[name]
    # The last steps of the cosine schedule divide squares of cosines near pi / 2, of which few digits are right.
    exported = check(function, *specs, rtol=2e-4 if name == "a cosine schedule" else None)
    assert len(exported.model.graph) <= nodes, [node.op_type for node in exported.model.graph]


def test_weights_are_not_computed_with() -> None:
    class Scaled(nnx.Module):
        def __init__(self) -> None:
            self.rates = nnx.Param(jnp.linspace(0.001, 0.01, 1000))

        def __call__(self, x: jax.Array) -> jax.Array:
            return x * lax.cummax(1 - self.rates[...])

    exported = check(Scaled(), f32(1000))
    assert exported.model.graph.initializers["rates"].shape == ir.Shape([1000])


def test_long_tables_stay_computed() -> None:
    exported = check(lambda x: x + jnp.exp(-jnp.arange(9000) / 9000) * 2, f32(9000))
    assert any(node.op_type == "Exp" for node in exported.model.graph)
