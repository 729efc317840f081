"""The two identity markers, and what the trace records of a call.

`block_enter` lies before the equations of a call and `block_exit` behind them, in the same trace as the user's
code. They pass values through, so that dead-code elimination keeps them exactly as long as the call matters, and
their rules are one line each: the identity under every transformation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxport import jaxprs
from jaxport.blocks.block import Block, FrozenMapping
from jaxport.jaxprs import ad, batching, mlir, partial_eval_rules

__all__ = ["BlockCall", "EnclosingModule", "block_enter_p", "block_exit_p"]


@dataclass(eq=False)
class EnclosingModule:
    """What a traced body knows of where it is: a module met in it, whose place in the model identity does not tell.

    Arrays of the module are operands of the marker of its first call; where they come from says where the module is
    (`labels`), separately for each place that calls the body.

    Attributes:
      paths: the path of each such array within the module.
      groups: the group of each array. A framework that keeps its parameters in collections (Linen) has the name of
        the collection between the root and the path.
      kind: its type and config; a model that has one such module has it there.
      own_path: where the module believes that it is; None where it does not know. It may be wrong: a body that was
        traced for one module serves others.
    """

    paths: tuple[str, ...]
    groups: tuple[str, ...]
    kind: tuple
    own_path: str | None = None


@dataclass(eq=False)
class BlockCall:
    """What a pair of markers says about the call between them.

    Its module is the `owner`, if the callable brought it along; else it is at `path` within the module of the
    `anchor`; a call with neither is below the call whose `key` is `around`. `finished` is set for a block that was
    grouped before (see `ungroup`): it is taken as it is.
    """

    target: str
    kind: str
    method: str
    owner: Any = None
    anchor: EnclosingModule | None = None
    path: str = ""
    key: Any = field(default_factory=object)
    around: Any = None
    config: Mapping[str, Any] = field(default_factory=FrozenMapping)
    options: Mapping[str, Any] = field(default_factory=FrozenMapping)
    arguments: tuple[str, ...] = ()
    returns: tuple[str, ...] = ("",)
    short_name: str = ""
    finished: Block | None = None
    # Behind the arguments the enter marker has the arrays of `anchored` as operands, if this is the first call of an
    # anchored module, and then arrays that are known to be parameters though they reach the trace as arguments.
    anchored: EnclosingModule | None = None

    def __repr__(self) -> str:
        # Jaxprs print their params; an address would make the text differ from run to run.
        return self.target


def _marker(name: str) -> jaxprs.Primitive:
    """A primitive that returns its operands but for the last `extra` ones, which it only looks at.

    Its param `axes` has the batched axis of each value that is passed on, for each `vmap` that it went through.
    """
    marker = jaxprs.Primitive(name)
    marker.multiple_results = True

    def passed(operands: Sequence, extra: int) -> list:
        return list(operands[: len(operands) - extra])

    def batch(operands: Sequence, dims: Sequence, *, axes: tuple, extra: int, call: BlockCall) -> tuple[list, list]:
        batched = passed(dims, extra)
        results = marker.bind(*operands, axes=(*axes, tuple(batched)), extra=extra, call=call)
        return results, batched

    def transpose(cotangents: Sequence, *operands: Any, extra: int, **_: Any) -> list:
        through = [*cotangents, *[None] * extra]
        return [c if ad.is_undefined_primal(o) else None for c, o in zip(through, operands, strict=True)]

    def partial(trace: Any, *operands: Any, extra: int, **params: Any) -> list:
        results = trace.default_process_primitive(marker, operands, {"extra": extra, **params})
        return [o if o.is_known() else r for o, r in zip(passed(operands, extra), results, strict=True)]

    marker.def_impl(lambda *operands, extra, **_: passed(operands, extra))
    marker.def_abstract_eval(lambda *avals, extra, **_: passed(avals, extra))
    # The tangents go past the marker: reverse-mode AD would transpose it otherwise, and its backward equations lie
    # in no block.
    ad.primitive_jvps[marker] = lambda primals, tangents, **params: (
        marker.bind(*primals, **params),
        passed(tangents, params["extra"]),
    )
    ad.primitive_transposes[marker] = transpose
    # A rule that a package gives for a derivative may call a module with tangents. What does not depend on them stays
    # known: a product of two values that both depend on them has no transpose.
    partial_eval_rules[marker] = partial
    batching.primitive_batchers[marker] = batch
    mlir.register_lowering(marker, lambda _, *operands, extra, **__: passed(operands, extra))
    return marker


block_enter_p = _marker("block_enter")
block_exit_p = _marker("block_exit")
