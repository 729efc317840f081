"""The models of images in PyTorch, as its users write them: channels first, fused projections, `torch.nn`'s layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.graphs.torch_text import FusedBlock


class ConvNorm(nn.Sequential):
    def __init__(
        self, channels_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1, epsilon: float = 1e-5
    ):
        super().__init__(
            nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(channels, epsilon),
        )


class Bottleneck(nn.Module):
    def __init__(self, channels_in: int, width: int, stride: int):
        super().__init__()
        channels = 4 * width
        self.reduce = ConvNorm(channels_in, width, 1)
        self.spatial = ConvNorm(width, width, 3, stride)
        self.expand = ConvNorm(width, channels, 1)
        is_projected = stride != 1 or channels_in != channels
        self.shortcut = ConvNorm(channels_in, channels, 1, stride) if is_projected else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.expand(functional.relu(self.spatial(functional.relu(self.reduce(x)))))
        return functional.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        self.stem = ConvNorm(3, config.width, 7, 2)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        blocks, channels = [], config.width
        for i, depth in enumerate(config.stages):
            width = config.width * 2**i
            for j in range(depth):
                blocks.append(Bottleneck(channels, width, 2 if i > 0 and j == 0 else 1))
                channels = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, config.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.pool(functional.relu(self.stem(images))))
        return self.head(self.average(x).flatten(1))


class Shortcut(nn.Module):
    """Layers whose input is added to their result if the shapes allow it."""

    layers: nn.Sequential
    is_residual: bool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.is_residual else self.layers(x)


class InvertedResidual(Shortcut):
    def __init__(self, channels_in: int, expansion: int, channels: int, stride: int):
        super().__init__()
        hidden = channels_in * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [ConvNorm(channels_in, hidden, 1), nn.ReLU6()]
        layers += [ConvNorm(hidden, hidden, 3, stride, hidden), nn.ReLU6(), ConvNorm(hidden, channels, 1)]
        self.layers = nn.Sequential(*layers)
        self.is_residual = stride == 1 and channels_in == channels


class MobileNet(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        self.stem = ConvNorm(3, config.stem, 3, 2)
        self.blocks = nn.Sequential(*[InvertedResidual(*block) for block in config.blocks()])
        self.last = ConvNorm(config.stages[-1][1], config.last, 1)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(config.last, config.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = functional.relu6(self.last(self.blocks(functional.relu6(self.stem(images)))))
        return self.head(self.dropout(functional.adaptive_avg_pool2d(x, 1).flatten(1)))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeezed: int):
        super().__init__()
        self.average = nn.AdaptiveAvgPool2d(1)
        self.reduce, self.expand = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.expand(functional.silu(self.reduce(self.average(x)))))


class MobileBlock(Shortcut):
    def __init__(self, channels_in: int, expansion: int, channels: int, stride: int, kernel: int, epsilon: float):
        super().__init__()
        hidden = channels_in * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [ConvNorm(channels_in, hidden, 1, epsilon=epsilon), nn.SiLU()]
        layers += [ConvNorm(hidden, hidden, kernel, stride, hidden, epsilon), nn.SiLU()]
        layers += [SqueezeExcite(hidden, max(1, channels_in // 4)), ConvNorm(hidden, channels, 1, epsilon=epsilon)]
        self.layers = nn.Sequential(*layers)
        self.is_residual = stride == 1 and channels_in == channels


class EfficientNet(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(3, config.stem, 3, 2, epsilon=config.epsilon), nn.SiLU())
        self.blocks = nn.Sequential(*[MobileBlock(*block, epsilon=config.epsilon) for block in config.blocks()])
        channels = config.stages[-1][1]
        self.last = nn.Sequential(ConvNorm(channels, config.last, 1, epsilon=config.epsilon), nn.SiLU())
        self.average = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(config.last, config.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.average(self.last(self.blocks(self.stem(images)))).flatten(1))


class ChannelNorm(nn.LayerNorm):
    """Normalizes the channels of images."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, epsilon)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.widen(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        width_in, epsilon = config.widths[0], config.epsilon
        layers: list[nn.Module] = [nn.Conv2d(3, width_in, 4, 4), ChannelNorm(width_in, epsilon)]
        for i, (depth, width) in enumerate(zip(config.depths, config.widths, strict=True)):
            if i > 0:
                layers += [ChannelNorm(width_in, epsilon), nn.Conv2d(width_in, width, 2, 2)]
            layers += [ConvNextBlock(width, epsilon) for _ in range(depth)]
            width_in = width
        self.layers = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(width_in, epsilon), nn.Linear(width_in, config.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(images).mean((-2, -1))))


def double_conv(channels_in: int, channels: int) -> nn.Sequential:
    return nn.Sequential(
        ConvNorm(channels_in, channels, 3),
        nn.ReLU(inplace=True),
        ConvNorm(channels, channels, 3),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        widths = config.widths
        self.down = nn.ModuleList([double_conv(a, b) for a, b in zip((3, *widths), widths, strict=False)])
        self.halve = nn.MaxPool2d(2)
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.doubling = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs])
        self.up = nn.ModuleList([double_conv(2 * b, b) for _, b in pairs])
        self.head = nn.Conv2d(widths[0], config.classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, skips = images, []
        for i, block in enumerate(self.down):
            x = block(self.halve(x) if i else x)
            skips.append(x)
        for doubled, block, skip in zip(self.doubling, self.up, skips[-2::-1], strict=True):
            x = block(torch.cat([skip, doubled(x)], dim=1))
        return self.head(x)


class ViT(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        hidden = config.hidden
        self.patches = nn.Conv2d(3, hidden, config.patch, config.patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, hidden) / 50)
        self.positions = nn.Parameter(torch.randn(1, config.tokens, hidden) / 50)
        self.blocks = nn.Sequential(*[FusedBlock(hidden, config.heads, config.mlp, 1e-6) for _ in range(config.layers)])
        self.norm, self.head = nn.LayerNorm(hidden, 1e-6), nn.Linear(hidden, config.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Residual(nn.Module):
    def __init__(self, config: Any, channels_in: int, channels: int):
        super().__init__()
        self.norm_in = nn.GroupNorm(config.groups, channels_in, eps=1e-6)
        self.conv_in = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.time = nn.Linear(4 * config.channels, channels)
        self.norm_out = nn.GroupNorm(config.groups, channels, eps=1e-6)
        self.dropout = nn.Dropout(config.dropout)
        self.conv_out = nn.Conv2d(channels, channels, 3, padding=1)
        self.shortcut = nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv_in(functional.silu(self.norm_in(x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv_out(self.dropout(functional.silu(self.norm_out(y))))


class ImageAttention(nn.Module):
    def __init__(self, config: Any, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(config.groups, channels, eps=1e-6)
        self.query, self.key, self.value = (nn.Linear(channels, channels) for _ in range(3))
        self.output = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = (project(y).unsqueeze(1) for project in (self.query, self.key, self.value))
        y = self.output(functional.scaled_dot_product_attention(q, k, v).squeeze(1))
        return x + y.transpose(1, 2).reshape(x.shape)


class Step(nn.Module):
    def __init__(self, config: Any, resolution: int, channels_in: int, channels: int):
        super().__init__()
        self.residual = Residual(config, channels_in, channels)
        has_attention = resolution == config.attention_at
        self.attention = ImageAttention(config, channels) if has_attention else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.attention(self.residual(x, time))


class DiffusionUNet(nn.Module):
    down: Any
    up: Any

    def __init__(self, config: Any):
        super().__init__()
        self.channels = config.channels
        width = 4 * config.channels
        self.time = nn.Sequential(nn.Linear(config.channels, width), nn.SiLU(), nn.Linear(width, width))
        self.conv_in = nn.Conv2d(3, config.channels, 3, padding=1)
        self.down, self.halve, self.up, self.doubling = (nn.ModuleList() for _ in range(4))
        resolution, channels, skips = config.image, config.channels, [config.channels]
        levels = [config.channels * multiplier for multiplier in config.multipliers]
        for level, wide in enumerate(levels):
            steps = nn.ModuleList()
            for _ in range(config.blocks):
                steps.append(Step(config, resolution, channels, wide))
                channels = wide
                skips.append(channels)
            self.down.append(steps)
            if level < len(levels) - 1:
                # As many zeros before an image as after it, where JAX has them all after it.
                self.halve.append(nn.Conv2d(channels, channels, 3, 2, padding=1))
                skips.append(channels)
                resolution //= 2
        self.middle_in, self.middle_out = Residual(config, channels, channels), Residual(config, channels, channels)
        self.middle_attention = ImageAttention(config, channels)
        for level, wide in reversed(list(enumerate(levels))):
            steps = nn.ModuleList()
            for _ in range(config.blocks + 1):
                steps.append(Step(config, resolution, channels + skips.pop(), wide))
                channels = wide
            self.up.append(steps)
            if level > 0:
                self.doubling.append(nn.Conv2d(channels, channels, 3, padding=1))
                resolution *= 2
        self.norm = nn.GroupNorm(config.groups, channels, eps=1e-6)
        self.conv_out = nn.Conv2d(channels, 3, 3, padding=1)

    def embedded(self, time: torch.Tensor) -> torch.Tensor:
        half = self.channels // 2
        frequencies = torch.exp(-math.log(10_000) * torch.arange(half) / (half - 1))
        angles = time[:, None].float() * frequencies
        return self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))

    def forward(self, images: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        time = self.embedded(time)
        x = self.conv_in(images)
        skips = [x]
        for level, steps in enumerate(self.down):
            for step in steps:
                x = step(x, time)
                skips.append(x)
            if level < len(self.halve):
                x = self.halve[level](x)
                skips.append(x)
        x = self.middle_out(self.middle_attention(self.middle_in(x, time)), time)
        for level, steps in enumerate(self.up):
            for step in steps:
                x = step(torch.cat([x, skips.pop()], dim=1), time)
            if level < len(self.doubling):
                x = self.doubling[level](functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.conv_out(functional.silu(self.norm(x)))
