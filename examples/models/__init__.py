"""Real models as their users write them, in the framework of each: the table of examples.

>>> example = build("gpt2", "nnx")
>>> example.inputs
(ShapeDtypeStruct(shape=('B', 'T'), dtype=int32),)
"""

from __future__ import annotations

from collections.abc import Callable

from . import attention, bert, cnn, gpt2, llama, mlp, mobilenet, moe, preprocess, resnet, rnn, unet, vit
from .example import FRAMEWORKS, Example, Framework, Size

__all__ = ["FRAMEWORKS", "MODELS", "Example", "Framework", "Size", "build", "cells"]

MODELS: dict[str, dict[Framework, Callable[[Size], Example]]] = {
    "mlp": {"nnx": mlp.nnx_mlp, "linen": mlp.linen_mlp, "equinox": mlp.equinox_mlp, "jax": mlp.plain_mlp},
    "mlp_grad": {
        "nnx": mlp.nnx_mlp_grad,
        "linen": mlp.linen_mlp_grad,
        "equinox": mlp.equinox_mlp_grad,
        "jax": mlp.plain_mlp_grad,
    },
    "cnn": {"nnx": cnn.nnx_cnn, "linen": cnn.linen_cnn, "equinox": cnn.equinox_cnn},
    "cnn_train": {"nnx": cnn.nnx_cnn_train, "linen": cnn.linen_cnn_train, "equinox": cnn.equinox_cnn_train},
    "resnet50": {"nnx": resnet.nnx_resnet50, "linen": resnet.linen_resnet50, "equinox": resnet.equinox_resnet50},
    "resnet50_train": {"linen": resnet.linen_resnet50_train},
    "mobilenet_v2": {"nnx": mobilenet.nnx_mobilenet_v2, "linen": mobilenet.linen_mobilenet_v2},
    "vit_b16": {"nnx": vit.nnx_vit, "linen": vit.linen_vit, "equinox": vit.equinox_vit},
    "bert_base": {"nnx": bert.nnx_bert, "linen": bert.linen_bert, "equinox": bert.equinox_bert},
    "gpt2": {"nnx": gpt2.nnx_gpt2, "linen": gpt2.linen_gpt2, "equinox": gpt2.equinox_gpt2},
    "gpt2_decode": {"nnx": gpt2.nnx_gpt2_decode, "linen": gpt2.linen_gpt2_decode},
    "gpt2_greedy": {"nnx": gpt2.nnx_gpt2_greedy},
    "llama": {"nnx": llama.nnx_llama, "jax": llama.plain_llama},
    "llama_scan": {
        "nnx": llama.nnx_scanned_llama,
        "linen": llama.linen_scanned_llama,
        "jax": llama.plain_scanned_llama,
    },
    "llama_decode": {"jax": llama.plain_llama_decode},
    "llama_greedy": {"jax": llama.plain_llama_greedy},
    "unet": {"nnx": unet.nnx_unet, "linen": unet.linen_unet},
    "lstm": {"nnx": rnn.nnx_lstm, "linen": rnn.linen_lstm, "equinox": rnn.equinox_lstm},
    "bidirectional_gru": {"nnx": rnn.nnx_bidirectional_gru, "linen": rnn.linen_bidirectional_gru},
    "moe": {"nnx": moe.nnx_moe, "linen": moe.linen_moe, "jax": moe.plain_moe},
    "cross_attention": {
        "nnx": attention.nnx_cross_attention,
        "linen": attention.linen_cross_attention,
        "equinox": attention.equinox_cross_attention,
    },
    "preprocess": {"jax": preprocess.plain_preprocess},
}


def cells() -> list[tuple[str, Framework]]:
    """The (model, framework) pairs that exist, in the order of the table."""
    return [(name, framework) for name, frameworks in MODELS.items() for framework in frameworks]


def build(name: str, framework: Framework, size: Size = "small") -> Example:
    """Builds one cell of the table; `"small"` in a moment, `"real"` at the published sizes, with random weights."""
    return MODELS[name][framework](size)
