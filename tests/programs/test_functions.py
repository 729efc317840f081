"""Plain functions: numerics, signals, images, sequences, graphs, and random numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxport.testing import boolean, f32, i32, spec
from tests.programs.checker import program

KEY = jax.random.key(0)

# -- normalization and losses ------------------------------------------------------------------------------------------


@program(f32("B", "T", 8), f32(8), f32(8))
def test_layer_norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-6) * scale + bias


@program(f32("B", "T", 7), i32("B", "T"), boolean("B", "T"))
def test_cross_entropy_with_a_mask(logits, labels, mask):
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    return jnp.sum(losses * mask) / jnp.maximum(mask.sum(), 1)


@program(f32("B", 6), f32("B", 6))
def test_contrastive_loss(left, right):
    left, right = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (left, right))
    logits = left @ right.T / 0.1
    labels = jnp.arange(left.shape[0])
    picked = lambda scores: jnp.take_along_axis(jax.nn.log_softmax(scores, axis=-1), labels[:, None], axis=1)
    return -(picked(logits) + picked(logits.T)).mean() / 2


@program(f32("B", "T", 8), f32("B", "T", 8), f32("B", "T", 8), i32("B"))
def test_attention_with_lengths_and_a_causal_mask(query, key, value, lengths):
    positions = jnp.arange(query.shape[1])
    mask = (positions[:, None] >= positions)[None] & (positions[None, None] < lengths[:, None, None])
    scores = jnp.einsum("bqd,bkd->bqk", query, key) / jnp.sqrt(8.0)
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return jnp.einsum("bqk,bkd->bqd", weights, value)


# -- sequences ---------------------------------------------------------------------------------------------------------


@program(f32(2, 5), f32(5, 5))
def test_beam_search(start, transitions):
    width, steps = 3, 4
    batch, tokens = start.shape
    log_probabilities = jax.nn.log_softmax(transitions)

    def step(state):
        index, scores, texts = state
        candidates = scores[..., None] + log_probabilities[texts[..., index]]
        scores, best = lax.top_k(candidates.reshape(batch, width * tokens), width)
        texts = jnp.take_along_axis(texts, (best // tokens)[..., None], axis=1)
        return index + 1, scores, texts.at[:, :, index + 1].set(best % tokens)

    scores, first = lax.top_k(jax.nn.log_softmax(start), width)
    texts = jnp.zeros((batch, width, steps + 1), jnp.int32).at[:, :, 0].set(first)
    _, scores, texts = lax.while_loop(lambda state: state[0] < steps, step, (0, scores, texts))
    return scores, texts


@program(f32("B", 11), KEY)
def test_sampling_among_the_top_k(logits, key):
    values, indices = lax.top_k(logits, 4)
    chosen = jax.random.categorical(key, values / 0.7)
    return jnp.take_along_axis(indices, chosen[:, None], axis=1)[:, 0]


@program(f32("B", 11), KEY)
def test_sampling_from_the_nucleus(logits, key):
    order = jnp.argsort(-logits, axis=-1)
    ranked = jnp.take_along_axis(logits, order, axis=-1)
    probabilities = jax.nn.softmax(ranked, axis=-1)
    kept = jnp.cumsum(probabilities, axis=-1) - probabilities < 0.8
    chosen = jax.random.categorical(key, jnp.where(kept, ranked, -jnp.inf))
    return jnp.take_along_axis(order, chosen[:, None], axis=-1)


@program(i32("B", 4), f32(9, 6), f32(6, 9), KEY)
def test_generation_with_a_key_per_step(prompt, embedding, head, key):
    def step(carry, key):
        texts, last = carry
        logits = jnp.tanh(embedding[last] + embedding[texts].mean(1)) @ head
        token = jax.random.categorical(key, logits).astype(jnp.int32)
        return (jnp.roll(texts, -1, axis=1).at[:, -1].set(token), token), token

    _, tokens = lax.scan(step, (prompt, prompt[:, -1]), jax.random.split(key, 5))
    return tokens.T


@program(f32(9, 6), i32(3))
def test_connectionist_temporal_classification(logits, labels):
    steps = jax.nn.log_softmax(logits)
    extended = jnp.zeros(2 * labels.shape[0] + 1, jnp.int32).at[1::2].set(labels)
    skips = (extended != 0) & (extended != jnp.roll(extended, 2)) & (jnp.arange(extended.shape[0]) > 1)
    nothing = jnp.full(extended.shape, -1e30)

    def step(alpha, scores):
        one = jnp.concatenate([nothing[:1], alpha[:-1]])
        two = jnp.where(skips, jnp.concatenate([nothing[:2], alpha[:-2]]), -1e30)
        return jax.nn.logsumexp(jnp.stack([alpha, one, two]), axis=0) + scores[extended], None

    alpha, _ = lax.scan(step, nothing.at[:2].set(steps[0][extended[:2]]), steps[1:])
    return -jnp.logaddexp(alpha[-1], alpha[-2])


@program(f32("T", 4), f32(4, 4))
def test_viterbi(emissions, transitions):
    def forward(scores, emission):
        candidates = scores[:, None] + transitions
        return candidates.max(0) + emission, candidates.argmax(0)

    scores, back = lax.scan(forward, emissions[0], emissions[1:])
    last = scores.argmax()
    _, path = lax.scan(lambda tag, pointers: (pointers[tag], tag), last, back, reverse=True)
    return scores.max(), path, last


@program(f32("B", "T", 4), i32("B", "T"), f32(4, 4))
def test_conditional_random_field(emissions, tags, transitions):
    def likelihood(emissions, tags):
        gold = jnp.take_along_axis(emissions, tags[:, None], axis=1).sum() + transitions[tags[:-1], tags[1:]].sum()
        forward = lambda alpha, emission: (jax.nn.logsumexp(alpha[:, None] + transitions, axis=0) + emission, None)
        alpha, _ = lax.scan(forward, emissions[0], emissions[1:])
        return gold - jax.nn.logsumexp(alpha)

    return jax.vmap(likelihood)(emissions, tags)


@program(f32("B", "T", 5), f32(5, 5), f32(5, 5), f32("B", 5))
def test_recurrence_by_scan(x, w, u, start):
    def step(h, v):
        h = jnp.tanh(v @ w + h @ u)
        return h, h

    last, states = lax.scan(step, start, x.swapaxes(0, 1))
    return last, states.swapaxes(0, 1)


@program(f32("B", 6, 4), f32("B", 6, 4))  # JAX halves the axis in Python: it has to have a size
def test_state_space_model_by_associative_scan(decay, x):
    decay = jax.nn.sigmoid(decay)
    combine = lambda left, right: (left[0] * right[0], right[0] * left[1] + right[1])
    return lax.associative_scan(combine, (decay, x), axis=1)[1]


@program(i32("B", 12))
def test_tokeniser_by_lookup_tables(characters):
    kinds = jnp.array([0, 1, 1, 2, 0, 2, 1, 0, 2, 1, 0, 1])
    kind = kinds[characters % 12]
    starts = jnp.concatenate([jnp.ones_like(kind[:, :1], bool), kind[:, 1:] != kind[:, :-1]], axis=1)
    word = jnp.cumsum(starts, axis=1) - 1
    hashes = jax.vmap(lambda word, value: jax.ops.segment_sum(value, word, num_segments=12))(word, characters * 31 + 7)
    return word, jnp.abs(hashes) % 97


@program(f32("T", 3), f32("N", 3))
def test_dynamic_time_warping(first, second):
    costs = jnp.abs(first[:, None] - second[None]).sum(-1)

    def row(previous, cost):
        def cell(left, item):
            up, diagonal, c = item
            best = c + jnp.minimum(jnp.minimum(left, up), diagonal)
            return best, best

        diagonals = jnp.concatenate([jnp.full(1, 1e9), previous[:-1]])
        _, values = lax.scan(cell, jnp.float32(1e9), (previous, diagonals, cost))
        return values, values[-1]

    return lax.scan(row, jnp.cumsum(costs[0]), costs[1:])


# -- signals -----------------------------------------------------------------------------------------------------------


@program(f32("B", 64))
def test_spectrogram(x):
    frames = jnp.stack([x[:, start : start + 16] for start in range(0, 49, 8)], axis=1)
    return jnp.abs(jnp.fft.rfft(frames * jnp.hanning(16))) ** 2


@program(f32("B", 80), tolerance=1e-3)
def test_mel_features_of_a_short_time_fourier_transform(x):
    _, _, transformed = jax.scipy.signal.stft(x, nperseg=16, noverlap=8)
    power = jnp.abs(transformed) ** 2
    mels = jnp.maximum(0, 1 - jnp.abs(jnp.arange(9)[None] - jnp.linspace(1, 7, 5)[:, None]) / 1.5)
    return jnp.log(jnp.einsum("mf,bft->bmt", mels, power) + 1e-5)


@program(spec("B", 16, dtype="complex64"), f32(16))
def test_filter_of_complex_numbers(x, phase):
    filtered = jnp.fft.ifft(jnp.fft.fft(x) * jnp.exp(1j * phase))
    return filtered.real, jnp.angle(filtered * jnp.conj(x)), jnp.abs(filtered)


@program(f32("B", 32), f32(5))
def test_convolution_of_signals(x, taps):
    return jax.vmap(lambda signal: jnp.convolve(signal, taps, mode="same"))(x)


@program(f32("B", 16, 16))
def test_low_pass_of_images(x):
    spectrum = jnp.fft.fftshift(jnp.fft.fft2(x), axes=(-2, -1))
    row, column = jnp.mgrid[-8:8, -8:8]
    return jnp.fft.ifft2(jnp.fft.ifftshift(spectrum * (row**2 + column**2 < 20), axes=(-2, -1))).real


# -- images ------------------------------------------------------------------------------------------------------------


@program(spec("B", 12, 10, 3, dtype=np.uint8))
def test_preprocessing_of_images(images):
    x = images.astype(jnp.float32) / 255
    x = jax.image.resize(x, (x.shape[0], 9, 8, 3), "bilinear")[:, 1:8, :-1]
    return jnp.flip((x - jnp.array([0.48, 0.45, 0.4])) / jnp.array([0.22, 0.21, 0.2]), axis=2).transpose(0, 3, 1, 2)


@program(f32(9, 8), f32(2, 3))
def test_affine_warp(image, matrix):
    row, column = jnp.mgrid[0:9, 0:8].astype(jnp.float32)
    moved = (jnp.eye(2, 3) + 0.1 * matrix) @ jnp.stack([row, column, jnp.ones_like(row)]).reshape(3, -1)
    return jax.scipy.ndimage.map_coordinates(image, list(moved), order=1, mode="nearest").reshape(9, 8)


@program(f32("B", "H", "W", 3), i32(2), constraints=["H >= 4", "W >= 4"])
def test_crop_at_a_place_that_is_an_input(images, corner):
    return lax.dynamic_slice(images, (0, corner[0], corner[1], 0), (images.shape[0], 4, 4, 3))


@program(f32("N", 2), f32("N", 2), f32("N"))
def test_suppression_of_boxes_that_overlap(corners, sizes, scores):
    boxes = jnp.concatenate([corners, corners + jnp.abs(sizes)], axis=1)[jnp.argsort(-scores)]
    low = jnp.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = jnp.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    area = lambda box: jnp.prod(box[..., 2:] - box[..., :2], axis=-1)
    common = jnp.prod(jnp.maximum(high - low, 0), axis=-1)
    overlap = common / (area(boxes)[:, None] + area(boxes)[None] - common)

    def step(index, kept):
        later = jnp.arange(kept.shape[0]) > index
        return kept & ~(kept[index] & (overlap[index] > 0.3) & later)

    return lax.fori_loop(0, boxes.shape[0], step, jnp.ones(boxes.shape[0], bool))


@program(f32("B", "2*H", "2*W", 3))
def test_pixel_shuffle_of_blocks(x):
    batch, height, width, channels = x.shape
    blocks = x.reshape(batch, height // 2, 2, width // 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    return blocks.reshape(batch, height // 2, width // 2, 4 * channels)


# -- learning without gradients ----------------------------------------------------------------------------------------


@program(f32("B", 4), f32("N", 4), i32("N"), constraints=["N >= 3"])
def test_nearest_neighbours(queries, points, labels):
    distances = ((queries[:, None] - points[None]) ** 2).sum(-1)
    near, indices = lax.top_k(-distances, 3)
    votes = jax.nn.one_hot(labels[indices], 12).sum(1)
    return -near, votes.argmax(-1)


@program(f32("N", 2), f32(3, 2))
def test_means_of_clusters(points, centers):
    def step(_, centers):
        nearest = jnp.argmin(((points[:, None] - centers) ** 2).sum(-1), axis=1)
        weights = jax.nn.one_hot(nearest, 3)
        return (weights.T @ points) / jnp.maximum(weights.sum(0)[:, None], 1)

    return lax.fori_loop(0, 4, step, centers)


@program(f32("T", 2), f32(4))
def test_kalman_filter(measurements, start):
    transition = jnp.eye(4) + 0.1 * jnp.eye(4, k=2)
    observe, noise, drift = jnp.eye(2, 4), 0.5 * jnp.eye(2), 0.01 * jnp.eye(4)

    def step(state, measured):
        mean, covariance = state
        mean, covariance = transition @ mean, transition @ covariance @ transition.T + drift
        gain = jnp.linalg.solve(observe @ covariance @ observe.T + noise, observe @ covariance).T
        state = mean + gain @ (measured - observe @ mean), covariance - gain @ observe @ covariance
        return state, state[0]

    (_, covariance), means = lax.scan(step, (start, jnp.eye(4)), measurements)
    return means, covariance


@program(f32("N", "N"))
def test_page_rank(links):
    weights = jnp.where(links > 0, 1.0, 0.01)
    transition = weights / weights.sum(0)
    count = links.shape[0]

    def step(state):
        rank, _, steps = state
        new = 0.85 * transition @ rank + 0.15 / count
        return new, jnp.abs(new - rank).sum(), steps + 1

    start = jnp.full(count, 1.0) / count, jnp.float32(1), 0
    return lax.while_loop(lambda state: (state[1] > 1e-3) & (state[2] < 50), step, start)[0]


@program(f32("N", 2), f32("N"), f32("B", 2))
def test_posterior_of_a_gaussian_process(x, y, new):
    kernel = lambda a, b: jnp.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1))
    factor = jnp.linalg.cholesky(kernel(x, x) + 0.1 * jnp.eye(x.shape[0]))
    cross = kernel(x, new)
    half = jax.scipy.linalg.solve_triangular(factor, cross, lower=True)
    return cross.T @ jax.scipy.linalg.cho_solve((factor, True), y), 1 - (half**2).sum(0)


@program(f32(5, 3), i32(2, "N"), f32(3, 4))
def test_graph_convolution_by_segments(nodes, edges, weight):
    source, target = edges
    messages = (nodes @ weight)[source]
    degree = jax.ops.segment_sum(jnp.ones(target.shape), target, 5)
    return jax.nn.relu(jax.ops.segment_sum(messages, target, 5) / jnp.maximum(degree, 1)[:, None])


@program(f32(6, 4), i32("N"), i32("N"), f32(8))
def test_graph_attention_by_segments(nodes, source, target, weight):
    scores = jax.nn.leaky_relu(jnp.concatenate([nodes[source], nodes[target]], axis=1) @ weight)
    largest = jax.ops.segment_max(scores, target, 6)
    powers = jnp.exp(scores - largest[target])
    shares = powers / jax.ops.segment_sum(powers, target, 6)[target]
    return jax.ops.segment_sum(shares[:, None] * nodes[source], target, 6)


# -- numerics ----------------------------------------------------------------------------------------------------------


@program(f32("B", 2))
def test_runge_kutta(state):
    field = lambda v: jnp.stack([v[:, 1], -jnp.sin(v[:, 0]) - 0.1 * v[:, 1]], axis=1)

    def step(_, v):
        a = field(v)
        b = field(v + 0.05 * a)
        c = field(v + 0.05 * b)
        return v + 0.1 / 6 * (a + 2 * b + 2 * c + field(v + 0.1 * c))

    return lax.fori_loop(0, 10, step, state)


@program(f32("B"))
def test_newton_until_all_converge(x):
    target = jnp.abs(x) + 1

    def step(state):
        y, steps = state
        return y - (y**3 - target) / (3 * y**2), steps + 1

    far = lambda state: (jnp.abs(state[0] ** 3 - target).max() > 1e-3) & (state[1] < 30)
    return lax.while_loop(far, step, (jnp.maximum(target, 1.0), 0))[0]


@program(f32(5, 5), f32(5), tolerance=2e-3)
def test_conjugate_gradient(matrix, b):
    matrix = matrix @ matrix.T + 5 * jnp.eye(5)
    return jax.scipy.sparse.linalg.cg(lambda v: matrix @ v, b, maxiter=10)[0]


@program(f32("B", 8))
def test_sorting_network(x):
    swap = lambda x, i, j: x.at[:, [i, j]].set(
        jnp.stack([jnp.minimum(x[:, i], x[:, j]), jnp.maximum(x[:, i], x[:, j])], axis=1)
    )
    pairs = [(0, 1), (2, 3), (0, 2), (1, 3), (1, 2), (4, 5), (6, 7), (4, 6), (5, 7), (5, 6)]
    for i, j in [*pairs, (0, 4), (1, 5), (2, 6), (3, 7), (2, 4), (3, 5), (1, 2), (3, 4), (5, 6)]:
        x = swap(x, i, j)
    return x


@program(f32(6, 4), i32("B"), f32("B", 4), i32("B"))
def test_scatter_and_gather(table, rows, updates, columns):
    table = table.at[rows].add(updates, mode="drop").at[0, 1:3].multiply(2.0)
    table = table.at[rows[0], columns].max(3.0, mode="clip")
    return (
        table,
        table[rows, columns],
        table.at[:, ::2].get(),
        jnp.put_along_axis(table, jnp.abs(table).argmax(1, keepdims=True), 0.0, axis=1, inplace=False),
    )


@program(f32("B", "T", 2, 3), f32("B", "N", 2, 3), f32(2, 3, 6), f32("B"))
def test_einsums(query, key, out, scale):
    scores = jnp.einsum("bthd,bnhd,b->bhtn", query, key, scale)
    mixed = jnp.einsum("bhtn,bnhd->bthd", scores, key)
    return (
        jnp.einsum("bthd,hdo->bto", mixed, out),
        jnp.einsum("bhtt->bht", scores[..., :1, :1]),
        jnp.einsum("b...->...", mixed),
    )


@program(spec("B", dtype=np.uint32))
def test_hash_by_bits(x):
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    x = x ^ (x >> 16)
    rotated = (x << 7) | (x >> 25)
    return rotated, lax.population_count(x), lax.clz(x), lax.bitcast_convert_type(x, jnp.int32)


@program(f32("B", 8), f32(8, 6))
def test_product_quantized_to_int8(x, weight):
    def quantized(v, axis):
        scale = jnp.abs(v).max(axis, keepdims=True) / 127
        return jnp.clip(jnp.round(v / scale), -128, 127).astype(jnp.int8), scale

    (x, x_scale), (weight, weight_scale) = quantized(x, 1), quantized(weight, 0)
    product = lax.dot_general(x, weight, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return product.astype(jnp.float32) * x_scale * weight_scale


@program(f32("B", 4, 4), f32("B", 4, 2), tolerance=2e-3)
def test_linear_systems_and_factors(matrix, right):
    matrix = matrix + 4 * jnp.eye(4)
    q, r = jnp.linalg.qr(matrix)
    return jnp.linalg.solve(matrix, right), jnp.linalg.det(matrix), q @ r, jnp.linalg.slogdet(matrix)[1]


@program(f32(4, 4), tolerance=2e-3)
def test_spectra(matrix):
    values, vectors = jnp.linalg.eigh(matrix + matrix.T)
    return values, vectors * jnp.sign(vectors[0]), jnp.linalg.svd(matrix, compute_uv=False), jnp.linalg.pinv(matrix)


@program(f32("N", 5), tolerance=2e-3)
def test_principal_components(x):
    centred = x - x.mean(0)
    covariance = centred.T @ centred / (x.shape[0] - 1)
    values, vectors = jnp.linalg.eigh(covariance)
    return values[::-1], jnp.abs(centred @ vectors[:, -1:])


@program(f32("B", 3), f32("B", 4))
def test_rotation_of_points_by_quaternions(points, quaternions):
    w, x, y, z = jnp.moveaxis(quaternions / jnp.linalg.norm(quaternions, axis=1, keepdims=True), 1, 0)
    vector = jnp.stack([x, y, z], axis=1)
    turned = 2 * jnp.cross(vector, points)
    return points + w[:, None] * turned + jnp.cross(vector, turned)


@program(f32(7), f32("B"))
def test_histograms_and_interpolation(values, points):
    low = jnp.sort(values)
    counts, _ = jnp.histogram(values, bins=4, range=(-2.0, 2.0))
    return jnp.interp(points, low, jnp.cumsum(values)), counts, jnp.searchsorted(low, points), jnp.quantile(values, 0.3)


# -- random numbers ----------------------------------------------------------------------------------------------------


@program(f32("B", 6), KEY)
def test_dropout_with_a_key(x, key):
    kept = jax.random.bernoulli(key, 0.7, x.shape)
    return jnp.where(kept, x / 0.7, 0)


@program(KEY)
def test_random_numbers_of_several_kinds(key):
    keys = jax.random.split(key, 5)
    return (
        jax.random.normal(keys[0], (3, 2)),
        jax.random.uniform(keys[1], (4,), minval=-1, maxval=2),
        jax.random.randint(keys[2], (5,), 0, 10),
        jax.random.permutation(keys[3], 6),
        jax.random.gumbel(jax.random.fold_in(keys[4], 7), (3,)),
    )


@program(KEY, f32("B", 3))
def test_monte_carlo_with_a_key_per_example(key, x):
    keys = jax.random.split(key, x.shape[0])
    return jax.vmap(lambda key, v: (v + 0.1 * jax.random.normal(key, (16, 3))).max(0))(keys, x)


@program(f32("B", 2), spec(2, dtype=np.uint32))
def test_random_walk_with_a_raw_key(start, key):
    def step(carry, _):
        place, key = carry
        key, inner = jax.random.split(key)
        place = place + jax.random.normal(inner, place.shape)
        return (place, key), place

    return lax.scan(step, (start, key), None, length=3)[1]
