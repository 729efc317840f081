"""Sequences and optional values of known length: a crate has so many tensors, in the order of the sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import jaxport
from jaxport.codegen.burn.crate import elements, to_crate
from jaxport.codegen.recorded.fused import record_fused
from jaxport.errors import Unsupported
from tests.burn.crates import Built, RunError, build, case_of


class File(NamedTuple):
    """A model, and inputs by name."""

    model: onnx.ModelProto
    inputs: Mapping[str, Any]


def floats(name: str, shape: list[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def sequence(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)


def optional(name: str) -> onnx.ValueInfoProto:
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"])
    return helper.make_value_info(name, helper.make_optional_type_proto(inner))


def model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> Any:
    numbers = [helper.make_tensor(f"at{k}", TensorProto.INT64, [], [k]) for k in (0, 1, 2)]
    graph = helper.make_graph(nodes, "sequences", inputs, outputs, numbers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def node(*words: Any, **attributes: Any) -> onnx.NodeProto:
    kind, inputs, outputs = words
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


FILES = {
    "of inputs": File(
        model(
            [
                node("SequenceInsert", "xs y at1", "zs"), node("SequenceErase", "zs at0", "rest"),
                node("ConcatFromSequence", "zs", "all", axis=0), node("SequenceAt", "rest at1", "one"),
                node("Relu", "one", "positive"),
            ],
            [sequence("xs"), floats("y", ["n", 4])],
            [sequence("zs"), floats("all", None), floats("positive", None)],
        ),
        {"xs": [some(2, 4), some(3, 4)], "y": some(1, 4)},
    ),
    "of parts": File(
        model(
            [
                node("SplitToSequence", "x at2", "parts", axis=1), node("SequenceAt", "parts at0", "xs[0]"),
                node("SequenceLength", "parts", "count"),
            ],
            [floats("x", [3, 5])],
            [sequence("parts"), floats("xs[0]", None), helper.make_tensor_value_info("count", TensorProto.INT64, [])],
        ),
        {"x": some(3, 5)},
    ),
    "names of others": File(
        model([node("SequenceConstruct", "x x", "xs"), node("Neg", "x", "xs[0]")], [floats("x", [3])], [sequence("xs"), floats("xs[0]", None)]),
        {"x": some(3)},
    ),
    "optional": File(
        model(
            [node("OptionalGetElement", "x", "e"), node("Relu", "e", "y"), node("OptionalHasElement", "x", "has")],
            [optional("x")],
            [floats("y", ["n"]), helper.make_tensor_value_info("has", TensorProto.BOOL, [])],
        ),
        {"x": some(3)},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled() -> Built:
    cases = {}
    for name, file in FILES.items():
        program = jaxport.from_onnx(file.model)
        specs = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), file.inputs)
        cases[name] = case_of(to_crate(record_fused(program, specs)), f"sequences {name}")
    return build(cases, "sequences")


@pytest.mark.burn
@pytest.mark.parametrize("name", FILES)
def test_a_sequence_is_its_elements(name: str, compiled: Built) -> None:
    assert not compiled.errors.get(name), "\n".join(compiled.errors[name])
    assert not compiled.warnings.get(name), "\n".join(compiled.warnings[name])
    file = FILES[name]
    program = jaxport.from_onnx(file.model)
    with jax.enable_x64(True):
        results = program(**file.inputs)
    results = results if isinstance(results, tuple) else (results,)
    expected = elements(dict(zip(program.output_names, results, strict=True)))
    outputs = compiled.run(name, elements(file.inputs))
    assert not isinstance(outputs, RunError), outputs.message
    assert outputs.keys() == expected.keys()
    for key, wanted in expected.items():
        np.testing.assert_array_equal(outputs[key].reshape(np.shape(wanted)), np.asarray(wanted), key)


def test_elements_have_names_of_their_own() -> None:
    program = jaxport.from_onnx(FILES["names of others"].model)
    source = program.to_source(framework="burn")
    assert [*source.sample[1]] == ["xs[0]_2", "xs[1]", "xs[0]"]


def test_an_absent_result_is_refused() -> None:
    absent = helper.make_node("Optional", [], ["none"], type=helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    program = jaxport.from_onnx(
        model([absent, node("Relu", "x", "y")], [floats("x", [3])], [optional("none"), floats("y", [3])])
    )
    with pytest.raises(Unsupported, match=r"a result that is not an array +`none` +Let the model return arrays"):
        program.to_source(framework="burn")
