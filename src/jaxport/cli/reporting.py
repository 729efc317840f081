"""`jaxport export --report FILE`: what a bug report needs, of an export or of a refusal, as Markdown."""

from __future__ import annotations

import inspect
import platform
import shlex
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jaxport.cli.files import output_file
from jaxport.cli.terminal.output import settings
from jaxport.errors import InvalidArgument, JaxportError
from jaxport.files import publish

if TYPE_CHECKING:
    from jaxport.jaxprs import Parameters, PythonFunction

PACKAGES = (
    "jaxport", "jax", "jaxlib", "numpy", "onnx", "onnx-ir", "onnxruntime", "flax", "equinox", "keras", "ml_dtypes",
)  # fmt: skip
LONGEST = 400
"""The lines of a program that a report has at most."""


@dataclass
class ExportReport:
    """What an export adds to its report.

    Attributes:
      explained: the explanation of the export.
      compared: the reports of comparisons.
    """

    explained: str = ""
    compared: str = ""


@contextmanager
def reporting(
    file: Path | None, name: str, function: PythonFunction, inputs: Sequence[object], keywords: Parameters
) -> Iterator[ExportReport]:
    """Write a report of what happens inside the context, whether it succeeds or raises.

    Args:
      file: where to; None writes nothing.
      name: the target, as the user wrote it.
      function: the callable that is exported.
      inputs, keywords: its inputs, as `jaxport.to_onnx` takes them.
    """
    report = ExportReport()
    if file is None:
        yield report
        return
    output_file(file, "--report")
    if file == Path("-"):
        raise InvalidArgument("a report needs a file", where="`--report`", instead="name one: `--report report.md`")
    failure: Exception | None = None
    try:
        yield report
    except Exception as error:
        failure = error
        raise
    finally:
        text = _text(name, function, inputs, keywords, report, failure)
        publish(file, lambda path, _: _written(path, text))


def _written(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _text(
    name: str,
    function: PythonFunction,
    inputs: Sequence[object],
    keywords: Parameters,
    report: ExportReport,
    failure: Exception | None,
) -> str:
    outcome = "exported" if failure is None else f"{type(failure).__name__}"
    parts = [f"# Export of `{name}`: {outcome}", _fenced("jaxport " + shlex.join(settings.words), "console")]
    if failure is not None:
        parts += ["## What happened", _fenced(str(failure))]
    parts += ["## Versions", _versions(), "## Source", _fenced(_source(function), "python")]
    parts += ["## Program", _fenced(_program(function, inputs, keywords))]
    if report.explained:
        parts += ["## How it was exported", _fenced(report.explained)]
    if report.compared:
        parts += ["## Comparison", _fenced(report.compared)]
    if failure is not None:
        parts += ["## Traceback", _fenced("".join(traceback.format_exception(failure)))]
    return "\n\n".join(parts) + "\n"


def _fenced(text: str, language: str = "text") -> str:
    lines = text.rstrip().splitlines()
    if len(lines) > LONGEST:
        lines = [*lines[:LONGEST], f"... {len(lines) - LONGEST} more lines"]
    fence = "````" if "```" in text else "```"
    return "\n".join([f"{fence}{language}", *lines, fence])


def _versions() -> str:
    import importlib.metadata

    rows = [("Python", platform.python_version()), ("platform", platform.platform())]
    for package in PACKAGES:
        try:
            rows.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return "\n".join(["| | version |", "|---|---|", *(f"| {name} | {version} |" for name, version in rows)])


def _source(function: PythonFunction) -> str:
    try:
        return inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        return repr(function)


def _program(function: PythonFunction, inputs: Sequence[object], keywords: Parameters) -> str:
    """Return the program as a tree, or why it cannot be traced."""
    import jaxport
    from jaxport.export.failures import explaining
    from jaxport.export.specs import read_inputs

    try:
        read = read_inputs(inputs, keywords)
        with explaining("the function", function, read):
            return str(jaxport.make_mox(function)(*read.args, **read.kwargs))
    except JaxportError as error:
        return f"{type(error).__name__}: {error}"
