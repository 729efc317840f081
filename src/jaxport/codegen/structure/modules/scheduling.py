"""The order of a module's items: each value directly before its first reader, operands in the order of the reader's.

Before and after:

    a = f(x)                    a = f(x)
    b = g(y)         →          c = h(a)
    c = h(a)                    b = g(y)
    return c + k(b)             return c + k(b)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from jaxport.codegen.tree import Item, Module
from jaxport.importer.values.recording import Variable


def scheduled(root: Module) -> Module:
    """Return the tree with the items of all modules in the order in which a person writes them.

    Exporters interleave the branches of a computation; here each branch is followed to its end before the next begins.
    """
    return root.changed(lambda module: replace(module, items=tuple(_depth_first(module.items, module.outputs))))


def _depth_first(items: Iterable[Item], results: Iterable[Variable]) -> list[Item]:
    """Return the items that results need, each behind those that make its operands."""
    makers: Mapping[Variable, Item] = {variable: item for item in items for variable in item.outputs}
    done: dict[Item, None] = {}
    pending: list[tuple[Item | None, Iterator[Variable]]] = [(None, iter(results))]
    while pending:
        item, operands = pending[-1]
        maker = next((makers[variable] for variable in operands if variable in makers), None)
        if maker is not None and maker not in done:
            pending.append((maker, iter(maker.inputs)))
        elif maker is None:
            pending.pop()
            if item is not None:
                done[item] = None
    return list(done)
