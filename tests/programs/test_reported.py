"""Programs of the kinds that users of exporters reported as failing or as wrong: what JAX says about them holds."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn, nnx
from jax import lax

from jaxport.testing import f32, i32, spec
from tests.programs.checker import built, program, verified
from tests.programs.models import of_linen, of_nnx

# -- one expression each: a function and its specifications ------------------------------------------------------------

EXPRESSIONS = {
    "scalars as inputs, of weak types too": (lambda x, y: (x * 2 + y, y + 1, jnp.where(y > 0, 1.0, x)), f32(), i32()),
    "a Python number in a loop's carry": (
        lambda x: lax.fori_loop(0, 5, lambda _, c: (c[0] + 0.1 * c[0] ** 2, c[1] + 1), (x / 9, 0)), f32(2)
    ),
    "a scan without inputs": (lambda: lax.scan(lambda c, _: (c + 1, c * 2), 0, None, length=10)[1],),
    "a slice whose start is clamped": (lambda x, i: lax.dynamic_slice_in_dim(x, i, 4, axis=1), f32("B", 6), i32()),
    "an update whose start is clamped": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i)), f32("B", 6), f32("B", 4), i32()
    ),
    "negative padding": (lambda x: lax.pad(x, 1.0, ((-1, 2, 0), (2, -1, 1))), f32("B", 4)),
    "padding to a multiple": (
        lambda x: (jnp.pad(x, ((0, 0), (0, -x.shape[1] % 4))), -x.shape[1] % 4 + jnp.zeros(2, int)), f32("B", "T")
    ),
    "circular and reflected padding": (
        lambda x: (jnp.pad(x, ((0, 0), (2, 1)), mode="wrap"), jnp.pad(x, ((0, 0), (2, 2)), mode="reflect")), f32("B", 5)
    ),
    "cumulative sums from the end": (
        lambda x: (lax.cumsum(x, axis=1, reverse=True), jnp.cumsum(x[:, ::-1], axis=1), lax.cummax(x, axis=0)),
        f32("B", "T"),
    ),
    "the gradient of a cumulative sum": (jax.grad(lambda x: jnp.cumsum(x)[-1] * x[0]), f32(10)),
    "one-hot encoding out of range": (
        lambda i: (jax.nn.one_hot(i, 4), jax.nn.one_hot(i, 4, axis=0, dtype=jnp.int32)), i32("B", 3)
    ),
    "the largest along a symbolic axis": (
        lambda x: (x.argmax(0), x.argmin(1), jnp.argmax(x), jnp.argmax(x[:, :1] * 0)), f32("B", "T")
    ),
    "the top k, with equal elements": (lambda x: lax.top_k(jnp.round(x), 3), f32("B", 9)),
    "a stable sort by several keys": (
        lambda x, i: lax.sort((jnp.round(x), i, x), num_keys=2, dimension=1), f32("B", 6), i32("B", 6)
    ),
    "a choice with broadcasting": (
        lambda c, x: (jnp.where(c[:, None, :] > 0, x, 0), jnp.where(x > c[0, 0], c[:1], x[0])), f32("B", 4), f32(3, 4)
    ),
    "points between numbers": (
        lambda x: (jnp.linspace(0, 1, 5) * x[0], jnp.linspace(x[0], x[1], 7), jnp.linspace(0, x, 3, endpoint=False)),
        f32(2),
    ),
    "rolled by a size, by nothing and by an input": (
        lambda x, i: (jnp.roll(x, 2, axis=1), jnp.roll(x, 0, axis=0), jnp.roll(x, i, axis=1), jnp.roll(x, (1, -1), (0, 1))),
        f32("B", 5), i32(),
    ),
    "repeated and tiled": (
        lambda x: (jnp.repeat(x, 3, axis=1), jnp.tile(x, (2, 1, 3)), jnp.repeat(x, np.array([0, 2, 1]), axis=1)),
        f32("B", 3),
    ),
    "taken out of bounds in every mode": (
        lambda x, i: [jnp.take(x, i * 3 - 9, axis=0, mode=m) for m in ("clip", "wrap")]
        + [jnp.take(x, i * 3 - 9, axis=0, mode="fill", fill_value=-1)],
        f32(5, 2), i32("B"),
    ),
    "indexed out of bounds": (
        lambda x, i: (x[i + 3], x.at[i + 3].get(mode="fill", fill_value=0), x[-1], x[..., -2:]), f32(5, 2), i32("B")
    ),
    "the largest of empty segments": (
        lambda x, i: jax.ops.segment_max(x, jnp.abs(i) % 4, num_segments=6), spec("N", 2, dtype=np.int32), i32("N")
    ),
    "the mean over a symbolic axis": (lambda x: (x.mean(), x.mean(0), x.std(1), x.var(ddof=1)), f32("B", 4)),
    "scatter of windows": (lambda x, u: x.at[:, 1:3].add(u).at[0].set(0.0).at[:, [0, 3]].min(0.5), f32("B", 4), f32("B", 2)),
    "vmap of activations and of stack": (
        jax.vmap(lambda x: jnp.stack([jax.nn.softmax(x), jax.nn.selu(x), jax.nn.hard_swish(x), jax.nn.glu(jnp.tile(x, 2))])),
        f32("B", 4),
    ),
    "remainders and divisions of both signs": (
        lambda x, i: (x % 3, jnp.fmod(x, 2), i // 3, i % -4, lax.rem(i, 3), jnp.divmod(i, 5), jnp.round(x * 2) / 2),
        f32("B"), i32("B"),
    ),
    "powers of negative numbers": (lambda x: (x**3, x**2, jnp.abs(x) ** 0.5, 2.0**x, jnp.sign(x) ** -1), f32("B")),
    "a spectral density": (lambda x: jax.scipy.signal.welch(x, nperseg=16)[1], f32("B", 64)),
    "a resize without antialiasing": (
        lambda x: (jax.image.resize(x, (x.shape[0], 4, 9, 2), "nearest"),
                   jax.image.resize(x, (x.shape[0], 3, 12, 2), "cubic", antialias=False)),
        f32("B", 5, 6, 2),
    ),
    "an unused input": (lambda x, unused, z: x + z, f32("B"), f32("T"), f32("B")),
    "an output that is an input": (lambda x: (x, x + 1, x), f32("B")),
    "constant outputs": (lambda x: (jnp.arange(3), x.sum(), 2.0, jnp.zeros(x.shape[0])), f32("B")),
    "outputs that are the same": (lambda x: dict.fromkeys("ab", (jnp.tanh(x),) * 2), f32("B")),
    "no inputs": (lambda: jnp.eye(3) @ jnp.arange(3.0),),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "specs"), [(fn, specs) for fn, *specs in EXPRESSIONS.values()], ids=EXPRESSIONS)
def test_expression(fn, specs):
    verified(fn, *specs)


@program(f32("B"), constraints=["B <= 50"])
def test_slice_of_a_constant_as_long_as_the_input(x):
    return x + jnp.arange(50.0)[: x.shape[0]]


# -- layers ------------------------------------------------------------------------------------------------------------


@program(f32("B", 7, 6, 3))
def test_pooling_with_and_without_the_padding_counted(x):
    pool = functools.partial(nn.avg_pool, window_shape=(3, 3), strides=(2, 2), padding="SAME")
    return (
        pool(x, count_include_pad=True),
        pool(x, count_include_pad=False),
        nn.max_pool(x, (2, 2), padding=((0, 1), (1, 0))),
    )


LAYERS = {
    "group norm without scale and bias": (
        lambda rngs: nnx.GroupNorm(6, num_groups=3, use_bias=False, use_scale=False, rngs=rngs), f32("B", 4, 4, 6)
    ),
    "group norm of a vector": (lambda rngs: nnx.GroupNorm(6, num_groups=3, rngs=rngs), f32("B", 6)),
    "instance norm": (lambda rngs: nnx.InstanceNorm(6, rngs=rngs), f32("B", 4, 5, 6)),
    "layer norm over several axes": (
        lambda rngs: nnx.LayerNorm(6, reduction_axes=(-2, -1), feature_axes=-1, rngs=rngs), f32("B", 4, 6)
    ),
    "batch norm of another axis": (
        lambda rngs: nnx.BatchNorm(4, axis=1, use_running_average=True, rngs=rngs), f32("B", 4, 6, 5)
    ),
    "convolution with groups and dilation": (
        lambda rngs: nnx.Conv(4, 8, (3, 3), feature_group_count=2, kernel_dilation=2, rngs=rngs), f32("B", 9, 8, 4)
    ),
    "depthwise convolution with strides": (
        lambda rngs: nnx.Conv(4, 8, (3, 3), strides=2, feature_group_count=4, padding=((0, 1), (1, 1)), rngs=rngs),
        f32("B", "H", "W", 4),
    ),
    "causal convolution": (lambda rngs: nnx.Conv(3, 4, 3, padding="CAUSAL", rngs=rngs), f32("B", "T", 3)),
    "reflected convolution": (lambda rngs: nnx.Conv(3, 4, 3, padding="REFLECT", rngs=rngs), f32("B", "T", 3)),
    "circular convolution with a mask": (
        lambda rngs: nnx.Conv(3, 4, 3, padding="CIRCULAR", mask=np.tri(3)[:, :, None].repeat(4, 2), rngs=rngs),
        f32("B", 5, 3),
    ),
    "transposed convolution with strides": (
        lambda rngs: nnx.ConvTranspose(3, 4, (4, 3), strides=(2, 3), padding="VALID", transpose_kernel=False, rngs=rngs),
        f32("B", "H", 5, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "specs"), [(make, specs) for make, *specs in LAYERS.values()], ids=LAYERS)
def test_layer(make, specs):
    options = {"constraints": ["T >= 3"]} if "T" in specs[0].shape else {}
    verified(of_nnx(make), *specs, **options)


@built(f32("B", 6), state="discard")  # the layer inside is given its kernel at each call
def test_weight_norm():
    return nnx.WeightNorm(of_nnx(lambda rngs: nnx.Linear(6, 4, rngs=rngs)), rngs=nnx.Rngs(0))


@built(f32("B", 6))
def test_spectral_norm_for_inference():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.SpectralNorm(nn.Dense(4))(x, update_stats=False)

    return of_linen(Network(), jnp.ones((1, 6)))
