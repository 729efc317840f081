"""PyTorch's models at their published sizes, with random weights: what `benchmarks.bench_torch` times.

A model of `transformers` whose settings are empty is the published one already: its configurations begin there.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from tests.torch import networks
from tests.torch.models import (
    TOKENS,
    Case,
    Sizes,
    decoder,
    encoder,
    image,
    images_and_text,
    own,
    sequences,
    vision,
    whisper_encoder,
    with_past,
)

SIZES = Sizes(batch=1, length=128, past=128, side=224)
"""What goes in: texts of 128 tokens, images of 224 × 224 pixels."""

STEP = Sizes(batch=1, length=1, past=128, side=0)
"""One token, after 128 others."""

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
SMOLLM = {
    "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "intermediate_size": 1536, "vocab_size": 49152,
}  # fmt: skip
BART = {
    "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
    "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
}  # fmt: skip
B0 = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "image_size": 224}


class Recurrent(nn.Module):
    """Three wide recurrent layers, as those of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(10_000, 512), nn.LSTM(512, 512, num_layers=3, batch_first=True)
        self.head = nn.Linear(512, 10_000)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(input_ids))[0])


def spoken(sizes: Sizes) -> torch.Tensor:
    """Half a minute of sound, as Whisper hears it."""
    return torch.randn(sizes.batch, 80, 3000)


PUBLISHED: dict[str, tuple[Case, Sizes]] = {
    name: (case, STEP if "past" in name else SIZES)
    for name, case in {
        "bert base": encoder("bert", {}),
        "bert base sdpa": encoder("bert", {}, "sdpa"),
        "distilbert": encoder("distilbert", {}),
        "roberta base": encoder("roberta", {}),
        "albert base": encoder("albert", BASE),
        "electra small": encoder("electra", {}),
        "deberta v3 small": encoder("deberta-v2", BASE | {"num_hidden_layers": 6, "pos_att_type": ["c2p", "p2c"],
            "relative_attention": True}),
        "modernbert base": encoder("modernbert", {}),
        "gpt2 small": decoder("gpt2", {}),
        "gpt2 small with past": with_past("gpt2", {}, 12, 64, layers=12),
        "opt 125m": decoder("opt", {}),
        "pythia 160m": decoder("gpt_neox", BASE),
        "smollm 135m": decoder("llama", SMOLLM),
        "smollm 135m with past": with_past("llama", SMOLLM, 3, 64, layers=30),
        "t5 small": sequences("t5", {"decoder_start_token_id": 0}),
        "bart base": sequences("bart", BART),
        "whisper tiny encoder": Case(partial(whisper_encoder, {}), lambda sizes: {"input_features": spoken(sizes)},
            {"input_features": {0: "batch"}}),
        "clip vit-b/32": images_and_text("clip", {}, ("input_ids", "pixel_values", "attention_mask"), side=224, length=77),
        "vit b/16": vision("vit", {}, side=224),
        "dinov2 base": vision("dinov2", {}, side=224),
        "swin tiny": vision("swin", {}, side=224),
        "convnext tiny": vision("convnext", {}),
        "resnet 50": vision("resnet", {}),
        "regnet y 4gf": vision("regnet", {}),
        "mobilenet v2": vision("mobilenet_v2", {"depth_multiplier": 1.0, "image_size": 224}, side=224),
        "efficientnet b0": vision("efficientnet", B0, side=224),
        "poolformer s12": vision("poolformer", {}),
        "segformer b0": vision("segformer", {}, task="SemanticSegmentation"),
        "lstm": own(Recurrent, {"input_ids": TOKENS}, input_ids=lambda sizes: torch.randint(3, 60, (sizes.batch, sizes.length))),
        "experts": own(partial(networks.Experts, 512, 2048, 8), {"x": TOKENS},
            x=lambda sizes: torch.randn(sizes.batch, sizes.length, 512)),
        "diffusion": own(partial(networks.Diffusion, 128, 768),
            {"sample": {0: "batch", 2: "height", 3: "width"}, "timestep": {0: "batch"}, "text": TOKENS},
            sample=lambda sizes: image(sizes, 64, 4), timestep=lambda sizes: torch.full((sizes.batch,), 500),
            text=lambda sizes: torch.randn(sizes.batch, 77, 768)),
    }.items()
}  # fmt: skip
