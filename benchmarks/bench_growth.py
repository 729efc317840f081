"""How the time of each step grows with the number of nodes: of a chain, of one with names, and of a graph that is wide.

`python -m benchmarks.bench_growth [SHAPE …] [--nodes 10000 30000 100000]` prints, for each shape, the CPU seconds that it
takes to load a file, to show it, to explain it, to trace it, to print it for JAX, for Flax and for Burn, and to export it again. A step whose
time grows with the nodes has one number of microseconds per node in all rows.
"""

from __future__ import annotations

import argparse

from benchmarks.measure import run, table

SHAPES = {
    "chain": "a chain of elementwise operators",
    "named": "a chain of products with weights, named after modules",
    "shared": "a chain of sums with one weight",
    "wide": "products of one input, which are added",
}
STEPS = ("load", "show", "explain", "trace", "print jax", "print nnx", "print burn", "export")
LARGEST_PRINTED = 30_000
"""Sources of more nodes are not printed: nobody reads a million lines."""

PROGRAM = """
import time
import jax, numpy as np, onnx_ir as ir
import jaxport
from jaxport import Limits, from_onnx
from jaxport.errors import JaxportError
count, shape = {count}, {shape!r}
nodes, initializers = [], []

def made(op_type, *inputs, **named):
    nodes.append(ir.node(op_type, list(inputs), **named))
    (value,) = nodes[-1].outputs
    value.name, value.shape, value.type = f"v{{len(nodes)}}", ir.Shape([2, 4]), ir.TensorType(ir.DataType.FLOAT)
    return value

def weight(name):
    array = np.eye(4, dtype=np.float32)
    initializers.append(ir.Value(name=name, const_value=ir.tensor(array, name=name), shape=ir.Shape([4, 4]),
                                 type=ir.TensorType(ir.DataType.FLOAT)))
    return initializers[-1]

value = x = ir.Value(name="x", shape=ir.Shape([2, 4]), type=ir.TensorType(ir.DataType.FLOAT))
if shape == "chain":
    for index in range(count):
        value = made(("Neg", "Sin", "Tanh")[index % 3], value)
elif shape == "shared":
    one = weight("w")
    for index in range(count):
        value = made(("Add", "Sub")[index % 2], value, one)
elif shape == "named":
    for index in range(count // 2):
        value = made("Relu", made("MatMul", value, weight(f"layers.{{index}}.weight"), name=f"/layers.{{index}}/MatMul"),
                     name=f"/layers.{{index}}/Relu")
else:
    many = [made("Mul", x, made("Sin", x)) for _ in range(count // 2)]
    value = made("Sum", *many)
graph = ir.Graph([x], [value], nodes=nodes, initializers=initializers, opset_imports={{"": 18}}, name="graph")
data = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
result, program = {{}}, None
limits = Limits(operations=10 * count)

def step(name, function):
    start = time.process_time()
    try:
        found = function()
    except JaxportError as error:
        result[name], found = str(error).splitlines()[0], None
    else:
        result[name] = time.process_time() - start
    return found

program = step("load", lambda: from_onnx(data, limits=limits))
step("show", lambda: str(program))
step("explain", lambda: str(program.explain()))
step("trace", lambda: jax.make_jaxpr(program)(np.ones((2, 4), np.float32)))
if count <= {largest}:
    for framework in ("jax", "nnx", "burn"):
        step(f"print {{framework}}", lambda: program.to_source(framework=framework))
step("export", lambda: jaxport.to_onnx(program, [(2, 4)]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("shapes", nargs="*", choices=[[], *SHAPES])
    parser.add_argument("--nodes", nargs="*", type=int, default=[10_000, 30_000, 100_000])
    arguments = parser.parse_args()
    for shape in arguments.shapes or SHAPES:
        rows = []
        for count in arguments.nodes:
            found = run(PROGRAM.format(count=count, shape=shape, largest=LARGEST_PRINTED))
            seconds = [*(found.get(step, "") for step in STEPS), f"{found['peak_mb']:.0f}"]
            rows.append((count, *(f"{s:.1f} ({1e6 * s / count:.0f})" if isinstance(s, float) else s for s in seconds)))
            print(rows[-1], flush=True)
        table(f"{SHAPES[shape]}: seconds (microseconds per node)", ["nodes", *STEPS, "peak MB"], rows)


if __name__ == "__main__":
    main()
