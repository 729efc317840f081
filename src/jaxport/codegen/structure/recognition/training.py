"""Layers that compute something else in training: dropout, and batch normalization by the statistics of the batch."""

from __future__ import annotations

from jaxport.codegen.structure.recognition.matching import Matcher
from jaxport.codegen.structure.spelling.spellings import number
from jaxport.codegen.tree import Layer, Op
from jaxport.importer.values.host import RuntimeValue
from jaxport.importer.values.recording import Variable

__all__ = ["dropout", "is_of_batch"]


def dropout(op: Op, matcher: Matcher) -> Layer | None:
    """Return the dropout that an operator ends, `where(kept, x / (1 - rate), 0)`, if only this operator reads `kept`."""
    if op.operator != "Dropout" or op.step.name != "jnp.where" or len(op.step.args) != 3:
        return None
    kept, scaled, zero = op.step.args
    drawn, quotient = matcher.step(kept, "random.bernoulli"), matcher.step(scaled, "/")
    if drawn is None or quotient is None or number(zero) != 0 or matcher.uses[kept] != 1:
        return None
    x, share = quotient.step.args
    rate, key = _rate(share, matcher), matcher.step(drawn.step.args[0], "random.fold_in")
    seed = number(key.step.args[1]) if key is not None else None
    if rate is None or seed is None or not isinstance(x, Variable) or not 0 <= rate < 1:
        return None
    return Layer("Dropout", {"rate": rate, "seed": int(seed)}, {}, (x,), op.outputs, "dropout")


def _rate(share: RuntimeValue, matcher: Matcher) -> float | None:
    """Return the share of dropped elements, of `1 - rate`."""
    difference = matcher.step(share, "-")
    if difference is None:
        kept = number(share)
        return None if kept is None else 1 - kept
    one, rate = difference.step.args
    converted = matcher.step(rate, "lax.convert_element_type")
    known = number(converted.step.args[0] if converted is not None else rate)
    return known if number(one) == 1 else None


def is_of_batch(statistic: RuntimeValue, name: str, x: Variable, axis: int, matcher: Matcher) -> bool:
    """Whether a statistic, `jnp.mean` or `jnp.var`, is that of a batch: over all axes but that of the channels."""
    shaped = matcher.step(statistic, "jnp.reshape")
    made = matcher.step(shaped.step.args[0] if shaped is not None else statistic, name)
    axes = tuple(other for other in range(len(x.shape)) if other != axis)
    return made is not None and made.step.args == (x,) and made.step.kwargs == {"axis": axes}
