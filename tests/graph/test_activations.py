from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from jaxport.testing import check, f32, f64, spec
from tests.export.passes.fusions import operators, report
from tests.importer.models import RUNTIME

pytestmark = pytest.mark.sampled(2)

NO_QUICK_GELU = "before 1.31 ONNX Runtime makes a QuickGelu of float64, for which it has no kernel"
ROOT = (2 / np.pi) ** 0.5
EXTREMES = np.array([[0.0, -0.0, np.nan, np.inf, -np.inf], [1e-8, -1e-8, 30, -30, 1e4]], np.float32)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (jax.nn.relu, ["Relu"]),
        (nn.relu, ["Relu"]),
        (lambda x: jnp.maximum(0, x), ["Relu"]),
        (lambda x: jax.nn.relu((x + 1) * (x - 1)), ["Add", "Sub", "Mul", "Relu"]),
        (jax.nn.relu6, ["Clip"]),
        (jax.nn.hard_tanh, None),
        (lambda x: jnp.minimum(jnp.maximum(x, -2), 1), ["Clip"]),
        (jax.nn.gelu, ["Gelu"]),
        (lambda x: 0.5 * x * (1 + jnp.tanh(ROOT * (x + 0.044715 * x**3))), ["Gelu"]),
        (lambda x: x * 0.5 * (jnp.tanh((x + x * x * x * 0.044715) * ROOT) + 1), ["Gelu"]),
        (lambda x: x / 2 * (1 + jnp.tanh(ROOT * x * (1 + 0.044715 * x**2))), ["Gelu"]),
        (lambda x: jax.nn.gelu(x, approximate=False), ["Gelu"]),
        (lambda x: x * 0.5 * (1 + lax.erf(x / jnp.sqrt(2.0))), ["Gelu"]),
        (lambda x: 0.5 * (lax.erf(x * 2**-0.5) + 1.0) * x, ["Gelu"]),
        (lambda x: x * 0.5 * lax.erfc(-x / np.sqrt(2).astype(np.float32)), ["Gelu"]),
        (lambda x: jax.nn.gelu(jax.nn.gelu(x)), ["Gelu", "Gelu"]),
        (lambda x: jax.nn.gelu(x) * x * 2, ["Gelu", "Mul", "Mul"]),
        (jax.nn.silu, ["Sigmoid", "Mul"]),
        (lambda x: x / (1 + jnp.exp(-x)), ["Sigmoid", "Mul"]),
        (lambda x: 1 / (jnp.exp(-x) + 1), ["Sigmoid"]),
        (jax.nn.elu, ["Elu"]),
        (lambda x: jax.nn.elu(x, 0.7), ["Elu"]),
        (jax.nn.selu, ["Selu"]),
        (jax.nn.celu, ["Celu"]),
        (lambda x: nn.celu(x, 0.5), ["Celu"]),
        (jax.nn.leaky_relu, ["LeakyRelu"]),
        (lambda x: jnp.where(x >= 0, x, 0.2 * x), ["LeakyRelu"]),
        (jax.nn.hard_sigmoid, ["HardSigmoid"]),
        (jax.nn.hard_swish, ["HardSwish"]),
        (jax.nn.softplus, ["Softplus"]),
        (jax.nn.log_sigmoid, ["Neg", "Softplus", "Neg"]),
        (jax.nn.soft_sign, ["Softsign"]),
        (lambda x: x * jnp.tanh(jax.nn.softplus(x)), ["Mish"]),
    ],
)
def test_recognised(fn, expected):
    without = {"float64": NO_QUICK_GELU} if expected == ["Sigmoid", "Mul"] and RUNTIME < (1, 31) else None
    exported = check(fn, f32("B", 5), rtol=2e-5, atol=2e-6, without=without)
    if expected:
        assert [node.op_type for node in exported.model.graph] == expected
    check(fn, f32(*EXTREMES.shape), values=[EXTREMES], rtol=2e-5, atol=2e-6, without=without)


@pytest.mark.parametrize(
    ("fn", "operator"),
    [
        (lambda x: 0.5 * x * (1 + jnp.tanh(0.7 * (x + 0.044715 * x**3))), "Gelu"),
        (lambda x: 0.5 * x * (1 + jnp.tanh(ROOT * (x + 0.044715 * x**2))), "Gelu"),
        (lambda x: 0.5 * x * (1 - lax.erf(x * 2**-0.5)), "Gelu"),
        (lambda x: 0.5 * x * (1 + lax.erf(jnp.flip(x) * 2**-0.5)), "Gelu"),
        (lambda x: jnp.where(x > 1, x, jnp.expm1(x)), "Elu"),
        (lambda x: jnp.where(x <= 0, x, 0.1 * x), "LeakyRelu"),
        (lambda x: jnp.where(x >= 0, x, 0.1 * jnp.flip(x)), "LeakyRelu"),
        (lambda x: 1 / (1 + jnp.exp(x)), "Sigmoid"),
        (lambda x: x / (1 + jnp.exp(-jnp.flip(x))), "Sigmoid"),
        (lambda x: jnp.maximum(x, 0.1), "Relu"),
    ],
)
def test_something_else(fn, operator):
    assert operator not in operators(check(fn, f32("B", 5), rtol=2e-5, atol=2e-6))


def test_a_part_that_is_needed_elsewhere():
    def with_inside(x):
        inside = jnp.tanh(ROOT * (x + 0.044715 * x**3))
        return 0.5 * x * (1 + inside), inside

    exported = check(with_inside, f32("B", 5))
    assert "Gelu" not in operators(exported)
    assert report(exported, "activations").startswith("1 declined: `Tanh` in it is used elsewhere too (Mul_")


def test_before_there_was_an_operator():
    exported = check(lambda x: jax.nn.gelu(x, approximate=False), f32("B", 5), opset=18)
    assert operators(exported) == {"Div": 1, "Erf": 1, "Add": 1, "Mul": 2}
    exported = check(jax.nn.gelu, f32("B", 5), opset=18)
    assert report(exported, "activations") == "1 declined: Gelu needs opset 20 (Mul_5)"


def test_in_double_precision_the_runtime_lacks_many():
    exported = check(jax.nn.elu, f64("B", 5), double_precision=True)
    assert "the runtime has no Elu of DOUBLE" in report(exported, "activations")


def test_bfloat16_is_computed_in_single_precision():
    exported = check(jax.nn.gelu, spec("B", 5, dtype=ml_dtypes.bfloat16), rtol=0.05, atol=0.05)
    assert operators(exported) == {"Cast": 2, "Gelu": 1}


def test_inside_loops_and_functions():
    def steps(x):
        return lax.scan(lambda c, r: (c + r, jax.nn.gelu(c * r)), x[0], x)[1]

    assert operators(check(steps, f32("B", 5)))["Gelu"] == 1


@pytest.mark.parametrize("fn", [lambda x: jax.nn.gelu(x, approximate=False), jax.nn.gelu, jax.nn.mish])
def test_after_a_product_of_one_matrix(fn):
    """A batch of one leaves the product without its axis, which some operators of the function have again."""
    found = operators(check(lambda x: fn(x @ x / 4), f32(1, 4, 4), rtol=1e-5, atol=1e-6))
    assert found.keys() - {"Reshape", "Unsqueeze", "MatMul", "Div"} in ({"Gelu"}, {"Mish"})
