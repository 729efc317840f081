"""Refuse random numbers that a model draws anew in each call, but a file would draw once: those of a Dropout that is
on.

A key that the user's own code writes down is meant: its numbers are part of the function. A stream that a module holds
gives others in the next call, and so does a key that is passed to a layer of a library: such a file would have the
numbers, such as a mask, of the one call that was traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxport.blocks.block import Block, block_p
from jaxport.blocks.liveness import without_dead_code
from jaxport.blocks.tracing import Traced
from jaxport.errors import StateChanged
from jaxport.export.ports import is_key
from jaxport.jaxprs import Jaxpr
from jaxport.jaxprs.walk import bodies, equations_within, used_variables

LIBRARIES = ("equinox.", "flax.")
"""What the names of layers begin with that draw from the keys that they are given only."""


def refuse_drawn_once(traced: Traced, name: str, is_input: Callable[[str], bool]) -> None:
    """Check a trace; `is_input` tells which weights are inputs of the model, whose keys can be given with each call.

    Raises:
      StateChanged: results depend on random numbers of a module's own stream, or of a layer whose key is no input.
    """
    if all(equation.primitive.name != "random_bits" for equation in equations_within(traced.jaxpr.jaxpr)):
        return
    jaxpr = without_dead_code(traced.jaxpr, lambda _: False).jaxpr
    count, used = len(traced.weights), used_variables(jaxpr)
    weights = zip(jaxpr.invars, traced.weights, strict=False)
    keys = [weight for variable, weight in weights if variable in used and is_key(variable.aval.dtype)]
    held = [weight.path for weight in keys if weight.owned and not is_input(weight.path)]
    dtypes = [variable.aval.dtype for variable in jaxpr.invars[count:]]
    given = any(is_key(dtype) or dtype == np.uint32 for dtype in dtypes)  # words of a key, too
    given = given or any(is_input(weight.path) for weight in keys)
    layers = [f"`{block.path or block.name}` ({block.target})" for block in _drawing(jaxpr)]
    if held or (layers and not given):
        _refuse(name, list(dict.fromkeys(layers)) or [f"`{path}`" for path in held])


def _drawing(jaxpr: Jaxpr) -> Iterator[Block]:
    """Yield the layers of libraries that draw themselves, not by a layer inside."""
    for equation in equations_within(jaxpr):
        if equation.primitive is block_p and equation.params["block"].target.startswith(LIBRARIES):
            inside = [inner for body in bodies(equation.params) for inner in equations_within(body)]
            layers = (inner for body in bodies(equation.params) for inner in _drawing(body))
            if any(inner.primitive.name == "random_bits" for inner in inside) and next(layers, None) is None:
                yield equation.params["block"]


def _refuse(name: str, places: Sequence[str]) -> None:
    shown = [*places[:20], *([f"and {len(places) - 20} more"] if len(places) > 20 else [])]
    raise StateChanged(
        f"`{name}` draws random numbers that are not the same in its next call",
        where="\n".join(shown),
        why="the model would have those of this call, such as one mask of a Dropout, whatever its inputs are",
        instead="switch the model to evaluation (`model.eval()`, `deterministic=True`, `inference=True`), make the "
        "stream or "
        'its key an argument, or pass `state="discard"` to keep the numbers of this call',
    )
