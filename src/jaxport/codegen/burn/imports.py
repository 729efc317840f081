"""Where the names are that printed sources use, and the lines that import them."""

from __future__ import annotations

import re
from collections.abc import Collection

_LAYERS = (
    "BatchNorm Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Dropout Embedding GroupNorm Gru "
    "LayerNorm "
    "Linear Lstm MultiHeadAttention PaddingConfig1d PaddingConfig2d PaddingConfig3d RmsNorm"
).split()


def _layers(pattern: str) -> str:
    return " ".join(f"{name} {name}Config" for name in _LAYERS if re.fullmatch(pattern, name))


PATHS = {
    "burn::module": "Initializer ModuleMapper Param ParamId",
    "burn::nn": f"{_layers('(?!Conv|Multi).*')} LstmState",
    "burn::nn::attention": f"{_layers('Multi.*')} MhaInput generate_autoregressive_mask",
    "burn::nn::conv": _layers("Conv.*"),
    "burn::prelude": "",
    "burn::tensor": (
        "DType Distribution FloatDType IndexingUpdateOp IntDType Slice TensorCreationOptions activation module"
    ),
    "burn::tensor::activation": "softmax",
    "burn::tensor::kind": "Basic Numeric Ordered",
    "burn::tensor::module": "linear",
    "burn::tensor::ops": (
        "AvgPoolOptions ConvOptions ConvTransposeOptions GridSampleOptions GridSamplePaddingMode InterpolateMode "
        "InterpolateOptions "
        "MaxPoolOptions PadMode"
    ),
    "std::cmp": "Ordering",
}
"""The names by the module that has them."""
PRELUDE = frozenset("Bool Config Device ElementConversion Float Int Module Shape Tensor TensorData s".split())
NAMES = frozenset(" ".join(PATHS.values()).split()) | PRELUDE
"""All names that a source may import."""


def imports(text: str, further: Collection[str] = ()) -> list[str]:
    """Return the lines that import what a text uses, and further names.

    >>> imports("activation::relu(x.cast(DType::F32))")
    ['use burn::tensor::{DType, activation};']
    """
    words = used(text) | {*further}
    lines = ["use burn::prelude::*;"] if words & PRELUDE else []
    for path, names in PATHS.items():
        some = sorted(words & {*names.split()}, key=lambda name: (name.islower(), name))
        if some:
            lines.append(f"use {path}::{some[0] if len(some) == 1 else '{' + ', '.join(some) + '}'};")
    return sorted(lines, key=lambda line: line.replace("{", "~"))


def used(text: str) -> set[str]:
    """Return the functions that a text calls, and the types, macros and modules that it names.

    Methods and variables may have the names of functions; texts and comments may have any.

    >>> sorted(used('check("Slice //", x) // of Tensor'))
    ['check']
    """
    text = re.sub(r'"(?:[^"\\]|\\.)*"|//.*', "", text)
    return set(re.findall(r"(?<![.\w:])[a-z]\w*(?=\(|::|!)|(?<![.\w])[A-Z]\w*", text))
