"""What a command prints, and where: tables or JSON on the standard output, phases and warnings on the standard error.

Each command has the options `--json`, `--quiet`, `--verbose` and `--log-file`, which `command` adds to its own.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import math
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxport import __version__, lazy_sympy
from jaxport.cli.files import output_file
from jaxport.cli.tables import console
from jaxport.cli.terminal import completion
from jaxport.errors import InvalidArgument
from jaxport.phases import progress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from jaxport.jaxprs import Parameters, PythonFunction

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result and nothing else.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print each phase with its time, and the traceback of an error.")
]
LogFile = Annotated[
    Path | None, typer.Option("--log-file", metavar="FILE", help="Write phases, results and errors to a file, too.")
]
_LOG = logging.getLogger("jaxport")


@dataclass
class Settings:
    """What the user said about output.

    Attributes:
      as_json: whether results are JSON.
      quiet: whether only results are printed.
      verbose: whether phases and tracebacks are printed.
      file_is_output: whether the standard output is the file that the command writes, so that the rest goes to the
        standard error.
      words: the command line.
    """

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    file_is_output: bool = False
    words: Sequence[str] = ()

    @property
    def stream(self) -> Any:
        """The stream of results."""
        return sys.stderr if self.file_is_output else sys.stdout


settings = Settings()
"""Those of the command that runs; `main` resets them."""


def tell(
    values: Mapping[str, object] | Sequence[object], *parts: RenderableType, brief: RenderableType | None = None
) -> None:
    """Print the result of a command: `values` as JSON if the user asked for it, otherwise `parts`, one below the other.

    Args:
      values: the result as JSON has it.
      parts: the result as text and tables.
      brief: what stands for the parts if the user wants the result alone: the name of what was written; empty for none.

    >>> tell({"nodes": 1}, "1 node")
    1 node
    """
    if _LOG.handlers:
        _LOG.debug("result: %s", json.dumps(values, default=str))
    if settings.as_json:
        # JSON's writer escapes all controls but one.
        settings.stream.write(json.dumps(values, indent=2, default=str).replace("\x7f", "\\u007f") + "\n")
    else:
        screen: Console | None = None
        for part in parts if brief is None or not settings.quiet else [brief] * bool(brief):
            if isinstance(part, str):  # as it lays itself out, whatever the width
                settings.stream.write(f"{part}\n")
            else:
                screen = screen or console(settings.stream)
                screen.print(part)
        settings.stream.flush()


def remark(text: str) -> None:
    """Print what a command finds on its way, to those who want more than the result."""
    if not settings.quiet and not settings.as_json:
        tell({}, text)


def command(
    app: typer.Typer,
    name: str,
    needs: Mapping[str, Sequence[str]] | None = None,
    unless: Mapping[str, str] | None = None,
) -> Callable[[PythonFunction], PythonFunction]:
    """Register a function as a command, with the options that all commands have.

    Args:
      app: where it is registered.
      name: the name of the command.
      needs: by parameter, those others: without one of them it has no effect.
      unless: by parameter, another with which it has none.
    """
    shared = {
        "as_json": (Json, False),
        "quiet": (Quiet, False),
        "verbose": (Verbose, False),
        "log_file": (LogFile, None),
    }

    def register(function: PythonFunction) -> PythonFunction:
        signature = inspect.signature(function, eval_str=True)

        @functools.wraps(function)
        def run(
            *args: Any,
            context: typer.Context,
            as_json: bool,
            quiet: bool,
            verbose: bool,
            log_file: Path | None,
            **kwargs: Any,
        ) -> None:
            settings.as_json, settings.quiet, settings.verbose = as_json, quiet, verbose
            _start_log(log_file)
            lazy_sympy.load_onnx_ir()
            _check_options(context, kwargs, needs or {}, unless or {})
            with contextlib.nullcontext() if quiet or verbose else progress():
                function(*args, **kwargs)

        options = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for key, (kind, default) in shared.items()
        ]
        options.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()]
        run.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        app.command(name, cls=completion.Command)(run)
        return function

    return register


def _check_options(
    context: typer.Context, values: Parameters, needs: Mapping[str, Sequence[str]], unless: Mapping[str, str]
) -> None:
    """Refuse options that would have no effect, and numbers below 0, which no option takes."""
    options = {str(parameter.name): f"`{parameter.opts[0]}`" for parameter in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in options}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    where = f"`{context.command_path}`"
    for name in [name for name in options if name in given]:
        one_or_several = values.get(name)
        for value in one_or_several if isinstance(one_or_several, list) else [one_or_several]:
            if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
                raise InvalidArgument(f"{options[name]} is {value}, not a finite number, 0 or more", where=where)
        if name in needs and given.isdisjoint(needs[name]):
            others = " or ".join(options[other] for other in needs[name])
            raise InvalidArgument(
                f"{options[name]} is given without {others}",
                where=where,
                why="it would have no effect",
                instead=f"add {others}, or leave it out",
            )
        if unless.get(name) in given:
            raise InvalidArgument(
                f"{options[name]} is given with {options[unless[name]]}",
                where=where,
                why="it would have no effect",
                instead="leave one of them out",
            )


def _start_log(log_file: Path | None) -> None:
    """Send phases to the standard error if the user wants to see them, and to the log file if there is one."""
    handlers: list[logging.Handler] = []
    if settings.verbose:
        handlers.append(logging.StreamHandler(sys.stderr))
        handlers[-1].setFormatter(logging.Formatter("%(message)s"))
        handlers[-1].addFilter(lambda record: not str(record.msg).startswith(("result:", "error:")))
    if log_file is not None:
        handlers.append(logging.FileHandler(output_file(log_file, "--log-file"), encoding="utf-8"))
        handlers[-1].setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for handler in handlers:
        _LOG.addHandler(handler)
    if handlers:
        _LOG.setLevel(logging.DEBUG)
        _LOG.debug("jaxport %s, Python %s: %s", __version__, platform.python_version(), shlex.join(settings.words))


def reset(words: Sequence[str] = ()) -> None:
    """Forget what the last command was told, and close its log.

    Args:
      words: the next command line.
    """
    settings.__init__(words=words)
    for handler in list(_LOG.handlers):
        _LOG.removeHandler(handler)
        handler.close()
    _LOG.setLevel(logging.NOTSET)


def log_error(text: str) -> None:
    """Write an error to the log file."""
    if _LOG.handlers:
        _LOG.debug("error: %s", text)
