"""Files that name weights by their places, `base_net.1.0.weight`, and no nodes: modules and loops as with scopes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import jaxport
from jaxport.codegen.structure.modules.ties import place_shared
from jaxport.codegen.tree import Op
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Step, Variable
from tests.codegen import structured
from tests.codegen.test_structured import FRAMEWORKS

RANDOM = np.random.default_rng(0)


class Plain:
    """A model whose nodes have no names."""

    def __init__(self, *sizes: int | str):
        self.sizes, self.tensors, self.nodes = sizes, dict[str, np.ndarray](), list[onnx.NodeProto]()

    def node(self, operator: str, *inputs: str, **attributes: object) -> str:
        self.nodes.append(onnx.helper.make_node(operator, inputs, [f"v{len(self.nodes)}"], **attributes))
        return f"v{len(self.nodes) - 1}"

    def layer(self, x: str, path: str, *kernel: int, **attributes: object) -> str:
        """A convolution, or a linear layer if its kernel is a matrix."""
        self.tensors[f"{path}.weight"] = RANDOM.normal(0, 0.4, kernel).astype(np.float32)
        self.tensors[f"{path}.bias"] = RANDOM.normal(0, 0.4, kernel[:1]).astype(np.float32)
        operator = "Gemm" if len(kernel) == 2 else "Conv"
        options: dict[str, object] = {"transB": 1} if len(kernel) == 2 else {"pads": [kernel[-1] // 2] * 4}
        return self.node(operator, x, f"{path}.weight", f"{path}.bias", **{**options, **attributes})

    def model(self, y: str) -> onnx.ModelProto:
        self.nodes.append(onnx.helper.make_node("Identity", [y], ["y"]))
        values = [
            onnx.helper.make_tensor_value_info("x", 1, self.sizes),
            onnx.helper.make_tensor_value_info("y", 1, None),
        ]
        tensors = [onnx.numpy_helper.from_array(array, name) for name, array in self.tensors.items()]
        graph = onnx.helper.make_graph(self.nodes, "net", values[:1], values[1:], tensors)
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def depthwise() -> onnx.ModelProto:
    """MobileNet: numbered blocks of numbered layers, whose normalizations an exporter folded."""
    made = Plain("batch", 3, 8, 8)
    x = made.node("Relu", made.layer("x", "base_net.0.0", 4, 3, 3, 3))
    for block in range(1, 5):
        x = made.node("Relu", made.layer(x, f"base_net.{block}.0", 4, 1, 3, 3, group=4))
        x = made.node("Relu", made.layer(x, f"base_net.{block}.3", 4, 4, 1, 1))
    return made.model(made.layer(made.node("Flatten", made.node("GlobalAveragePool", x)), "head", 2, 4))


def residual() -> onnx.ModelProto:
    """Numbered blocks that are added to what they are given."""
    made = Plain("batch", 3, 8, 8)
    x = made.node("Relu", made.layer("x", "features.0.0", 4, 3, 3, 3))
    for block in range(1, 4):
        y = made.node("Relu", made.layer(x, f"features.{block}.conv.0.0", 6, 4, 1, 1))
        x = made.node("Add", x, made.layer(y, f"features.{block}.conv.1", 4, 6, 3, 3))
    return made.model(x)


def at_the_top() -> onnx.ModelProto:
    """A `Sequential` that is the model: `0.weight`, `2.weight`, `5.weight`."""
    made = Plain("batch", 3, 8, 8)
    x = made.node("Relu", made.layer("x", "0", 4, 3, 3, 3))
    x = made.node("Relu", made.layer(x, "2", 4, 4, 3, 3))
    return made.model(made.layer(made.node("Flatten", x), "5", 2, 4 * 64))


def far_apart() -> onnx.ModelProto:
    """Layers whose numbers are far apart."""
    made = Plain("batch", 8)
    x = made.node("Relu", made.layer("x", "net.0", 8, 8))
    return made.model(made.node("Relu", made.layer(x, "net.7", 8, 8)))


def perceptron(names: str) -> onnx.ModelProto:
    made = Plain("batch", 8)
    x = "x"
    for number in range(4):
        x = made.node("Relu", made.layer(x, names.format(number), 8, 8))
    return made.model(x)


CASES = {
    "depthwise": (depthwise, ["self.base_net = Sequential(", "for _ in range(4)", "self.base_net(x"], {"base_net.4.3"}),
    "residual": (residual, ["for feature in self.features[1:]:", "x + feature(x)"], {"features.3.1"}),
    "at the top": (at_the_top, ["self.layers = Sequential(", "self.layers(x"], {"layers.0", "layers.2", "layers.5"}),
    "far apart": (far_apart, ["self.net_0 =", "self.net_7 ="], {"net_0", "net_7"}),
    "numbered": (lambda: perceptron("net.{}"), ["in self.net:", "range(4)"], {"net.0", "net.3"}),
    "named": (lambda: perceptron("fc{}"), ["self.fc0 =", "self.fc3 ="], {"fc0", "fc3"}),
    "counted": (lambda: perceptron("dense_{}"), ["for layer in self.layers:", "range(4)"], {"layers.0", "layers.3"}),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", CASES)
def test_numbered_weights_are_nested_modules_and_loops(case: str, framework: str, tmp_path: Path):
    make, texts, paths = CASES[case]
    model = make()
    sizes = [size.dim_value or 2 for size in model.graph.input[0].type.tensor_type.shape.dim]
    x = RANDOM.normal(size=sizes).astype(np.float32)
    code = structured.check(model, {"x": x}, tmp_path, framework)
    assert not [text for text in texts if text not in code]
    assert "nn.identity for" not in code
    source = jaxport.from_onnx(model).to_source(framework=framework)
    assert paths <= {path.rpartition(".")[0].replace(".layers.", ".") for path in source.origins}


def transposed() -> onnx.ModelProto:
    """Kernels that an exporter transposed, and named by itself; the biases have their names."""
    made = Plain("batch", 8)
    x = "x"
    for number, path in enumerate(("encoder.up", "encoder.down")):
        made.tensors[f"val_{number}"] = RANDOM.normal(0, 0.4, (8, 8)).astype(np.float32)
        made.tensors[f"{path}.bias"] = RANDOM.normal(0, 0.4, 8).astype(np.float32)
        x = made.node("Tanh", made.node("Add", f"{path}.bias", made.node("MatMul", x, f"val_{number}")))
    return made.model(x)


def distributed() -> onnx.ModelProto:
    """The same layers for each part of a sequence, whose weights have names without paths."""
    made = Plain("batch", 4, 2, 8, 8)
    for name, kernel in (("td/a", (4, 2, 3, 3)), ("td/b", (4, 4, 3, 3))):
        made.tensors[name] = RANDOM.normal(0, 0.4, kernel).astype(np.float32)
    parts = []
    for at in range(4):
        made.tensors[f"at {at}"] = np.array(at)
        part = made.node("Gather", "x", f"at {at}", axis=1)
        part = made.node("Relu", made.node("Conv", part, "td/a", pads=[1] * 4))
        made.tensors["axis"] = np.array([1])
        parts.append(made.node("Unsqueeze", made.node("Conv", part, "td/b", pads=[1] * 4), "axis"))
    return made.model(made.node("Concat", *parts, axis=1))


def tied() -> onnx.ModelProto:
    """A table whose rows are looked up, and that the last product reads, too."""
    made = Plain("batch", 8)
    made.tensors |= {"wte.weight": RANDOM.normal(size=(20, 8)).astype(np.float32), "ids": np.arange(3)}
    x = made.node("Add", made.node("Gather", "wte.weight", "ids"), made.node("Unsqueeze", "x", "axes"))
    made.tensors["axes"] = np.array([1])
    return made.model(made.node("MatMul", x, made.node("Transpose", "wte.weight", perm=[1, 0])))


NAMED = {
    "transposed": (
        transposed,
        {"nnx": ["self.up = ", "self.encoder = "], "equinox": ["self.up = ", "self.encoder = "]},
    ),
    "distributed": (distributed, {"nnx": ["self.conv = nnx.Conv("], "equinox": ["self.conv = "]}),
    "tied": (tied, {"nnx": ["self.wte.attend("], "equinox": ["@ self.wte.weight.T"]}),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", NAMED)
def test_weights_belong_to_layers(case: str, framework: str, tmp_path: Path):
    make, texts = NAMED[case]
    model = make()
    sizes = [size.dim_value or 2 for size in model.graph.input[0].type.tensor_type.shape.dim]
    code = structured.check(model, {"x": RANDOM.normal(size=sizes).astype(np.float32)}, tmp_path, framework)
    assert not [text for text in texts[framework] if text not in code]
    assert "nnx.Param(" not in code


def test_a_kernel_that_multiplies_a_constant_is_no_layer():
    """SAM multiplies a grid of positions with the matrix that it multiplies points with."""
    kernel, x = (Variable(shape, np.dtype(np.float32), "x") for shape in ((2, 4), (3, 2)))
    grid = HostValue(np.ones((3, 2), np.float32))
    ops = []
    for operand in (grid, x):
        out = Variable((3, 4), np.dtype(np.float32), "y")
        inputs = tuple(one for one in (operand, kernel) if isinstance(one, Variable))
        ops.append(Op("MatMul", Step("operator", "@", (operand, kernel), {}, out, None), inputs, (out,)))
    chains = dict.fromkeys(ops, ())
    place_shared(ops, chains, {kernel: "kernel"})
    assert not any(chains.values())
