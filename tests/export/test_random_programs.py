"""Small random programs out of primitives: what the rules do together, not each alone.

A program is a list of choices, read one after the other: an operation, and which of the values so far it takes. Floats
stay small and integers wrap, so that both sides agree to rounding whatever is drawn.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from jax import lax

from jaxport.testing import check, f32, i32

#: Cells that the other tests run; here they would only cost time.
WITHOUT = {"float64": "the cases of each rule run it", "empty": "the cases of each rule run it"}


def same_shape(function):
    """A function of two arrays, of which the second one is brought to the shape of the first."""
    return lambda x, y: function(x, y if y.shape == x.shape else jnp.broadcast_to(y.ravel()[:1].reshape(()), x.shape))


def matrix(x):
    return x.reshape(1, -1) if x.ndim < 2 else x if x.ndim == 2 else x.reshape(x.shape[0], -1)


def rows(x):
    return matrix(x)[:, ::2]


FLOAT = {
    "tanh": lambda x, _: jnp.tanh(x),
    "sin": lambda x, _: jnp.sin(x),
    "root": lambda x, _: jnp.sqrt(jnp.abs(x) + 0.5),
    "decay": lambda x, _: jnp.exp(-jnp.abs(x)),
    "negated": lambda x, _: -x,
    "sum of two": same_shape(lambda x, y: x + y),
    "difference": same_shape(lambda x, y: x - y),
    "product": same_shape(lambda x, y: jnp.tanh(x) * y),
    "quotient": same_shape(lambda x, y: x / (1 + y * y)),
    "greater one": same_shape(jnp.maximum),
    "chosen": same_shape(lambda x, y: jnp.where(jnp.arange(x.size).reshape(x.shape) % 3 == 0, x, y)),
    "clamped": lambda x, _: jnp.clip(x, -0.7, 0.9),
    "softmax": lambda x, _: jax.nn.softmax(matrix(x)),
    "mean": lambda x, _: matrix(x).mean(1, keepdims=True),
    "centred": lambda x, _: x - x.mean(),
    "largest": lambda x, _: matrix(x).max(1),
    "running sum": lambda x, _: jnp.cumsum(matrix(x), 1) / 4,
    "product of matrices": lambda x, y: jnp.tanh(matrix(x) @ matrix(x).T),
    "transposed": lambda x, _: x.T,
    "flat": lambda x, _: x.reshape(-1),
    "reversed": lambda x, _: x[::-1] if x.ndim else x,
    "every second": lambda x, _: rows(x),
    "padded": lambda x, _: lax.pad(matrix(x), np.float32(0.5), [(1, 0, 0), (0, 1, 1)]),
    "joined": lambda x, _: jnp.concatenate([matrix(x), matrix(x) * 2], 0),
    "rolled": lambda x, _: jnp.roll(matrix(x), 1, 1),
    "gathered": lambda x, _: jnp.take(matrix(x), np.array([0, -1, 0]), axis=0, mode="wrap"),
    "written": lambda x, _: matrix(x).at[:, 0].set(0.25),
    "added to": lambda x, _: matrix(x).at[np.array([0, 0]), 0].add(0.5),
    "scanned": lambda x, _: lax.scan(lambda c, v: (jnp.tanh(c + v), c * v), jnp.zeros(matrix(x).shape[1]), matrix(x))[
        1
    ],
    "branched": lambda x, _: lax.cond(x.size % 2 == 0, jnp.sin, jnp.cos, x),
    "repeated": lambda x, _: lax.fori_loop(0, 3, lambda _, v: jnp.tanh(v) + 0.1, x),
    "mapped": lambda x, _: jax.vmap(lambda v: v * v.sum() / 8)(matrix(x)),
    "gradient": lambda x, _: jax.grad(lambda v: (jnp.sin(v) * v).sum())(x),
    "jitted": lambda x, _: jax.jit(lambda v: jax.nn.silu(v))(x),
}
INTEGER = {
    "sum": same_shape(lambda x, y: x + y),
    "product": same_shape(lambda x, y: x * y),
    "quotient": same_shape(lambda x, y: x // y),
    "remainder": same_shape(lambda x, y: lax.rem(x, y)),
    "bits": same_shape(lambda x, y: (x & y) ^ (x | 5)),
    "shifted": lambda x, _: (x << 3) >> 2,
    "negative": lambda x, _: -x,
    "sign": lambda x, _: jnp.sign(x),
    "total": lambda x, _: x.sum(),
    "least": lambda x, _: matrix(x).min(1),
    "sorted": lambda x, _: jnp.sort(x.reshape(-1)),
    "order": lambda x, _: jnp.argsort(x.reshape(-1)).astype(jnp.int32),
    "place of the largest": lambda x, _: jnp.argmax(matrix(x), 1).astype(jnp.int32),
    "running sum": lambda x, _: jnp.cumsum(x.reshape(-1)),
    "narrowed": lambda x, _: x.astype(jnp.int8).astype(jnp.int32),
    "unsigned": lambda x, _: x.astype(jnp.uint16).astype(jnp.int32),
    "compared": same_shape(lambda x, y: (x > y).astype(jnp.int32) + (x == 0)),
    "flat": lambda x, _: x.reshape(-1),
    "counted": lambda x, _: jnp.bincount(jnp.abs(x.reshape(-1)) % 7, length=7),
    "looked up": lambda x, y: jnp.take(x.reshape(-1), y.reshape(-1), mode="clip"),
    "until": lambda x, _: lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * 3 + 1), (0, x))[1],
}
#: Values never grow beyond this.
LARGEST = 400


def program(choices, operations, *inputs):
    values = list(inputs)
    for operation, first, second in choices:
        result = list(operations.values())[operation % len(operations)](
            values[first % len(values)], values[second % len(values)]
        )
        values.append(result if result.size <= LARGEST else result.reshape(-1)[:LARGEST])
    return values[-3:]


choices = st.lists(st.tuples(*[st.integers(0, 999)] * 3), min_size=2, max_size=7)
bounded = settings(
    max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
many = settings(bounded, max_examples=400, derandomize=False)


def floats(drawn):
    check(lambda x, y: program(drawn, FLOAT, x, y), f32(3, 4), f32(3), without=WITHOUT, rtol=1e-4, atol=1e-4)


def integers(drawn):
    check(lambda x, y: program(drawn, INTEGER, x, y), i32(3, 4), i32(3), without=WITHOUT)


def symbolic(drawn):
    """Elementwise operations, reductions and loops on a symbolic batch."""
    names = (
        "tanh", "sin", "decay", "negated", "clamped", "mean", "centred", "largest", "running sum", "transposed", "flat",
        "padded", "joined", "written", "scanned", "repeated", "mapped", "gradient", "jitted", "product of matrices",
    )  # fmt: skip
    operations = {name: FLOAT[name] for name in names}

    def fn(x):
        values = [x]
        for operation, first, _ in drawn[:5]:
            value = values[first % len(values)]
            values.append(list(operations.values())[operation % len(operations)](value, value))
        return values[-2:]

    check(fn, f32("B", 4), without=WITHOUT, rtol=1e-4, atol=1e-4)


KINDS = {"floats": floats, "integers": integers, "symbolic": symbolic}


@pytest.mark.parametrize("kind", KINDS)
def test_programs(kind):
    bounded(given(choices)(KINDS[kind]))()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_programs(kind):
    many(given(choices)(KINDS[kind]))()
