"""What the tests of reading and of writing share."""

from __future__ import annotations

import numpy as np

DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64".split()
EMPTY = {"empty": "JAX does not index an axis without elements"}


def random_case(seed, least=0):
    """A gather or a scatter with every freedom that its dimension numbers have.

    Args:
      seed: of the case.
      least: how many axes are indexed at least.

    Returns:
      An operand, indices, updates, the dimension numbers as a tuple, and the sizes of the window.
    """
    generator = np.random.default_rng(seed)
    integer = lambda low, high: int(generator.integers(low, high))
    rank = integer(1 + least, 5)
    shape = [integer(1, 5) for _ in range(rank)]
    axes = generator.permutation(rank).tolist()
    batching = sorted(axes[: integer(0, min(rank - least, 2) + 1)] if generator.random() < 0.5 else [])
    free = [a for a in axes if a not in batching]
    indexed = free[: integer(least, len(free) + 1)]
    batch = [integer(1, 4) for _ in range(len(batching) + integer(0, 3))]
    shared = generator.permutation(len(batch)).tolist()[: len(batching)]
    for axis, place in zip(batching, shared, strict=True):
        batch[place] = shape[axis]
    sizes = [1 if a in batching else int(generator.choice([1, integer(1, d + 1), d])) for a, d in enumerate(shape)]
    hidden = [a for a in free if sizes[a] == 1 and generator.random() < 0.7]
    windows = [a for a in range(rank) if a not in batching and a not in hidden]
    out_rank = len(batch) + len(windows)
    offset = sorted(generator.permutation(out_rank).tolist()[: len(windows)])
    indices = generator.integers(-3, 6, (*batch, len(indexed))).astype(np.int32)
    numbers = (tuple(offset), tuple(sorted(hidden)), tuple(indexed), tuple(batching), tuple(shared))
    x = generator.integers(-4, 5, shape).astype(np.float32)
    places, rest = iter(windows), iter(batch)
    out_shape = [sizes[next(places)] if p in offset else next(rest) for p in range(out_rank)]
    updates = generator.integers(-4, 5, out_shape).astype(np.float32)
    return x, indices, updates, numbers, tuple(sizes)
