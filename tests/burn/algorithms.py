"""Programs of many fields for tests of crates: how they are written down, and those of numbers, signals, images and models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

from jaxport.testing import f32, i32

PERMUTED = np.random.default_rng(7).permutation(64).astype(np.int32)


class Algorithm(NamedTuple):
    """A program.

    Attributes:
      function: of arrays.
      specs: what it takes.
      constraints: of the sizes.
      is_special: whether floats that are not finite, and the ends of integers, are among what it is given.
      is_smallest: whether it is also run with all sizes 1.
    """

    function: Callable[..., Any]
    specs: tuple[jax.ShapeDtypeStruct, ...]
    constraints: tuple[str, ...] = ()
    is_special: bool = False
    is_smallest: bool = False


ALGORITHMS: dict[str, Algorithm] = {}


def algorithm(*specs: jax.ShapeDtypeStruct, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a program to those that are tested, by the name of its function."""

    def added(function: Callable[..., Any]) -> Callable[..., Any]:
        ALGORITHMS[function.__name__.strip("_")] = Algorithm(function, specs, **options)
        return function

    return added


# Filters and signals ---------------------------------------------------------------------------------------------------


@algorithm(f32("T", 2), is_smallest=True)
def _kalman_filter(seen):
    moves, noise = jnp.array([[1.0, 0.1], [0.0, 1.0]]), 0.05 * jnp.eye(2)

    def step(state, measured):
        mean, spread = state
        mean, spread = moves @ mean, moves @ spread @ moves.T + noise
        total = spread + 0.3 * jnp.eye(2)
        a, b, c, d = total.ravel()
        gain = spread @ (jnp.array([[d, -b], [-c, a]]) / (a * d - b * c))
        mean = mean + gain @ (measured - mean)
        return (mean, spread - gain @ spread), mean

    return lax.scan(step, (jnp.zeros(2), jnp.eye(2)), seen)


@algorithm(f32("B", 16), f32(5))
def _convolved_by_spectra(x, kernel):
    spectrum = jnp.fft.rfft(x, 32) * jnp.fft.rfft(kernel, 32)
    return jnp.fft.irfft(spectrum, 32)[:, :20], jnp.abs(jnp.fft.rfft(x * jnp.hanning(16))) ** 2


@algorithm(f32("B", 16))
def _wavelets(x):
    details = []
    for _ in range(4):
        even, odd = x[:, ::2], x[:, 1::2]
        details.append((even - odd) / np.sqrt(2))
        x = (even + odd) / np.sqrt(2)
    lifted = x
    for detail in reversed(details):
        both = jnp.stack([lifted + detail, lifted - detail], -1) / np.sqrt(2)
        lifted = both.reshape(both.shape[0], -1)
    return jnp.concatenate([x, *reversed(details)], 1), lifted


@algorithm(f32("T"), is_smallest=True)
def _goertzel(x):
    def power(coefficient):
        (last, before), _ = lax.scan(lambda s, v: ((v + coefficient * s[0] - s[1], s[0]), None), (0.0, 0.0), x)
        return last**2 + before**2 - coefficient * last * before

    return jax.vmap(power)(2 * jnp.cos(jnp.linspace(0.1, 3.0, 6)))


@algorithm(f32("N"), is_smallest=True)
def _welford(x):
    def step(state, value):
        count, mean, squares = state
        count = count + 1
        delta = value - mean
        mean = mean + delta / count
        squares = squares + delta * (value - mean)
        return (count, mean, squares), (mean, squares / count)

    return lax.scan(step, (0, 0.0, 0.0), x)


# Images ----------------------------------------------------------------------------------------------------------------


@algorithm(f32("H", "W"), constraints=("H >= 3", "W >= 3"))
def _edges(image):
    padded = jnp.pad(image, 1, mode="edge")
    part = lambda i, j: padded[i : i + image.shape[0], j : j + image.shape[1]]
    across = part(0, 2) + 2 * part(1, 2) + part(2, 2) - part(0, 0) - 2 * part(1, 0) - part(2, 0)
    down = part(2, 0) + 2 * part(2, 1) + part(2, 2) - part(0, 0) - 2 * part(0, 1) - part(0, 2)
    size = jnp.hypot(across, down)
    sector = jnp.round(jnp.arctan2(down, across) / (jnp.pi / 4)).astype(jnp.int32) % 4
    around = jnp.pad(size, 1)
    near = lambda i, j: around[1 + i : 1 + i + size.shape[0], 1 + j : 1 + j + size.shape[1]]
    pairs = [jnp.maximum(near(i, j), near(-i, -j)) for i, j in ((0, 1), (1, 1), (1, 0), (1, -1))]
    return jnp.where(size >= jnp.select([sector == k for k in range(4)], pairs), size, 0)


@algorithm(f32("H", "W"))
def _median_filter(image):
    padded = jnp.pad(image, 1, mode="reflect" if image.shape[0] == 0 else "edge")
    rows = [padded[i : i + image.shape[0], j : j + image.shape[1]] for i in range(3) for j in range(3)]
    return jnp.sort(jnp.stack(rows), 0)[4]


@algorithm(f32("H", "W"))
def _otsu(image):
    level = jnp.clip((nn.sigmoid(image) * 16).astype(jnp.int32), 0, 15)
    counts = jnp.zeros(16).at[level.ravel()].add(1.0)
    weight, mass = jnp.cumsum(counts), jnp.cumsum(counts * jnp.arange(16))
    below, above = mass / jnp.maximum(weight, 1), (mass[-1] - mass) / jnp.maximum(weight[-1] - weight, 1)
    between = weight * (weight[-1] - weight) * (below - above) ** 2
    return level > jnp.argmax(between), counts


@algorithm(i32("H", "W"))
def _components(image):
    """Labels of areas: each takes the least label beside it until none changes."""
    height, width = image.shape
    inside = image % 3 != 0
    labels = jnp.where(inside, jnp.arange(height * width).reshape(height, width), 10**6)

    def spread(state):
        labels, _ = state
        around = jnp.pad(labels, 1, constant_values=10**6)
        near = jnp.minimum(
            jnp.minimum(around[:-2, 1:-1], around[2:, 1:-1]), jnp.minimum(around[1:-1, :-2], around[1:-1, 2:])
        )
        new = jnp.where(inside, jnp.minimum(labels, near), labels)
        return new, jnp.any(new != labels)

    return lax.while_loop(lambda state: state[1], spread, (labels, jnp.array(True)))[0]


@algorithm(f32("H", "W"))
def _integral_image(image):
    table = jnp.pad(jnp.cumsum(jnp.cumsum(image, 0), 1), ((1, 0), (1, 0)))
    height, width = image.shape
    low = lambda size: jnp.maximum(jnp.arange(size) - 1, 0)
    high = lambda size: jnp.minimum(jnp.arange(size) + 2, size)
    corner = lambda rows, columns: table[rows[:, None], columns]
    total = corner(high(height), high(width)) - corner(low(height), high(width))
    total = total - corner(high(height), low(width)) + corner(low(height), low(width))
    return total / ((high(height) - low(height))[:, None] * (high(width) - low(width)))


@algorithm(f32("B", 8, 8))
def _jpeg_blocks(blocks):
    k, n = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    basis = np.cos(np.pi * (2 * n + 1) * k / 16) * np.where(k == 0, np.sqrt(1 / 8), 0.5)
    basis = basis.astype(np.float32)
    zigzag = sorted(np.ndindex(8, 8), key=lambda at: (sum(at), at[0] if sum(at) % 2 else at[1]))
    order = np.array([8 * i + j for i, j in zigzag])
    spectrum = basis @ blocks @ basis.T
    whole = jnp.round(spectrum / (0.2 + 0.1 * (k + n)))
    line = whole.reshape(-1, 64)[:, order]
    back = basis.T @ (whole * (0.2 + 0.1 * (k + n))) @ basis
    return line.astype(jnp.int32), back, 63 - jnp.argmax(line[:, ::-1] != 0, 1)


@algorithm(f32("N", 2), is_special=False)
def _perlin_noise(points):
    points = points * 2
    corner = jnp.floor(points)
    inside = points - corner
    table = jnp.asarray(PERMUTED)
    angles = jnp.arange(64) * (2 * np.pi / 64)
    fade = inside**3 * (inside * (inside * 6 - 15) + 10)

    def gradient(dx, dy):
        cell = corner.astype(jnp.int32) + jnp.array([dx, dy])
        hashed = table[(table[cell[:, 0] & 63] + cell[:, 1]) & 63]
        away = inside - jnp.array([dx, dy])
        return jnp.cos(angles[hashed]) * away[:, 0] + jnp.sin(angles[hashed]) * away[:, 1]

    low = gradient(0, 0) + fade[:, 0] * (gradient(1, 0) - gradient(0, 0))
    high = gradient(0, 1) + fade[:, 0] * (gradient(1, 1) - gradient(0, 1))
    return low + fade[:, 1] * (high - low)


@algorithm(f32("N", 3))
def _marched_rays(direction):
    direction = direction / (jnp.linalg.norm(direction, axis=1, keepdims=True) + 1e-6)
    distance = lambda p: jnp.minimum(
        jnp.linalg.norm(p - jnp.array([0.0, 0.0, 3.0]), axis=1) - 1, jnp.abs(p[:, 1] + 1.5)
    )

    def step(_, state):
        travelled, hit = state
        gap = distance(travelled[:, None] * direction)
        hit = hit | (gap < 1e-3)
        return jnp.where(hit, travelled, jnp.minimum(travelled + gap, 20.0)), hit

    travelled, hit = lax.fori_loop(0, 24, step, (jnp.zeros(direction.shape[0]), jnp.zeros(direction.shape[0], bool)))
    return jnp.where(travelled < 19, travelled, 20.0), hit | (travelled > 1e9)


@algorithm(f32("H", "W"), constraints=("W >= 2", "H >= 2"))
def _escape_times(offset):
    height, width = offset.shape
    x = jnp.linspace(-2, 0.5, width) + 0.01 * jnp.tanh(offset)
    y = jnp.linspace(-1.2, 1.2, height)[:, None] + jnp.zeros_like(offset)

    def step(state, _):
        a, b, count = state
        alive = a * a + b * b <= 4
        a, b = jnp.where(alive, a * a - b * b + x, a), jnp.where(alive, 2 * a * b + y, b)
        return (a, b, count + alive), None

    return lax.scan(step, (x * 0, y * 0, jnp.zeros(offset.shape, jnp.int32)), None, length=6)[0][2]


# Models and probabilities ----------------------------------------------------------------------------------------------


@algorithm(f32("B", "T", 5), i32("B", 3))
def _connectionist_loss(logits, labels):
    """Of all ways to spell the labels with blanks between."""
    labels = labels % 4 + 1
    spelled = jnp.zeros((labels.shape[0], 7), jnp.int32).at[:, 1::2].set(labels)
    skips = (spelled != 0) & (spelled != jnp.roll(spelled, 2, 1)) & (jnp.arange(7) >= 2)
    scores = jnp.take_along_axis(nn.log_softmax(logits), spelled[:, None, :], 2)
    first = jnp.where(jnp.arange(7) < 2, scores[:, 0], -1e9)

    def step(before, score):
        one = jnp.pad(before[:, :-1], ((0, 0), (1, 0)), constant_values=-1e9)
        two = jnp.where(skips, jnp.pad(before[:, :-2], ((0, 0), (2, 0)), constant_values=-1e9), -1e9)
        return jnp.logaddexp(jnp.logaddexp(before, one), two) + score, None

    last, _ = lax.scan(step, first, jnp.swapaxes(scores, 0, 1)[1:])
    return -jnp.logaddexp(last[:, -1], last[:, -2])


@algorithm(f32("B", "T", 4))
def _forward_backward(scores):
    moves = nn.log_softmax(jnp.sin(jnp.arange(16.0).reshape(4, 4)))
    by_time = jnp.swapaxes(scores, 0, 1)

    def forward(state, score):
        state = nn.logsumexp(state[:, :, None] + moves, axis=1) + score
        return state, state

    def backward(state, score):
        return nn.logsumexp(moves + (state + score)[:, None, :], axis=2), state

    _, ahead = lax.scan(forward, jnp.zeros_like(by_time[0]), by_time)
    _, behind = lax.scan(backward, jnp.zeros_like(by_time[0]), by_time, reverse=True)
    return nn.softmax(ahead + behind, axis=-1)


@algorithm(f32("N"), f32("N"))
def _resampled_particles(weight, place):
    share = nn.softmax(weight)
    marks = (jnp.arange(share.shape[0]) + 0.37) / share.shape[0]
    chosen = jnp.searchsorted(jnp.cumsum(share), marks)
    chosen = jnp.minimum(chosen, share.shape[0] - 1)
    return place[chosen], 1 / jnp.sum(share**2)


@algorithm(f32("N", 2))
def _mixture_of_gaussians(x):
    def step(state, _):
        means, spread, share = state
        far = ((x[:, None] - means) ** 2).sum(-1)
        score = jnp.log(share) - far / (2 * spread) - jnp.log(spread)
        member = nn.softmax(score, axis=1)
        mass = member.sum(0) + 1e-3
        means = member.T @ x / mass[:, None]
        spread = (member * far).sum(0) / (2 * mass) + 0.1
        return (means, spread, mass / mass.sum()), nn.logsumexp(score, axis=1).mean()

    start = (jnp.array([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), jnp.ones(3), jnp.full(3, 1 / 3))
    return lax.scan(step, start, None, length=6)


@algorithm(f32("N", 3), f32("N"))
def _logistic_regression(x, y):
    label = (y > 0).astype(jnp.float32)

    def newton(weights, _):
        p = nn.sigmoid(x @ weights)
        slope = x.T @ (p - label) + 0.1 * weights
        curve = (x * (p * (1 - p))[:, None]).T @ x + 0.1 * jnp.eye(3)
        a, b, c = curve
        scale = jnp.dot(a, jnp.cross(b, c))
        inverse = jnp.stack([jnp.cross(b, c), jnp.cross(c, a), jnp.cross(a, b)], 1) / scale
        return weights - inverse @ slope, scale

    return lax.scan(newton, jnp.zeros(3), None, length=4)


@algorithm(f32("N", "M"))
def _optimal_transport(cost):
    kernel = -jnp.abs(cost) / 0.5

    def step(state, _):
        f, g = state
        f = -nn.logsumexp(kernel + g[None, :], axis=1) - jnp.log(cost.shape[0] * 1.0)
        g = -nn.logsumexp(kernel + f[:, None], axis=0) - jnp.log(cost.shape[1] * 1.0)
        return (f, g), None

    (f, g), _ = lax.scan(step, (jnp.zeros(cost.shape[0]), jnp.zeros(cost.shape[1])), None, length=8)
    plan = jnp.exp(kernel + f[:, None] + g)
    return plan, plan.sum(1), jnp.sum(plan * jnp.abs(cost))


@algorithm(f32("N", 4))
def _principal_component(x):
    x = x - x.mean(0)
    covariance = x.T @ x / x.shape[0] + jnp.diag(jnp.array([3.0, 1.0, 0.5, 0.1]))
    step = lambda v, _: ((covariance @ v) / jnp.linalg.norm(covariance @ v), v @ covariance @ v)
    return lax.scan(step, jnp.full(4, 0.5), None, length=12)


@algorithm(f32("N", 2))
def _neighbour_affinities(x):
    """Each row's bandwidth by bisection, so that all rows have the same entropy."""
    far = ((x[:, None] - x) ** 2).sum(-1) + 1e9 * jnp.eye(x.shape[0])

    def entropy(row, beta):
        p = nn.softmax(-row * beta)
        return -(p * jnp.log(p + 1e-12)).sum()

    def bandwidth(row):
        def halve(_, ends):
            low, high = ends
            middle = (low + high) / 2
            return jnp.where(entropy(row, middle) > 1.0, middle, low), jnp.where(
                entropy(row, middle) > 1.0, high, middle
            )

        low, high = lax.fori_loop(0, 16, halve, (0.0, 50.0))
        return (low + high) / 2

    beta = jax.vmap(bandwidth)(far)
    return nn.softmax(-far * beta[:, None], axis=1)


# Equations -------------------------------------------------------------------------------------------------------------


@algorithm(f32("N", 3), is_smallest=True)
def _lorenz(start):
    def slope(s):
        x, y, z = s[:, 0], s[:, 1], s[:, 2]
        return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], 1)

    def step(state, _):
        a = slope(state)
        b = slope(state + 0.005 * a)
        c = slope(state + 0.005 * b)
        d = slope(state + 0.01 * c)
        state = state + 0.01 / 6 * (a + 2 * b + 2 * c + d)
        return state, state.mean(0)

    return lax.scan(step, start, None, length=12)


@algorithm(f32("N", 3), f32("N"))
def _bodies(place, mass):
    mass = nn.softplus(mass)

    def pull(place):
        apart = place[None] - place[:, None]
        near = ((apart**2).sum(-1) + 0.1) ** -1.5
        return (apart * (near * mass)[..., None]).sum(1)

    def leap(state, _):
        place, speed = state
        speed = speed + 0.01 * pull(place)
        place = place + 0.02 * speed
        return (place, speed + 0.01 * pull(place)), (mass * (speed**2).sum(1)).sum()

    return lax.scan(leap, (place, jnp.zeros_like(place)), None, length=5)


@algorithm(f32("H", "W"), is_smallest=True)
def _heat(plate):
    kernel = jnp.array([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]

    def step(plate, _):
        flow = lax.conv_general_dilated(plate[None, None], kernel, (1, 1), "SAME")[0, 0]
        return plate + 0.2 * flow, jnp.abs(flow).max()

    return lax.scan(step, plate, None, length=5)


@algorithm(f32("N", "N"), f32("N"))
def _conjugate_gradient(a, b):
    a = a @ a.T + 3 * jnp.eye(b.shape[0])

    def step(state):
        x, rest, direction, count = state
        moved = a @ direction
        length = rest @ rest / (direction @ moved)
        x, new = x + length * direction, rest - length * moved
        return x, new, new + (new @ new) / (rest @ rest) * direction, count + 1

    goes_on = lambda state: (state[1] @ state[1] > 1e-3) & (state[3] < 4)
    x, *_ = lax.while_loop(goes_on, step, (jnp.zeros_like(b), b, b, 0))
    return a @ x


@algorithm(f32("N", "N"), f32("N"))
def _elimination(a, b):
    """With the largest element of a column as its pivot."""
    size = b.shape[0]
    rows = jnp.concatenate([a + 0.5 * jnp.eye(size), b[:, None]], 1)

    def step(k, rows):
        column = jnp.where(jnp.arange(size) >= k, jnp.abs(rows[:, k]), -1.0)
        at = jnp.argmax(column)
        rows = rows.at[jnp.stack([k, at])].set(rows[jnp.stack([at, k])])
        factor = jnp.where(jnp.arange(size) == k, 0.0, rows[:, k] / rows[k, k])
        return rows - factor[:, None] * rows[k]

    rows = lax.fori_loop(0, size, step, rows)
    x = rows[:, -1] / jnp.diagonal(rows)
    return (a + 0.5 * jnp.eye(size)) @ x - b


@algorithm(f32("B", 4, 3))
def _orthogonal_columns(a):
    columns = []
    for k in range(3):
        column = a[:, :, k]
        for other in columns:
            column = column - (column * other).sum(1, keepdims=True) * other
        columns.append(column / (jnp.linalg.norm(column, axis=1, keepdims=True) + 1e-6))
    q = jnp.stack(columns, 2)
    return q, jnp.triu(jnp.swapaxes(q, 1, 2) @ a)


@algorithm(f32("B", 3, 3))
def _matrix_exponential(a):
    small = a / 8
    term = total = jnp.broadcast_to(jnp.eye(3), a.shape)
    for k in range(1, 8):
        term = term @ small / k
        total = total + term
    for _ in range(3):
        total = total @ total
    return total
