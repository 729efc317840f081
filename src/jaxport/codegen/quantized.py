"""The constructors of layers that compute with integers of few bits, which no framework has: each has classes of its
own.

a convolution of 3 to 16 channels whose kernel is stored in uint8
→   QuantizedConv(3, 16, (3, 3), padding=1, dtype=jnp.uint8, rngs=rngs)
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import partial

from jaxport.codegen.tree import Layer
from jaxport.codegen.writing.dialect import constant, for_all_axes, keywords, sized
from jaxport.codegen.writing.literals import attribute, call, name

DEFAULTS = {"strides": 1, "kernel_dilation": 1, "feature_group_count": 1, "use_bias": True, "zero_points": False}
SIZES = {
    "QuantizedLinear": ("in_features", "out_features", "bits", "block_size"),
    "DynamicQuantizedLinear": ("in_features", "out_features"),
    "QuantizedConv": ("in_features", "out_features", "kernel_size"),
    "QuantizedEmbed": ("num_embeddings", "features"),
    "FakeQuantize": (),
}
"""The sizes that each layer takes first."""
HAVE_BIAS = ("QuantizedLinear", "DynamicQuantizedLinear", "QuantizedConv")


def quantized(names: Mapping[str, str], key: str = "") -> dict[str, Callable[[Layer], ast.expr]]:
    """Return the constructors by kind.

    Args:
      names: how a framework calls arguments that have another name in Flax.
      key: the argument that each constructor takes for random numbers; empty if it takes none.
    """
    return {kind: partial(_made, names=names, key=key) for kind in SIZES}


def _made(layer: Layer, names: Mapping[str, str], key: str) -> ast.expr:
    config, weights = layer.config, layer.weights
    arguments = [constant(config[size], size) for size in SIZES[layer.kind] if config[size] is not None]
    options = (
        {"use_bias": "bias" in weights, "zero_points": "zero_points" in weights} if layer.kind in HAVE_BIAS else {}
    )
    if layer.kind == "QuantizedConv":
        padding = config.get("named_padding")
        strides, dilation = (for_all_axes(config[option]) for option in ("strides", "kernel_dilation"))
        options = {
            "padding": for_all_axes(config["padding"]) if padding is None else padding, "strides": strides,
            "kernel_dilation": dilation, "feature_group_count": config["feature_group_count"], **options,
        }  # fmt: skip
    made = keywords(options, {option: value for option, value in DEFAULTS.items() if option in options})
    integers = {
        "QuantizedConv": lambda: weights["kernel"].dtype.name,
        "QuantizedEmbed": lambda: weights["embedding"].dtype.name,
        "FakeQuantize": lambda: config["dtype"],
    }.get(layer.kind, lambda: "int8")()
    if integers != "int8" and layer.kind == "QuantizedConv":
        made["dtype"] = attribute(f"jnp.{integers}")
    elif integers != "int8":
        arguments.append(attribute(f"jnp.{integers}"))
    scale = weights.get("scale", weights.get("scales"))
    dtype = sized(scale.dtype) if scale is not None and layer.kind != "DynamicQuantizedLinear" else None
    made |= {} if dtype is None else {"param_dtype": dtype}
    made = {names.get(option, option): value for option, value in made.items()}
    return call(layer.kind, *arguments, **made, **({key: name(key)} if key else {}))
