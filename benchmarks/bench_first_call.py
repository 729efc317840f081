"""The first call of an imported model, which compiles it, against `jax.jit` of the same program and against running it
operator by operator.

`python -m benchmarks.bench_first_call [file.onnx ...]` times these files; without any, the examples at their small sizes.
The inputs have the sizes that a file declares, and 1 where it declares none for the first axis, 64 for others.
"""

from __future__ import annotations

import statistics
import sys
import tempfile

from benchmarks.measure import run, table

EXAMPLES = ("mobilenet_v2", "resnet50", "bert_base", "gpt2", "lstm", "moe")
FILE = """
import jaxport
from examples.models import build
example = build({name!r}, "nnx", "small")
jaxport.to_onnx(example.fn, list(example.inputs), **example.options).save({path!r})
"""
CALL = """
import time
import jax, jax.numpy as jnp, numpy as np
import jaxport
from jaxport.importer.running.evaluate import observing
jnp.ones(3).block_until_ready()
program = jaxport.from_onnx({path!r})
generator = np.random.default_rng(0)
inputs = []
for value in program.inputs:
    shape = [size if isinstance(size, int) else 64 if axis else 1 for axis, size in enumerate(value.shape.dims)]
    dtype = value.dtype.numpy()
    inputs.append((generator.standard_normal(shape) if np.dtype(dtype).kind == "f" else np.ones(shape)).astype(dtype))
program.params
start = time.process_time()
if {how!r} == "call":
    result = program(*inputs)
elif {how!r} == "jit":
    result = jax.jit(program.apply)(program.params, *inputs)
else:
    with observing(lambda *_: None):
        result = program(*inputs)
jax.block_until_ready([leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)])
first = time.process_time()
for _ in range(5):
    again = program(*inputs) if {how!r} == "call" else None
result = {{"first": first - start, "next": (time.process_time() - first) / 5}}
"""


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = sys.argv[1:]
        if not files:
            files = [f"{folder}/{name}.onnx" for name in EXAMPLES]
            for name, path in zip(EXAMPLES, files, strict=True):
                run(FILE.format(name=name, path=path))
        for path in files:
            found = {how: run(CALL.format(path=path, how=how)) for how in ("call", "jit", "operators")}
            first = [found[how]["first"] for how in ("call", "jit", "operators")]
            name = path.rpartition("/")[2]
            rows.append((name, *first, first[0] / first[1], first[2] / first[0], 1000 * found["call"]["next"]))
            print(rows[-1], file=sys.stderr, flush=True)
    median = statistics.median(row[4] for row in rows)
    table(
        f"CPU seconds of the first call, one thread: median ratio to `jax.jit` {median:.2f}",
        ["model", "program(x)", "jax.jit", "operator by operator", "to jax.jit", "operators to it", "next call, ms"],
        rows,
    )


if __name__ == "__main__":
    main()
