"""`jaxport diff`, and reports of comparisons as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxport.cli.files import model_file
from jaxport.cli.tables import shape_text, table
from jaxport.cli.terminal.output import tell
from jaxport.columns import counted
from jaxport.errors import InvalidArgument

if TYPE_CHECKING:
    import numpy as np

    from jaxport.cli.summary import Summary, TensorRow
    from jaxport.verify import Report

First = Annotated[Path, typer.Argument(help="An ONNX file; - is the standard input.", metavar="FIRST")]
Second = Annotated[Path, typer.Argument(help="Another one.", metavar="SECOND")]
_TYPES = (TypeError, ValueError)


def report_values(report: Report) -> dict[str, object]:
    """Return a report of a comparison as values that JSON has."""
    return {
        "ok": report.ok,
        "name": report.name,
        "precision": report.precision or None,
        "outputs": [
            {
                "name": output.name,
                "dtype": output.dtype,
                "shape": list(output.shape),
                "sizes": dict(output.sizes),
                "ok": output.ok,
                **dataclasses.asdict(output.difference),
            }
            for output in report.outputs
        ],
        "divergence": None if report.divergence is None else dataclasses.asdict(report.divergence),
        "blocks": [dataclasses.asdict(block) for block in report.blocks],
    }


def show_difference(first: First, second: Second) -> None:
    """Compare two ONNX files.

    What is compared: operator sets, inputs, outputs, operators, modules, and the values of tensors. The status is 1 if
    they differ.
    """
    from jaxport.cli.summary import summarize

    if first == second == Path("-"):
        raise InvalidArgument("both files are the standard input", instead="name at least one file")
    paths = model_file(first), model_file(second)
    one, other = map(summarize, paths)
    rows = [*_structure(one, other), *_tensors(*paths)]
    values = [{"what": what, "name": name, "first": left, "second": right} for what, name, left, right in rows]
    verdict = f"the files differ in {counted(len(rows), 'thing')}" if rows else "the files are the same"
    shown = table(verdict, ["", "name", str(first), str(second)], rows) if rows else verdict
    tell({"same": not rows, "differences": values}, shown)
    if rows:
        raise typer.Exit(1)


Row = tuple[str, str, str, str]


def _structure(one: Summary, other: Summary) -> Iterable[Row]:
    yield from _changed("operator set", one.opsets, other.opsets)
    yield from _changed("input", _types(one.inputs), _types(other.inputs))
    yield from _changed("output", _types(one.outputs), _types(other.outputs))
    yield from _changed("operator", one.operators, other.operators)
    yield from _changed("function", one.functions, other.functions)
    modules = (
        {module.path: f"{module.type}, {counted(module.nodes, 'node')}" for module in s.modules} for s in (one, other)
    )
    yield from _changed("module", *modules)


def _types(tensors: Iterable[TensorRow]) -> dict[str, str]:
    return {tensor.name: f"{tensor.dtype}{shape_text(tensor)}" for tensor in tensors}


def _changed(what: str, one: Mapping[str, object], other: Mapping[str, object]) -> Iterable[Row]:
    for name in dict.fromkeys((*one, *other)):
        left, right = one.get(name, "-"), other.get(name, "-")
        if left != right:
            yield what, name, str(left), str(right)


def _tensors(first: Path, second: Path) -> Iterable[Row]:
    """Yield the tensors that only one file has, or that have other values."""
    from jaxport.cli.summary import load_model

    one, other = (
        {
            value.name or "": value.const_value
            for graph in load_model(path).graphs()
            for value in graph.initializers.values()
            if value.const_value is not None
        }
        for path in (first, second)
    )
    for name in dict.fromkeys((*one, *other)):
        left, right = one.get(name), other.get(name)
        kinds = [
            "-" if tensor is None else f"{tensor.dtype.name.lower()}[{', '.join(map(str, tensor.shape))}]"
            for tensor in (left, right)
        ]
        if left is None or right is None or kinds[0] != kinds[1]:
            yield "tensor", name, kinds[0], kinds[1]
            continue
        a, b = left.numpy(), right.numpy()
        if a.tobytes() != b.tobytes():
            yield "tensor", name, kinds[0], _distance(a, b)


def _distance(one: np.ndarray, other: np.ndarray) -> str:
    import numpy as np

    try:
        largest = np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)))
    except _TYPES:  # strings
        return "other values"
    return f"other values, by up to {largest:.2g}"
