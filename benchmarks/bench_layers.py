"""Export time over the number of transformer layers, and against jax2onnx: CPU time, of a first export and of later ones."""

from __future__ import annotations

from benchmarks.measure import PEERS, have_peers, median, table

#: A plain pre-norm transformer in Flax NNX, the same for both exporters.
MODEL = """
import time, jax, jax.numpy as jnp
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
    start = time.process_time()
    export(model)
    return time.process_time() - start
"""
OURS = "import jaxport\nexport = lambda model: jaxport.to_onnx(model, [('B', 16, 64)])\n"
THEIRS = "from jax2onnx import to_onnx\nexport = lambda model: to_onnx(model, [('B', 16, 64)])\n"
LAYERS = (2, 4, 8, 16, 32)
PLAIN = 8


def seconds(exporter: str, layers: int, python: object = None, repeats: int = 3, warm: bool = True) -> float:
    """The CPU seconds of an export: of the second one in a process, or of the first, with what it imports."""
    before = "timed(export, 2)\n" if warm else "start = time.process_time()\n"
    measured = f"timed(export, {layers})" + ("" if warm else " and time.process_time() - start")
    program = MODEL + (exporter + before if warm else before + exporter) + f"result = {{'export': {measured}}}\n"
    return median(program, "export", repeats, **({"python": python} if python else {}))


def main() -> None:
    ours = {layers: seconds(OURS, layers) for layers in LAYERS}
    theirs = {n: seconds(THEIRS, n, PEERS, repeats=1) for n in LAYERS} if have_peers() else {}
    rows = []
    for before, layers in zip((None, *LAYERS), LAYERS, strict=False):
        growth = ours[layers] / ours[before] if before else ""
        rows.append((layers, ours[layers], growth, theirs.get(layers, ""), theirs and ours[layers] / theirs[layers]))
    header = ["layers", "CPU seconds", "growth per doubling", "jax2onnx: CPU seconds", "ratio to jax2onnx"]
    table("Export time over layers", header, rows)
    first = seconds(OURS, PLAIN, warm=False)
    peer = seconds(THEIRS, PLAIN, PEERS, repeats=1, warm=False) if have_peers() else None
    header = ["layers", "CPU seconds", "jax2onnx: CPU seconds", "ratio to jax2onnx"]
    table("The first export of a process", header, [(PLAIN, first, peer or "", first / peer if peer else "")])


if __name__ == "__main__":
    main()
