"""Weights in few bits: one tensor for all uses of a weight, and products whose weights are the first operand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.testing import f32
from tests.exports import export, operators, weight_bytes

GENERATOR = np.random.default_rng(0)
SQUARE, LEFT = (GENERATOR.normal(size=shape).astype(np.float32) / 16 for shape in ((256, 256), (96, 64)))
PRECISIONS = {
    "int8-dynamic": ({"precision": "int8-dynamic"}, 0.27, "MatMulInteger"),
    "int8": ({"precision": "int8"}, 0.27, "QuantizeLinear"),
    "int4": ({"precision": "int4"}, 0.2, "DequantizeLinear"),
    "MatMulNBits": ({"precision": "int4", "target": "onnxruntime"}, 0.2, "MatMulNBits"),
}
PRECISION = pytest.mark.parametrize("precision", PRECISIONS)


def converted(fn, spec, precision, batch):
    options, *_ = PRECISIONS[precision]
    calibration = {"calibration": [batch]} if precision == "int8" else {}
    return export(fn, spec, **options, **calibration)


def repeated(x):
    for _ in range(4):
        x = jnp.tanh(x @ SQUARE)
    return x


@PRECISION
def test_all_uses_of_a_weight_share_its_tensor(precision):
    batch = GENERATOR.normal(size=(4, 256)).astype(np.float32)
    exported = converted(repeated, ("B", 256), precision, batch)
    _, share, operator = PRECISIONS[precision]
    assert weight_bytes(exported) < share * SQUARE.nbytes
    assert operators(exported).count(operator) >= (1 if operator == "DequantizeLinear" else 4)
    assert exported.verify().ok


class Spotting(nnx.Module):
    """Convolutions along time, and layers on the channels: the layout pass puts the weights first, or makes convolutions."""

    def __init__(self, last, kernel):
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(24, 64, kernel, rngs=rngs)
        self.linear, self.head = nnx.Linear(64, 96, rngs=rngs), nnx.Linear(96, last, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.linear(self.conv(x))))


@PRECISION
@pytest.mark.parametrize(("last", "spec", "kernel"), [(1, ("B", "T", 24), (3,)), (40, ("B", 7, "W", 24), (3, 3))])
def test_layers_beside_convolutions(precision, last, spec, kernel):
    net = Spotting(last, kernel)
    batch = GENERATOR.normal(size=(2, *(7 if isinstance(size, str) else size for size in spec[1:]))).astype(np.float32)
    model = (lambda x: net(x)[..., 0]) if last == 1 else net
    exported = converted(model, spec, precision, batch)
    assert operators(exported).count(PRECISIONS[precision][2]) >= 2
    report = exported.verify()
    assert report.ok
    made = weight_bytes(exported)
    # Only known ranges make a convolution smaller.
    of_convolution = net.conv.kernel[...].nbytes * (0.3 if precision == "int8" else 1)
    of_layers = net.linear.kernel[...].nbytes + net.head.kernel[...].nbytes
    assert made < of_convolution + 0.35 * of_layers + 2048


@PRECISION
def test_a_weight_that_is_the_first_operand(precision):
    batch = GENERATOR.normal(size=(3, 64, 5)).astype(np.float32)
    exported = converted(lambda x: jnp.tanh(LEFT @ x), ("B", 64, 5), precision, batch)
    assert exported.verify().ok
    assert weight_bytes(exported) < 0.35 * LEFT.nbytes


@pytest.mark.parametrize("precision", ["int8-dynamic", "int4"])
def test_what_has_convolutions_alone_says_so(precision):
    kernel = GENERATOR.normal(size=(3, 3, 3, 8)).astype(np.float32)
    fn = lambda x: lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    with pytest.raises(jaxport.ExportError, match=r"1 declined: it is a convolution.*`Int8\(\)` with a calibration"):
        export(fn, f32("B", 8, 8, 3), precision=precision)
    both = export(lambda x: jax.nn.relu(fn(x)).mean((1, 2)) @ LEFT[:8], f32("B", 8, 8, 3), precision=precision)
    assert "1 declined: it is a convolution" in str(both.explain())


def test_convolutions_of_one_pixel_stay_convolutions():
    kernel = GENERATOR.normal(size=(1, 1, 16, 32)).astype(np.float32)

    def fn(x):
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(x).mean((1, 2)) @ LEFT[:32]

    exported = export(fn, f32("B", 8, 8, 16), precision="int8-dynamic")
    assert operators(exported).count("Conv") == 1
    assert operators(exported).count("MatMulInteger") == 1


EXPERTS, BACK = (GENERATOR.normal(size=shape).astype(np.float32) / 8 for shape in ((4, 64, 96), (4, 96, 64)))
MIXTURES = {
    "all": (lambda x: jnp.einsum("bei,eio->beo", jnp.tanh(jnp.einsum("bi,eio->beo", x, EXPERTS)), BACK), 0.21, 0.27),
    "one each": (lambda x: jnp.einsum("ebi,eio->ebo", jnp.stack([x, -x, jnp.tanh(x), x]), EXPERTS), 0.21, 0.27),
    "chosen": (
        lambda x: jnp.einsum("bi,bio->bo", x[:3], jnp.asarray(EXPERTS)[(x[:3, 0] > 0).astype(int)]),
        0.27,
        0.27,
    ),
}


@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "int8"])
@pytest.mark.parametrize("mixture", MIXTURES)
def test_experts(mixture, precision):
    fn, *shares = MIXTURES[mixture]
    share = shares["int8" in precision]
    plain, exported = export(fn, f32(8, 64)), converted(fn, (8, 64), precision, None)
    assert exported.verify().ok
    assert weight_bytes(exported) < share * weight_bytes(plain) + 512


@pytest.mark.parametrize("precision", ["int8-dynamic", "int4"])
def test_a_tied_table_whose_head_is_the_first_operand(precision):
    table = GENERATOR.normal(size=(400, 64)).astype(np.float32) / 8
    head = lambda ids: table @ jnp.tanh(jnp.asarray(table)[ids].T)
    exported = export(head, jax.ShapeDtypeStruct((5,), np.int32), precision=precision)
    assert exported.verify().ok
    assert weight_bytes(exported) < 0.3 * table.nbytes
