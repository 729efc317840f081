"""The `jaxport` command: `export`, `import`, `run`, `inspect` and `verify`.

A refusal of the package is printed as its message, without a traceback, and ends the command with status 1; an error in
the command line itself ends it with status 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxport.errors import InvalidArgument, JaxportError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its status.

    Args:
      arguments: the words after `jaxport`; by default those of the process.

    Raises:
      SystemExit: always, with status 0, 1 (refused, or the two sides differ) or 2 (usage).

    >>> main(["inspect", "missing.onnx"])
    Traceback (most recent call last):
    SystemExit: 1
    """
    from jaxport.cli.app import app

    try:
        app(args=None if arguments is None else list(arguments), prog_name="jaxport")
    except JaxportError as error:
        from rich.console import Console

        Console(stderr=True).print(f"[bold red]jaxport.{type(error).__name__}:[/]", end=" ")
        print(error, file=sys.stderr)  # noqa: T201 - as the message lays itself out, whatever the width
        sys.exit(2 if isinstance(error, InvalidArgument) else 1)
