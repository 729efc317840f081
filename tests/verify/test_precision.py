"""Products are computed in full precision on the side of JAX, whatever the device does by default."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx.parser
import pytest
from jax import lax

import jaxport
from jaxport.importer.program import Program
from jaxport.jaxprs.walk import equations_within
from jaxport.verify import running
from jaxport.verify.precision import PRODUCTS, in_full_precision

HIGHEST = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)


def convolved(x: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x[None, None], jnp.ones((1, 1, 2, 2)), (1, 1), "SAME")


def scanned(x: jax.Array) -> jax.Array:
    return lax.scan(lambda carry, row: (carry @ x, row @ x), x, x)[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x,
        lambda x: jnp.matmul(x, x, precision="high"),
        jax.jit(lambda x: jnp.einsum("ij,kj->ik", x, x)),
        jax.grad(lambda x: jnp.sum(jnp.tanh(x @ x))),
        convolved,
        scanned,
        lambda x: lax.ragged_dot(x, x[None], jnp.array([4])),
    ],
)
def test_products_are_exact(function):
    program = in_full_precision(jax.make_jaxpr(function)(jnp.ones((4, 4))))
    found = [e.params["precision"] for e in equations_within(program.jaxpr) if e.primitive.name in PRODUCTS]
    assert found
    assert set(found) == {HIGHEST}


def test_an_algorithm_stays():
    def rounded(x: jax.Array) -> jax.Array:
        return jnp.matmul(x, x, precision="BF16_BF16_F32")

    program = jax.make_jaxpr(rounded)(jnp.ones((4, 4)))
    assert in_full_precision(program) is program


def test_exports_are_compared_with_exact_products(monkeypatch):
    seen = []

    def record(jaxpr):
        seen.append(jaxpr)
        return in_full_precision(jaxpr)

    monkeypatch.setattr(running, "in_full_precision", record)
    jaxport.to_onnx(lambda x: x @ x, [(3, 3)]).verify()
    assert seen


def test_imports_are_compared_with_exact_products(monkeypatch):
    seen, apply = [], Program.apply

    def recorded(self, *args, **kwargs):
        seen.append(jax.config.values["jax_default_matmul_precision"])
        return apply(self, *args, **kwargs)

    program = jaxport.from_onnx(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        agraph (float[2, 2] x) => (float[2, 2] y) { y = MatMul(x, x) }""")
    )
    monkeypatch.setattr(Program, "apply", recorded)
    program.verify({"x": np.ones((2, 2), np.float32)})
    assert "highest" in seen
