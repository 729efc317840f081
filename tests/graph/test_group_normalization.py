from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from flax import linen as nn, nnx

from jaxport.graph.fusions.group_normalization import group_normalization
from jaxport.testing import check, f32
from tests.export.passes.fusions import operators, report
from tests.graph.test_normalization import linen_layer, nnx_layer

LOOSE = {"rtol": 5e-5, "atol": 1e-5}


def by_hand(x, g, b):
    """Channels first, each normalized for itself."""
    mean, variance = (f(x, axis=(2, 3), keepdims=True) for f in (jnp.mean, jnp.var))
    return (x - mean) / jnp.sqrt(variance + 1e-5) * g[:, None, None] + b[:, None, None]


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        (nnx_layer(nnx.GroupNorm, 8, num_groups=4), [f32("B", 6, 5, 8)]),
        (nnx_layer(nnx.GroupNorm, 8, num_groups=2, use_fast_variance=False), [f32("B", 6, 8)]),
        (nnx_layer(nnx.InstanceNorm, 8), [f32("B", 6, 5, 8)]),
        (linen_layer(nn.GroupNorm(num_groups=4), 1, 6, 5, 8), [f32("B", 6, 5, 8)]),
        (linen_layer(nn.InstanceNorm(), 1, 6, 5, 8), [f32("B", 6, 5, 8)]),
        (jax.vmap(eqx.nn.GroupNorm(4, 8)), [f32("B", 8, 5, 3)]),
        (by_hand, [f32("B", 4, 5, 3), f32(4), f32(4)]),
        (by_hand, [f32("B", 4, "H", "W"), f32(4), f32(4)]),
        (nnx_layer(nnx.GroupNorm, 8, num_groups=4), [f32(1, 6, 5, 8)]),
        (nnx_layer(nnx.GroupNorm, 8, num_groups=4), [f32("B", "H", 5, 8)]),
        (nnx_layer(nnx.GroupNorm, 8, num_groups=4), [f32("B", "H", "W", 8)]),
        (nnx_layer(nnx.GroupNorm, 8, num_groups=4), [f32(1, "2*H", "W", 8)]),
        (nnx_layer(nnx.InstanceNorm, 8), [f32("B", "H", "W", 8)]),
        (linen_layer(nn.GroupNorm(num_groups=4), 1, 6, 5, 8), [f32(1, 6, 5, 8)]),
        (jax.vmap(eqx.nn.GroupNorm(4, 8)), [f32(1, 8, 5, 3)]),
        (jax.vmap(eqx.nn.GroupNorm(4, 8)), [f32("B", 8, "H", "W")]),
    ],
)
def test_recognised(fn, specs):
    found = operators(check(fn, *specs, **LOOSE))
    assert found["InstanceNormalization"] == 1
    assert not {"Sqrt", "ReduceSum", "ReduceMean"} & found.keys()


def test_between_convolutions_nothing_is_transposed():
    model = nn.Sequential([nn.Conv(8, (3, 3)), nn.GroupNorm(4), nn.relu, nn.Conv(4, (3, 3))])
    exported = check(
        linen_layer(model, 1, 6, 6, 3), f32("B", 6, 6, 3), inputs_as_nchw=[0], outputs_as_nchw=[0], **LOOSE
    )
    found = operators(exported)
    assert found["Conv"] == 2
    assert found["InstanceNormalization"] == 1
    assert "Transpose" not in found


def test_between_convolutions_of_open_sizes_nothing_is_transposed():
    model = nn.Sequential([nn.Conv(8, (3, 3), 2), nn.GroupNorm(4), nn.relu, nn.Conv(4, (3, 3))])
    exported = check(
        linen_layer(model, 1, 6, 6, 3), f32("B", "H", "W", 3), inputs_as_nchw=[0], outputs_as_nchw=[0], **LOOSE
    )
    found = operators(exported)
    assert (found["Conv"], found["InstanceNormalization"], found["Reshape"], found["Shape"]) == (2, 1, 2, 1)
    assert not {"Transpose", "Sqrt", "ReduceMean"} & found.keys()


def test_statistics_over_the_batch_are_something_else():
    def batch_normalized(x):
        return (x - x.mean((0, 1, 2))) / jnp.sqrt(x.var((0, 1, 2)) + 1e-5)

    exported = check(batch_normalized, f32("B", 4, 4, 3), **LOOSE)
    assert "InstanceNormalization" not in operators(exported)
    assert "the normalized axes are not the last ones" in report(exported, "normalization")


ROWS = """g = Constant<value_ints = [0, 2, -1]>() r = Reshape(x, g) n = InstanceNormalization<epsilon = 0.01>(r, one, zero)
    h = Shape(x) u = Reshape(n, h) m = Mul(u, w) y = Add(m, v)"""


def of_rows(body: str, x: str = "2, 6, 4, 5") -> ir.Model:
    sizes = f"float[{x}]"
    tensors = ", ".join(
        f"float[{shape}] {name} = {{{', '.join(map(str, elements))}}}"
        for name, shape, elements in (
            ("one", "2", [1, 1]), ("zero", "2", [0, 0]), ("w", "6, 1, 1", range(6)), ("v", "6, 1, 1", range(1, 7))
        )
    )  # fmt: skip
    text = f'<ir_version: 10, opset_import: ["": 22]> agraph ({sizes} x) => ({sizes} y) <{tensors}> {{ {body} }}'
    inferred = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text), data_prop=True)
    return ir.from_proto(inferred)


def test_groups_written_as_rows():
    model = of_rows(ROWS)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    assert group_normalization(model) == "1 GroupNormalization"
    assert [node.op_type for node in model.graph if node.op_type != "Constant"][-1] == "GroupNormalization"
    x = np.random.default_rng(0).standard_normal((2, 6, 4, 5)).astype(np.float32)
    onnx.checker.check_model(ir.to_proto(model))
    fused = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(fused.run(None, {"x": x})[0], session.run(None, {"x": x})[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "body",
    [
        ROWS.replace("one, zero", "zero, one"),
        ROWS.replace("[0, 2, -1]", "[4, 2, -1]").replace("Shape(x)", "Identity(s)").replace("g =", "s = Shape(x) g ="),
        ROWS.replace("m = Mul(u, w) y = Add(m, v)", "m = Add(u, v) y = Mul(m, w)"),
        ROWS.replace("Mul(u, w)", "Mul(u, u)"),
    ],
)
def test_other_rows_are_no_groups(body: str):
    assert group_normalization(of_rows(body)) == "nothing to do"
