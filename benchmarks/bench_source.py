"""Structured source: how long printing takes as a model grows, how much of a file it covers, and how many lines it is.

python -m benchmarks.bench_source                # BERT of 2 to 12 layers of width 768, as we export it
python -m benchmarks.bench_source FILE.onnx …    # files
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxport
from benchmarks.measure import table
from jaxport.codegen.recorded.fused import record_fused
from jaxport.codegen.structure.modules.build import build
from jaxport.codegen.structure.modules.scopes import node_chains
from jaxport.codegen.tree import Layer, Module, Op, Weight
from jaxport.importer.program import Program

WIDTH, HEADS, WORDS = 768, 12, 30522


@dataclass(frozen=True)
class Coverage:
    """How much of a program the layers and modules of its tree are.

    What the printer adds, such as the transposes that put channels last, is no operator of the file.

    Attributes:
      nodes: the part of its operators, after folding, that are layers or in modules below the model.
      placed: the same, of the operators that the file places in a module with weights: a model's own `forward` is in the
        model's class, and a pooling or an activation is a function there.
      weights: the part of the elements of its floating-point tensors that layers have; tables that nobody trains, such as
        the sines of positions, are not counted.
    """

    nodes: float
    placed: float
    weights: float


def coverage(program: Program, inputs: Mapping[str, Any] | None = None) -> Coverage:
    """How much of a program, recorded with such inputs, is in layers and modules."""
    tree, _ = build(record_fused(program, inputs))
    _, chains = node_chains(program.places)
    names_modules = any(chains.values())
    heavy = {module.path for module in program.modules.walk() if module.path and module.parameters}
    inside = outside = own = in_layers = loose = 0
    for module in tree.walk():
        for item in module.parts:
            if isinstance(item, Layer):
                in_layers += sum(_elements(weight) for weight in item.weights.values())
            if isinstance(item, Op) and item.step.name == "jnp.transpose" and item.operator != "Transpose":
                continue
            if isinstance(item, Layer | Op):
                named = isinstance(item, Layer) or module is not tree
                inside, outside = inside + named, outside + (not named)
            if isinstance(item, Op) and module is tree:
                own += names_modules and heavy.isdisjoint(chains.get(item.step.node, ()))
        in_layers += sum(_elements(weight) for layer in module.uncalled for weight in layer.weights.values())
        loose += _loose(module)
    placed = inside / max(inside + outside - own, 1)
    return Coverage(inside / max(inside + outside, 1), placed, in_layers / max(in_layers + loose, 1))


def _elements(weight: Weight) -> int:
    return int(np.prod(weight.shape)) if weight.dtype.kind == "f" else 0


def _loose(module: Module) -> int:
    return sum(_elements(weight) for weight in module.weights.values() if isinstance(weight, Weight) and weight.trained)


def bert(layers: int, width: int = WIDTH, words: int = WORDS, heads: int = HEADS) -> Program:
    """A BERT of fresh weights, as `to_onnx` writes it."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.query, self.key, self.value, self.output = (nnx.Linear(width, width, rngs=rngs) for _ in range(4))
            self.wide, self.narrow = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)
            self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])

        def __call__(self, x: jax.Array) -> jax.Array:
            shape = (*x.shape[:2], heads, width // heads)
            parts = [part(x).reshape(shape) for part in (self.query, self.key, self.value)]
            x = self.norms[0](x + self.output(jax.nn.dot_product_attention(*parts).reshape(x.shape)))
            return self.norms[1](x + self.narrow(jax.nn.gelu(self.wide(x))))

    class Bert(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.words = nnx.Embed(words, width, rngs=rngs)
            self.layers = nnx.List([Block(rngs) for _ in range(layers)])

        def __call__(self, ids: jax.Array) -> jax.Array:
            x = self.words(ids)
            for layer in self.layers:
                x = layer(x)
            return x

    exported = jaxport.to_onnx(Bert(nnx.Rngs(0)), [jax.ShapeDtypeStruct(("batch", "length"), np.int32)])
    return jaxport.from_onnx(exported.model)


def main() -> None:
    programs: dict[str, Any] = {name: jaxport.from_onnx(name) for name in sys.argv[1:]}
    for layers in () if programs else (2, 4, 8, 12):
        programs[f"BERT, {layers} layers"] = bert(layers)
    rows = []
    for name, program in programs.items():
        begin = time.process_time()
        source = program.to_source(framework="nnx")
        seconds, covered = time.process_time() - begin, coverage(program)
        classes = source.code.partition("\ndef load(")[0]
        lines = sum(bool(line.strip()) for line in classes.splitlines())
        rows.append((Path(name).name, seconds, lines, 100 * covered.nodes, 100 * covered.weights))
    table("Structured source", ["model", "CPU seconds", "lines of code", "% of nodes", "% of weights"], rows)


if __name__ == "__main__":
    main()
