"""Structured source for Equinox."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jaxport.codegen.equinox.layers import DEFINITIONS, LAYERS
from jaxport.codegen.python.texts import Copied
from jaxport.codegen.writing.dialect import Dialect, SequenceForm, listed
from jaxport.codegen.writing.literals import call, name

__all__ = ["EQUINOX"]


def _loading(model: str, is_random: bool, trained: Sequence[str] | None) -> str:
    """Return the source of `load`, and that of the filter of what is trained."""
    del is_random
    return Copied("jaxport.codegen.equinox").loading(trained, model=model)


_SEQUENTIAL = SequenceForm(lambda elements: call("Sequential", listed(elements)), ("layers",))

EQUINOX = Dialect(
    name="equinox",
    layers=LAYERS,
    accepts=lambda layer: (
        layer.kind in LAYERS
        and not layer.config.get("in_single")
        and (bool(layer.weights) or layer.kind not in ("LayerNorm", "RMSNorm"))
    ),
    functions={},
    base="eqx.Module",
    imports=("import equinox as eqx",),
    signature=("keys", "Iterator"),
    sequence=lambda modules: modules,
    sequential=dict.fromkeys(("", "layers"), _SEQUENTIAL),
    parameter=lambda array: array,
    table=lambda array: array,
    random=lambda *sizes: ast.Call(call("nn.initializers.lecun_normal"), [call("next", name("keys")), *sizes], []),
    value=lambda weight: weight,
    frozen=lambda table: call("lax.stop_gradient", table),
    declared=True,
    definitions=DEFINITIONS,
    loading=_loading,
    reserved=frozenset({"keys", "key"}),
)
"""Equinox."""
