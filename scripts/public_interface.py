"""Regenerate `tests/architecture/interface.txt`: every public name of the package with its signature.

Run it when the interface changes on purpose, `python -m scripts.public_interface`, and say so in CHANGELOG.md.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "tests" / "architecture" / "interface.txt"
#: The modules whose `__all__` is public.
MODULES = ("jaxport", "jaxport.mox", "jaxport.importer", "jaxport.testing", "jaxport.verify")


def interface() -> str:
    """The public names, one per line."""
    return "".join(f"{line}\n" for module in MODULES for line in _lines(module))


def _lines(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    for public in sorted(module.__all__):
        yield from _described(f"{name}.{public}", getattr(module, public))


def _described(path: str, thing: Any) -> Iterator[str]:
    if inspect.ismodule(thing):
        yield f"{path}: module"
    elif inspect.isclass(thing):
        yield f"class {path}{_signature(thing)}"
        bases = [base for base in thing.__mro__[::-1] if base.__module__.partition(".")[0] == "jaxport"]
        for name, member in sorted({name: member for base in bases for name, member in vars(base).items()}.items()):
            own = getattr(thing, name)
            if name.startswith("_") and name != "__call__":
                continue
            if isinstance(member, property) or not callable(own):
                yield f"  {path}.{name}"
            else:
                yield f"  {path}.{name}{_signature(own)}"
    elif inspect.isroutine(thing):
        yield f"{path}{_signature(thing)}"
    else:
        yield path


def _signature(thing: Any) -> str:
    if getattr(thing, "_is_protocol", False):  # what its instances have is told by its methods
        return ""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):  # written in C
        return "(...)"
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


if __name__ == "__main__":
    TARGET.write_text(interface(), encoding="utf-8")
