"""Rows that are written to computed positions, as JAX writes them.

    scatter_nd(x, expand_dims(i, 1), y, "add")                                             →   x.at[i].add(y)
    x.at[clip(i, -4, 3)].add(where(expand_dims(i == clip(i, -4, 3), 1), y, -0.0))           →   x.at[i].add(y)
    concatenate([x, zeros(1, m)]).at[clip(where(i < 0, i + 4, i), -1, 4)].set(y)[:4]        →   x.at[i].set(y)

An export spells out that JAX counts negative positions from the end, and leaves out those that are outside.
"""

from __future__ import annotations

from jaxport.codegen.rewriting.patterns import bindings, pattern
from jaxport.codegen.rewriting.producers import is_like, is_number, number
from jaxport.codegen.rewriting.step_rewriting import StepRewriting
from jaxport.codegen.rewriting.steps import in_place
from jaxport.codegen.structure.spelling.functions import are_bounds, is_computed
from jaxport.codegen.structure.spelling.idioms import AS_WRITTEN
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Step, Variable

UPDATES = ("set", "add")
"""What is done to rows in the same way by JAX's method, whatever they are; the helper has gradients of others."""


@AS_WRITTEN.on("helper.scatter_nd")
def rows(step: Step, rewriting: StepRewriting) -> Step | None:
    """`scatter_nd(x, expand_dims(i, 1), y, "add")` is `x.at[i].add(y)`: NumPy's arrays, which inputs may be, have no `at`."""
    x, at, y, update = step.args
    added = rewriting.producers.step(at, "jnp.expand_dims")
    i = added.args[0] if added is not None else None
    is_of_jax = isinstance(x, HostValue) or x in rewriting.weights or is_computed(x, rewriting)
    if update not in UPDATES or not is_of_jax or not isinstance(i, Variable) or at.shape != (*i.shape, 1):
        return None
    if step.outputs.dtype == bool or not isinstance(y, Variable):
        return None
    return in_place(step, f"at.{update}", x, i, y, form="method")


@AS_WRITTEN.on("at.add")
def inside(step: Step, rewriting: StepRewriting) -> Step | None:
    """Rows outside, to which nothing is added, are left out by JAX."""
    x, at, y = step.args
    bounded = rewriting.producers.step(at, "jnp.clip")
    if bounded is None or len(bounded.args) != 3 or not are_bounds(*bounded.args[1:], x.shape[0]):
        return None
    wanted, known = pattern("jnp.where(unexpanded(i == at), rows, zero)"), {"i": bounded.args[0], "at": at}
    found = next(bindings(wanted, y, rewriting.producers, known), None)
    if found is None or not is_number(found["zero"], 0):
        return None
    added = found["rows"] if is_like(found["rows"], y) else _plain(found["rows"])
    return None if added is None else in_place(step, step.name, x, bounded.args[0], added, form="method")


def _plain(value: object) -> int | float | None:
    """Return a known number, of the kind of its type."""
    found = number(value)
    return int(found) if found is not None and isinstance(value, HostValue) and value.dtype.kind in "iu" else found


@AS_WRITTEN.on("")
def before_the_rest(step: Step, rewriting: StepRewriting) -> Step | None:
    """Rows outside that are written behind all others, which are left out, are left out by JAX."""
    made = rewriting.producers.step(step.args[0], "at.set") if step.form == "index" else None
    joined = rewriting.producers.step(made.args[0], "jnp.concatenate") if made is not None else None
    if made is None or joined is None or len(joined.args[0]) != 2 or joined.kwargs.get("axis", 0) != 0:
        return None
    x, size = joined.args[0][0], step.outputs.shape[0]
    if not is_like(x, step.outputs) or not isinstance(size, int) or step.args[1] != slice(None, size):
        return None
    wanted = pattern("jnp.clip(jnp.where(i < 0, i + size, i), low, high)")
    found = next(bindings(wanted, made.args[1], rewriting.producers), None)
    if found is None or not is_computed(x, rewriting) or not isinstance(found["i"], Variable):
        return None
    limits = {"size": size, "low": -1, "high": size}
    if not all(is_number(found[name], limit) for name, limit in limits.items()):
        return None
    return in_place(step, "at.set", x, found["i"], made.args[2], form="method")
