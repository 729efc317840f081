"""What modules only hand on to the layers of a decoder, such as its caches, is one argument and one result of each."""

from __future__ import annotations

import ast
from pathlib import Path

import jax
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import jaxport
from jaxport.codegen.bundles import bundle
from tests.codegen.structured import arguments as arguments_of, load

LAYERS = 3


def decoder(order: str = "by layer") -> onnx.ModelProto:
    """A decoder whose layers append to a cache each, with the scopes of PyTorch's exporter."""
    random = np.random.default_rng(0)
    nodes, tensors, pasts, presents = [], [], [], []
    x = "x"

    def add(scope: str, operator: str, *inputs: str, **options: int) -> str:
        made = f"{scope}/{operator}_output_{len(nodes)}"
        nodes.append(helper.make_node(operator, inputs, [made], name=f"{scope}/{operator}_{len(nodes)}", **options))
        return made

    for layer in range(LAYERS):
        scope, path = f"/model/layers.{layer}", f"model.layers.{layer}"
        matrices = random.normal(0, 0.5, (2, 4, 4)).astype(np.float32)
        tensors += [
            numpy_helper.from_array(matrix, f"{path}.{key}.weight") for key, matrix in zip("ko", matrices, strict=True)
        ]
        new = add(f"{scope}/k", "MatMul", x, f"{path}.k.weight")
        present = add(scope, "Concat", f"past_{layer}", new, axis=1)
        total = add(scope, "ReduceMean", present, "axes")
        x = add(f"{scope}/o", "MatMul", add(scope, "Add", total, x), f"{path}.o.weight")
        pasts.append(f"past_{layer}")
        presents.append(present)
    tensors += [numpy_helper.from_array(np.array([1]), "axes")]
    tensors += [numpy_helper.from_array(random.normal(0, 0.5, (4, 5)).astype(np.float32), "head.weight")]
    logits = add("/head", "MatMul", x, "head.weight")
    for layer, present in enumerate(presents):
        nodes.append(helper.make_node("Identity", [present], [f"present_{layer}"], name=f"/Identity_{layer}"))
    kept = [f"present_{layer}" for layer in range(LAYERS)]
    results = [
        (logits, ["b", "t", 5]),
        *((one, ["b", None, 4]) for one in (kept if order == "by layer" else kept[::-1])),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, ["b", "t", 4])]
    inputs += [helper.make_tensor_value_info(past, 1, ["b", "p", 4]) for past in pasts]
    outputs = [helper.make_tensor_value_info(one, 1, shape) for one, shape in results]
    graph = helper.make_graph(nodes, "net", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("order", ["by layer", "reversed"])
def test_caches_are_one_argument_of_the_modules_inside(order: str, framework: str, tmp_path: Path):
    program = jaxport.from_onnx(decoder(order))
    code = program.to_source(tmp_path, framework=framework).code
    methods = {
        one.name: next(part for part in one.body if isinstance(part, ast.FunctionDef) and part.name == "__call__")
        for one in ast.parse(code).body
        if isinstance(one, ast.ClassDef) and any(getattr(part, "name", "") == "__call__" for part in one.body)
    }
    arguments = {name: [argument.arg for argument in method.args.args[1:]] for name, method in methods.items()}
    assert ["x", "pasts"] in arguments.values()
    *_, root = methods.values()
    is_state = order == "by layer"  # else the model has the arguments and results of the file
    flat = ["x", *(f"past_{layer}" for layer in range(LAYERS))]
    assert [one.arg for one in root.args.args[1:]] == (["x", "pasts"] if is_state else flat)
    assert ("present" in ast.unparse(root.body[-1])) == is_state
    random = np.random.default_rng(1)
    x, *pasts = (random.normal(size=(2, size, 4)).astype(np.float32) for size in (3, 5, 5, 5))
    module = load(tmp_path)
    results = jax.tree.leaves(module.load()(*arguments_of(module, [x, *pasts])))
    for found, expected in zip(results, program(x, *pasts), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def bundled(inner: str, outer: str = "a, b = self.inner(x, y, z)\n        return (a, b)", made: str = "Inner()") -> str:
    text = (
        f"class Inner:\n    def __init__(self):\n        self.h = [Layer(), Layer()]\n    def __call__(self, x, y, z):\n"
        f"        {inner}\n"
        f"class Outer:\n    def __init__(self):\n        self.inner = {made}\n    def __call__(self, x, y, z):\n        {outer}\n"
    )
    tree = ast.parse(text)
    bundle(tree.body, "Outer")
    return ast.unparse(tree)


LOOP = "for layer, past in zip(self.h, (y, z)):\n            x = layer(x, past)\n        "
STAY = {
    "an argument that is assigned": bundled(f"y = x\n        {LOOP}return (x, y)"),
    "an argument that is there twice": bundled(LOOP.replace("(y, z)", "(y, y)") + "return (x, z)"),
    "a value that is no argument": bundled("w = x\n        " + LOOP.replace("(y, z)", "(y, w)") + "return (x, z)"),
    "a call of a list of values": bundled(f"{LOOP}return (x, y)", "a, b = self.inner(*x)\n        return (a, b)"),
    "a module in a list": bundled(f"{LOOP}return (x, y)", made="[Inner(), Inner()]"),
    "a module that is handed on": bundled(f"{LOOP}return (x, y)", "return self.f(self.inner)"),
}


@pytest.mark.parametrize("name", STAY)
def test_what_cannot_be_one_argument(name: str):
    assert "def __call__(self, x, y, z):" in STAY[name].split("class Outer")[0]


def test_an_argument_that_is_read_elsewhere_is_an_element():
    code = bundled(f"{LOOP}return (x, y + 1)")
    assert "def __call__(self, x, ys: tuple[Array, ...]):" in code
    assert "return (x, ys[0] + 1)" in code
    assert "self.inner(x, (y, z))" in code


RESULTS = {
    "in their order": ("return (a, b)", True),
    "in another order": ("return (b, a)", False),
    "one that is read": ("return (a, b + a)", False),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str):
    returned, is_one = RESULTS[name]
    code = bundled("all = [x, y]\n        return (*all, z)", f"a, b, c = self.inner(x, y, z)\n        {returned}")
    assert ("all, c = self.inner(x, y, z)" in code) == is_one
    assert ("return (*all,)" in code) == is_one
