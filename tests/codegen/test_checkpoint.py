"""Checkpoints of PyTorch: each weight of a printed model from its entry of the state dict, or no `load_pytorch` at all."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from safetensors.flax import save_file

import jaxport
from jaxport.onnx_facts import STATE_DICT
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
        "1 missing: `layers.1.up.bias`",
        "1 that differ: `conv.weight` has shape (6, 4, 5), not (6, 4, 3)",
        "1 with no place in the model: `head.weight`",
    ):
        assert part in str(raised.value)


class Tensor:
    """What a printed model sees of a tensor of PyTorch, of a type that NumPy may not have."""

    def __init__(self, array: np.ndarray):
        self.array, self.shape, self.detach = array, array.shape, None

    def numpy(self, force: bool) -> np.ndarray:
        assert force  # it may require gradients, or be elsewhere
        if self.array.dtype.kind == "V":
            raise TypeError(f"Got unsupported ScalarType {self.array.dtype}")
        return self.array

    def float(self) -> Tensor:
        return Tensor(self.array.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "float8_e4m3fn", "int8"])
def test_a_checkpoint_has_any_type(dtype: str, tmp_path: Path) -> None:
    jaxport.from_onnx(exported(STATE)).to_source(tmp_path, framework="nnx")
    rounded = {name: (3 * array).astype(jnp.dtype(dtype)) for name, array in STATE.items()}
    found = load(tmp_path).load_pytorch({name: Tensor(array) for name, array in rounded.items()})(IDS)
    program = jaxport.from_onnx(exported({name: array.astype(np.float32) for name, array in rounded.items()}))
    np.testing.assert_allclose(found, program(IDS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_checkpoint_is_a_path(framework: str, tmp_path: Path) -> None:
    jaxport.from_onnx(exported(STATE)).to_source(tmp_path / "printed", framework=framework)
    module, state = (
        load(tmp_path / "printed"),
        {name: jnp.asarray(array, jnp.bfloat16) for name, array in STATE.items()},
    )
    expected = module.load_pytorch(state)(IDS)
    names = sorted(state)
    parts = {"model-1-of-2.safetensors": names[:4], "model-2-of-2.safetensors": names[4:]}
    sharded, whole = tmp_path / "sharded", tmp_path / "whole"
    for folder in (sharded, whole):
        folder.mkdir()
    for file, some in parts.items():
        save_file({name: state[name] for name in some}, sharded / file)
    index = {"metadata": {}, "weight_map": {name: file for file, some in parts.items() for name in some}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file(state, whole / "model.safetensors")
    for path in (sharded, whole, whole / "model.safetensors", str(whole)):
        np.testing.assert_array_equal(module.load_pytorch(path)(IDS), expected)


def test_the_first_ten_names_are_told_and_prefixes_offered(tmp_path: Path) -> None:
    jaxport.from_onnx(exported(STATE)).to_source(tmp_path, framework="nnx")
    module = load(tmp_path)
    expected = module.load_pytorch(STATE)(IDS)
    for prefix in ("module.", "model.", "_orig_mod.", "model.encoder."):
        state = {prefix + name: array for name, array in STATE.items()}
        with pytest.raises(ValueError, match=re.escape(f"give `prefix='{prefix}'`")):
            module.load_pytorch(state)
        np.testing.assert_array_equal(module.load_pytorch(state, prefix=prefix)(IDS), expected)
    with pytest.raises(
        ValueError, match=r"11 missing: (`[\w.]+`, ){9}`[\w.]+`, …; 30 with no place in the model: (`x\d`, ){10}…"
    ):
        module.load_pytorch({f"x{number}": np.ones(1) for number in range(30)})


@pytest.mark.parametrize(
    ("checkpoint", "why"),
    [
        (type("Module", (), {"state_dict": None})(), r"give its `state_dict\(\)`, not an object of type `Module`"),
        ({"state_dict": STATE, "epoch": 3}, r"may be in the entries \['state_dict'\]"),
        (3, "give a state dict, or a path, not an object of type `int`"),
    ],
)
def test_what_is_no_checkpoint_is_told(checkpoint: object, why: str, tmp_path: Path) -> None:
    jaxport.from_onnx(exported(STATE)).to_source(tmp_path, framework="nnx")
    with pytest.raises(TypeError, match=why):
        load(tmp_path).load_pytorch(checkpoint)


def test_tied_entries_that_differ_are_refused(tmp_path: Path) -> None:
    model = exported(STATE)
    names = {name: name for name in STATE} | {"head.weight": "table.weight", "shift": "shift", "unused": "unused"}
    model.metadata_props.add(key=STATE_DICT, value=json.dumps(names))
    jaxport.from_onnx(model).to_source(tmp_path, framework="nnx")
    module = load(tmp_path)
    expected = module.load_pytorch(STATE)(IDS)
    tied = {**STATE, "head.weight": STATE["table.weight"].astype(np.float64), "unused": np.ones(3)}
    np.testing.assert_array_equal(module.load_pytorch(tied)(IDS), expected)
    alias = {{"table.weight": "head.weight"}.get(name, name): array for name, array in STATE.items()}
    np.testing.assert_array_equal(module.load_pytorch(alias)(IDS), expected)
    with pytest.raises(
        ValueError, match=r"`table\.weight` and `head\.weight` are one tensor in this model, and differ"
    ):
        module.load_pytorch({**STATE, "head.weight": STATE["table.weight"] + 1})


def with_tied_head() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model whose head has the table as its weight, under the head's name, and that transposed as another tensor."""
    table = STATE["table.weight"]
    nodes = [
        onnx.helper.make_node("Gather", ["head.weight", "ids"], ["x"]),
        onnx.helper.make_node("Tanh", ["x"], ["a"]),
        onnx.helper.make_node("MatMul", ["a", "val_3"], ["y"]),
    ]
    for node, path in zip(nodes, ("table", "", "head"), strict=True):
        paths, types = ([path], [CLASSES["up" if path == "head" else path]]) if path else ([], [])
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", *paths, "call"]))
        node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=str(["my.Model", *types, "call"]))
    stored = {"head.weight": table, "val_3": np.ascontiguousarray(table.T)}
    graph = onnx.helper.make_graph(
        nodes,
        "tied",
        [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["b", "n"])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["b", "n", 7])],
        [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 18)]
    made = onnx.helper.make_model(graph, producer_name="pytorch", opset_imports=opsets, ir_version=10)
    return made, {"table.weight": table, "head.weight": table}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_head_whose_transpose_is_stored_is_one_parameter_with_two_entries(framework: str, tmp_path: Path) -> None:
    made, state = with_tied_head()
    jaxport.from_onnx(made).to_source(tmp_path, framework=framework)
    module = load(tmp_path)
    changed = {name: 2 * array + 1 for name, array in state.items()}
    loaded = module.load_pytorch(changed)
    expected = np.tanh(changed["table.weight"][IDS]) @ changed["head.weight"].T
    np.testing.assert_allclose(loaded(jnp.asarray(IDS)), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"`head.weight` and `table.weight` are one tensor in this model, and differ"):
        module.load_pytorch(changed | {"table.weight": state["table.weight"]})


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


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", ["recurrent", "both_ways"])
def test_gates_are_loaded_in_the_order_of_the_cell(name: str, framework: str, tmp_path: Path) -> None:
    path, x = (
        Path(__file__).parent / "fresh" / f"{name}.plain.onnx",
        RANDOM.standard_normal((2, 5, 4)).astype(np.float32),
    )
    code = jaxport.from_onnx(path).to_source(tmp_path, framework=framework).code
    assert "optimization_barrier" not in code  # each direction is a cell
    module, model, state = load(tmp_path), onnx.load(path), {}
    for tensor in model.graph.initializer:
        if tensor.name in {name for name, _ in module.PYTORCH.values()}:
            array = onnx.numpy_helper.to_array(tensor)
            state[tensor.name] = array + RANDOM.standard_normal(array.shape).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(state[tensor.name], tensor.name))
    expected = jaxport.from_onnx(model)(x)
    np.testing.assert_allclose(module.load_pytorch(state)(x), expected, rtol=1e-5, atol=1e-6)


def reshaped_entries() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model whose parameters have axes of one element more in the state dict than in their layers."""
    shapes = {"conv.weight": (6, 4, 1), "conv.bias": (6, 1), "head.weight": (5, 6, 1), "head.bias": (1, 5),
        "experts.weight": (2, 5, 3), "experts.bias": (2, 1, 3)}  # fmt: skip
    state = {name: RANDOM.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "conv.weight"], ["a"]),
        node("Add", ["a", "conv.bias"], ["b"]),
        node("Transpose", ["b"], ["c"], perm=[0, 2, 1]),
        node("Squeeze", ["head.weight", "last"], ["d"]),
        node("Transpose", ["d"], ["e"], perm=[1, 0]),
        node("MatMul", ["c", "e"], ["f"]),
        node("Add", ["f", "head.bias"], ["g"]),
        node("MatMul", ["g", "experts.weight"], ["h"]),
        node("Add", ["h", "experts.bias"], ["y"]),
    ]
    for one in nodes:
        paths = sorted({name.partition(".")[0] for name in one.input if "." in name})
        one.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", *paths, "call"]))
        one.metadata_props.add(
            key="pkg.torch.onnx.class_hierarchy", value=str(["my.Model", *("my.Block" for _ in paths), "call"])
        )
    graph = onnx.helper.make_graph(
        nodes, "reshaped",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 4, 7])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 7, 3])],
        [onnx.numpy_helper.from_array(array, name) for name, array in (state | {"last": np.array([2])}).items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 18)]
    return onnx.helper.make_model(graph, producer_name="pytorch", opset_imports=opsets, ir_version=10), state


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_entries_of_another_shape_are_loaded(framework: str, tmp_path: Path) -> None:
    model, state = reshaped_entries()
    jaxport.from_onnx(model).to_source(tmp_path, framework=framework)
    module, x = load(tmp_path), RANDOM.standard_normal((2, 4, 7)).astype(np.float32)
    other = {name: 2 * array + 1 for name, array in state.items()}
    for tensor in model.graph.initializer:
        if tensor.name in other:
            tensor.CopyFrom(onnx.numpy_helper.from_array(other[tensor.name], tensor.name))
    np.testing.assert_allclose(module.load_pytorch(other)(x), jaxport.from_onnx(model)(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"`conv.bias` has shape \(6,\), not \(6, 1\)"):
        module.load_pytorch(other | {"conv.bias": other["conv.bias"].ravel()})
