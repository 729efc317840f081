"""Random numbers: the functions of a key's generator, on the words of the keys.

The generators are JAX's own functions, so the bits are JAX's own; ONNX only has to compute their hash.
"""

from __future__ import annotations

import functools
import math
import operator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.export.emit.registry import rule
from jaxport.export.rules.shape import iota
from jaxport.jaxprs import dims, random_gamma_p


def mapped(function, rank):
    """Map `function` over `rank` leading axes of all its operands."""
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

# The hashes (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011). Words of the key come
# first, then those of the counter.

PARITY = np.uint32(0x1BD11BDA)


def threefry(pairs, rotations):
    """Hash by twenty rounds of add, rotate, xor; after every fourth the next words of the key are added.

    Args:
      pairs: the positions that are mixed in the even rounds, and in the odd ones.
      rotations: the rotation of each pair in each round, repeated after eight rounds.
    """

    def threefry_hash(*words):
        count = len(words) // 2
        schedule = [*words[:count], functools.reduce(operator.xor, words[:count], PARITY)]
        counter = [x + key for x, key in zip(words[count:], schedule, strict=False)]
        for number in range(20):
            for (a, b), rotation in zip(pairs[number % 2], rotations[number % 8], strict=True):
                counter[a] = counter[a] + counter[b]
                rotated = (counter[b] << np.uint32(rotation)) | (counter[b] >> np.uint32(32 - rotation))
                counter[b] = rotated ^ counter[a]
            if number % 4 == 3:
                group = number // 4 + 1
                keys = [schedule[(group + place) % (count + 1)] for place in range(count)]
                keys[-1] = keys[-1] + np.uint32(group)
                counter = [x + key for x, key in zip(counter, keys, strict=True)]
        return counter

    return threefry_hash


threefry2x32 = threefry(
    pairs=(((0, 1),), ((0, 1),)),
    rotations=((13,), (15,), (26,), (6,), (17,), (29,), (16,), (24,)),
)
threefry4x32 = threefry(
    pairs=(((0, 1), (2, 3)), ((0, 3), (2, 1))),
    rotations=((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20)),
)
rule("threefry2x32", via=threefry2x32, broadcasts=True)
rule("threefry4x32", via=threefry4x32, broadcasts=True)

WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))


def philox(*multipliers):
    """Hash by ten rounds of multiplication to two words, the high one of which is mixed with the key and its neighbour.

    Args:
      multipliers: those of the even words of the counter, which is twice as long as the key.
    """

    def philox_hash(*words):
        keys, counter = list(words[: len(multipliers)]), list(words[len(multipliers) :])
        for number in range(10):
            if number:
                keys = [key + weyl for key, weyl in zip(keys, WEYL, strict=False)]
            products = [
                (lax.mulhi(jnp.full_like(x, m), x), x * m) for m, x in zip(multipliers, counter[::2], strict=True)
            ]
            mixed = zip(products[::-1], counter[1::2], keys, strict=True)
            counter = [word for (high, low), x, key in mixed for word in (high ^ x ^ key, low)]
        return counter

    return philox_hash


rule("philox2x32", via=philox(np.uint32(0xD256D193)), broadcasts=True)
rule("philox4x32", via=philox(np.uint32(0xD2511F53), np.uint32(0xCD9E8D57)), broadcasts=True)


@rule("rng_bit_generator")
def rng_bit_generator(op, key, *, algorithm, dtype, shape):
    if algorithm != lax.RandomAlgorithm.RNG_THREE_FRY:
        op.refuse(
            "draws the bits of XLA's own generator, which ONNX does not have; "
            "make the keys with `jax.random.key(seed, impl='threefry2x32')`, or pass `algorithm=RNG_THREE_FRY`"
        )
    if (dtype, key.dtype, key.shape) != (np.uint32, np.uint32, (4,)) or not dims.all_static(shape):
        op.refuse("draws words of another size, or a symbolic number of them; draw a known number of uint32")
    state, drawn = op.call(xla_threefry, key, shape=tuple(shape) or (1,))
    return state, op.reshape(drawn, shape)


def xla_threefry(state, *, shape):
    """Draw words by XLA's ThreeFry: a state is a key and a counter of two words each, the low one first.

    Both words of a hash are neighbours along the first even axis, else along the longest one, which is cut.
    """
    even = [axis for axis, size in enumerate(shape) if size % 2 == 0]
    axis = even[0] if even else max(range(len(shape)), key=lambda axis: shape[axis])
    half = [-(-size // 2) if a == axis else size for a, size in enumerate(shape)]
    count = np.uint32(math.prod(half))
    low = state[2] + lax.iota(np.uint32, int(count))
    high = state[3] + (low < state[2]).astype(np.uint32)
    keys = [jnp.broadcast_to(word, low.shape) for word in state[:2]]
    pairs = jnp.stack([words.reshape(half) for words in threefry2x32(*keys, low, high)], axis + 1)
    drawn = pairs.reshape([2 * size if a == axis else size for a, size in enumerate(half)])
    after = state[2] + count
    carried = state[3] + (after < count).astype(np.uint32)
    return jnp.stack([*state[:2], after, carried]), lax.slice_in_dim(drawn, 0, shape[axis], axis=axis)


@rule("iota_2x32_shape", broadcasts=True)
def iota_2x32_shape(op, *, shape):
    """Return the positions of the elements as 64-bit numbers in two words: the high ones, and the low ones."""
    size = math.prod(shape)
    if dims.is_static(size) and size <= 2**32:
        low = iota(op, dtype=np.uint32, shape=(size,), dimension=0)
        return op.const(0, np.uint32), op.reshape(low, shape)
    positions = op.reshape(iota(op, dtype=np.int64, shape=(size,), dimension=0), shape)
    return op.cast(op.Div(positions, op.const(2**32, np.int64)), np.uint32), op.cast(positions, np.uint32)
