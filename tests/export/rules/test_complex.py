"""Complex numbers: pairs inside of the model, a trailing axis of two at its border, complex arrays for the caller."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.export.emit.registry import RULES
from jaxport.export.prepare.complex import without_complex
from jaxport.testing import check, f32, i32, spec
from tests.exports import operators

pytestmark = pytest.mark.sampled(2)

B, T = "B", "T"


def c64(*shape):
    return spec(*shape, dtype=np.complex64)


# Elementwise ----------------------------------------------------------------------------------------------------------

ONE_OPERAND = [
    jnp.abs, jnp.angle, jnp.arccos, jnp.arccosh, jnp.arcsin, jnp.arcsinh, jnp.arctan, jnp.arctanh, jnp.conj, jnp.cos,
    jnp.cosh, jnp.exp, jnp.exp2, jnp.expm1, jnp.imag, jnp.log, jnp.log1p, jnp.negative, jnp.real, jnp.reciprocal,
    jnp.round, jnp.sign, jnp.sin, jnp.sinh, jnp.sqrt, jnp.square, jnp.tan, jnp.tanh, lax.rsqrt, lax.logistic,
    jnp.isnan, jnp.isfinite,
]  # fmt: skip
TWO_OPERANDS = [
    jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.power, jnp.equal, jnp.not_equal, jnp.less, jnp.maximum,
    jnp.minimum, jnp.logaddexp, lambda y, x: lax.atan2(y, x + jnp.zeros_like(y)),
]  # fmt: skip
#: Zeros of both signs, the branch cuts, what overflows when it is squared or doubled, infinity and NaN.
PARTS = [0, -0.0, 1, -1, 0.5, 1e30, -1e-30, np.finfo(np.float32).max, np.inf, -np.inf, np.nan]
EDGES = np.array([complex(a, b) for a in PARTS for b in PARTS], np.complex64)
#: What JAX computes less well than its own real functions: `log1p` loses a square next to -1.
BETTER_THAN_JAX = {jnp.log1p: EDGES[(EDGES.real != -1)]}
#: Without what overflows: JAX rounds a sum of two products once, where a processor can.
SMALL = EDGES[~np.isin(np.abs(np.stack([EDGES.real, EDGES.imag])), np.float32([1e30, np.finfo(np.float32).max])).any(0)]


@pytest.mark.parametrize("function", ONE_OPERAND, ids=lambda f: f.__name__)
def test_one_operand(function):
    check(function, c64(B, 3))


@pytest.mark.parametrize("function", TWO_OPERANDS, ids=lambda f: f.__name__)
def test_two_operands(function):
    check(function, c64(B, 3), c64(3))


@pytest.mark.parametrize("function", ONE_OPERAND, ids=lambda f: f.__name__)
def test_edges(function):
    values = BETTER_THAN_JAX.get(function, EDGES)
    check(function, c64(len(values)), values=(values,), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", [jnp.add, jnp.multiply, jnp.divide, jnp.power, jnp.equal, jnp.maximum])
def test_edges_of_two(function):
    x, y = np.repeat(SMALL, len(SMALL)), np.tile(SMALL, len(SMALL))
    check(function, c64(len(x)), c64(len(x)), values=(x, y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exponent", [0, 1, 2, 5, -1, -3])
def test_integer_powers(exponent):
    check(lambda z: z**exponent, c64(B))


def test_double_precision():
    with jax.enable_x64(True):
        check(lambda z: jnp.exp(z) / (z + 2j), spec(B, dtype=np.complex128), dtypes=[np.complex128])


def test_real_numbers_become_complex():
    check(lambda x, z: (x * z, x.astype(jnp.complex64), lax.complex(x, x), 1j * x, jnp.real(z) + x), f32(B), c64(B))


# Arrays ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        pytest.param(lambda z: z + jnp.array([1j, 2, 3]), [c64(B, 3)], id="constant"),
        pytest.param(lambda z: z.reshape(3, -1).T[::-1, 1:], [c64(B, 3)], id="movements"),
        pytest.param(lambda z: jnp.concatenate([z, z * 1j, jnp.zeros_like(z)], 1), [c64(B, 2)], id="concatenate"),
        pytest.param(lambda z: jnp.pad(z, 1, constant_values=1j), [c64(B, 2)], id="pad"),
        pytest.param(lambda z: jnp.where(z.real > 0, z, 1j), [c64(B)], id="where"),
        pytest.param(lambda z, i: (z[i], z.at[i].set(1j), z.at[i].add(z[:3])), [c64(4, B), i32(3)], id="indices"),
        pytest.param(lambda z: z.at[jnp.array([0, 0, 1])].multiply(jnp.array([1j, 2, 1 + 1j])), [c64(3)], id="scatter-mul"),
        pytest.param(lambda z, i: lax.dynamic_update_slice(z, z[:1] * 2, (i,)), [c64(4), i32()], id="dynamic"),
        pytest.param(lambda z: (z.sum(0), z.mean(), z.prod(0), z.max(0), z.min(), z.std()), [c64(T, 3)], id="reductions"),
        pytest.param(lambda z: (jnp.cumsum(z, 1), jnp.cumprod(z, 0), lax.cummax(z)), [c64(T, 3)], id="cumulative"),
        pytest.param(lambda z: lax.cumlogsumexp(z, reverse=True), [c64(T, 2)], id="cumlogsumexp"),
        pytest.param(lambda z: (jnp.sort(jnp.round(z), 0), jnp.argsort(jnp.round(z))), [c64(T, 3)], id="sort"),
        pytest.param(lambda x, z: lax.sort([jnp.round(x), z], num_keys=2), [f32(T), c64(T)], id="sort-two-keys"),
        pytest.param(lambda a, b: (a @ b, jnp.vdot(a[0], b[:, 0]), jnp.tensordot(a, b)), [c64(3, 3), c64(3, 3)], id="products"),
        pytest.param(lambda x, z: jnp.einsum("bij,jk->bik", x, z), [f32(B, 2, 3), c64(3, 2)], id="mixed-product"),
        pytest.param(lambda z, k: jnp.convolve(z, k, "same"), [c64(8), c64(3)], id="convolution"),
        pytest.param(lambda z: lax.reduce_window(z, 0j, lax.add, (2,), (1,), "VALID"), [c64(6)], id="window-sum"),
        pytest.param(lambda z: lax.iota(jnp.complex64, 3) * z + jnp.linspace(0, 1j, 3), [c64(3)], id="iota"),
    ],
)  # fmt: skip
def test_arrays(fn, specs):
    check(fn, *specs, rtol=1e-4, atol=1e-5)


def test_no_elements():
    check(lambda z: (z * 2, z.sum(), jnp.sort(z)), c64(0))


# Programs -------------------------------------------------------------------------------------------------------------


def custom(z):
    @jax.custom_jvp
    def doubled(z):
        return z * 2

    doubled.defjvp(lambda primals, tangents: (doubled(*primals), tangents[0] * 2))
    return doubled(z)


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        pytest.param(lambda z, x: lax.scan(lambda s, r: ((s * r[0] + r[1]).astype(s.dtype), (s, s.real)), z[0], (z, x)), [c64(T, 2), f32(T, 2)], id="scan"),
        pytest.param(lambda z, w: lax.scan(lambda s, r: (s * w, r), z[0], z, reverse=True), [c64(T), c64()], id="scan-closure"),
        pytest.param(lambda z, w: lax.while_loop(lambda s: abs(s) < jnp.abs(w) + 9, lambda s: s * 2 + w, z), [c64(), c64()], id="while"),
        pytest.param(jax.vmap(lambda z: lax.while_loop(lambda s: jnp.abs(s) < 9, lambda s: s * 2 + 1j, z)), [c64(B)], id="batched-while"),
        pytest.param(lambda i, z: lax.switch(i, [jnp.sin, jnp.conj, lambda z: z * 1j], z), [i32(), c64(B)], id="switch"),
        pytest.param(lambda z: jax.jit(lambda z: (z, z.real))(z), [c64(B)], id="jit"),
        pytest.param(lambda z: jax.checkpoint(jnp.sin)(z) + custom(z), [c64(B)], id="calls"),
        pytest.param(lambda z: jax.vmap(jnp.outer)(z, z), [c64(B, 2)], id="vmap"),
        pytest.param(jax.grad(lambda z: jnp.abs(jnp.sin(z) * z).sum()), [c64(B)], id="grad"),
        pytest.param(jax.grad(lambda z: jnp.exp(z).sum(), holomorphic=True), [c64(B)], id="holomorphic"),
        pytest.param(lambda z, t: jax.jvp(jnp.sqrt, (z,), (t,)), [c64(B), c64(B)], id="jvp"),
        pytest.param(lambda z: lax.custom_linear_solve(lambda x: x * z, z, lambda _, b: b / z), [c64(3)], id="linear-solve"),
        pytest.param(lambda tree: {"sum": tree["a"] + tree["b"]}, [{"a": c64(B), "b": f32(B)}], id="tree"),
    ],
)  # fmt: skip
def test_programs(fn, specs):
    check(fn, *specs, rtol=1e-4, atol=1e-5)


@jaxport.onnx_function
def rotated(z, x):
    return z * 1j + x, x


@pytest.mark.parametrize("count", [0, 1])
def test_blocks_become_functions(count):
    block = rotated if count else (lambda z, x: (z * 1j + x, x))
    exported = check(lambda z, x: block(*block(z, x)), c64(B, 2), f32(B, 2), function_count=count)
    if count:
        (function,) = exported.model.functions.values()
        assert [value.name for value in function.inputs] == ["z.real", "z.imag", "x"]


# The border -----------------------------------------------------------------------------------------------------------


def test_the_caller_gives_and_gets_complex_arrays():
    exported = jaxport.to_onnx(lambda z: z * 2j, [c64(B, 3)], input_names=["z"], output_names=["out"])
    z = np.array([[1 + 2j, 3, 4j]], np.complex64)
    np.testing.assert_array_equal(exported(z), z * 2j)
    pairs = np.stack([z.real, z.imag], -1)
    assert exported.model.graph.inputs[0].shape == exported.model.graph.outputs[0].shape == ("B", 3, 2)
    assert exported.run({"z": pairs})[0].shape == (1, 3, 2)


def test_images_in_another_layout():
    exported = check(lambda z: z * 1j, c64(B, 4, 5, 3), inputs_as_nchw=[0], outputs_as_nchw=[0])
    assert exported.model.graph.inputs[0].shape == (B, 3, 4, 5, 2)


@pytest.mark.parametrize("weights", ["constants", "inputs"])
def test_weights(weights):
    nnx = pytest.importorskip("flax.nnx")

    class Filter(nnx.Module):
        def __init__(self):
            self.response = nnx.Param(jnp.array([1 + 1j, 2, 3j], jnp.complex64))

        def __call__(self, z):
            return z * self.response[...]

    check(Filter(), c64(B, 3), weights=weights)


def test_a_product_is_four_multiplications():
    exported = jaxport.to_onnx(lambda z, w: z * w, [c64(3), c64(3)])
    assert operators(exported, nested=True).count("Mul") == 4


def test_a_refusal():
    peek = jax.extend.core.Primitive("peek")
    peek.def_abstract_eval(lambda z: jax.core.ShapedArray(z.shape, z.dtype))
    with pytest.raises(jaxport.Unsupported) as error:
        jaxport.to_onnx(lambda z: (peek.bind(z), peek.bind(z) + 1), [c64(3)])
    assert "peek of complex numbers" in str(error.value)
    assert "register a rule with `@jaxport.rule`" in str(error.value)


def test_a_rule_that_fails_on_complex_numbers():
    peek = jax.extend.core.Primitive("peek")
    peek.def_abstract_eval(lambda z: jax.core.ShapedArray(z.shape, z.dtype))
    jaxport.rule("peek", via=lambda z: jnp.floor(z))
    try:
        with pytest.raises(jaxport.errors.RuleError, match="the rule for `peek of complex numbers` failed: TypeError"):
            jaxport.to_onnx(peek.bind, [c64(3)])
    finally:
        del RULES["peek"]


ROWS = lax.ScatterDimensionNumbers((1,), (0,), (0,))
TWICE = np.int32([[2], [0], [2]])


@pytest.mark.parametrize(
    "function",
    [
        lambda z: lax.scatter_apply(z, TWICE, lambda v: v * v + 1, ROWS, update_shape=(3, z.shape[1])),
        lambda z: lax.scatter_max(z, TWICE, z[1:] * 2, ROWS),
        lambda z: lax.scatter_min(z.at[2].set(jnp.round(z[2].real)), TWICE, jnp.round(z[1:].real) + 1j, ROWS),
        lambda z: jax.vmap(lambda v: lax.pmax(v, "i") - lax.pmin(v, "i") * lax.psum(v, "i"), axis_name="i")(z),
    ],
    ids=["a function twice", "maximum", "minimum with ties", "over a named axis"],
)
def test_scatters_and_reductions_over_devices(function):
    check(function, c64(4, 3))


def test_collectives_on_one_device():
    everywhere = {"mesh": jax.make_mesh((1,), ("i",)), "in_specs": jax.P(), "out_specs": jax.P()}
    check(jax.shard_map(lambda z: lax.psum(lax.pcast(z, "i", to="varying"), "i") * z, **everywhere), c64(4, 3))


# The step itself ------------------------------------------------------------------------------------------------------


def test_a_program_without_complex_numbers_is_left_alone():
    closed = jax.make_jaxpr(lambda x: lax.scan(lambda c, r: (c + r, jax.jit(jnp.sin)(c)), x[0], x))(jnp.ones((3, 2)))
    assert without_complex(closed) is closed


def test_no_complex_number_is_left_anywhere():
    def everything(z):
        last, all_ = lax.scan(lambda c, r: (jax.jit(jnp.sin)(c) * r, c), z[0], z)
        return lax.cond(last.real.sum() > 0, jnp.conj, lambda z: z * 1j, all_), jnp.linalg.inv(z)

    closed = jax.make_jaxpr(everything)(jnp.ones((3, 3), jnp.complex64))
    assert "complex" in str(closed) or "c64" in str(closed)
    assert "c64" not in str(without_complex(closed))
