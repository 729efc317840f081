"""Output streams that are closed or full, or that cannot show every character: pipes on Windows, `LANG=C`.

What a stream's encoding lacks is written in ASCII: as a spelling that is usual where there is one, otherwise as Python
writes it in a string.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator

from jaxport.errors import JaxportError
from jaxport.printable import spelled

_NAME = "jaxport-readable"


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return spelled(error.object[error.start : error.end]), error.end


codecs.register_error(_NAME, _spelled)


@contextlib.contextmanager
def readable() -> Iterator[None]:
    r"""Let the standard streams spell what they cannot encode, inside the context.

    >>> "2×3 → ≥1 é".encode("ascii", "jaxport-readable")
    b'2x3 -> >=1 \\xe9'
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    before = [stream.errors for stream in streams]
    for stream in streams:
        stream.reconfigure(errors=_NAME)
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            if not stream.closed:
                stream.reconfigure(errors=errors)


@contextlib.contextmanager
def opened() -> Iterator[None]:
    """End the process with status 1 and a line if the standard output is closed (`>&-`) or full, inside the context."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # nothing else may get its number; what is opened for reading refuses each write
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_WRONLY), "w"))
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if not refused_by(error):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        why = "it is closed" if error.errno == errno.EBADF else error.strerror
        with contextlib.suppress(OSError):  # the two streams may be one file
            sys.stderr.write(f"jaxport: the standard output cannot be written: {why}\n")
        sys.exit(1)


def refused_by(error: Exception) -> bool:
    """Whether it is the standard output that an error comes from: nothing else here writes without a file's name."""
    return (
        isinstance(error, OSError)
        and not isinstance(error, JaxportError)
        and error.filename is None
        and error.errno in (errno.EBADF, errno.ENOSPC, errno.EIO, errno.EPIPE)
    )
