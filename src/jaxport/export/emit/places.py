"""Where equations come from, and how each was exported."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

if TYPE_CHECKING:
    from jaxport.blocks.block import Block


class Place(NamedTuple):
    """The place of an equation: the blocks around it, the user's line, and the primitive.

    Attributes:
      blocks: `(path, target)` of each block around it, the outermost first.
      source: the user's file, line and function, as `train.py:88 in step`.
      primitive: the name of the primitive.
      in_rule: whether a rule traced this equation, so that its line is not the user's.
      base: the path that the paths are relative to: that of the block whose function is being built.
    """

    blocks: tuple[tuple[str, str], ...] = ()
    source: str = ""
    primitive: str = ""
    in_rule: bool = False
    base: str = ""

    def enter(self, block: Block) -> Place:
        """Return the place inside a block."""
        path = block.path.removeprefix(f"{self.base}.") if self.base else block.path
        return self._replace(blocks=(*self.blocks, (path or block.name, block.target)))

    def of(self, primitive: str, source: str) -> Place:
        """Return the place of an equation here."""
        return Place(self.blocks, source, primitive, self.in_rule, self.base)

    def within(self, blocks: tuple[tuple[str, str], ...]) -> Place:
        """Return the place of the same line and primitive inside other blocks."""
        return Place(blocks, self.source, self.primitive, self.in_rule, self.base)

    def inside(self, base: str) -> Place:
        """Return the place at the start of a function's body, to which the paths of its blocks are relative."""
        return self._replace(blocks=(), base=base)

    @property
    def path(self) -> str:
        """The path of the innermost block."""
        return self.blocks[-1][0] if self.blocks else ""

    def metadata(self) -> dict[str, str]:
        """Return the metadata of a node's origin. `namespace` is the key that graph viewers read."""
        entries = {
            "namespace": _namespace(self.blocks),
            "jaxport.source": self.source,
            "jaxport.primitive": self.primitive,
        }
        return {key: text for key, text in entries.items() if text}


@functools.lru_cache(maxsize=256)
def _namespace(blocks: tuple[tuple[str, str], ...]) -> str:
    return "/".join(f"{path}: {target}" for path, target in blocks)


class Record(NamedTuple):
    """How one equation was exported: the rule that was applied, the nodes it made, and a note if there is one."""

    place: Place
    rule: str
    nodes: tuple[ir.Node, ...]
    note: str = ""

    def moved(self, place: Place, nodes: Mapping[ir.Node, ir.Node]) -> Record:
        """Return the record of an equal equation elsewhere, whose nodes are those that these are mapped to."""
        return Record(place, self.rule, tuple(nodes[node] for node in self.nodes), self.note)
