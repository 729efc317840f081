"""A layer with its normalization and activation, again and again in one module, as a module: `ConvNorm`.

Before and after:

    stem: conv norm relu conv norm relu conv norm relu   →   stem: ConvNorm ConvNorm ConvNorm
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from jaxport.codegen.structure.modules.repeated_runs import NORMS, is_activation
from jaxport.codegen.structure.modules.scopes import places_of
from jaxport.codegen.tree import Layer, Leaf, readers_of
from jaxport.importer.calls import Chain
from jaxport.importer.names import unique
from jaxport.importer.values.recording import Variable

FEWEST = 4
"""Cells that a module has at least: a person writes three of them out."""
KINDS = frozenset({"Conv", "ConvTranspose", "Linear"})

Cell = tuple[Leaf, ...]


def cells_of(
    leaves: Sequence[Leaf], chains: Mapping[Leaf, Chain], types: Mapping[str, str], results: Collection[Variable]
) -> list[Cell]:
    """Return the cells of modules that the file does not know the class of.

    Args:
      leaves: the layers and operators.
      chains: the modules around each, by identity.
      types: the types of modules, by path.
      results: the values that the model returns.
    """
    readers = readers_of(leaves)
    places = places_of(leaves, chains)
    found: dict[Chain, list[Cell]] = {}

    def following(leaf: Leaf) -> Leaf | None:
        read = readers.get(leaf.outputs[0], []) if len(leaf.outputs) == 1 else []
        return read[0] if len(read) == 1 and leaf.outputs[0] not in results else None

    for leaf in leaves:
        norm = following(leaf) if isinstance(leaf, Layer) and leaf.kind in KINDS else None
        if not isinstance(norm, Layer) or norm.kind not in NORMS:
            continue
        after = following(norm)
        cell = (leaf, norm, after) if after is not None and is_activation(after) else (leaf, norm)
        around = {_around(part, chains, places) for part in cell}
        if len(around) == 1 and not any(types.get(path) for path in next(iter(around))):
            found.setdefault(around.pop(), []).append(cell)
    return [cell for cells in found.values() if len(cells) >= FEWEST for cell in cells]


def _around(leaf: Leaf, chains: Mapping[Leaf, Chain], places: Mapping[Leaf, str]) -> Chain:
    """Return the modules around a leaf, without that of the leaf alone."""
    chain = chains[leaf]
    place = places.get(leaf, "")
    return chain[:-1] if place and not place.rpartition(".")[2].isdigit() else chain


def put_into_cells(
    cells: Sequence[Cell], leaves: Sequence[Leaf], chains: dict[Leaf, Chain], types: dict[str, str]
) -> None:
    """Put cells into modules of their own, which are named after their first layers; `chains` and `types` are
    changed.
    """
    places = places_of(leaves, chains)
    names = {path for chain in chains.values() for path in chain}
    for cell in cells:
        around = {_around(part, chains, places) for part in cell}
        if len(around) != 1:
            continue
        (chain,) = around
        kind = f"{cell[0].kind}Norm" if isinstance(cell[0], Layer) else ""
        path = places.get(cell[0]) or unique(".".join((*chain[-1:], f"{kind[:-4].lower()}_norm")), names)
        names.add(path)
        types[path] = kind
        for part in cell:
            inner = "norm" if part is cell[1] else kind[:-4].lower()
            chains[part] = (*chain, path, f"{path}.{inner}") if isinstance(part, Layer) else (*chain, path)
