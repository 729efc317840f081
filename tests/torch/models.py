"""Exports a list of PyTorch models to ONNX, for what tests the import: `python -m tests.torch.models FOLDER [name …]`.

It runs in an environment of its own, with what `tests/torch/requirements.txt` pins. The models are small and have random
weights. Each is exported by both of PyTorch's exporters, with dynamic axes; beside `NAME.EXPORTER.onnx` there are two sets
of inputs of different sizes, `NAME.0.npz` and `NAME.1.npz`.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

EXPORTERS = {"dynamo": True, "legacy": False}
SIZES = ((2, 7), (3, 12))
"""Batch and length of the two sets of inputs; the first is what is exported with."""


@dataclass(frozen=True)
class Case:
    """A model, the inputs for a batch and a length, and which axes of them are dynamic.

    `opsets` says which operator set each exporter writes.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int, int], dict[str, torch.Tensor]]
    axes: dict[str, dict[int, str]]
    opsets: dict[str, int] = field(default_factory=lambda: {"dynamo": 20, "legacy": 17})
    exporters: tuple[str, ...] = tuple(EXPORTERS)


class Plain(nn.Module):
    """A model of `transformers` with tensors in and tensors out."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], outputs: tuple[str, ...]):
        super().__init__()
        self.model, self.names, self.outputs = model, names, outputs

    def forward(self, *tensors: torch.Tensor) -> Any:
        found = self.model(**dict(zip(self.names, tensors, strict=True)), return_dict=True)
        results = tuple(getattr(found, name) for name in self.outputs)
        return results[0] if len(results) == 1 else results


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 60, (batch, length))


def image(batch: int, _: int, size: int = 64) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


TEXT = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}
IMAGE = {"pixel_values": {0: "batch"}}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 60}


def text(batch: int, length: int) -> dict[str, torch.Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length - 2 :] = 0
    return {"input_ids": tokens(batch, length), "attention_mask": mask}


def of_text(name: str, output: str = "logits", **config: Any) -> Case:
    """A language model."""

    def make() -> nn.Module:
        settings = transformers.AutoConfig.for_model(name, **config)
        settings._attn_implementation = "eager"
        settings.architectures = settings.architectures or []
        kind = transformers.AutoModelForCausalLM if output == "logits" else transformers.AutoModel
        return Plain(kind.from_config(settings), ("input_ids", "attention_mask"), (output,))

    return Case(make, text, TEXT)


def of_images(name: str, size: int = 64, **config: Any) -> Case:
    """A classifier of images."""

    def make() -> nn.Module:
        settings = transformers.AutoConfig.for_model(name, **config)
        settings._attn_implementation = "eager"
        settings.architectures = settings.architectures or []
        model = transformers.AutoModelForImageClassification.from_config(settings)
        return Plain(model, ("pixel_values",), ("logits",))

    return Case(make, lambda batch, length: image(batch, length, size), IMAGE)


class Recurrent(nn.Module):
    """Words, two bidirectional recurrent layers, and a head."""

    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.words = nn.Embedding(60, 16)
        self.layers = kind(16, 24, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(48, 5)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(input_ids))[0])


class UNet(nn.Module):
    """Down, up, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.GELU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Conv2d(16, 3, 1)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        first = self.first(pixel_values)
        up = nn.functional.interpolate(self.down(first), scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.last(torch.cat([first, self.up(self.down(first)) + up[:, :8]], dim=1))


class Encoder(nn.Module):
    """PyTorch's own transformer layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, norm_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


IDS = {"input_ids": {0: "batch", 1: "length"}}
CASES: dict[str, Case] = {
    "bert": of_text("bert", "last_hidden_state", **SMALL),
    "distilbert": of_text("distilbert", "last_hidden_state", vocab_size=60, dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    "roberta": of_text("roberta", "last_hidden_state", **SMALL),
    "albert": of_text("albert", "last_hidden_state", **SMALL, embedding_size=16),
    "gpt2": of_text("gpt2", vocab_size=60, n_embd=32, n_layer=2, n_head=4, use_cache=False),
    "gpt_neox": of_text("gpt_neox", **SMALL, use_cache=False),
    "llama": of_text("llama", **SMALL, num_key_value_heads=2, use_cache=False),
    "mistral": of_text("mistral", **SMALL, num_key_value_heads=2, use_cache=False),
    "qwen2": of_text("qwen2", **SMALL, num_key_value_heads=2, use_cache=False),
    "vit": of_images("vit", **SMALL, image_size=64, patch_size=16),
    "deit": of_images("deit", **SMALL, image_size=64, patch_size=16),
    "swin": of_images("swin", image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    "convnext": of_images("convnext", hidden_sizes=[16, 32], depths=[2, 2], num_stages=2),
    "resnet": of_images("resnet", embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic"),
    "regnet": of_images("regnet", embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], groups_width=8),
    "mobilenet_v2": of_images("mobilenet_v2", image_size=64, depth_multiplier=0.35),
    "efficientnet": of_images("efficientnet", image_size=64, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=80),
    "poolformer": of_images("poolformer", hidden_sizes=[16, 32], depths=[2, 2], num_encoder_blocks=2,
        patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1]),
    "segformer": of_images("segformer", hidden_sizes=[16, 32], depths=[1, 1], num_encoder_blocks=2, num_attention_heads=[1, 2],
        sr_ratios=[4, 2], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], decoder_hidden_size=16),
    "unet": Case(UNet, lambda batch, length: image(batch, length, 16), IMAGE),
    "lstm": Case(lambda: Recurrent(nn.LSTM), lambda b, n: {"input_ids": tokens(b, n)}, IDS),
    "gru": Case(lambda: Recurrent(nn.GRU), lambda b, n: {"input_ids": tokens(b, n)}, IDS),
    # The legacy exporter bakes the length into this one.
    "encoder": Case(Encoder, lambda b, n: {"x": torch.randn(b, n, 32)}, {"x": {0: "batch", 1: "length"}}, exporters=("dynamo",)),
}  # fmt: skip


def export(name: str, folder: Path) -> None:
    """Writes one model by both exporters, and its inputs."""
    case = CASES[name]
    torch.manual_seed(0)
    model = case.make().eval()
    for index, (batch, length) in enumerate(SIZES):
        np.savez(
            folder / f"{name}.{index}.npz", **{key: value.numpy() for key, value in case.inputs(batch, length).items()}
        )
    inputs = case.inputs(*SIZES[0])
    for exporter in case.exporters:
        dynamo = EXPORTERS[exporter]
        path = folder / f"{name}.{exporter}.onnx"
        options: dict[str, Any] = {"dynamic_axes": case.axes}
        if dynamo:
            shapes = [case.axes.get(key, {}) for key in inputs]
            # Of a model that takes `*tensors` the shapes are one tuple.
            options = {"dynamic_shapes": (tuple(shapes),) if isinstance(model, Plain) else tuple(shapes)}
        try:
            torch.onnx.export(
                model, tuple(inputs.values()), path, input_names=list(inputs), dynamo=dynamo,
                opset_version=case.opsets[exporter], external_data=False, verbose=False, **options,
            )  # fmt: skip
            print(f"{path.name}: {path.stat().st_size:,} bytes")
        except Exception:  # noqa: BLE001  PyTorch's exporters raise everything; the others are wanted all the same
            print(f"{path.name}: PyTorch cannot export it\n{traceback.format_exc(limit=-1)}")


def main() -> None:
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or CASES:
        export(name, folder)


if __name__ == "__main__":
    main()
