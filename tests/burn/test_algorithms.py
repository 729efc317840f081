"""Programs of many fields as crates for Burn: what each computes at two sizes of one build is what JAX does, also of special values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, nn

import jaxport
from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.recorded.fused import record_fused
from jaxport.importer.interface import in_model_order
from jaxport.testing import f32, i32
from tests.burn import algorithms_on_integers  # noqa: F401  it adds its programs
from tests.burn.algorithms import ALGORITHMS, algorithm
from tests.burn.crates import Built, Case, RunError, build, case_of, selected

pytestmark = pytest.mark.burn

LIMIT = 1e-4
"""Relative to the largest element of an output."""
SIZES = ({"N": 9, "M": 5, "B": 2, "T": 7, "H": 6, "W": 8}, {"N": 14, "M": 6, "B": 3, "T": 12, "H": 9, "W": 5})
TABLE = np.random.default_rng(3).normal(size=(12, 12)).astype(np.float32)
Arrays = Mapping[str, np.ndarray]


@algorithm(f32("N", 3), constraints=("N >= 4",))
def _k_means(x):
    def step(centers, _):
        nearest = jnp.argmin(((x[:, None] - centers) ** 2).sum(-1), 1)
        members = nn.one_hot(nearest, 4)
        count = members.sum(0)[:, None]
        return jnp.where(count > 0, members.T @ x / jnp.maximum(count, 1), centers), nearest

    centers, nearest = lax.scan(step, x[:4], None, length=5)
    return centers, nearest[-1]


@algorithm(f32("B", "T", 5), constraints=("T >= 2",))
def _most_likely_path(scores):
    def forward(best, score):
        total = best[:, :, None] + TABLE[:5, :5]
        return total.max(1) + score, total.argmax(1)

    best, back = lax.scan(forward, scores[:, 0], jnp.swapaxes(scores, 0, 1)[1:])
    step = lambda state, row: (jnp.take_along_axis(row, state[:, None], 1)[:, 0], state)
    first, path = lax.scan(step, best.argmax(1), back, reverse=True)
    return jnp.concatenate([first[None], path]).T, best.max(1)


@algorithm(i32("B"))
def _beam_search(start):
    logits = nn.log_softmax(jnp.asarray(TABLE))

    def step(carry, _):
        tokens, scores = carry
        scores, places = lax.top_k((scores[..., None] + logits[tokens]).reshape(scores.shape[0], -1), 3)
        return (places % 12, scores), (places // 12, places % 12)

    scores = jnp.where(jnp.arange(3) == 0, 0.0, -1e9) + jnp.zeros((start.shape[0], 1))
    return lax.scan(step, (jnp.repeat((start % 12)[:, None], 3, 1), scores), None, length=5)


@algorithm(f32("N", 3))
def _hashed_grid(x):
    x = nn.sigmoid(x) * 16
    corner = jnp.floor(x)
    out = jnp.zeros((x.shape[0], 12))
    for bits in np.ndindex(2, 2, 2):
        i, j, k = jnp.moveaxis((corner.astype(jnp.int32) + jnp.array(bits)).astype(jnp.uint32), 1, 0)
        hashed = i ^ (j * jnp.uint32(2654435761)) ^ (k * jnp.uint32(805459861))
        weight = jnp.prod(jnp.where(jnp.array(bits) == 1, x - corner, 1 - (x - corner)), 1)
        out += weight[:, None] * jnp.asarray(TABLE)[(hashed % 12).astype(jnp.int32)]
    return out


@algorithm(f32("N", 4), f32("N"))
def _suppressed_boxes(corners, score):
    order = jnp.argsort(-score)
    low = corners[order, :2]
    high = low + jnp.exp(corners[order, 2:])
    inside = jnp.clip(jnp.minimum(high[:, None], high) - jnp.maximum(low[:, None], low), 0).prod(-1)
    area = (high - low).prod(-1)
    overlap = inside / (area[:, None] + area - inside)
    places = jnp.arange(score.shape[0])
    keep = lambda i, kept: kept & ~((overlap[i] > 0.3) & (places > i) & kept[i])
    return lax.fori_loop(0, score.shape[0], keep, jnp.ones(score.shape[0], bool)), order


@algorithm(f32("B", 12), f32("B", 12))
def _sampled_tokens(logits, noise):
    values, _ = lax.top_k(logits, 5)
    logits = jnp.where(logits < values[:, -1:], -jnp.inf, logits)
    ordered = jnp.sort(logits, 1)[:, ::-1]
    mass = jnp.cumsum(nn.softmax(ordered), 1)
    least = jnp.take_along_axis(ordered, (mass < 0.8).sum(1, keepdims=True), 1)
    kept = jnp.where(logits < least, -jnp.inf, logits)
    return jnp.argmax(kept - jnp.log(-jnp.log(nn.sigmoid(noise))), 1), nn.softmax(kept)


@algorithm(i32("N"), is_special=True)
def _integer_codes(x):
    step = jnp.diff(x, prepend=0)
    zigzag = (step << 1) ^ (step >> 31)
    octets = jnp.stack([(x.astype(jnp.uint32) >> (8 * k)) & 0xFF for k in range(4)], 1)

    def check(code, octet):
        code = code ^ octet
        for _ in range(8):
            code = jnp.where(code & 1 == 1, (code >> 1) ^ jnp.uint32(0xEDB88320), code >> 1)
        return code, code

    code, _ = lax.scan(check, jnp.uint32(0xFFFFFFFF), octets.reshape(-1))
    return zigzag, jnp.cumsum((zigzag >> 1) ^ -(zigzag & 1)), ~code, lax.population_count(x), lax.clz(x)


@algorithm(i32("H", "W"))
def _game_of_life(cells):
    def step(alive, _):
        near = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
        count = sum(jnp.roll(alive.astype(jnp.int8), shift, (0, 1)) for shift in near)
        alive = (count == 3) | (alive & (count == 2))
        return alive, alive.sum()

    return lax.scan(step, cells % 2 == 1, None, length=4)


@algorithm(f32("B", "T", 3), i32(4), is_special=True)
def _rolled(x, by):
    size = x.shape[1]
    turned = jnp.take(x, (jnp.arange(size) + by[2]) % size, axis=1)
    part = lax.dynamic_slice_in_dim(x, by[1] % size, size // 2 + 1, 1)
    return jnp.roll(x, by[0], axis=1), jnp.roll(x, (by[0], by[1]), (1, 2)), jnp.roll(x, by[3]), turned, part


@algorithm(f32("B", "T", 3), i32(4), constraints=("T >= 3",), is_special=True)
def _windows(x, at):
    ones = jnp.ones((x.shape[0], 2, 3))
    written = lax.dynamic_update_slice_in_dim(x, ones, at[1], 1)
    one = lax.dynamic_index_in_dim(x, at[2] % x.shape[1], 1, False)
    return (
        lax.dynamic_slice_in_dim(x, at[0], 3, 1),
        written,
        one,
        x[:, at],
        x.at[:, at[0]].set(7.0),
        x.at[:, at].add(1.0),
    )


@algorithm(i32("N"))
def _compaction(x):
    keep = x % 3 == 0
    places = jnp.where(keep, jnp.cumsum(keep) - 1, x.shape[0])
    moved = jnp.zeros_like(x).at[places].set(x, mode="drop")
    kinds, inverse, count = jnp.unique(x % 4, size=4, fill_value=-7, return_inverse=True, return_counts=True)
    (found,) = jnp.nonzero(keep, size=4, fill_value=-1)
    return moved, found, kinds, inverse, count, x[jnp.argsort(x % 4)], jnp.lexsort((x, x % 3))


@algorithm(i32("N"), is_special=True)
def _random_integers(seed):
    def step(state, _):
        state = state * jnp.uint32(1664525) + jnp.uint32(1013904223)
        drawn = state ^ (state << 13)
        drawn = drawn ^ (drawn >> 17)
        return state, (drawn ^ (drawn << 5), (drawn >> 8).astype(jnp.float32) / (1 << 24))

    state, drawn = lax.scan(step, seed.astype(jnp.uint32), None, length=4)
    return state, drawn, (state << 7) | (state >> 25), state // 1000, state.astype(jnp.float32)


@algorithm(f32("N", "M"), constraints=("M >= 2",), is_special=True)
def _of_valid_elements(x):
    valid = jnp.isfinite(x)
    known = jnp.nan_to_num(x, nan=0.0, posinf=9.0, neginf=-9.0)
    mean = jnp.where(valid, x, 0).sum(1) / jnp.maximum(valid.sum(1), 1)
    return (
        mean,
        known,
        jnp.nanmean(jnp.where(valid, x, jnp.nan), 1),
        jnp.isnan(x).any(1),
        jnp.argmax(x, 1),
        jnp.sort(x, 1),
    )


@algorithm(f32("N"), f32("M"), i32("N"), i32("M"), is_special=True)
def _searched(x, y, i, j):
    def root(a):
        """Newton's method, in as many steps as each number needs."""
        goes_on = lambda state: (jnp.abs(state[0] ** 2 - a) > 1e-4) & (state[1] < 20)
        return lax.while_loop(goes_on, lambda state: ((state[0] + a / state[0]) / 2, state[1] + 1), (a + 1, 0))

    roots = jax.vmap(root)(jnp.abs(jnp.clip(jnp.nan_to_num(y), -9, 9)))
    return roots, jnp.searchsorted(jnp.sort(x), y), jnp.searchsorted(jnp.sort(i), j)


@algorithm(f32("N"), f32("B", "T"), is_special=True)
def _running(x, y):
    """Running reductions, which ONNX has as loops whose length follows from a size."""
    decay = lambda left, right: (left[0] * right[0], left[1] * right[0] + right[1])
    _, recurrent = lax.associative_scan(decay, (nn.sigmoid(y), y), axis=1)
    return (
        lax.cummax(x),
        lax.cummin(y, axis=1, reverse=True),
        lax.cumprod(nn.tanh(y), axis=1),
        lax.cumlogsumexp(y, axis=1),
        recurrent,
        lax.associative_scan(jnp.maximum, y, axis=1, reverse=True),
    )


@algorithm(f32("N", "M"), is_smallest=True)
def _rows_behind_the_first(x):
    step = lambda state, row: (state * 0.5 + row, state - row)
    both = lax.scan(lambda state, rows: (state + rows[0], rows[0] > rows[1]), x[0], (x[1:], x[:-1]))
    number = lax.scan(lambda state, row: (state + row, state * row), x[0, 0], x[1:, 0])
    return (
        lax.scan(step, x[0], x[1:]),
        lax.scan(step, x[0], x[1:], reverse=True),
        both,
        number,
        lax.cummax(x),
        lax.cumprod(x, 1, reverse=True),
        lax.cumlogsumexp(x, reverse=True),
        lax.associative_scan(jnp.maximum, x),
    )


@algorithm(i32("N"), i32("M"))
def _edit_distance(x, y):
    steps = jnp.arange(y.shape[0] + 1)

    def row(before, letter):
        here = jnp.minimum(before[1:] + 1, before[:-1] + (y % 3 != letter % 3))
        here = lax.cummin(jnp.concatenate([before[:1] + 1, here]) - steps) + steps
        return here, here[-1]

    return lax.scan(row, steps, x)


class Printed(NamedTuple):
    """A program as a crate, with inputs and what JAX computes of them."""

    case: Case
    samples: tuple[tuple[Arrays, Arrays], ...]


@cache
def printed(name: str) -> Printed:
    function, specs, constraints, is_special, is_smallest = ALGORITHMS[name]
    exported = jaxport.to_onnx(function, [*specs], constraints=[*constraints])
    program = in_model_order(jaxport.from_onnx(exported.model))
    case = case_of(to_crate(record_fused(program, reads_sizes=True)), f"algorithm_{name}")
    samples = []
    every = (*SIZES, dict.fromkeys(SIZES[0], 1)) if is_smallest else SIZES
    for sizes, makes_special in (
        (sizes, special) for sizes in every for special in ((False, True) if is_special else (False,))
    ):
        arrays = tuple(drawn(specs, sizes, makes_special))
        expected = map(np.asarray, jax.tree.leaves(jax.jit(function)(*arrays)))
        samples.append((exported.flatten(arrays, {}), dict(zip(program.output_names, expected, strict=True))))
    return Printed(case, tuple(samples))


def drawn(specs: tuple[jax.ShapeDtypeStruct, ...], sizes: Mapping[str, int], is_special: bool) -> Iterator[np.ndarray]:
    """Yield an array for each specification."""
    generator = np.random.default_rng(is_special)
    for one in specs:
        shape = tuple(sizes.get(str(size), size) for size in one.shape)
        if one.dtype == np.int32:
            array = generator.integers(-20, 40, shape).astype(np.int32)
            special: list[float] = [2**31 - 1, -(2**31), -1, 0]
        else:
            array = generator.normal(size=shape).astype(np.float32)
            special = [np.nan, np.inf, -np.inf, -0.0, 1e30]
        if is_special:
            array.ravel()[generator.choice(array.size, len(special[: array.size]), replace=False)] = special[
                : array.size
            ]
        yield array


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Built:
    """The programs of the tests that were selected, in one binary."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build({name: printed(name).case for name in selected(request, "name")}, "algorithms")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_computes_the_same_in_rust(name: str, compiled: Built) -> None:
    assert name not in compiled.errors, compiled.errors[name][0]
    assert name not in compiled.warnings, compiled.warnings[name][0]
    for inputs, wanted in printed(name).samples:
        outputs = compiled.run(name, inputs)
        assert not isinstance(outputs, RunError), outputs
        for key, expected in wanted.items():
            assert (outputs[key].shape, outputs[key].dtype) == (expected.shape, expected.dtype)
            if expected.dtype != np.float32:
                np.testing.assert_array_equal(outputs[key], expected, key)
                continue
            largest = np.max(np.abs(expected), initial=1, where=np.isfinite(expected))
            near = LIMIT * (1 if largest > 1e20 else float(largest))  # beside which others may be of any size
            np.testing.assert_allclose(outputs[key], expected, LIMIT, near, err_msg=key)
