"""A Llama of 1.1 billion parameters: seconds and memory of exporting, saving, `verify`, loading and the first token.

`python -m benchmarks.bench_real [--types float32 bfloat16 float16] [--layers 22] [--mapped]`; memory is what a process allocates, without
the files that are mapped into it, in units of the weights: above the weights that the model holds while it is exported, and in
all after it was loaded. `--mapped` takes weights that are mapped from files, saves the model, and loads, prints and saves it again,
without running it: with `--hidden 4096 --layers 32 --mlp 14336`, 7 billion.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.measure import run, table

TYPES = ("float32", "bfloat16", "float16")

COMMON = """
import functools, os, threading, time
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
import jaxport
from examples import language_model
from examples.models.llama import Config, rotary_embedding

FOLDER, DTYPE, result = Path({folder!r}), jnp.dtype({dtype!r}), {{}}
config = Config(vocabulary=32000, hidden={hidden}, layers={layers}, heads={hidden} // 64, groups={hidden} // 512, mlp={mlp}, new_tokens=4)
inputs = jaxport.decoder_inputs(config.layers, config.groups, config.head, dtype=DTYPE)
language_model.rotary_embedding = lambda x, *angles: rotary_embedding(x, *angles).astype(x.dtype)

def allocated():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

peak = 0
def watch():
    global peak
    while True:
        peak = max(peak, allocated())
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()

def measured(name, function):
    global peak
    peak, start = allocated(), time.perf_counter()
    value = function()
    seconds = time.perf_counter() - start
    result[name] = [seconds, peak]
    return value

def filled(draw):
    abstract = nnx.eval_shape(lambda: language_model.Llama(config, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(abstract)
    model = nnx.merge(graphdef, jax.tree.map(lambda a: draw(a.shape) if a.ndim else a, state))
    for part in vars(model).values():
        if isinstance(part, nnx.Embed):
            part.dtype = DTYPE
    return model
"""

DRAWN = """
random = np.random.default_rng(0)
def draw(shape):
    if len(shape) == 1:
        return jnp.ones(shape, DTYPE)
    return jnp.asarray(random.standard_normal(shape, np.float32) / np.sqrt(shape[0] if shape[0] != 32000 else 1), DTYPE)
"""

MAPPED = """
def draw(shape):
    draw.count = getattr(draw, "count", 0) + 1
    return np.memmap(FOLDER / f"weight {draw.count}", DTYPE, "w+", shape=shape)
"""

EXPORT = """
model = filled(draw)
result["weights"] = sum(a.nbytes for a in jax.tree.leaves(nnx.state(model, nnx.Param)))
jaxport.to_onnx(jnp.tanh, [(3,)])  # what is imported on the first call
result["held"] = allocated()
exported = measured("export", lambda: jaxport.to_onnx(model, inputs, target="onnxruntime"))
measured("save", lambda: exported.save(FOLDER / "model.onnx", external_data=True))
"""

VERIFY = """
assert measured("verify", exported.verify).ok
"""

USE = """
program = measured("load", lambda: jaxport.from_onnx(FOLDER / "model.onnx"))
cache = [jnp.zeros((1, config.groups, 0, config.head), DTYPE)] * (2 * config.layers)
given = [np.array([[3, 17, 22]]), np.ones((1, 3), np.int64), np.arange(3)[None], *cache]
measured("first token", lambda: jax.block_until_ready(program(*given)))
"""

PASSED_ON = """
jaxport.from_onnx(jaxport.to_onnx(jnp.tanh, [(3,)]).model).to_source(framework="nnx")  # what is imported on the first call
result["held"] = allocated()
program = measured("load", lambda: jaxport.from_onnx(FOLDER / "model.onnx"))
measured("source", lambda: program.to_source(FOLDER / "source", framework="nnx"))
for file in (FOLDER / "source").iterdir():
    file.unlink()
again = measured("export again", lambda: jaxport.to_onnx(program, jax.tree.leaves(inputs), target="onnxruntime"))
measured("save again", lambda: again.save(FOLDER / "again.onnx", external_data=True))
"""


def rows(options: argparse.Namespace, dtype: str) -> list[list[object]]:
    """The rows of a type: its stages."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = {name: getattr(options, name) for name in ("hidden", "layers", "mlp")}
        common = COMMON.format(folder=folder, dtype=dtype, **sizes)
        made = run(common + (MAPPED + EXPORT if options.mapped else DRAWN + EXPORT + VERIFY))
        stages = {name: (*made[name], made["held"]) for name in ("export", "save", "verify") if name in made}
        used = run(common + (PASSED_ON if options.mapped else USE))
        stages |= {name: (*value, used.get("held", 0)) for name, value in used.items() if isinstance(value, list)}
        written = sum(file.stat().st_size for file in Path(folder).glob("model.onnx*"))
    weights = made["weights"]
    print(f"{dtype}: {weights / 2**30:.2f} GB of weights, {written / 2**30:.2f} GB written", flush=True)
    return [
        [dtype, name, f"{seconds:.1f}", f"{max(0, peak - held) / weights:.2f}"]
        for name, (seconds, peak, held) in stages.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--mlp", type=int, default=5632)
    parser.add_argument("--mapped", action="store_true")
    options = parser.parse_args()
    made = [row for dtype in options.types for row in rows(options, dtype)]
    table("Real sizes", ["type", "stage", "seconds", "memory ÷ weights"], made)


if __name__ == "__main__":
    main()
