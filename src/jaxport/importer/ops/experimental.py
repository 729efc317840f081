"""Operators that ONNX once had as experiments, and that files up to opset 9 still contain; ONNX Runtime computes
them.
"""

from __future__ import annotations

import numpy as np

from jaxport.errors import AGAIN, ModelError
from jaxport.importer.ops import activations, normalization  # noqa: F401  what is looked up below
from jaxport.importer.ops.indexing import slice_
from jaxport.importer.ops.normalization import mean_variance_normalization
from jaxport.importer.resolving.registry import earlier, op, variant
from jaxport.importer.values.namespaces import jnp, nn

LAST = 9
"""The last version that had them."""

earlier("ThresholdedRelu", since=1, until=LAST)


@op("Affine", since=1, until=LAST)
def affine(X, *, alpha=1.0, beta=0.0):
    return X * alpha + beta


@op("Scale", since=1, until=LAST)
def scale(input, *, scale=1.0):
    return input * scale


@op("ScaledTanh", since=1, until=LAST)
def scaled_tanh(input, *, alpha, beta):
    return alpha * jnp.tanh(beta * input)


@op("ParametricSoftplus", since=1, until=LAST)
def parametric_softplus(X, *, alpha, beta):
    return alpha * nn.softplus(beta * X)


@op("ImageScaler", since=1, until=LAST)
def image_scaler(input, *, bias=None, scale=1.0):
    shift = np.array(bias if bias is not None else [0.0] * input.shape[1], np.float32)
    return input * scale + shift.reshape(-1, 1, 1)


@op("Crop", since=1, until=LAST)
def crop(input, *, border=None, scale=None):
    if border is None or len(border) != 4 or input.ndim != 4:
        raise ModelError(
            "the attribute `border` has to be the left, top, right and bottom border of a four-dimensional image",
            instead=AGAIN,
        )
    left, top, right, bottom = border
    height, width = scale or (input.shape[2] - top - bottom, input.shape[3] - left - right)
    return input[:, :, top : top + height, left : left + width]


op("DynamicSlice", since=1, until=LAST)(variant("steps")(slice_))


@op("MeanVarianceNormalization", since=1, until=8)
def mean_variance_normalization_of_images(input, *, across_channels=0, normalize_variance=1):
    axes = (0, *range(1 if across_channels else 2, input.ndim))
    if normalize_variance:
        return mean_variance_normalization(input, axes=axes)
    return input - jnp.mean(input, axis=axes, keepdims=True)
