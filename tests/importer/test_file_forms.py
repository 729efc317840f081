"""Files of ONNX in other forms than protobuf, files of something else, and what a file says of itself."""

from __future__ import annotations

import warnings
from pathlib import Path

import jax
import numpy as np
import onnx
import pytest

import jaxport
from jaxport.errors import InvalidArgument, ModelError
from jaxport.importer import from_onnx
from tests.importer.models import model, program

GRAPH = "g (float[N] x) => (float[N] y) <float[1] w = {2}> { y = Mul(x, w) }"
X = np.ones(3, np.float32)


@pytest.mark.parametrize(
    "suffix", [".textproto", ".prototxt", ".pbtxt", ".json", ".onnxjson", ".onnxtxt", ".onnxtext", ".onnx", ".pb"]
)
def test_a_file_of_every_form_of_onnx_is_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an experimental format
        onnx.save(model(GRAPH), path)
    np.testing.assert_array_equal(from_onnx(path)(X), 2 * X)


@pytest.mark.parametrize("suffix", [".textproto", ".json", ".onnxtxt"])
def test_a_damaged_text_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an experimental format
        onnx.save(model(GRAPH), path)
    path.write_bytes(path.read_bytes()[:-40] + b"\xff{")
    with pytest.raises(ModelError, match="this is not an ONNX model"):
        from_onnx(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "git lfs pull"),
        (b"\x18\x00\x00\x00ORTM\x00\x00", "ONNX Runtime's own format"),
        (b"\x1c\x00\x00\x00TFL3\x14\x00", "TensorFlow Lite"),
        (b"PK\x03\x04\x14\x00", "zip archive"),
        (b"\n<!DOCTYPE html><html>", "HTML"),
        (b"<html>", "HTML"),
        (b"\x89HDF\r\n", "HDF5"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\x80\x02}q\x00", "pickle"),
        (b'\x20\x00\x00\x00\x00\x00\x00\x00{"w":{"dtype":"F32"}}', "safetensors"),
    ],
)
def test_a_file_of_something_else_is_named(content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for source in (path, content):
        with pytest.raises(ModelError, match=what):
            from_onnx(source)


def test_an_initializer_that_is_an_input_is_a_default() -> None:
    graph = "g (float[N] x, float[3] w = {2, 2, 2}, int64[1] shape = {-1}) => (float[a] y) { p = Mul(x, w) y = Reshape(p, shape) }"
    made = program(graph)
    assert made.input_names == ("x",)
    np.testing.assert_array_equal(made(X), 2 * X)
    np.testing.assert_array_equal(made(X, w=np.full(3, 3, np.float32)), 3 * X)
    np.testing.assert_array_equal(jax.jit(made)(w=np.full(3, 3, np.float32), x=X), 3 * X)
    np.testing.assert_array_equal(made.apply({"w": np.full(3, 5, np.float32)}, X, shape=np.array([3], np.int32)), 5 * X)
    np.testing.assert_array_equal(made(X), 2 * X)
    with pytest.raises(InvalidArgument, match="`w` has shape"):
        made(X, w=np.ones((2, 2), np.float32))
    with pytest.raises(InvalidArgument, match="`v` is not an input"):
        made(X, v=X)


def test_what_a_file_says_of_itself_survives() -> None:
    proto = model(GRAPH)
    proto.doc_string, proto.graph.doc_string = "Doubles.", "One product."
    onnx.helper.set_model_props(proto, {"author": "Ada", "license": "MIT"})
    said = {"author": "Ada", "license": "MIT", "doc_string": "Doubles.", "graph.doc_string": "One product."}
    made = from_onnx(proto)
    assert made.metadata == said
    exported = jaxport.to_onnx(made, [("N",)])
    assert said.items() <= from_onnx(exported).metadata.items()
    assert exported.model.doc_string == "Doubles."
