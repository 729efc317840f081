"""Small models for tests, written in ONNX's text format."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.parser
import onnxruntime
import pytest

from jaxport.importer import Program, from_onnx

#: The release of onnx that is installed.
ONNX = tuple(map(int, onnx.__version__.split(".")[:2]))
#: The release of ONNX Runtime that is installed.
RUNTIME = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
#: What is compared with onnx itself, where an older release lacks operators or gets them wrong.
needs_newest_onnx = pytest.mark.skipif(ONNX < (1, 23), reason="onnx before 1.23 lacks it, or has it wrong")


def model(graph: str, opset: int = 18, functions: str = "", domains: str = "") -> onnx.ModelProto:
    """The model of a graph in ONNX's text format, with functions after it."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{domains}]> {graph} {functions}')


def program(graph: str, opset: int = 18, functions: str = "", domains: str = "", **options: Any) -> Program:
    return from_onnx(model(graph, opset, functions, domains), **options)
