"""The list of PyTorch's models that the import is tested with: what each is, what goes in, and which sizes are open.

It needs what `tests/torch/requirements.txt` pins. The architectures are the published ones, with few and narrow layers and
random weights: nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
import transformers
from torch import nn

from tests.torch import networks


@dataclass(frozen=True)
class Sizes:
    """What the open sizes are in one of the two sets of inputs; `side` is that of a square image."""

    batch: int
    length: int
    past: int
    side: int


SIZES = (Sizes(2, 7, 3, 64), Sizes(3, 12, 5, 96))
"""The first is what is exported with."""

Inputs = Callable[[Sizes], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Case:
    """A model.

    Attributes:
      make: makes it.
      inputs: its inputs by name, for the sizes.
      axes: the names of the open sizes of each input.
      opsets: which operator set each of the exporters writes, where it is not the one that its place in the list gives.
      refused: what PyTorch says where an exporter of its own cannot export the model.
      baked: what of the open sizes the file of an exporter holds as a number; it is not compared.
      variants: what else is made of the exported file: see `tests.torch.exporting`.
      heads: of the attention, for what optimizes it.
    """

    make: Callable[[], nn.Module]
    inputs: Inputs
    axes: dict[str, dict[int, str]]
    opsets: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    baked: dict[str, str] = field(default_factory=dict)
    variants: tuple[str, ...] = ()
    heads: int = 4


class Plain(nn.Module):
    """A model of `transformers` with tensors in and tensors out.

    Args:
      model: the model.
      names: of the tensors.
      read: the results, of what the model returns.
      call: calls the model with the tensors by name.
    """

    def __init__(
        self,
        model: nn.Module,
        names: tuple[str, ...],
        read: Callable[[Any], Any],
        call: Callable[..., Any] | None = None,
    ):
        super().__init__()
        self.model, self.names, self.read, self.call = model, names, read, call

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = dict(zip(self.names, tensors, strict=True))
        found = self.model(**given, return_dict=True) if self.call is None else self.call(self.model, **given)
        return self.read(found)


def configured(name: str, attention: str = "eager", **settings: Any) -> Any:
    config = transformers.AutoConfig.for_model(name, **settings)
    config._attn_implementation = attention
    config.architectures = config.architectures or []
    return config


def tokens(sizes: Sizes) -> torch.Tensor:
    return torch.randint(3, 60, (sizes.batch, sizes.length))


def mask(batch: int, length: int, masked: int = 2) -> torch.Tensor:
    ones = torch.ones(batch, length, dtype=torch.int64)
    ones[0, length - masked :] = 0
    return ones


def text(sizes: Sizes) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(sizes), "attention_mask": mask(sizes.batch, sizes.length)}


def image(sizes: Sizes, side: int = 0, channels: int = 3) -> torch.Tensor:
    side = side or sizes.side
    return torch.randn(sizes.batch, channels, side, side)


TOKENS = {0: "batch", 1: "length"}
TEXT = {"input_ids": TOKENS, "attention_mask": TOKENS}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 60}
GROUPED = {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


def encoder(name: str, config: dict[str, Any], attention: str = "eager", **more: Any) -> Case:
    """A model of text that returns vectors."""

    def make() -> nn.Module:
        model = transformers.AutoModel.from_config(configured(name, attention, **config))
        return Plain(model, ("input_ids", "attention_mask"), attrgetter("last_hidden_state"))

    return Case(make, text, TEXT, **more)


def decoder(name: str, config: dict[str, Any], attention: str = "eager", **more: Any) -> Case:
    """A language model, without a cache."""

    def make() -> nn.Module:
        model = transformers.AutoModelForCausalLM.from_config(configured(name, attention, use_cache=False, **config))
        return Plain(model, ("input_ids", "attention_mask"), attrgetter("logits"))

    return Case(make, text, TEXT, **more)


def cached(past: tuple[torch.Tensor, ...]) -> Any:
    """Keys and values in turns as the cache that a model takes."""
    cache = transformers.DynamicCache()
    for layer in range(len(past) // 2):
        cache.update(past[2 * layer], past[2 * layer + 1], layer)
    return cache


def flat(cache: Any) -> tuple[torch.Tensor, ...]:
    """The keys and values of a cache, in turns."""
    return tuple(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))


def with_past(
    name: str, config: dict[str, Any], heads: int, size: int, attention: str = "eager", layers: int = 2, **more: Any
) -> Case:
    """A language model that takes the keys and values of what precedes, and returns them with its own."""
    names = [f"past_{layer}_{part}" for layer in range(layers) for part in ("key", "value")]

    def call(model: nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor, **past: torch.Tensor) -> Any:
        return model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=cached(tuple(past.values())),
            use_cache=True,
        )

    def make() -> nn.Module:
        model = transformers.AutoModelForCausalLM.from_config(configured(name, attention, **config))
        read = lambda found: (found.logits, *flat(found.past_key_values))
        return Plain(model, ("input_ids", "attention_mask", *names), read, call)

    def inputs(sizes: Sizes) -> dict[str, torch.Tensor]:
        past = {key: torch.randn(sizes.batch, heads, sizes.past, size) for key in names}
        attended = torch.ones(sizes.batch, sizes.past + sizes.length, dtype=torch.int64)
        attended[0, :1] = 0
        return {"input_ids": tokens(sizes), "attention_mask": attended, **past}

    axes = {"input_ids": TOKENS, "attention_mask": {0: "batch", 1: "past + length"}}
    return Case(make, inputs, axes | dict.fromkeys(names, {0: "batch", 2: "past"}), **more)


def sequences(name: str, config: dict[str, Any], **more: Any) -> Case:
    """An encoder and a decoder of text in one."""
    names = ("input_ids", "attention_mask", "decoder_input_ids")

    def make() -> nn.Module:
        model = transformers.AutoModelForSeq2SeqLM.from_config(configured(name, use_cache=False, **config))
        return Plain(model, names, attrgetter("logits"))

    def inputs(sizes: Sizes) -> dict[str, torch.Tensor]:
        return {**text(sizes), "decoder_input_ids": torch.randint(3, 60, (sizes.batch, sizes.past))}

    return Case(make, inputs, {**TEXT, "decoder_input_ids": {0: "batch", 1: "written"}}, **more)


def with_crossed_past(name: str, config: dict[str, Any], heads: int, size: int, **more: Any) -> Case:
    """A decoder that attends to an encoder's output, with the keys and values of what it wrote before."""
    names = [f"past_{layer}_{part}" for layer in range(2) for part in ("key", "value")]

    def call(model: nn.Module, tokens: torch.Tensor, encoded: torch.Tensor, **past: torch.Tensor) -> Any:
        cache = transformers.EncoderDecoderCache(cached(tuple(past.values())), transformers.DynamicCache())
        outputs = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=encoded)
        return model(decoder_input_ids=tokens, encoder_outputs=outputs, past_key_values=cache, use_cache=True)

    def make() -> nn.Module:
        settings = configured(name, **config)
        kind = transformers.AutoModelForSpeechSeq2Seq if name == "whisper" else transformers.AutoModelForSeq2SeqLM
        read = lambda found: (found.logits, *flat(found.past_key_values.self_attention_cache))
        return Plain(kind.from_config(settings), ("tokens", "encoded", *names), read, call)

    def inputs(sizes: Sizes) -> dict[str, torch.Tensor]:
        past = {key: torch.randn(sizes.batch, heads, sizes.past, size) for key in names}
        return {
            "tokens": torch.randint(3, 60, (sizes.batch, 2)),
            "encoded": torch.randn(sizes.batch, sizes.length, heads * size),
            **past,
        }

    axes = {"tokens": {0: "batch"}, "encoded": TOKENS, **dict.fromkeys(names, {0: "batch", 2: "past"})}
    return Case(make, inputs, axes, **more)


def vision(
    name: str, config: dict[str, Any], *, attention: str = "eager", side: int = 0, task: str = "ImageClassification",
    read: str = "logits", **more: Any,
) -> Case:  # fmt: skip
    """A model of images, of one size (`side`) or of any."""

    def make() -> nn.Module:
        kind = getattr(transformers, f"AutoModelFor{task}" if task else "AutoModel")
        return Plain(kind.from_config(configured(name, attention, **config)), ("pixel_values",), attrgetter(read))

    axes = {0: "batch"} | ({} if side else {2: "height", 3: "width"})
    return Case(make, lambda sizes: {"pixel_values": image(sizes, side)}, {"pixel_values": axes}, **more)


def images_and_text(
    name: str, config: dict[str, Any], names: tuple[str, ...], side: int = 32, length: int = 8, **more: Any
) -> Case:
    """A model of images and texts, which compares each with each."""

    def make() -> nn.Module:
        read = attrgetter("logits_per_image", "text_embeds", "image_embeds")
        return Plain(transformers.AutoModel.from_config(configured(name, **config)), names, read)

    def inputs(sizes: Sizes) -> dict[str, torch.Tensor]:
        ids = torch.randint(3, 58, (sizes.batch + 1, length))
        ids[:, -1] = 59  # the end of a text is where its vector is taken
        found = {
            "input_ids": ids,
            "pixel_values": image(sizes, side),
            "attention_mask": mask(sizes.batch + 1, length, 0),
        }
        return {key: found[key] for key in names}

    axes = {"input_ids": {0: "texts"}, "pixel_values": {0: "images"}, "attention_mask": {0: "texts"}}
    return Case(make, inputs, {key: axes[key] for key in names}, **more)


def own(make: Callable[[], nn.Module], axes: dict[str, dict[int, str]], **inputs: Any) -> Case:
    """A network of `tests.torch.networks`; an input is a function of the sizes."""
    more = {key: inputs.pop(key) for key in ("baked", "opsets", "refused", "variants") if key in inputs}
    return Case(make, lambda sizes: {key: given(sizes) for key, given in inputs.items()}, axes, **more)


def audio(name: str, config: dict[str, Any], **more: Any) -> Case:
    def make() -> nn.Module:
        return Plain(
            transformers.AutoModel.from_config(configured(name, **config)),
            ("input_values",),
            attrgetter("last_hidden_state"),
        )

    def inputs(sizes: Sizes) -> dict[str, torch.Tensor]:
        return {"input_values": torch.randn(sizes.batch, 100 * sizes.length)}

    return Case(make, inputs, {"input_values": {0: "batch", 1: "samples"}}, **more)


def whisper_encoder(config: dict[str, Any]) -> nn.Module:
    model = transformers.AutoModelForSpeechSeq2Seq.from_config(configured("whisper", **config))
    return Plain(model.model.encoder, ("input_features",), attrgetter("last_hidden_state"))


def t5_encoder() -> nn.Module:
    model = transformers.T5EncoderModel(configured("t5", **T5))
    return Plain(model, ("input_ids", "attention_mask"), attrgetter("last_hidden_state"))


def tower(kind: str, config: dict[str, Any], names: tuple[str, ...]) -> nn.Module:
    """One half of a model of images and text, alone."""
    settings = getattr(transformers, f"{kind}Config")(**config)
    settings._attn_implementation = "eager"
    return Plain(
        getattr(transformers, f"{kind}Model")(settings), names, attrgetter("last_hidden_state", "pooler_output")
    )


T5 = {
    "vocab_size": 60,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip
WHISPER = {
    **{key: value for key, value in BART.items() if key != "max_position_embeddings"}, "num_mel_bins": 16, "max_source_positions": 20,
    "max_target_positions": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
CLIP_TEXT = {
    **TINY,
    "vocab_size": 60,
    "max_position_embeddings": 16,
    "eos_token_id": 59,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
CLIP_IMAGE = {**TINY, "image_size": 32, "patch_size": 8}
CLIP = {"text_config": CLIP_TEXT, "vision_config": CLIP_IMAGE, "projection_dim": 12}
SIGLIP = {"text_config": {**CLIP_TEXT, "projection_size": 16}, "vision_config": CLIP_IMAGE}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2], "layer_type": "basic"}
STAGES = {
    "hidden_sizes": [16, 32], "depths": [1, 1], "num_encoder_blocks": 2, "patch_sizes": [7, 3], "strides": [4, 2],
}  # fmt: skip
VIT = {**SMALL, "image_size": 64, "patch_size": 16}
DETR = {
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "num_queries": 6, "d_model": 32,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip


def detr() -> nn.Module:
    backbone = transformers.ResNetConfig(**RESNET, out_features=["stage2"])
    config = transformers.DetrConfig(
        **{key: value for key, value in DETR.items() if key != "backbone"}, backbone_config=backbone
    )
    config._attn_implementation = "eager"
    return Plain(transformers.DetrForObjectDetection(config), ("pixel_values",), attrgetter("logits", "pred_boxes"))


WORDS = {"input_ids": TOKENS}
ANY_IMAGE = {"pixel_values": {0: "batch", 2: "height", 3: "width"}}

CASES: dict[str, Case] = {
    # models of text
    "bert": encoder("bert", SMALL, variants=("float16", "qdq", "int8", "fused", "optimized")),
    "bert sdpa": encoder("bert", SMALL, "sdpa", opsets={"dynamo": 23}),
    "distilbert": encoder("distilbert", {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        variants=("int8",)),
    "roberta": encoder("roberta", SMALL),
    "albert": encoder("albert", {**SMALL, "embedding_size": 16}),
    "deberta": encoder("deberta", {**SMALL, "pos_att_type": ["c2p", "p2c"], "relative_attention": True}),
    "deberta v2": encoder("deberta-v2", {**SMALL, "pos_att_type": ["c2p", "p2c"], "relative_attention": True}),
    "electra": encoder("electra", {**SMALL, "embedding_size": 16}),
    "modernbert": encoder("modernbert", {**SMALL, "pad_token_id": 0}),
    # language models
    "gpt2": decoder("gpt2", {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4},
        variants=("float16", "qdq", "int8", "fused", "optimized")),
    "gpt2 with past": with_past("gpt2", {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4}, 4, 8),
    "gpt_neox": decoder("gpt_neox", SMALL),
    "gptj": decoder("gptj", {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
    "bloom": decoder("bloom", {"vocab_size": 60, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "opt": decoder("opt", {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64}),
    "llama": decoder("llama", GROUPED, variants=("float16", "int8", "optimized")),
    "llama sdpa": decoder("llama", GROUPED, "sdpa", opsets={"dynamo": 23}),
    "llama with past": with_past("llama", GROUPED, 2, 8),
    "mistral": decoder("mistral", {**GROUPED, "sliding_window": 4}),
    "qwen2": decoder("qwen2", GROUPED),
    "qwen3": decoder("qwen3", {**GROUPED, "head_dim": 8}),
    "qwen3 with past": with_past("qwen3", {**GROUPED, "head_dim": 8}, 2, 8),
    "phi": decoder("phi", {**GROUPED, "num_key_value_heads": 4}),
    "phi3": decoder("phi3", GROUPED),
    "gemma": decoder("gemma", {**GROUPED, "head_dim": 8}),
    "gemma2": decoder("gemma2", {**GROUPED, "head_dim": 8, "sliding_window": 4}),
    "mixtral": decoder("mixtral", {**GROUPED, "num_local_experts": 4, "experts_implementation": "batched_mm"}),
    # It loops over the positions in Python, so that an exported model is for one length.
    "mamba": replace(
        decoder("mamba", {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "vocab_size": 60, "pad_token_id": 0}),
        inputs=lambda sizes: text(replace(sizes, length=7)), axes=dict.fromkeys(TEXT, {0: "batch"})),
    # from text to text, from speech to text
    "t5 encoder": Case(t5_encoder, text, TEXT),
    "t5": sequences("t5", T5),
    "t5 decoder with past": with_crossed_past("t5", T5, 4, 8),
    "bart": sequences("bart", BART),
    "marian": sequences("marian", BART | {"pad_token_id": 0, "decoder_start_token_id": 0}),
    "whisper encoder": Case(partial(whisper_encoder, WHISPER), lambda sizes: {"input_features": torch.randn(sizes.batch, 16, 40)},
        {"input_features": {0: "batch"}}),
    "whisper decoder with past": with_crossed_past("whisper", WHISPER, 4, 8),
    "wav2vec2": audio("wav2vec2", {**SMALL, "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3],
        "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}),
    # images and text
    "clip": images_and_text("clip", CLIP, ("input_ids", "pixel_values", "attention_mask")),
    "clip text": Case(partial(tower, "CLIPText", CLIP_TEXT, ("input_ids", "attention_mask")), text, TEXT),
    "clip image": Case(partial(tower, "CLIPVision", CLIP_IMAGE, ("pixel_values",)),
        lambda sizes: {"pixel_values": image(sizes, 32)}, {"pixel_values": {0: "batch"}}),
    "siglip": images_and_text("siglip", SIGLIP, ("input_ids", "pixel_values")),
    # images
    "vit": vision("vit", VIT, side=64, variants=("float16", "qdq", "int8", "fused", "optimized")),
    "vit sdpa": vision("vit", VIT, attention="sdpa", side=64, opsets={"dynamo": 23}),
    "deit": vision("deit", VIT, side=64),
    "beit": vision("beit", VIT, side=64),
    "dinov2": vision("dinov2", VIT, side=64),
    "swin": vision("swin", {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
        "window_size": 4}, side=64, variants=("int8",)),
    "convnext": vision("convnext", {"hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2}, variants=("float16", "qdq")),
    "resnet": vision("resnet", RESNET, variants=("float16", "qdq", "optimized")),
    "regnet": vision("regnet", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2], "groups_width": 8}),
    "mobilenet_v2": vision("mobilenet_v2", {"image_size": 64, "depth_multiplier": 0.35}, side=64, variants=("qdq",)),
    "efficientnet": vision("efficientnet", {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.25,
        "hidden_dim": 320}, side=64),
    "poolformer": vision("poolformer", {**STAGES, "padding": [2, 1]}),
    "segformer": vision("segformer", {**STAGES, "num_attention_heads": [1, 2], "sr_ratios": [4, 2], "mlp_ratios": [2, 2],
        "decoder_hidden_size": 16}, task="SemanticSegmentation"),
    "detr": Case(detr, lambda sizes: {"pixel_values": image(sizes)}, ANY_IMAGE),
    # networks written here
    "unet": own(networks.UNet, ANY_IMAGE, pixel_values=image, variants=("float16", "qdq")),
    "diffusion": own(networks.Diffusion, {"sample": {0: "batch", 2: "height", 3: "width"}, "timestep": {0: "batch"}, "text": TOKENS},
        sample=lambda s: torch.randn(s.batch, 4, s.side // 4, s.side // 4), timestep=lambda s: torch.randint(0, 1000, (s.batch,)),
        text=lambda s: torch.randn(s.batch, s.length, 24)),
    "autoencoder": own(networks.Autoencoder, ANY_IMAGE, pixel_values=image),
    "lstm": own(partial(networks.Recurrent, nn.LSTM), WORDS, input_ids=tokens, variants=("int8",)),
    "gru": own(partial(networks.Recurrent, nn.GRU), WORDS, input_ids=tokens),
    "rnn": own(partial(networks.Recurrent, nn.RNN), WORDS, input_ids=tokens, refused={"dynamo": "inferred a static shape of 7"}),
    "lstm with state": own(networks.Stateful, {"x": {0: "length", 1: "batch"}, "h": {1: "batch"}, "c": {1: "batch"}},
        x=lambda s: torch.randn(s.length, s.batch, 16), h=lambda s: torch.randn(2, s.batch, 24),
        c=lambda s: torch.randn(2, s.batch, 24), baked={"dynamo": "the number of steps is written into a Reshape"}),
    "experts": own(networks.Experts, {"x": TOKENS}, x=lambda s: torch.randn(s.batch, s.length, 16)),
    "encoder": own(networks.Encoder, {"x": TOKENS}, x=lambda s: torch.randn(s.batch, s.length, 32),
        baked={"legacy": "the sizes are written into the Reshapes of the attention"}),
    "perceptron": own(networks.Perceptron, {"x": {0: "batch"}}, x=lambda s: torch.randn(s.batch, 32)),
}  # fmt: skip
