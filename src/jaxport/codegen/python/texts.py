"""Texts of Python that printed modules get a copy of: files beside the code that prints them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files


def copied(package: str, file: str) -> str:
    """Return the text of a file of a package.

    >>> print(copied("jaxport.codegen.flax", "freezing.txt").splitlines()[0])
    TRAINED = {trained}
    """
    return files(package).joinpath(file).read_text("utf-8")


def copied_classes(package: str) -> dict[str, str]:
    """Return the source of the layers that a framework does not have, by the name of the class.

    >>> copied_classes("jaxport.codegen.flax")["Table"].splitlines()[0]
    'class Table(nnx.Variable):'
    """
    texts = (f"{text.strip()}\n" for text in copied(package, "classes.txt").split("\n\n\n"))
    return {text.removeprefix("class ").partition("(")[0]: text for text in texts}


def copied_loading(package: str, trained: Sequence[str] | None, **names: str) -> str:
    """Return the source of `load`, and before it that of what is trained, if it is said, with names in their places."""
    freezing = "" if trained is None else f"{copied(package, 'freezing.txt')}\n\n"
    return f"{freezing}{copied(package, 'loading.txt')}".format(trained=repr(tuple(trained or ())), **names)
