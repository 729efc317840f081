"""Shards by query: where parameters lie, training and imported models over a mesh, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxport
from tests.compiling import on_devices

PROGRAM = """
import pathlib, tempfile
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import NamedSharding, PartitionSpec as P
from flax import nnx
import jaxport
from jaxport.mox import lora, prune, quantize
from tests.mox.test_modules import NnxStack

assert jax.device_count() == 8
mesh = jax.make_mesh((2, 4), ("data", "model"))


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x):
        return x + self.down(jax.nn.relu(self.up(self.norm(x))))


model = nnx.Sequential(Layer(nnx.Rngs(0)), Layer(nnx.Rngs(1)))
x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 8)), jnp.float32)
mox = jaxport.make_mox(model)(x)
specs = {"//Linear[@out_features=16]": P(None, "model"), "//Linear[@out_features=8]": P("model"),
         "//Layer": {"output": P("data")}, "//LayerNorm": {"scale": P(), "output": P("data")}}
split = mox.shard(mesh, specs)
shapes = lambda mox, path: mox.params[path].addressable_shards[0].data.shape
assert shapes(split, "layers.0.up.kernel") == (8, 4)
assert shapes(split, "layers.0.up.bias") == (4,)
assert shapes(split, "layers.1.down.kernel") == (4, 8)
assert shapes(split, "layers.1.down.bias") == (8,)
assert all(len(value.sharding.device_set) == 8 for value in split.params.values())
np.testing.assert_allclose(split(x), mox(x), rtol=1e-5, atol=1e-6)
result = jax.jit(split)(x)
assert not result.sharding.is_fully_replicated
np.testing.assert_allclose(result, mox(x), rtol=1e-5, atol=1e-6)

# A model that is sharded keeps its shards, and so do the parameters that no query names.
again = jaxport.make_mox(split)(x)
assert shapes(again, "layers.0.up.kernel") == (8, 4)
assert shapes(split.shard(mesh, {"layers.1.down": P()}), "layers.0.up.kernel") == (8, 4)
assert shapes(split.sub("//Linear", lora(rank=2)), "layers.0.up.kernel") == (8, 4)


def trained(mox):
    adapted = mox.sub("//Linear", lora(rank=2, seed=3))
    optimizer = optax.sgd(0.05)
    names = [path for path in adapted.params if "lora" in path]
    params = {path: adapted.params[path] for path in names}
    frozen = {path: value for path, value in adapted.params.items() if path not in params}
    state = optimizer.init(params)
    loss = lambda params: jnp.square(adapted.apply({**frozen, **params}, x) - 1).mean()

    @jax.jit
    def step(params, state):
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    for _ in range(5):
        params, state, value = step(params, state)
    return params, float(value)


one, loss = trained(mox)
several, other = trained(split)
assert abs(loss - other) < 1e-4, (loss, other)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), one, several)

file = pathlib.Path(tempfile.mkdtemp()) / "model.onnx"
jaxport.to_onnx(model, [x]).save(file)
imported = jaxport.make_mox(jaxport.from_onnx(file))(x)
products = imported.select("//MatMul | //Gemm")
parts = imported.shard(mesh, {"//MatMul | //Gemm": P(None, "model")})
assert sum(not value.sharding.is_fully_replicated for value in parts.params.values()) >= 4
np.testing.assert_allclose(jax.jit(parts)(x), model(x), rtol=1e-5, atol=1e-6)

# The weights of a file are read in parts, each straight to the device where it lives.
from jaxport.importer.tensors.weights import Weights

reads = {}


class Read(np.ndarray):
    def __getitem__(self, index):
        part = super().__getitem__(index)
        reads.setdefault(self.shape, []).append(part.size)
        return np.asarray(part)


whole = Weights.host_array
Weights.host_array = lambda self, name: whole(self, name).view(Read)
columns = lambda name, spec: NamedSharding(mesh, P(None, "model")) if len(spec.shape) == 2 else None
in_parts = jaxport.from_onnx(file, shardings=columns)
assert not reads
held = jaxport.make_mox(in_parts)(x)
assert set(reads) >= {(8, 16), (16, 8)}
assert all(size <= 128 / 4 for sizes in reads.values() for size in sizes), reads
assert shapes(held, "layers.0.up.kernel") == (8, 4)
np.testing.assert_allclose(jax.jit(held)(x), model(x), rtol=1e-5, atol=1e-6)
kept = held.shard(mesh, {"//MatMul": {"output": P("data")}}).sub("//MatMul", lora(2))
assert shapes(kept, "layers.0.up.kernel") == (8, 4)
np.testing.assert_allclose(jax.jit(kept)(x), model(x), rtol=1e-5, atol=1e-6)
Weights.host_array = whole

# Edits that look at values keep the shards, and edited models are split.
for edit in (quantize(), prune(0.5)):
    one, other = split.sub("//Linear", edit), mox.sub("//Linear", edit).shard(mesh, specs)
    for sharded in (one, other):
        np.testing.assert_allclose(jax.jit(sharded)(x), mox.sub("//Linear", edit)(x), rtol=1e-4, atol=1e-5)
        part = "layers.0.up.kernel." + ("quantized" if len(sharded.params) < len(mox.params) else "mask")
        assert sharded.state[part].addressable_shards[0].data.shape == (8, 4), part

y = jnp.asarray(np.random.default_rng(1).normal(size=(2, 4)), jnp.float32)
stack = jaxport.make_mox(NnxStack(nnx.Rngs(0)))(y)
layers = stack.shard(mesh, {"//Linear": {"kernel": P(None, "model"), "bias": P("model"), "output": P("data")}})
assert shapes(layers, "layers.kernel") == (3, 4, 1)
np.testing.assert_allclose(jax.jit(layers)(y), stack(y), rtol=1e-5, atol=1e-6)
print("as on one device")
"""


def test_training_and_imported_models_over_a_mesh():
    environment = {**on_devices(8), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "as on one device", done.stderr


X = jnp.ones((2, 4))


@pytest.mark.parametrize(
    ("shardings", "message"),
    [
        ({"weight": P()}, "`weight` is not a parameter of the model"),
        ({"bias": P(None, "model")}, "`bias` cannot be split in this way"),
    ],
)
def test_shardings_that_do_not_fit_a_file_are_refused(shardings, message):
    model = jaxport.to_onnx(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), [X]).model
    mesh = jax.make_mesh((1,), ("model",))
    with pytest.raises(jaxport.InvalidArgument, match=message):
        jaxport.from_onnx(model, shardings={name: NamedSharding(mesh, spec) for name, spec in shardings.items()})


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"//Linear": P(None, "rows")}, "the mesh has no axis `rows`"),
        ({"//Linear": P(None, None, "model")}, "it has 2 axes"),
        ({"//Linear": {"weight": P()}}, "it holds no `weight`, but 'kernel', 'bias'"),
        ({"//Linear": "model"}, "is not a sharding specification"),
        ({"//Linear": P(), "layers.0": P("model")}, "it is to be split as"),
        ({"//tanh": P("model")}, "multiplies no parameter"),
        ({"//Linear": {"output": P("rows")}}, "the mesh has no axis `rows`"),
        ({"//Linear": {"output": P(None, None, "model")}}, "it has 2 axes"),
    ],
)
def test_what_does_not_fit_is_refused(specs, message):
    mox = jaxport.make_mox(nnx.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), jnp.tanh))(X)
    with pytest.raises(jaxport.InvalidArgument, match=message):
        mox.shard(jax.make_mesh((1,), ("model",)), specs)


def test_a_query_that_hits_nothing_is_refused():
    mox = jaxport.make_mox(jnp.tanh)(X)
    with pytest.raises(jaxport.QueryError, match="matches 0"):
        mox.shard(jax.make_mesh((1,), ("model",)), {"//sin": P("model")})
