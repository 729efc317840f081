"""The two identity markers, and the record of a call in a trace.

`block_enter` comes before the equations of a call and `block_exit` after them, in the same trace as the user's code.
They pass values through, so that dead-code elimination keeps them exactly as long as the call matters, and their rules
are one line each: the identity under every transformation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxport import jaxprs
from jaxport.blocks.block import Block, FrozenMapping
from jaxport.jaxprs import Module, Parameters, ad, batching, mlir, partial_eval_rules


@dataclass(eq=False)
class EnclosingModule:
    """A module used in a traced body whose place in the model is not known from its identity.

    Arrays of the module are operands of the marker of its first call; their origin (`labels`) tells the place of the
    module, separately for each call of the body.

    Attributes:
      paths: the path of each such array within the module.
      groups: the group of each array. A framework that keeps its parameters in collections (Linen) has the name of
        the collection between the root and the path.
      kind: its type and config, which identify it if the model has one such module.
      own_path: the path that the module reports for itself; None if it does not know. It may be wrong: a body that was
        traced for one module is reused for others.
    """

    paths: tuple[str, ...]
    groups: tuple[str, ...]
    kind: tuple
    own_path: str | None = None


@dataclass(eq=False)
class BlockCall:
    """The record of the call between a pair of markers.

    Its module is the `owner`, if the callable holds it; else it is at `path` within the module of the `anchor`; a call
    with neither is below the call whose `key` is `around`. `finished` is set for a block that was grouped before (see
    `ungroup`) and stays as it is.
    """

    target: str
    kind: str
    method: str
    owner: Module = None
    anchor: EnclosingModule | None = None
    path: str = ""
    key: Any = field(default_factory=object)
    around: Module = None
    config: Parameters = field(default_factory=FrozenMapping)
    options: Parameters = field(default_factory=FrozenMapping)
    arguments: tuple[str, ...] = ()
    returns: tuple[str, ...] = ("",)
    short_name: str = ""
    finished: Block | None = None
    # The arguments that stay where they are during the call, by position: inside, their operand is the argument.
    in_place: frozenset[int] = frozenset()
    # After the arguments the enter marker takes the arrays of `anchored`, if this is the first call of an anchored
    # module, and then arrays that are known to be parameters though they reach the trace as arguments.
    anchored: EnclosingModule | None = None

    def __repr__(self) -> str:
        # Jaxprs print their params; an address would make the text differ from run to run.
        return self.target


def _marker(name: str) -> jaxprs.Primitive:
    """Return a primitive that returns its operands except the last `extra` ones.

    Its param `axes` has the batched axis of each value that is passed on, for each `vmap` level.
    """
    marker = jaxprs.Primitive(name)
    marker.multiple_results = True

    def passed(operands: Sequence, extra: int) -> list:
        return list(operands[: len(operands) - extra])

    def batch(operands: Sequence, dims: Sequence, *, axes: tuple, extra: int, call: BlockCall) -> tuple[list, list]:
        batched = passed(dims, extra)
        results = marker.bind(*operands, axes=(*axes, tuple(batched)), extra=extra, call=call)
        return results, batched

    def transpose(cotangents: Sequence, *operands: object, extra: int, **_: object) -> list:
        through = [*cotangents, *[None] * extra]
        return [c if ad.is_undefined_primal(o) else None for c, o in zip(through, operands, strict=True)]

    def partial(trace: Any, *operands: Any, extra: int, **params: Any) -> list:
        results = trace.default_process_primitive(marker, operands, {"extra": extra, **params})
        return [o if o.is_known() else r for o, r in zip(passed(operands, extra), results, strict=True)]

    marker.def_impl(lambda *operands, extra, **_: passed(operands, extra))
    marker.def_abstract_eval(lambda *avals, extra, **_: passed(avals, extra))
    # The tangents bypass the marker: reverse-mode AD would transpose it otherwise, and its backward equations are in
    # no block.
    ad.primitive_jvps[marker] = lambda primals, tangents, **params: (
        marker.bind(*primals, **params),
        passed(tangents, params["extra"]),
    )
    ad.primitive_transposes[marker] = transpose
    # A package's derivative rule may call a module with tangents. Values that do not depend on them stay known: a
    # product of two values that both depend on tangents has no transpose.
    partial_eval_rules[marker] = partial
    batching.primitive_batchers[marker] = batch
    mlir.register_lowering(marker, lambda _, *operands, extra, **__: passed(operands, extra))
    return marker


block_enter_p = _marker("block_enter")
block_exit_p = _marker("block_exit")
