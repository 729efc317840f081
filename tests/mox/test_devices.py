"""Over several devices a Mox runs as the function does: sharded by `jit`, in `shard_map`, and by `pmap`."""

from __future__ import annotations

import subprocess
import sys

from tests.compiling import on_devices

PROGRAM = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from flax import nnx
import jaxport

assert jax.device_count() == 4
model = nnx.Sequential(nnx.Linear(8, 16, rngs=nnx.Rngs(0)), jax.nn.relu, nnx.Linear(16, 4, rngs=nnx.Rngs(1)))
x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 8)), jnp.float32)
mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
data, columns = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "model"))

mox = jaxport.make_mox(model)(x)
lora = mox.sub("//Linear", jaxport.mox.lora(rank=2), expect=2)
for program in (mox, lora):
    params = {k: jax.device_put(v, columns) if k.endswith("kernel") else v for k, v in program.params.items()}
    run = jax.jit(program.apply, out_shardings=data)
    result = run(params, jax.device_put(x, data))
    assert result.sharding.is_equivalent_to(data, 2)
    np.testing.assert_allclose(result, model(x), rtol=1e-5, atol=1e-6)
    gradient = jax.jit(jax.grad(lambda p, x: (program.apply(p, x) ** 2).sum()))(params, jax.device_put(x, data))
    wanted = jax.jit(jax.grad(lambda p, x: (program.apply(p, x) ** 2).sum()))(program.params, x)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), gradient, wanted)

graphdef, state = nnx.split(model)
original = jax.jit(lambda s, x: nnx.merge(graphdef, s)(x), out_shardings=data)
np.testing.assert_array_equal(jax.jit(mox, out_shardings=data)(x), original(state, x))

rows = jaxport.make_mox(model)(x[:2])
mapped = jax.pmap(rows)
np.testing.assert_array_equal(mapped(x.reshape(4, 2, 8)), jax.pmap(model)(x.reshape(4, 2, 8)))

line = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
spread = lambda f, **options: jax.jit(jax.shard_map(f, mesh=line, in_specs=P("i"), out_specs=P("i"), **options))
np.testing.assert_array_equal(spread(rows, check_vma=False)(x), spread(model)(x))
try:
    spread(rows)(x)
except jaxport.InvalidArgument as error:
    assert "pass `check_vma=False` to `shard_map`" in str(error)
else:
    raise AssertionError("not refused")
np.testing.assert_array_equal(jaxport.make_mox(spread(model))(x)(x), spread(model)(x))

# The body of a `shard_map` is edited as other bodies are, whether it tracks along which axes values differ or not.
layer = nnx.Linear(8, 8, rngs=nnx.Rngs(2))
for check in (True, False):
    options = {"mesh": line, "in_specs": P("i"), "out_specs": P("i"), "check_vma": check}
    mapped = lambda act: jax.shard_map(lambda x: act(layer(x)) * jax.lax.psum(x, "i").sum(), **options)
    body = jaxport.make_mox(mapped(jnp.sin))(x)
    loss = lambda function: lambda x: jnp.square(function(x)).sum()
    edited, wanted = body.sub("//sin", jnp.cos), mapped(jnp.cos)
    np.testing.assert_allclose(jax.jit(edited)(x), jax.jit(wanted)(x), rtol=1e-5, atol=1e-5)
    gradients = [jax.jit(jax.grad(loss(function)))(x) for function in (edited, wanted)]
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-4)
    doubled = body.select("//psum_invariant" if check else "//psum").after(lambda y: 2 * y)
    np.testing.assert_allclose(doubled(x), 2 * body(x), rtol=1e-5, atol=1e-5)
    ones = body.sub("//sin", lambda y: jnp.ones(y.shape))  # the same on each device
    np.testing.assert_allclose(ones(x), mapped(jnp.ones_like)(x), rtol=1e-5)
    adapted = body.sub("//Linear", jaxport.mox.lora(rank=2))
    adapted = adapted.with_params({path: v + 0.1 for path, v in adapted.params.items() if "lora" in path})
    merged = body.with_params(jaxport.mox.merge_lora(adapted))
    np.testing.assert_allclose(jax.jit(merged)(x), jax.jit(adapted)(x), rtol=1e-4, atol=1e-4)
    (name,) = [path for path in merged.params if path.endswith("kernel")]
    of_kernel = jax.jit(jax.grad(lambda p: loss(lambda x: merged.apply(p, x))(x)))(merged.params)[name]
    of_factors = jax.jit(jax.grad(lambda p: loss(lambda x: adapted.apply(p, x))(x)))(adapted.params)
    (b,) = [path for path in adapted.params if path.endswith("lora_b")]
    found = of_factors[b.replace("lora_b", "lora_a")]
    np.testing.assert_allclose(found, of_kernel @ adapted.params[b].T, rtol=1e-3, atol=1e-2)

constrained = lambda x: jax.lax.with_sharding_constraint(model(x), data)
edited = jaxport.make_mox(constrained)(x).sub("//Linear", jaxport.mox.lora(rank=2))
np.testing.assert_allclose(jax.jit(edited)(x), model(x), rtol=1e-5, atol=1e-6)
print("done")
"""


def test_a_mox_runs_over_several_devices():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=on_devices(4), check=False
    )
    assert done.stdout == "done\n", done.stderr[-2000:]
