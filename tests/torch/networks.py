"""Networks that `transformers` does not have, written in PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Recurrent(nn.Module):
    """Words, two bidirectional recurrent layers, and a head."""

    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.words = nn.Embedding(60, 16)
        self.layers = kind(16, 24, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(48, 5)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(input_ids))[0])


class Stateful(nn.Module):
    """A recurrent network whose state comes in and goes out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(16, 24, num_layers=2)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, (h, c) = self.layers(x, (h, c))
        return y, h, c


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
        up = functional.interpolate(self.down(first), scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.last(torch.cat([first, self.up(self.down(first)) + up[:, :8]], dim=1))


class Residual(nn.Module):
    """Two convolutions with group normalization, told how far the diffusion is."""

    def __init__(self, channels: int, out: int, told: int):
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(4, channels), nn.GroupNorm(4, out)])
        self.time = nn.Linear(told, out)
        self.across = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.first(functional.silu(self.norms[0](x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.across(x) + self.second(functional.silu(self.norms[1](h)))


class Crossing(nn.Module):
    """The positions of an image attend to a text."""

    def __init__(self, channels: int, width: int, heads: int = 2):
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(4, channels), heads
        self.q, self.kv = nn.Linear(channels, channels, bias=False), nn.Linear(width, 2 * channels, bias=False)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        q = self.q(self.norm(x).flatten(2).transpose(1, 2))
        k, v = self.kv(text).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, channels // self.heads)).transpose(1, 2) for t in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(y).transpose(1, 2).reshape(batch, channels, height, width)


class Diffusion(nn.Module):
    """A U-Net that is told the time and a text, as the models of diffusion are."""

    def __init__(self, channels: int = 16, width: int = 24):
        super().__init__()
        self.channels = channels
        self.time = nn.Sequential(nn.Linear(channels, 32), nn.SiLU(), nn.Linear(32, 32))
        self.first = nn.Conv2d(4, channels, 3, padding=1)
        self.down = nn.ModuleList([Residual(channels, channels, 32), Residual(channels, 2 * channels, 32)])
        self.halve = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.crossing = Crossing(2 * channels, width)
        self.middle = Residual(2 * channels, 2 * channels, 32)
        self.up = nn.ModuleList([Residual(4 * channels, channels, 32), Residual(2 * channels, channels, 32)])
        self.last = nn.Sequential(nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, 4, 3, padding=1))

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        steps = torch.exp(-math.log(10000) * torch.arange(self.channels // 2) / (self.channels // 2))
        angles = timestep[:, None].float() * steps
        time = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1))
        wide = self.down[0](self.first(sample), time)
        narrow = self.crossing(self.down[1](self.halve(wide), time), text)
        x = self.up[0](torch.cat([self.middle(narrow, time), narrow], dim=1), time)
        x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.last(self.up[1](torch.cat([x, wide], dim=1), time))


class Autoencoder(nn.Module):
    """An image as the mean and variance of a small one, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(16, 8, 1),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Conv2d(4, 16, 3, padding=1), nn.InstanceNorm2d(16, affine=True), nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(16, 8, 3, padding=1), nn.SiLU(),
            nn.ConvTranspose2d(8, 3, 3, padding=1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, log_variance = self.encoder(pixel_values).chunk(2, dim=1)
        return self.decoder(mean), mean, log_variance.clamp(-30, 20).exp()


class Experts(nn.Module):
    """A layer of experts: each position goes through the two that a gate likes best."""

    def __init__(self, width: int = 16, hidden: int = 24, experts: int = 4):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) / 4)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2)
        share = torch.zeros_like(self.gate(x)).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))
        hidden = functional.gelu(x[:, :, None, None] @ self.up, approximate="tanh")
        return ((hidden @ self.down)[:, :, :, 0] * share[..., None]).sum(2)


class Encoder(nn.Module):
    """PyTorch's own transformer layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, norm_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Perceptron(nn.Module):
    """Layers and activations in a row, some of which ONNX has no operator for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, 24), nn.LayerNorm(24), nn.Mish(), nn.Linear(24, 24), nn.BatchNorm1d(24), nn.Hardswish(),
            nn.Linear(24, 24), nn.PReLU(24), nn.Linear(24, 16), nn.Softplus(), nn.Linear(16, 16), nn.CELU(),
            nn.Linear(16, 16), nn.SELU(), nn.Linear(16, 8), nn.GLU(), nn.LogSoftmax(-1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)
