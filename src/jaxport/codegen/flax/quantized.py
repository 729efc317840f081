"""The layers of Flax NNX that compute with integers of few bits, which Flax does not have."""

from __future__ import annotations

from jaxport.codegen.quantized import quantized

QUANTIZED_DEFINITIONS = {
    "QuantizedLinear": '''class QuantizedLinear(nnx.Module):
    """A linear layer with a kernel of few bits, packed into bytes, in blocks with a scale each. It is not trained."""

    def __init__(
        self, in_features, out_features, bits, block_size=None, *, use_bias=True, zero_points=False, param_dtype=jnp.float32,
        rngs: nnx.Rngs,
    ):
        block_size = -(-in_features * bits // 8) * 8 // bits if block_size is None else block_size
        blocks = -(-in_features // block_size)
        self.in_features, self.bits = in_features, bits
        self.packed = Table(jnp.zeros((out_features, blocks, block_size * bits // 8), jnp.uint8))
        self.scales = Table(jnp.zeros((out_features, blocks), param_dtype))
        self.zero_points = Table(jnp.zeros((out_features, blocks), jnp.uint8)) if zero_points else None
        self.bias = nnx.Param(jnp.zeros((out_features,), param_dtype)) if use_bias else None

    def __call__(self, x: Array) -> Array:
        packed, scales = self.packed[...], self.scales[...]
        numbers = (packed[..., None] >> jnp.arange(0, 8, self.bits, dtype=jnp.uint8)) & (2**self.bits - 1)
        zeros = 2 ** (self.bits - 1) if self.zero_points is None else self.zero_points[...][..., None].astype(scales.dtype)
        values = (numbers.reshape(*scales.shape, -1).astype(scales.dtype) - zeros) * scales[..., None]
        y = x @ values.reshape(len(scales), -1)[:, : self.in_features].T
        return y if self.bias is None else y + self.bias[...]
''',
    "QuantizedEmbed": '''class QuantizedEmbed(nnx.Module):
    """An embedding of 8-bit integers, with a scale and a zero point. It is not trained."""

    def __init__(self, num_embeddings, features, dtype=jnp.int8, *, param_dtype=jnp.float32, rngs: nnx.Rngs):
        self.embedding = Table(jnp.zeros((num_embeddings, features), dtype))
        self.scale = Table(jnp.ones((), param_dtype))
        self.zero_point = Table(jnp.zeros((), dtype))

    def __call__(self, x: Array) -> Array:
        scale, zero_point = self.scale[...], self.zero_point[...]
        return (jnp.take(self.embedding[...].astype(scale.dtype), x, axis=0) - zero_point) * scale
''',
    "FakeQuantize": '''class FakeQuantize(nnx.Module):
    """Rounds to the values that an integer type has with a scale and a zero point, which are not trained."""

    def __init__(self, dtype=jnp.int8, *, param_dtype=jnp.float32, rngs: nnx.Rngs):
        self.scale = Table(jnp.ones((), param_dtype))
        self.zero_point = Table(jnp.zeros((), dtype))

    def __call__(self, x: Array) -> Array:
        return fake_quantized(x, self.scale[...], self.zero_point[...], self.zero_point.dtype)
''',
    "DynamicQuantizedLinear": '''class DynamicQuantizedLinear(nnx.Module):
    """A linear layer of integers: its kernel is int8, and its operand is rounded in each call. The kernel is not trained."""

    def __init__(self, in_features, out_features, *, use_bias=True, zero_points=False, rngs: nnx.Rngs):
        self.kernel = Table(jnp.zeros((in_features, out_features), jnp.int8))
        self.scales = Table(jnp.zeros((out_features,)))
        self.zero_points = Table(jnp.zeros((out_features,), jnp.int8)) if zero_points else None
        self.bias = nnx.Param(jnp.zeros((out_features,))) if use_bias else None

    def __call__(self, x: Array) -> Array:
        zero_points = None if self.zero_points is None else self.zero_points[...]
        y = dynamic_product(x, self.kernel[...], self.scales[...], zero_points)
        return y if self.bias is None else y + self.bias[...]
''',
    "QuantizedConv": '''class QuantizedConv(nnx.Module):
    """A convolution with a kernel of 8-bit integers, with a scale for each of its outputs. It is not trained."""

    def __init__(
        self, in_features, out_features, kernel_size, *, padding, strides=1, kernel_dilation=1, feature_group_count=1,
        use_bias=True, zero_points=False, dtype=jnp.int8, param_dtype=jnp.float32, rngs: nnx.Rngs,
    ):
        axes, self.groups = len(kernel_size), feature_group_count
        self.strides = (strides,) * axes if isinstance(strides, int) else strides
        self.dilation = (kernel_dilation,) * axes if isinstance(kernel_dilation, int) else kernel_dilation
        self.padding = ((padding, padding),) * axes if isinstance(padding, int) else padding
        self.kernel = Table(jnp.zeros((*kernel_size, in_features // feature_group_count, out_features), dtype))
        self.scales = Table(jnp.zeros((out_features,), param_dtype))
        self.zero_points = Table(jnp.zeros((out_features,), dtype)) if zero_points else None
        self.bias = nnx.Param(jnp.zeros((out_features,), param_dtype)) if use_bias else None

    def __call__(self, x: Array) -> Array:
        kernel, spatial = self.kernel[...].astype(x.dtype), "DHW"[-len(self.strides):]
        kernel = kernel if self.zero_points is None else kernel - self.zero_points[...].astype(x.dtype)
        y = lax.conv_general_dilated(
            x, kernel * self.scales[...], self.strides, self.padding, rhs_dilation=self.dilation,
            dimension_numbers=(f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"), feature_group_count=self.groups,
        )
        return y if self.bias is None else y + self.bias[...]
''',
}
"""The source of these layers, by the name of the class."""

QUANTIZED = quantized({}, "rngs")
"""The constructors of these layers, by kind."""
