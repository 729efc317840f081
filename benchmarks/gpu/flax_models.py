"""Architectures of `transformers` in Flax NNX, written by hand: what an imported model is compared with.

Layers have the names that they have in `transformers`, so that a state dict can be loaded. Images are (batch, height, width,
channels).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

gelu = partial(jax.nn.gelu, approximate=False)


class Layers:
    """Makes layers of one dtype.

    Args:
      dtype: that of weights and results.
      rngs: the random keys of the weights.
    """

    def __init__(self, dtype: Any, rngs: nnx.Rngs):
        self.options: dict[str, Any] = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.dtype = dtype

    def linear(self, inputs: int, outputs: int, bias: bool = True) -> nnx.Linear:
        return nnx.Linear(inputs, outputs, use_bias=bias, **self.options)

    def norm(self, size: int, epsilon: float) -> nnx.LayerNorm:
        return nnx.LayerNorm(size, epsilon=epsilon, **self.options)

    def rms_norm(self, size: int, epsilon: float) -> nnx.RMSNorm:
        return nnx.RMSNorm(size, epsilon=epsilon, **self.options)

    def embedding(self, count: int, size: int) -> nnx.Embed:
        return nnx.Embed(count, size, **self.options)

    def conv(self, inputs: int, outputs: int, kernel: int, **more: Any) -> nnx.Conv:
        return nnx.Conv(inputs, outputs, (kernel, kernel), **more, **self.options)

    def batch_norm(self, size: int) -> nnx.BatchNorm:
        return nnx.BatchNorm(size, use_running_average=True, momentum=0.9, epsilon=1e-5, **self.options)

    def zeros(self, *shape: int) -> nnx.Param:
        return nnx.Param(jnp.zeros(shape, self.dtype))


class Attention(nnx.Module):
    """Attention of several heads, whose projections have the names that they are given."""

    def __init__(self, make: Layers, config: Any, names: tuple[str, ...]):
        self.heads, self.names = config.num_attention_heads, names
        for name in names:
            setattr(self, name, make.linear(config.hidden_size, config.hidden_size))

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        query, key, value, output = (getattr(self, name) for name in self.names)
        heads = (*x.shape[:2], self.heads, -1)
        mixed = jax.nn.dot_product_attention(
            query(x).reshape(heads), key(x).reshape(heads), value(x).reshape(heads), mask=mask
        )
        return output(mixed.reshape(x.shape))


class BertLayer(nnx.Module):
    def __init__(self, make: Layers, config: Any):
        self.attention = Attention(make, config, ("query", "key", "value", "output"))
        self.attention_norm = make.norm(config.hidden_size, config.layer_norm_eps)
        self.intermediate = make.linear(config.hidden_size, config.intermediate_size)
        self.mlp_output = make.linear(config.intermediate_size, config.hidden_size)
        self.output_norm = make.norm(config.hidden_size, config.layer_norm_eps)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = self.attention_norm(x + self.attention(x, mask))
        return self.output_norm(x + self.mlp_output(gelu(self.intermediate(x))))


class Bert(nnx.Module):
    def __init__(self, make: Layers, config: Any):
        self.word_embeddings = make.embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = make.embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = make.embedding(config.type_vocab_size, config.hidden_size)
        self.norm = make.norm(config.hidden_size, config.layer_norm_eps)
        self.layers = nnx.List([BertLayer(make, config) for _ in range(config.num_hidden_layers)])

    def __call__(self, input_ids: jax.Array, attention_mask: jax.Array) -> jax.Array:
        x = self.word_embeddings(input_ids) + self.position_embeddings(jnp.arange(input_ids.shape[1]))
        x = self.norm(x + self.token_type_embeddings(jnp.zeros_like(input_ids)))
        mask = attention_mask[:, None, None, :].astype(bool)
        for layer in self.layers:
            x = layer(x, mask)
        return x


BERT_NAMES = {
    "word_embeddings.": "embeddings.word_embeddings.",
    "position_embeddings.": "embeddings.position_embeddings.",
    "token_type_embeddings.": "embeddings.token_type_embeddings.",
    ".attention.output.": ".attention.output.dense.",
    ".attention.query.": ".attention.self.query.",
    ".attention.key.": ".attention.self.key.",
    ".attention.value.": ".attention.self.value.",
    ".attention_norm.": ".attention.output.LayerNorm.",
    ".output_norm.": ".output.LayerNorm.",
    ".intermediate.": ".intermediate.dense.",
    ".mlp_output.": ".output.dense.",
    "layers.": "encoder.layer.",
    "norm.": "embeddings.LayerNorm.",
}


class ViTLayer(nnx.Module):
    def __init__(self, make: Layers, config: Any):
        self.layernorm_before = make.norm(config.hidden_size, config.layer_norm_eps)
        self.attention = Attention(make, config, ("q_proj", "k_proj", "v_proj", "o_proj"))
        self.layernorm_after = make.norm(config.hidden_size, config.layer_norm_eps)
        self.fc1 = make.linear(config.hidden_size, config.intermediate_size)
        self.fc2 = make.linear(config.intermediate_size, config.hidden_size)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.layernorm_before(x))
        return x + self.fc2(gelu(self.fc1(self.layernorm_after(x))))


class ViT(nnx.Module):
    def __init__(self, make: Layers, config: Any):
        size, patch = config.hidden_size, config.patch_size
        self.patches = make.conv(config.num_channels, size, patch, strides=patch, padding="VALID")
        self.cls_token = make.zeros(1, 1, size)
        self.position_embeddings = make.zeros(1, (config.image_size // patch) ** 2 + 1, size)
        self.layers = nnx.List([ViTLayer(make, config) for _ in range(config.num_hidden_layers)])
        self.layernorm = make.norm(size, config.layer_norm_eps)
        self.classifier = make.linear(size, config.num_labels)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.patches(images)
        batch, height, width, size = x.shape
        first = jnp.broadcast_to(self.cls_token[...], (batch, 1, size))
        x = jnp.concatenate([first, x.reshape(batch, height * width, size)], axis=1) + self.position_embeddings[...]
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.layernorm(x)[:, 0])


VIT_NAMES = {
    "patches.": "vit.embeddings.patch_embeddings.projection.",
    "cls_token": "vit.embeddings.cls_token",
    "position_embeddings": "vit.embeddings.position_embeddings",
    ".fc": ".mlp.fc",
    "layers.": "vit.layers.",
    "layernorm.": "vit.layernorm.",
}


class Gpt2Layer(nnx.Module):
    def __init__(self, make: Layers, config: Any):
        size, self.heads = config.hidden_size, config.num_attention_heads
        self.ln_1 = make.norm(size, config.layer_norm_epsilon)
        self.c_attn = make.linear(size, 3 * size)
        self.attn_c_proj = make.linear(size, size)
        self.ln_2 = make.norm(size, config.layer_norm_epsilon)
        self.c_fc = make.linear(size, 4 * size)
        self.mlp_c_proj = make.linear(4 * size, size)

    def __call__(self, x: jax.Array) -> jax.Array:
        heads = (*x.shape[:2], self.heads, -1)
        query, key, value = (each.reshape(heads) for each in jnp.split(self.c_attn(self.ln_1(x)), 3, axis=-1))
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attn_c_proj(mixed.reshape(x.shape))
        return x + self.mlp_c_proj(jax.nn.gelu(self.c_fc(self.ln_2(x)), approximate=True))


class Gpt2(nnx.Module):
    def __init__(self, make: Layers, config: Any):
        self.wte = make.embedding(config.vocab_size, config.hidden_size)
        self.wpe = make.embedding(config.n_positions, config.hidden_size)
        self.h = nnx.List([Gpt2Layer(make, config) for _ in range(config.num_hidden_layers)])
        self.ln_f = make.norm(config.hidden_size, config.layer_norm_epsilon)

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        x = self.wte(input_ids) + self.wpe(jnp.arange(input_ids.shape[1]))
        for layer in self.h:
            x = layer(x)
        return self.wte.attend(self.ln_f(x))


GPT2_NAMES = {
    ".c_attn.": ".attn.c_attn.",
    ".attn_c_proj.": ".attn.c_proj.",
    ".c_fc.": ".mlp.c_fc.",
    ".mlp_c_proj.": ".mlp.c_proj.",
    "wte.": "transformer.wte.",
    "wpe.": "transformer.wpe.",
    "h.": "transformer.h.",
    "ln_f.": "transformer.ln_f.",
}


def rotated(x: jax.Array, theta: float) -> jax.Array:
    """Rotate the pairs (i, i + head/2) of (batch, length, heads, head) by angles that grow with the position."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    sin, cos = (function(angles)[:, None, :].astype(x.dtype) for function in (jnp.sin, jnp.cos))
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class LlamaLayer(nnx.Module):
    def __init__(self, make: Layers, config: Any):
        size, head = config.hidden_size, config.hidden_size // config.num_attention_heads
        self.head, self.theta = head, config.rope_parameters["rope_theta"]
        self.input_layernorm = make.rms_norm(size, config.rms_norm_eps)
        self.q_proj = make.linear(size, size, bias=False)
        self.k_proj = make.linear(size, head * config.num_key_value_heads, bias=False)
        self.v_proj = make.linear(size, head * config.num_key_value_heads, bias=False)
        self.o_proj = make.linear(size, size, bias=False)
        self.post_attention_layernorm = make.rms_norm(size, config.rms_norm_eps)
        self.gate_proj = make.linear(size, config.intermediate_size, bias=False)
        self.up_proj = make.linear(size, config.intermediate_size, bias=False)
        self.down_proj = make.linear(config.intermediate_size, size, bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        y, heads = self.input_layernorm(x), (*x.shape[:2], -1, self.head)
        query = rotated(self.q_proj(y).reshape(heads), self.theta)
        key = rotated(self.k_proj(y).reshape(heads), self.theta)
        mixed = jax.nn.dot_product_attention(query, key, self.v_proj(y).reshape(heads), is_causal=True)
        x = x + self.o_proj(mixed.reshape(x.shape))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(nnx.silu(self.gate_proj(y)) * self.up_proj(y))


class Llama(nnx.Module):
    def __init__(self, make: Layers, config: Any):
        self.embed_tokens = make.embedding(config.vocab_size, config.hidden_size)
        self.layers = nnx.List([LlamaLayer(make, config) for _ in range(config.num_hidden_layers)])
        self.norm = make.rms_norm(config.hidden_size, config.rms_norm_eps)

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.embed_tokens.attend(self.norm(x))


LLAMA_NAMES = {
    **{f".{each}_proj.": f".self_attn.{each}_proj." for each in "qkvo"},
    **{f".{each}_proj.": f".mlp.{each}_proj." for each in ("gate", "up", "down")},
    "embed_tokens.": "model.embed_tokens.",
    "layers.": "model.layers.",
    "norm.": "model.norm.",
}


class ConvNorm(nnx.Module):
    def __init__(self, make: Layers, inputs: int, outputs: int, kernel: int, strides: int = 1):
        self.convolution = make.conv(
            inputs, outputs, kernel, strides=strides, padding=kernel // 2, use_bias=False
        )  # padded on both sides alike, as in PyTorch
        self.normalization = make.batch_norm(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.normalization(self.convolution(x))


class Bottleneck(nnx.Module):
    def __init__(self, make: Layers, inputs: int, outputs: int, strides: int):
        inner, projected = outputs // 4, inputs != outputs or strides != 1
        self.shortcut = ConvNorm(make, inputs, outputs, 1, strides) if projected else None
        self.layer = nnx.List(
            [
                ConvNorm(make, inputs, inner, 1),
                ConvNorm(make, inner, inner, 3, strides),
                ConvNorm(make, inner, outputs, 1),
            ]
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        reduced, spatial, expanded = self.layer
        y = expanded(nnx.relu(spatial(nnx.relu(reduced(x)))))
        return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNetStage(nnx.Module):
    def __init__(self, make: Layers, inputs: int, outputs: int, depth: int, strides: int):
        self.layers = nnx.List([Bottleneck(make, inputs, outputs, strides)])
        for _ in range(depth - 1):
            self.layers.append(Bottleneck(make, outputs, outputs, 1))

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x


class ResNet(nnx.Module):
    def __init__(self, make: Layers, config: Any):
        sizes = config.hidden_sizes
        self.embedder = ConvNorm(make, config.num_channels, config.embedding_size, 7, 2)
        stages = zip([config.embedding_size, *sizes], sizes, config.depths, [1] + [2] * len(sizes), strict=False)
        self.stages = nnx.List([ResNetStage(make, *stage) for stage in stages])
        self.classifier = make.linear(sizes[-1], config.num_labels)

    def __call__(self, images: jax.Array) -> jax.Array:
        padding: Any = ((1, 1), (1, 1))  # Flax documents pairs and annotates `str`
        x = nnx.max_pool(nnx.relu(self.embedder(images)), (3, 3), strides=(2, 2), padding=padding)
        for stage in self.stages:
            x = stage(x)
        return self.classifier(x.mean(axis=(1, 2)))


RESNET_NAMES = {
    "embedder.": "resnet.embedder.embedder.",
    "stages.": "resnet.encoder.stages.",
    "classifier.": "classifier.1.",
}


class ConvNextLayer(nnx.Module):
    def __init__(self, make: Layers, size: int, epsilon: float):
        self.dwconv = make.conv(size, size, 7, padding=3, feature_group_count=size)
        self.layernorm = make.norm(size, epsilon)
        self.pwconv1 = make.linear(size, 4 * size)
        self.pwconv2 = make.linear(4 * size, size)
        self.layer_scale_parameter = make.zeros(size)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.pwconv2(gelu(self.pwconv1(self.layernorm(self.dwconv(x)))))
        return x + self.layer_scale_parameter[...] * y


class ConvNextStage(nnx.Module):
    def __init__(self, make: Layers, inputs: int, size: int, depth: int, epsilon: float):
        self.norm = make.norm(inputs, 1e-6) if inputs != size else None
        self.conv = make.conv(inputs, size, 2, strides=2, padding="VALID") if inputs != size else None
        self.layers = nnx.List([ConvNextLayer(make, size, epsilon) for _ in range(depth)])

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.norm is not None and self.conv is not None:
            x = self.conv(self.norm(x))
        for layer in self.layers:
            x = layer(x)
        return x


class ConvNext(nnx.Module):
    def __init__(self, make: Layers, config: Any):
        sizes, patch = config.hidden_sizes, config.patch_size
        self.patches = make.conv(config.num_channels, sizes[0], patch, strides=patch, padding="VALID")
        self.patches_norm = make.norm(sizes[0], 1e-6)
        stages = zip([sizes[0], *sizes], sizes, config.depths, strict=False)
        self.stages = nnx.List([ConvNextStage(make, *stage, 1e-6) for stage in stages])
        self.layernorm = make.norm(sizes[-1], config.layer_norm_eps)
        self.classifier = make.linear(sizes[-1], config.num_labels)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.patches_norm(self.patches(images))
        for stage in self.stages:
            x = stage(x)
        return self.classifier(self.layernorm(x.mean(axis=(1, 2))))


CONVNEXT_NAMES = {
    "patches.": "convnext.embeddings.patch_embeddings.",
    "patches_norm.": "convnext.embeddings.layernorm.",
    ".norm.": ".downsampling_layer.0.",
    ".conv.": ".downsampling_layer.1.",
    "stages.": "convnext.encoder.stages.",
    "layernorm.": "convnext.layernorm.",
}

Architecture = tuple[Callable[[Layers, Any], nnx.Module], dict[str, str]]
#: A model in Flax, and parts of the paths of its weights with what they are in the state dict: those that begin with a dot
#: are replaced anywhere, the others at the beginning.
ARCHITECTURES: dict[str, Architecture] = {
    "bert": (Bert, BERT_NAMES),
    "vit": (ViT, VIT_NAMES),
    "gpt2": (Gpt2, GPT2_NAMES),
    "llama": (Llama, LLAMA_NAMES),
    "resnet": (ResNet, RESNET_NAMES),
    "convnext": (ConvNext, CONVNEXT_NAMES),
}
ENDS = {"kernel": "weight", "scale": "weight", "embedding": "weight", "mean": "running_mean", "var": "running_var"}


def loaded(architecture: str, config: Any, state: dict[str, Any], dtype: Any) -> nnx.Module:
    """Return the model in Flax with the weights of a state dict of NumPy arrays.

    Args:
      architecture: its name in `transformers`.
      config: its configuration.
      state: arrays by the names of the state dict.
      dtype: that of the weights.

    Raises:
      ValueError: a weight has another shape than the entry of the state dict.
    """
    make, names = ARCHITECTURES[architecture]
    model = nnx.eval_shape(lambda: make(Layers(dtype, nnx.Rngs(0)), config))
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        *parents, leaf = map(str, path)
        name = ".".join([*parents, ENDS.get(leaf, leaf)])
        for part, full in names.items():
            if part.startswith("."):
                name = name.replace(part, full)
        name = next((full + name.removeprefix(part) for part, full in names.items() if name.startswith(part)), name)
        array = state[name]
        if leaf == "kernel" and not (architecture == "gpt2" and array.ndim == 2):  # which keeps (inputs, outputs)
            array = array.transpose(*range(2, array.ndim), 1, 0)
        if array.shape != variable.shape:
            raise ValueError(f"`{name}` is of shape {array.shape}, the weight of {variable.shape}")
        variable.set_value(jnp.asarray(array, variable.dtype))
    return model
