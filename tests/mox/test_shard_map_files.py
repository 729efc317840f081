"""A Mox with a `shard_map` is written and read again, on the devices of the process that reads it."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxport
from jaxport.mox import dumps, loads
from tests.compiling import on_devices

PROGRAM = """
import pathlib, pickle, tempfile
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P
import jaxport
from jaxport.mox import dumps, load, loads, save

assert jax.device_count() == 4
mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
whole, rows = P(), P(("a", "b"))
x = jnp.linspace(-1, 1, 16).reshape(8, 2)


def body(x):
    fixed = lax.stop_gradient(x)
    y = lax.psum(x, "a") + lax.psum(x, ("a", "b")) + lax.pmax(fixed, "a") + lax.pmin(fixed, "b") + lax.pmean(x, "a")
    y += lax.ppermute(x, "a", [(0, 1), (1, 0)]) + lax.axis_index("a") * lax.axis_size("b")
    y += lax.all_gather(x, "a").sum(0) + lax.all_gather(x, "b", tiled=True)[:2] + lax.all_to_all(x, "a", 0, 0, tiled=True)
    y += jnp.concatenate([lax.psum_scatter(x, "a", tiled=True)] * 2)
    y, _ = lax.scan(lambda c, _: (jax.nn.silu(c * 2 + lax.psum(x, "a")), None), y, None, length=2)
    y += lax.cond(y.sum() > 0, lambda v: v, lambda v: -v, y)
    return jax.nn.relu(y) + jax.jit(jnp.tanh)(y) + jax.nn.softmax(y)


@jax.custom_vjp
def doubled(x):
    return 2 * lax.psum(x, "a")


doubled.defvjp(lambda x: (2 * lax.psum(x, "a"), x), lambda x, change: (7 * change * x,))


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.inside, self.outside = nnx.Linear(2, 2, rngs=rngs), nnx.Linear(2, 2, rngs=rngs)

    def __call__(self, x):
        columns = jax.shard_map(lambda k, x: x @ k, mesh=mesh, in_specs=(P(None, "b"), P("a")), out_specs=P("a", "b"))
        return columns(self.inside.kernel[...], x) + self.outside(x)


layer = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
mapped = lambda f, **options: jax.shard_map(f, mesh=mesh, **{"in_specs": rows, "out_specs": rows, **options})
every = mapped(body)
inner = lambda y: jax.shard_map(lambda z: lax.psum(2 * z, "b"), in_specs=P("b"), out_specs=whole, axis_names={"b"})(y)
programs = {
    "varying": every,
    "unchecked": mapped(body, check_vma=False),
    "jit": jax.jit(every),
    "scan": lambda x: lax.scan(lambda c, _: (0.1 * every(c), c.sum()), x, None, length=3),
    "vmap": lambda x: jax.vmap(every)(jnp.stack([x, 2 * x])),
    "remat": jax.checkpoint(every),
    "gradient": lambda x: jax.value_and_grad(lambda x: every(x).sum())(x),
    "one axis": jax.jit(mapped(lambda x: lax.psum(jnp.sin(x), "a"), in_specs=P("a"), out_specs=whole, axis_names={"a"})),
    "nested": jax.jit(mapped(lambda y: lax.psum(inner(y), "a"), in_specs=P("a"), out_specs=whole, axis_names={"a"})),
    "rule": mapped(doubled, out_specs=P("b"), check_vma=False),
    "module inside": mapped(lambda x: layer(x) * lax.psum(x, "a").sum()),
    "module": Layer(nnx.Rngs(0)),
}
alike = lambda f, g: jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), f, g)
slope = lambda f: jax.jit(jax.grad(lambda x: sum(leaf.sum() for leaf in jax.tree.leaves(f(x)))))(x)
for name, program in programs.items():
    mox = jaxport.make_mox(program)(x)
    for form in ("json", "xml") if name == "varying" else ("yson",):
        again = loads(dumps(mox, form), {**mox.params, **mox.state})
        alike(jax.jit(again)(x), jax.jit(program)(x))
        if name not in ("gradient", "nested"):  # the second derivative takes long; JAX itself has no gradient of the other
            alike(slope(again), slope(program))

file = pathlib.Path(tempfile.mkdtemp()) / "layer.json"
save(mox, file)
again = load(file)
assert again.select("//Linear").paths() == mox.select("//Linear").paths()
alike(again.sub("//Linear", jaxport.mox.lora(2))(x), mox(x))
alike(pickle.loads(pickle.dumps(mox))(x), mox(x))

# The mesh of the context, and axes that are explicit elsewhere.
with jax.set_mesh(mesh):
    mox = jaxport.make_mox(jax.shard_map(body, in_specs=rows, out_specs=rows))(x)
alike(loads(dumps(mox))(x), every(x))
"""


def test_a_shard_map_is_read_again():
    subprocess.run([sys.executable, "-c", PROGRAM], env=on_devices(4), check=True)


def text(size=1):
    mesh = jax.sharding.AbstractMesh((size,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    return dumps(jaxport.make_mox(mapped)(jax.ShapeDtypeStruct((8,), jnp.float32)))


def test_too_few_devices_are_an_error_that_says_how_many():
    with pytest.raises(jaxport.ModelError, match="needs 4096 devices, and this process has 1") as error:
        loads(text(8).replace('["i",8]', '["i",4096]'))
    assert "xla_force_host_platform_device_count=4096" in str(error.value)


CHANGES = {
    "no axes": ('{"$mesh":[["i",1]]}', '{"$mesh":[]}', "a mesh is malformed"),
    "an axis of no size": ('["i",1]', '["i",0]', "a mesh is malformed"),
    "an axis twice": ('[["i",1]]', '[["i",1],["i",1]]', "a mesh is malformed"),
    "another axis": ('[["i",1]]', '[["j",1]]', "the text is no Mox"),
    "a number as a spec": ('{"$spec":["i"]}', '{"$spec":[3]}', "a `PartitionSpec` is malformed"),
    "a spec of another axis": ('{"$spec":["i"]}', '{"$spec":["j"]}', "the text is no Mox|inconsistent"),
    "no mesh": ('"mesh":{"$mesh":[["i",1]]}', '"mesh":null', "the parameter `mesh` is malformed"),
    "a sum over another axis": (
        '"axes":{"$tuple":["i"]}',
        '"axes":{"$tuple":["j"]}',
        "the text is no Mox|inconsistent",
    ),
    "a longer part": ('[["v0",["float32",[8]', '[["v0",["float32",[9]', "the text is no Mox|inconsistent"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_malformed_shard_map_is_refused(name):
    old, new, message = CHANGES[name]
    document = text()
    assert loads(document)(jnp.ones(8)).shape == (8,)
    assert old in document
    with pytest.raises(jaxport.ModelError, match=message):
        loads(json.dumps(json.loads(document.replace(old, new))))
