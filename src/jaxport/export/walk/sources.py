"""Classify code by its file: the user's, an installed library's, or machinery that nobody wants to see.

Libraries need not lie beside the interpreter: a virtual environment may see those of another one, and `PYTHONPATH` may
name a folder that `pip install --target` filled, or a checkout. So a file is a library's if it lies in an installation
of Python, in a folder named `site-packages`, in a package that the metadata of an entry of `sys.path` lists, or in the
package of a loaded framework.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxport.blocks.marking.window import loaded_frameworks

_OWN = str(Path(__file__).absolute().parents[2])
_MACHINERY = tuple(os.path.join(path, "") for path in (_OWN, os.path.dirname(os.path.abspath(jax.__file__))))
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def is_library(file_name: str) -> bool:
    """Whether a file belongs to Python, to an installed package, or to this one.

    >>> is_library(os.__file__), is_library(jax.__file__), is_library("train.py")
    (True, True, False)
    """
    return _libraries()(file_name)


def _libraries() -> Callable[[str], bool]:
    """Return `is_library` for many files: what it depends on is read once."""
    namespaces = (namespace for framework in loaded_frameworks() for namespace in framework.namespaces)
    packages = frozenset(namespace.partition(".")[0] for namespace in namespaces)
    return _judge(tuple(sys.path), packages)


@functools.lru_cache(maxsize=8)
def _judge(search_path: tuple[str, ...], packages: frozenset[str]) -> Callable[[str], bool]:
    roots = _roots(search_path, packages)

    @functools.lru_cache(maxsize=4096)
    def judge(file_name: str) -> bool:
        if file_name.startswith("<frozen ") or any(part in file_name for part in _INSTALLED):
            return True
        return file_name.startswith(roots) or os.path.realpath(file_name).startswith(roots)

    return judge


def _roots(search_path: Sequence[str], packages: Iterable[str]) -> tuple[str, ...]:
    """Return the folders and files of libraries."""
    roots = {os.path.dirname(path) for path in _MACHINERY} | set(_standard_library())
    for name in ("jax", "jaxlib", "numpy", *packages):
        file = getattr(sys.modules.get(name), "__file__", None)
        roots |= {os.path.dirname(os.path.abspath(file))} if file else set()
    for entry in search_path:
        roots |= set(_installed_in(entry))
    everywhere = {path for root in roots for path in (root, os.path.realpath(root))}
    return tuple(path if path.endswith(".py") else os.path.join(path, "") for path in sorted(everywhere))


def _standard_library() -> Iterator[str]:
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        names = ("base", "installed_base", "platbase", "installed_platbase")
        for kind in ("stdlib", "platstdlib", "purelib", "platlib"):
            yield sysconfig.get_path(kind, vars=dict.fromkeys(names, prefix))


def _installed_in(entry: str) -> Iterator[str]:
    """Yield the packages listed in the metadata of an entry of `sys.path`; its folder may also hold user code."""
    if not os.path.isdir(entry) or os.path.basename(entry) in ("site-packages", "dist-packages"):
        return
    if not any(name.endswith(".dist-info") for name in os.listdir(entry)):
        return
    for distribution in importlib.metadata.distributions(path=[entry]):
        for name in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "bin")}:
            yield os.path.join(os.path.abspath(entry), name)


def source_lines(traceback: Any) -> tuple[str, str]:
    """Return the innermost frame outside all libraries, and that outside JAX and this package, of JAX's traceback."""
    users, librarys, is_librarys = None, None, _libraries()
    for frame in traceback.frames:
        if librarys is None and not frame.file_name.startswith(_MACHINERY):
            librarys = frame
        if not is_librarys(frame.file_name):
            users = frame
            break
    return _line(users), _line(librarys)


def _line(frame: Any) -> str:
    if frame is None:
        return ""
    return _text(frame.file_name, frame.line_num, frame.function_name)


def _text(file_name: str, line: int, function: str) -> str:
    return f"{os.path.basename(file_name)}:{line} in {function.rsplit('.', 1)[-1]}"


def raised_at(error: BaseException) -> str:
    """Return the user's line that an exception came from; in a library, that of the call of it.

    >>> try:
    ...     int("x")
    ... except ValueError as error:
    ...     print(raised_at(error))
    <doctest ...>:2 in <module>
    """
    line = ""
    traceback: types.TracebackType | None = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_library(code.co_filename):
            line = _text(code.co_filename, traceback.tb_lineno, getattr(code, "co_qualname", code.co_name))
        traceback = traceback.tb_next
    return line
