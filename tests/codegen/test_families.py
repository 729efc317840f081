"""The caches of a decoder are one argument and one result of its model, in pairs, and come back under the names of the file."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import jaxport
from jaxport.codegen.families import Family, State, described
from jaxport.codegen.grouping import group
from jaxport.export.generation.decoders import decoder_inputs
from tests.codegen.structured import arguments, check, load
from tests.graph.test_caches import GROUPS, SIZE, step

LAYERS = 3
PAIRS = [f"past.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]


def decoder(pasts: list[str], presents: list[str], *, crossed: bool = False) -> onnx.ModelProto:
    """Layers that append to their caches, in the order of `pasts`; and results in the order of `presents`, by input or `y`."""
    random, nodes, tensors = np.random.default_rng(0), [], {}
    parts = len(pasts) // LAYERS

    def add(operator: str, *inputs: str, **options: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [f"v{len(nodes)}"], **options))
        return nodes[-1].output[0]

    made, x = {"y": ""}, "x"
    for layer in range(LAYERS):
        caches = [one for one in pasts if str(layer) in one]
        for part, cache in enumerate(caches):
            weight = f"w{layer}{part}"
            tensors[weight] = random.normal(0, 0.5, (4, 4)).astype(np.float32)
            rows = add("MatMul", x, weight)
            made[cache] = cache if crossed and part > 1 else add("Concat", cache, rows, axis=1)
        assert len(caches) == parts
        means = [add("ReduceMean", made[cache], "axes") for cache in caches]
        x = add("Tanh", add("Sum", x, *means))
    made["y"] = x
    tensors["axes"] = np.array([1])
    names = {one: one.replace("past", "present").replace("x_", "y_") for one in presents}
    nodes += [helper.make_node("Identity", [made[one]], [names[one]]) for one in presents]
    inputs = [helper.make_tensor_value_info("x", 1, ["b", "t", 4])]
    inputs += [helper.make_tensor_value_info(one, 1, ["b", "p", 4]) for one in pasts]
    outputs = [helper.make_tensor_value_info(name, 1, ["b", None, 4]) for name in names.values()]
    weights = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def signature(code: str) -> tuple[list[str], str]:
    """The arguments of the model, and what it returns."""
    root = [one for one in ast.parse(code).body if isinstance(one, ast.ClassDef)][-1]
    method = next(part for part in root.body if getattr(part, "name", "") == "__call__")
    assert isinstance(method, ast.FunctionDef)
    return [one.arg for one in method.args.args[1:]], ast.unparse(method.returns or ast.Constant(None))


def sampled(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        one.name: random.normal(size=(2, 3 if one.name == "x" else 5, 4)).astype(np.float32)
        for one in model.graph.input
    }


BY_PART = [f"past_{part}_{layer}" for part in ("key", "value") for layer in range(LAYERS)]
CROSSED = [
    f"past.{layer}.{kind}.{part}" for layer in range(LAYERS) for kind in ("own", "encoder") for part in ("key", "value")
]
CACHES = "list[tuple[Array, Array]]"
GROUPED = {
    "pairs": (decoder(PAIRS, ["y", *PAIRS]), ["x", "past"], f"tuple[Array, {CACHES}]"),
    "in front of the logits": (decoder(PAIRS, [*PAIRS, "y"]), ["x", "past"], f"tuple[{CACHES}, Array]"),
    "keys, then values": (
        decoder(BY_PART, ["y", *BY_PART]), ["x", "past_keys", "past_values"], "tuple[Array, list[Array], list[Array]]",
    ),
    "an encoder's": (
        decoder(CROSSED, ["y", *(one for one in CROSSED if "own" in one)], crossed=True), ["x", "past"],
        f"tuple[Array, {CACHES}]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "framework"), [*((case, "nnx") for case in GROUPED), ("pairs", "equinox")])
def test_caches_are_one_argument_and_one_result(case: str, framework: str, tmp_path: Path) -> None:
    model, names, returned = GROUPED[case]
    code = check(model, sampled(model), tmp_path, framework)
    assert signature(code) == (names, returned)
    module = load(tmp_path)
    assert [*module.INPUTS] == [one.name for one in model.graph.input]
    assert [*module.OUTPUTS] == [one.name for one in model.graph.output]


def test_results_are_the_next_arguments(tmp_path: Path) -> None:
    model = decoder(PAIRS, ["y", *PAIRS])
    program = jaxport.from_onnx(model)
    program.to_source(tmp_path, framework="nnx")
    made, given = load(tmp_path).load(), sampled(model)
    (x, *flat), past = given.values(), None
    for _ in range(2):
        y, past = made(x, past or [tuple(flat[at : at + 2]) for at in range(0, len(flat), 2)])
        expected, *flat = program(x, *flat)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_an_export_has_the_names_of_the_file(tmp_path: Path) -> None:
    model = decoder(PAIRS, ["y", *PAIRS])
    jaxport.from_onnx(model).to_source(tmp_path, framework="nnx")
    batch, length, rows = jax.export.symbolic_shape("b, t, p")
    module, cache = load(tmp_path), jax.ShapeDtypeStruct((batch, rows, 4), np.float32)
    inputs = [jax.ShapeDtypeStruct((batch, length, 4), np.float32), [(cache, cache)] * LAYERS]
    again = jaxport.to_onnx(module.load(), inputs, input_names=module.INPUTS, output_names=module.OUTPUTS)
    assert again.input_names == [one.name for one in model.graph.input]
    assert again.output_names == [one.name for one in model.graph.output]
    given = sampled(model)
    for found, expected in zip(again.run(given), jaxport.from_onnx(model)(*given.values()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_decoder_is_one_again(tmp_path: Path) -> None:
    inputs = decoder_inputs(1, GROUPS, SIZE)
    exported = jaxport.to_onnx(step(), inputs, target="genai")
    jaxport.from_onnx(exported.model).to_source(tmp_path, framework="nnx")
    module = load(tmp_path)
    specs = arguments(module, jax.tree.leaves(inputs))
    names = {"input_names": module.INPUTS, "output_names": module.OUTPUTS}
    again = jaxport.to_onnx(module.load(), specs, target="genai", **names)
    assert again.input_names == exported.input_names
    assert again.output_names == exported.output_names


SWAPPED = [one.replace("key", "x").replace("value", "key").replace("x", "value") for one in PAIRS]
FLAT = {
    "values in front of keys": decoder(PAIRS, ["y", *SWAPPED]),
    "the last layer first": decoder(PAIRS, ["y", *PAIRS[::-1]]),
    "no results": decoder(PAIRS, ["y"]),
    "names that say nothing": decoder([f"x_{at}" for at in range(LAYERS)], ["y", *(f"x_{at}" for at in range(LAYERS))]),
}


@pytest.mark.parametrize("case", FLAT)
def test_other_inputs_stay_arguments(case: str) -> None:
    """A list of which the next step cannot take the results would only hide which is which."""
    source = jaxport.from_onnx(FLAT[case]).to_source(framework="nnx")
    assert len(signature(source.code)[0]) == len(FLAT[case].graph.input)
    assert "def flat" not in source.code


STATE = [State(Family("past", 1, 2, 2), Family("present", 0, 2, 2))]


def grouped(root: str, inner: str = "return x") -> str:
    """The method of a model with caches `a, b` and `c, d`, and of a module inside it."""
    tree = ast.parse(
        f"class Inner:\n def __init__(self):\n  self.h = [Layer(), Layer()]\n def __call__(self, x, e, f, g, h):\n  {inner}\n"
        f"class Outer:\n def __init__(self):\n  self.inner = Inner()\n def __call__(self, x, a, b, c, d):\n  {root}\n"
    )
    group(tree.body, "Outer", STATE, 5)
    return ast.unparse(tree)


CALL = "e, f, g, h, y = self.inner(x, a, b, c, d)\n  return (e, f, g, h, y)"
LOOP = "l = []\n  for layer, k, v in zip(self.h, (e, g), (f, h), strict=True):\n   {}\n  return (*l, x)"
TEXTS = {
    "all of it": (CALL, LOOP.format("x = layer(x, k, v)\n   l.extend((k, v))"), [
        "def __call__(self, x, past: list[tuple[Array, Array]]) -> tuple[list[tuple[Array, Array]], Array]:",
        "for layer, (k, v) in zip(self.h, past, strict=True):", "present.append((k, v))", "return (present, x)",
        "present, y = self.inner(x, past)",
    ]),
    "a part of each layer": (CALL, LOOP.format("x = layer(x, k, v)\n   l.extend((k, v))").replace("v in", "in").replace(", (f, h)", ""), [
        "for layer, (k, _) in zip(self.h, past, strict=True):",
    ]),
    "some layers": ("for layer, k in zip(self.h, (c,), strict=True):\n   x = layer(x, k)\n  return (a, b, c, d, x)", "return x", [
        "for layer, (k, _) in zip(self.h, past[1:], strict=True):",
        "return ([(past[0][0], past[0][1]), (past[1][0], past[1][1])], x)",
    ]),
    "a list of another form": (CALL, LOOP.format("l.append(k)\n   l.append(v)"), ["[*zip(l[::2], l[1::2], strict=True)]"]),
    "the call itself": ("return self.inner(x, a, b, c, d)", "return (e, f, g, h, x)", [
        "return self.inner(x, past)", "return ([(past[0][0], past[0][1]), (past[1][0], past[1][1])], x)",
    ]),
    "a row": ("return (a, b, c, d, self.f(x, a, b))", "return x", ["self.f(x, *past[0])"]),
    "names that are assigned": ("a = a + 1\n  return (a, b, c, d, x)", "return x", [
        "(a, b), (c, d) = past\n        a = a + 1", "return ([(a, b), (c, d)], x)",
    ]),
    "a module that is called twice": (
        "e, f, g, h, y = self.inner(x, a, b, c, d)\n  return (e, f, g, h, self.inner(y, a, b, c, d))", "return (e, f, g, h, x)",
        ["return ([(e, f), (g, h)], self.inner(y, *past[0], *past[1]))", "def __call__(self, x, e, f, g, h):"],
    ),
    "two lists": ("return (*a, *b)", "return x", ["return (*past[0][0], *past[0][1])"]),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_classes(case: str) -> None:
    root, inner, wanted = TEXTS[case]
    code = grouped(root, inner)
    assert [text for text in wanted if text not in code] == [], code


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["x", "x_1"], "('x', 'x_1')"),
        ([f"past_{part}_{at}" for at in range(2) for part in "kv"], "(*(name for layer in range(2) for name in (f'past_k_{layer}', f'past_v_{layer}')),)"),
        ([f"{{past}}.{at}.{part}" for at in range(2) for part in ("a.key", "a.value")], "(*(f'{{past}}.{layer}.a.{part}' for layer in range(2) for part in ('key', 'value')),)"),
        (["past_0", "past_1", "y"], "(*(name for layer in range(2) for name in (f'past_{layer}',)), 'y')"),
    ],
)  # fmt: skip
def test_names_as_source(names: list[str], text: str) -> None:
    assert ast.unparse(described(names)) == text
    assert [*eval(text)] == names
