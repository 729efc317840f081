"""Programs of many fields for tests of crates: on graphs, sequences, integers and points."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

from jaxport.testing import f32, i32
from tests.burn.algorithms import PERMUTED, algorithm

FAR = 10**6

# Order -----------------------------------------------------------------------------------------------------------------


@algorithm(i32("B", 16), is_special=True)
def _bitonic_sort(x):
    at = np.arange(16)
    for size in (2, 4, 8, 16):
        gap = size // 2
        while gap:
            other = x[:, at ^ gap]
            rises = (at & size == 0) == (at & gap == 0)
            x = jnp.where(rises, jnp.minimum(x, other), jnp.maximum(x, other))
            gap //= 2
    return x


@algorithm(f32("N"), is_smallest=True)
def _transposition_sort(x):
    size = x.shape[0]
    at = jnp.arange(size)

    def step(turn, x):
        starts = (at % 2 == turn % 2) & (at + 1 < size)
        behind = jnp.roll(starts, 1)
        low, high = jnp.minimum(x, jnp.roll(x, -1)), jnp.maximum(x, jnp.roll(x, 1))
        return jnp.where(starts, low, jnp.where(behind, high, x))

    return lax.fori_loop(0, size, step, x)


@algorithm(i32("N"))
def _radix_sort(x):
    keys = x.astype(jnp.uint32) ^ jnp.uint32(1 << 31)

    def step(bit, keys):
        ones = ((keys >> bit.astype(jnp.uint32)) & 1).astype(jnp.int32)
        before = jnp.cumsum(1 - ones) - (1 - ones)
        zeros = (1 - ones).sum()
        place = jnp.where(ones == 1, zeros + jnp.cumsum(ones) - 1, before)
        return jnp.zeros_like(keys).at[place].set(keys)

    return (lax.fori_loop(0, 32, step, keys) ^ jnp.uint32(1 << 31)).astype(jnp.int32)


@algorithm(i32("N"))
def _rising_subsequence(x):
    size = x.shape[0]
    at = jnp.arange(size)

    def step(i, longest):
        fits = (at < i) & (x < x[i])
        return longest.at[i].set(1 + jnp.max(jnp.where(fits, longest, 0)))

    longest = lax.fori_loop(0, size, step, jnp.zeros(size, jnp.int32))
    return longest, longest.max()


# Graphs ----------------------------------------------------------------------------------------------------------------


@algorithm(i32("N", "N"), is_smallest=True)
def _all_shortest_paths(weights):
    size = weights.shape[0]
    start = jnp.where(jnp.eye(size, dtype=bool), 0, jnp.abs(weights) + 1)
    step = lambda k, d: jnp.minimum(d, d[:, k, None] + d[k, None, :])
    return lax.fori_loop(0, size, step, start)


@algorithm(f32("N", "N"))
def _nearest_first(weights):
    """Dijkstra's algorithm, and the tree of the paths."""
    cost, size = jnp.abs(weights) + 0.1, weights.shape[0]

    def step(_, state):
        far, done, parent = state
        at = jnp.argmin(jnp.where(done, jnp.inf, far))
        through = far[at] + cost[at]
        better = through < far
        return jnp.minimum(far, through), done.at[at].set(True), jnp.where(better, at, parent)

    start = (jnp.full(size, jnp.inf).at[0].set(0.0), jnp.zeros(size, bool), jnp.zeros(size, jnp.int32))
    far, _, parent = lax.fori_loop(0, size, step, start)
    return far, parent


@algorithm(f32("N", "N"))
def _spanning_tree(weights):
    cost = jnp.abs(weights + weights.T)
    size = weights.shape[0]

    def step(state, _):
        joined, total = state
        open_ = joined[:, None] & ~joined[None, :]
        flat = jnp.argmin(jnp.where(open_, cost, jnp.inf))
        at = flat % size
        grows = open_.any()
        return (joined.at[at].set(True), total + jnp.where(grows, cost.ravel()[flat], 0.0)), jnp.where(grows, at, -1)

    return lax.scan(step, (jnp.arange(size) == 0, 0.0), None, length=5)


@algorithm(i32("N", 2), f32("N"))
def _relaxed_edges(edges, length):
    source, target = edges[:, 0] % 6, edges[:, 1] % 6
    length = jnp.abs(length)

    def step(state):
        far, _ = state
        new = far.at[target].min(far[source] + length)
        return new, jnp.any(new < far)

    start = jnp.full(6, 1e6).at[0].set(0.0)
    return lax.while_loop(lambda state: state[1], step, (start, jnp.array(True)))[0]


@algorithm(i32("N", 2))
def _page_rank(edges):
    source, target = edges[:, 0] % 8, edges[:, 1] % 8
    degree = jnp.zeros(8).at[source].add(1.0)

    def step(rank, _):
        share = jnp.where(degree > 0, rank / jnp.maximum(degree, 1), 0)
        new = jax.ops.segment_sum(share[source], target, 8)
        lost = jnp.sum(jnp.where(degree == 0, rank, 0)) / 8
        return 0.15 / 8 + 0.85 * (new + lost), jnp.abs(new - rank).sum()

    return lax.scan(step, jnp.full(8, 1 / 8), None, length=10)


@algorithm(i32("N"))
def _pointer_jumping(parent):
    size = parent.shape[0]
    parent = jnp.minimum(jnp.abs(parent) % size, jnp.arange(size))
    jump = lambda state: (state[0][state[0]], jnp.any(state[0][state[0]] != state[0]))
    root, _ = lax.while_loop(lambda state: state[1], jump, (parent, jnp.array(True)))
    return root, jax.ops.segment_sum(jnp.ones_like(root), root, size)


# Sequences -------------------------------------------------------------------------------------------------------------


@algorithm(i32("N"), i32("M"))
def _local_alignment(x, y):
    """Smith and Waterman's, whose gaps cost as much as they are long: along a row as a running maximum."""
    steps = jnp.arange(y.shape[0])

    def row(before, letter):
        match = jnp.where(y % 4 == letter % 4, 3, -2)
        ahead = jnp.pad(before[:-1], (1, 0)) + match
        here = jnp.maximum(jnp.maximum(ahead, before - 2), 0)
        here = lax.cummax(here + 2 * steps) - 2 * steps
        return here, here.max()

    return lax.scan(row, jnp.zeros_like(y), x)


@algorithm(i32("N"), i32("M"))
def _common_subsequence(x, y):
    def row(before, letter):
        def cell(left, one):
            above, corner, same = one
            here = jnp.where(same, corner + 1, jnp.maximum(above, left))
            return here, here

        _, here = lax.scan(cell, 0, (before[1:], before[:-1], y % 5 == letter % 5))
        here = jnp.pad(here, (1, 0))
        return here, here[-1]

    return lax.scan(row, jnp.zeros(y.shape[0] + 1, jnp.int32), x)


@algorithm(i32("N"), i32("N"))
def _knapsack(weight, value):
    weight, value = jnp.abs(weight) % 7 + 1, jnp.abs(value)
    room = jnp.arange(21)

    def step(best, one):
        w, v = one
        with_it = jnp.where(room >= w, best[jnp.maximum(room - w, 0)] + v, -FAR)
        return jnp.maximum(best, with_it), with_it > best

    return lax.scan(step, jnp.zeros(21, jnp.int32), (weight, value))


@algorithm(i32("N"))
def _stack_machine(code):
    """Odd numbers are pushed; even ones take the two on top and push what is computed of them."""

    def step(state, word):
        stack, top = state
        a, b = stack[jnp.maximum(top - 1, 0)], stack[jnp.maximum(top - 2, 0)]
        made = lax.switch(jnp.abs(word) // 2 % 3, [lambda a, b: a + b, lambda a, b: b - a, lambda a, b: a * b], a, b)
        pushes = (word % 2 != 0) | (top < 2)
        top = jnp.where(pushes, top + 1, top - 1)
        stack = stack.at[top - 1].set(jnp.where(pushes, word, made % 1000))
        return (stack, top), stack[top - 1]

    return lax.scan(step, (jnp.zeros(16, jnp.int32), 0), code)


@algorithm(i32("N"))
def _run_lengths(x):
    x = jnp.abs(x) // 8
    starts = jnp.concatenate([jnp.ones(1, bool), x[1:] != x[:-1]])
    run = jnp.cumsum(starts) - 1
    length = jnp.zeros_like(x).at[run].add(1)
    number = jnp.full_like(x, -1).at[run].set(x)
    ends = jnp.cumsum(length)
    back = number[jnp.searchsorted(ends, jnp.arange(x.shape[0]), side="right")]
    return number, length, back, starts.sum()


@algorithm(i32("N"))
def _moved_to_the_front(x):
    def step(order, letter):
        letter = jnp.abs(letter) % 6
        at = jnp.argmax(order == letter)
        shifted = jnp.where(jnp.arange(6) <= at, jnp.roll(order, 1), order)
        return shifted.at[0].set(letter), at

    return lax.scan(step, jnp.arange(6), x)


@algorithm(i32("B", "T"))
def _nested_brackets(x):
    step = jnp.where(x % 2 == 0, 1, -1)
    depth = jnp.cumsum(step, 1)
    return depth, depth.max(1), (depth.min(1) >= 0) & (depth[:, -1] == 0), jnp.argmin(depth, 1)


@algorithm(f32("B", 6))
def _proposals(preference):
    """Gale and Shapley's: who is free asks the next on the list, who keeps the better one."""
    liked = jnp.argsort(
        -preference[:1] * jnp.arange(1.0, 7.0)[:, None] - jnp.sin(jnp.arange(36.0).reshape(6, 6)), axis=1
    )
    rank = jnp.argsort(jnp.argsort(jnp.cos(jnp.arange(36.0).reshape(6, 6)) + preference.mean(0), axis=1), axis=1)

    def ask(state):
        engaged, asked, partner = state
        one = jnp.argmin(engaged)
        whom = liked[one, asked[one]]
        other = partner[whom]
        wins = (other < 0) | (rank[whom, one] < rank[whom, jnp.maximum(other, 0)])
        engaged = engaged.at[jnp.where(wins & (other >= 0), other, one)].set(False).at[one].set(wins)
        return engaged, asked.at[one].add(1), partner.at[whom].set(jnp.where(wins, one, other))

    start = (jnp.zeros(6, bool), jnp.zeros(6, jnp.int32), jnp.full(6, -1))
    return lax.while_loop(lambda state: ~state[0].all(), ask, start)[2]


# Integers --------------------------------------------------------------------------------------------------------------


@algorithm(i32("N"), is_special=True)
def _murmur_hash(x):
    rotated = lambda v, by: (v << by) | (v >> (32 - by))

    def step(state, word):
        word = rotated(word * jnp.uint32(0xCC9E2D51), 15) * jnp.uint32(0x1B873593)
        return rotated(state ^ word, 13) * jnp.uint32(5) + jnp.uint32(0xE6546B64), None

    state, _ = lax.scan(step, jnp.uint32(42), x.astype(jnp.uint32))
    state = state ^ (4 * jnp.asarray(x.shape[0])).astype(jnp.uint32)
    state = (state ^ (state >> 16)) * jnp.uint32(0x85EBCA6B)
    state = (state ^ (state >> 13)) * jnp.uint32(0xC2B2AE35)
    return state ^ (state >> 16)


@algorithm(i32("N"), is_special=True)
def _morton_codes(x):
    def spread(v):
        v = v & 0x3FF
        for by, mask in ((16, 0x030000FF), (8, 0x0300F00F), (4, 0x030C30C3), (2, 0x09249249)):
            v = (v | (v << by)) & mask
        return v

    bits = x.astype(jnp.uint32)
    code = spread(bits) | (spread(bits >> 10) << 1) | (spread(bits >> 20) << 2)
    gray = x ^ (x >> 1)
    turned = sum(((x >> k) & 1) << (7 - k) for k in range(8))
    return code, gray, turned, x & -x, x & (x - 1)


@algorithm(i32("N"))
def _sieve(x):
    numbers = jnp.arange(64)

    def strike(k, prime):
        multiple = (numbers % jnp.maximum(k, 1) == 0) & (numbers > k)
        return jnp.where((k > 1) & prime[k], prime & ~multiple, prime)

    prime = lax.fori_loop(0, 9, strike, numbers > 1)
    return prime[jnp.abs(x) % 64], jnp.cumsum(prime)[jnp.abs(x) % 64]


@algorithm(i32("N"), i32("N"), is_special=True)
def _of_divisors(x, y):
    x, y = jnp.abs(x % 1000) + 1, jnp.abs(y % 1000) + 1

    def power(base, exponent):
        def step(k, state):
            base, total = state
            return base * base % 1009, jnp.where((exponent >> k) & 1 == 1, total * base % 1009, total)

        return lax.fori_loop(0, 10, step, (base, 1))[1]

    def collatz(number):
        step = lambda state: (jnp.where(state[0] % 2 == 0, state[0] // 2, 3 * state[0] + 1), state[1] + 1)
        return lax.while_loop(lambda state: (state[0] != 1) & (state[1] < 200), step, (number, 0))[1]

    return jnp.gcd(x, y), jnp.lcm(x, y), jax.vmap(power)(x, y), jax.vmap(collatz)(x)


@algorithm(i32("N"), is_special=True)
def _dates(day):
    """Year, month and day of a number of days, also before the first: divisions are rounded down."""
    day = day % 4_000_000 - 1_000_000 + 719468
    era = day // 146097
    inside = day - era * 146097
    year = (inside - inside // 1460 + inside // 36524 - inside // 146096) // 365
    of_year = inside - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    date = of_year - (153 * month + 2) // 5 + 1
    month = jnp.where(month < 10, month + 3, month - 9)
    return year + era * 400 + (month <= 2), month, date, (day + 3) % 7


@algorithm(i32("N", "M"))
def _elementary_automaton(cells):
    def step(row, _):
        pattern = 4 * jnp.roll(row, 1, 1) + 2 * row + jnp.roll(row, -1, 1)
        row = (110 >> pattern) & 1
        return row, row.sum(1)

    return lax.scan(step, cells % 2, None, length=5)


@algorithm(i32("N"))
def _queens(seed):
    """Counts ways to set queens on six rows with a stack of bit masks, beginning in the columns of a seed."""
    full = 63

    def count(first):
        def step(state):
            row, free, used, total = state
            bits = free[row]
            bit = bits & -bits
            left, down, right = used[row]
            free = free.at[row].set(bits & ~bit)
            after = jnp.stack([(left | bit) << 1, down | bit, (right | bit) >> 1])
            opened = full & ~(after[0] | after[1] | after[2])
            done, deeper = (bit != 0) & (row == 5), (bit != 0) & (row < 5)
            used = used.at[row + 1].set(jnp.where(deeper, after, used[row + 1]))
            free = free.at[row + 1].set(jnp.where(deeper, opened, free[row + 1]))
            return jnp.where(deeper, row + 1, jnp.where(bit == 0, row - 1, row)), free, used, total + done

        start = (jnp.array(0), jnp.zeros(7, jnp.int32).at[0].set(first), jnp.zeros((7, 3), jnp.int32), 0)
        return lax.while_loop(lambda state: state[0] >= 0, step, start)[3]

    return jax.vmap(count)(seed & full)


@algorithm(i32("N"))
def _unpacked(code):
    """Copies of what was written before, as LZ77 has them: one number is a letter or a distance."""
    size = code.shape[0]

    def step(at, out):
        back = jnp.abs(code[at]) % 4 + 1
        copies = (code[at] % 3 == 0) & (at >= back)
        return out.at[at].set(jnp.where(copies, out[jnp.maximum(at - back, 0)], code[at]))

    return lax.fori_loop(0, size, step, jnp.zeros_like(code))


@algorithm(i32("N"), f32("N", 4), is_smallest=True)
def _reduced_windows(x, y):
    """There is none where there are fewer elements than a window has."""
    return (
        lax.reduce_window(x, -(2**31), lax.max, (3,), (2,), "VALID"),
        lax.reduce_window(x, 2**31 - 1, lax.min, (4,), (1,), "VALID"),
        lax.reduce_window(x, 0, lax.add, (3,), (1,), "VALID"),
        lax.reduce_window(y, -jnp.inf, lax.max, (2, 2), (2, 1), "VALID"),
        lax.reduce_window(y, 0.0, lax.add, (3, 1), (1, 1), "VALID"),
    )


# Points ----------------------------------------------------------------------------------------------------------------


@algorithm(f32("N", 2), f32("M", 2))
def _inside_a_polygon(corners, points):
    following = jnp.roll(corners, -1, 0)
    x, y = points[:, None, 0], points[:, None, 1]
    (xa, ya), (xb, yb) = corners.T, following.T
    crosses = (ya > y) != (yb > y)
    at = xa + (y - ya) * (xb - xa) / jnp.where(yb == ya, 1, yb - ya)
    area = 0.5 * jnp.sum(xa * yb - xb * ya)
    return (crosses & (x < at)).sum(1) % 2 == 1, area


@algorithm(f32("N", 2))
def _wrapped_points(points):
    """The hull: from the leftmost point on, what no other is to the right of."""
    first = jnp.argmin(points[:, 0])

    def step(state, _):
        at, closed = state

        def compare(best, candidate):
            a, b = points[best] - points[at], points[candidate] - points[at]
            side = a[0] * b[1] - a[1] * b[0]
            takes = (best == at) | ((candidate != at) & (side < 0))
            return jnp.where(takes, candidate, best), None

        best, _ = lax.scan(compare, at, jnp.arange(points.shape[0]))
        closed = closed | (best == first)
        return (best, closed), jnp.where(closed, -1, best)

    return lax.scan(step, (first, jnp.array(False)), None, length=6)[1]


@algorithm(f32("N", 2), is_smallest=True)
def _curve(points):
    """De Casteljau's, at eight places, for as many points as there are."""
    t = jnp.linspace(0, 1, 8)[:, None, None]
    size = points.shape[0]

    def step(k, rows):
        return jnp.where(k < size - 1, (1 - t) * rows + t * jnp.roll(rows, -1, 1), rows)

    rows = lax.fori_loop(0, size, step, jnp.broadcast_to(points, (8, *points.shape)))
    return rows[:, 0]


@algorithm(f32("N", 4), f32("N", 4), f32("N"))
def _turned_between(a, b, share):
    a, b = a / jnp.linalg.norm(a, axis=1, keepdims=True), b / jnp.linalg.norm(b, axis=1, keepdims=True)
    cosine = (a * b).sum(1, keepdims=True)
    b, cosine = jnp.where(cosine < 0, -b, b), jnp.abs(cosine)
    t = nn.sigmoid(share)[:, None]
    angle = jnp.arccos(jnp.clip(cosine, -1, 0.999))
    mixed = (jnp.sin((1 - t) * angle) * a + jnp.sin(t * angle) * b) / jnp.sin(angle)
    w, x, y, z = mixed.T
    turn = jnp.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], 1)
    return mixed, turn


@algorithm(f32("N", 2))
def _simplex_noise(points):
    skew, back = (np.sqrt(3) - 1) / 2, (3 - np.sqrt(3)) / 6
    cell = jnp.floor(points + points.sum(1, keepdims=True) * skew)
    first = points - (cell - cell.sum(1, keepdims=True) * back)
    upper = first[:, 0] > first[:, 1]
    middle = jnp.stack([upper, ~upper], 1).astype(jnp.float32)
    table, angles = jnp.asarray(PERMUTED), jnp.arange(64) * (np.pi / 32)
    total = 0.0
    for corner in (jnp.zeros(2), middle, jnp.ones(2)):
        away = first - corner + jnp.sum(jnp.broadcast_to(corner, first.shape), 1, keepdims=True) * back
        whole = (cell + corner).astype(jnp.int32)
        angle = angles[table[(table[whole[:, 0] & 63] + whole[:, 1]) & 63]]
        fall = jnp.maximum(0.5 - (away**2).sum(1), 0) ** 4
        total += fall * (jnp.cos(angle) * away[:, 0] + jnp.sin(angle) * away[:, 1])
    return 70 * total
