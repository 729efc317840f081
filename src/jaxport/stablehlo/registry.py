"""The registry of operations: a definition is a function on JAX values whose keywords are the attributes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxport.errors import InvalidArgument
from jaxport.jaxprs import PythonFunction

CONTEXT = frozenset({"result", "results", "regions", "context"})
"""Keywords that are no attributes: the type of the first result, the types of all, the regions as functions, and the
walk.
"""


@dataclass(frozen=True)
class Definition:
    """What an operation computes; a `plain` function takes operands alone, and has no signature to read."""

    function: PythonFunction
    is_plain: bool = False

    @cached_property
    def keywords(self) -> dict[str, inspect.Parameter]:
        """The keywords by name, without an underscore behind them."""
        if self.is_plain:
            return {}
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name.removesuffix("_"): p for p in parameters if p.kind == p.KEYWORD_ONLY}

    @cached_property
    def takes_all(self) -> bool:
        """Whether it takes whatever attributes there are."""
        return not self.is_plain and any(
            p.kind == p.VAR_KEYWORD for p in inspect.signature(self.function).parameters.values()
        )


_definitions: dict[str, Definition] = {}
_ours: set[str] = set()


def define(*names: str) -> Callable[[PythonFunction], PythonFunction]:
    """Register the definition of operations of StableHLO (`add`), of another dialect (`chlo.erf`) or of a custom call
    (`@Qr`).
    """

    def register(function: PythonFunction) -> PythonFunction:
        _add(names, Definition(function))
        return function

    return register


def plain(**functions: PythonFunction) -> None:
    """Register operations without attributes that are functions of JAX: `plain(sine=lax.sin)`."""
    for name, function in functions.items():
        _add([name.replace("__", ".")], Definition(function, is_plain=True))


def stablehlo_op(*names: str) -> Callable[[PythonFunction], PythonFunction]:
    """Register a function for operations of one's own.

    Args:
      names: an operation with its dialect (`"mydialect.scaled"`), a composite (`"my.norm"`), or a custom call with an
        `@` (`"@my_kernel"`).

    The operands are positional, attributes are keyword-only, with their defaults; of custom calls these are the entries
    of `backend_config`, if that is a dictionary. The keywords `result` and `results` are the types of the results, with
    `shape` and `dtype`.

    Raises:
      InvalidArgument: the package has a definition of this name.

    >>> import jaxport
    >>> @jaxport.stablehlo_op("@twice")
    ... def twice(x):
    ...     return 2 * x
    """

    def register(function: PythonFunction) -> PythonFunction:
        taken = next((name for name in names if _full(name) in _ours), None)
        if taken is not None:
            raise InvalidArgument(
                f"`{taken}` is defined already", where="`jaxport.stablehlo_op`", instead="give it another name"
            )
        _definitions.update((_full(name), Definition(function)) for name in names)
        return function

    return register


def _add(names: Sequence[str], definition: Definition) -> None:
    for name in names:
        assert _full(name) not in _definitions, name
        _definitions[_full(name)] = definition
        _ours.add(_full(name))


def _full(name: str) -> str:
    return name if "." in name or name.startswith("@") else f"stablehlo.{name}"


def definitions() -> dict[str, Definition]:
    """Return all definitions by name, those of users included."""
    return _definitions
