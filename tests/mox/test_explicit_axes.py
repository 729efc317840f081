"""Sharded batches on meshes of either kind of axes: eager, compiled, differentiated, edited, trained, saved; two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxport
from jaxport.mox import primitives
from tests.compiling import on_devices

PROGRAM = """
import contextlib, pathlib, sys
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import jaxport
from jaxport.mox import lora, merge_lora, prune, quantize
from tests.mox.test_explicit_axes import Model, SIZE
from flax import nnx

file, kind, context = sys.argv[1], getattr(AxisType, sys.argv[2]), sys.argv[3] == "context"
every = int(sys.argv[4])
mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind,) * 2)
plain = jnp.asarray(np.random.default_rng(0).normal(size=SIZE), jnp.float32)
model = Model(nnx.Rngs(0))
mox = jaxport.make_mox(model)(plain)
close = lambda one, other: jax.tree.map(
    lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5), one, other)
loss = lambda mox: lambda params, x: (mox.apply(params, x) ** 2).mean()
wanted, gradient = model(plain), jax.grad(loss(mox))(mox.params, plain)

def trained(mox, query, x):
    adapted = mox.sub(query, lora(2))
    params = {path: value for path, value in adapted.params.items() if "lora" in path}
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(params, state, x):
        gradient = jax.grad(loss(adapted))(params, x)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for _ in range(2):
        params, state = step(params, state, x)
    return adapted, params

imported = jaxport.make_mox(jaxport.from_onnx(file))(plain)
after = {
    query: one.with_params(merge_lora(*trained(one, query, plain)))(plain)
    for query, one in {"//Linear": mox, "//MatMul": imported}.items()
}
with jax.set_mesh(mesh) if context else contextlib.nullcontext():
    x = jax.device_put(plain, NamedSharding(mesh, P("data")))
    columns = lambda name, spec: NamedSharding(mesh, P(*[None] * (len(spec.shape) - 1), "model"))
    program = jaxport.from_onnx(file, shardings=columns)
    queries = {"//Linear[@out_features=16]": P(None, "model"), "//Linear[@out_features=8]": P("model", None)}
    split = mox.shard(mesh, queries)
    constrained = mox.shard(mesh, {**queries, "//Layer": {"output": P("data")}})
    made_here = jaxport.make_mox(model)(x).shard(mesh, queries)
    read = jaxport.make_mox(program)(plain)
    for sharded in (program, split, constrained, made_here, read)[::every]:
        assert all(value.sharding.mesh == mesh for value in sharded.params.values())
        for run in (sharded, jax.jit(sharded)):
            close(run(x), wanted)
            close(run(plain), wanted)
        result = jax.jit(sharded.apply)(sharded.params, x)
        close(result, wanted)
        assert result.sharding.mesh == mesh and result.sharding.spec[0] == "data"
        found = jax.jit(jax.grad(loss(sharded)))(sharded.params, x)
        close(found, {path: gradient[path] for path in found})
        assert {value.sharding.mesh for value in found.values()} == {mesh}
        if kind == AxisType.Auto or context:  # JAX itself differentiates eagerly on explicit axes in a context only
            found = jax.grad(loss(sharded))(sharded.params, x)
            close(found, {path: gradient[path] for path in found})
    for sharded, query in ((constrained, "//Linear"), (read, "//MatMul"))[::every]:
        again = jaxport.make_mox(sharded)(x)
        assert all(again.params[path] is value for path, value in sharded.params.items())
        close(again(x), wanted)
        adapted, params = trained(sharded, query, x)
        close(sharded.with_params(merge_lora(adapted, params))(x), after[query])
        for edit in (quantize(), prune(0.5)):
            edited, alone = sharded.sub(query, edit), mox.sub("//Linear", edit)
            close(jax.jit(edited)(x), alone(plain))
        (path,) = sharded.capture("layers.1")(x)
        saved = pathlib.Path(file).with_suffix(".json")
        sharded.save(saved)
        close(jaxport.mox.load(saved)(plain), wanted)
print("as on one device")
"""

SIZE = (4, 8)


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.relu(self.up(self.norm(x))))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([Layer(rngs), Layer(rngs)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def start(program: str, *arguments: str, devices: int) -> subprocess.Popen[str]:
    environment = {**on_devices(devices), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("kind", "context", "every"),
    [
        ("Explicit", "context", 4),  # the first and the last of what is sharded
        pytest.param("Explicit", "context", 1, marks=pytest.mark.slow),
        pytest.param("Explicit", "no context", 1, marks=pytest.mark.slow),
        pytest.param("Auto", "context", 1, marks=pytest.mark.slow),
        pytest.param("Auto", "no context", 1, marks=pytest.mark.slow),
    ],
)
def test_sharded_batches(kind: str, context: str, every: int, tmp_path: Path):
    file = tmp_path / "model.onnx"
    jaxport.to_onnx(Model(nnx.Rngs(0)), [jnp.zeros(SIZE)]).save(file)
    output, errors = start(PROGRAM, str(file), kind, context, str(every), devices=4).communicate()
    assert output.strip() == "as on one device", errors


TWO = """
import pathlib, sys
import jax
file, port, rank = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank, initialization_timeout=120)
import jax.numpy as jnp, numpy as np, optax
from jax.experimental.multihost_utils import process_allgather, sync_global_devices
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import jaxport
from jaxport.mox import lora, merge_lora, prune, quantize

assert (jax.device_count(), jax.local_device_count()) == (4, 2)
plain = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
one = jaxport.make_mox(jaxport.from_onnx(file))(plain)
whole = lambda value: np.asarray(process_allgather(value, tiled=True))
close = lambda many, one: jax.tree.map(
    lambda a, b: np.testing.assert_allclose(whole(a), np.asarray(b), rtol=1e-4, atol=1e-5), many, one)
loss = lambda mox, rest={}: lambda params, x: (mox.apply({**rest, **params}, x) ** 2).mean()
# What other processes hold cannot be closed over by `jit`: it is an argument.
run = lambda mox, x: jax.jit(lambda held, x: mox.apply(held, x))({**mox.params, **mox.state}, x)

def trained(mox, x):
    adapted = mox.sub("//MatMul", lora(2))
    params = {path: value for path, value in adapted.params.items() if "lora" in path}
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(params, state, rest, x):
        gradient = jax.grad(loss(adapted, rest))(params, x)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for _ in range(2):
        params, state = step(params, state, {**adapted.params, **adapted.state}, x)
    return adapted, params

for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind,) * 2)
    x = jax.make_array_from_callback(plain.shape, NamedSharding(mesh, P("data")), lambda index: plain[index])
    parts = lambda name, spec: NamedSharding(mesh, P(("data", "model")) if len(spec.shape) == 2 else P())
    with jax.set_mesh(mesh):
        program = jaxport.from_onnx(file, shardings=parts)
        many = jaxport.make_mox(program)(plain)
        assert not many.params["layers.0.up.kernel"].is_fully_addressable
        close(program(x), one(plain))
        close(jax.jit(program.apply)(program.params, x), one(plain))
        close(run(many, x), one(plain))
        close(run(one.shard(mesh, {"//MatMul": P(None, "model")}), x), one(plain))
        close(jax.jit(jax.grad(loss(many)))(many.params, x), jax.grad(loss(one))(one.params, plain))
        adapted, params = trained(many, x)
        expected = trained(one, plain)
        close(params, expected[1])
        close(merge_lora(adapted, params), merge_lora(*expected[:1], expected[1]))
        for edit in (quantize(), quantize(dtype="int4", group=4), prune(0.5)):
            close(run(many.sub("//MatMul", edit), x), one.sub("//MatMul", edit)(plain))
        name = f"{kind.name}-{rank}"
        for saved, read in (
            (file.with_name(f"{name}.json"), jaxport.mox.load), (file.with_name(f"{name}.onnx"), jaxport.from_onnx)
        ):
            (many if read is jaxport.mox.load else program).save(saved)
            close(read(saved)(plain), one(plain))
        jaxport.to_onnx(many, [plain]).save(file.with_name(f"{name}-exported.onnx"))
        close(jaxport.from_onnx(file.with_name(f"{name}-exported.onnx"))(plain), one(plain))
        sync_global_devices(kind.name)
print("as in one process")
"""


def test_primitives_are_found_in_the_context_of_another_mesh():
    primitives.collectives.cache_clear()
    with jax.set_mesh(jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))):
        assert "shard_map" in primitives.collectives()


@pytest.mark.slow
def test_two_processes(tmp_path: Path):
    file = tmp_path / "model.onnx"
    jaxport.to_onnx(Model(nnx.Rngs(0)), [jnp.zeros(SIZE)]).save(file)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [start(TWO, str(file), port, str(rank), devices=2) for rank in range(2)]
    try:
        for output, errors in [process.communicate(timeout=300) for process in processes]:
            assert output.strip().endswith("as in one process"), errors
    finally:
        for process in processes:
            process.kill()
