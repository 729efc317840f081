"""Export time over the number of transformer layers: CPU time, of a first export of a process and of later ones.

It is compared with `jax.make_jaxpr` of the same model, in turns in one process, and with jax2onnx in another. Garbage is
collected before each turn, so that none pays for what another one left. Layers of plain JAX with open lengths follow, then
the way back: `jax.jit(program).lower` against that of the model, and source of more layers against that of four.

`python -m benchmarks.bench_export [forth] [back]` prints one part. `tests/export/test_call_budget.py` counts calls instead.
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
#: The same layers without modules: weights are closed over, lengths are open, and each layer makes its causal mask.
OPEN = """
import numpy as np

def Transformer(count, width=64, heads=4):
    draw = np.random.default_rng(0).standard_normal
    layers = [[jnp.asarray(0.05 * draw(shape), jnp.float32) for shape in (
        (width,), (width,), *4 * [(width, width)], (width, 4 * width), (4 * width, width))] for _ in range(count)]

    def normalized(x, scale):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale

    def model(x):
        batch, length, _ = x.shape
        for first, second, query, key, value, out, up, down in layers:
            y = normalized(x, first)
            query, key, value = (
                (y @ w).reshape(batch, length, heads, width // heads).swapaxes(1, 2) for w in (query, key, value))
            scores = query @ key.swapaxes(2, 3) / np.sqrt(width // heads)
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
            x = x + (jax.nn.softmax(scores) @ value).swapaxes(1, 2).reshape(batch, length, width) @ out
            x = x + jax.nn.gelu(normalized(x, second) @ up) @ down
        return x

    return model

def trace(model):
    batch, length = jax.export.symbolic_shape("B, T")
    jax.make_jaxpr(model)(jax.ShapeDtypeStruct((batch, length, 64), jnp.float32))
"""
#: What the way back takes, in milliseconds.
BACK = """
import jaxport
from benchmarks.measure import in_turns

x = jax.ShapeDtypeStruct((2, 16, 64), jnp.float32)
models = {count: Transformer(count) for count in (4, 16, 32)}
programs = {count: jaxport.from_onnx(jaxport.to_onnx(model, [x]).model) for count, model in models.items()}
lowers = [lambda: jax.jit(lambda x: programs[32](x)).lower(x), lambda: jax.jit(lambda x: models[32](x)).lower(x)]
prints = [lambda framework=framework, program=program: program.to_source(framework=framework)
          for framework in ("nnx", "burn") for program in programs.values()]
in_turns([*lowers, *prints], 1)
result = {"lower": in_turns(lowers, 7), "print": in_turns(prints, 3)}
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


def warm(
    exporter: str, layers: int, python: str | os.PathLike[str] = sys.executable, model: str = MODEL
) -> dict[str, float]:
    """The median CPU seconds of an export and of a trace, in turns in a process that has done both before."""
    return run("import statistics" + model + exporter + WARM.format(layers=layers, turns=7), python)


def cold(exporter: str, python: str | os.PathLike[str] = sys.executable, repeats: int = 3) -> float:
    """The CPU seconds of the first export of a process, with what it imports."""
    program = f"{MODEL}start = time.process_time()\n{exporter}{COLD.format(layers=PLAIN)}"
    return median(program, "export", repeats, python)


def back() -> None:
    found = run(MODEL + BACK)
    program, model = found["lower"]
    rows = [("`jax.jit(program).lower` to that of the model, 32 layers", program, program / model)]
    base = found["print"][0]
    names = [f"source for {framework}, {count} layers" for framework in ("NNX", "Burn") for count in (4, 16, 32)]
    rows += [(name, each, each / base) for name, each in zip(names, found["print"], strict=True)]
    table("The way back", ["step", "CPU milliseconds", "ratio to the model, or to NNX source of 4 layers"], rows)


def main() -> None:
    parts = sys.argv[1:] or ["forth", "back"]
    if "forth" in parts:
        forth()
    if "back" in parts:
        back()


def forth() -> None:
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
    opened = OURS.replace("'B', 16, 64", "'B', 'T', 64")
    plain = [(layers, warm(opened, layers, model=MODEL + OPEN)) for layers in (4, 32)]
    rows = [(layers, ours["export"], ours["export"] / ours["trace"]) for layers, ours in plain]
    table("Plain layers of open lengths", ["layers", "CPU seconds", "ratio to `jax.make_jaxpr`"], rows)
    first = cold(OURS)
    peer = cold(THEIRS, PEERS, repeats=1) if have_peers() else None
    header = ["layers", "CPU seconds", "jax2onnx: CPU seconds", "ratio to jax2onnx"]
    table("The first export of a process", header, [(PLAIN, first, peer or "", first / peer if peer else "")])


if __name__ == "__main__":
    main()
