"""Select the nodes of a model by queries of its blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

import onnx_ir as ir

from jaxport.errors import InvalidArgument

if TYPE_CHECKING:
    from jaxport.export.exported import Exported

Chosen = TypeVar("Chosen")


def chosen(exported: Exported, queries: Iterable[tuple[str, Chosen]]) -> dict[ir.Node, Chosen]:
    """Return the choice for each node of the main graph and its subgraphs that a query selects.

    Args:
      exported: the model, with what was traced.
      queries: pairs of an XPath expression, or a path, and the choice for the blocks that it selects and everything inside
        them. If two overlap, the later one applies.

    Raises:
      QueryError: a query is malformed, or names something that does not exist.
      InvalidArgument: a query selects no block.
    """
    from jaxport.mox.expressions import Mox

    mox = Mox(exported.traced, name=exported.model.graph.name or "")
    hits: list[tuple[frozenset[str], Chosen]] = []
    for query, choice in queries:
        blocks = [node.block for node in mox.select(query).nodes if node.block is not None]
        if not blocks:
            raise InvalidArgument(
                f"`{query}` matches no module",
                where="`to_onnx(precision=...)`",
                instead="`print(jaxport.make_mox(fn)(*inputs))` shows what there is",
            )
        hits.append((frozenset(f"{block.path or block.name}: {block.target}" for block in blocks), choice))
    choices: dict[ir.Node, Chosen] = {}
    for node in exported.model.graph.all_nodes():
        around = set(node.metadata_props.get("namespace", "").split("/"))
        for blocks_hit, choice in hits:
            if around & blocks_hit:
                choices[node] = choice
    return choices
