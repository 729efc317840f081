"""The models: of `transformers`, with random weights and at published sizes, or small to try the benchmark itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers


@dataclass(frozen=True)
class Case:
    """A model and the sizes of its inputs.

    Attributes:
      architecture: its name in `transformers`.
      auto: the class that makes it.
      settings: what differs from the configuration's defaults, which are the published sizes.
      small: what makes it small.
      shape: of the input: (batch, length) of words, (batch, side) of images.
      masked: whether it takes a mask of padding.
    """

    architecture: str
    auto: str
    settings: dict[str, Any]
    small: dict[str, Any]
    shape: tuple[int, int]
    masked: bool = False


LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
LLAMA = {
    "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 8192, "vocab_size": 32000, "tie_word_embeddings": True,
}  # fmt: skip
"""Half of the layers of the Llama of a billion parameters, and a smaller vocabulary."""
IMAGES = "AutoModelForImageClassification"

CASES: dict[str, Case] = {
    "BERT base": Case("bert", "AutoModel", {}, {**LAYERS, "vocab_size": 60}, (32, 256), masked=True),
    "ViT-B/16": Case("vit", IMAGES, {"num_labels": 1000}, {**LAYERS, "image_size": 32}, (64, 224)),
    "GPT-2 small": Case("gpt2", "AutoModelForCausalLM", {}, {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60},
        (8, 1024)),
    "Llama, 552 M": Case("llama", "AutoModelForCausalLM", LLAMA, {**LAYERS, "num_key_value_heads": 2, "vocab_size": 60},
        (4, 1024)),
    "ResNet-50": Case("resnet", IMAGES, {"num_labels": 1000},
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 2]}, (128, 224)),
    "ConvNeXt tiny": Case("convnext", IMAGES, {"num_labels": 1000},
        {"hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2}, (64, 224)),
}  # fmt: skip


class Plain(torch.nn.Module):
    """A model of `transformers` that returns its first tensor.

    Args:
      model: the model.
      names: of its inputs, which are arguments by position here.
    """

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=False)[0]


@dataclass(frozen=True)
class Made:
    """A model with its inputs, on the CPU.

    Attributes:
      module: the model of PyTorch.
      config: its configuration.
      inputs: tensors in order.
      flax_inputs: the same for the model in Flax: arrays, images with channels last.
    """

    module: Plain
    config: Any
    inputs: tuple[torch.Tensor, ...]
    flax_inputs: tuple[Any, ...]


def made(case: Case, small: bool, dtype: torch.dtype) -> Made:
    """Return a model of a dtype."""
    torch.manual_seed(0)
    settings = {**case.settings, **(case.small if small else {})}
    config = transformers.AutoConfig.for_model(case.architecture, **settings)
    if case.auto == "AutoModelForCausalLM":
        config.use_cache = False
    model = getattr(transformers, case.auto).from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # none at the value that it begins with, such as zero or 1e-6
            if parameter.dim() == 1:
                parameter.add_(0.02 * torch.randn_like(parameter))
            elif not bool(parameter.any()):
                parameter.normal_(0, 0.02)
    batch, size = case.shape
    if case.auto == IMAGES:
        names, side = ("pixel_values",), (config.image_size if case.architecture == "vit" else 32) if small else size
        images = torch.randn(2 if small else batch, 3, side, side).to(dtype)
        inputs, flax_inputs = (images,), (images.float().permute(0, 2, 3, 1).contiguous().numpy(),)
    else:
        batch, size = (2, 16) if small else (batch, size)
        names, ids = ("input_ids",), torch.randint(3, config.vocab_size, (batch, size), dtype=torch.int32)
        inputs = (ids,)
        if case.masked:
            lengths = torch.linspace(size, size // 2, batch).int()
            names, inputs = (*names, "attention_mask"), (ids, (torch.arange(size) < lengths[:, None]).int())
        flax_inputs = tuple(each.numpy() for each in inputs)
    return Made(Plain(model.to(dtype), names).eval(), config, inputs, flax_inputs)
