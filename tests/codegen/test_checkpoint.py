"""Checkpoints of PyTorch: each weight of a printed model from its entry of the state dict, or no `load_pytorch` at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import jaxport
from tests.codegen.structured import load
from tests.codegen.test_structured import FRAMEWORKS

CLASSES = {
    "table": "torch.nn.modules.sparse.Embedding",
    "layers": "torch.nn.modules.container.ModuleList",
    "up": "torch.nn.modules.linear.Linear",
    "norm": "torch.nn.modules.normalization.LayerNorm",
    "conv": "torch.nn.modules.conv.Conv1d",
}
RANDOM = np.random.default_rng(0)
STATE = {
    name: RANDOM.standard_normal(shape).astype(np.float32)
    for name, shape in {
        "table.weight": (7, 4),
        "layers.0.up.weight": (4, 4),
        "layers.0.up.bias": (4,),
        "layers.0.norm.weight": (4,),
        "layers.0.norm.bias": (4,),
        "layers.1.up.weight": (4, 4),
        "layers.1.up.bias": (4,),
        "layers.1.norm.weight": (4,),
        "layers.1.norm.bias": (4,),
        "conv.weight": (6, 4, 3),
        "conv.bias": (6,),
    }.items()
}
IDS = np.array([[1, 2, 3, 6, 0]])


def exported(state: dict[str, np.ndarray], scope: str = "") -> onnx.ModelProto:
    """A model as PyTorch's exporter writes it: the weights of `Linear` are transposed, and are called `val_…`.

    Args:
      state: the weights.
      scope: where the convolution is said to be, if not where it is.
    """
    tensors, nodes = {}, []

    def node(operator: str, inputs: list[str], output: str, path: str, **attributes: object) -> str:
        made = onnx.helper.make_node(operator, inputs, [output], **attributes)
        paths = [".".join(path.split(".")[: end + 1]) for end in range(path.count(".") + 1)] if path else []
        paths = [one for one in paths if one != "layers"]
        types = [CLASSES.get(one.rpartition(".")[2], "my.Block") for one in paths]
        made.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", *paths, "call"]))
        made.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=str(["my.Model", *types, operator]))
        for name in inputs:
            if name in state:
                tensors[name] = state[name]
        nodes.append(made)
        return output

    x = node("Gather", ["table.weight", "ids"], "embedding", "table")
    for layer in range(2):
        at = f"layers.{layer}"
        tensors[f"val_{layer}"] = np.ascontiguousarray(state[f"{at}.up.weight"].T)
        y = node("MatMul", [x, f"val_{layer}"], f"product_{layer}", f"{at}.up")
        y = node("Add", [y, f"{at}.up.bias"], f"up_{layer}", f"{at}.up")
        y = node("LayerNormalization", [y, f"{at}.norm.weight", f"{at}.norm.bias"], f"norm_{layer}", f"{at}.norm")
        x = node("Add", [x, y], f"sum_{layer}", at)
    x = node("Transpose", [x], "turned", "", perm=[0, 2, 1])
    node("Conv", [x, "conv.weight", "conv.bias"], "y", scope or "conv", pads=[1, 1])
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()]
    ids = onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch", "length"])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 6, "length"])
    graph = onnx.helper.make_graph(nodes, "main_graph", [ids], [y], initializers)
    opset = onnx.helper.make_opsetid("", 20)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10, producer_name="pytorch")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_another_checkpoint_is_loaded(framework: str, tmp_path: Path) -> None:
    source = jaxport.from_onnx(exported(STATE)).to_source(tmp_path, framework=framework)
    assert '"layers.{}.up.' in source.code
    other = {name: array + np.float32(0.1) for name, array in STATE.items()}
    program = jaxport.from_onnx(exported(other))
    found = load(tmp_path).load_pytorch(other)(IDS)
    np.testing.assert_allclose(found, program(IDS), rtol=1e-5, atol=1e-5)
    (expected,) = onnx.reference.ReferenceEvaluator(exported(other)).run(None, {"ids": IDS})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    jaxport.from_onnx(exported(STATE)).to_source(tmp_path, framework="nnx")
    module = load(tmp_path)
    wrong = STATE | {"conv.weight": np.zeros((6, 4, 5), np.float32), "head.weight": np.zeros((2, 2), np.float32)}
    del wrong["layers.1.up.bias"]
    with pytest.raises(ValueError, match="state dict") as raised:
        module.load_pytorch(wrong)
    for part in (
        "`layers.1.up.bias` is missing",
        "`conv.weight` has shape (6, 4, 5), not (6, 4, 3)",
        "`head.weight` has no place in the model",
    ):
        assert part in str(raised.value)


def renamed(model: onnx.ModelProto, before: str, after: str) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        tensor.name = after if tensor.name == before else tensor.name
    for node in model.graph.node:
        node.input[:] = [after if name == before else name for name in node.input]
    return model


def of_another_producer() -> onnx.ModelProto:
    model = exported(STATE)
    model.producer_name = "jaxport"
    return model


def with_merged_tensors() -> onnx.ModelProto:
    """Equal elements of all layers are one tensor, as exporters leave new weights."""
    ones = {name: np.ones_like(array) if "norm" in name else array for name, array in STATE.items()}
    return renamed(exported(ones), "layers.1.norm.weight", "layers.0.norm.weight")


UNKNOWN = {
    "another producer": of_another_producer(),
    "a name that was made up": renamed(exported(STATE), "conv.weight", "val_7"),
    "a name of elsewhere": renamed(exported(STATE), "layers.1.up.bias", "layers.0.norm.scale"),
    "a fused operator": exported(STATE, scope="batch_norm"),
    "merged tensors": with_merged_tensors(),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_without_a_known_entry_nothing_is_printed(case: str) -> None:
    source = jaxport.from_onnx(UNKNOWN[case], ties="keep").to_source(framework="nnx")
    assert "def load(" in source.code
    assert "pytorch" not in source.code.lower()


def test_merged_vectors_of_one_value_are_entries_of_their_own() -> None:
    source = jaxport.from_onnx(with_merged_tensors()).to_source(framework="nnx")
    assert '"layers.{}.norm.scale": ("layers.{}.norm.weight", (0,))' in source.code
