"""Families of models that users bring: `python -m tests.torch.families [NAME …]` tries each from `from_torch` to five steps of training.

The architectures are the published ones at tiny sizes, with random weights: nothing is downloaded. For each it is asked whether
the program has the values of the module (`from_torch` compares them at two sizes), the printed model, too, with the weights of a second
checkpoint, in bfloat16 and in two files of safetensors; whether gradients are equal by name; and five steps of SGD.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

import jaxport
from jaxport.jaxprs.releases import QUICKLY

STEPS, RATE = 5, 0.01
KINDS = "ForCausalLM ForMaskedLM ForImageClassification".split()


@dataclass(frozen=True)
class Family:
    """A model of a family.

    Attributes:
      make: makes it.
      inputs: example arguments by name.
      shapes: the sizes that stay open, by the name of the argument.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    shapes: dict[str, tuple[str | int | None, ...]] | None


def ids(length: int = 7, highest: int = 60) -> torch.Tensor:
    return torch.randint(3, highest - 1, (2, length))


def text(length: int = 7) -> dict[str, torch.Tensor]:
    mask = torch.ones(2, length, dtype=torch.int64)
    mask[0, length - 2 :] = 0
    return {"input_ids": ids(length), "attention_mask": mask}


def image(side: int = 32, channels: int = 3, name: str = "pixel_values") -> dict[str, torch.Tensor]:
    return {name: torch.randn(2, channels, side, side)}


TEXT = {"input_ids": ("batch", "seq"), "attention_mask": ("batch", "seq")}
IMAGE = {"pixel_values": ("batch", None, None, None)}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 60,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {**GROUPED, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16}  # fmt: skip
LATENT = {**EXPERTS, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "head_dim": 4, "v_head_dim": 8,
    "num_key_value_heads": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}  # fmt: skip
TWO = {"vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0}  # fmt: skip
CHUNKED = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "vocab_size": 60, "num_heads": 4, "head_dim": 8, "n_groups": 1,
    "chunk_size": 4}  # fmt: skip
SIGHT = {**SMALL, "image_size": 32, "patch_size": 8}
STAGES = {"image_size": 32, "hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}


def of_transformers(
    name: str, kind: str, config: Mapping[str, Any], inputs: Callable[[], dict[str, torch.Tensor]], shapes: Any
) -> Family:
    """A model of transformers: `kind` is what its class of `AutoModel` ends with."""

    def make() -> nn.Module:
        settings = transformers.AutoConfig.for_model(name, **config)
        return getattr(transformers, f"AutoModel{kind}").from_config(settings)

    return Family(make, inputs, shapes)


def decoder(name: str, config: Mapping[str, Any] = GROUPED, length: int = 7, **more: Any) -> Family:
    return of_transformers(name, "ForCausalLM", {**config, **more}, partial(text, length), TEXT)


def encoder(name: str, config: Mapping[str, Any] = SMALL, kind: str = "", **more: Any) -> Family:
    return of_transformers(name, kind, {**config, **more}, text, TEXT)


def sequences(name: str, config: Mapping[str, Any] = TWO, **more: Any) -> Family:
    given = lambda: {**text(), "decoder_input_ids": ids(4)}
    return of_transformers(
        name, "ForSeq2SeqLM", {**config, **more}, given, {**TEXT, "decoder_input_ids": ("batch", "written")}
    )


def sight(name: str, config: Mapping[str, Any] = SIGHT, side: int = 32, kind: str = "", **more: Any) -> Family:
    return of_transformers(name, kind, {**config, **more}, partial(image, side), IMAGE)


def sound(name: str, config: Mapping[str, Any], **more: Any) -> Family:
    given = lambda: {"input_values": torch.randn(2, 400)}
    return of_transformers(name, "", {**config, **more}, given, {"input_values": ("batch", "samples")})


def series(name: str, kind: str, **config: Any) -> Family:
    given = lambda: {"past_values": torch.randn(2, 32, 3)}
    return of_transformers(name, kind, config, given, {"past_values": ("batch", None, None)})


def of_library(library: str, name: str, side: int = 64, **settings: Any) -> Family:
    """A model of torchvision or timm."""

    def make() -> nn.Module:
        if library == "timm":
            return importlib.import_module("timm").create_model(name, pretrained=False, **settings)
        return getattr(importlib.import_module("torchvision.models"), name)(weights=None, **settings)

    return Family(make, partial(image, side, name="x"), {"x": ("batch", None, None, None)})


class Denoiser(nn.Module):
    """A network of diffusers, with what it predicts as its result."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__()
        self.net = getattr(importlib.import_module("diffusers"), name)(**settings)

    def forward(
        self, x: torch.Tensor, timestep: torch.Tensor, encoder_hidden_states: torch.Tensor | None = None, **more: Any
    ) -> torch.Tensor:
        given = {} if encoder_hidden_states is None else {"encoder_hidden_states": encoder_hidden_states}
        return self.net(x, timestep=timestep, return_dict=False, **given, **more)[0]


def of_diffusers(name: str, inputs: Callable[[], dict[str, torch.Tensor]], **settings: Any) -> Family:
    return Family(partial(Denoiser, name, **settings), inputs, None)


def noisy(text_size: int = 0, channels: int = 4, side: int = 16, **more: Any) -> dict[str, torch.Tensor]:
    found = {"x": torch.randn(2, channels, side, side), "timestep": torch.tensor([3, 7])}
    return found | ({"encoder_hidden_states": torch.randn(2, 5, text_size)} if text_size else {}) | more


WAVES = {**SMALL, "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4}  # fmt: skip
GPT = {
    "vocab_size": 60,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

FAMILIES: dict[str, Family] = {
    # experts
    "mixtral": decoder("mixtral", EXPERTS),
    "qwen2_moe": decoder("qwen2_moe", EXPERTS, shared_expert_intermediate_size=16),
    "qwen3_moe": decoder("qwen3_moe", EXPERTS),
    "olmoe": decoder("olmoe", EXPERTS),
    "phimoe": decoder("phimoe", EXPERTS),
    "granitemoe": decoder("granitemoe", EXPERTS),
    "gpt_oss": decoder("gpt_oss", EXPERTS),
    "deepseek_v2": decoder("deepseek_v2", LATENT),
    "deepseek_v3": decoder("deepseek_v3", LATENT),
    "glm4_moe": decoder("glm4_moe", LATENT),
    "ernie4_5_moe": decoder("ernie4_5_moe", EXPERTS, moe_num_experts=4, moe_k=2),
    "dots1": decoder("dots1", LATENT),
    "jetmoe": decoder("jetmoe", EXPERTS, kv_channels=8),
    "minimax": decoder("minimax", EXPERTS),
    # language models
    "gpt2": decoder("gpt2", GPT),
    "gpt_neo": decoder("gpt_neo", {**SMALL, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}),
    "gpt_bigcode": decoder("gpt_bigcode", GPT),
    "codegen": decoder("codegen", {**GPT, "rotary_dim": 4}),
    "falcon": decoder("falcon", SMALL),
    "mpt": decoder("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 60, "max_seq_len": 64}),
    "stablelm": decoder("stablelm"),
    "starcoder2": decoder("starcoder2"),
    "cohere": decoder("cohere"),
    "cohere2": decoder("cohere2", sliding_window=4),
    "olmo": decoder("olmo"),
    "olmo2": decoder("olmo2"),
    "granite": decoder("granite"),
    "nemotron": decoder("nemotron"),
    "smollm3": decoder("smollm3"),
    "glm": decoder("glm"),
    "glm4": decoder("glm4"),
    "gemma3_text": decoder("gemma3_text", sliding_window=4),
    "exaone4": decoder("exaone4"),
    "ernie4_5": decoder("ernie4_5"),
    "seed_oss": decoder("seed_oss"),
    "diffllama": decoder("diffllama"),
    "helium": decoder("helium"),
    "persimmon": decoder("persimmon", SMALL),
    "xglm": decoder("xglm", {**SMALL, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}),
    "biogpt": decoder("biogpt", SMALL),
    "mamba": decoder("mamba", {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "vocab_size": 60}),
    "mamba2": decoder("mamba2", CHUNKED, length=8),
    "mamba2 beside its chunks": decoder("mamba2", CHUNKED),
    "recurrent_gemma": decoder("recurrent_gemma", {**SMALL, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16, "num_key_value_heads": 1}),
    "bamba": decoder("bamba", {**GROUPED, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1,
        "mamba_chunk_size": 4, "attn_layer_indices": [1]}),
    # encoders of text
    "modernbert": encoder("modernbert", kind="ForMaskedLM"),
    "mpnet": encoder("mpnet"),
    "camembert": encoder("camembert"),
    "esm": encoder("esm", mask_token_id=4),
    "roformer": encoder("roformer", embedding_size=32),
    "rembert": encoder("rembert", input_embedding_size=16, output_embedding_size=16),
    "nomic_bert": encoder("nomic_bert"),
    "fnet": of_transformers("fnet", "", SMALL, lambda: {"input_ids": ids()}, {"input_ids": ("batch", None)}),
    "ibert": encoder("ibert"),
    "squeezebert": encoder("squeezebert", embedding_size=32),
    "convbert": encoder("convbert", embedding_size=32),
    "layoutlmv3": encoder("layoutlmv3", visual_embed=False, coordinate_size=4, shape_size=8),
    "funnel": of_transformers("funnel", "ForMaskedLM", {"vocab_size": 60, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "block_sizes": [1, 1]},
        lambda: text(8), {"input_ids": ("batch", None), "attention_mask": ("batch", None)}),
    "xlm": encoder("xlm", {"vocab_size": 60, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64}),
    # two sequences
    "t5": sequences("t5", T5),
    "umt5": sequences("umt5", T5),
    "longt5": sequences("longt5", {**T5, "local_radius": 4, "encoder_attention_type": "local"}),
    "pegasus": sequences("pegasus"),
    "blenderbot": sequences("blenderbot"),
    "m2m_100": sequences("m2m_100"),
    "m2m_100 of bounded lengths": of_transformers("m2m_100", "ForSeq2SeqLM", TWO, lambda: {**text(), "decoder_input_ids": ids(4)},
        {**dict.fromkeys(TEXT, ("batch", torch.export.Dim("seq", max=64))), "decoder_input_ids": ("batch", torch.export.Dim("written", max=64))}),
    "switch_transformers": sequences("switch_transformers", {**T5, "num_experts": 4}),
    # images
    "vit_msn": sight("vit_msn"),
    "dinov2_with_registers": sight("dinov2_with_registers"),
    "dinov3_vit": sight("dinov3_vit"),
    "ijepa": sight("ijepa"),
    "pvt": sight("pvt", {"image_size": 32, "hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "sequence_reduction_ratios": [2, 1],
        "patch_sizes": [4, 2], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2]}),
    "pvt_v2": sight("pvt_v2", {"image_size": 32, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2],
        "mlp_ratios": [2, 2, 2, 2]}),
    "levit": sight("levit", {"image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [1, 2, 2], "depths": [1, 1, 1],
        "key_dim": [8, 8, 8]}, 64),
    "mobilevit": sight("mobilevit", {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32],
        "num_attention_heads": 2}, 64),
    "swiftformer": sight("swiftformer", {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [8, 16, 16, 24]}, 64),
    "focalnet": sight("focalnet", {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [1, 1],
        "focal_windows": [3, 3]}),
    "cvt": sight("cvt", {"embed_dim": [8, 16, 16], "num_heads": [1, 2, 2], "depth": [1, 2, 3]}),
    "convnextv2": sight("convnextv2", STAGES),
    "hiera": sight("hiera", {"image_size": [32, 32], "embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2], "num_query_pool": 1,
        "patch_size": [7, 7], "patch_stride": [4, 4], "patch_padding": [3, 3], "masked_unit_size": [4, 4]}),
    "bit": sight("bit", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "num_groups": 4}),
    "poolformer": sight("poolformer", {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}),
    "vit_mae": sight("vit_mae"),
    "vit_mae of given noise": of_transformers("vit_mae", "", SIGHT, lambda: {**image(), "noise": torch.rand(2, 16)}, {**IMAGE, "noise": ("batch", None)}),
    "segformer": sight("segformer", {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2],
        "decoder_hidden_size": 16}, 64, kind="ForSemanticSegmentation"),
    "swin2sr": sight("swin2sr", {"image_size": 16, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}, 16),
    "yolos": sight("yolos", {**SIGHT, "image_size": [32, 32], "num_detection_tokens": 5}, kind="ForObjectDetection"),
    "vjepa2": of_transformers("vjepa2", "", {"patch_size": 8, "crop_size": 16, "frames_per_clip": 4, "hidden_size": 24, "num_attention_heads": 2,
        "num_hidden_layers": 1, "mlp_ratio": 2, "pred_hidden_size": 24, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 1,
        "pred_num_mask_tokens": 2}, lambda: {"pixel_values_videos": torch.randn(2, 4, 3, 16, 16)},
        {"pixel_values_videos": ("batch", None, None, None, None)}),
    "sam vision": of_transformers("sam_vision_model", "", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
        "patch_size": 8, "window_size": 2, "global_attn_indexes": [1], "output_channels": 8, "mlp_dim": 24}, image, IMAGE),
    # sound and time
    "hubert": sound("hubert", WAVES),
    "wavlm": sound("wavlm", WAVES),
    "unispeech": sound("unispeech", WAVES),
    "sew": sound("sew", WAVES, squeeze_factor=2),
    "audio_spectrogram_transformer": of_transformers("audio-spectrogram-transformer", "", {**SMALL, "max_length": 32, "num_mel_bins": 16, "patch_size": 8,
        "frequency_stride": 8, "time_stride": 8}, lambda: {"input_values": torch.randn(2, 32, 16)}, {"input_values": ("batch", None, None)}),
    "patchtst": series("patchtst", "", context_length=32, num_input_channels=3, patch_length=8, patch_stride=8, d_model=16,
        num_attention_heads=2, num_hidden_layers=2, ffn_dim=24),
    "patchtsmixer": series("patchtsmixer", "", context_length=32, num_input_channels=3, patch_length=8, patch_stride=8, d_model=16, num_layers=2),
    # torchvision
    **{f"torchvision {name}": of_library("torchvision", name) for name in (
        "resnet18", "mobilenet_v3_small", "densenet121", "shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5", "regnet_y_400mf")},
    "torchvision googlenet": of_library("torchvision", "googlenet", aux_logits=False, init_weights=True),
    # timm
    **{f"timm {name}": of_library("timm", name, side) for name, side in {
        "resnet26d": 64, "mobilenetv4_conv_small": 64, "ghostnet_100": 64, "repvgg_a0": 64, "efficientnet_lite0": 64}.items()},
    "timm vit": of_library("timm", "vit_tiny_patch16_224", 32, img_size=32, depth=2),
    "timm mixer": of_library("timm", "mixer_s32_224", 64, img_size=64),
    "timm convmixer": of_library("timm", "convmixer_768_32", 28),
    # diffusers
    "diffusers unet2d": of_diffusers("UNet2DModel", noisy, sample_size=16, in_channels=4, out_channels=4, block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), norm_num_groups=4,
        attention_head_dim=8, layers_per_block=1),
    "diffusers unet2d conditional": of_diffusers("UNet2DConditionModel", partial(noisy, 16), sample_size=16, block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), norm_num_groups=4,
        attention_head_dim=8, layers_per_block=1, cross_attention_dim=16),
    "diffusers dit": of_diffusers("DiTTransformer2DModel", lambda: noisy(class_labels=torch.tensor([1, 2])), sample_size=16, num_layers=2,
        num_attention_heads=2, attention_head_dim=8, norm_num_groups=4, num_embeds_ada_norm=10, in_channels=4, out_channels=4),
    "diffusers pixart": of_diffusers("PixArtTransformer2DModel", partial(noisy, 16), sample_size=16, num_layers=2, num_attention_heads=2,
        attention_head_dim=8, cross_attention_dim=16, caption_channels=16, in_channels=4, out_channels=4, use_additional_conditions=False),
    "diffusers sd3": of_diffusers("SD3Transformer2DModel", lambda: noisy(16, pooled_projections=torch.randn(2, 16)), sample_size=16,
        patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2, joint_attention_dim=16,
        caption_projection_dim=16, pooled_projection_dim=16, pos_embed_max_size=16),
    "diffusers vae": Family(lambda: importlib.import_module("diffusers").AutoencoderKL(block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4),
        partial(image, 16, name="sample"), None),
}  # fmt: skip

REFUSED: dict[str, dict[str, str]] = {
    # Printed source has one case, in which nothing is padded; the program pads, and takes all lengths.
    "mamba2 beside its chunks": {"printed": r"input_ids\.shape\[1\] has to be 4\*seq"},
    # The parts of each expert are as large as the tokens that chose it: the program runs them, outside of `jit`.
    "jetmoe": {"printed": "`split` of an operation has to be known"},
    "bamba": {"printed": r"input_ids\.shape\[1\] has to be 4\*seq"},
    # It has one case up to the size of its blocks, and one beyond.
    "minimax": {"values": r"`input_ids\.size\(\)\[1\] <= 256`, which does not hold"},
    # Loops over tokens in Python.
    **dict.fromkeys(("mamba", "recurrent_gemma"), {"values": "Constraints violated"}),
    # They compute their positions anew where there are more than their configurations say.
    "xglm": {"values": r"`input_ids\.size\(\)\[1\] <= 64`, which does not hold"},
    "m2m_100": {"values": r"`input_ids\.size\(\)\[1\] <= 65`, which does not hold"},
    # It hides patches at random.
    "vit_mae": {"values": "draws random numbers in evaluation mode"},
    # It rotates by complex numbers.
    "deepseek_v2": {"values": "No decompositions registered for the complex-valued input"},
}
"""What cannot be done: what is told, by the family and the question."""


def load(folder: Path) -> ModuleType:
    """The printed module in a folder."""
    spec = importlib.util.spec_from_file_location("printed", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["printed"] = module  # NNX looks up the module of a class
    spec.loader.exec_module(module)
    return module


def tensors(found: Any) -> list[torch.Tensor]:
    """The tensors of results, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def apart(found: Any, expected: Any) -> float:
    """The largest difference of two lists of arrays, for each as a share of its largest element."""
    found, expected = [np.asarray(one) for one in found], [np.asarray(one) for one in expected]
    assert [one.shape for one in found] == [one.shape for one in expected], "other shapes"
    return max(
        (float(np.max(np.abs(one - other), initial=0) / (np.max(np.abs(other), initial=0) + 1e-6)) for one, other in zip(found, expected, strict=True)
         if one.dtype.kind == "f"), default=0.0,
    )  # fmt: skip


def randomized(module: nn.Module, seed: int) -> nn.Module:
    """The module after some training, as it were: no weight is zero or one, and no two are equal."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return module


def sharded(state: Mapping[str, torch.Tensor], folder: Path) -> Path:
    """A checkpoint in two files of safetensors, in bfloat16, as language models are published."""
    names = [*state]
    parts = [names[: len(names) // 2], names[len(names) // 2 :]]
    files = [f"model-{number}-of-2.safetensors" for number in (1, 2)]
    folder.mkdir()
    for file, part in zip(files, parts, strict=True):
        save_file({name: state[name].detach().clone().contiguous() for name in part}, folder / file)
    index = {name: file for file, part in zip(files, parts, strict=True) for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def narrow(module: nn.Module) -> nn.Module:
    """The module with parameters that bfloat16 has: its checkpoint in bfloat16 is the same model."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(tensor.bfloat16())
    return module


def wide(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def loss_of(outputs: Any) -> Any:
    """A number that depends on all results: the sum of their mean squared distances from a wave, but for what is not finite.

    The mean square of what a normalization returns is the same whatever is normalized: its gradients would be rounding errors.
    """
    module = torch if isinstance(outputs[0], torch.Tensor) else jnp
    apart = (
        one - module.asarray(np.cos(np.arange(np.prod(one.shape), dtype=np.float32)).reshape(one.shape))
        for one in outputs
        if one.dtype in (torch.float32, jnp.float32)
    )
    return sum((module.where(module.isfinite(one), one, module.zeros_like(one)) ** 2).mean() for one in apart)


class Trial:
    """What is asked of one family; each answer is a short text."""

    def __init__(self, name: str, folder: Path):
        self.family, self.folder = FAMILIES[name], folder
        torch.manual_seed(0)
        self.module, self.inputs = self.family.make().eval(), self.family.inputs()
        self.arrays = [value.numpy() for value in self.inputs.values()]
        self.program = jaxport.from_torch(self.module, kwargs=self.inputs, dynamic_shapes=self.family.shapes)
        order = list(self.inputs)
        self.arrays = [self.inputs[self._argument(key, order)].numpy() for key in self.program.input_names]

    def _argument(self, name: str, order: list[str]) -> str:
        return name if name in order else order[[*self.program.input_names].index(name)]

    def expected(self, module: nn.Module) -> list[torch.Tensor]:
        more = {"use_cache": False} if "use_cache" in _parameters(module) else {}
        return tensors(module(**self.inputs, **more))

    def printed(self) -> str:
        source = self.program.to_source(self.folder / "printed", framework="nnx")
        self.source = load(self.folder / "printed")
        self.call = jax.jit(lambda model, *given: jax.tree.leaves(model(*given)), compiler_options=QUICKLY)
        with torch.no_grad():
            error = apart(self._run(self.source.load()), [one.numpy() for one in self.expected(self.module)])
        assert error < 1e-3, f"differs by {error:.1e}"
        lines = source.code.partition("\n#: The entries")[0].splitlines()
        return f"{sum(bool(line.strip()) for line in lines)} lines"

    def _run(self, model: Any) -> list[np.ndarray]:
        from flax import nnx

        if not hasattr(self, "jitted"):
            graph = nnx.graphdef(model)
            self.jitted = jax.jit(
                lambda state, *given: jax.tree.leaves(nnx.merge(graph, state)(*given)), compiler_options=QUICKLY
            )
        return [np.asarray(one) for one in self.jitted(nnx.state(model), *self.arrays)]

    def checkpoint(self) -> str:
        torch.manual_seed(1)
        other = narrow(randomized(self.family.make().eval(), 1))
        state = wide(other.state_dict())
        with torch.no_grad():
            expected = [one.numpy() for one in self.expected(other)]
        for form in (state, sharded(state, self.folder / "sharded")):
            error = apart(self._run(self.source.load_pytorch(form)), expected)
            assert error < 2e-3, f"differs by {error:.1e}"
        return "equal"

    def gradients(self) -> str:
        loss = lambda params, given: loss_of(jax.tree.leaves(self.program.apply(params, *given)))
        self.step = jax.jit(jax.value_and_grad(loss), compiler_options=QUICKLY)
        self.params = {name: jnp.asarray(value) for name, value in self.program.params.items()}
        _, found = self.step(self.params, self.arrays)
        loss_of(self.expected(self.module)).backward()
        named = dict(self.module.named_parameters())
        largest = lambda array: float(np.max(np.abs(array), initial=0))  # some have no elements: register tokens
        wrong = []
        for name, gradient in found.items():
            axes = self.program.weights.axes(name)  # kernels of convolutions have their channels last
            gradient = np.transpose(gradient, np.argsort(axes)) if axes else np.asarray(gradient)
            other = named[name].grad
            other = np.zeros(gradient.shape, np.float32) if other is None else other.numpy()
            scale = largest(other) + 1e-3 * max(map(largest, found.values())) + 1e-9
            if not (error := largest(np.asarray(gradient) - other) / scale) < 2e-3:
                wrong.append(f"{name} by {error:.1e}")
        assert not wrong, f"{len(wrong)} of {len(found)} differ: {wrong[:2]}"
        return f"{len(found)} equal"

    def training(self) -> str:
        optimizer = torch.optim.SGD(self.module.parameters(), RATE)
        losses, params = ([], []), self.params
        for _ in range(STEPS):
            value, gradients = self.step(params, self.arrays)
            params = jax.tree.map(lambda weight, slope: weight - RATE * slope, params, gradients)
            optimizer.zero_grad()
            self.module.train().eval()  # what a module has cached in evaluation mode is of the weights before
            loss = loss_of(self.expected(self.module))
            loss.backward()
            optimizer.step()
            losses[0].append(float(value))
            losses[1].append(float(loss.detach()))
        error = max(abs(one - other) / (abs(other) + 1e-9) for one, other in zip(*losses, strict=True))
        assert error < 1e-3, f"losses differ by {error:.1e}"
        return f"{error:.0e}"


QUESTIONS = ("printed", "checkpoint", "gradients", "training")
NEEDS = {"checkpoint": ("printed",), "training": ("gradients",)}
"""The questions that another one needs an answer of."""


def _parameters(module: nn.Module) -> Any:
    import inspect

    return inspect.signature(module.forward).parameters


def attempts(name: str, folder: Path) -> Iterator[tuple[str, str, Exception | None]]:
    """Each question, with the answer, or why there is none."""
    try:
        trial = Trial(name, folder)
    except Exception as error:  # noqa: BLE001  a table of what goes wrong
        yield "values", "", error
        return
    yield "values", "equal", None
    failed: set[str] = set()
    for question in QUESTIONS:
        if failed & {*NEEDS.get(question, ())}:
            continue
        try:
            yield question, getattr(trial, question)(), None
        except Exception as error:  # noqa: BLE001
            failed.add(question)
            yield question, "", error


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    for name in names or FAMILIES:
        start, answers, failed = time.monotonic(), [], []
        with tempfile.TemporaryDirectory() as folder:
            for question, answer, error in attempts(name, Path(folder)):
                answers.append(f"{question}: {answer}" if error is None else f"{question}: FAILED")
                if error is not None:
                    failed.append(f"    {question}: {type(error).__name__}: {str(error)[:1500]}")
                    if "-v" in sys.argv:
                        traceback.print_exception(error)
        print(f"{name} ({time.monotonic() - start:.0f} s) " + ", ".join(answers), *failed, sep="\n", flush=True)
        jax.clear_caches()


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if not name.startswith("-")])
