"""Importing: the time to load and trace, peak memory, and speed against ONNX Runtime and the Flax modules that were
exported. `bench_growth` has the growth with the number of nodes.

`python -m benchmarks.bench_importer [model ...]` times these examples at their published sizes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile

from benchmarks.measure import run, table

MODELS = ("resnet50", "mobilenet_v2", "vit_b16", "bert_base", "gpt2", "llama", "lstm", "moe")
LENGTHS = (128, 5)
"""Of texts. Of a short one the time is that of reading the weights, which ONNX Runtime has packed when it loads them."""

EXPORT = """
import jaxport
from examples.models import build
example = build({name!r}, {framework!r}, "real")
exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
exported.save({path!r}, external_data={external})
"""
LOAD = """
import resource, time
import jax, jax.numpy as jnp, numpy as np
import jaxport, jaxport.importer
jnp.ones(3).block_until_ready()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, start = peak(), time.process_time()
program = jaxport.from_onnx({path!r})
loaded = time.process_time()
params = program.params
read = time.process_time()
jax.jit(program.apply).lower(program.param_specs, jax.ShapeDtypeStruct((1, 64), np.int32))
lowered = time.process_time()
after = peak()
checksum = sum(float(jnp.sum(array)) for array in params.values())  # what is mapped is read now
weights = sum(array.nbytes for array in params.values())
result = {{"load": loaded - start, "read": read - loaded, "trace": lowered - read, "weights_mb": weights / 2**20,
          "above": (after - before) / weights, "all": (peak() - before) / weights}}
"""
SPEED = """
import jax
import numpy as np
from flax import nnx
import jaxport
from benchmarks.measure import in_turns
from examples.models import build
from jaxport.verify import difference
from jaxport.verify.importing import Comparison
from jaxport.verify.running import Run
example = build({name!r}, {framework!r}, "real")
exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
program = jaxport.from_onnx(exported.model)
comparison = Comparison(program, threads=1)
sizes = {{key: {length} if key == "T" else size for key, size in example.sizes[0].items()}}
sample = example.sample(np.random.default_rng(0), sizes)
made = Run(sizes, exported.flatten(sample, {{}}))
graphdef, state = nnx.split(example.fn)
written = jax.jit(lambda state, *inputs: nnx.merge(graphdef, state)(*inputs)).lower(state, *sample).compile()
calls = [comparison.in_jax(made), comparison.in_runtime(made), lambda: jax.block_until_ready(written(state, *sample))]
pairs = zip(*(call() for call in calls[:2]), strict=True)
calls[2]()
ours, theirs, flax = in_turns(calls, {repeats})
result = {{"jax_ms": ours, "runtime_ms": theirs, "ratio": ours / theirs, "flax": ours / flax,
          "error": max(difference(theirs, ours).relative for ours, theirs in pairs)}}
"""


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for external in (False, True):
            path = f"{folder}/gpt2.onnx"
            run(EXPORT.format(name="gpt2", framework="nnx", path=path, external=external))
            found = run(LOAD.format(path=path))
            keys = ("load", "read", "trace", "weights_mb", "above", "all")
            rows.append(("external" if external else "inside", *(found[key] for key in keys)))
    header = ["weights", "load, s", "read, s", "trace, s", "MB", "peak above, x weights", "the same, once all are used"]
    table("Loading GPT-2 small", header, rows)

    for length in LENGTHS:
        rows = []
        for name in sys.argv[1:] or MODELS:
            found = run(SPEED.format(name=name, framework="nnx", length=length, repeats=9))
            rows.append((name, *(found[key] for key in ("jax_ms", "runtime_ms", "ratio", "flax", "error"))))
            print(rows[-1], file=sys.stderr, flush=True)
        median = statistics.median(row[3] for row in rows)
        table(
            f"CPU time of a call, one thread, texts of {length}: median ratio {median:.2f}",
            ["model", "imported, ms", "ONNX Runtime, ms", "ratio", "to Flax as it was written", "largest error"],
            rows,
        )


if __name__ == "__main__":
    main()
