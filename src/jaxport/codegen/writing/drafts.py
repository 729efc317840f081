"""Modules as drafts of classes, of which those that are alike become one.

blocks.0, blocks.1 as drafts that differ in one number   →   one class with an argument, `Block(in_features)`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Generic, TypeVar

from jaxport.codegen.nodes import TreeNode, TreeNumber, key_of_trees, numbers_in, replaced
from jaxport.codegen.tree import Module
from jaxport.codegen.writing.fields import Fields, last_word
from jaxport.importer.values.host import HostValue

Expression = TypeVar("Expression", bound=TreeNode)
Method = TypeVar("Method", bound=TreeNode)


@dataclass(eq=False)
class Draft(Generic[Expression, Method]):
    """One module as a class of its own.

    Attributes:
      module: the module.
      base: the preferred name of the class.
      fields: the names of its parts.
      init: the expression of each attribute.
      method: its `__call__`.
      sizes: the sizes that it takes as arguments because the shape of no argument has them.
      tables: its tensors that are not parameters, by attribute.
      returned: the names of the results of the method, or of the parts that make them; empty for what has none.
      constructor: the name of the class that it has become an instance of, and its arguments, by position and keyword.
    """

    module: Module
    base: str
    fields: Fields
    init: dict[str, Expression]
    method: Method
    sizes: tuple[str, ...]
    tables: dict[str, HostValue]
    returned: tuple[str, ...] = ()
    constructor: tuple[str, tuple[Expression, ...], Mapping[str, Expression]] = ("", (), MappingProxyType({}))

    @property
    def kind(self) -> str:
        """What modules of one class have in common: the type that the file gives them, or else the last word of their
        names.

        Modules of one part at most, such as a layer and its activation, have nothing in common but what they do.
        """
        return self.base if self.module.type else "" if len(self.fields.paths) < 2 else last_word(self.base)

    @property
    def trees(self) -> tuple[list[Expression], list[Method]]:
        """The trees of what the constructor assigns, and of the method."""
        return [*self.init.values()], [self.method]

    @property
    def numbers(self) -> list[TreeNumber]:
        """The numbers that may become arguments, those of the constructor first."""
        return [*numbers_in(self.init.values()), *numbers_in([self.method])]

    @property
    def key(self) -> Hashable:
        """What drafts share that are the same."""
        return (*self.init, *map(key_of_trees, self.trees))


AnyDraft = Draft[Expression, Method]


def plain_name(text: str) -> str:
    """Return what the name of a variable says: it without the number that tells it from others; nothing for a name of
    any value.

    >>> [plain_name(text) for text in ("key_2", "x", "part_3")]
    ['key', '', 'part']
    """
    return "" if text in ("x", "part") else re.sub(r"_\d+$", "", text)


def grouped(
    drafts: Iterable[AnyDraft[Expression, Method]], key: Callable[[AnyDraft[Expression, Method]], Hashable]
) -> list[list[AnyDraft[Expression, Method]]]:
    """Return the drafts that share a key, in the order of their first ones."""
    groups: dict[Hashable, list[AnyDraft[Expression, Method]]] = {}
    for draft in drafts:
        groups.setdefault(key(draft), []).append(draft)
    return [*groups.values()]


def with_arguments(
    draft: AnyDraft[Expression, Method], arguments: Mapping[str, Sequence[int]], attribute: Callable[[str], Expression]
) -> AnyDraft[Expression, Method]:
    """Return the draft with its arguments in place of numbers; those that the method reads are attributes, too.

    `attribute` returns a name, or the attribute at a path.
    """
    numbers, inner = draft.numbers, len(numbers_in(draft.init.values()))
    expressions: dict[TreeNode, Expression] = {}
    kept: dict[str, Expression] = {}
    for argument, places in arguments.items():
        for at in places:
            expressions[numbers[at]] = attribute(argument if at < inner else f"self.{argument}")
            if at >= inner:
                kept[argument] = attribute(argument)
    return _replaced(draft, kept, expressions)


def with_functions(
    draft: AnyDraft[Expression, Method],
    activations: Mapping[str, Sequence[TreeNode]],
    attribute: Callable[[str], Expression],
) -> AnyDraft[Expression, Method]:
    """Return the draft with attributes in place of the activations that it calls, by the argument that each is."""
    expressions: dict[TreeNode, Expression] = {}
    for argument, called in activations.items():
        expressions |= {node: attribute(f"self.{argument}") for node in called}
    return _replaced(draft, {argument: attribute(argument) for argument in activations}, expressions)


def _replaced(
    draft: AnyDraft[Expression, Method], kept: Mapping[str, Expression], expressions: Mapping[TreeNode, Expression]
) -> AnyDraft[Expression, Method]:
    init = {key: replaced(value, expressions) for key, value in draft.init.items()}
    return replace(draft, init={**kept, **init}, method=replaced(draft.method, expressions))
