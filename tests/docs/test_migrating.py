"""The page on migration has all arguments of the functions that it replaces, and names none of ours that does not exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import jaxport
from jaxport import testing
from jaxport.verify import verify_file

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
# The arguments and modes in the documentation of the other tools.
THEIRS = {
    "From jax2onnx": """
        inputs input_params model_name opset enable_double_precision record_primitive_calls_file return_mode output_path
        export_mode inputs_as_nchw outputs_as_nchw input_names output_names unique namespace name type rtol atol
    """,
    "From jax2tf and tf2onnx": """
        polymorphic_shapes polymorphic_constraints with_gradient enable_xla native_serialization input_signature opset
        output_path inputs_as_nchw outputs_as_nchw large_model custom_ops custom_op_handlers custom_rewriter extra_opset
        shape_override target
    """,
    "From jaxonnxruntime": "call_onnx_model run_model prepare jaxort_only_allow_initializers_as_static_args call_torch register_op",
}
OURS = (
    jaxport.to_onnx,
    jaxport.onnx_function,
    jaxport.Exported.save,
    jaxport.Exported.verify,
    verify_file,
    testing.check,
    testing.expect_graph,
)


def rows(section: str) -> list[tuple[str, str]]:
    """The rows of the tables of a section: what the other tool says, and what is said here."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    return [(left, right) for left, right in re.findall(r"^\| (.+) \| (.+) \|$", text, re.MULTILINE)]


@pytest.mark.parametrize("section", THEIRS)
def test_every_argument_of_theirs_is_named(section: str) -> None:
    named = set(re.findall(r"\w+", " ".join(left for left, _ in rows(section))))
    assert [name for name in THEIRS[section].split() if name not in named] == []


def test_every_argument_of_ours_exists() -> None:
    known = {name for function in OURS for name in inspect.signature(function).parameters}
    code = [code for section in THEIRS for _, right in rows(section) for code in re.findall(r"`([^`]+)`", right)]
    named = {name for text in code for name in re.findall(r"\b(\w+)=", text)}
    assert {"static_params", "double_precision", "constraints"} <= named
    assert named - known == set()
