"""The module tree of an imported model: from exporters' metadata, node names and functions."""

from __future__ import annotations

import flax.nnx as nnx
import numpy as np
import pytest

import jaxport
from jaxport.importer import from_onnx
from jaxport.importer.modules import scopes_of
from tests.importer.models import model, program

CHAIN = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Mul(x, w) b = Neg(a) y = Tanh(b) }"


def tree(made) -> list[tuple[str, str, int]]:
    """The modules: path, type and how many operations."""
    return [(module.path, module.type, module.operations) for module in from_onnx(made).modules.walk()]


def test_scopes_from_the_metadata_of_pytorchs_exporter():
    made = model(CHAIN)
    for node, scopes, classes in zip(
        made.graph.node,
        (["", "encoder", "encoder.0", "mul"], ["", "encoder", "encoder.0", "neg"], ["", "tanh"]),
        (["my.Net", "torch.nn.Sequential", "my.Scale", "aten.mul"],) * 2 + (["my.Net", "aten.tanh"],),
        strict=True,
    ):
        for key, value in (("name_scopes", scopes), ("class_hierarchy", classes)):
            node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=repr(value))
    assert tree(made) == [("", "my.Net", 3), ("encoder", "torch.nn.Sequential", 2), ("encoder.0", "my.Scale", 2)]


def test_scopes_from_node_names():
    made = model(CHAIN)
    for node, name in zip(made.graph.node, ("/encoder/layer.0/Mul", "/encoder/layer.0/Neg", "Tanh"), strict=True):
        node.name = name
    assert tree(made) == [("", "", 3), ("encoder", "", 2), ("encoder.layer.0", "", 2)]
    assert from_onnx(made).modules["encoder"].parameters == {"w": 2}
    with pytest.raises(KeyError, match="decoder"):
        from_onnx(made).modules["decoder"]


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.relu(self.up(x)))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(3)])
        self.norm = nnx.LayerNorm(4, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


@pytest.mark.parametrize("functions", [None, ["flax.nnx.Linear"], [Block]], ids=["inlined", "layers", "blocks"])
def test_what_this_package_exports_has_its_modules_back(functions):
    exported = jaxport.to_onnx(Net(nnx.Rngs(0)), [("B", 4)], functions=functions)
    modules = from_onnx(exported.model).modules
    assert modules.type.endswith("Net")
    paths = [module.path for module in modules.walk()]
    assert paths[1:4] == ["blocks.0", "blocks.0.up", "blocks.0.down"]
    assert modules["blocks.2.up"].type == "flax.nnx.Linear"
    assert modules["blocks.2"].parameters == {
        f"blocks.2.{layer}.{name}": size
        for layer, name, size in (("up", "kernel", 32), ("up", "bias", 8), ("down", "kernel", 32), ("down", "bias", 4))
    }
    assert list(modules.lines()) == [
        "blocks.0 … blocks.2  tests.importer.test_modules.Block  3 × 76",
        "  up  flax.nnx.Linear  40",
        "  down  flax.nnx.Linear  36",
        "norm  flax.nnx.LayerNorm  8",
    ]


def test_functions_are_modules_of_their_own():
    functions = """<domain: "d", opset_import: ["": 18, "d": 1]> Pair (x) => (y) { a = d.Scale(x) y = d.Scale(a) }
        <domain: "d", opset_import: ["": 18]> Scale (x) => (y) { y = Add(x, x) }"""
    made = model(
        "g (float[2] x) => (float[2] y) { a = d.Pair(x) y = d.Pair(a) }", functions=functions, domains=', "d": 1'
    )
    made.graph.node[0].name = "/first/pair"
    assert tree(made) == [
        ("", "", 4), ("first", "", 2), ("first.pair", "d.Pair", 2), ("first.pair.Scale", "d.Scale", 1),
        ("first.pair.Scale_2", "d.Scale", 1), ("Pair", "d.Pair", 2), ("Pair.Scale", "d.Scale", 1), ("Pair.Scale_2", "d.Scale", 1),
    ]  # fmt: skip


def test_the_nodes_of_branches_belong_to_the_module_around():
    made = model("""g (bool c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = e () => (float[2] b) { b = Abs(x) }> }""")
    made.graph.node[0].name = "/gate/If"
    assert tree(made) == [("", "", 3), ("gate", "", 3)]


@pytest.mark.parametrize(
    "text",
    ["[", "__import__('os')", "[1, 2]", "(" * 10_000, "['a'", "['', 'x', 'y']", "{}", "\0", "[" * 500 + "]" * 500],
)
def test_metadata_that_is_no_list_of_names_is_passed_over(text: str):
    made = model(CHAIN)
    made.graph.node[0].name = "a/Mul"
    for key in ("name_scopes", "class_hierarchy"):
        made.graph.node[0].metadata_props.add(
            key=f"pkg.torch.onnx.{key}", value=text if key == "name_scopes" else "['n']"
        )
    assert tree(made) == [("", "", 3), ("a", "", 1)]


def test_deep_nesting_is_cut():
    made = model(CHAIN)
    made.graph.node[0].name = "/".join(["a"] * 5000)
    paths = [path for path, *_ in tree(made)]
    assert 2 < len(paths) <= 66
    assert from_onnx(made)(np.ones(2, np.float32)).shape == (2,)
    assert str(from_onnx(made)).count("\n") < 80


def test_the_representation_shows_the_tree():
    made = model(CHAIN)
    made.graph.node[0].name = "/encoder/Mul"
    assert str(from_onnx(made)).splitlines()[-2:] == ["  modules", "    encoder  2"]
    assert "modules" not in str(program(CHAIN))


def test_a_scope_that_repeats_is_one_module():
    import onnx_ir as ir

    node = ir.node("Add", [], metadata_props={"namespace": "Net: my.Net/Net: my.Net/a: my.A/a: my.A"})
    assert scopes_of(node) == [("", "my.Net"), ("a", "my.A")]
