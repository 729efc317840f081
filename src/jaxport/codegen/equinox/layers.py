"""The layers of Equinox, by kind: its own if it has them, over any axes before the last, and plain modules."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from jaxport.codegen.equinox.quantized import QUANTIZED, QUANTIZED_DEFINITIONS
from jaxport.codegen.tree import Layer, Option
from jaxport.codegen.writing.dialect import Constructor, Field, constant, for_all_axes, keywords, sized
from jaxport.codegen.writing.literals import call, name

DEFINITIONS = QUANTIZED_DEFINITIONS | {
    "Sequential": '''class Sequential(eqx.Module):
    """Modules and functions, one after the other."""

    layers: list

    def __call__(self, x: Array) -> Array:
        for layer in self.layers:
            x = layer(x)
        return x
''',
    "Linear": '''class Linear(eqx.nn.Linear):
    """`eqx.nn.Linear` over the last axis, whatever axes are before it."""

    def __init__(self, in_features: int, out_features: int, *, use_bias=True, dtype=jnp.float32, key: Array):
        super().__init__(in_features, out_features, use_bias, dtype, key=key)

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias
''',
    "GroupedLinear": '''class GroupedLinear(eqx.Module):
    """A linear layer for each group, such as an expert: of all groups, or of the one group of each row."""

    kernel: Array
    bias: Array | None

    def __init__(
        self, num_groups: int, in_features: int, out_features: int, *, use_bias=True, dtype=jnp.float32, key: Array
    ):
        initialize = jax.nn.initializers.lecun_normal(batch_axis=0)
        self.kernel = initialize(key, (num_groups, in_features, out_features), dtype)
        self.bias = jnp.zeros((num_groups, out_features), dtype) if use_bias else None

    def __call__(self, x: Array, groups: Array | None = None) -> Array:
        if groups is None:
            y = x @ self.kernel
            return y if self.bias is None else y + jnp.expand_dims(self.bias, 1)
        y = jnp.einsum("...i,...io->...o", x, jnp.take(self.kernel, groups, axis=0))
        return y if self.bias is None else y + jnp.take(self.bias, groups, axis=0)
''',
    "Embedding": '''class Embedding(eqx.nn.Embedding):
    """`eqx.nn.Embedding` of any number of indices."""

    def __init__(self, num_embeddings: int, features: int, *, dtype=jnp.float32, key: Array):
        super().__init__(num_embeddings, features, dtype=dtype, key=key)

    def __call__(self, x: Any, *, key: Array | None = None) -> Array:
        return jnp.take(self.weight, x, axis=0)
''',
    "LayerNorm": '''class LayerNorm(eqx.Module):
    """Layer normalization over the last axis."""

    weight: Array
    bias: Array | None
    eps: float = eqx.field(static=True)

    def __init__(self, features: int, *, eps: float, use_bias=True, dtype=jnp.float32):
        self.weight = jnp.ones(features, dtype)
        self.bias = jnp.zeros(features, dtype) if use_bias else None
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        y = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.weight
        return y if self.bias is None else y + self.bias
''',
    "RMSNorm": '''class RMSNorm(eqx.Module):
    """Division by the root mean square over the last axis."""

    weight: Array
    eps: float = eqx.field(static=True)

    def __init__(self, features: int, *, eps: float, dtype=jnp.float32):
        self.weight, self.eps = jnp.ones(features, dtype), eps

    def __call__(self, x: Array) -> Array:
        return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.weight
''',
    "GroupNorm": '''class GroupNorm(eqx.Module):
    """Group normalization of a batch with channels last."""

    weight: Array
    bias: Array
    groups: int = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    def __init__(self, groups: int, channels: int, *, eps: float, dtype=jnp.float32):
        self.weight, self.bias = jnp.ones(channels, dtype), jnp.zeros(channels, dtype)
        self.groups, self.eps = groups, eps

    def __call__(self, x: Array) -> Array:
        y = x.reshape(x.shape[0], -1, self.groups, x.shape[-1] // self.groups)
        y = y - jnp.mean(y, axis=(1, 3), keepdims=True)
        y = y * lax.rsqrt(jnp.mean(y * y, axis=(1, 3), keepdims=True) + self.eps)
        return y.reshape(x.shape) * self.weight + self.bias
''',
    "Conv": '''class Conv(eqx.Module):
    """A convolution with channels last; its kernel is (*sizes, in, out)."""

    kernel: Array
    bias: Array | None
    strides: tuple[int, ...] = eqx.field(static=True)
    padding: str | tuple[tuple[int, int], ...] = eqx.field(static=True)
    dilation: tuple[int, ...] = eqx.field(static=True)
    groups: int = eqx.field(static=True)

    def __init__(
        self, in_channels, out_channels, kernel_size, *, padding, strides=1, dilation=1, groups=1, use_bias=True,
        dtype=jnp.float32, key,
    ):
        initialize = jax.nn.initializers.lecun_normal()
        self.kernel = initialize(key, (*kernel_size, in_channels // groups, out_channels), dtype)
        self.bias = jnp.zeros(out_channels, dtype) if use_bias else None
        axes, self.groups = len(kernel_size), groups
        self.strides = (strides,) * axes if isinstance(strides, int) else strides
        self.dilation = (dilation,) * axes if isinstance(dilation, int) else dilation
        self.padding = ((padding, padding),) * axes if isinstance(padding, int) else padding

    def __call__(self, x: Array) -> Array:
        spatial = "DHW"[-len(self.strides):]
        y = lax.conv_general_dilated(
            x, self.kernel, self.strides, self.padding, rhs_dilation=self.dilation,
            dimension_numbers=(f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"), feature_group_count=self.groups,
        )
        return y if self.bias is None else y + self.bias
''',
    "ConvTranspose": '''class ConvTranspose(eqx.Module):
    """A transposed convolution with channels last; its kernel is (*sizes, out, in)."""

    kernel: Array
    bias: Array | None
    strides: tuple[int, ...] = eqx.field(static=True)
    padding: tuple[tuple[int, int], ...] = eqx.field(static=True)
    dilation: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self, in_channels, out_channels, kernel_size, *, padding, strides=1, dilation=1, use_bias=True,
        dtype=jnp.float32, key,
    ):
        initialize = jax.nn.initializers.lecun_normal(in_axis=-1, out_axis=-2)
        self.kernel = initialize(key, (*kernel_size, out_channels, in_channels), dtype)
        self.bias = jnp.zeros(out_channels, dtype) if use_bias else None
        axes = len(kernel_size)
        self.strides = (strides,) * axes if isinstance(strides, int) else strides
        self.dilation = (dilation,) * axes if isinstance(dilation, int) else dilation
        self.padding = ((padding, padding),) * axes if isinstance(padding, int) else padding

    def __call__(self, x: Array) -> Array:
        spatial = "DHW"[-len(self.strides):]
        y = lax.conv_transpose(
            x, self.kernel, self.strides, self.padding, rhs_dilation=self.dilation, transpose_kernel=True,
            dimension_numbers=(f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"),
        )
        return y if self.bias is None else y + self.bias
''',
    "LSTMCell": '''class LSTMCell(eqx.Module):
    """A long short-term memory of a batch, as `lax.scan` takes it: the carry is `(c, h)`."""

    weight_ih: Array
    weight_hh: Array
    bias: Array | None
    recurrent_bias: Array | None

    def __init__(
        self, in_features: int, hidden_size: int, *, use_bias=True, recurrent_bias=True, dtype=jnp.float32, key: Array
    ):
        first, second = jax.random.split(key)
        initialize = jax.nn.initializers.lecun_normal(in_axis=-1, out_axis=-2)
        self.weight_ih = initialize(first, (4 * hidden_size, in_features), dtype)
        self.weight_hh = initialize(second, (4 * hidden_size, hidden_size), dtype)
        self.bias = jnp.zeros(4 * hidden_size, dtype) if use_bias else None
        self.recurrent_bias = jnp.zeros(4 * hidden_size, dtype) if recurrent_bias else None

    def __call__(self, carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
        c, h = carry
        of_input = x @ self.weight_ih.T if self.bias is None else x @ self.weight_ih.T + self.bias
        gates = of_input + h @ self.weight_hh.T
        gates = gates if self.recurrent_bias is None else gates + self.recurrent_bias
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h
''',
    "GRUCell": '''class GRUCell(eqx.Module):
    """A gated recurrent unit of a batch, as `lax.scan` takes it; `bias_n` is for the product with the state in the new gate."""

    weight_ih: Array
    weight_hh: Array
    bias: Array | None
    recurrent_bias: Array | None
    bias_n: Array | None

    def __init__(
        self, in_features: int, hidden_size: int, *, use_bias=True, recurrent_bias=True, new_bias=False, key: Array
    ):
        first, second = jax.random.split(key)
        initialize = jax.nn.initializers.lecun_normal(in_axis=-1, out_axis=-2)
        self.weight_ih = initialize(first, (3 * hidden_size, in_features))
        self.weight_hh = initialize(second, (3 * hidden_size, hidden_size))
        self.bias = jnp.zeros(3 * hidden_size) if use_bias else None
        self.recurrent_bias = jnp.zeros(3 * hidden_size) if recurrent_bias else None
        self.bias_n = jnp.zeros(hidden_size) if new_bias else None

    def __call__(self, h: Array, x: Array) -> tuple[Array, Array]:
        of_input = x @ self.weight_ih.T if self.bias is None else x @ self.weight_ih.T + self.bias
        of_state = h @ self.weight_hh.T
        of_state = of_state if self.recurrent_bias is None else of_state + self.recurrent_bias
        input_r, input_z, input_n = jnp.split(of_input, 3, axis=-1)
        state_r, state_z, state_n = jnp.split(of_state, 3, axis=-1)
        state_n = state_n if self.bias_n is None else state_n + self.bias_n
        update = jax.nn.sigmoid(input_z + state_z)
        new = jnp.tanh(input_n + jax.nn.sigmoid(input_r + state_r) * state_n)
        h = (1 - update) * new + update * h
        return h, h
''',
    "SimpleCell": '''class SimpleCell(eqx.Module):
    """A plain recurrent network of a batch, as `lax.scan` takes it."""

    input: Linear
    recurrent: Linear

    def __init__(
        self, in_features: int, hidden_size: int, *, use_bias: bool = True, recurrent_bias: bool = True, key: Array
    ):
        first, second = jax.random.split(key)
        self.input = Linear(in_features, hidden_size, use_bias=use_bias, key=first)
        self.recurrent = Linear(hidden_size, hidden_size, use_bias=recurrent_bias, key=second)

    def __call__(self, h: Array, x: Array) -> tuple[Array, Array]:
        h = jnp.tanh(self.input(x) + self.recurrent(h))
        return h, h
''',
    "BatchNorm": '''class BatchNorm(eqx.Module):
    """Batch normalization by its statistics, which are not trained, or by those of the batch unless `inference`."""

    scale: Array
    bias: Array
    mean: Array
    var: Array
    eps: float = eqx.field(static=True)
    axis: int = eqx.field(static=True)
    inference: bool

    def __init__(self, channels, *, eps, axis=-1, inference=True):
        self.scale, self.bias = jnp.ones(channels), jnp.zeros(channels)
        self.mean, self.var = jnp.zeros(channels), jnp.ones(channels)
        self.eps, self.axis, self.inference = eps, axis, inference

    def __call__(self, x: Array) -> Array:
        sizes = [1] * x.ndim
        sizes[self.axis] = x.shape[self.axis]
        mean, var = lax.stop_gradient((self.mean, self.var))
        if not self.inference:
            axes = tuple(axis for axis in range(x.ndim) if axis != self.axis % x.ndim)
            mean, var = jnp.mean(x, axis=axes), jnp.var(x, axis=axes)
        factor = self.scale * lax.rsqrt(var + self.eps)
        return (x - mean.reshape(sizes)) * factor.reshape(sizes) + self.bias.reshape(sizes)
''',
    "Dropout": '''class Dropout(eqx.nn.Dropout):
    """`eqx.nn.Dropout` that drops the same elements in each call unless it is given a key."""

    seed: int = eqx.field(static=True)

    def __init__(self, rate: float, *, seed: int):
        super().__init__(rate)
        self.seed = seed

    def __call__(self, x: Array, *, key: Array | None = None, inference: bool | None = None) -> Array:
        key = jax.random.fold_in(jax.random.key(0), self.seed) if key is None else key
        return super().__call__(x, key=key, inference=inference)
''',
}
"""The source of the layers, by the name of the class."""

DEFAULTS = {"strides": 1, "dilation": 1, "groups": 1, "use_bias": True, "recurrent_bias": True}
"""Options that are left out if they have these values."""


def _made(function: str, layer: Layer, *sizes: str, keyed: bool = True, **options: Option) -> ast.expr:
    """`Linear(32, 64, use_bias=False, key=next(keys))`."""
    positional = [constant(layer.config[size], size) for size in sizes]
    made = keywords(options, DEFAULTS)
    dtypes = [sized(weight.dtype) for weight in layer.weights.values()]
    if dtypes and dtypes[0] is not None:
        made["dtype"] = dtypes[0]
    if keyed:
        made["key"] = call("next", name("keys"))
    return call(function, *positional, **made)


def _bias(layer: Layer) -> dict[str, bool]:
    return {"use_bias": "bias" in layer.weights}


def _linear(layer: Layer) -> ast.expr:
    return _made("Linear", layer, "in_features", "out_features", **_bias(layer))


def _grouped_linear(layer: Layer) -> ast.expr:
    return _made("GroupedLinear", layer, "num_groups", "in_features", "out_features", **_bias(layer))


def _windows(layer: Layer) -> dict[str, Option]:
    named = layer.config.get("named_padding")
    padding = for_all_axes(layer.config["padding"]) if named is None else named
    names = {"strides": "strides", "kernel_dilation": "dilation"}
    return {"padding": padding} | {option: for_all_axes(layer.config[key]) for key, option in names.items()}


def _conv(layer: Layer) -> ast.expr:
    options = {**_windows(layer), "groups": layer.config["feature_group_count"]}
    return _made("Conv", layer, "in_features", "out_features", "kernel_size", **options, **_bias(layer))


def _conv_transpose(layer: Layer) -> ast.expr:
    sizes = ("in_features", "out_features", "kernel_size")
    return _made("ConvTranspose", layer, *sizes, **_windows(layer), **_bias(layer))


def _layer_norm(layer: Layer) -> ast.expr:
    return _made("LayerNorm", layer, "num_features", keyed=False, eps=layer.config["epsilon"], **_bias(layer))


def _group_norm(layer: Layer) -> ast.expr:
    return _made("GroupNorm", layer, "num_groups", "num_features", keyed=False, eps=layer.config["epsilon"])


def _rms_norm(layer: Layer) -> ast.expr:
    return _made("RMSNorm", layer, "num_features", keyed=False, eps=layer.config["epsilon"])


def _batch_norm(layer: Layer) -> ast.expr:
    options: dict[str, Option] = {} if layer.config["axis"] == -1 else {"axis": layer.config["axis"]}
    if layer.config["training"]:
        options["inference"] = False
    return _made("BatchNorm", layer, "num_features", keyed=False, eps=layer.config["epsilon"], **options)


def _dropout(layer: Layer) -> ast.expr:
    return _made("Dropout", layer, "rate", keyed=False, seed=layer.config["seed"])


_SAME = {role: Field(role) for role in ("kernel", "bias", "scale", "mean", "var")}


def _cell(function: str, layer: Layer) -> ast.expr:
    biases = {"use_bias": "bias" in layer.weights, "recurrent_bias": "recurrent_bias" in layer.weights}
    options = {"new_bias": True} if "new_bias" in layer.weights else {}
    return _made(function, layer, "in_features", "hidden_features", **biases, **options)


_WEIGHT = {
    "kernel": Field("weight", (1, 0)),
    "scale": Field("weight"),
    "embedding": Field("weight"),
    "bias": Field("bias"),
}

_LSTM = {
    "kernel": Field("weight_ih", (1, 0)),
    "recurrent_kernel": Field("weight_hh", (1, 0)),
    "bias": Field("bias"),
    "recurrent_bias": Field("recurrent_bias"),
}
_GRU = _LSTM | {"new_bias": Field("bias_n")}
_RNN = {
    "kernel": Field("input.weight", (1, 0)),
    "recurrent_kernel": Field("recurrent.weight", (1, 0)),
    "bias": Field("input.bias"),
    "recurrent_bias": Field("recurrent.bias"),
}

_KINDS: dict[str, tuple[Callable[[Layer], ast.expr], Mapping[str, Field]]] = {
    "Linear": (_linear, _WEIGHT),
    "GroupedLinear": (_grouped_linear, _SAME),
    "Conv": (_conv, _SAME),
    "ConvTranspose": (_conv_transpose, _SAME),
    "LSTM": (lambda layer: _cell("LSTMCell", layer), _LSTM),
    "GRU": (lambda layer: _cell("GRUCell", layer), _GRU),
    "RNN": (lambda layer: _cell("SimpleCell", layer), _RNN),
    "Embed": (lambda layer: _made("Embedding", layer, "num_embeddings", "features"), _WEIGHT),
    "LayerNorm": (_layer_norm, _WEIGHT),
    "GroupNorm": (_group_norm, _WEIGHT),
    "RMSNorm": (_rms_norm, _WEIGHT),
    "BatchNorm": (_batch_norm, _SAME),
    "Dropout": (_dropout, {}),
}


def _constructor(build: Callable[[Layer], ast.expr], fields: Mapping[str, Field]) -> Constructor:
    return Constructor(build, lambda layer: {role: fields[role] for role in layer.weights})


LAYERS = {kind: _constructor(build, fields) for kind, (build, fields) in _KINDS.items()} | {
    kind: Constructor(build, lambda layer: {role: Field(role) for role in layer.weights})
    for kind, build in QUANTIZED.items()
}
