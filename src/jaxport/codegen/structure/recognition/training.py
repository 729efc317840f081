"""Layers that compute something else in training: dropout, and batch normalization by the statistics of the batch.

where(random.bernoulli(key, 0.9), x / 0.9, 0)                      →   Dropout(rate=0.1)
(x - mean(x, (0, 2, 3))) * rsqrt(var(x, (0, 2, 3)) + eps) * s + b   →   BatchNorm with the statistics of the batch
"""

from __future__ import annotations

from jaxport.codegen.rewriting.producers import number
from jaxport.codegen.structure.recognition.matching import Matcher
from jaxport.codegen.tree import Layer, Op
from jaxport.importer.values.recording import Variable

DROPOUT = "jnp.where((kept := random.bernoulli(random.fold_in(_, seed), *_)), x / share, 0)"
SHARES = ("1 - lax.convert_element_type(rate, *_)", "1 - rate")


def dropout(op: Op, matcher: Matcher) -> Layer | None:
    """Return the dropout that an operator ends, `where(kept, x / (1 - rate), 0)`, if only this operator reads
    `kept`.
    """
    bound = matcher.bound(DROPOUT, op.step) if op.operator == "Dropout" else None
    if bound is None or matcher.uses[bound["kept"]] != 1:
        return None
    rate, seed, x = _rate(bound["share"], matcher), number(bound["seed"]), bound["x"]
    if rate is None or seed is None or not isinstance(x, Variable) or not 0 <= rate < 1:
        return None
    return Layer("Dropout", {"rate": rate, "seed": int(seed)}, {}, (x,), op.outputs, "dropout")


def _rate(share: object, matcher: Matcher) -> float | None:
    """Return the share of dropped elements, of `1 - rate`."""
    found = [bound for text in SHARES if (bound := matcher.bound(text, share)) is not None]
    kept = number(share)
    return number(found[0]["rate"]) if found else None if kept is None else 1 - kept


def is_of_batch(statistic: object, name: str, x: Variable, axis: int, matcher: Matcher) -> bool:
    """Whether a statistic, `jnp.mean` or `jnp.var`, is that of a batch: over all axes but that of the channels."""
    shaped = matcher.step(statistic, "jnp.reshape")
    made = matcher.step(shaped.step.args[0] if shaped is not None else statistic, name)
    axes = tuple(other for other in range(len(x.shape)) if other != axis)
    return made is not None and made.step.args == (x,) and made.step.kwargs == {"axis": axes}
