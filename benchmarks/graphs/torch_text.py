"""The transformers in PyTorch, as its users write them: `scaled_dot_product_attention`, and a fused projection where the
published models have one (ViT, GPT-2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

tanh_gelu = partial(functional.gelu, approximate="tanh")


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


class Attention(nn.Module):
    """Of several heads, with a projection for each of query, key and value."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.shape = (heads, hidden // heads)
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.output = nn.Linear(hidden, hidden)

    def forward(
        self,
        x: torch.Tensor,
        memory: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        memory = x if memory is None else memory
        query, key, value = (
            project(y).unflatten(-1, self.shape).transpose(1, 2)
            for project, y in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        y = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
        return self.output(y.transpose(1, 2).flatten(2))


class FusedBlock(nn.Module):
    """A layer with its normalizations first, and one projection for query, key and value."""

    def __init__(self, hidden: int, heads: int, mlp: int, epsilon: float, is_causal: bool = False):
        super().__init__()
        self.shape, self.is_causal = (3, heads, hidden // heads), is_causal
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden, epsilon), nn.LayerNorm(hidden, epsilon)
        self.project, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.widen, self.narrow = nn.Linear(hidden, mlp), nn.Linear(mlp, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(self.attention_norm(x)).unflatten(-1, self.shape).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        x = x + self.output(y.transpose(1, 2).flatten(2))
        return x + self.narrow(tanh_gelu(self.widen(self.mlp_norm(x))))


class Gpt2(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        hidden = config.hidden
        self.words, self.positions = nn.Embedding(config.vocabulary, hidden), nn.Embedding(config.context, hidden)
        blocks = [FusedBlock(hidden, config.heads, 4 * hidden, config.epsilon, True) for _ in range(config.layers)]
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(hidden, config.epsilon)
        self.head = nn.Linear(hidden, config.vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


class BertLayer(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        self.attention = Attention(config.hidden, config.heads)
        self.attention_norm = nn.LayerNorm(config.hidden, config.epsilon)
        self.intermediate, self.output = nn.Linear(config.hidden, config.mlp), nn.Linear(config.mlp, config.hidden)
        self.output_norm = nn.LayerNorm(config.hidden, config.epsilon)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.attention_norm(x + self.attention(x, mask=mask))
        return self.output_norm(x + self.output(functional.gelu(self.intermediate(x))))


class Bert(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        hidden = config.hidden
        self.words, self.positions = nn.Embedding(config.vocabulary, hidden), nn.Embedding(config.positions, hidden)
        self.segments, self.norm = nn.Embedding(config.segments, hidden), nn.LayerNorm(hidden, config.epsilon)
        self.layers = nn.ModuleList([BertLayer(config) for _ in range(config.layers)])
        self.pooler = nn.Linear(hidden, hidden)

    def forward(
        self, ids: torch.Tensor, attention_mask: torch.Tensor, segments: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1])) + self.segments(segments)
        x, mask = self.norm(x), attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


class Block(nn.Module):
    """A layer with its normalizations first, and attention to a memory if it `crosses`."""

    def __init__(self, hidden: int, heads: int, activation: Callable[..., torch.Tensor], crosses: bool = False):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(hidden), Attention(hidden, heads)
        self.cross_norm = nn.LayerNorm(hidden) if crosses else None
        self.cross = Attention(hidden, heads) if crosses else None
        self.mlp_norm, self.activation = nn.LayerNorm(hidden), activation
        self.widen, self.narrow = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None, is_causal: bool = False) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), is_causal=is_causal)
        if self.cross is not None and self.cross_norm is not None:
            x = x + self.cross(self.cross_norm(x), memory)
        return x + self.narrow(self.activation(self.widen(self.mlp_norm(x))))


class Whisper(nn.Module):
    places: torch.Tensor

    def __init__(self, config: Any):
        super().__init__()
        from benchmarks.graphs.jax_towers import sinusoids

        hidden, frames = config.hidden, config.frames // 2
        self.first = nn.Conv1d(config.mels, hidden, 3, padding=1)
        self.second = nn.Conv1d(hidden, hidden, 3, stride=2, padding=1)
        self.register_buffer("places", torch.from_numpy(sinusoids(frames, hidden)))
        encoder = [Block(hidden, config.heads, functional.gelu) for _ in range(config.layers)]
        self.encoder, self.encoder_norm = nn.Sequential(*encoder), nn.LayerNorm(hidden)
        self.words, self.positions = nn.Embedding(config.vocabulary, hidden), nn.Embedding(config.context, hidden)
        decoder = [Block(hidden, config.heads, functional.gelu, crosses=True) for _ in range(config.layers)]
        self.decoder, self.decoder_norm = nn.ModuleList(decoder), nn.LayerNorm(hidden)

    def forward(self, sound: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = functional.gelu(self.second(functional.gelu(self.first(sound)))).transpose(1, 2) + self.places
        memory = self.encoder_norm(self.encoder(x))
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.decoder:
            x = block(x, memory, is_causal=True)
        return self.decoder_norm(x) @ self.words.weight.T


class Clip(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        seeing, reading = config.seeing, config.reading
        self.patches = nn.Conv2d(3, seeing.hidden, config.patch, config.patch, bias=False)
        self.class_token = nn.Parameter(torch.randn(seeing.hidden) / 50)
        self.places = nn.Parameter(torch.randn((config.image // config.patch) ** 2 + 1, seeing.hidden) / 50)
        self.norm_in, self.seen_norm = nn.LayerNorm(seeing.hidden), nn.LayerNorm(seeing.hidden)
        blocks = [Block(seeing.hidden, seeing.heads, quick_gelu) for _ in range(seeing.layers)]
        self.seeing, self.seen = nn.Sequential(*blocks), nn.Linear(seeing.hidden, config.shared, bias=False)
        self.words = nn.Embedding(config.vocabulary, reading.hidden)
        self.positions = nn.Parameter(torch.randn(config.context, reading.hidden) / 50)
        blocks = [Block(reading.hidden, reading.heads, quick_gelu) for _ in range(reading.layers)]
        self.reading, self.read_norm = nn.ModuleList(blocks), nn.LayerNorm(reading.hidden)
        self.read = nn.Linear(reading.hidden, config.shared, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        seen, read = self.see(images), self.understand(ids)
        seen = seen / seen.norm(dim=-1, keepdim=True)
        read = read / read.norm(dim=-1, keepdim=True)
        return self.scale.exp() * seen @ read.T

    def see(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], 1, -1), x], dim=1) + self.places
        return self.seen(self.seen_norm(self.seeing(self.norm_in(x))[:, 0]))

    def understand(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.positions
        for block in self.reading:
            x = block(x, is_causal=True)
        return self.read(self.read_norm(x)[torch.arange(x.shape[0]), ids.argmax(dim=-1)])


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """`x` (batch, heads, length, head) turned by angles (length, head) or (batch, 1, length, head)."""
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


class LlamaLayer(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        self.shape = (-1, config.head)
        hidden, key_value = config.hidden, config.groups * config.head
        self.attention_norm = nn.RMSNorm(hidden, config.epsilon)
        self.query, self.output = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.key, self.value = nn.Linear(hidden, key_value, bias=False), nn.Linear(hidden, key_value, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden, config.epsilon)
        self.gate, self.up = nn.Linear(hidden, config.mlp, bias=False), nn.Linear(hidden, config.mlp, bias=False)
        self.down = nn.Linear(config.mlp, hidden, bias=False)

    def projected(self, x: torch.Tensor, angles: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Query, key and value, (batch, heads, length, head), of which the first two are rotated."""
        x = self.attention_norm(x)
        projections = (self.query, self.key, self.value)
        query, key, value = (project(x).unflatten(-1, self.shape).transpose(1, 2) for project in projections)
        return rotated(query, angles), rotated(key, angles), value

    def finished(self, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        query, key, value = self.projected(x, angles)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.finished(x, mixed)


class Llama(nn.Module):
    frequencies: torch.Tensor

    def __init__(self, config: Any):
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList([LlamaLayer(config) for _ in range(config.layers)])
        self.norm = nn.RMSNorm(config.hidden, config.epsilon)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.head.weight = self.words.weight
        frequencies = config.theta ** (-torch.arange(config.head // 2) / (config.head // 2))
        self.register_buffer("frequencies", torch.cat([frequencies, frequencies]), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        angles = torch.arange(ids.shape[1])[:, None] * self.frequencies
        for layer in self.layers:
            x = layer(x, angles)
        return self.head(self.norm(x))


class LlamaDecode(nn.Module):
    """One token with a cache of keys and values of a fixed length, (layers, batch, context, groups, head) each."""

    def __init__(self, config: Any):
        super().__init__()
        self.model = Llama(config)

    def forward(
        self, token: torch.Tensor, position: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        model, layers = self.model, cast("list[LlamaLayer]", self.model.layers)
        x = model.words(token)[:, None]
        angles = (position[:, None] * model.frequencies)[:, None, None]
        mask = (torch.arange(key_cache.shape[2]) <= position[:, None])[:, None, None]
        rows = torch.arange(token.shape[0])
        keys, values = [], []
        for layer, past_key, past_value in zip(layers, key_cache, value_cache, strict=True):
            query, key, value = layer.projected(x, angles)
            keys.append(past_key.index_put((rows, position), key[:, :, 0]))
            values.append(past_value.index_put((rows, position), value[:, :, 0]))
            past = (keys[-1].transpose(1, 2), values[-1].transpose(1, 2))
            mixed = functional.scaled_dot_product_attention(query, *past, attn_mask=mask, enable_gqa=True)
            x = layer.finished(x, mixed)
        return model.head(model.norm(x))[:, 0], torch.stack(keys), torch.stack(values)
