"""Random numbers: the functions of a key's generator, on the words of the keys.

The generators are JAX's own functions, so the bits are JAX's own bits; what ONNX has to compute is only their hash.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core.primitives import random_gamma_p

from jaxport.export import dims
from jaxport.export.registry import rule
from jaxport.export.rules.shape import iota


def mapped(function, rank):
    """`function` mapped over `rank` leading axes of all its operands."""
    return function if rank == 0 else jax.vmap(mapped(function, rank - 1))


@rule("random_wrap", "random_unwrap", "random_clone", broadcasts=True, irrelevant=("impl",))
def same_words(op, words):
    return words


def seed(seeds, *, impl):
    return mapped(impl.seed, seeds.ndim)(seeds)


def split(words, *, impl, shape):
    return mapped(lambda key: impl.split(key, shape), words.ndim - len(impl.key_shape))(words)


def bits(words, *, impl, bit_width, shape):
    return mapped(lambda key: impl.random_bits(key, bit_width, shape), words.ndim - len(impl.key_shape))(words)


def fold_in(words, data, *, impl):
    shape = jnp.broadcast_shapes(words.shape[: words.ndim - len(impl.key_shape)], data.shape)
    words, data = jnp.broadcast_to(words, shape + impl.key_shape), jnp.broadcast_to(data, shape)
    return mapped(impl.fold_in, len(shape))(words, data)


def gamma(words, shape_parameter, *, impl, log_space):
    # The primitive is implemented by a JAX function of the keys.
    keys = jax.random.wrap_key_data(words, impl=impl)
    return random_gamma_p.impl(keys, shape_parameter, log_space=log_space, use_vmap=True)


rule("random_seed", via=seed)
rule("random_split", via=split)
rule("random_bits", via=bits)
rule("random_fold_in", via=fold_in)
rule("random_gamma", via=gamma)

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
KEY_PARITY = np.uint32(0x1BD11BDA)


def threefry2x32(key1, key2, x1, x2):
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011): five times four rounds and an injection of the key."""
    schedule = (key1, key2, key1 ^ key2 ^ KEY_PARITY)
    x1, x2 = x1 + key1, x2 + key2
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x1 = x1 + x2
            x2 = (x2 << np.uint32(rotation)) | (x2 >> np.uint32(32 - rotation))
            x2 = x2 ^ x1
        x1 = x1 + schedule[(group + 1) % 3]
        x2 = x2 + (schedule[(group + 2) % 3] + np.uint32(group + 1))
    return x1, x2


rule("threefry2x32", via=threefry2x32, broadcasts=True)


@rule("iota_2x32_shape", broadcasts=True)
def iota_2x32_shape(op, *, shape):
    """The positions of the elements as numbers of 64 bits, in two words: the high ones, and the low ones."""
    size = math.prod(shape)
    if dims.is_static(size) and size <= 2**32:
        low = iota(op, dtype=np.uint32, shape=(size,), dimension=0)
        return op.const(0, np.uint32), op.reshape(low, shape)
    positions = op.reshape(iota(op, dtype=np.int64, shape=(size,), dimension=0), shape)
    return op.cast(op.Div(positions, op.const(2**32, np.int64)), np.uint32), op.cast(positions, np.uint32)
