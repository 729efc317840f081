"""The `jaxport` command: exports, imports, runs, compares, inspects and edits models.

A refusal of the package, and an error in the user's own code, is printed as its message, without a traceback, and ends
the command with status 1; an error in the command line itself ends it with status 2.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in `jaxport`: Ctrl-C prints a traceback until `main` runs
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its status.

    Args:
      arguments: the words after `jaxport`; by default those of the process.

    Raises:
      SystemExit: always, with status 0, 1 (refused, or the two sides differ) or 2 (usage).

    >>> main(["inspect", "missing.onnx"])
    Traceback (most recent call last):
    SystemExit: 2
    """
    try:
        _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:  # while modules are loaded: later, the commands end so themselves
        sys.exit(130)


def _run(words: Sequence[str]) -> None:
    from jaxport import collecting
    from jaxport.cli.terminal import streams

    with streams.opened(), streams.readable():
        with collecting.paused():
            from jaxport.cli import files
            from jaxport.cli.app import app, options_of
            from jaxport.cli.terminal import completion, failures, output

        output.reset(words)
        try:
            if completion.answered(words):
                sys.exit(0)
            with completion.in_bash():
                app(args=words, prog_name="jaxport")
        except Exception as error:
            if streams.refused_by(error):
                raise
            status = failures.report(error, options_of(words))
            if status is None:  # a bug in this package: its traceback is what a report needs
                raise
            sys.exit(status)
        finally:
            files.remove_temporary()
            output.reset()
