"""Export time over the number of transformer layers: CPU time, of a first export of a process and of later ones.

It is compared with `jax.make_jaxpr` of the same model, in turns in one process, and with jax2onnx in another. Garbage is
collected before each turn, so that none pays for what another one left.
"""

from __future__ import annotations

import os
import sys

from benchmarks.measure import PEERS, have_peers, median, run, table

#: A plain pre-norm transformer in Flax NNX, the same for both exporters.
MODEL = """
import gc, time, jax, jax.numpy as jnp
from flax import nnx

class Layer(nnx.Module):
    def __init__(self, rngs, width=64):
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))

class Transformer(nnx.Module):
    def __init__(self, layers):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([Layer(rngs) for _ in range(layers)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def timed(export, layers):
    model = Transformer(layers)
    gc.collect()
    start = time.process_time()
    export(model)
    return time.process_time() - start

def trace(model):
    (batch,) = jax.export.symbolic_shape("B")
    jax.make_jaxpr(lambda x: model(x))(jax.ShapeDtypeStruct((batch, 16, 64), jnp.float32))
"""
OURS = "import jaxport\nexport = lambda model: jaxport.to_onnx(model, [('B', 16, 64)])\n"
THEIRS = "from jax2onnx import to_onnx\nexport = lambda model: to_onnx(model, [('B', 16, 64)])\n"
LAYERS = (2, 4, 8, 16, 32)
PLAIN = 8
WARM = """
for _ in range(2):
    timed(export, 2), timed(trace, 2)
turns = [(timed(export, {layers}), timed(trace, {layers})) for _ in range({turns})]
result = dict(zip(("export", "trace"), map(statistics.median, zip(*turns))))
"""
COLD = """
timed(export, {layers})
result = {{"export": time.process_time() - start}}
"""


def warm(exporter: str, layers: int, python: str | os.PathLike[str] = sys.executable) -> dict[str, float]:
    """The median CPU seconds of an export and of a trace, in turns in a process that has done both before."""
    return run("import statistics" + MODEL + exporter + WARM.format(layers=layers, turns=7), python)


def cold(exporter: str, python: str | os.PathLike[str] = sys.executable, repeats: int = 3) -> float:
    """The CPU seconds of the first export of a process, with what it imports."""
    program = f"{MODEL}start = time.process_time()\n{exporter}{COLD.format(layers=PLAIN)}"
    return median(program, "export", repeats, python)


def main() -> None:
    rows, before = [], None
    for layers in LAYERS:
        ours, theirs = warm(OURS, layers), warm(THEIRS, layers, PEERS)["export"] if have_peers() else None
        export, growth = ours["export"], ours["export"] / before if before else ""
        peer = (theirs, export / theirs) if theirs else ("", "")
        rows.append((layers, export, growth, export / ours["trace"], *peer))
        before = export
    header = [
        "layers", "CPU seconds", "growth per doubling", "ratio to `jax.make_jaxpr`",
        "jax2onnx: CPU seconds", "ratio to jax2onnx",
    ]  # fmt: skip
    table("Export time over layers", header, rows)
    first = cold(OURS)
    peer = cold(THEIRS, PEERS, repeats=1) if have_peers() else None
    header = ["layers", "CPU seconds", "jax2onnx: CPU seconds", "ratio to jax2onnx"]
    table("The first export of a process", header, [(PLAIN, first, peer or "", first / peer if peer else "")])


if __name__ == "__main__":
    main()
