"""Models that are damaged, hostile or malformed are refused with a message that names the culprit."""

from __future__ import annotations

import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

import jaxport
from jaxport.errors import InvalidArgument, ModelError, Unsupported
from jaxport.importer import from_onnx
from tests.importer.models import model

ADD = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
X = np.ones(2, np.float32)


def external(folder: Path, location: str = "weights.bin", data: bytes = bytes(8), **entries: str) -> Path:
    """A model in `folder` whose weight lies in a file."""
    made = model(ADD)
    tensor = made.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    if not os.path.isabs(location) and ".." not in location and "\0" not in location:
        (folder / location).write_bytes(data)
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.parametrize("form", ["path", "string", "bytes", "proto", "ir"])
def test_sources(form: str, tmp_path: Path) -> None:
    proto = model(ADD)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    forms = {"path": path, "string": str(path), "bytes": path.read_bytes(), "proto": proto, "ir": ir.load(path)}
    np.testing.assert_array_equal(from_onnx(forms[form])(X), [2, 3])


def test_external_data_is_read_from_beside_the_model(tmp_path: Path) -> None:
    path = external(tmp_path, data=np.array([5, 6], np.float32).tobytes())
    np.testing.assert_array_equal(from_onnx(path)(X), [6, 7])


@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("../weights.bin", {}, "external data at `../weights.bin` is refused"),
        ("/etc/passwd", {}, "external data at `/etc/passwd` is refused"),
        ("a\0b", {}, r"external data at `a\\0b` is refused"),
        ("weights.bin", {"offset": "4"}, "`weights.bin` is too short"),
        ("weights.bin", {"length": "4"}, "`weights.bin` is too short"),
        ("weights.bin", {"offset": "-8"}, "the offset `-8` of external data is not a size"),
    ],
)
def test_external_data_that_is_refused(tmp_path: Path, location: str, entries: dict[str, str], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        from_onnx(external(tmp_path, location, **entries))
    assert "tensor `w`" in str(caught.value)


def test_external_data_behind_a_link_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = external(folder)
    (folder / "weights.bin").rename(tmp_path / "outside.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(ModelError, match="is outside the model's folder"):
        from_onnx(path)


def test_a_model_and_its_data_may_be_links_to_files_beside_one_another(tmp_path: Path) -> None:
    """As a cache of downloads has them: the links in one folder, the files under other names in another."""
    stored, shown = tmp_path / "stored", tmp_path / "shown"
    stored.mkdir()
    shown.mkdir()
    expected = from_onnx(external(stored))(X)
    for name, file in (("model.onnx", "aa"), ("weights.bin", "bb")):
        (stored / name).rename(stored / file)
        (shown / name).symlink_to(stored / file)
    np.testing.assert_array_equal(from_onnx(shown / "model.onnx")(X), expected)


def test_external_data_that_is_missing(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"the data file `weights\.bin` is missing"):
        from_onnx(path)
    with pytest.raises(ModelError, match="no folder is known for the bytes"):
        from_onnx(path.read_bytes())


def test_no_model() -> None:
    with pytest.raises(InvalidArgument, match=r"there is no file `nowhere\.onnx`"):
        from_onnx("nowhere.onnx")
    with pytest.raises(InvalidArgument, match="a model cannot be read from an object of type `int`"):
        from_onnx(3)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="this is not an ONNX model"):
        from_onnx(b"\xff\xff\xff")
    with pytest.raises(ModelError, match="the model has no graph"):
        from_onnx(b"")


def test_versions_of_the_file_format() -> None:
    newer = model(ADD)
    newer.ir_version = onnx.IR_VERSION + 1
    with pytest.raises(ModelError, match=f"IR version {onnx.IR_VERSION + 1} is newer than {onnx.IR_VERSION}"):
        from_onnx(newer)


def test_every_truncation_of_a_model_is_refused() -> None:
    data = model(ADD).SerializeToString()
    expected = from_onnx(data)(X)
    for end in range(len(data)):
        try:
            np.testing.assert_array_equal(from_onnx(data[:end])(X), expected)
        except (ModelError, Unsupported):
            continue


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.initializer[0].dims.__setitem__(0, 10**15), r"needs 1000000000000000 elements, the tensor has 2"),
        (lambda g: g.initializer[0].dims.__setitem__(0, -2), r"the shape \[-2\] has a negative size"),
        (lambda g: setattr(g.initializer[0], "data_type", 77), "77 is not an ONNX element type"),
        (lambda g: g.initializer[0].float_data.append(1), r"needs 2 elements, the tensor has 3"),
        (lambda g: g.node[0].input.__setitem__(1, "nothing"), "nothing computes `nothing`"),
        (lambda g: g.node[0].input.__setitem__(1, "y"), "the nodes form a cycle"),
        (lambda g: g.node[0].input.append("x"), "3 inputs are given, 2 are taken"),
        (lambda g: g.node[0].input.pop(), "the input `B` is missing"),
        (lambda g: setattr(g.output[0], "name", "z"), "nothing computes the output `z`"),
        (lambda g: g.node.append(g.node[0]), "redeclared"),
    ],
)
def test_malformed_graphs(change, message: str) -> None:
    made = model(ADD)
    change(made.graph)
    with pytest.raises(ModelError, match=message):
        from_onnx(made)


@pytest.mark.parametrize("depth", [10**13, 10**16])
def test_arrays_that_no_machine_holds_are_refused(depth: int) -> None:
    graph = f"""g (int64[1] x) => (float[n, m] y) {{ d = Constant<value_int = {depth}>() v = Constant<value_floats = [0.0, 1.0]>()
        y = OneHot(x, d, v) }}"""
    with pytest.raises(ModelError, match=r"(?s)has [0-9,]+ bytes.*the OneHot that makes `y`.*jaxport\.Limits"):
        from_onnx(model(graph))(np.zeros(1, np.int64))


def test_attributes_are_checked() -> None:
    contrib = model(
        'g (float[2] x) => (float[2] y) { y = com.microsoft.QuickGelu<alpha = "1">(x) }', domains=', "com.microsoft": 1'
    )
    with pytest.raises(ModelError, match="the attribute `alpha` is STRING, not a number"):
        from_onnx(contrib)
    with pytest.raises(ModelError, match="the attribute `axis` is FLOAT, not INT"):
        from_onnx(model("g (float[2] x) => (float[4] y) { y = Concat<axis: float = 0.0>(x, x) }"))
    with pytest.raises(ModelError, match="the attribute `axis` is missing"):
        from_onnx(model("g (float[2] x) => (float[4] y) { y = Concat(x, x) }"))


def test_everything_that_is_unsupported_is_listed_at_once() -> None:
    graph = "g (float[2] x) => (float[2] y) { a = Nope(x) b = Nope(a) c = my.dom.F(b) d = Relu<slope = 1>(c) y = Abs(d) dead = Other(x) }"
    with pytest.raises(Unsupported) as caught:
        from_onnx(model(graph, domains=', "my.dom": 1'))
    assert str(caught.value).splitlines() == [
        "3 operations of `g` cannot be imported",
        "  Nope       the Nope that makes `a` and 1 more   ONNX has no such operator at this version",
        '  my.dom.F   the my.dom.F that makes `c`          register a function with `@jaxport.op("my.dom", "F")`',
        "  Relu       the Relu that makes `d`              the attribute `slope` is not one of its attributes: it has none",
    ]


@pytest.mark.parametrize("operator", ["BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"])
def test_generation_is_refused_as_what_it_is(operator: str) -> None:
    decoder = "d (int64[1] i) => (int64[1] o) { o = Identity(i) }"
    graph = f"g (int64[1] x) => (int64[1] y) {{ y = com.microsoft.{operator}<decoder: graph = {decoder}>(x) }}"
    with pytest.raises(
        Unsupported, match=rf"{operator} .* runs a graph of its own, as text generation does; import its `decoder`"
    ):
        from_onnx(model(graph, domains=', "com.microsoft": 1'))


@pytest.mark.parametrize(
    ("opset", "graph", "message"),
    [
        (99, "g (float[2] x) => (float[2] y) { y = Abs(x) }", "opset 99 of `ai.onnx` is newer than 28"),
        (3, "g (float[2] x) => (float[2] y) { y = Sin(x) }", "version 3 is not supported; 7 and later is"),
        (18, "g (float[2] x) => (float[2] y) { y = other.F(x) }", "the model imports no opset of the domain `other`"),
        (18, "g (float[2] x) => (float[2] y) { y = Upsample(x, x) }", "ONNX removed it in version 10"),
    ],
)
def test_versions_are_checked(opset: int, graph: str, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        from_onnx(model(graph, opset))


def test_a_function_that_calls_itself_is_refused() -> None:
    function = '<domain: "d", opset_import: ["": 18, "d": 1]> f (x) => (y) { y = d.f(x) }'
    with pytest.raises(ModelError, match="the function `f` calls itself"):
        from_onnx(model("g (float[2] x) => (float[2] y) { y = d.f(x) }", functions=function, domains=', "d": 1'))


def test_what_was_exported() -> None:
    exported = jaxport.to_onnx(jnp.negative, [("B", 2)])
    np.testing.assert_array_equal(from_onnx(exported)(np.ones((3, 2), np.float32)), -np.ones((3, 2)))
