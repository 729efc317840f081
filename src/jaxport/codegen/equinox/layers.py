"""The layers of Equinox, by kind: its own if it has them, over any axes before the last, and plain modules."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from jaxport.codegen.python.texts import Copied
from jaxport.codegen.quantized import quantized
from jaxport.codegen.tree import Layer, Option
from jaxport.codegen.writing.dialect import Constructor, Field, constant, for_all_axes, keywords, sized
from jaxport.codegen.writing.literals import call, name

DEFINITIONS = Copied("jaxport.codegen.equinox").classes()
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
    for kind, build in quantized(
        {"param_dtype": "dtype", "dtype": "kind", "kernel_dilation": "dilation", "feature_group_count": "groups"}
    ).items()
}
