"""Pixels that become channels and back are DepthToSpace and SpaceToDepth, in either layout and mode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxport.testing import check, expect_graph, f32
from tests.export.passes.fusions import operators, report

KERNEL = np.random.default_rng(3).normal(size=(3, 3, 12, 12)).astype(np.float32) / 10


def conv(x, layout="NHWC"):
    features = x.shape[layout.index("C")]
    kernel = jnp.asarray(KERNEL[:, :, :features], x.dtype)
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=(layout, "HWIO", layout))


def shuffled(x, r, split, order):
    """Channels last; `split` says what the channels are split into."""
    batch, height, width, channels = x.shape
    sizes = {"r": r, "c": channels // r**2}
    x = x.reshape(batch, height, width, *(sizes[letter] for letter in split)).transpose(order)
    return x.reshape(batch, height * r, width * r, channels // r**2)


def dcr(x, r=2):
    return shuffled(x, r, "rrc", (0, 1, 3, 2, 4, 5))


def crd(x, r=2):
    return shuffled(x, r, "crr", (0, 1, 4, 2, 5, 3))


def columns_first(x, r=2):
    return shuffled(x, r, "rrc", (0, 1, 4, 2, 3, 5))


def crd_channels_second(x, r=2):
    batch, channels, height, width = x.shape
    x = x.reshape(batch, channels // r**2, r, r, height, width).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(batch, channels // r**2, height * r, width * r)


def to_depth(x, r=2):
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // r, r, width // r, r, channels).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(batch, height // r, width // r, channels * r**2)


def to_depth_channels_first(x, r=2):
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // r, r, width // r, r, channels).transpose(0, 1, 3, 5, 2, 4)
    return x.reshape(batch, height // r, width // r, channels * r**2)


IMAGES = f32("B", 4, 6, 12)
OUTSIDE = {"empty": "of the convolution", "float64": "in which there is no Conv"}


@pytest.mark.parametrize("images", [IMAGES, f32(1, 4, 6, 12), f32("B", "H", "W", 12)], ids=["B", "one", "open"])
@pytest.mark.parametrize("shuffle", [dcr, crd])
def test_between_convolutions(shuffle, images):
    exported = check(lambda x: conv(shuffle(conv(x))), images, without=OUTSIDE)
    expect_graph(exported, ["Transpose -> Conv -> DepthToSpace -> Conv -> Transpose"], exact=True)
    (node,) = [node for node in exported.model.graph if node.op_type == "DepthToSpace"]
    assert node.attributes["mode"].as_string() == ("CRD" if shuffle is crd else "DCR")


def test_channels_second():
    exported = check(lambda x: conv(crd_channels_second(conv(x, "NCHW")), "NCHW"), f32("B", 12, 4, 6), without=OUTSIDE)
    expect_graph(exported, ["Conv -> DepthToSpace -> Conv"], exact=True)


def test_a_single_channel_of_larger_blocks():
    exported = check(lambda x: dcr(conv(x)[..., :9], 3), IMAGES, without=OUTSIDE)
    assert operators(exported)["DepthToSpace"] == 1


@pytest.mark.parametrize("images", [f32("B", 4, 6, 3), f32(1, 4, 6, 3)], ids=["B", "one"])
def test_to_depth(images):
    exported = check(lambda x: conv(to_depth(x)), images, without=OUTSIDE)
    expect_graph(exported, ["Transpose -> SpaceToDepth -> Conv -> Transpose"], exact=True)


def test_there_and_back():
    exported = check(lambda x: dcr(conv(to_depth(x))), f32("B", 4, 6, 3), without=OUTSIDE)
    assert operators(exported) == {"Transpose": 2, "SpaceToDepth": 1, "Conv": 1, "DepthToSpace": 1}


@pytest.mark.parametrize("fn", [dcr, crd, to_depth], ids=["dcr", "crd", "to depth"])
def test_nothing_has_its_channels_second(fn):
    exported = check(fn, f32("B", 4, 6, 8))
    expect_graph(exported, ["Reshape -> Transpose -> Reshape"], exact=True)
    assert report(exported, "plain_shuffles").startswith("1 written out")


def test_half_precision():
    images = jax.ShapeDtypeStruct(("B", 12, 4, 6), jnp.float16)
    assert operators(check(crd_channels_second, images))["DepthToSpace"] == 1


OTHER = {
    "columns come first in the block": (columns_first, "rows and columns change places"),
    "channels come first in the result": (to_depth_channels_first, "no mode for"),
    "blocks are not square": (
        lambda x: x.reshape(-1, 4, 6, 2, 3, 2).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 8, 18, 2),
        "not squares",
    ),
    "the rest stands between": (lambda x: shuffled(x, 2, "rcr", (0, 1, 3, 2, 5, 4)), "not a block and the rest"),
    "the batch takes the blocks": (
        lambda x: x.reshape(-1, 2, 2, 3, 2, 12).transpose(0, 2, 4, 1, 3, 5).reshape(-1, 2, 3, 12),
        "",
    ),
    "a plain merge": (lambda x: x.reshape(-1, 2, 12, 12), ""),
    "integers": (lambda x: crd_channels_second(x.astype(jnp.int32)), "no DepthToSpace of INT32"),
}


@pytest.mark.parametrize(("fn", "reason"), OTHER.values(), ids=OTHER)
def test_what_is_none(fn, reason):
    exported = check(fn, IMAGES, without={"float64": "the same"})
    assert not {"DepthToSpace", "SpaceToDepth"} & operators(exported).keys()
    assert reason in report(exported, "pixel_shuffle")
