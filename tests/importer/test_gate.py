"""Every tensor of a file passes through one gate: none is read that names a file elsewhere, or that is malformed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

from jaxport.errors import ModelError
from jaxport.importer import from_onnx
from jaxport.importer.limits import Budget, Limits
from jaxport.importer.loading.gate import Gate, tensors
from jaxport.importer.loading.mapping import Buffer
from jaxport.importer.values.stored import tensor_value
from tests.fuzzing.opened import opened_files
from tests.importer.models import model

X = np.ones(2, np.float32)
TENSOR, SPARSE = onnx.TensorProto.DESCRIPTOR, onnx.SparseTensorProto.DESCRIPTOR
OUTSIDE = "/etc/hostname"


def paths(kind: Any, seen: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The fields that lead from a message to a tensor, by the schema that ONNX's own package has; each type once a path."""
    for field in kind.fields:
        inner = field.message_type
        if inner is None or inner.full_name in seen:
            continue
        if inner.full_name == TENSOR.full_name:
            yield (field.name,)
        else:
            yield from ((field.name, *rest) for rest in paths(inner, (*seen, kind.full_name)))


PATHS = list(paths(onnx.ModelProto.DESCRIPTOR))


def planted(path: tuple[str, ...]) -> tuple[onnx.ModelProto, onnx.TensorProto]:
    """A model with a tensor at the end of a path of fields."""
    made = model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    message: Any = made
    for name in path:
        value = getattr(message, name)
        if hasattr(value, "add"):
            message = value.add()
        else:
            value.SetInParent()
            message = value
    message.name, message.data_type = "planted", TensorProto.FLOAT
    message.dims.append(2)
    return made, message


def make_external(tensor: onnx.TensorProto, location: str) -> None:
    for field in ("float_data", "raw_data", "int64_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


def test_the_paths_to_tensors_are_those_that_are_known():
    """Attributes of nodes, of nodes in graphs of attributes, of functions and of training are among them."""
    for wanted in (
        ("graph", "initializer"),
        ("graph", "sparse_initializer", "values"),
        ("graph", "node", "attribute", "tensors"),
        ("functions", "attribute_proto", "t"),
        ("functions", "node", "attribute", "sparse_tensors", "indices"),
        ("training_info", "algorithm", "initializer"),
        ("graph", "node", "attribute", "g", "initializer"),
    ):
        assert wanted in PATHS or wanted[-2:] in [path[-2:] for path in PATHS], wanted


@pytest.mark.parametrize("path", PATHS, ids=".".join)
@pytest.mark.parametrize("form", ["path", "bytes", "proto"])
def test_no_tensor_escapes_the_gate(path: tuple[str, ...], form: str, tmp_path: Path):
    made, tensor = planted(path)
    make_external(tensor, OUTSIDE)
    file = tmp_path / "m.onnx"
    file.write_bytes(made.SerializeToString())
    sources: dict[str, Any] = {"path": file, "bytes": file.read_bytes(), "proto": made}
    with opened_files() as opened, pytest.raises(ModelError):
        from_onnx(sources[form])
    assert OUTSIDE not in opened
    assert (str(file) in opened) is (form == "path")
    assert [tensor.field for tensor in tensors(made)], "the gate has seen it"


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_every_tensor_is_checked(path: tuple[str, ...]):
    made, _ = planted(path)  # of two elements, and without data
    with pytest.raises(ModelError, match=r"needs 2 elements, the tensor has 0|is not an ONNX element type"):
        Gate(None, (), "the model", Budget(Limits())).pass_through(made)


FUNCTION = """<domain: "d", opset_import: ["": 18]> F <by: tensor = float[2] {1, 2}> (x) => (y)
    { f = Constant<value: tensor = @by>() y = Mul(x, f) }"""


def with_default() -> tuple[onnx.ModelProto, onnx.TensorProto]:
    made = model("g (float[2] x) => (float[2] y) { y = d.F(x) }", functions=FUNCTION, domains=', "d": 1')
    return made, made.functions[0].attribute_proto[0].t


def with_argument() -> tuple[onnx.ModelProto, onnx.TensorProto]:
    text = "g (float[2] x) => (float[2] y) { y = d.F<by: tensor = float[2] {3, 4}>(x) }"
    made = model(text, functions=FUNCTION, domains=', "d": 1')
    return made, made.graph.node[0].attribute[0].t


def with_constant() -> tuple[onnx.ModelProto, onnx.TensorProto]:
    made = model("g (float[2] x) => (float[2] y) { c = Constant<value = float[2] {1, 2}>() y = Mul(x, c) }")
    return made, made.graph.node[0].attribute[0].t


def with_sparse() -> tuple[onnx.ModelProto, onnx.TensorProto]:
    made = sparse_model([2], [7, 8], [0, 1])
    return made, made.graph.sparse_initializer[0].values


@pytest.mark.parametrize("make", [with_default, with_argument, with_constant, with_sparse])
def test_data_beside_the_model_is_read_wherever_the_tensor_is(make: Callable[[], Any], tmp_path: Path):
    made, tensor = make()
    make_external(tensor, "data.bin")
    (tmp_path / "data.bin").write_bytes(np.array([5, 6], np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    expected = [5, 6] if make is not with_sparse else [6, 7]
    np.testing.assert_array_equal(from_onnx(tmp_path / "m.onnx")(X), expected)
    for other in (made, made.SerializeToString()):
        with pytest.raises(ModelError, match="no folder is known"):
            from_onnx(other)


def test_a_list_of_tensors_is_taken_from_beside_the_model(tmp_path: Path):
    made = model("g (float[2] x) => (float[2] y) { y = d.F(x) }", functions=FUNCTION, domains=', "d": 1')
    attribute = made.graph.node[0].attribute.add(name="several", type=onnx.AttributeProto.TENSORS)
    attribute.tensors.add(name="t", data_type=TensorProto.FLOAT, dims=[2])
    make_external(attribute.tensors[0], "data.bin")
    (tmp_path / "data.bin").write_bytes(np.array([5, 6], np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    program = from_onnx(tmp_path / "m.onnx")
    (value,) = program.body.nodes[0].attributes["several"]
    np.testing.assert_array_equal(value.data, [5, 6])


@pytest.mark.parametrize("folder", ["own", "none", "other"])
def test_tensors_of_an_ir_model_lie_in_its_folder(folder: str, tmp_path: Path):
    made = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    make_external(made.graph.initializer[0], "data.bin")
    (tmp_path / "data.bin").write_bytes(np.array([5, 6], np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    loaded = ir.load(tmp_path / "m.onnx")
    tensor: Any = loaded.graph.initializers["w"].const_value
    if folder == "own":
        np.testing.assert_array_equal(from_onnx(loaded)(X), [6, 7])
        assert loaded.graph.initializers["w"].const_value is tensor, "the caller's model is unchanged"
        return
    tensor.base_dir = "" if folder == "none" else "/etc"
    with pytest.raises(ModelError, match=r"no folder is known|is missing"):
        from_onnx(loaded)


def test_what_did_not_pass_is_never_read(tmp_path: Path):
    (tmp_path / "data.bin").write_bytes(bytes(8))
    tensor = ir.ExternalTensor("data.bin", 0, 8, ir.DataType.FLOAT, shape=ir.Shape([2]), name="w", base_dir=tmp_path)
    with pytest.raises(ModelError, match="was not checked"):
        tensor_value(tensor)


def test_only_regular_files_are_mapped(tmp_path: Path):
    import os

    os.mkfifo(tmp_path / "data.bin")
    made = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    make_external(made.graph.initializer[0], "data.bin")
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(ModelError, match="is missing"):
        from_onnx(tmp_path / "m.onnx")
    with pytest.raises(OSError, match="not a regular file"):
        Buffer(Path("/dev/null"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: setattr(t, "data_type", 0), "0 is not an ONNX element type"),
        (lambda t: setattr(t, "data_type", 77), "77 is not an ONNX element type"),
        (lambda t: t.dims.append(2**62), "is larger than any array"),
        (lambda t: t.dims.extend([1] * 64), "is larger than any array"),
        (lambda t: t.dims.append(-1), "has a negative size"),
        (lambda t: t.int32_data.append(1), "data of another type than FLOAT"),
        (lambda t: setattr(t, "data_type", TensorProto.INT64), "needs 2 elements, the tensor has 0"),
        (lambda t: t.segment.SetInParent(), "a tensor in segments"),
        (lambda t: setattr(t, "raw_data", b"123"), "needs 8 bytes, the tensor has 3"),
        (lambda t: setattr(t, "raw_data", bytes(8)), "data of another type than FLOAT"),
    ],
)
def test_malformed_tensors(change: Callable[[Any], Any], message: str):
    made = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    change(made.graph.initializer[0])
    with pytest.raises(ModelError, match=message) as caught:
        from_onnx(made)
    assert "`w`" in str(caught.value)


def test_external_data_says_its_place_once(tmp_path: Path):
    made, tensor = with_constant()
    make_external(tensor, "a")
    tensor.external_data.add(key="location", value="b")
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(ModelError, match="gives its `location` twice"):
        from_onnx(tmp_path / "m.onnx")


# -- sparse tensors ----------------------------------------------------------------------------------------------------


def sparse_model(dims: list[int], values: list[float], indices: Any) -> onnx.ModelProto:
    made = model("g (float[2] x) => (float[n] y) { y = Add(x, w) }")
    sparse = made.graph.sparse_initializer.add(dims=dims)
    sparse.values.CopyFrom(numpy_helper.from_array(np.array(values, np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array(indices, np.int64)))
    return made


def test_sparse_tensors_are_read():
    made = sparse_model([2, 3], [7, 8], [[0, 1], [1, 2]])
    expected = [[0, 7, 0], [0, 0, 8]]
    x = np.zeros((2, 3), np.float32)
    made.graph.input[0].type.tensor_type.ClearField("shape")
    np.testing.assert_array_equal(from_onnx(made)(x), expected)
    assert len(made.graph.sparse_initializer) == 1, "the caller's model is unchanged"
    made.graph.sparse_initializer[0].indices.CopyFrom(numpy_helper.from_array(np.array([1, 5])))
    np.testing.assert_array_equal(from_onnx(made)(x), expected)
    empty = sparse_model([2], [], np.zeros(0))
    np.testing.assert_array_equal(from_onnx(empty)(X), X)


def test_a_sparse_constant_is_read():
    made = model("g (float[2] x) => (float[2] y) { c = Constant<value_int = 1>() y = Add(x, c) }")
    attribute = made.graph.node[0].attribute[0]
    attribute.Clear()
    attribute.name, attribute.type = "sparse_value", onnx.AttributeProto.SPARSE_TENSOR
    attribute.sparse_tensor.CopyFrom(sparse_model([2], [4], [1]).graph.sparse_initializer[0])
    np.testing.assert_array_equal(from_onnx(made)(X), [1, 5])


@pytest.mark.parametrize(
    ("dims", "values", "indices", "message"),
    [
        ([2], [7, 8], [0, 2], "its indices lie outside its shape"),
        ([2], [7, 8], [-1, 0], "its indices lie outside its shape"),
        ([2, 2], [7, 8], [[0, 0], [0, 2]], "its indices lie outside its shape"),
        ([4], [7], [0, 1, 2], r"its indices have the shape \[3\], its 1 values need \[1\]"),
        ([4], [7, 8], [1, 0], "its indices are not in ascending order"),
        ([4], [7, 8], [1, 1], "or one is there twice"),
        ([4], [[7, 8]], [0, 1], r"its values have the shape \[1, 2\]"),
        ([-4], [7, 8], [0, 1], "has a negative size"),
    ],
)
def test_malformed_sparse_tensors(dims: list[int], values: list[float], indices: Any, message: str):
    with pytest.raises(ModelError, match=message):
        from_onnx(sparse_model(dims, values, indices))


def test_types_of_the_parts_of_a_sparse_tensor():
    made = sparse_model([4], [7, 8], [0, 1])
    made.graph.sparse_initializer[0].indices.CopyFrom(numpy_helper.from_array(np.array([0, 1], np.int32)))
    with pytest.raises(ModelError, match="its indices are not INT64"):
        from_onnx(made)


def test_a_sparse_tensor_that_is_too_large():
    made = sparse_model([2**28], [7], [0])
    with pytest.raises(ModelError, match=r"(?s)`w` written dense has 1,073,741,824 bytes.*jaxport.Limits\(bytes=…\)"):
        from_onnx(made)
    made = sparse_model([2**10], [7], [0])
    with pytest.raises(ModelError, match="written dense has 4,096 bytes"):
        from_onnx(made, limits=Limits(bytes=4095))
    from_onnx(made, limits=Limits(bytes=4096))
