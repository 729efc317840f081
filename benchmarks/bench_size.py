"""Whether what jaxport does with a file takes time in proportion to its nodes: chains, wide graphs, and nested functions.

python -m benchmarks.bench_size                  # 10,000, 30,000 and 100,000 nodes
python -m benchmarks.bench_size 1000 3000        # other numbers
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.measure import run, table

NODES = (10_000, 30_000, 100_000)
STEPS = {
    "import": "program = jaxport.from_onnx(model)",
    "inspect": "str(program.explain())",
    "trace": "jax.make_jaxpr(program)(x)",
    "print JAX": 'program.to_source(framework="jax")',
    "print NNX": 'program.to_source(framework="nnx")',
}


def _model(
    nodes: list[onnx.NodeProto], result: str, functions: list[onnx.FunctionProto] | None = None
) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    constant = numpy_helper.from_array(np.full(4, 0.5, np.float32), "c")
    formals = [value("x0", TensorProto.FLOAT, [4])], [value(result, TensorProto.FLOAT, [4])]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    graph = helper.make_graph(nodes, "g", *formals, [constant])
    return helper.make_model(graph, functions=functions or [], opset_imports=opsets, ir_version=10)


def chain(count: int) -> onnx.ModelProto:
    """Nodes one after the other, ten in a module, all of which share a constant."""
    operators = (("Add", ["c"]), ("Mul", ["c"]), ("Tanh", []))
    nodes = [
        helper.make_node(operators[n % 3][0], [f"x{n}", *operators[n % 3][1]], [f"x{n + 1}"], f"/block.{n // 10}/op{n}")
        for n in range(count)
    ]
    return _model(nodes, f"x{count}")


def wide(count: int) -> onnx.ModelProto:
    """Nodes side by side, and the sum of their results."""
    results = [f"y{n}" for n in range(count - 1)]
    nodes = [helper.make_node("Tanh", ["x0"], [name], f"/branch.{n}/tanh") for n, name in enumerate(results)]
    return _model([*nodes, helper.make_node("Sum", results, ["y"])], "y")


def nested(count: int) -> onnx.ModelProto:
    """Functions each of which calls the one before twice, so that about `count` nodes run."""
    depth, opsets = max(count.bit_length() - 1, 1), [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    calls = (("x", "a"), ("a", "y"))
    bodies = [
        [helper.make_node(f"F{n - 1}", [i], [o], domain="own") for i, o in calls]
        if n
        else [helper.make_node("Tanh", ["x"], ["y"])]
        for n in range(depth + 1)
    ]
    functions = [helper.make_function("own", f"F{n}", ["x"], ["y"], nodes, opsets) for n, nodes in enumerate(bodies)]
    return _model([helper.make_node(f"F{depth}", ["x0"], ["y"], domain="own")], "y", functions)


GRAPHS: dict[str, Callable[[int], onnx.ModelProto]] = {"chain": chain, "wide": wide, "nested": nested}


def measured(graph: str, count: int) -> dict[str, float]:
    """The CPU seconds of each step in a fresh process, and its peak memory."""
    steps = "".join(
        f"\nstart = time.process_time()\n{code}\nresult[{name!r}] = time.process_time() - start"
        for name, code in STEPS.items()
    )
    return run(
        "import time, jax, jaxport, numpy as np\nfrom benchmarks import bench_size\n"
        f"model, x, result = bench_size.{graph}({count}), np.ones(4, np.float32), {{}}\n"
        f"bench_size.chain(3), jaxport.from_onnx(bench_size.chain(3)).to_source(framework='nnx'){steps}"
    )


def main() -> None:
    numbers = [int(argument) for argument in sys.argv[1:]] or [*NODES]
    rows = []
    for graph in GRAPHS:
        for count in numbers:
            if graph == "nested" and count > 2**15:
                continue  # `jaxport.Limits` refuses it
            seconds = measured(graph, count)
            rows.append((graph, count, *(round(seconds[name], 2) for name in STEPS), round(seconds["peak_mb"])))
            print(rows[-1], file=sys.stderr, flush=True)
    table("CPU seconds by the number of nodes", ["graph", "nodes", *STEPS, "peak MB"], rows)


if __name__ == "__main__":
    main()
