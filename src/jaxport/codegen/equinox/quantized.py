"""The layers of Equinox that compute with integers of few bits, which Equinox does not have."""

from __future__ import annotations

from jaxport.codegen.quantized import quantized

QUANTIZED_DEFINITIONS = {
    "QuantizedLinear": '''class QuantizedLinear(eqx.Module):
    """A linear layer with a kernel of few bits, packed into bytes, in blocks with a scale each. It is not trained."""

    packed: Array
    scales: Array
    zero_points: Array | None
    bias: Array | None
    in_features: int = eqx.field(static=True)
    bits: int = eqx.field(static=True)

    def __init__(
        self, in_features, out_features, bits, block_size=None, *, use_bias=True, zero_points=False, dtype=jnp.float32
    ):
        block_size = -(-in_features * bits // 8) * 8 // bits if block_size is None else block_size
        blocks = -(-in_features // block_size)
        self.in_features, self.bits = in_features, bits
        self.packed = jnp.zeros((out_features, blocks, block_size * bits // 8), jnp.uint8)
        self.scales = jnp.zeros((out_features, blocks), dtype)
        self.zero_points = jnp.zeros((out_features, blocks), jnp.uint8) if zero_points else None
        self.bias = jnp.zeros(out_features, dtype) if use_bias else None

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        packed, scales = self.packed, lax.stop_gradient(self.scales)
        numbers = (packed[..., None] >> jnp.arange(0, 8, self.bits, dtype=jnp.uint8)) & (2**self.bits - 1)
        zeros = 2 ** (self.bits - 1) if self.zero_points is None else self.zero_points[..., None].astype(scales.dtype)
        values = (numbers.reshape(*scales.shape, -1).astype(scales.dtype) - zeros) * scales[..., None]
        y = x @ values.reshape(len(scales), -1)[:, : self.in_features].T
        return y if self.bias is None else y + self.bias
''',
    "QuantizedEmbed": '''class QuantizedEmbed(eqx.Module):
    """An embedding of 8-bit integers, with a scale and a zero point. It is not trained."""

    embedding: Array
    scale: Array
    zero_point: Array

    def __init__(self, num_embeddings, features, kind=jnp.int8, *, dtype=jnp.float32):
        self.embedding = jnp.zeros((num_embeddings, features), kind)
        self.scale = jnp.ones((), dtype)
        self.zero_point = jnp.zeros((), kind)

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        scale = lax.stop_gradient(self.scale)
        return (jnp.take(self.embedding.astype(scale.dtype), x, axis=0) - self.zero_point) * scale
''',
    "FakeQuantize": '''class FakeQuantize(eqx.Module):
    """Rounds to the values that an integer type has with a scale and a zero point, which are not trained."""

    scale: Array
    zero_point: Array

    def __init__(self, kind=jnp.int8, *, dtype=jnp.float32):
        self.scale = jnp.ones((), dtype)
        self.zero_point = jnp.zeros((), kind)

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        return fake_quantized(x, lax.stop_gradient(self.scale), self.zero_point, self.zero_point.dtype)
''',
    "DynamicQuantizedLinear": '''class DynamicQuantizedLinear(eqx.Module):
    """A linear layer of integers: its kernel is int8, and its operand is rounded in each call. The kernel is not trained."""

    kernel: Array
    scales: Array
    zero_points: Array | None
    bias: Array | None

    def __init__(self, in_features, out_features, *, use_bias=True, zero_points=False):
        self.kernel = jnp.zeros((in_features, out_features), jnp.int8)
        self.scales = jnp.zeros(out_features)
        self.zero_points = jnp.zeros(out_features, jnp.int8) if zero_points else None
        self.bias = jnp.zeros(out_features) if use_bias else None

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        y = dynamic_product(x, self.kernel, lax.stop_gradient(self.scales), self.zero_points)
        return y if self.bias is None else y + self.bias
''',
    "QuantizedConv": '''class QuantizedConv(eqx.Module):
    """A convolution with a kernel of 8-bit integers, with a scale for each of its outputs. It is not trained."""

    kernel: Array
    scales: Array
    zero_points: Array | None
    bias: Array | None
    strides: tuple[int, ...] = eqx.field(static=True)
    padding: str | tuple[tuple[int, int], ...] = eqx.field(static=True)
    dilation: tuple[int, ...] = eqx.field(static=True)
    groups: int = eqx.field(static=True)

    def __init__(
        self, in_channels, out_channels, kernel_size, *, padding, strides=1, dilation=1, groups=1, use_bias=True,
        zero_points=False, kind=jnp.int8, dtype=jnp.float32,
    ):
        axes, self.groups = len(kernel_size), groups
        self.strides = (strides,) * axes if isinstance(strides, int) else strides
        self.dilation = (dilation,) * axes if isinstance(dilation, int) else dilation
        self.padding = ((padding, padding),) * axes if isinstance(padding, int) else padding
        self.kernel = jnp.zeros((*kernel_size, in_channels // groups, out_channels), kind)
        self.scales = jnp.zeros(out_channels, dtype)
        self.zero_points = jnp.zeros(out_channels, kind) if zero_points else None
        self.bias = jnp.zeros(out_channels, dtype) if use_bias else None

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        kernel, spatial = self.kernel.astype(x.dtype), "DHW"[-len(self.strides):]
        kernel = kernel if self.zero_points is None else kernel - self.zero_points.astype(x.dtype)
        y = lax.conv_general_dilated(
            x, kernel * lax.stop_gradient(self.scales), self.strides, self.padding, rhs_dilation=self.dilation,
            dimension_numbers=(f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"), feature_group_count=self.groups,
        )
        return y if self.bias is None else y + self.bias
''',
}
"""The source of these layers, by the name of the class."""

NAMES = {"param_dtype": "dtype", "dtype": "kind", "kernel_dilation": "dilation", "feature_group_count": "groups"}
"""What these layers call arguments of Flax's."""
QUANTIZED = quantized(NAMES)
"""The constructors of these layers, by kind."""
