"""No pass repeats or divides a parameter: what is trained after `from_onnx` has the elements that the model trains."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxport


class Scaled(nnx.Module):
    """A normalization over channels and positions together, with a scale and a shift for each channel."""

    def __init__(self):
        self.scale = nnx.Param(jnp.linspace(0.5, 1.5, 8)[:, None, None])
        self.shift = nnx.Param(jnp.linspace(-1, 1, 8)[:, None, None])

    def __call__(self, x):
        flat = x.reshape(x.shape[0], 1, -1)
        flat = (flat - flat.mean(-1, keepdims=True)) * jax.lax.rsqrt(flat.var(-1, keepdims=True) + 1e-5)
        return flat.reshape(x.shape) * self.scale[...] + self.shift[...]


class Joined(nnx.Module):
    """Projections whose kernels are one parameter, as PyTorch's attention has them."""

    def __init__(self):
        self.kernel = nnx.Param(jnp.arange(12 * 4, dtype=jnp.float32).reshape(12, 4) / 48)

    def __call__(self, q, x):
        query, key, value = jnp.split(self.kernel[...], 3)
        return jax.nn.softmax((q @ query.T) @ (x @ key.T).T) @ (x @ value.T)


class Tied(nnx.Module):
    """A parameter of which two forms are used."""

    def __init__(self):
        self.bias = nnx.Param(jnp.linspace(-1, 1, 6))

    def __call__(self, x):
        return (x + self.bias[...]) @ (x * self.bias[...].reshape(2, 3).T.reshape(-1)).T


X = jax.ShapeDtypeStruct((2, 8, 4, 4), jnp.float32)
ROWS = jax.ShapeDtypeStruct((5, 4), jnp.float32)
MODELS = {
    "repeated along positions": (Scaled, [X]),
    "divided": (Joined, [ROWS, ROWS]),
    "in two forms": (Tied, [jax.ShapeDtypeStruct((5, 6), jnp.float32)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_as_large_as_before(name: str) -> None:
    make, specs = MODELS[name]
    model = make()
    exported = jaxport.to_onnx(model, specs)
    exported.verify()
    found = {path: spec.size for path, spec in jaxport.from_onnx(exported.model).param_specs.items()}
    assert found == {".".join(map(str, path)): v[...].size for path, v in nnx.to_flat_state(nnx.state(model))}
