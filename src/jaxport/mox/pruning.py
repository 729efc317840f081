"""What an edit leaves without use: equations, parameters and state that no result depends on any more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from jaxport import jaxprs
from jaxport.blocks.liveness import live
from jaxport.mox.mox import Mox

__all__ = ["pruned"]


def pruned(mox: Mox, gone_blocks: Iterable[str] = ()) -> Mox:
    """Return the Mox without what its results do not depend on; the parameters that are gone are in `dropped`.

    The state of blocks that are gone changes no more.
    """
    below = tuple(f"{path}." if path else "" for path in gone_blocks)
    traced, jaxpr = mox.traced, mox.jaxpr.jaxpr
    # A new value of state that is the old one is none.
    held = dict(zip((weight.path for weight in mox.weights), jaxpr.invars, strict=False))
    first = len(traced.output_paths)
    gone = {
        first + index
        for index, path in enumerate(traced.state_outputs)
        if jaxpr.outvars[first + index] is held.get(path) or path.startswith(below)
    }
    if gone:
        jaxpr = jaxpr.replace(outvars=[atom for index, atom in enumerate(jaxpr.outvars) if index not in gone])
    count = len(mox.weights)
    jaxpr, left = live(jaxpr, [index >= count for index in range(len(jaxpr.invars))])
    state = tuple(path for index, path in enumerate(traced.state_outputs, first) if index not in gone)
    weights = tuple(weight for weight, is_left in zip(mox.weights, left, strict=False) if is_left)
    dropped = tuple(weight.path for weight, is_left in zip(mox.weights, left, strict=False) if not is_left)
    closed = jaxprs.closed(jaxpr, mox.jaxpr.consts)
    return mox.replaced(replace(traced, jaxpr=closed, weights=weights, state_outputs=state), dropped=dropped)
