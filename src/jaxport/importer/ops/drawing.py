"""Random numbers. They come from the key that `Program.apply` is given; a node's `seed` is folded into it."""

from __future__ import annotations

import numpy as np

from jaxport.importer.dtypes import dtype_of
from jaxport.importer.host import Key, Tensor
from jaxport.importer.namespaces import cast, random
from jaxport.importer.registry import RandomKey, ShapeOnly, op


def _seeded(key: Key, seed: float | None) -> Key:
    """Return `key`, made different for each seed."""
    return key if seed is None else random.fold_in(key, int.from_bytes(np.float32(seed).tobytes()))


def _type(dtype: int | None, like: Tensor) -> np.dtype:
    return like.dtype if dtype is None else dtype_of(dtype)


@op("RandomNormal", since=1)
def random_normal(*, dtype=1, mean=0.0, scale=1.0, seed=None, shape, key: RandomKey):
    return mean + scale * random.normal(_seeded(key, seed), shape, dtype_of(dtype))


@op("RandomUniform", since=1)
def random_uniform(*, dtype=1, high=1.0, low=0.0, seed=None, shape, key: RandomKey):
    return random.uniform(_seeded(key, seed), shape, dtype_of(dtype), low, high)


@op("RandomNormalLike", since=1)
def random_normal_like(input: ShapeOnly, *, dtype=None, mean=0.0, scale=1.0, seed=None, key: RandomKey):
    return mean + scale * random.normal(_seeded(key, seed), input.shape, _type(dtype, input))


@op("RandomUniformLike", since=1)
def random_uniform_like(input: ShapeOnly, *, dtype=None, high=1.0, low=0.0, seed=None, key: RandomKey):
    return random.uniform(_seeded(key, seed), input.shape, _type(dtype, input), low, high)


@op("Bernoulli", since=15)
def bernoulli(input, *, dtype=None, seed=None, key: RandomKey):
    return cast(random.bernoulli(_seeded(key, seed), input), _type(dtype, input))


@op("Multinomial", since=7)
def multinomial(input, *, dtype=6, sample_size=1, seed=None, key: RandomKey):
    shape = (sample_size, input.shape[0])
    return cast(random.categorical(_seeded(key, seed), input, axis=-1, shape=shape), dtype_of(dtype)).T
