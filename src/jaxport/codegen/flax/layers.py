"""The layers of Flax NNX, by kind."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from jaxport.codegen.python.texts import Copied
from jaxport.codegen.quantized import quantized
from jaxport.codegen.tree import Layer, Option
from jaxport.codegen.writing.dialect import Constructor, Field, constant, for_all_axes, keywords, sized
from jaxport.codegen.writing.literals import call, name

DEFINITIONS = Copied("jaxport.codegen.flax").classes()
"""The source of the layers that Flax does not have, by the name of the class."""

DEFAULTS = {"strides": 1, "kernel_dilation": 1, "feature_group_count": 1, "use_bias": True}
"""Options that are left out if they have these values."""


def _made(function: str, layer: Layer, *sizes: str, **options: Option) -> ast.expr:
    """`nnx.Linear(32, 64, use_bias=False, rngs=rngs)`."""
    positional = [constant(layer.config[size], size) for size in sizes]
    made = keywords(options, DEFAULTS)
    dtypes = [sized(weight.dtype) for weight in layer.weights.values()]
    if dtypes and dtypes[0] is not None:
        made["param_dtype"] = dtypes[0]
    function = function if function in DEFINITIONS or "." in function else f"nnx.{function}"
    return call(function, *positional, **made, rngs=name("rngs"))


def _linear(layer: Layer) -> ast.expr:
    return _made("Linear", layer, "in_features", "out_features", **_uses(layer, "bias"))


def _grouped_linear(layer: Layer) -> ast.expr:
    return _made("GroupedLinear", layer, "num_groups", "in_features", "out_features", **_uses(layer, "bias"))


def _windows(layer: Layer) -> dict[str, Option]:
    named = layer.config.get("named_padding")
    padding = for_all_axes(layer.config["padding"]) if named is None else named
    return {"padding": padding} | {key: for_all_axes(layer.config[key]) for key in ("strides", "kernel_dilation")}


def _conv(layer: Layer) -> ast.expr:
    options = {**_windows(layer), "feature_group_count": layer.config["feature_group_count"]}
    return _made("Conv", layer, "in_features", "out_features", "kernel_size", **options, **_uses(layer, "bias"))


def _conv_transpose(layer: Layer) -> ast.expr:
    options = {**_windows(layer), "transpose_kernel": True}
    return _made(
        "ConvTranspose", layer, "in_features", "out_features", "kernel_size", **options, **_uses(layer, "bias")
    )


def _layer_norm(layer: Layer) -> ast.expr:
    weights = _uses(layer, "bias") | ({} if layer.weights else _uses(layer, "scale"))
    options = {"epsilon": layer.config["epsilon"], **weights, "use_fast_variance": False}
    return _made("LayerNorm", layer, "num_features", **options)


def _group_norm(layer: Layer) -> ast.expr:
    options = {"epsilon": layer.config["epsilon"], "use_fast_variance": False}
    return _made("GroupNorm", layer, "num_features", "num_groups", **options)


def _rms_norm(layer: Layer) -> ast.expr:
    options = {} if layer.weights else _uses(layer, "scale")
    return _made("RMSNorm", layer, "num_features", epsilon=layer.config["epsilon"], **options)


def _batch_norm(layer: Layer) -> ast.expr:
    config = layer.config
    training = config["training"]
    options = {"use_running_average": not training, "momentum": config["momentum"], "epsilon": config["epsilon"]}
    if config["axis"] != -1:
        options["axis"] = config["axis"]
    if training:
        options["use_fast_variance"] = False
    return _made("BatchNorm", layer, "num_features", **options)


def _attention(layer: Layer) -> ast.expr:
    config, options = layer.config, {}
    for key in ("qkv_features", "out_features", "in_kv_features"):
        if config[key] != config["in_features"]:
            options[key] = config[key]
    options["use_bias"] = "out_bias" in layer.weights
    return _made("MultiHeadAttention", layer, "num_heads", "in_features", **options, decode=False)


def _dropout(layer: Layer) -> ast.expr:
    return _made("Dropout", layer, "rate")


def _uses(layer: Layer, role: str) -> dict[str, bool]:
    return {f"use_{role}": role in layer.weights}


def _recurrent(layer: Layer, its_own: str) -> ast.expr:
    """A cell of Flax, which has one bias for the sum of both products, or one of the definitions above."""
    sizes = "in_features", "hidden_features"
    if "bias" in layer.weights and "recurrent_bias" not in layer.weights:
        return _made(its_own, layer, *sizes)
    return _made(f"{layer.kind}Cell", layer, *sizes, **_uses(layer, "bias"))


def accepts(layer: Layer) -> bool:
    """Whether Flax has a layer: its cells have biases for all gates, or for none."""
    return layer.kind in LAYERS and "new_bias" not in layer.weights


def _fields(layer: Layer) -> Mapping[str, Field]:
    if layer.kind == "GatewiseLSTM":
        return {role: Field(role.replace("if.", "if_.")) for role in layer.weights}
    if layer.kind == "LSTM" and "recurrent_bias" not in layer.weights:
        return {role: Field("dense_h.bias") if role == "bias" else CELL[role] for role in layer.weights}
    if layer.kind == "MultiHeadAttention":
        return {role: Field(role.replace("_", ".", 1)) for role in layer.weights}
    return {role: CELL[role] if layer.kind in ("LSTM", "GRU", "RNN") else Field(role) for role in layer.weights}


CELL = {
    "kernel": Field("dense_i.kernel"),
    "recurrent_kernel": Field("dense_h.kernel"),
    "bias": Field("dense_i.bias"),
    "recurrent_bias": Field("dense_h.bias"),
}

LAYERS = {
    kind: Constructor(build, _fields)
    for kind, build in {
        "Linear": _linear,
        "GroupedLinear": _grouped_linear,
        "Conv": _conv,
        "ConvTranspose": _conv_transpose,
        "LSTM": lambda layer: _recurrent(layer, "nnx.OptimizedLSTMCell"),
        "GatewiseLSTM": lambda layer: _made("nnx.LSTMCell", layer, "in_features", "hidden_features"),
        "GRU": lambda layer: _recurrent(layer, "nnx.GRUCell"),
        "RNN": lambda layer: _recurrent(layer, "nnx.SimpleCell"),
        "Embed": lambda layer: _made("Embed", layer, "num_embeddings", "features"),
        "LayerNorm": _layer_norm,
        "GroupNorm": _group_norm,
        "RMSNorm": _rms_norm,
        "BatchNorm": _batch_norm,
        "MultiHeadAttention": _attention,
        "Dropout": _dropout,
    }.items()
} | {kind: Constructor(build, _fields) for kind, build in quantized({}, "rngs").items()}
