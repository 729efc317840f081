"""Write modules of PyTorch that are not trained as small files: `python -m tests.torch.fresh tests/codegen/fresh`.

`tests.codegen.test_fresh` reads them: what is printed must not depend on what the weights are. `NAME.dynamo.onnx` is what
`torch.onnx.export` writes, `NAME.plain.onnx` the same without its optimizer, and `NAME.legacy.onnx` is of the older exporter.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """A block of a residual network, whose convolutions have no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + x)


class Upsampling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.ConvTranspose2d(4, 4, 2, stride=2, bias=False), nn.GroupNorm(2, 4)
        self.line = nn.Conv2d(4, 2, 1)
        nn.init.zeros_(self.line.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(torch.relu(self.norm(self.up(x))))


class Lines(nn.Module):
    """Batch normalization of rows and of lines."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 4, 3, bias=False), nn.BatchNorm1d(4)
        self.head, self.last = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.head(torch.relu(self.norm(self.conv(x))).mean(2)))


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))
        self.register_buffer("e_score_correction_bias", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.sigmoid(x @ self.weight.T)
        return scores.gather(-1, torch.topk(scores + self.e_score_correction_bias, 2, dim=-1).indices)


class Codes(nn.Module):
    """A codebook, which training fills, beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 3)
        self.register_buffer("codebook", torch.zeros(8, 3))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(x)
        distances = (y.unsqueeze(-2) - self.codebook).pow(2).sum(-1)
        return self.codebook[distances.argmin(-1)] * self.scale + y


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.utils.spectral_norm(nn.Linear(4, 6))
        self.down = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Adapted(nn.Module):
    """A linear layer with a fresh adapter, and numbers that begin at one and zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(4, 6), nn.Linear(4, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.gain, self.shift = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))
        self.first, self.second = nn.Parameter(torch.zeros(6, 4)), nn.Parameter(torch.zeros(6, 4))
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.base.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = (self.base(x) + self.up(self.down(x))) * self.gain + self.shift
        return y @ self.first + torch.relu(y) @ self.second


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.gamma = nn.Parameter(torch.full((8,), 1e-6))
        for part in (self.query, self.key, self.value, self.out, self.up, self.down):
            nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.gamma * self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Language(nn.Module):
    """Two layers between a table and a head, which are tied; positions begin at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.positions = nn.Parameter(torch.zeros(1, 5, 8))
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head, self.slope = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2), nn.PReLU(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.slope(self.head(self.lstm(x)[0][:, -1]))


class BothWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 3, bidirectional=True, batch_first=True)
        self.lstm = nn.LSTM(6, 2, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.gru(x)[0])[0]


Made = tuple[Callable[[], nn.Module], Callable[[], Tensor], tuple[str, ...]]
EVERY = ("plain", "dynamo", "legacy")
MODULES: dict[str, Made] = {
    "residual": (Residual, lambda: torch.randn(2, 4, 6, 6), EVERY),
    "upsampling": (Upsampling, lambda: torch.randn(2, 4, 6, 6), EVERY),
    "lines": (Lines, lambda: torch.randn(2, 4, 6), EVERY),
    "router": (Router, lambda: torch.randn(3, 4), ("plain", "dynamo")),
    "codes": (Codes, lambda: torch.randn(3, 4), ("plain", "dynamo")),
    "spectral": (Spectral, lambda: torch.randn(3, 4), ("plain", "dynamo")),
    "adapted": (Adapted, lambda: torch.randn(3, 4), EVERY),
    "language": (Language, lambda: torch.arange(10).reshape(2, 5), EVERY),
    "recurrent": (Recurrent, lambda: torch.randn(2, 5, 4), ("plain", "legacy")),
    "both_ways": (BothWays, lambda: torch.randn(2, 5, 4), ("plain", "legacy")),
}  # fmt: skip


def export(name: str, exporter: str, folder: Path) -> Path:
    make, example, _ = MODULES[name]
    torch.manual_seed(0)
    module, path = make().eval(), folder / f"{name}.{exporter}.onnx"
    if exporter == "legacy":
        torch.onnx.export(module, (example(),), path, dynamo=False, opset_version=17)
    else:
        options = {"opset_version": 23, "optimize": exporter == "dynamo", "verbose": False}
        torch.onnx.export(module, (example(),), path, dynamo=True, external_data=False, **options)
    model = onnx.load(path)
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.initializer):
        kept = [
            entry for entry in part.metadata_props if re.search(r"InputSpec|_scopes|_hierarchy|folded_from", entry.key)
        ]
        del part.metadata_props[:]  # where PyTorch was called from, among others
        part.metadata_props.extend(kept)
        part.doc_string = ""
    onnx.save(model, path)
    return path


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for name, (_, _, exporters) in MODULES.items():
        for exporter in exporters:
            print(export(name, exporter, Path(sys.argv[1])))
