"""What programs take and give: pytrees, sizes, dtypes, keys and flags."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn, nnx, struct
from jax import lax

from jaxport.testing import boolean, f32, f64, i32, spec
from tests.programs.checker import built, program
from tests.programs.models import KEY, of_linen, of_nnx


class Batch(NamedTuple):
    tokens: jax.Array
    mask: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Detection:
    boxes: jax.Array
    scores: jax.Array
    count: int = dataclasses.field(metadata={"static": True}, default=3)


@struct.dataclass
class Carry:
    hidden: jax.Array
    rest: tuple = ()


@program({"batch": Batch(i32("B", "T"), boolean("B", "T")), "nothing": (), "scale": f32()})
def test_dictionary_of_named_tuples(inputs):
    batch = inputs["batch"]
    values = jnp.where(batch.mask, batch.tokens, 0) * inputs["scale"]
    return Batch(values, None), {"sum": values.sum(1), "nothing": (), "first": [batch.tokens[:, 0]]}


@program(f32("B", 6, 4))
def test_dataclass_as_result(x):
    return Detection(boxes=jax.nn.sigmoid(x), scores=x.max(-1))


@program(Carry(f32("B", 3), ({"memory": f32("B", 2)}, ())), f32("T", "B", 3))
def test_dataclass_as_carry(carry, x):
    def step(carry, v):
        hidden = jnp.tanh(carry.hidden + v)
        memory = carry.rest[0]["memory"] + hidden[:, :2]
        return carry.replace(hidden=hidden, rest=({"memory": memory}, ())), memory.sum()

    return lax.scan(step, carry, x)


@built(f32("B", 4), input_params={"scale": f32(), "shift": f32("B", 1)}, static_params={"mode": "add"})
def test_keyword_arguments():
    def call(x, *, scale, shift, mode):
        return x * scale + shift if mode == "add" else x

    return call


@program(f32("B", "T", 6), f32(6, 4))
def test_batch_and_time_in_one_axis(x, weight):
    batch, time, width = x.shape
    flat = x.reshape(batch * time, width) @ weight
    return flat.reshape(batch, time, -1), flat.reshape(-1, 2), x.reshape(batch, -1).mean(1)


@program(f32("B", "2*T + 1", 3))
def test_arithmetic_of_sizes(x):
    half = x.shape[1] // 2
    left, middle, right = x[:, :half], x[:, half : half + 1], x[:, half + 1 :]
    padded = jnp.pad(x, ((0, 0), (half, 1), (0, 0)))
    return left + right[:, ::-1] * x.shape[1], middle / x.size, padded.sum(1), jnp.arange(x.shape[0] * 2) % x.shape[1]


@program(f32("B", "T", 4), f32("B", "N", 4))
def test_two_texts_of_different_lengths(x, y):
    joined = jnp.concatenate([x, y], axis=1)
    positions = jnp.arange(joined.shape[1])
    same = (positions[:, None] < x.shape[1]) == (positions < x.shape[1])
    scores = jnp.where(same, jnp.einsum("btd,bsd->bts", joined, joined), -1e9)
    return jax.nn.softmax(scores)[:, x.shape[1] :], jnp.broadcast_to(x[:, :1], y.shape)


@program(f64("B", 4), f64(4), double_precision=True)
def test_least_squares_in_double_precision(x, y):
    normal = x.T @ x + 1e-9 * jnp.eye(4)
    return jnp.linalg.solve(normal + jnp.eye(4), y), jnp.finfo(x.dtype).eps + x.sum(), jnp.arange(3)


@program(spec("B", "T", dtype=np.int64), f32(11, 4))
def test_tokens_of_64_bits(ids, table):
    return table[ids].mean(1), (ids == 3).sum(1), ids[:, -1]


@program(spec("B", dtype=np.int64), double_precision=True)
def test_integers_beyond_32_bits(x):
    return x * 3_000_000_000 + jnp.int64(2) ** 40, (x << 33) >> 32, x.astype(jnp.float64) / 3


@program(spec("B", 6, dtype=jnp.bfloat16), tolerance=5e-2)
def test_model_in_bfloat16(x):
    weight = (jnp.arange(36, dtype=jnp.float32).reshape(6, 6) / 36 - 0.5).astype(jnp.bfloat16)
    x = jax.nn.gelu(x @ weight)
    normed = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-2)
    return normed, x.astype(jnp.float32)


@built(spec("B", "T", 6, dtype=np.float16), tolerance=2e-2)
def test_layers_in_float16():
    return of_nnx(
        lambda rngs: nnx.Sequential(
            nnx.Linear(6, 8, dtype=jnp.float16, param_dtype=jnp.float16, rngs=rngs),
            nnx.silu,
            nnx.LayerNorm(8, dtype=jnp.float16, param_dtype=jnp.float16, rngs=rngs),
        )
    )


@built(f32("B", 8, 8, 3), tolerance=5e-2)
def test_parameters_in_float32_and_computation_in_bfloat16():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(4, (3, 3), dtype=jnp.bfloat16)(x))
            x = nn.BatchNorm(use_running_average=True, dtype=jnp.bfloat16)(x)
            return nn.Dense(3, dtype=jnp.bfloat16)(x.mean((1, 2))).astype(jnp.float32)

    return of_linen(Network(), jnp.ones((1, 8, 8, 3)))


@program(spec("B", 4, dtype=np.uint8), spec("B", 4, dtype=np.int8), spec("B", 4, dtype=np.int16))
def test_small_integers_wrap_around(a, b, c):
    return a * 77 + jnp.uint8(200), b * jnp.int8(50) // 3, c << 9, a.astype(jnp.int8), jnp.abs(b), a.sum()


class Classifier(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.second = nnx.Linear(6, 2, rngs=rngs)

    def __call__(self, x, deterministic):
        x = self.dropout(self.norm(self.first(x), use_running_average=deterministic), deterministic=deterministic)
        return self.second(x)


@built(f32("B", 4), input_params={"deterministic": bool}, state="discard")
def test_flag_of_an_nnx_model_at_run_time():
    return of_nnx(Classifier)


@built(f32("B", 4), KEY, input_params={"training": bool})
def test_flag_of_a_linen_model_at_run_time():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x, training):
            return nn.Dense(2)(nn.Dropout(0.5, deterministic=not training)(nn.Dense(6)(x)))

    apply = of_linen(Network(), jnp.ones((1, 4)), False)
    return lambda x, key, training: apply(x, training, rngs={"dropout": key})


@program(f32("B", 3), boolean(), i32())
def test_branches_chosen_by_inputs(x, negate, index):
    x = lax.cond(negate, lambda v: -v, lambda v: v, x)
    return lax.switch(index, [jnp.sin, jnp.cos, lambda v: v.sum() + v * 0], x), jnp.where(negate, x, jnp.exp(x / 9))


@built(KEY, f32("B", 3))
def test_key_as_input_and_output():
    def call(key, x):
        key, inner = jax.random.split(key)
        return key, x + jax.random.uniform(inner, x.shape)

    return call


@built(f32("B", 3), weights="inputs")
def test_weights_as_inputs():
    return of_nnx(lambda rngs: nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.relu, nnx.Linear(4, 2, rngs=rngs)))
