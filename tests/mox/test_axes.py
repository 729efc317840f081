"""Axes that are followed through a program: each element is where its axes say."""

from __future__ import annotations

import math
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport.mox.querying.axes import Axes, arranged, axes_of, joined_parts

SHAPES = [(2, 3, 4), (6, 4), (2, 2, 2, 3), (24,), (1, 6, 1, 4), (3, 1, 8)]


def place(axes: Axes, index: tuple[int, ...], rank: int) -> list[int]:
    """Where in the source the element at an index is, by the parts of its axes."""
    found = [0] * rank
    for axis, at in zip(axes, index, strict=True):
        for part in axis[::-1]:
            at, digit = divmod(at, part.size)
            if part.size > 1:
                step = part.stride or 0
                found[part.axis] += digit * step if step > 0 else (part.size - 1 - digit) * -step
        assert at == 0
    return found


def steps(draw: random.Random, shape: tuple[int, ...], count: int):
    """A function of reshapes, transposes and reversals of an array."""
    moves = []
    for _ in range(count):
        kind = draw.choice(["reshape", "transpose", "rev", "expand"])
        if kind == "reshape":
            other = [new for new in SHAPES if math.prod(new) == math.prod(shape)]
            shape = draw.choice(other)
            moves.append(lambda x, new=shape: lax.reshape(x, new))
        elif kind == "transpose":
            order = draw.sample(range(len(shape)), len(shape))
            shape = tuple(shape[axis] for axis in order)
            moves.append(lambda x, order=order: lax.transpose(x, order))
        elif kind == "rev":
            axis = draw.randrange(len(shape))
            moves.append(lambda x, axis=axis: lax.rev(x, (axis,)))
        else:
            axis = draw.randint(0, len(shape))
            shape = (*shape[:axis], 1, *shape[axis:])
            moves.append(lambda x, axis=axis: lax.broadcast_in_dim(x, shape_with(x, axis), others(x, axis)))

    def run(x):
        for move in moves:
            x = move(x)
        return x

    return run


def shape_with(x, axis: int) -> tuple[int, ...]:
    return (*x.shape[:axis], 1, *x.shape[axis:])


def others(x, axis: int) -> tuple[int, ...]:
    return tuple(range(axis)) + tuple(range(axis + 1, x.ndim + 1))


@pytest.mark.parametrize("seed", range(4))
def test_each_element_is_where_its_axes_say(seed: int):
    draw, followed = random.Random(seed), 0
    for _ in range(25):
        shape = draw.choice(SHAPES)
        run = steps(draw, shape, draw.randint(1, 4))
        axes: Axes | None = axes_of("w", shape)
        for equation in jax.make_jaxpr(run)(jnp.zeros(shape)).eqns:
            axes = None if axes is None else arranged(equation, axes)
        if axes is None:
            continue
        followed += 1
        array = np.arange(math.prod(shape)).reshape(shape)
        result = np.asarray(run(jnp.asarray(array)))
        for index in np.ndindex(result.shape):
            assert array[tuple(place(axes, index, len(shape)))] == result[index], (shape, axes)
        flat = [place((tuple(joined_parts(axes)),), (at,), len(shape)) for at in range(array.size)]
        assert [array[tuple(found)] for found in flat] == result.ravel().tolist(), (shape, axes)
    assert followed > 10
