"""Texts of Python that printed modules get a copy of: files beside the code that prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Copied:
    """The texts of a package.

    >>> Copied("jaxport.codegen.flax").classes()["Table"].splitlines()[0]
    'class Table(nnx.Variable):'
    """

    package: str

    def text(self, file: str) -> str:
        """Return the text of a file."""
        return files(self.package).joinpath(file).read_text("utf-8")

    def classes(self) -> dict[str, str]:
        """Return the source of the layers that a framework does not have, by the name of the class."""
        texts = (f"{text.strip()}\n" for text in self.text("classes.txt").split("\n\n\n"))
        return {text.removeprefix("class ").partition("(")[0]: text for text in texts}

    def loading(self, trained: Sequence[str] | None, **names: str) -> str:
        """Return the source of `load`, and before it that of what is trained, if it is said, with names in place."""
        freezing = "" if trained is None else f"{self.text('freezing.txt')}\n\n"
        return f"{freezing}{self.text('loading.txt')}".format(trained=repr(tuple(trained or ())), **names)
