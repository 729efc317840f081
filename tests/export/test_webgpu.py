"""The target "webgpu": its kernels, what is written otherwise, and what is refused. `make test-runtimes` runs it in a browser."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.testing import f32, i32, spec


def export(function, *specs, **options):
    return jaxport.to_onnx(function, list(specs), target="webgpu", **options)


def operators(exported):
    return [node.op_type for node in exported.model.graph]


def conv(x, kernel, groups=1):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups)


KERNEL = np.random.default_rng(0).normal(size=(3, 3, 6, 8)).astype(np.float32)
WRITTEN = {
    "resize": (lambda x: jax.image.resize(x, (2, 8, 8, 3), "bilinear"), [f32(2, 4, 4, 3)], ["Transpose", "Resize", "Transpose"]),
    "resize of open sizes": (
        lambda x: jax.image.resize(x, (x.shape[0], 12, 6, 3), "bilinear"), [f32("B", 4, 4, 3)],
        ["Transpose", "Shape", "Concat", "Resize", "Transpose"],
    ),
    "resize of the last axes": (lambda x: jax.image.resize(x, (2, 3, 8, 8), "bilinear"), [f32(2, 3, 4, 4)], ["Resize"]),
    "or": (lambda x, y: (x > 0) | (y > 0), [f32("B", 3), f32(3)], ["Greater", "Greater", "Not", "Not", "And", "Not"]),
    "six channels": (lambda x: conv(x, KERNEL), [f32("B", 5, 5, 6)], ["Transpose", "Pad", "Conv", "Transpose"]),
    "six channels, kernel given": (
        conv, [f32("B", 5, 5, 6), f32(3, 3, 6, 8)], ["Transpose", "Transpose", "Pad", "Pad", "Conv", "Transpose"]
    ),
    "nine channels": (conv, [f32(1, 5, 5, 9), f32(3, 3, 9, 4)], ["Transpose", "Transpose", "Pad", "Pad", "Conv", "Transpose"]),
    "ten channels": (conv, [f32(1, 5, 5, 10), f32(3, 3, 10, 4)], ["Transpose", "Transpose", "Conv", "Transpose"]),
    "eight channels": (lambda x, k: conv(x, k), [f32(1, 5, 5, 8), f32(3, 3, 8, 4)], ["Transpose", "Transpose", "Conv", "Transpose"]),
    "embedding": (lambda table, i: table[i], [f32(7, 5), i32(3)], None),
    "integers": (lambda x: x * 2 + 1, [i32("B")], ["Mul", "Add"]),
    "sizes": (lambda x: jnp.concatenate([x, x]).reshape(-1), [f32("B", "T")], None),
    "bytes": (lambda x: x + x, [spec(3, dtype=np.uint8)], ["Cast", "Add", "Cast"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_what_webgpu_computes_is_written(name):
    function, specs, expected = WRITTEN[name]
    exported = export(function, *specs)
    assert exported.verify().ok
    assert exported.requirements.off_gpu == ()
    if expected is not None:
        assert sorted(operators(exported)) == sorted(expected)


@pytest.mark.parametrize(
    ("function", "specs", "why"),
    [
        (jnp.round, [f32(3)], "WebGPU of onnxruntime-web .* has no Round of float32, which the CPU would compute"),
        (lambda x: lax.fori_loop(0, 5, lambda i, c: c * 1.1, x), [f32(3)], "has no Loop of"),
        (conv, [f32(1, 5, 5, 4), f32(3, 3, 2, 12)], "gets Conv with groups that give 6 channels"),
        (
            lambda x, k: lax.conv_general_dilated(x, k, (1,) * 4, "SAME"), [f32(1, 2, 3, 3, 3, 3), f32(2, 2, 1, 1, 1, 1)],
            "gets Conv over more than three axes wrong",
        ),
        (lambda x, s: jnp.broadcast_to(s, x.shape), [f32("B", 3), spec(dtype=np.uint8)], "gets Expand of a number of uint8 wrong"),
    ],
    ids=["round", "loop", "groups", "axes", "bytes"],
)  # fmt: skip
def test_what_would_fall_back_or_be_wrong_is_refused(function, specs, why):
    given = (lambda x, k: conv(x, k, 2)) if why.startswith("gets Conv with groups") else function
    with pytest.raises(jaxport.Unsupported, match=why):
        export(given, *specs)


def test_groups_that_are_transposed_to_one_channel_are_refused():
    def function(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, (1, 1), [(2, 2), (2, 2)], lhs_dilation=(2, 2), feature_group_count=2,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        )  # fmt: skip

    exported = jaxport.to_onnx(function, [f32(1, 4, 5, 5), f32(2, 2, 3, 3)])
    if "ConvTranspose" in operators(exported):
        with pytest.raises(
            jaxport.Unsupported, match="gets ConvTranspose with groups of several channels that give one wrong"
        ):
            export(function, f32(1, 4, 5, 5), f32(2, 2, 3, 3))


def test_requirements_tell_what_falls_back():
    exported = jaxport.to_onnx(lambda x: jnp.round(jnp.tanh(x)), [("B", 3)], target="web")
    assert exported.requirements.off_gpu == ("Round of float32",)
    assert "off WebGPU   Round of float32" in str(exported.requirements)
    assert "off WebGPU" not in str(jaxport.to_onnx(jnp.round, [("B", 3)]).requirements)
