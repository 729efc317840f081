"""The layers that Burn has: how each is made, called, and where it keeps its weights."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxport.codegen.rust.tree import (
    Array,
    FieldAccess,
    Identifier,
    Literal,
    Method,
    Number,
    RustExpression,
    RustRange,
    Slices,
    constant,
    method,
    names,
    path_call,
    rewritten,
)
from jaxport.codegen.tree import Layer
from jaxport.codegen.writing.dialect import Constructor, Field, LayerLibrary
from jaxport.importer.values.dtypes import canonical

DEFAULTS = {
    "stride": 1,
    "dilation": 1,
    "groups": 1,
    "bias": True,
    "padding": 0,
    "padding_out": 0,
    "epsilon": 1e-5,
    "momentum": 0.1,
    "zero_points": False,
}
"""Options that are left out if they have these values."""


@dataclass(frozen=True)
class BuilderOption:
    """A value that a configuration is given, and whether it is the one that it has without that."""

    value: RustExpression
    is_default: bool = False


def _config(
    name: str, sizes: Sequence[RustExpression], options: Mapping[str, BuilderOption], has_device: bool = True
) -> Method:
    """`LinearConfig::new(32, 64).with_bias(false).init(device)`."""
    made: RustExpression = path_call(f"{name}Config::new", *sizes)
    for key, option in options.items():
        made = Method(made, f"with_{key}", [option.value], is_default=option.is_default)
    return method(made, "init", *([Identifier("device")] if has_device else []))


def _sizes(layer: Layer, *roles: str) -> list[RustExpression]:
    return [constant(layer.config[role], role) for role in roles]


def _options(**options: float) -> dict[str, BuilderOption]:
    """Return options as expressions; a number that is a default in float32 is that default."""
    made: dict[str, BuilderOption] = {}
    for key, value in options.items():
        default = DEFAULTS[key]
        is_default = np.float32(value) == np.float32(default)
        made[key] = BuilderOption(constant(default if is_default else value, key), bool(is_default))
    return made


def _linear(layer: Layer) -> RustExpression:
    return _config("Linear", _sizes(layer, "in_features", "out_features"), _options(bias="bias" in layer.weights))


def _along(values: Sequence[int], role: str, default: int) -> BuilderOption:
    """Return a number for each axis: of one axis the number itself."""
    numbers = [constant(value, role) for value in values]
    made = numbers[0] if len(numbers) == 1 else Array([*numbers])
    return BuilderOption(made, all(value == default for value in values))


def _conv(layer: Layer) -> RustExpression:
    config, rank = layer.config, len(layer.config["kernel_size"])
    channels = _sizes(layer, "in_features", "out_features")
    kernel = _along(config["kernel_size"], "kernel_size", -1).value
    sizes = [*channels, kernel] if rank == 1 else [Array(channels), kernel]
    pads = config["padding"]
    if rank == 1:
        explicit = path_call("PaddingConfig1d::Explicit", *(constant(n, "padding") for n in pads[0]))
    elif rank == 2:
        (top, bottom), (left, right) = pads
        explicit = path_call("PaddingConfig2d::Explicit", *(constant(n, "padding") for n in (top, left, bottom, right)))
    else:
        explicit = path_call("PaddingConfig3d::Explicit", *(constant(low, "padding") for low, _ in pads))
    options = {
        "stride": _along(config["strides"], "stride", 1),
        "padding": BuilderOption(explicit, is_default=not any(map(any, pads))),
        "dilation": _along(config["kernel_dilation"], "dilation", 1),
        **_options(groups=config["feature_group_count"], bias="bias" in layer.weights),
    }
    return _config(f"Conv{rank}d", sizes, options)


def transposed_padding(layer: Layer) -> list[tuple[int, int]] | None:
    """Return what Burn calls the padding of a transposed convolution, and the padding of its output, of each axis.

    The tree has the padding of the input that is spread apart.
    """
    config, made = layer.config, []
    for (low, high), size, dilation in zip(
        config["padding"], config["kernel_size"], config["kernel_dilation"], strict=True
    ):
        whole = dilation * (size - 1)
        if whole - low < 0 or high < low:
            return None
        made.append((whole - low, high - low))
    return made


def _conv_transpose(layer: Layer) -> RustExpression:
    config, rank = layer.config, len(layer.config["kernel_size"])
    pads = transposed_padding(layer)
    assert pads is not None
    channels = _sizes(layer, "in_features", "out_features")
    kernel = _along(config["kernel_size"], "kernel_size", -1).value
    sizes = [Array(channels), kernel]
    options = {
        "stride": _along(config["strides"], "stride", 1),
        "padding": _along([low for low, _ in pads], "padding", 0),
        "padding_out": _along([out for _, out in pads], "padding_out", 0),
        "dilation": _along(config["kernel_dilation"], "dilation", 1),
        **_options(bias="bias" in layer.weights),
    }
    if rank == 1:
        sizes = [Array(channels), kernel]
    return _config(f"ConvTranspose{rank}d", sizes, options)


def _layer_norm(layer: Layer) -> RustExpression:
    options = _options(epsilon=layer.config["epsilon"], bias="bias" in layer.weights)
    return _config("LayerNorm", _sizes(layer, "num_features"), options)


def _group_norm(layer: Layer) -> RustExpression:
    return _config("GroupNorm", _sizes(layer, "num_groups", "num_features"), _options(epsilon=layer.config["epsilon"]))


def _rms_norm(layer: Layer) -> RustExpression:
    return _config("RmsNorm", _sizes(layer, "num_features"), _options(epsilon=layer.config["epsilon"]))


def _batch_norm(layer: Layer) -> RustExpression:
    options = _options(epsilon=layer.config["epsilon"], momentum=round(1 - float(layer.config["momentum"]), 7))
    return _config("BatchNorm", _sizes(layer, "num_features"), options)


def _embed(layer: Layer) -> RustExpression:
    return _config("Embedding", _sizes(layer, "num_embeddings", "features"), {})


def _dropout(layer: Layer) -> RustExpression:
    return _config("Dropout", _sizes(layer, "rate"), {}, has_device=False)


def _quantized_linear(layer: Layer) -> RustExpression:
    roles = ["in_features", "out_features"] + ["bits", "block_size"] * (layer.kind == "QuantizedLinear")
    if layer.config.get("block_size", 0) is None:  # one block for each output
        config = layer.config
        whole = -(-config["in_features"] * config["bits"] // 8) * 8 // config["bits"]
        layer = replace(layer, config={**config, "block_size": whole})
    options = _options(bias="bias" in layer.weights, zero_points="zero_points" in layer.weights)
    return _config(layer.kind, _sizes(layer, *roles), options)


def _fake_quantize(layer: Layer) -> RustExpression:
    info = np.iinfo(layer.config["dtype"])
    return _config("FakeQuantize", [constant(float(info.min), "least"), constant(float(info.max), "most")], {})


def _lstm(layer: Layer) -> RustExpression:
    made = _config("Lstm", [*_sizes(layer, "in_features", "hidden_features"), _has_bias(layer)], {})
    made.receiver = method(made.receiver, "with_batch_first", Literal("false"))
    if layer.config["reverse"]:
        made.receiver = method(made.receiver, "with_reverse", Literal("true"))
    return _with_own_biases("lstm", layer, made)


def _gru(layer: Layer) -> RustExpression:
    made = _config("Gru", [*_sizes(layer, "in_features", "hidden_features"), _has_bias(layer)], {})
    return _with_own_biases("gru", layer, made)


def _has_bias(layer: Layer) -> RustExpression:
    return Number(any("bias" in role for role in layer.weights))


def _with_own_biases(name: str, layer: Layer, made: RustExpression) -> RustExpression:
    """Return a cell without those biases of Burn's that the model has not: of products of the state, all or all but
    one.
    """
    if "recurrent_bias" in layer.weights or not any("bias" in role for role in layer.weights):
        return made
    return path_call(f"{name}_with_new_bias" if "new_bias" in layer.weights else f"{name}_with_one_bias", made)


CELL_HELPERS = ("gru_with_new_bias", "gru_with_one_bias", "lstm_with_one_bias")
"""The helper functions that make a cell."""
CELLS = {"LSTM": ("input", "forget", "cell", "output"), "GRU": ("reset", "update", "new")}
"""The gates of cells, in the order of the tree."""
GATEWISE = "GatewiseLSTM"
"""An LSTM of the tree with weights of their own for each gate."""


def is_cell(layer: Layer) -> bool:
    """Whether a layer is one that goes over the steps of a sequence."""
    return layer.kind in CELLS or layer.kind == GATEWISE


def _gates(layer: Layer) -> dict[str, Field]:
    """Return where the weights of a cell are: each gate has two linear layers."""

    def fields(transform: str, leaf: str) -> tuple[str, ...]:
        return tuple(f"{gate}_gate.{transform}_transform.{leaf}" for gate in CELLS[layer.kind])

    found = {
        "kernel": fields("input", "weight"),
        "recurrent_kernel": fields("hidden", "weight"),
        "bias": fields("input", "bias"),
        "recurrent_bias": fields("hidden", "bias"),
        "new_bias": fields("hidden", "bias")[-1:],
    }
    return {role: Field(role, pieces=pieces) for role, pieces in found.items() if role in layer.weights}


def _own_gates(layer: Layer) -> dict[str, Field]:
    """Return where the weights of an LSTM are whose gates have weights of their own; a bias is with the first
    product.
    """
    places = {
        "i{}.kernel": "input_transform.weight",
        "h{}.kernel": "hidden_transform.weight",
        "h{}.bias": "input_transform.bias",
    }
    return {
        role: Field(f"{gate}_gate.{place}")
        for letter, gate in zip("ifgo", CELLS["LSTM"], strict=True)
        for pattern, place in places.items()
        if (role := pattern.format(letter)) in layer.weights
    }


def _attention(layer: Layer) -> RustExpression:
    made = _config("MultiHeadAttention", _sizes(layer, "in_features", "num_heads"), {})
    options = {"dropout": Literal("0.0")}
    if layer.config.get("is_causal"):  # what is hidden is so whatever the scores are
        options["min_float"] = Literal("f64::from(f32::MIN)")
    if "query_bias" not in layer.weights:
        options |= {f"{projection}_bias": Literal("false") for projection in ("query", "key", "value", "output")}
    for key, value in options.items():
        made.receiver = method(made.receiver, f"with_{key}", value)
    return made


def _projection(role: str) -> str:
    """Return where a weight of an attention is.

    >>> _projection("query_kernel"), _projection("out_bias")
    ('query.weight', 'output.bias')
    """
    projection, _, leaf = role.partition("_")
    return f"{'output' if projection == 'out' else projection}.{'weight' if leaf == 'kernel' else leaf}"


ROLES = {
    "LayerNorm": {"scale": "gamma", "bias": "beta"},
    "GroupNorm": {"scale": "gamma", "bias": "beta"},
    "RMSNorm": {"scale": "gamma"},
    "BatchNorm": {"scale": "gamma", "bias": "beta", "mean": "running_mean", "var": "running_var"},
    "Embed": {"embedding": "weight"},
    "DynamicQuantizedLinear": {"kernel": "weight", "scales": "scales", "zero_points": "zero_points", "bias": "bias"},
    "QuantizedLinear": {role: role for role in ("packed", "scales", "zero_points", "bias")},
    "FakeQuantize": {"scale": "scale", "zero_point": "zero_point"},
}
"""The fields of layers by the roles of weights; those of others are `weight` and `bias`."""


def _fields(layer: Layer) -> Mapping[str, Field]:
    if layer.kind in CELLS:
        return _gates(layer)
    if layer.kind == GATEWISE:
        return _own_gates(layer)
    if layer.kind == "MultiHeadAttention":
        return {role: Field(role, pieces=(_projection(role),)) for role in layer.weights}
    names = ROLES.get(layer.kind, {"kernel": "weight", "bias": "bias"})
    return {role: Field(names[role]) for role in layer.weights}


LAYERS = {
    kind: Constructor(build, _fields)
    for kind, build in {
        "Linear": _linear,
        "Conv": _conv,
        "ConvTranspose": _conv_transpose,
        "Embed": _embed,
        "LayerNorm": _layer_norm,
        "GroupNorm": _group_norm,
        "RMSNorm": _rms_norm,
        "BatchNorm": _batch_norm,
        "Dropout": _dropout,
        "LSTM": _lstm,
        GATEWISE: _lstm,
        "GRU": _gru,
        "MultiHeadAttention": _attention,
        "DynamicQuantizedLinear": _quantized_linear,
        "QuantizedLinear": _quantized_linear,
        "FakeQuantize": _fake_quantize,
    }.items()
}


QUANTIZED = ("DynamicQuantizedLinear", "FakeQuantize", "QuantizedLinear")
"""Layers that a crate brings along, in `helpers.rs`."""


def _accepts_quantized(layer: Layer) -> bool:
    """Whether a layer of integers computes with float32; one whose weight the file dequantizes has floats."""
    floats = {role: weight.dtype.name for role, weight in layer.weights.items() if role in ("scale", "scales", "bias")}
    is_small = layer.kind != "FakeQuantize" or np.dtype(layer.config["dtype"]).itemsize < 4
    return {*floats.values()} == {"float32"} and is_small and not layer.config.get("is_dequantized", False)


def accepts(layer: Layer) -> bool:
    """Whether Burn's layer computes what a layer of the file does; all else is printed as operators."""
    config = layer.config
    if layer.kind in QUANTIZED:
        return _accepts_quantized(layer)
    types = {canonical(weight.dtype).name for weight in layer.weights.values()}
    if (
        layer.kind not in LAYERS
        or config.get("in_single")
        or not types <= {"float64", "float32", "float16", "bfloat16"}
    ):
        return False
    if "float64" in types and (is_cell(layer) or layer.kind in ("RMSNorm", "MultiHeadAttention")):
        return False  # they compute in float32, or begin with it
    match layer.kind:
        case "Conv":
            pads = config["padding"]
            if pads is None:  # it depends on the size of the image
                return False
            negative = any(n < 0 for pair in pads for n in pair)
            return len(pads) <= 3 and not negative and (len(pads) < 3 or all(low == high for low, high in pads))
        case "ConvTranspose":
            return len(config["kernel_size"]) <= 3 and transposed_padding(layer) is not None
        case "BatchNorm":
            is_second = config["axis"] == 1 or len(layer.inputs[0].shape) == 2
            return is_second and not config["training"] and config["epsilon"] > 0
        case "LayerNorm":
            return bool(layer.weights)
        case "RMSNorm":
            return config["epsilon"] > 0 and bool(layer.weights)
        case "MultiHeadAttention":
            widths = {config[key] for key in ("in_features", "qkv_features", "out_features", "in_kv_features")}
            causal = config.get("is_causal") and len(layer.inputs) == 2  # of a sequence itself
            return len(widths) == 1 and ("keywords" not in config or bool(causal))
    return True


def layer_type(layer: Layer) -> str:
    """Return the type of a layer.

    >>> layer_type(Layer("Conv", {"kernel_size": (3, 3)}, {}, (), (), "conv"))
    'Conv2d'
    """
    rank = len(layer.config.get("kernel_size", ()))
    return {
        "Conv": f"Conv{rank}d",
        "ConvTranspose": f"ConvTranspose{rank}d",
        "Embed": "Embedding",
        "RMSNorm": "RmsNorm",
        "LSTM": "Lstm",
        GATEWISE: "Lstm",
        "GRU": "Gru",
    }.get(layer.kind, layer.kind)


def forward(layer: Layer, part: RustExpression, inputs: Sequence[RustExpression]) -> RustExpression:
    """Return the call of a layer."""
    if layer.kind == "MultiHeadAttention":
        of = "self_attn" if len(inputs) == 1 else "new"
        given = path_call(f"MhaInput::{of}", *inputs, *copy.deepcopy(inputs[1:]))
        return FieldAccess(method(part, "forward", given, borrows=True), "context")
    if layer.kind == "Embed" and len(layer.inputs[0].shape) != 2:
        (indices,) = inputs
        table = method(FieldAccess(part, "weight"), "val")
        rank = len(layer.inputs[0].shape)
        if rank == 1:
            return method(table, "select", Literal("0"), indices)
        if rank == 0:
            return method(method(table, "select", Literal("0"), indices), "squeeze_dim", Literal("0"), generics="1")
        return method(table, "take", Literal("0"), indices, generics=f"{rank}, {rank + 1}")
    return method(part, "forward", *inputs)


def last_step(rows: RustExpression, is_reversed: bool) -> RustExpression:
    """Return the state after the last step of a sequence, which is the first where it is gone through from its end."""
    end = RustRange(None, Literal("1"), 1) if is_reversed else RustRange(Literal("-1"), None, 1)
    return method(method(rows, "slice_dim", Literal("0"), Slices([end])), "squeeze_dim", Literal("0"), generics="2")


KEYWORDS = (
    "as break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref "
    "return self "
    "Self static struct super trait true type unsafe use where while async await abstract become box do final gen "
    "macro override "
    "priv try typeof unsized virtual yield union"
)
"""Words of Rust that are not names."""
INITIALS = ("MLP", "FFN")
"""Initials that are a word of their own behind others."""


def camel_case(name: str) -> str:
    """Return a name as Rust spells types: the words of the name, and initials as one word.

    >>> [camel_case(text) for text in ("LSTM", "GPT2MLP", "CLIPMLP", "Self_Attention", "GPT2LMHead")]
    ['Lstm', 'Gpt2Mlp', 'ClipMlp', 'SelfAttention', 'Gpt2LmHead']
    """
    apart = re.sub(rf"(?<=[A-Z])({'|'.join(INITIALS)})$", r"_\1", name)
    words = [re.sub(r"[A-Z]+(?![a-z])", lambda initials: initials[0].capitalize(), word) for word in apart.split("_")]
    return "".join(word[:1].upper() + word[1:] for word in words)


def _value(weight: RustExpression) -> RustExpression:
    return method(weight, "val", borrows=True)


BURN = LayerLibrary(
    name="burn",
    layers=LAYERS,
    accepts=accepts,
    functions={},
    signature=("device", "Device"),
    value=_value,
    frozen=_value,
    reserved=frozenset(KEYWORDS.split()),
)
"""Burn, the deep-learning framework in Rust."""


def without_default_options(tree: RustExpression) -> RustExpression:
    """Return an expression without the options that have their default; it is changed."""

    def without(node: RustExpression) -> RustExpression:
        if not isinstance(node, Method) or not node.is_default:
            return node
        # An argument of the constructor has other values in other modules.
        return node if any(names(node.arguments)) else node.receiver

    return rewritten(tree, without)
