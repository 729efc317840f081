"""Modules that are called several times: one entry of the tree, with its calls and its parameters, however a file names them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jaxport
from jaxport.importer import from_onnx
from jaxport.mox import Mox, account

WIDTH = 4
X = np.random.default_rng(0).normal(size=(3, WIDTH)).astype(np.float32)
Name = Callable[[str, str, int], dict]
"""The name and the metadata of a node: of an operator in a module, in one of its calls."""


def numbered(part: str, number: int) -> str:
    return f"{part}_{number}" if number else part


def older(module: str, operator: str, call: int) -> dict:
    """As PyTorch's older exporter names nodes: it numbers the calls of the innermost module."""
    parts = re.split(r"\.(?!\d)", module)
    return {"name": "/".join(["", *parts[:-1], numbered(parts[-1], call), operator])}


def newer(module: str, operator: str, call: int) -> dict:
    """As its newer exporter does, in metadata."""
    del call
    parts = module.split(".")
    scopes = ["", *(".".join(parts[: end + 1]) for end in range(len(parts))), operator]
    kinds = ["m.Net", *("m.Module" for _ in parts), operator]
    return {"name": f"node_{operator}", "name_scopes": scopes, "class_hierarchy": kinds}


def tensorflow(module: str, operator: str, call: int) -> dict:
    """As TensorFlow does: it numbers the outermost scope."""
    first, *rest = module.split(".")
    return {"name": "/".join(["net", numbered(first, call), *rest, operator])}


class Graph:
    """Builds a file node by node."""

    def __init__(self, name: Name) -> None:
        self.name, self.nodes, self.tensors = name, [], {}
        self.generator = np.random.default_rng(1)

    def tensor(self, name: str, *shape: int, value: float | None = None) -> str:
        data = self.generator.normal(size=shape) if value is None else np.full(shape, value)
        self.tensors.setdefault(name, data.astype(np.float32))
        return name

    def add(self, operator: str, inputs: Sequence[str], module: str, call: int, *, named: bool = True, **fields) -> str:
        result = f"v{len(self.nodes)}"
        place = self.name(module, operator, call) if named else {"name": f"{operator}_{len(self.nodes)}"}
        node = helper.make_node(operator, list(inputs), [result], name=place.pop("name"), **fields)
        for key, value in place.items():
            node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=repr(value))
        self.nodes.append(node)
        return result

    def half(self) -> str:
        """A constant without a place, as exporters leave them between the nodes of a module."""
        return self.add("Constant", [], "", 0, named=False, value_float=0.5)

    def again(self, weight: str, call: int) -> str:
        """A weight as another call of its module reads it: by a name of its own."""
        return self.add("Identity", [weight], "", 0, named=False) if call and self.name is older else weight

    def layer(self, x: str, call: int, path: str = "layer", norm: float | None = None) -> str:
        """`norm(x + fc(half * relu(x)))`, the normalization in the middle of what is called."""
        kernel = self.again(self.tensor(f"onnx::{path}_1", WIDTH, WIDTH), call)
        h = self.add("Relu", [x], f"{path}.act", call)
        h = self.add("Mul", [h, self.half()], path, call)
        h = self.add("MatMul", [h, kernel], f"{path}.fc", call)
        h = self.add("Add", [h, self.tensor(f"{path}.fc.bias", WIDTH)], f"{path}.fc", call)
        h = self.add("Add", [x, h], path, call)
        scale = self.tensor(f"{path}.norm.weight", WIDTH, value=norm)
        return self.add("LayerNormalization", [h, scale], f"{path}.norm", call)

    def model(self, *results: str, inputs: Sequence[str] = ("x",)) -> onnx.ModelProto:
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, None]) for name in results]
        given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, WIDTH]) for name in inputs]
        stored = [numpy_helper.from_array(array, name) for name, array in self.tensors.items()]
        graph = helper.make_graph(self.nodes, "g", given, made, stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def called(name: Name, calls: int, **options: float) -> onnx.ModelProto:
    """A layer that is called so often, one call on the result of the other."""
    graph, x = Graph(name), "x"
    for call in range(calls):
        x = graph.layer(x, call, **options)
    return graph.model(graph.add("Neg", [x], "out", 0))


def tree(made: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    """The modules: how often each is called, and the elements of its parameters."""
    modules = list(from_onnx(made).modules.walk())[1:]
    assert len({module.path for module in modules}) == len(modules)
    return {module.path: (module.calls, sum(module.parameters.values())) for module in modules}


def mox_of(made: onnx.ModelProto, *inputs: np.ndarray) -> Mox:
    program = from_onnx(made)
    mox = jaxport.make_mox(program)(*inputs)
    wanted, results = program(*inputs), mox(*inputs)
    for one, other in zip(*(([r] if len(made.graph.output) == 1 else r) for r in (wanted, results)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)
    return mox


def accounted(mox: Mox) -> dict[str, tuple[int, int]]:
    """The same of an account of costs, of modules alone."""
    paths = {block.path for match in mox.select("//*") if (block := match.block) and block.kind == "module"}
    return {row.path: (row.calls, row.params) for row in account(mox) if row.path in paths}


def of_layer(calls: int, begin: str = "") -> Mapping[str, tuple[int, int]]:
    own = {"": 24, ".act": 0, ".fc": 20, ".norm": 4}
    return {f"{begin}layer{path}": (calls, size) for path, size in own.items()}


FILES = [older, newer, tensorflow]


@pytest.mark.parametrize("name", FILES)
def test_a_module_that_is_called_eight_times_is_one_entry(name: Name):
    made = called(name, 8)
    begin = "net." if name is tensorflow else ""
    wanted = of_layer(8, begin)
    found = tree(made)
    assert {path: found[path] for path in wanted} == wanted
    assert {*found} - {*wanted} == ({"net", "net.out"} if name is tensorflow else {"out"})
    mox = mox_of(made, X)
    costs = accounted(mox)
    assert {path: costs[path] for path in wanted} == wanted
    assert not [row for row in account(mox) if row.type == "Identity"]
    products = mox.select("//MatMul")
    assert [list(match.params) for match in products] == [["onnx::layer_1"]] * 8


@pytest.mark.parametrize("name", FILES)
def test_before_training_too_where_equal_weights_are_merged(name: Name):
    if name is tensorflow:
        pytest.skip("it stores each weight by itself")
    assert of_layer(3).items() <= tree(called(name, 3, norm=1.0)).items()


def shuffled(made: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The same file with its nodes in another order in which they can be computed."""
    generator, nodes = random.Random(seed), list(made.graph.node)
    known = {"", *(v.name for v in made.graph.input), *(t.name for t in made.graph.initializer)}
    del made.graph.node[:]
    while nodes:
        ready = [node for node in nodes if known.issuperset(node.input)]
        chosen = generator.choice(ready)
        nodes.remove(chosen)
        known.update(chosen.output)
        made.graph.node.append(chosen)
    return made


def two_branches(name: Name) -> onnx.ModelProto:
    graph = Graph(name)
    ends = [graph.layer(graph.layer(x, 2 * call), 2 * call + 1) for call, x in enumerate(("x", "y"))]
    return graph.model(graph.add("Sub", ends, "out", 0), inputs=("x", "y"))


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize("name", FILES)
def test_calls_that_a_file_interleaves(name: Name, seed: int | None):
    made = two_branches(name)
    made = made if seed is None else shuffled(made, seed)
    begin = "net." if name is tensorflow else ""
    wanted = of_layer(4, begin)
    for found in (tree(made), accounted(mox_of(made, X, X + 1))):
        if seed is None:
            assert wanted.items() <= found.items()
            continue
        # Calls that lie side by side cannot be told apart if nothing between them says where one ends; parameters can.
        assert {path: entry[1] for path, entry in wanted.items()}.items() <= {p: e[1] for p, e in found.items()}.items()
        assert all(1 <= found[path][0] <= calls for path, (calls, _) in wanted.items())


def test_modules_around_are_told_apart_by_call():
    graph, x = Graph(newer), "x"
    for call in range(2):
        for layer in ("body.layer", "body.last"):
            x = graph.layer(x, call, layer)
    made = graph.model(graph.add("Neg", [x], "out", 0))
    found = tree(made)
    assert found["body"] == (2, 48)
    assert found["body.layer.fc"] == found["body.last.fc"] == (2, 20)
    assert accounted(mox_of(made, X)) == found


@pytest.mark.parametrize(
    ("path", "first", "second", "calls"),
    [("layer", "fc", "fc_1", 1), ("a", "fc", "fc", 2)],
    ids=["another name", "the same"],
)
def test_a_weight_of_two_modules_makes_no_call_of_one(path: str, first: str, second: str, calls: int):
    graph = Graph(newer)
    kernel = graph.tensor("w", WIDTH, WIDTH)
    h = graph.add("MatMul", ["x", kernel], f"{path}.{first}", 0)
    h = graph.add("Tanh", [h], path, 0)
    made = graph.model(graph.add("MatMul", [h, kernel], f"{path}.{second}", 1))
    found = tree(made)
    assert {found[f"{path}.{name}"] for name in (first, second)} == {(calls, 16)}
    assert accounted(mox_of(made, X)) == found


def test_a_module_with_weights_of_its_own_name_is_no_call_of_another():
    graph = Graph(older)
    scale = graph.tensor("norm.weight", WIDTH, value=1.0)
    own = graph.tensor("norm_1.weight", WIDTH, value=1.0)
    h = graph.add("LayerNormalization", ["x", scale], "norm", 0)
    h = graph.add("LayerNormalization", [h, scale], "norm", 1)  # the exporter has merged equal weights
    merged = graph.model(h)
    assert tree(merged) == {"norm": (2, 4)}
    graph.nodes[-1].input[1] = own
    assert tree(graph.model(h)) == {"norm": (1, 4), "norm_1": (1, 4)}


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        (("/relu/Relu", "/relu_1/Relu"), {"relu": (2, 0)}),
        (("/act/Relu", "/act_1/Tanh"), {"act": (1, 0), "act_1": (1, 0)}),
        (("net/act/Relu", "net/act_1/Relu"), {"net": (1, 0), "net.act": (1, 0), "net.act_1": (1, 0)}),
    ],
    ids=["a call", "another activation", "layers of Keras"],
)
def test_numbered_modules_without_weights(names: tuple[str, str], paths: dict[str, tuple[int, int]]):
    graph = Graph(newer)
    kernel = graph.tensor("w", WIDTH, WIDTH)
    h = graph.add(names[0].rpartition("/")[2], ["x"], "", 0, named=False)
    h = graph.add("MatMul", [h, kernel], "", 0, named=False)
    made = graph.model(graph.add(names[1].rpartition("/")[2], [h], "", 0, named=False))
    made.graph.node[0].name, made.graph.node[2].name = names
    assert tree(made) == paths
    mox_of(made, X)


def test_layers_of_keras_stay_layers():
    made = called(tensorflow, 1)
    made.graph.node[0].name = "net/dense/Relu"
    graph, x = Graph(tensorflow), "x"
    for number in range(3):
        kernel = graph.tensor(f"net/dense{number}/kernel", WIDTH, WIDTH)
        x = graph.add("Add", [graph.add("MatMul", [x, kernel], "dense", number), "b"], "dense", number)
    graph.tensor("b", WIDTH)
    assert tree(graph.model(x)) == {
        "net": (1, 52),
        "net.dense": (1, 20),
        "net.dense_1": (1, 20),
        "net.dense_2": (1, 20),
    }


def test_weights_that_are_stored_for_each_call_tell_calls_apart():
    graph, x = Graph(newer), "x"
    kernel = graph.generator.normal(size=(WIDTH, WIDTH)).astype(np.float32)
    for call in range(3):
        graph.tensors[f"onnx::MatMul_{call}"] = kernel
        h = graph.add("MatMul", [x, f"onnx::MatMul_{call}"], "layer.fc", call)
        h = graph.add("Mul", [h, graph.tensor(f"val_{call}", WIDTH, value=0.5)], "layer", call)
        x = graph.add("Add", [h, graph.tensor("layer.bias", WIDTH)], "layer", call)
    mox = mox_of(graph.model(graph.add("Neg", [x], "out", 0)), X)
    assert {path: calls for path, (calls, _) in accounted(mox).items()} == {"layer": 3, "layer.fc": 3, "out": 1}


@pytest.mark.parametrize("name", [older, newer])
def test_the_bias_of_a_layer_stays_one_where_its_kernel_is_stored_for_each_call(name: Name):
    graph, x = Graph(name), "x"
    kernel = graph.generator.normal(size=(WIDTH, WIDTH)).astype(np.float32)
    zeros = graph.tensor("fc.bias", WIDTH, value=0.0)  # the exporter has merged it with that of `out`
    for call in range(2):
        graph.tensors[f"onnx::MatMul_{call}"] = kernel
        x = graph.add("Add", [graph.add("MatMul", [x, f"onnx::MatMul_{call}"], "fc", call), zeros], "fc", call)
    h = graph.add("MatMul", [x, graph.tensor("out.weight", WIDTH, WIDTH)], "out", 0)
    made = graph.model(graph.add("Add", [h, zeros], "out", 0))
    assert from_onnx(made).untied == {"out.bias": "fc.bias"}
    assert {path: calls for path, (calls, _) in tree(made).items()} == {"fc": 2, "out": 1}


def test_what_an_optimizer_put_between_the_nodes_of_a_call_is_in_it():
    graph, x = Graph(newer), "x"
    for call in range(3):
        h = graph.add("MatMul", [x, graph.tensor("w", WIDTH, WIDTH)], "layer", call)
        h = graph.add("Relu", [h], "", 0, named=False)
        x = graph.add("Add", [h, graph.tensor("b", WIDTH)], "layer", call)
    made = graph.model(graph.add("Neg", [x], "", 0, named=False))
    assert accounted(mox_of(made, X)) == {"layer": (3, 20)}


def test_modules_that_need_each_other_come_in_pieces():
    graph = Graph(newer)
    h = graph.add("MatMul", ["x", graph.tensor("w", WIDTH, WIDTH)], "a", 0)
    h = graph.add("MatMul", [h, graph.tensor("v", WIDTH, WIDTH)], "b", 0)
    h = graph.add("MatMul", [h, graph.tensor("u", WIDTH, WIDTH)], "a", 0)
    made = graph.model(h)
    assert tree(made) == {"a": (2, 32), "b": (1, 16)}
    mox_of(made, X)


def test_sizes_have_no_module():
    graph = Graph(newer)
    size = graph.add("Shape", ["x"], "layer", 0)
    made = graph.model(graph.add("Reshape", [graph.layer("x", 0), size], "out", 0))
    entry = next(entry for entry in made.graph.node[0].metadata_props if entry.key.endswith("name_scopes"))
    entry.value = "['_empty_nn_module_stack_from_metadata_hook', 'sym_size_int']"
    assert [module.path for module in from_onnx(made).modules.children] == ["layer", "out"]


def test_lists_have_their_name_once():
    made = Graph(older)
    h = made.layer(made.layer("x", 0, "net.0"), 0, "net.1")
    made = made.model(h)
    for node in made.graph.node:
        node.name = f"/net{node.name}" if node.name.startswith("/") else node.name
    assert [path for path in tree(made) if path.count(".") < 2] == ["net", "net.0", "net.1"]


def test_an_edit_of_a_module_changes_all_of_its_calls():
    mox = mox_of(called(older, 3), X)
    changed = mox.sub("//*[@path='layer.fc']", lambda x: 0 * x)
    norm = mox.params["layer.norm.weight"]
    wanted = X
    for _ in range(3):
        wanted = (wanted - wanted.mean(-1, keepdims=True)) / np.sqrt(wanted.var(-1, keepdims=True) + 1e-5) * norm
    np.testing.assert_allclose(changed(X), -wanted, rtol=1e-4, atol=1e-5)
    adapted = mox.sub("//*[@path='layer.fc']", jaxport.mox.lora(2))
    assert {name for name in adapted.params if "lora" in name} == {"layer.fc.lora_a", "layer.fc.lora_b"}


@pytest.mark.parametrize("name", FILES)
def test_printed_source_has_a_loop(name: Name):
    code = from_onnx(called(name, 5)).to_source(framework="nnx").code
    assert "for _ in range(5):" in code
    assert code.count("nnx.Linear(") == 1


def test_modules_that_only_call_another_stay_one_module():
    graph, x = Graph(older), "x"
    for call in range(3):
        x = graph.layer(x, call, "groups.0.layers.0", norm=1.0)
    source = from_onnx(graph.model(graph.add("Neg", [x], "out", 0))).to_source(framework="nnx")
    assert "for _ in range(3):" in source.code
    assert sum(array.size for array in source.tensors.values()) == 24


def test_explanations_name_the_module_of_each_call():
    rows = from_onnx(called(older, 2)).explain()["folded"].rows
    assert [row[1] for row in rows if row[0].endswith("MatMul")] == ["layer.fc", "layer.fc"]


def test_trees_count_calls():
    made = called(older, 3)
    assert [*from_onnx(made).modules.lines()] == [
        "layer  24  3 calls",
        "  act  3 calls",
        "  fc  20  3 calls",
        "  norm  4  3 calls",
        "out",
    ]
    assert "… layer: 2 more calls" in str(mox_of(made, X))
