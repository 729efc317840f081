"""The files that a command reads and writes: checked before the work, with one text for each thing that is wrong.

`-` is the standard input, or the standard output, of a single file.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxport.errors import InvalidArgument

STANDARD = Path("-")
"""What stands for the standard input or output."""


def model_file(path: Path | str) -> Path:
    """Return the path of an ONNX file that exists; `-` is read, and a compiled artifact exported, into a temporary
    file.

    Raises:
      InvalidArgument: there is no such file, it is a folder, or it is no ONNX file.
    """
    from jaxport.importer.loading.load import unreadable
    from jaxport.stablehlo.program import is_stablehlo

    if is_stablehlo(path):
        return _from_artifact(Path(path))
    path = _from_standard_input() if Path(path) == STANDARD else Path(path)
    instead = "give the path of an ONNX file, or `-` for the standard input"
    if not path.exists():
        raise InvalidArgument(f"there is no file `{path}`", instead=instead)
    reason = unreadable(path)
    if reason:
        raise InvalidArgument(f"`{path}` is not an ONNX file", why=reason, instead=instead)
    return path


def _from_standard_input() -> Path:
    if sys.stdin is None:
        raise InvalidArgument("the standard input is closed", instead="give the path of an ONNX file")
    folder = Path(tempfile.mkdtemp(prefix="jaxport-"))
    _temporary.append(folder)
    file = folder / "model.onnx"  # whose name printed source has, where the file itself has none
    file.write_bytes(sys.stdin.buffer.read())
    return file


def _from_artifact(path: Path) -> Path:
    import jaxport

    program = jaxport.from_stablehlo(path)
    file = Path(tempfile.mkdtemp(prefix="jaxport-")) / f"{path.stem}.onnx"
    _temporary.append(file)
    jaxport.to_onnx(program, program.inputs).save(file, external_data=False)
    return file


_temporary: list[Path] = []


def remove_temporary() -> None:
    """Remove what was read from the standard input."""
    while _temporary:
        shutil.rmtree(_temporary.pop(), ignore_errors=True)


def as_given(text: str) -> str:
    """Return a text with the standard input in place of the file that it was read into."""
    for folder in _temporary:
        text = text.replace(str(folder / "model.onnx"), "standard input")
    return text


def output_file(path: Path, option: str = "--output") -> Path:
    """Return the path of a file that can be written, or `-`.

    Raises:
      InvalidArgument: its folder does not exist or may not be written, or something else is in its place.
    """
    if path == STANDARD:
        return path
    if path.is_dir():
        raise _refused(path, option, "it is a folder", "give the name of a file in it")
    return _writable(path, option)


def output_folder(path: Path, option: str = "--output") -> Path:
    """Return the path of a folder that exists or can be made.

    Raises:
      InvalidArgument: its parent does not exist or may not be written, or a file is in its place.
    """
    if path == STANDARD:
        raise _refused(path, option, "a folder is written, which the standard output cannot take", "name a folder")
    if path.exists() and not path.is_dir():
        raise _refused(path, option, "it is a file", "name a folder")
    return path if path.is_dir() else _writable(path, option)


def _writable(path: Path, option: str) -> Path:
    parent = path.parent
    if not parent.is_dir():
        raise _refused(path, option, f"there is no folder `{parent}`", "make the folder first, or give another one")
    if path.exists() and not path.is_file():
        raise _refused(path, option, "it is not a regular file", "give another name")
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise _refused(path, option, "permission denied", "give a path that you may write")
    return path


def _refused(path: Path, option: str, why: str, instead: str) -> InvalidArgument:
    return InvalidArgument(f"`{path}` cannot be written", where=f"`{option}`", why=why, instead=instead)


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Give a path to write to: `path`, or for `-` a temporary file that goes to the standard output in the end."""
    if path != STANDARD:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="jaxport-") as folder:
        file = Path(folder) / "output"
        yield file
        sys.stdout.flush()
        sys.stdout.buffer.write(file.read_bytes())
        sys.stdout.buffer.flush()
