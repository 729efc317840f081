"""The names that a query may use: an unknown one is a mistake, and matches nothing without a word."""

from __future__ import annotations

import sys
from functools import cache

from jaxport.errors import QueryError
from jaxport.mox.primitives import primitives
from jaxport.mox.programs.names import near
from jaxport.mox.programs.program import TracedProgram
from jaxport.mox.querying.xpath import Compiled, Name

# What elements have, or may have after an edit.
_ATTRIBUTES = frozenset({
    "dtype", "edited", "features", "in_features", "inputs", "kind", "method", "name", "out_features", "outputs",
    "params", "path", "shape", "target", "type", "use_bias",
})  # fmt: skip
_WHAT = {"tag": "element", "target": "type", "attribute": "attribute"}


def check(mox: TracedProgram, query: str, compiled: Compiled) -> None:
    """Refuse a query with a name that nothing has.

    A name that is unknown to the Mox is known all the same if it is that of a primitive of JAX, or of a layer or
    function of a library: then there is none of it.

    Raises:
      QueryError: a name is unknown.
    """
    for name in compiled.names:
        if name.kind == "string":
            continue
        known = mox.tree.names(name.kind)
        if name.text in known or _is_known_elsewhere(name):
            continue
        what = _WHAT[name.kind]
        others = mox.tree.paths if name.kind == "target" else ()
        raise QueryError(
            f"`{query}` names the {what} `{name.text}`, which nothing has",
            where=f"position {name.position} of the query of `{mox.name}`",
            why=near(name.text, [*known, *others]),
            instead="`print(mox)` shows what there is; `select(query, strict=False)` takes any name",
        )


def _is_known_elsewhere(name: Name) -> bool:
    if name.kind == "attribute":
        return name.text in _ATTRIBUTES
    if name.kind == "target":
        return name.text.rpartition(".")[0] in sys.modules
    return name.text in _elsewhere(len(sys.modules))


@cache
def _elsewhere(_: int) -> frozenset[str]:
    """Return the names of primitives, and of layers and functions of the libraries that are loaded."""
    from jaxport.frameworks import loaded

    namespaces = ["jax.nn", "jax.numpy", "jax.lax", "jaxport.mox"]
    namespaces += [name for framework in loaded() for name in framework.namespaces]
    names = {name for module in namespaces if module in sys.modules for name in dir(sys.modules[module])}
    onnx = sys.modules.get("onnx")
    if onnx is not None:
        names |= {schema.name for schema in onnx.defs.get_all_schemas()}
    return frozenset({"mox", "body", *primitives(), *names})
