"""Constants, tensors made from sizes (masks, identity matrices, one-hot rows), and random numbers.

Random numbers come from the key that `Program.apply` is given; a node's `seed` is folded into it.
"""

from __future__ import annotations

import numpy as np

from jaxport.importer.resolving.registry import REQUIRED, Host, RandomKey, ShapeOnly, earlier, op
from jaxport.importer.values.dtypes import STRING, dtype_of
from jaxport.importer.values.host import HostValue, Key, Tensor, host
from jaxport.importer.values.namespaces import cast, jnp, nn, random


@op("Trilu", since=14)
def trilu(input, k: Host | None = None, *, upper=1):
    return (jnp.triu if upper else jnp.tril)(input, 0 if k is None else k.item())


@op("EyeLike", since=9)
def eye_like(input: ShapeOnly, *, dtype=None, k=0):
    return jnp.eye(*input.shape, k=k, dtype=input.dtype if dtype is None else dtype_of(dtype))


@op("OneHot", since=9)
def one_hot(indices, depth: Host, values, *, axis=-1):
    size = int(depth) if depth.dtype.kind == "f" else depth.item()
    index = cast(indices, np.int64)
    hot = nn.one_hot(jnp.where(index < 0, index + size, index), size, axis=axis, dtype=np.dtype(bool))
    return jnp.where(hot, values[1], values[0])


@op("Constant", since=12)
def constant(
    *,
    value=None,
    sparse_value=None,
    value_float=None,
    value_floats=None,
    value_int=None,
    value_ints=None,
    value_string=None,
    value_strings=None,
):
    if value is not None:
        return value  # the loader has made a sparse value dense
    if value_string is not None or value_strings is not None:
        return HostValue(np.array(value_strings if value_string is None else value_string, dtype=object), STRING)
    if value_int is not None or value_ints is not None:
        return host(np.array(value_ints if value_int is None else value_int, np.int64))
    return host(np.array(value_floats if value_float is None else value_float, np.float32))


_NUMBERS_AND_STRINGS = "value_float value_floats value_int value_ints value_string value_strings"
earlier("Constant", since=11, until=11, without=_NUMBERS_AND_STRINGS)
earlier("Constant", since=1, until=10, without="sparse_value", value=REQUIRED)


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
