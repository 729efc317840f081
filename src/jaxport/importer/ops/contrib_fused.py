"""Normalizations, activations, products and convolutions of ONNX Runtime's own domain: several steps in one
operator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxport.blocks.block import FrozenMapping
from jaxport.importer.ops.activations import gelu, hard_sigmoid
from jaxport.importer.ops.arithmetic import safe_root
from jaxport.importer.ops.casting import at_least_single
from jaxport.importer.ops.contrib_attention import DOMAIN, refuse
from jaxport.importer.ops.convolution import ConvolutionAttributes, conv
from jaxport.importer.ops.generating import trilu
from jaxport.importer.ops.linear_algebra import gemm, scaled
from jaxport.importer.ops.normalization import standardized
from jaxport.importer.ops.pooling import PoolingAttributes, max_pool
from jaxport.importer.resolving.registry import Host, image_op, in_layout, op, variant
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.image_layout import CHANNELS_LAST
from jaxport.importer.values.namespaces import cast, jnp, lax, nn

op(DOMAIN, "Gelu", since=1)(variant("approximate")(gelu))


@op(DOMAIN, "BiasGelu", since=1)
def bias_gelu(A, B):
    return nn.gelu(A + B, approximate=False)


@op(DOMAIN, "FastGelu", since=1)
def fast_gelu(X, bias=None):
    return nn.gelu(X if bias is None else X + bias)


@op(DOMAIN, "QuickGelu", since=1)
def quick_gelu(X, *, alpha=1.702):
    return X * nn.sigmoid(alpha * X)


@op(DOMAIN, "BiasSplitGelu", since=1)
def bias_split_gelu(X, bias):
    left, right = jnp.split(X + bias, 2, axis=-1)
    return left * nn.gelu(right, approximate=False)


@op(DOMAIN, "BiasAdd", since=1)
def bias_add(X, bias, skip):
    return X + bias + skip


def _sum(input: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    return input + skip if bias is None else input + skip + bias


@op(DOMAIN, "SkipLayerNormalization", since=1)
def skip_layer_normalization(input, skip, gamma, beta=None, bias=None, *, epsilon=1e-12):
    total = _sum(input, skip, bias)
    y, mean, inverse = standardized(at_least_single(total), (-1,), epsilon)
    y = cast(y, input.dtype) * gamma
    return y if beta is None else y + beta, mean, inverse, total


def _root_mean_square(x: Tensor, scale: Tensor, epsilon: float, axes: Sequence[int] = (-1,)) -> tuple[Tensor, Tensor]:
    wide = at_least_single(x)
    inverse = lax.rsqrt(jnp.mean(wide * wide, axis=tuple(axes), keepdims=True) + epsilon)
    return cast(wide * inverse, x.dtype) * scale, inverse


@op(DOMAIN, "SkipSimplifiedLayerNormalization", since=1)
def skip_simplified_layer_normalization(input, skip, gamma, bias=None, *, epsilon=1e-12):
    total = _sum(input, skip, bias)
    y, inverse = _root_mean_square(total, gamma, epsilon)
    return y, None, inverse, total


@op("SimplifiedLayerNormalization", since=1)
def simplified_layer_normalization(X, scale, *, axis=-1, epsilon=1e-5, stash_type=1):
    return _root_mean_square(X, scale, epsilon, range(axis % X.ndim, X.ndim))


@op(DOMAIN, "EmbedLayerNormalization", since=1)
def embed_layer_normalization(
    input_ids,
    segment_ids=None,
    word_embedding=None,
    position_embedding=None,
    segment_embedding=None,
    gamma=None,
    beta=None,
    mask=None,
    position_ids=None,
    *,
    epsilon=1e-12,
    mask_index_type=None,
):
    at = jnp.arange(input_ids.shape[1]) if position_ids is None else position_ids
    total = jnp.take(word_embedding, input_ids, axis=0) + jnp.take(position_embedding, at, axis=0)
    if segment_ids is not None:
        total = total + jnp.take(segment_embedding, segment_ids, axis=0)
    y = cast(standardized(at_least_single(total), (-1,), epsilon)[0], total.dtype) * gamma + beta
    counted = jnp.zeros_like(input_ids) if mask is None else mask
    return y, cast(jnp.sum(counted, axis=1), np.int32), total


@op(DOMAIN, "GroupNorm", since=1)
def group_norm(X, gamma, beta, *, activation, channels_last=1, epsilon=1e-5, groups):
    x = jnp.moveaxis(X, -1, 1) if channels_last else X
    batch, channels, *spatial = x.shape
    grouped = jnp.reshape(at_least_single(x), (batch, groups, channels // groups * math.prod(spatial)))
    y = jnp.reshape(standardized(grouped, (2,), epsilon)[0], x.shape)
    y = jnp.moveaxis(y, 1, -1) if channels_last else y
    shape = (-1,) if channels_last else (-1, *[1] * len(spatial))
    y = y * jnp.reshape(gamma, shape) + jnp.reshape(beta, shape)
    return cast(nn.silu(y) if activation else y, X.dtype)


@op(DOMAIN, "SkipGroupNorm", since=1)
def skip_group_norm(X, gamma, beta, skip, bias=None, *, activation, channels_last=1, epsilon=1e-5, groups):
    skip = jnp.expand_dims(skip, (1, 2) if channels_last else (2, 3)) if skip.ndim == 2 else skip
    bias = bias if bias is None or channels_last else jnp.reshape(bias, (-1, 1, 1))
    total = _sum(X, skip, bias)
    options = {"activation": activation, "channels_last": channels_last, "epsilon": epsilon, "groups": groups}
    return group_norm(total, gamma, beta, **options), total


def _activated(y: Tensor, name: str | None, parameters: Mapping[str, float] = FrozenMapping()) -> Tensor:
    """Apply the activation that is fused with an operator to its result `y`; parameters that it does not have mean
    nothing.
    """
    functions = {
        None: lambda x, **_: x,
        "": lambda x, **_: x,
        "Relu": lambda x, **_: nn.relu(x),
        "Sigmoid": lambda x, **_: nn.sigmoid(x),
        "Tanh": lambda x, **_: jnp.tanh(x),
        "LeakyRelu": lambda x, alpha=0.01, **_: nn.leaky_relu(x, alpha),
        "Elu": lambda x, alpha=1.0, **_: nn.elu(x, alpha),
        "Softplus": lambda x, **_: nn.softplus(x),
        "Softsign": lambda x, **_: nn.soft_sign(x),
        "ThresholdedRelu": lambda x, alpha=1.0, **_: jnp.where(x > alpha, x, 0),
        "Clip": lambda x, alpha=None, beta=None, **_: jnp.clip(x, alpha, beta),
        "HardSigmoid": lambda x, alpha=0.2, beta=0.5, **_: hard_sigmoid(x, alpha=alpha, beta=beta),
        "HardSwish": lambda x, **_: nn.hard_swish(x),
        "Gelu": lambda x, **_: nn.gelu(x, approximate=False),
    }
    refuse(name not in functions, f"the activation `{name}`; {', '.join(filter(None, functions))} are")
    return functions[name](y, **parameters)


def _transposed(x: Tensor, last: int, batch: int) -> Tensor:
    """Return `x` with its last two axes swapped if `last`, its first one moved behind the batch axes if `batch`."""
    x = jnp.moveaxis(x, 0, -2) if batch else x
    return x.mT if last and x.ndim > 1 else x


@dataclass(frozen=True, kw_only=True)
class ActivationAttributes:
    """The constants of the activation that is fused with a product."""

    activation_alpha: float | None = None
    activation_beta: float | None = None
    activation_gamma: float | None = None

    def of(self, y: Tensor, name: str | None) -> Tensor:
        """Return the result `y` of a product with the activation applied."""
        constants = {"alpha": self.activation_alpha, "beta": self.activation_beta, "gamma": self.activation_gamma}
        return _activated(y, name, {key: constant for key, constant in constants.items() if constant is not None})


@dataclass(frozen=True, kw_only=True)
class ProductAttributes:
    """The attributes of products of matrices that are transposed first."""

    alpha: float = 1.0
    transA: int = 0
    transB: int = 0
    transBatchA: int = 0
    transBatchB: int = 0


@op(DOMAIN, "FusedMatMul", since=1)
def fused_matmul(A, B, *, product: ProductAttributes):
    left, right = (
        _transposed(A, product.transA, product.transBatchA),
        _transposed(B, product.transB, product.transBatchB),
    )
    return scaled(left @ right, product.alpha)


op(DOMAIN, "TransposeMatMul", since=1)(variant("transBatchA transBatchB")(fused_matmul))


@op(DOMAIN, "FusedMatMulActivation", since=1)
def fused_matmul_activation(
    A, B, *, activation, activation_axis=None, constants: ActivationAttributes, product: ProductAttributes
):
    return constants.of(fused_matmul(A, B, product=product), activation)


@op(DOMAIN, "FusedGemm", since=1)
def fused_gemm(
    A, B, C=None, *, activation=None, constants: ActivationAttributes, alpha=1.0, beta=1.0, transA=0, transB=0
):
    return constants.of(gemm(A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB), activation)


@image_op(DOMAIN, "FusedConv", since=1)
def fused_conv(layout, X, W, B=None, Z=None, *, activation=None, activation_params=None, window: ConvolutionAttributes):
    y = conv(layout, X, W, B, window=window)
    parameters: dict[str, float] = dict(zip(("alpha", "beta"), activation_params or (), strict=False))
    return _activated(y if Z is None else y + Z, activation, parameters)


op(DOMAIN, "NhwcFusedConv", since=1)(in_layout(CHANNELS_LAST, fused_conv))


@op(DOMAIN, "NhwcConv", since=1)
def nhwc_conv(X, W, B=None, *, window: ConvolutionAttributes):
    # The description says otherwise, but ONNX Runtime's own optimizer, which writes it, puts the kernel's channels
    # last.
    return conv(CHANNELS_LAST, X, jnp.moveaxis(W, -1, 1), B, window=window)


@op(DOMAIN, "NhwcMaxPool", since=1)
def nhwc_max_pool(x, *, window: PoolingAttributes):
    return max_pool(CHANNELS_LAST, x, window=window)


@op(DOMAIN, "Inverse", since=1)
def inverse(X):
    return cast(jnp.linalg.inv(at_least_single(X)), X.dtype)


@op(DOMAIN, "Trilu", since=1)
def trilu_(X, k: Host | None = None, *, upper=1):
    return trilu(X, k, upper=upper)


@op(DOMAIN, "ExpandDims", since=1)
def expand_dims(X, axis: Host):
    return jnp.expand_dims(X, int(axis))


@op(DOMAIN, "CDist", since=1)
def pairwise_distances(A, B, *, metric="sqeuclidean"):
    difference = jnp.expand_dims(A, 1) - B
    squares = jnp.sum(difference * difference, axis=2)
    return safe_root(squares) if metric == "euclidean" else squares


@op(DOMAIN, "BiasSoftmax", since=1)
def bias_softmax(data, bias, *, axis=1, is_inner_broadcast):
    return nn.softmax(data + bias, axis=tuple(range(axis % data.ndim, data.ndim)))
