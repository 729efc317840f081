"""The models of sequences and graphs in PyTorch, as its users write them: `nn.LSTM`, `nn.GRU`, `index_add`, loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class LanguageModel(nn.Module):
    def __init__(self, config: Any, kind: Callable[..., nn.RNNBase]):
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = kind(config.hidden, config.hidden, num_layers=config.layers, batch_first=True)
        self.head = nn.Linear(config.hidden, config.vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(ids))[0])


class Padded(nn.Module):
    """Recurrent layers in both directions over padded sequences, of which the second direction begins at their ends."""

    def __init__(self, config: Any):
        super().__init__()
        widths = [config.features] + [2 * config.hidden] * (config.layers - 1)
        self.forwards = nn.ModuleList([nn.GRU(width, config.hidden, batch_first=True) for width in widths])
        self.backwards = nn.ModuleList([nn.GRU(width, config.hidden, batch_first=True) for width in widths])
        self.head = nn.Linear(2 * config.hidden, config.classes)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1])
        # `pack_padded_sequence` cannot be exported.
        order = torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)[..., None]
        for forwards, backwards in zip(self.forwards, self.backwards, strict=True):
            y = backwards(x.gather(1, order.expand(-1, -1, x.shape[2])))[0]
            x = torch.cat([forwards(x)[0], y.gather(1, order.expand(-1, -1, y.shape[2]))], dim=-1)
        return self.head(x)


class Speech(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        channels = config.channels
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, (11, 41), (2, 2), (5, 20), bias=False), nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20),
            nn.Conv2d(channels, channels, (11, 21), (1, 2), (5, 10), bias=False), nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20),
        )  # fmt: skip
        width = channels * config.frequencies // 4
        self.recurrent = nn.GRU(width, config.hidden, config.layers, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * config.hidden, config.letters)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        x = self.layers(sound.unsqueeze(1)).transpose(1, 2).flatten(2)
        return functional.log_softmax(self.head(self.recurrent(x)[0]), dim=-1)


class Experts(nn.Module):
    """All experts on all tokens; the answers of those not chosen are weighted by zero."""

    def __init__(self, config: Any):
        super().__init__()
        self.chosen = config.chosen
        self.norm = nn.RMSNorm(config.hidden, 1e-6)
        self.router = nn.Linear(config.hidden, config.experts, bias=False)
        self.gate = nn.Parameter(torch.randn(config.experts, config.hidden, config.mlp) / 32)
        self.up = nn.Parameter(torch.randn(config.experts, config.hidden, config.mlp) / 32)
        self.down = nn.Parameter(torch.randn(config.experts, config.mlp, config.hidden) / 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        logits = self.router(y)
        scores, chosen = logits.topk(self.chosen, dim=-1)
        weights = torch.zeros_like(logits).scatter(-1, chosen, scores.softmax(dim=-1))
        inner = functional.silu(torch.einsum("btd,edm->btem", y, self.gate))
        inner = inner * torch.einsum("btd,edm->btem", y, self.up)
        return x + torch.einsum("btem,emd->btd", inner * weights[..., None], self.down)


class Mixture(nn.Sequential):
    def __init__(self, config: Any):
        super().__init__(*[Experts(config) for _ in range(config.layers)])


class MambaLayer(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        inner = config.inner
        self.sizes = (config.rank, config.state, config.state)
        self.norm = nn.RMSNorm(config.hidden, config.epsilon)
        self.enter = nn.Linear(config.hidden, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, config.kernel, groups=inner, padding=config.kernel - 1)
        self.select = nn.Linear(inner, sum(self.sizes), bias=False)
        self.step = nn.Linear(config.rank, inner)
        self.decay = nn.Parameter(torch.arange(1.0, config.state + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.leave = nn.Linear(inner, config.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, gate = self.enter(self.norm(x)).chunk(2, dim=-1)
        y = self.conv(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return x + self.leave(self.attend(functional.silu(y)) * functional.silu(gate))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        step, enter, leave = self.select(x).split(self.sizes, dim=-1)
        step = functional.softplus(self.step(step))
        kept = torch.exp(step[..., None] * -torch.exp(self.decay))
        new = (step * x)[..., None] * enter[:, :, None]
        state, states = torch.zeros_like(new[:, 0]), []
        for i in range(x.shape[1]):
            state = kept[:, i] * state + new[:, i]
            states.append(state)
        return torch.einsum("btis,bts->bti", torch.stack(states, dim=1), leave) + self.skip * x


class Mamba(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.Sequential(*[MambaLayer(config) for _ in range(config.layers)])
        self.norm = nn.RMSNorm(config.hidden, config.epsilon)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layers(self.words(ids))) @ self.words.weight.T


def perceptron(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden))


class MessagePassing(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        hidden = config.hidden
        self.nodes, self.edges = nn.Linear(config.node, hidden), nn.Linear(config.edge, hidden)
        self.messages = nn.ModuleList([perceptron(3 * hidden, hidden) for _ in range(config.layers)])
        self.updates = nn.ModuleList([perceptron(2 * hidden, hidden) for _ in range(config.layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(hidden, 1e-6) for _ in range(config.layers)])
        self.head = nn.Linear(hidden, config.classes)

    def forward(
        self, nodes: torch.Tensor, edges: torch.Tensor, senders: torch.Tensor, receivers: torch.Tensor
    ) -> torch.Tensor:
        x, e = self.nodes(nodes), self.edges(edges)
        for message, update, norm in zip(self.messages, self.updates, self.norms, strict=True):
            sent = message(torch.cat([x[senders], x[receivers], e], dim=-1))
            received = torch.zeros_like(x).index_add(0, receivers, sent)
            x = norm(x + update(torch.cat([x, received], dim=-1)))
        return self.head(x)
