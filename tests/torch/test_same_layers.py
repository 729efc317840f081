"""Layers that PyTorch has too: the exported model, with the same weights, against PyTorch's own values.

JAX is what every other test compares with; this is the oracle that is not JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import jaxport

pytestmark = pytest.mark.torch

RNGS = nnx.Rngs(0)


class Encoder(nnx.Module):
    def __init__(self):
        self.attention = nnx.MultiHeadAttention(4, 16, decode=False, rngs=RNGS)
        self.norm = nnx.LayerNorm(16, epsilon=1e-5, rngs=RNGS)

    def __call__(self, x):
        return self.norm(x + self.attention(x))


def torch_linear(torch: Any, x: Any, w: dict[str, Any]) -> Any:
    return torch.nn.functional.linear(x, w["kernel"].T, w["bias"])


def torch_conv(torch: Any, x: Any, w: dict[str, Any]) -> Any:
    y = torch.nn.functional.conv2d(
        x.permute(0, 3, 1, 2), w["kernel"].permute(3, 2, 0, 1), w["bias"], stride=2, padding=1
    )
    return y.permute(0, 2, 3, 1)


def torch_encoder(torch: Any, x: Any, w: dict[str, Any]) -> Any:
    heads = {
        name: torch.einsum("btc,chd->bhtd", x, w[f"attention.{name}.kernel"]) + w[f"attention.{name}.bias"][:, None]
        for name in ("query", "key", "value")
    }
    mixed = torch.nn.functional.scaled_dot_product_attention(heads["query"], heads["key"], heads["value"])
    out = torch.einsum("bhtd,hdc->btc", mixed, w["attention.out.kernel"]) + w["attention.out.bias"]
    return torch.nn.functional.layer_norm(x + out, (16,), w["norm.scale"], w["norm.bias"])


def function(name: str, **options: Any) -> Callable[..., Any]:
    return lambda torch, x, w: getattr(torch.nn.functional, name)(x, **options)


CASES = {
    "linear": (nnx.Linear(8, 3, rngs=RNGS), ("B", 8), torch_linear),
    "conv": (nnx.Conv(4, 8, (3, 3), strides=2, padding=1, rngs=RNGS), ("B", 9, 9, 4), torch_conv),
    "encoder": (Encoder(), ("B", "T", 16), torch_encoder),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), ("B", 8), function("gelu")),
    "gelu_tanh": (jax.nn.gelu, ("B", 8), function("gelu", approximate="tanh")),
    "silu": (jax.nn.silu, ("B", 8), function("silu")),
    "softmax": (jax.nn.softmax, ("B", 8), function("softmax", dim=-1)),
    "log_softmax": (jax.nn.log_softmax, ("B", 8), function("log_softmax", dim=-1)),
    "mish": (jax.nn.mish, ("B", 8), function("mish")),
    "hard_swish": (jax.nn.hard_swish, ("B", 8), function("hardswish")),
}


@pytest.mark.parametrize("name", CASES)
def test_a_layer_gives_the_values_of_pytorch(name: str):
    import torch

    fn, shape, in_torch = CASES[name]
    x = np.random.default_rng(0).normal(size=[{"B": 3, "T": 5}.get(str(dim), dim) for dim in shape]).astype(np.float32)
    weights = {key: np.array(leaf) for key, leaf in weights_of(fn).items()}
    expected = in_torch(torch, torch.from_numpy(x), {key: torch.from_numpy(leaf) for key, leaf in weights.items()})
    actual = jaxport.to_onnx(fn, [shape])(x)
    np.testing.assert_allclose(actual, expected.numpy(), rtol=2e-5, atol=2e-6)


def weights_of(fn: Any) -> dict[str, Any]:
    if not isinstance(fn, nnx.Module):
        return {}
    return {".".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(nnx.state(fn, nnx.Param))}
