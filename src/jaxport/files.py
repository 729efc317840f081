"""Files on disk, written atomically; only our own files are removed.

A model may be two files, one of which names the other. The data file is named by its content, `model.onnx.3f0c….data`:
it is moved to its place first, the file that names it is then replaced atomically, and unreferenced data is removed
last. So either the old pair or the new one exists at any time, whichever process is killed.

Files are written in a folder `.jaxport-…` next to the target, marked as ours and locked by its process. An unlocked one
was left by a killed process, and is removed by the next save in its parent folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from jaxport.errors import InvalidArgument, SaveError, boundary

try:
    import fcntl
except ImportError:  # Windows has no such locks: nothing is cleaned up there
    fcntl = None

DIGITS = 16
"""Hexadecimal digits of the digest in the name of a data file: enough that no two contents collide by chance."""

_ATTEMPTS = 3
_PREFIX, _MAIN, _DATA, _PROBE, _OURS = ".jaxport-", "main", "data", "probe", ".jaxport"

Write = Callable[[Path], None]


def checked_path(path: str | os.PathLike[str], where: str) -> str:
    """Return a path as text that is valid for the file system.

    Raises:
      InvalidArgument: it has a NUL or a character that is not text, or is not a path.

    >>> checked_path("a.onnx", "here")
    'a.onnx'
    """
    try:
        text = os.fspath(path)
        if not isinstance(text, str):
            raise TypeError(f"it is a `{type(text).__name__}`")
        if "\0" in text:
            raise ValueError("it has a NUL")
        os.fsencode(text)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{path!r} is not a path", where=where, why=str(error), instead="check the path"
        ) from error
    return text


def existing_file(path: str | os.PathLike[str], where: str) -> str:
    """Return the path of an existing file.

    Raises:
      InvalidArgument: there is none, or it is not a regular file.
    """
    text = checked_path(path, where)
    if not os.path.isfile(text):
        why = "it is not a regular file" if os.path.lexists(text) else ""
        raise InvalidArgument(f"there is no file `{text}`", where=where, why=why, instead="check the path")
    return text


def data_name(main: str, digest: str, suffix: str) -> str:
    """Return the name of the data file of a file.

    >>> data_name("model.onnx", "3f0c9a117be24d58", ".data")
    'model.onnx.3f0c9a117be24d58.data'
    """
    return f"{main}.{digest}{suffix}"


def publish(
    path: str | os.PathLike[str],
    write: Callable[[Path, str], None],
    write_data: Write | None = None,
    suffix: str = ".data",
) -> Path:
    """Write a file, and its data file, atomically.

    Args:
      path: the file; a link is followed. It is replaced if it is a regular file, and keeps its permissions; a new one
        has those that the process gives new files.
      write: writes the file to a path, given the name of the data file ("" without one).
      write_data: writes the data to a path, if there is any.
      suffix: the suffix of the data file's name. Other data files of this file with this suffix are removed in the end.

    Returns:
      The path that was written, with links resolved.

    Raises:
      SaveError: it cannot be written; an existing file stays.
    """
    target = Path(os.path.realpath(checked_path(path, "the path of the file")))
    refused, where = f"`{target}` cannot be written", f"`{target.parent}`"
    instead = "give a path in an existing, writable folder with enough space"
    with boundary(refused, where=where, instead=instead, kind=SaveError):
        try:
            mode = _mode_of(target)
            with _working_folder(target.parent) as folder:
                digest = ""
                if write_data is not None:
                    write_data(folder / _DATA)
                    _settled(folder / _DATA, mode)
                    digest = _digest(folder / _DATA)
                name = data_name(target.name, digest, suffix) if digest else ""
                write(folder / _MAIN, name)
                _settled(folder / _MAIN, mode)
                with _locked(target.parent):
                    _move(folder, target, name, suffix)
        except OSError as error:
            raise SaveError(refused, where=where, why=error.strerror or str(error), instead=instead) from error
    return target


def publish_all(folder: str | os.PathLike[str], files: Mapping[str, Write]) -> Path:
    """Write files to a folder, which are moved there when all of them are complete.

    Args:
      folder: made if it does not exist, and removed again if the files cannot be written.
      files: by path in the folder, what writes the file to a path. Existing regular files are replaced.

    Returns:
      The folder, with links resolved.

    Raises:
      SaveError: a file cannot be written; existing files stay.
    """
    target = Path(os.path.realpath(checked_path(folder, "the folder")))
    refused, where = f"`{target}` cannot be written", f"`{target}`"
    instead = "give a folder that exists or can be created, with enough space"
    with boundary(refused, where=where, instead=instead, kind=SaveError):
        try:
            with new_folder(target), _working_folder(target) as made:
                for name, write in files.items():
                    (made / name).parent.mkdir(parents=True, exist_ok=True)
                    write(made / name)
                    _settled(made / name, _mode_of(target / name))
                with _locked(target):
                    for name in files:
                        (target / name).parent.mkdir(parents=True, exist_ok=True)
                        os.replace(made / name, target / name)
                    _reach_disk(target)
        except OSError as error:
            raise SaveError(refused, where=where, why=error.strerror or str(error), instead=instead) from error
    return target


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; what was made is removed again if the block fails and leaves it empty."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()
        raise


def _mode_of(target: Path) -> int | None:
    """Return the permissions of the file to replace, or None if there is none.

    Raises:
      OSError: the existing file may not be replaced.
    """
    try:
        status = os.lstat(target)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "Is a directory", str(target))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(22, "it is not a regular file", str(target))
    if not os.access(target, os.W_OK):
        raise PermissionError(13, "Permission denied: the file may not be written", str(target))
    return stat.S_IMODE(status.st_mode)


def _settled(path: Path, mode: int | None) -> None:
    """Give a complete file its permissions, and wait until it has reached the disk."""
    with path.open("rb") as file:
        os.chmod(path, _mode_of_new_files(path.parent) if mode is None else mode)
        os.fsync(file.fileno())  # some file systems report a full disk only here


def _digest(path: Path) -> str:
    """Return what names a file of weights; it reads the whole file, so other files have none."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def _mode_of_new_files(folder: Path) -> int:
    """Return the permissions that the process gives new files; writers of tensors make theirs private."""
    probe = folder / _PROBE
    probe.touch()  # the mask itself can only be read by changing it, for other threads, too
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    return mode


def _move(folder: Path, target: Path, name: str, suffix: str) -> None:
    """Move the new files to their places, the data first, and remove the data that was named before."""
    data, fresh = target.with_name(name) if name else None, False
    if data is not None:
        fresh = _mode_of(data) is None
        os.replace(folder / _DATA, data)
        _reach_disk(target.parent)
    try:
        os.replace(folder / _MAIN, target)
    except OSError:
        if data is not None and fresh:
            data.unlink(missing_ok=True)
        raise
    _reach_disk(target.parent)
    # From here on the new pair is complete: leftovers of the old one do no harm.
    with contextlib.suppress(OSError):
        pattern = re.compile(rf"{re.escape(target.name)}\.[0-9a-f]{{{DIGITS}}}{re.escape(suffix)}")
        for entry in os.scandir(target.parent):
            if pattern.fullmatch(entry.name) and entry.name != name and entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)


def _reach_disk(folder: Path) -> None:
    """Flush the names in a folder to disk, if the system supports that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# -- working folders ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _working_folder(parent: Path) -> Iterator[Path]:
    """Make a locked folder of our own in `parent`, which is removed afterwards, as are unlocked ones."""
    _clean(parent)
    for _ in range(_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = _hold(folder)
        if lock is not None:
            break
        _remove(folder)  # another process took it for a leftover at this moment
    else:  # a file system without locks
        folder, lock = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)), None
    try:
        (folder / _OURS).touch()
        yield folder
    finally:
        _remove(folder)
        if lock is not None:
            os.close(lock)


def _hold(folder: Path, wait: bool = False) -> int | None:
    """Lock a folder and return the lock as an open file; None if another process has it, or the folder is gone."""
    if fcntl is None:
        return None
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        if os.path.samestat(os.fstat(handle), os.stat(folder)):
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time move files in a folder, if the file system has locks."""
    handle = _hold(folder, wait=True)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _clean(parent: Path) -> None:
    """Remove what killed processes left: unlocked folders with our name that have our mark, or nothing."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(parent)):
            if not entry.name.startswith(_PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            folder = Path(entry.path)
            lock = _hold(folder)
            if lock is None:
                continue
            try:
                # Writers of tensors have files of their own names, and a crate has folders.
                left = {*os.listdir(folder)}
                if _OURS in left or left <= {_MAIN, _DATA, _PROBE}:
                    _remove(folder)
            finally:
                os.close(lock)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
