"""Modules as drafts of classes, of which those that are alike become one.

blocks.0, blocks.1 as drafts that differ in one number   →   one class with an argument, `Block(in_features)`
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from jaxport.codegen.tree import Module
from jaxport.codegen.writing.fields import Fields, last_word
from jaxport.codegen.writing.literals import attribute, name
from jaxport.codegen.writing.numbers import Replacements, activations_of, numbers_of
from jaxport.importer.values.host import HostValue

__all__ = ["Draft", "grouped", "plain_name", "returned_names", "with_arguments", "with_functions"]


@dataclass(eq=False)
class Draft:
    """One module as a class of its own.

    Attributes:
      module: the module.
      base: the preferred name of the class.
      fields: the names of its parts.
      init: the expression of each attribute.
      method: its `__call__`.
      sizes: the sizes that it takes as arguments because the shape of no argument has them.
      tables: its tensors that are no parameters, by attribute.
      returned: the names of the results of the method, or of the parts that make them; empty for what has none.
      constructor: the name of the class that it has become an instance of, and its arguments, by position and keyword.
    """

    module: Module
    base: str
    fields: Fields
    init: dict[str, ast.expr]
    method: ast.stmt
    sizes: tuple[str, ...]
    tables: dict[str, HostValue]
    returned: tuple[str, ...] = ()
    constructor: tuple[str, tuple[ast.expr, ...], Mapping[str, ast.expr]] = ("", (), MappingProxyType({}))

    @property
    def kind(self) -> str:
        """What modules of one class have in common: the type that the file gives them, or else the last word of their names.

        Modules of one part at most, such as a layer and its activation, have nothing in common but what they do.
        """
        return self.base if self.module.type else "" if len(self.fields.paths) < 2 else last_word(self.base)

    @property
    def trees(self) -> tuple[ast.AST, ast.AST]:
        """The syntax trees of the constructor's assignments and of the method."""
        assigned: list[ast.stmt] = [
            ast.Assign([ast.Name(key, ast.Store())], value, lineno=0) for key, value in self.init.items()
        ]
        return ast.Module(assigned, []), self.method

    @property
    def activations(self) -> list[ast.Attribute]:
        """The activations that the method calls, and that may become arguments."""
        return activations_of(self.method)

    @property
    def numbers(self) -> list[ast.Constant]:
        """The numbers that may become arguments, those of the constructor first."""
        return [number for tree in self.trees for number in numbers_of(tree)]


def returned_names(method: ast.stmt) -> tuple[str, ...]:
    """Return the names of the results of a method, or of the parts that make them; empty for what has none."""
    ends = [node.value for node in ast.walk(method) if isinstance(node, ast.Return)]
    return tuple(map(_name_of, ends[-1].elts)) if ends and isinstance(ends[-1], ast.Tuple) else ()


def _name_of(node: ast.expr) -> str:
    """Return the name that a value has, or that the part of the module has that computes it; empty for others and for `x`.

    >>> [_name_of(ast.parse(text, mode="eval").body) for text in ("key_2", "self.norm(x)", "x", "a + b")]
    ['key', 'norm', '', '']
    """
    receiver = node.func if isinstance(node, ast.Call) else node
    if isinstance(receiver, ast.Attribute) and isinstance(receiver.value, ast.Name) and receiver.value.id == "self":
        return receiver.attr
    return plain_name(receiver.id) if isinstance(receiver, ast.Name) else ""


def plain_name(text: str) -> str:
    """Return what the name of a variable says: it without the number that tells it from others; nothing for a name of any value.

    >>> [plain_name(text) for text in ("key_2", "x", "part_3")]
    ['key', '', 'part']
    """
    return "" if text in ("x", "part") else re.sub(r"_\d+$", "", text)


def grouped(drafts: Iterable[Draft], key: Callable[[Draft], list[str]]) -> list[list[Draft]]:
    """Return the drafts that share a key, in the order of their first ones."""
    groups: dict[tuple[str, ...], list[Draft]] = {}
    for draft in drafts:
        groups.setdefault(tuple(key(draft)), []).append(draft)
    return [*groups.values()]


def with_arguments(draft: Draft, arguments: Mapping[str, Sequence[int]], attribute: Callable[[str], ast.expr]) -> Draft:
    """Return the draft with its arguments in place of numbers; those that the method reads are attributes, too.

    `attribute` returns a name, or the attribute at a path.
    """
    numbers, inner = draft.numbers, len(numbers_of(draft.trees[0]))
    replacements = Replacements()
    kept: dict[str, ast.expr] = {}
    for argument, places in arguments.items():
        for at in places:
            replacements.expressions[numbers[at]] = attribute(argument if at < inner else f"self.{argument}")
            if at >= inner:
                kept[argument] = attribute(argument)
    init = {key: replacements.visit(value) for key, value in draft.init.items()}
    return replace(draft, init={**kept, **init}, method=replacements.visit(draft.method))


def with_functions(draft: Draft, activations: Mapping[str, Sequence[int]]) -> Draft:
    """Return the draft with attributes in place of the activations that it calls."""
    called, replacements = draft.activations, Replacements()
    for argument, places in activations.items():
        replacements.expressions |= {called[at]: attribute(f"self.{argument}") for at in places}
    kept: dict[str, ast.expr] = {argument: name(argument) for argument in activations}
    return replace(draft, init={**kept, **draft.init}, method=replacements.visit(draft.method))
