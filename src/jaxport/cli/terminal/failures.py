r"""Errors as a command shows them: in the words of its options, and for errors of the user's code their own line.

The Python API names its arguments. Where the command has an option for one, the option stands in the error instead:

>>> in_options('leave out `to_onnx(opset=...)`, or pass `state="discard"`', {"--opset", "--state"})
'leave out `--opset`, or pass `--state discard`'
"""

from __future__ import annotations

import ast
import re
import sys
import traceback
from collections.abc import Collection
from dataclasses import replace

from jaxport.cli.files import as_given
from jaxport.cli.terminal.output import log_error, settings
from jaxport.errors import InvalidArgument, JaxportError, Unsupported

_FLAGS = frozenset({"--double-precision", "--strict"})
_OPTIONS = {
    "atol": "--atol", "avoid": "--avoid", "checks": "--checks", "constraints": "--constraint",
    "double_precision": "--double-precision", "expect": "--expect", "framework": "--framework",
    "functions": "--function",
    "input_params": "--input-param", "inputs": "--input", "inputs_as_nchw": "--nchw-input", "io": "--io",
    "nonfinite": "--nonfinite", "opset": "--opset", "output_names": "--output-name", "outputs_as_nchw": "--nchw-output",
    "precision": "--precision", "rtol": "--rtol", "seed": "--seed", "sizes": "--size", "state": "--state",
    "static_params": "--static", "strict": "--strict", "target": "--target", "unroll_scans": "--unroll-scans",
    "weights": "--weights",
}  # fmt: skip
"""The options that stand for arguments of the Python API."""
_OF_CALL = re.compile(r"`(\w+)(?:\[[^\]`]*\])?` of `to_onnx`")
_WHERE = re.compile(r"`(\w+)`")
_CALL = re.compile(r"`(?:jaxport\.)?(?:to_onnx|from_onnx|to_source|verify|make_mox)\(([^`]*)\)`")
_BARE = re.compile(r"`(\w+)`")
_ARGUMENT = re.compile(
    r"(?P<tick>`?)\b(?P<name>\w+)=(?P<value>\"[^\"]*\"|\[[^\]`]*\]|\{[^}`]*\}|\.\.\.|…|\w+)(?P=tick)"
)
_NOT_STRICT = re.compile(r"`print\(mox\)` shows what there is; `select\(query, strict=False\)`")
_PRINT_TREE = re.compile(r"`print\((?:mox|jaxport\.make_mox\(fn\)\(\*inputs\))\)`")


def in_options(text: str, options: Collection[str]) -> str:
    """Return a text with a command's options in place of arguments of the Python API.

    Args:
      text: a part of an error.
      options: those that the command has; arguments without one stay.
    """
    text = _NOT_STRICT.sub("`jaxport tree` shows what there is; `--no-strict`", text)
    text = _PRINT_TREE.sub("`jaxport tree`", text)
    text = _OF_CALL.sub(lambda found: f"`{_OPTIONS[found[1]]}`" if _has(found[1], options) else found[0], text)
    text = _CALL.sub(lambda call: _call(call, options), text)
    text = _ARGUMENT.sub(lambda found: _argument(found, options), text)
    return _BARE.sub(lambda found: _name(found, options), text)


def _name(found: re.Match[str], options: Collection[str]) -> str:
    # An input may be named `state` or `weights`: only names that no model has are taken for arguments.
    is_argument = _has(found[1], options) and ("_" in found[1] or found[1] == "opset")
    return f"`{_OPTIONS[found[1]]}`" if is_argument else found[0]


def _has(name: str, options: Collection[str]) -> bool:
    return _OPTIONS.get(name) in options


def _call(call: re.Match[str], options: Collection[str]) -> str:
    names = re.findall(r"(\w+)=", call[1])
    if not names or not all(_has(name, options) for name in names):
        return call[0]
    inner = _ARGUMENT.sub(lambda found: _argument(found, options), call[1])
    return f"`{inner.replace(', ', ' ')}`"


def _argument(found: re.Match[str], options: Collection[str]) -> str:
    name, tick = found["name"], found["tick"]
    values = re.fullmatch(r"\{['\"]?(.+?)['\"]?: ([^(].*)\}", found["value"]) if name == "inputs" else None
    if values and "--value" in options:
        return f"{tick}--value {values[1]}={values[2]}{tick}"
    if not _has(name, options):
        return found[0]
    option = _OPTIONS[name]
    return f"{tick}{' '.join(_words(option, found['value']))}{tick}"


def _words(option: str, value: str) -> list[str]:
    """Return an option with the value of an argument, as it is typed."""
    if value in ("...", "…"):
        return [option]
    if option in _FLAGS:
        return [option if value != "False" else option.replace("--", "--no-", 1)]
    try:
        read = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        pairs = re.fullmatch(r"\{'(.+)': (.+)\}", value)  # `{'deterministic': bool}`, `{'flag': …}`
        separator = ":" if option == "--input-param" else "="
        return [option, f"{pairs[1]}{separator}{pairs[2]}"] if pairs else [option, value]
    if isinstance(read, dict) and option == "--input":
        return [word for key, item in read.items() for word in (option, f'"{key}:{",".join(map(str, item))}"')]
    if isinstance(read, dict):
        return [word for key, item in read.items() for word in (option, f"{key}={item}")]
    if isinstance(read, list):
        return [word for item in read for word in (option, _typed(item))]
    return [option, _typed(read)]


def _typed(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    text = str(value)
    return f'"{text}"' if " " in text else text


def report(error: Exception, options: Collection[str]) -> int | None:
    """Show an error on the standard error, and return the status of the command; None for an error that is ours.

    Args:
      error: what a command raised.
      options: the options of the command.
    """
    if isinstance(error, JaxportError):
        _show(f"jaxport.{type(error).__name__}", _message(error, options), error)
        return 2 if isinstance(error, InvalidArgument) else 1
    from jaxport.export.walk.sources import raised_at

    line = raised_at(error)
    if not line:
        return None
    shown = JaxportError(
        str(error) or "no message", where=line, instead="fix it at this line; `--verbose` shows the whole traceback"
    )
    _show(type(error).__name__, str(shown), error)
    return 1


def _message(error: JaxportError, options: Collection[str]) -> str:
    if isinstance(error, Unsupported):
        refusals = [replace(refusal, why=in_options(refusal.why, options)) for refusal in error.refusals]
        return str(Unsupported(error.headline, refusals))
    where, why, instead = (in_options(text, options) for text in (error.where, error.why, error.instead))
    if (whole := _WHERE.fullmatch(where)) and _has(whole[1], options):  # the place is an argument, whatever its name
        values = {"--value"} & {*options} if whole[1] == "inputs" else set()
        where = " or ".join(f"`{option}`" for option in [_OPTIONS[whole[1]], *values])
    return str(JaxportError(in_options(error.refused, options), where=where, why=why, instead=instead))


def _show(kind: str, text: str, error: Exception) -> None:
    from rich.console import Console

    text = as_given(text)
    log_error(f"{kind}: {text}\n{''.join(traceback.format_exception(error))}")
    if settings.verbose:
        sys.stderr.write("".join(traceback.format_exception(error)))
    Console(stderr=True).print(f"[bold red]{kind}:[/]", end=" ")
    sys.stderr.write(f"{text}\n")  # as the message lays itself out, whatever the width
