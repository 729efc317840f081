"""The phases of long work, and how far each is: a line in the terminal for those who ask for it.

What takes long says so with `phase`, which costs nothing unless somebody looks. The logger `jaxport` has the time of
each phase, at the level of debugging.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from jaxport.printable import printable
from jaxport.scoped import scoped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_log = logging.getLogger("jaxport")
_shown: ContextVar[_Lines | None] = ContextVar("shown", default=None)


@contextmanager
def progress(console: Console | None = None) -> Iterator[None]:
    """Show the progress of exports, imports, comparisons and saves while the context is open.

    Each phase is shown as a line with the elapsed time, and a bar if its length is known. The lines disappear when the
    work is done. Nothing is written if the console is not a terminal.

    Args:
      console: a `rich.console.Console`; by default one that writes to standard error.

    >>> import jax.numpy as jnp, jaxport
    >>> with jaxport.progress():
    ...     exported = jaxport.to_onnx(jnp.tanh, [("B", 3)])
    """
    from rich.console import Console

    console = Console(stderr=True) if console is None else console
    if not console.is_terminal:
        yield
        return
    with scoped(_shown, _Lines(console)):
        yield


@contextmanager
def phase(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a phase of the work inside the context, which gets a function to say how much more of it is done.

    Args:
      title: what is done.
      total: the length of the phase in units of the caller's choice, or None if it is not known.
    """
    lines, begin = _shown.get(), time.perf_counter()
    try:
        if lines is None:
            yield lambda _: None
        else:
            with lines.line(title, total) as advance:
                yield advance
    finally:
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s: %.2f s", printable(title), time.perf_counter() - begin)


@contextmanager
def unseen() -> Iterator[None]:
    """Show no phases inside the context: what a command looks up for its summary is not what it was asked to do."""
    level = _log.level
    _log.setLevel(logging.WARNING)
    try:
        with scoped(_shown, None):
            yield
    finally:
        _log.setLevel(level)


class _Lines:
    """The lines of the phases that are open; between the outermost ones the terminal is left alone."""

    def __init__(self, console: Console):
        self._console = console
        self._display: Progress | None = None

    @contextmanager
    def line(self, title: str, total: int | None) -> Iterator[Callable[[int], None]]:
        is_outermost, display = self._display is None, self._display or self._new()
        if is_outermost:
            self._display = display
            display.start()
        task = display.add_task(printable(title), total=total)
        try:
            yield lambda amount: display.advance(task, amount)
        finally:
            display.remove_task(task)
            if is_outermost:
                self._display = None
                display.stop()

    def _new(self) -> Progress:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        # What the user's code prints meanwhile stands above the lines, unless it goes to a file.
        return Progress(*columns, console=self._console, transient=True, redirect_stdout=sys.stdout.isatty())
