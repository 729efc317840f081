"""The list of models that are written twice, in JAX and in PyTorch.

The JAX side is an `Example`. The PyTorch side is a class of one of the files beside this one, made from the same
configuration; its `forward` takes the leaves of the example's inputs in their order. PyTorch is imported by `network`
alone, and everything else works without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from benchmarks.graphs import jax_sequences, jax_towers, jax_vision
from examples.models import bert, build, gpt2, llama, mobilenet, moe, resnet, rnn, unet, vit
from examples.models.example import Example, Framework, Size, as_specs

IMAGE = {"B": 1}
TEXT = {"B": 1, "T": 128}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One architecture.

    Attributes:
      make: makes the JAX side.
      torch: file and class of the PyTorch side.
      configs: what both sides are made from.
      given: further arguments of the class, as names in `torch.nn`.
      sizes: of the named dims, at which both sides of the published size are timed.
      nchw: the positions of inputs and of outputs that are NHWC in JAX and NCHW in both files.
      fixed: the named dims that the PyTorch file fixes, and why.
      biases: how many parameters PyTorch's side has more: `torch.nn` adds two biases in each gate, Flax one.
    """

    make: Callable[[Size], Example]
    torch: str
    configs: Mapping[Size, Any]
    given: tuple[str, ...] = ()
    sizes: dict[str, int]
    nchw: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    fixed: dict[str, str] = field(default_factory=dict)
    biases: Callable[[Any], int] = lambda config: 0

    @property
    def options(self) -> dict[str, Any]:
        """Further arguments of `to_onnx`, beside those of the example."""
        return {"inputs_as_nchw": self.nchw[0], "outputs_as_nchw": self.nchw[1]}

    def network(self, size: Size) -> Any:
        """The PyTorch side, as it is evaluated."""
        import torch

        torch.manual_seed(0)
        file, name = self.torch.split(".")
        kind = getattr(importlib.import_module(f"benchmarks.graphs.{file}"), name)
        return kind(self.configs[size], *(getattr(torch.nn, each) for each in self.given)).eval()

    def dims(self, example: Example, size: Size) -> Mapping[str, int]:
        """The sizes of the named dims: a small model has no room for the real ones."""
        return self.sizes if size == "real" else example.sizes[0]

    def arguments(self, example: Example, sizes: Mapping[str, int]) -> tuple[Any, ...]:
        """Arguments of the JAX side."""
        return example.sample(np.random.default_rng(0), sizes)

    def arrays(self, arguments: tuple[Any, ...]) -> list[np.ndarray]:
        """The same for the files: leaves in a row, NCHW where those are."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
        return [x.transpose(0, 3, 1, 2) if i in self.nchw[0] else x for i, x in enumerate(leaves)]

    def axes(self, example: Example) -> list[dict[int, str]]:
        """The named dims of each of these arrays in the PyTorch file."""
        shapes = [leaf.shape for leaf in jax.tree.leaves(as_specs(example.inputs))]
        return [
            {axis: dim for axis, dim in enumerate(shape) if isinstance(dim, str) and dim not in self.fixed}
            for shape in shapes
        ]


def _example(name: str, framework: Framework = "nnx") -> Callable[[Size], Example]:
    return lambda size: build(name, framework, size)


_UNROLLED = {"T": "a loop of Python is written out"}
_STEPS = {"T": "`torch.export` fixes the number of steps of a recurrent layer"}
_MAMBA = {
    "torch": "torch_sequences.Mamba", "configs": jax_sequences.MAMBA,
    "sizes": {"B": 1, "T": jax_sequences.MAMBA["real"].length}, "fixed": _UNROLLED,
}  # fmt: skip
_OF_IMAGES = {"sizes": IMAGE, "nchw": ((0,), ())}

PAIRS: dict[str, Pair] = {
    "resnet50": Pair(
        make=_example("resnet50"), torch="torch_vision.ResNet", configs=resnet.CONFIGS, **_OF_IMAGES
    ),
    "mobilenet_v2": Pair(
        make=_example("mobilenet_v2"), torch="torch_vision.MobileNet", configs=mobilenet.CONFIGS, **_OF_IMAGES
    ),
    "efficientnet_b0": Pair(
        make=jax_vision.efficientnet_b0, torch="torch_vision.EfficientNet", configs=jax_vision.EFFICIENTNET,
        **_OF_IMAGES,
    ),
    "convnext_t": Pair(
        make=jax_vision.convnext_t, torch="torch_vision.ConvNext", configs=jax_vision.CONVNEXT, **_OF_IMAGES
    ),
    "segmentation_unet": Pair(
        make=jax_vision.segmentation_unet, torch="torch_vision.UNet", configs=jax_vision.UNET, sizes=IMAGE,
        nchw=((0,), (0,)),
    ),
    "diffusion_unet": Pair(
        make=_example("unet"), torch="torch_vision.DiffusionUNet", configs=unet.CONFIGS, sizes=IMAGE,
        nchw=((0,), (0,)),
    ),
    "vit_b16": Pair(make=_example("vit_b16"), torch="torch_vision.ViT", configs=vit.CONFIGS, **_OF_IMAGES),
    "clip_vit_b32": Pair(
        make=jax_towers.clip_vit_b32, torch="torch_text.Clip", configs=jax_towers.CLIP, sizes={"B": 1, "N": 2},
        nchw=((0,), ()),
    ),
    "whisper_tiny": Pair(
        make=jax_towers.whisper_tiny, torch="torch_text.Whisper", configs=jax_towers.WHISPER,
        sizes={"B": 1, "T": 32},
    ),
    "bert_base": Pair(make=_example("bert_base"), torch="torch_text.Bert", configs=bert.CONFIGS, sizes=TEXT),
    "gpt2": Pair(make=_example("gpt2"), torch="torch_text.Gpt2", configs=gpt2.CONFIGS, sizes=TEXT),
    "llama": Pair(make=_example("llama"), torch="torch_text.Llama", configs=llama.CONFIGS, sizes=TEXT),
    "llama_scan": Pair(make=_example("llama_scan"), torch="torch_text.Llama", configs=llama.CONFIGS, sizes=TEXT),
    "llama_decode": Pair(
        make=_example("llama_decode", "jax"), torch="torch_text.LlamaDecode", configs=llama.CONFIGS,
        sizes={"B": 1, "S": 256},
    ),
    "moe": Pair(make=_example("moe"), torch="torch_sequences.Mixture", configs=moe.CONFIGS, sizes=TEXT),
    "lstm": Pair(
        make=_example("lstm"), torch="torch_sequences.LanguageModel", given=("LSTM",), configs=rnn.LANGUAGE_CONFIGS,
        sizes=TEXT, fixed=_STEPS, biases=lambda config: 4 * config.hidden * config.layers,
    ),
    "gru": Pair(
        make=jax_sequences.gru, torch="torch_sequences.LanguageModel", given=("GRU",), configs=jax_sequences.GRU,
        sizes=TEXT, fixed=_STEPS, biases=lambda config: 3 * config.hidden * config.layers,
    ),
    "bidirectional_gru": Pair(
        make=_example("bidirectional_gru"), torch="torch_sequences.Padded", configs=rnn.SPEECH_CONFIGS,
        sizes={"B": 2, "T": 128}, fixed=_STEPS, biases=lambda config: 6 * config.hidden * config.layers,
    ),
    "speech": Pair(
        make=jax_sequences.speech, torch="torch_sequences.Speech", configs=jax_sequences.SPEECH,
        sizes={"B": 1, "T": 128}, fixed=_STEPS, biases=lambda config: 6 * config.hidden * config.layers,
    ),
    "mamba": Pair(make=jax_sequences.mamba, **_MAMBA),
    "mamba_associative": Pair(make=jax_sequences.mamba_associative, **_MAMBA),
    "message_passing": Pair(
        make=jax_sequences.message_passing, torch="torch_sequences.MessagePassing", configs=jax_sequences.GRAPH,
        sizes={"N": 512, "E": 2048},
    ),
}  # fmt: skip
