"""Random numbers are JAX's own, bit for bit; floats computed from them to a few units in the last place."""

from __future__ import annotations

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, random

import jaxport
from jaxport.jaxprs import release
from jaxport.testing import check, f32, i32, spec
from tests.exports import operators

pytestmark = pytest.mark.sampled(2)

KEY = random.key(42)
SINCE_18 = {"static": "the hashes need BitwiseXor, of opset 18"}


def keys(*shape, like=KEY):
    """The specification of an array of keys."""
    return jax.ShapeDtypeStruct(shape, like.dtype)


# What JAX says of keys, and what becomes of their words ---------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda k: random.bits(k, (5,)), id="bits"),
        pytest.param(lambda k: random.bits(k, ()), id="one"),
        pytest.param(lambda k: random.bits(k, (3, 0)), id="none"),
        pytest.param(lambda k: random.bits(k, (300, 3)), id="many"),
        pytest.param(lambda k: (random.bits(k, (5,), "uint8"), random.bits(k, (5,), "uint16")), id="narrow"),
        pytest.param(lambda k: random.split(k, 3), id="split"),
        pytest.param(lambda k: random.split(k, (2, 3)), id="split-shape"),
        pytest.param(lambda k: random.fold_in(k, 7), id="fold_in"),
        pytest.param(lambda k: random.key_data(random.clone(k)), id="words"),
        pytest.param(lambda k: random.wrap_key_data(random.key_data(k) + 1), id="wrapped"),
        pytest.param(lambda k: random.bits(random.split(k)[0]) + random.bits(random.split(k)[1]), id="two"),
    ],
)  # fmt: skip
def test_keys(fn):
    check(fn, keys(), values=[KEY])


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda ks, i: ks[::-1], id="slice"),
        pytest.param(lambda ks, i: ks[i], id="take"),
        pytest.param(lambda ks, i: ks[jnp.array([3, 0, 0])], id="gather"),
        pytest.param(lambda ks, i: lax.dynamic_slice_in_dim(ks, i, 2), id="dynamic_slice"),
        pytest.param(lambda ks, i: lax.dynamic_update_slice_in_dim(ks, ks[:2], i, 0), id="dynamic_update_slice"),
        pytest.param(lambda ks, i: ks.at[i].set(ks[0]), id="scatter"),
        pytest.param(lambda ks, i: ks.reshape(2, 2).T, id="reshape"),
        pytest.param(lambda ks, i: jnp.broadcast_to(ks, (3, 4)), id="broadcast"),
        pytest.param(lambda ks, i: jnp.concatenate([ks, ks[:1]]), id="concatenate"),
        pytest.param(lambda ks, i: jnp.stack([ks, ks[::-1]], 1), id="stack"),
        pytest.param(lambda ks, i: jnp.where(jnp.arange(4) < i, ks, ks[::-1]), id="where"),
        pytest.param(lambda ks, i: jnp.roll(ks, 1), id="roll"),
        pytest.param(lambda ks, i: (ks == ks[::-1], ks != ks[0]), id="compare"),
        pytest.param(lambda ks, i: lax.cond(i > 1, lambda ks: ks[0], lambda ks: ks[1], ks), id="cond"),
        pytest.param(lambda ks, i: lax.scan(lambda c, k: (k, (c, random.bits(k))), ks[0], ks), id="scan"),
        pytest.param(lambda ks, i: lax.fori_loop(0, i, lambda _, k: random.fold_in(k, 1), ks[0]), id="fori"),
        pytest.param(lambda ks, i: lax.while_loop(lambda k: random.bits(k) % 3 != 0, lambda k: random.split(k)[0], ks[0]), id="while"),
        pytest.param(lambda ks, i: jax.vmap(lambda k: random.bits(k, (2,)))(ks), id="vmap-bits"),
        pytest.param(lambda ks, i: jax.vmap(random.split)(ks), id="vmap-split"),
        pytest.param(lambda ks, i: jax.vmap(random.fold_in)(ks, jnp.arange(4)), id="vmap-fold_in"),
        pytest.param(lambda ks, i: jax.vmap(lambda n: random.fold_in(ks[0], n))(jnp.arange(3)), id="vmap-data"),
        pytest.param(jax.jit(lambda ks, i: jax.checkpoint(lambda k: random.split(k))(ks[i])), id="calls"),
    ],
)  # fmt: skip
def test_arrays_of_keys(fn):
    check(fn, keys(4), i32(), values=[random.split(KEY, 4), np.int32(2)])


def test_a_symbolic_number_of_keys():
    check(lambda ks: jax.vmap(lambda k: random.bits(k, (3,)))(ks), keys("B"), without=SINCE_18)
    check(lambda k, x: random.bits(k, x.shape), keys(), f32("B", 3), without=SINCE_18)
    check(lambda k, x: jax.vmap(random.bits)(random.split(k, x.shape[0])), keys(), f32("B"), without=SINCE_18)


def test_old_keys_are_plain_arrays():
    check(lambda k: random.bits(random.split(k)[1], (3,)), spec(2, dtype="uint32"), values=[random.PRNGKey(7)])


@pytest.mark.parametrize("seed", [0, -5, 2**31 - 1])
def test_keys_from_a_seed(seed):
    check(lambda s: (random.key(s), random.PRNGKey(s)), i32(), values=[np.int32(seed)])


def test_a_seed_of_64_bits():
    with jax.enable_x64(True):
        check(lambda s: random.split(random.key(s)), spec(dtype="int64"), values=[np.int64(-(2**40) - 3)])


def test_keys_that_are_closed_over():
    check(
        lambda x: x + random.uniform(KEY, x.shape) + random.normal(random.key(3), x.shape), f32("B"), without=SINCE_18
    )


@pytest.mark.parametrize(
    "implementation",
    ["threefry2x32", *(["threefry4x32", "philox2x32", "philox4x32"] if release >= (0, 10) else [])],
)
@pytest.mark.parametrize("partitionable", [False, True])
def test_generators(implementation, partitionable):
    key = random.key(3, impl=implementation)
    with jax.threefry_partitionable(partitionable):
        check(
            lambda k: (random.bits(k, (5,)), random.split(k), random.fold_in(k, 3), random.bits(k, (3,), "uint8")),
            keys(like=key), values=[key],
        )  # fmt: skip


def test_bits_of_64():
    with jax.enable_x64(True):
        check(lambda k: (random.bits(k, (5,)), random.uniform(k, (4,))), keys(), values=[KEY])


def test_a_key_is_an_argument_and_a_result():
    exported = jaxport.to_onnx(lambda key: random.split(key), [keys()])
    result = exported(KEY)
    assert result.dtype == KEY.dtype
    np.testing.assert_array_equal(random.key_data(result), random.key_data(random.split(KEY)))
    (raw,) = exported.run({"key": np.asarray(random.key_data(KEY))})
    np.testing.assert_array_equal(raw, random.key_data(result))


def test_threefry_is_no_larger_than_it_has_to_be():
    exported = check(lambda k: random.bits(k, (5,)), keys(), values=[KEY])
    assert len(list(exported.model.graph.all_nodes())) <= 125


# Distributions --------------------------------------------------------------------------------------------------------

N = (6,)
#: The rest of `jax.random` is made of these; the sweep over the whole module is elsewhere.
DISTRIBUTIONS = {
    "bernoulli": lambda k: random.bernoulli(k, 0.3, N),
    "beta": lambda k: random.beta(k, 2.0, 0.7, N),
    "binomial": lambda k: random.binomial(k, 10.0, 0.3, N),
    "categorical": lambda k: random.categorical(k, jnp.arange(5.0), shape=N),
    "categorical-unique": lambda k: random.categorical(k, jnp.arange(5.0), shape=(3,), replace=False),
    "cauchy": lambda k: random.cauchy(k, N),
    "choice": lambda k: random.choice(k, 10, (4,)),
    "choice-p": lambda k: random.choice(k, 5, (4,), p=jnp.array([0.1, 0.2, 0.3, 0.2, 0.2])),
    "choice-unique": lambda k: random.choice(k, 10, (4,), replace=False),
    "choice-unique-p": lambda k: random.choice(k, 3, (2,), replace=False, p=jnp.array([0.1, 0.2, 0.7])),
    "dirichlet": lambda k: random.dirichlet(k, jnp.array([1.0, 2.0, 3.0]), (2,)),
    "exponential": lambda k: random.exponential(k, N),
    "gamma": lambda k: random.gamma(k, 2.5, N),
    "geometric": lambda k: random.geometric(k, 0.3, N),
    "gumbel": lambda k: random.gumbel(k, N),
    "laplace": lambda k: random.laplace(k, N),
    "logistic": lambda k: random.logistic(k, N),
    "multinomial": lambda k: random.multinomial(k, 10.0, jnp.array([0.2, 0.3, 0.5])),
    "normal": lambda k: random.normal(k, (3, 4)),
    "pareto": lambda k: random.pareto(k, 2.0, N),
    "permutation": lambda k: random.permutation(k, 9),
    "permutation-rows": lambda k: random.permutation(k, jnp.arange(12.0).reshape(4, 3)),
    "permutation-each": lambda k: random.permutation(k, jnp.arange(12.0).reshape(4, 3), axis=1, independent=True),
    "poisson": lambda k: random.poisson(k, 3.0, N),
    "poisson-large": lambda k: random.poisson(k, 30.0, N),
    "rademacher": lambda k: random.rademacher(k, N),
    "randint": lambda k: random.randint(k, N, -3, 9),
    "triangular": lambda k: random.triangular(k, 0.0, 0.5, 1.0, N),
    "truncated_normal": lambda k: random.truncated_normal(k, -1.0, 2.0, N),
    "uniform": lambda k: random.uniform(k, N, minval=-2.0, maxval=3.0),
    "wald": lambda k: random.wald(k, 1.0, N),
    "weibull_min": lambda k: random.weibull_min(k, 1.0, 2.0, N),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name):
    check(DISTRIBUTIONS[name], keys(), values=[KEY], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["categorical", "geometric", "normal", "randint", "uniform"])
def test_distributions_in_double_precision(name):
    check(DISTRIBUTIONS[name], keys(), values=[KEY], rtol=1e-13, atol=1e-13, double_precision=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes_of_floats(dtype):
    check(lambda k: (random.uniform(k, N, dtype), random.normal(k, N, dtype)), keys(), values=[KEY])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_dtypes_of_integers(dtype):
    check(lambda k: random.randint(k, N, 1, 100, dtype), keys(), values=[KEY])


def test_many_normal_numbers():
    check(lambda k: random.normal(k, (5000,)), keys(), values=[KEY], rtol=1e-6, atol=1e-7)


def test_dropout_in_training():
    def dropout(key, x):
        return jnp.where(random.bernoulli(key, 0.5, x.shape), x / 0.5, 0)

    check(lambda k, x: jax.grad(lambda x: (dropout(k, x) ** 2).sum())(x), keys(), f32("B", 4), without=SINCE_18)


def test_gradients_through_gamma():
    def gradient(key, a):
        return jax.grad(lambda a: random.gamma(key, a, (2,)).sum())(a)

    check(
        gradient, keys(), f32(), values=[KEY, np.float32(2)], rtol=1e-5, without={"float64": "it takes twice the time"}
    )


def test_initializers():
    check(lambda k: jax.nn.initializers.lecun_normal()(k, (3, 4)), keys(), values=[KEY], rtol=1e-6, atol=1e-7)


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["rbg", "unsafe_rbg"])
def test_the_generator_of_xla_is_refused(implementation):
    key = random.key(0, impl=implementation)
    with pytest.raises(jaxport.Unsupported) as refusal:
        jaxport.to_onnx(lambda k: random.uniform(k, (3,)), [keys(like=key)])
    (row,) = refusal.value.refusals
    assert (row.name, row.where.split(":")[0]) == ("rng_bit_generator", "test_random.py")
    assert row.why == (
        "draws the bits of XLA's own generator, which ONNX does not have; "
        "make the keys with `jax.random.key(seed, impl='threefry2x32')`, or pass `algorithm=RNG_THREE_FRY`"
    )


def test_the_words_of_any_key_can_be_split():
    key = random.key(0, impl="rbg")
    check(lambda k: (random.split(k), random.fold_in(k, 3)), keys(like=key), values=[key])


def test_opset_17_has_no_exclusive_or():
    with pytest.raises(
        jaxport.Unsupported, match="needs BitwiseXor, which is new in opset 18; export with opset=18 or newer"
    ):
        jaxport.to_onnx(lambda k: random.bits(k, (3,)), [keys()], opset=17)


# XLA's generator, where the algorithm is said ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (7,), (6,), (3, 3), (3, 5), (1, 3, 5), (4, 2), (2, 6, 4), (5, 1)])
def test_words_of_threefry(shape):
    counter = [2**32 - 2, 2**32 - 1] if len(shape) % 2 else [7, 8]  # the counter runs over, or not
    draw = functools.partial(lax.rng_bit_generator, algorithm=lax.RandomAlgorithm.RNG_THREE_FRY)
    check(lambda state: draw(state, shape), spec(4, dtype="uint32"), values=[np.uint32([5, 6, *counter])])


@pytest.mark.parametrize(
    ("key", "dtype", "algorithm", "why"),
    [
        (4, np.uint32, "RNG_DEFAULT", "XLA's own generator"),
        (4, np.uint32, "RNG_PHILOX", "XLA's own generator"),
        (4, np.uint8, "RNG_THREE_FRY", "draw a known number of uint32"),
    ],
)
def test_other_words_are_refused(key, dtype, algorithm, why):
    draw = lambda state: lax.rng_bit_generator(state, (4,), dtype, algorithm=lax.RandomAlgorithm[algorithm])
    with pytest.raises(jaxport.Unsupported, match=why):
        jaxport.to_onnx(draw, [spec(key, dtype="uint32")])


def in_the_graph(exported):
    """The operators that draw random numbers."""
    return [node for node in exported.model.graph.all_nodes() if node.op_type.startswith("Bit")]


def test_numbers_of_fixed_keys_are_constants():
    def fn(x):
        one, other = random.split(random.PRNGKey(1))
        kept = random.bernoulli(one, 0.5, (2,))
        weights = random.normal(random.fold_in(other, 3), (2, 4)) * 0.1
        return jnp.where(kept, x, 0) @ weights + random.uniform(random.clone(other), (4,))

    assert Counter(operators(check(fn, f32("B", 2)))) == {"Where": 1, "MatMul": 1, "Add": 1}


def test_numbers_of_fixed_keys_in_a_loop():
    def fn(x):
        def step(carry, row):
            return carry + random.normal(random.key(1), (3,)) * row, None

        return jax.lax.scan(step, jnp.zeros(3), x)[0]

    assert not in_the_graph(check(fn, f32("T", 3)))


def test_keys_themselves_and_outputs():
    check(lambda: (random.key_data(random.key(0)), random.normal(random.key(1), (2,))))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x[:, None] + random.normal(random.key(0), (300, 100)).sum(1)[:1],  # more than the file should hold
        lambda x: x + random.normal(random.key(0), x.shape),  # the size is not known yet
        lambda x: x + random.uniform(random.fold_in(random.key(0), x.sum().astype("uint32"))),
    ],
    ids=["large", "symbolic", "of inputs"],
)
def test_other_numbers_are_drawn_at_each_run(fn):
    assert in_the_graph(check(fn, f32("B"), without=SINCE_18))


def test_a_rule_of_the_user_draws_the_numbers_of_fixed_keys():
    def words(op, key, **_):
        return key

    program = lambda x: x + random.bits(random.key(5), (2,)).astype("float32")
    exported = jaxport.to_onnx(program, [(2,)], rules={"random_bits": words})
    np.testing.assert_array_equal(exported(np.zeros(2, np.float32)), [0, 5])
