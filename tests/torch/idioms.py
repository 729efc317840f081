"""Write small modules of PyTorch as files: `python -m tests.torch.idioms tests/codegen/idioms`.

Each has something for which printed source has one line, which `tests.codegen.test_idioms` reads.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

import jaxport


class Made(NamedTuple):
    """A module, example arguments, and their open sizes."""

    make: Callable[[], nn.Module]
    args: tuple[Tensor, ...]
    shapes: list[tuple[Any, ...]]


class Computed(nn.Module):
    """A module that computes a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor | None = None, z: Tensor | None = None) -> Any:
        return self.function(*(one for one in (x, y, z) if one is not None))


def scaled(x: Tensor, weight: Tensor) -> Tensor:
    """Columns that are written in place."""
    x = x.clone()
    x[..., 0] = x[..., 0] / weight
    x[..., 1] += 2
    return x


def shifted(ids: Tensor) -> Tensor:
    """The tokens that a decoder is given: moved by one."""
    moved = ids.new_zeros(ids.shape)
    moved[:, 1:] = ids[:, :-1].clone()
    moved[:, 0] = 2
    return moved


def erased(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, :, 2:4] = 0.0
    x[:, ::2] = 1.0
    return x


def replaced(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x[:, i] = y
    return x


def routed(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The best experts of the best groups."""
    groups = scores.view(-1, 2, 4).topk(2, -1)[0].sum(-1)
    chosen = torch.zeros_like(groups).scatter_(1, groups.topk(1, -1, sorted=False)[1], 1)
    kept = scores.masked_fill(~chosen[:, :, None].expand(-1, 2, 4).reshape(-1, 8).bool(), 0.0)
    places = kept.topk(2, -1, sorted=False)[1]
    return scores.gather(1, places), places


def hot(i: Tensor) -> Tensor:
    rows = torch.zeros(6, 4)
    rows[i] = 1.0
    return rows


def waves(t: Tensor) -> Tensor:
    """Positions of diffusion, whose cosines go first."""
    angle = t[:, None].float() * torch.exp(torch.arange(8) / -8.0)[None]
    both = torch.cat([angle.sin(), angle.cos()], -1)
    return torch.cat([both[:, 8:], both[:, :8]], -1)


class Attention(nn.Module):
    """Attention whose scores are spelled out, with what is added to them."""

    def __init__(self, bias: Callable[[Attention, Tensor, Tensor], Tensor], is_masked: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.relative, self.bias, self.is_masked = nn.Embedding(8, 2), bias, is_masked

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, 2, 8).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        places = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        scores = query @ key.transpose(-1, -2) + self.bias(self, places, mask)
        if self.is_masked:
            scores = scores.masked_fill(places > 0, -torch.inf)
        weights = scores.float().softmax(-1).type_as(scores)
        return self.out((weights @ value).transpose(1, 2).reshape(batch, length, 16))


def relative(attention: Attention, places: Tensor, mask: Tensor) -> Tensor:
    """What T5 adds: a learned number of each distance, and a low one where nothing is."""
    learned = attention.relative(places.clamp(-4, 3) + 4).permute(2, 0, 1)[None]
    return learned + (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min


def slopes(_: Attention, places: Tensor, mask: Tensor) -> Tensor:
    """What ALiBi adds: the distance, by a slope of each head."""
    return torch.tensor([0.5, 0.25]).view(1, 2, 1, 1) * places.float() + 0.0 * mask[:, None, None, :].float()


def shared(queries: Tensor, keys: Tensor) -> Tensor:
    """Attention to one head of keys, which all heads of queries share."""
    return nn.functional.scaled_dot_product_attention(queries, keys, keys, is_causal=True)


def ends(x: Tensor) -> Tensor:
    """The end of a table: as much of it as there is of what it is added to, as MPT does."""
    table = torch.arange(64.0).sin()
    return x + table[max(0, len(table) - x.shape[1]) :, None]


X = torch.arange(30.0).reshape(2, 3, 5).sin()
OPEN = ("batch", "length", 5)
MODULES: dict[str, Made] = {
    "scaled": Made(lambda: Computed(scaled), (X, torch.tensor([[1.0, 2, 3], [4, 5, 6]])), [OPEN, ("batch", "length")]),
    "shifted": Made(lambda: Computed(shifted), (torch.tensor([[3, 4, 5], [6, 7, 8]]),), [("batch", "length")]),
    "erased": Made(lambda: Computed(erased), (X,), [OPEN]),
    "replaced": Made(lambda: Computed(replaced), (X, torch.tensor([0, 2]), X[:, :2].neg()), [("batch", 3, 5), ("count",), ("batch", "count", 5)]),
    "routed": Made(lambda: Computed(routed), (torch.arange(32.0).reshape(4, 8).cos(),), [("rows", 8)]),
    "hot": Made(lambda: Computed(hot), (torch.tensor([1, 3]),), [("count",)]),
    "relative": Made(lambda: Attention(relative, False), (torch.arange(160.0).reshape(2, 5, 16).sin(), torch.tensor([[1] * 5, [1] * 3 + [0] * 2])),
        [("batch", "length", 16), ("batch", "length")]),
    "slopes": Made(lambda: Attention(slopes, True), (torch.arange(160.0).reshape(2, 5, 16).sin(), torch.ones(2, 5)),
        [("batch", "length", 16), ("batch", "length")]),
    "shared": Made(lambda: Computed(shared), (torch.arange(80.0).reshape(2, 4, 5, 2).sin(), torch.arange(20.0).reshape(2, 1, 5, 2).cos()),
        [("batch", 4, "length", 2), ("batch", 1, "length", 2)]),
    "ends": Made(lambda: Computed(ends), (X,), [OPEN]),
    "waves": Made(lambda: Computed(waves), (torch.tensor([3, 7]),), [("batch",)]),
}  # fmt: skip


def export(name: str, folder: Path) -> Path:
    """Write a module as a file."""
    make, args, shapes = MODULES[name]
    torch.manual_seed(0)
    program = jaxport.from_torch(make(), args, dynamic_shapes=shapes)
    model, path = ir.to_proto(program.model), folder / f"{name}.onnx"
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.initializer):
        kept = [entry for entry in part.metadata_props if re.search(r"InputSpec|_scopes|_hierarchy", entry.key)]
        del part.metadata_props[:]  # where PyTorch was called from, among others
        part.metadata_props.extend(kept)
        part.doc_string = ""
    onnx.save(model, path)
    return path


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in sys.argv[2:] or MODULES:
        print(export(name, Path(sys.argv[1])))
