"""Resolve `module:attribute` on the command line to the callable to export."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxport.errors import InvalidArgument

if TYPE_CHECKING:
    from jaxport.jaxprs import PythonFunction

__all__ = ["load_target"]

_INSTEAD = 'write "package.module:attribute", or "package.module:factory(option=3)" to call a factory'


Arguments = tuple[list[Any], dict[str, Any]]
"""The positional and the keyword arguments of a call, each a literal of Python."""


def load_target(text: str) -> PythonFunction:
    """Import a target; the current directory is searched first.

    A model object, and a function that takes arguments, are returned as they are. A class, and a function without
    parameters, are factories and are called. Parentheses call anything, with literal arguments.

    Args:
      text: `module:attribute`, where `attribute` may be dotted and may end with a call.

    Returns:
      A callable.

    Raises:
      InvalidArgument: the text is malformed, there is no such module or attribute, or it cannot be called.

    >>> load_target("math:hypot")(3.0, 4.0)
    5.0
    >>> load_target("functools:partial(max, 2)")
    Traceback (most recent call last):
    jaxport.InvalidArgument: `partial(max, 2)` passes arguments that are not literals
    ...
    """
    module_name, colon, expression = text.partition(":")
    if not colon or not module_name or not expression:
        raise InvalidArgument(f'"{text}" is not a target', instead=_INSTEAD)
    names, call = _parsed(expression)
    target: Any = _module(module_name)
    for position, name in enumerate(names):
        if not hasattr(target, name):
            where = ".".join([module_name, *names[:position]])
            raise InvalidArgument(
                f"`{where}` has no attribute `{name}`", where=f"the target `{text}`", why=_near(target, name)
            )
        target = getattr(target, name)
    if call is not None:
        target = target(*call[0], **call[1])
    elif inspect.isclass(target) or (inspect.isroutine(target) and _takes_nothing(target)):
        target = target()
    if not callable(target):
        raise InvalidArgument(
            f"`{text}` is a `{type(target).__name__}`, which cannot be called",
            instead="name a model object, a function, or a factory that returns one of them",
        )
    return target


def _parsed(expression: str) -> tuple[list[str], Arguments | None]:
    """Return the dotted names of `expression`, and the arguments of the call that it ends with, if any."""
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise InvalidArgument(
            f"`{expression}` is not the name of an attribute", why=error.msg, instead=_INSTEAD
        ) from None
    call = None
    if isinstance(node, ast.Call):
        call = _literal_arguments(node, expression)
        node = node.func
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise InvalidArgument(f"`{expression}` is not the name of an attribute", instead=_INSTEAD)
    return [node.id, *names], call


def _literal_arguments(call: ast.Call, expression: str) -> Arguments:
    try:
        if any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("`**` is not a literal")
        keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return [ast.literal_eval(argument) for argument in call.args], keywords
    except ValueError:
        raise InvalidArgument(
            f"`{expression}` passes arguments that are not literals", instead="write a factory that takes none"
        ) from None


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidArgument(
            f"`{name}` cannot be imported",
            where=f"the target, searched from {here}",
            why=str(error),
            instead="install its package into this environment, or change to the folder that holds it",
        ) from error


def _takes_nothing(function: PythonFunction) -> bool:
    try:
        return not inspect.signature(function).parameters
    except ValueError:  # some builtins have no signature
        return False


def _near(target: object, name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, [other for other in dir(target) if not other.startswith("_")])
    return f"it has {', '.join(f'`{other}`' for other in near)}" if near else ""
