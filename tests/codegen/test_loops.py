"""Loops over layers that have values of their own, and modules that are called several times: one instance, equal in value."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest

import jaxport
from tests.codegen.structured import check, nameless
from tests.codegen.test_structured import FRAMEWORKS, check_model


class Graph:
    """A model as PyTorch's exporter writes it: each node with the path of its module.

    Args:
      shapes: the inputs.
    """

    def __init__(self, **shapes: list[int | str]):
        self.random = np.random.default_rng(0)  # its own, so that a model is the same in any order of tests
        self.inputs = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, np.ndarray] = {}

    def node(self, operator: str, inputs: list[str], path: str = "", **attributes: object) -> str:
        output = f"value_{len(self.nodes)}"
        node = onnx.helper.make_node(operator, inputs, [output], **attributes)
        parts = path.split(".") if path else []
        paths = [".".join(parts[: end + 1]) for end in range(len(parts)) if parts[end] != "layers"]
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", *paths, operator]))
        types = ["my.Model", *(f"my.{one.split('.')[-1].title()}" for one in paths), operator]
        node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=str(types))
        self.nodes.append(node)
        return output

    def weight(self, name: str, *shape: int) -> str:
        if name not in self.tensors:
            self.tensors[name] = (0.3 * self.random.standard_normal(shape)).astype(np.float32)
        return name

    def linear(self, x: str, path: str) -> str:
        product = self.node("MatMul", [x, self.weight(f"{path}.weight", 8, 8)], path)
        return self.node("Add", [product, self.weight(f"{path}.bias", 8)], path)

    def block(self, x: str, path: str) -> str:
        y = self.node("Tanh", [self.linear(x, f"{path}.up")], path)
        return self.node("Add", [x, self.linear(y, f"{path}.down")], path)

    def model(self, **outputs: str) -> onnx.ModelProto:
        for name, value in outputs.items():
            self.nodes.append(onnx.helper.make_node("Identity", [value], [name]))
        results = [onnx.helper.make_empty_tensor_value_info(name) for name in outputs]
        for result in results:
            result.type.tensor_type.elem_type = 1
        tensors = [onnx.numpy_helper.from_array(array, name) for name, array in self.tensors.items()]
        graph = onnx.helper.make_graph(self.nodes, "main_graph", self.inputs, results, tensors)
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


X: list[int | str] = ["batch", 8]
LAYERS = 3


def cached(graph: Graph, x: str, cache: str, path: str) -> tuple[str, str]:
    """A layer that adds to its cache what it computes, and returns both."""
    kept = graph.node("Add", [cache, graph.linear(x, f"{path}.up")], path)
    return graph.node("Add", [x, graph.linear(graph.node("Tanh", [kept], path), f"{path}.down")], path), kept


def separate_caches() -> onnx.ModelProto:
    """Each layer has two inputs of the model, and gives two outputs."""
    names = [f"past_{layer}_{part}" for layer in range(LAYERS) for part in ("key", "value")]
    graph = Graph(x=X, **dict.fromkeys(names, X))
    x, outputs = "x", {}
    for layer in range(LAYERS):
        path = f"layers.{layer}"
        x, key = cached(graph, x, f"past_{layer}_key", path)
        outputs[f"present_{layer}_key"] = key
        outputs[f"present_{layer}_value"] = graph.node("Mul", [x, f"past_{layer}_value"], path)
    return graph.model(y=x, **outputs)


def stacked_cache() -> onnx.ModelProto:
    """One array has the caches of all layers, and so has one result."""
    graph = Graph(x=X, cache=[LAYERS, "batch", 8])
    graph.tensors["axes"] = np.array([0])
    x, made = "x", []
    for layer in range(LAYERS):
        graph.tensors[f"at_{layer}"] = np.array(layer)
        row = graph.node("Gather", ["cache", f"at_{layer}"], axis=0)
        x, kept = cached(graph, x, row, f"layers.{layer}")
        made.append(graph.node("Unsqueeze", [kept, "axes"]))
    return graph.model(y=x, new_cache=graph.node("Concat", made, axis=0))


def every_state() -> onnx.ModelProto:
    """The results of all layers are outputs."""
    graph = Graph(x=X)
    states = ["x"]
    for layer in range(LAYERS):
        states.append(graph.block(states[-1], f"layers.{layer}"))
    return graph.model(y=graph.node("Sum", states), **{f"state_{at}": one for at, one in enumerate(states[1:])})


def with_the_first_value() -> onnx.ModelProto:
    """The first value goes into each layer, beside the result of the one before."""
    graph, x = Graph(x=X), "x"
    for layer in range(LAYERS):
        path = f"layers.{layer}"
        y = graph.node("Add", [graph.linear(x, f"{path}.up"), graph.linear("x", f"{path}.across")], path)
        x = graph.node("Tanh", [y], path)
    return graph.model(y=x)


LOOPS = {
    "with the first value": (with_the_first_value(), ["for layer in self.layers[1:]:"]),
    "separate caches": (
        separate_caches(),
        [
            "for layer, (past_key, past_value) in zip(self.layers, past, strict=True)",
            "present.append((past_key, past_value))",
        ],
    ),
    "a stacked cache": (stacked_cache(), ["in zip(self.layers, cache, strict=True)", "jnp.stack(caches)"]),
    "every state": (every_state(), ["for layer in self.layers:", "states.append(", "*states)"]),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", LOOPS)
def test_layers_with_values_of_their_own_are_a_loop(case: str, framework: str, tmp_path: Path) -> None:
    model, parts = LOOPS[case]
    code = check_model(model, tmp_path, framework)
    for part in parts:
        assert part in code
    assert code.count("    for layer") == 1


def test_a_layer_that_needs_what_is_made_later_ends_the_loop(tmp_path: Path) -> None:
    """What goes into the last layer beside its input is computed from the result of the first."""
    graph = Graph(x=X, cache=X)
    x, _ = cached(graph, "x", "cache", "layers.0")
    later = graph.node("Sigmoid", [x])
    x, _ = cached(graph, x, "cache", "layers.1")
    x, _ = cached(graph, x, later, "layers.2")
    code = check_model(graph.model(y=x), tmp_path, "nnx")
    assert "self.layers[2](" in code


def one_layer() -> onnx.ModelProto:
    graph = Graph(a=X, b=X)
    first = graph.linear("a", "shared")
    return graph.model(y=graph.node("Mul", [first, graph.linear(graph.node("Relu", ["b"]), "shared")]))


def a_block() -> onnx.ModelProto:
    graph = Graph(a=X, b=X)
    first = graph.block("a", "shared")
    return graph.model(y=graph.node("Mul", [first, graph.block("b", "shared")]))


def a_stack() -> onnx.ModelProto:
    graph = Graph(a=X, b=X)
    found = []
    for x in ("a", "b"):
        for layer in range(LAYERS):
            x = graph.block(x, f"tower.layers.{layer}")
        found.append(x)
    return graph.model(y=graph.node("Sub", found))


def in_turns() -> onnx.ModelProto:
    graph = Graph(x=X)
    x = "x"
    for _ in range(LAYERS):
        x = graph.block(x, "shared")
    return graph.model(y=x)


def around_others() -> onnx.ModelProto:
    """The results of one call are used more often than those of another."""
    graph = Graph(x=X)
    first = graph.block("x", "shared")
    second = graph.block(graph.linear(first, "between"), "shared")
    return graph.model(y=graph.node("Add", [first, second]), z=second)


def transposed_once() -> onnx.ModelProto:
    """The weight of a product is transposed once for all calls."""
    graph = Graph(a=X, b=X)
    turned = graph.node("Transpose", [graph.weight("shared.up.weight", 8, 8)], "shared.up")
    results = []
    for x in ("a", "b"):
        product = graph.node("MatMul", [x, turned], "shared.up")
        y = graph.node("Tanh", [graph.node("Add", [product, graph.weight("shared.up.bias", 8)], "shared.up")], "shared")
        results.append(graph.linear(y, "shared.down"))
    return graph.model(y=graph.node("Mul", results))


def a_cell() -> onnx.ModelProto:
    """A recurrent layer that two sequences of different lengths go through."""
    graph = Graph(a=[5, "batch", 8], b=[7, "batch", 8])
    weights = [graph.weight("cell.w", 1, 32, 8), graph.weight("cell.r", 1, 32, 8), graph.weight("cell.b", 1, 64)]
    sums = [graph.node("ReduceSum", [graph.node("LSTM", [x, *weights], "cell", hidden_size=8)]) for x in ("a", "b")]
    return graph.model(y=graph.node("Sub", sums))


def without_scopes(operator: str, shape: list[int], **attributes: object) -> onnx.ModelProto:
    """A layer that two inputs go through, in a file that has no modules: only the names of weights tell."""
    size = [4, 8, 6, 6] if operator == "Conv" else ["batch", 8]
    inputs = [onnx.helper.make_tensor_value_info(name, 1, size) for name in "ab"]
    random = np.random.default_rng(0)
    tensors = {"fc.weight": random.standard_normal(shape), "fc.bias": random.standard_normal(8)}
    made = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in tensors.items()]
    nodes = []
    for name in "ab":
        weights = ["fc.weight"] if operator == "MatMul" else [*tensors]
        nodes.append(onnx.helper.make_node(operator, [name, *weights], [f"{name}_product"], **attributes))
        bias = "fc.bias" if operator == "MatMul" else f"{name}_product"
        nodes.append(onnx.helper.make_node("Add", [bias, f"{name}_product"], [f"{name}_made"]))
    nodes.append(onnx.helper.make_node("Sub", ["a_made", "b_made"], ["y"]))
    outputs = [onnx.helper.make_tensor_value_info("y", 1, None)]
    graph = onnx.helper.make_graph(nodes, "shared", inputs, outputs, made)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


REPEATED = {
    "a layer": (one_layer(), "self.shared(", 2),
    "a block": (a_block(), "self.shared(", 2),
    "a stack": (a_stack(), "self.tower(", 2),
    "in turns": (in_turns(), "for _ in range(3):", 1),
    "around others": (around_others(), "self.shared(", 2),
    "transposed once": (transposed_once(), "self.shared(", 2),
    "a cell": (a_cell(), "lax.scan(", 2),
    "products": (without_scopes("MatMul", [8, 8]), "self.fc(", 2),
    "products with a matrix the other way": (without_scopes("Gemm", [8, 8], transB=1), "self.fc(", 2),
    "convolutions": (without_scopes("Conv", [8, 8, 3, 3]), "self.fc(", 2),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", REPEATED)
def test_a_module_that_is_called_several_times_is_one(case: str, framework: str, tmp_path: Path) -> None:
    model, text, count = REPEATED[case]
    code = check_model(model, tmp_path, framework)
    assert code.count(text) == count
    source = jaxport.from_onnx(model).to_source(framework=framework)
    sizes = [math.prod(tensor.dims) for tensor in model.graph.initializer]
    assert sum(tensor.size for tensor in source.tensors.values()) == sum(sizes)


@pytest.mark.parametrize("path", ["shared", ""])
def test_copies_of_a_weight_are_one_in_its_module(path: str, tmp_path: Path) -> None:
    """An exporter stores a weight for each call of its module; equal tensors elsewhere are two."""
    graph = Graph(a=X, b=X)
    first = graph.node("MatMul", ["a", graph.weight("val_1", 8, 8)], path)
    graph.tensors["val_2"] = graph.tensors["val_1"].copy()
    model = graph.model(y=graph.node("Mul", [first, graph.node("MatMul", ["b", "val_2"], path)]))
    check_model(model, tmp_path, "nnx")
    assert len(jaxport.from_onnx(model).to_source(framework="nnx").tensors) == (1 if path else 2)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("layers.0.up.weight", [f"layers.{layer}.up.weight" for layer in range(LAYERS)]),  # which the importer names
        ("onnx::MatMul_7", ["onnx::MatMul_7"] * LAYERS),
        ("positions.weight", ["positions.weight"]),
    ],
    ids=["element", "made up", "around"],
)
def test_a_weight_that_is_stored_once_for_a_list_belongs_to_each_element(
    name: str, kept: list[str], tmp_path: Path
) -> None:
    """Layers that are copies of one have equal weights before they are trained; a weight around the list is one."""
    graph = Graph(x=X)
    x = "x"
    for layer in range(LAYERS):
        path = f"layers.{layer}"
        x = graph.node("Tanh", [graph.node("MatMul", [x, graph.weight(name, 8, 8)], f"{path}.up")], path)
        x = graph.linear(x, f"{path}.down")
    model = graph.model(y=x)
    code = check_model(model, tmp_path, "nnx")
    assert "for layer in self.layers:" in code
    origins = jaxport.from_onnx(model).to_source(framework="nnx").origins
    assert [origin for origin in origins.values() if ".down." not in origin] == kept


def test_branches_are_written_one_after_the_other(tmp_path: Path) -> None:
    """A file has the nodes of two branches in turns; in the source each branch is one expression."""
    graph = Graph(a=X, b=X)
    first, second = graph.node("Tanh", ["a"]), graph.node("Sigmoid", ["b"])
    first, second = graph.node("Exp", [first]), graph.node("Abs", [second])
    code = check_model(graph.model(y=graph.node("Mul", [first, second])), tmp_path, "nnx")
    assert "return jnp.exp(jnp.tanh(a)) * jnp.abs(nn.sigmoid(b))" in code


def test_a_list_of_several_classes_says_so(tmp_path: Path) -> None:
    """Type checkers would take an element for any of the classes; the elements of one class need no annotation."""
    graph = Graph(x=X)
    x = graph.block("x", "layers.0")
    x = graph.node("Exp", [graph.linear(graph.linear(x, "layers.1.up"), "layers.1.down")], "layers.1")
    code = check_model(graph.model(y=graph.block(x, "layers.2")), tmp_path, "nnx")
    assert "self.layers: nnx.List[Any] = nnx.List(" in code
    assert "List[Any]" not in jaxport.from_onnx(in_turns()).to_source(framework="nnx").code


def test_modules_without_types_that_end_alike_are_one_class(tmp_path: Path) -> None:
    """TorchScript's files have paths of modules only: `ff_1` and `ff_2` are alike, and so are the elements of a list."""
    graph = Graph(x=X)
    x = "x"
    for path in ("blocks.0.first_ff", "blocks.0.second_ff", "blocks.1.first_ff", "blocks.1.second_ff"):
        x = graph.block(x, path)
    model = graph.model(y=x)
    for node in model.graph.node:
        del node.metadata_props[1:]
    code = check_model(model, tmp_path, "nnx")
    assert code.count("(nnx.Module)") == 3
    assert "class Ff(" in code
    assert "class Block(" in code


def around_a_list() -> onnx.ModelProto:
    """`x = tanh(layer(x))`, of layers of different sizes."""
    graph, x = Graph(x=X), "x"
    for layer, (taken, given) in enumerate(((8, 5), (5, 7), (7, 6))):
        path = f"layers.{layer}"
        product = graph.node("MatMul", [x, graph.weight(f"{path}.weight", taken, given)], path)
        x = graph.node("Tanh", [graph.node("Add", [product, graph.weight(f"{path}.bias", given)], path)])
    return graph.model(y=graph.node("Abs", [x]))


def two_lists() -> onnx.ModelProto:
    """`x = x + layer(gate(x) * once)`, where `once` is computed behind the first gate."""
    graph, x, once = Graph(x=X, z=X), "x", ""
    for layer in range(LAYERS):
        gate = graph.node("Sigmoid", [graph.linear(x, f"gates.layers.{layer}")])
        once = once or graph.node("Exp", ["z"])
        x = graph.node("Add", [x, graph.block(graph.node("Mul", [gate, once]), f"layers.{layer}")])
    return graph.model(y=x)


def without_the_last() -> onnx.ModelProto:
    """`x = tanh(layer(x))`, and the last layer without an activation."""
    graph, x = Graph(x=X), "x"
    for layer in range(LAYERS + 1):
        x = graph.linear(x, f"layers.{layer}")
        x = graph.node("Tanh", [x]) if layer < LAYERS else x
    return graph.model(y=x)


def all_states() -> onnx.ModelProto:
    """The result of each round is an output, and the first value goes into each."""
    graph, x, states = Graph(x=X), "x", []
    for layer in range(LAYERS):
        x = graph.node("Add", [graph.node("Tanh", [graph.linear(x, f"layers.{layer}")]), "x"])
        states.append(x)
    return graph.model(**{f"state_{at}": one for at, one in enumerate(states)})


def own_values() -> onnx.ModelProto:
    """Each round has a factor of its own."""
    graph, x = Graph(x=X), "x"
    for layer in range(LAYERS):
        factor = graph.weight(f"factor_{layer}", 8)
        x = graph.node("Mul", [graph.block(x, f"layers.{layer}"), factor])
    return graph.model(y=x)


ROUNDS = {
    "around a list": (around_a_list(), "for layer in self.layers:\n            x = jnp.tanh(layer(x))"),
    "two lists": (two_lists(), "for gates_layer, layer in zip(self.gates_layers, self.layers, strict=True):"),
    "without the last": (without_the_last(), "for layer in self.layers[:3]:"),
    "all states": (all_states(), "in self.layers:"),
    "own values": (own_values(), "in zip("),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", ROUNDS)
def test_operators_between_the_elements_of_a_list_are_in_the_loop(case: str, framework: str, tmp_path: Path) -> None:
    model, text = ROUNDS[case]
    code = check_model(model, tmp_path, framework)
    assert text in code
    assert code.partition("\ndef load(")[0].count("        for ") == 1


def other_operators(number: int) -> str:
    return ("Tanh", "Sigmoid", "Relu")[number]


@pytest.mark.parametrize("different", ["operators", "positions", "operands"])
def test_rounds_that_differ_are_no_loop(different: str, tmp_path: Path) -> None:
    graph, x = Graph(x=X), "x"
    for layer in range(LAYERS):
        place = layer if different != "positions" else (2 * layer) % LAYERS
        operator = other_operators(layer) if different == "operators" else "Tanh"
        y = graph.node(operator, [graph.linear(x, f"layers.{place}")])
        pair = [x, y] if different != "operands" or layer % 2 else [y, x]
        x = graph.node("Sub" if different == "operands" else "Add", pair)
    assert "        for " not in check_model(graph.model(y=x), tmp_path, "nnx")


def test_calls_that_differ_keep_their_weights_together(tmp_path: Path) -> None:
    """Two calls on the same weights that compute different things are no calls of one module: nothing is doubled."""
    graph = Graph(a=X, b=X)
    first = graph.node("Tanh", [graph.linear("a", "shared.up")], "shared")
    second = graph.node("Sigmoid", [graph.linear("b", "shared.up")], "shared")
    x = graph.node("Mul", [graph.linear(first, "shared.down"), graph.linear(second, "shared.down")])
    model = graph.model(y=x)
    check_model(model, tmp_path, "nnx")
    assert len(jaxport.from_onnx(model).to_source(framework="nnx").tensors) == 4


def test_equal_blocks_without_names_before_another_are_a_loop(tmp_path: Path) -> None:
    """Two blocks, one with a layer across it, and one more: the cut is where one value goes on."""
    graph = Graph(x=X)
    x = graph.node("Relu", [graph.linear("x", "stem")])
    for path in ("a", "b"):
        x = graph.node("Relu", [graph.block(x, path)])
    y = graph.linear(graph.node("Tanh", [graph.linear(x, "c.up")]), "c.down")
    x = graph.node("Relu", [graph.node("Add", [graph.linear(x, "c.across"), y])])
    x = graph.node("Relu", [graph.block(x, "d")])
    code = check_model(nameless(graph.model(y=x)), tmp_path, "nnx")
    assert "for layer in self.layers:" in code
    assert "nnx.List([Block(rngs=rngs) for _ in range(2)])" in code


def test_nothing_but_the_number_of_rows_decides(tmp_path: Path) -> None:
    """Of an array with more rows than layers the rows are taken one by one."""
    model = stacked_cache()
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = LAYERS + 1
    inputs = {
        "x": np.ones((2, 8), np.float32),
        "cache": np.random.default_rng(0).standard_normal((4, 2, 8)).astype(np.float32),
    }
    code = check(model, inputs, tmp_path)
    assert "cache[2]" in code
