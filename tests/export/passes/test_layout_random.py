"""Random programs full of movements: the layout pass changes no value and never leaves more Transposes."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.export import passes

SIZES = (1, 2, 3, 2, 1, 4)  # ones, and equal sizes that are easily taken for each other
STEPS = ("transpose",) * 9 + tuple(
    "residual unary sum kept_sum squeeze unsqueeze split merge concatenate slice matmul gram scale softmax flip take pad".split()
)


class Programs:
    """Draws programs; each step works on one of the last values."""

    def __init__(self, seed: int):
        self.generator = np.random.default_rng(seed)
        self.shape = tuple(int(n) for n in self.generator.choice(SIZES, self.generator.integers(2, 6)))
        self.seed = int(self.generator.integers(1 << 30))

    def __call__(self, *inputs):
        draw = np.random.default_rng(self.seed)
        pool = list(inputs)
        for _ in range(draw.integers(5, 14)):
            x = pool[int(draw.integers(max(0, len(pool) - 4), len(pool)))]
            result = getattr(self, str(draw.choice(STEPS)))(draw, pool, x) if x.ndim else jnp.tanh(x)
            if result is not None and result.size <= 600 and result.ndim <= 5:
                pool.append(result)
        return pool[-1], pool[len(pool) // 2] * 1

    def axis(self, draw, x):
        return int(draw.integers(x.ndim))

    def alike(self, draw, pool, x):
        same = [other for other in pool if other.shape == x.shape]
        return same[int(draw.integers(len(same)))]

    def transpose(self, draw, pool, x):
        return jnp.transpose(x, [int(axis) for axis in draw.permutation(x.ndim)])

    def residual(self, draw, pool, x):
        return x + 2 * self.alike(draw, pool, x)

    def unary(self, draw, pool, x):
        return jnp.tanh(x)

    def sum(self, draw, pool, x, keepdims=False):
        axes = draw.choice(x.ndim, int(draw.integers(1, x.ndim + 1)), replace=False)
        return x.sum(tuple(int(axis) for axis in axes), keepdims=keepdims)

    def kept_sum(self, draw, pool, x):
        return self.sum(draw, pool, x, keepdims=True)

    def squeeze(self, draw, pool, x):
        ones = [axis for axis, size in enumerate(x.shape) if size == 1]
        return jnp.squeeze(x, int(draw.choice(ones))) if ones else None

    def unsqueeze(self, draw, pool, x):
        return jnp.expand_dims(x, int(draw.integers(x.ndim + 1)))

    def split(self, draw, pool, x):
        axis = self.axis(draw, x)
        factor = int(draw.choice([n for n in (1, 2, 3) if x.shape[axis] % n == 0]))
        return x.reshape(*x.shape[:axis], factor, x.shape[axis] // factor, *x.shape[axis + 1 :])

    def merge(self, draw, pool, x):
        axis = self.axis(draw, x)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    def concatenate(self, draw, pool, x):
        return jnp.concatenate([x, self.alike(draw, pool, x)], self.axis(draw, x))

    def slice(self, draw, pool, x):
        axis = self.axis(draw, x)
        return lax.slice_in_dim(x, 1, x.shape[axis], axis=axis) if x.shape[axis] > 1 else None

    def matmul(self, draw, pool, x):
        return x @ draw.normal(size=(x.shape[-1], int(draw.integers(2, 4)))).astype(np.float32)

    def gram(self, draw, pool, x):
        return x @ jnp.swapaxes(x, -1, -2) / 3 if x.ndim > 1 else None

    def scale(self, draw, pool, x):
        shape = [size if draw.random() < 0.6 else 1 for size in x.shape[int(draw.integers(x.ndim)) :]]
        return x * draw.normal(size=shape).astype(np.float32)

    def softmax(self, draw, pool, x):
        return jax.nn.softmax(x, axis=self.axis(draw, x))

    def flip(self, draw, pool, x):
        return jnp.flip(x, self.axis(draw, x))

    def take(self, draw, pool, x):
        return jnp.take(x, np.array([0]), axis=self.axis(draw, x))

    def pad(self, draw, pool, x):
        return jnp.pad(x, [(int(draw.integers(2)), 0) for _ in x.shape])


@pytest.mark.parametrize("group", range(2))
def test_random_programs(group):
    moved = 0
    for seed in range(40 * group, 40 * group + 40):
        program = Programs(seed)
        inputs = [np.random.default_rng(seed + i).normal(size=program.shape).astype(np.float32) for i in range(2)]
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
        exported = jaxport.to_onnx(program, specs, passes=(passes.tidy, passes.layout, passes.tidy))
        for actual, expected in zip(exported(*inputs), jax.jit(program)(*inputs), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3, err_msg=f"seed {seed}")
        change = re.match(r"(-?\d+) of", exported.pass_reports[1].text)
        assert change is None or int(change[1]) > 0, (seed, exported.pass_reports[1])
        moved += change is not None
    assert moved
