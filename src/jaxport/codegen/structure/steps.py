"""Recorded steps as operators with their operands and results: equal ones merged, unused ones left out."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

import jax
import numpy as np

from jaxport.codegen.tree import Op
from jaxport.importer.values.host import HostValue, RuntimeValue
from jaxport.importer.values.recording import Function, Recordable, Step, Variable, map_leaves

__all__ = ["leaf_key", "operators", "reads", "renamed", "variables"]

SMALL = 64
"""Elements up to which constants are compared by value."""
REARRANGING = frozenset({"T", "jnp.transpose", "jnp.reshape", "jnp.expand_dims", "jnp.squeeze"})
"""Functions whose result has the elements of their operand."""


def variables(tree: RuntimeValue) -> Iterator[Variable]:
    """Yield the variables in a tree, those inside slices included."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, Variable):
            yield leaf
        elif isinstance(leaf, slice):
            yield from variables((leaf.start, leaf.stop, leaf.step))


def reads(step: Step) -> list[Variable]:
    """Return the variables that a step reads, in order, with those that its nested functions capture."""
    variables_read = dict.fromkeys(variables((step.args, list(step.kwargs.values()))))
    for leaf in jax.tree.leaves((step.args, list(step.kwargs.values()))):
        if isinstance(leaf, Function):
            variables_read |= dict.fromkeys(_captured(leaf))
    return list(variables_read)


def _captured(function: Function) -> list[Variable]:
    known = set(variables(function.parameters))
    captured: dict[Variable, None] = {}
    for step in function.steps:
        captured |= {variable: None for variable in reads(step) if variable not in known}
        known |= set(variables(step.outputs))
    captured |= {variable: None for variable in variables(function.result) if variable not in known}
    return list(captured)


def operators(
    steps: Iterable[Step], result: RuntimeValue, weights: Collection[Variable] = ()
) -> tuple[list[Op], RuntimeValue]:
    """Return the steps that a result needs, equal ones once; and the result in terms of them.

    A step that reads nothing but weights stays with each of its readers: two modules may have the same weight.
    """
    merged: dict[Variable, Variable] = {}
    known: dict[Hashable, Step] = {}
    kept: list[Step] = []
    of_weights: set[Variable] = set()
    for original in steps:
        step = renamed(original, merged)
        read = reads(step)
        is_of_weights = bool(read) and all(variable in weights or variable in of_weights for variable in read)
        of_weights.update(variables(step.outputs) if is_of_weights else ())
        key = None if is_of_weights else _key(step)
        if key is not None and key in known:
            same = known[key]
            pairs = zip(variables(step.outputs), variables(same.outputs), strict=True)
            merged.update(pairs)
            continue
        if key is not None:
            known[key] = step
        kept.append(step)
    result = map_leaves(lambda leaf: merged.get(leaf, leaf) if isinstance(leaf, Variable) else leaf, result)
    kept = _beside_readers(kept, set(variables(result)), weights)
    needed = set(variables(result))
    backwards: list[Op] = []
    for step in reversed(kept):
        outputs = tuple(variables(step.outputs))
        if needed.isdisjoint(outputs):
            continue
        inputs = tuple(reads(step))
        needed |= set(inputs)
        operator = getattr(step.node, "op_type", "") or ""
        backwards.append(Op(operator, step, inputs, outputs))
    return backwards[::-1], result


def _beside_readers(steps: Sequence[Step], results: Collection[Variable], weights: Collection[Variable]) -> list[Step]:
    """Return the steps with those that rearrange or pack weights before the nodes that read them, as steps of these.

    Exporters transpose a weight once, or join weights once, for all calls of a module, and for all modules; each has to look
    alike.
    """
    rearranging: dict[Variable, Step] = {}
    copies: dict[tuple[Variable, int], Variable] = {}
    done: list[Step] = []

    def copied(variable: Variable, reader: Step) -> Variable:
        key = variable, id(reader if reader.node is None else reader.node)
        if key not in copies:
            copies[key] = copy_of(variable, reader)
        return copies[key]

    def copy_of(variable: Variable, reader: Step) -> Variable:
        step = rearranging[variable]
        inner = {source: copied(source, reader) for source in reads(step) if source in rearranging}
        copy = renamed(step, inner)
        output = Variable(variable.shape, variable.dtype, variable.hint)
        done.append(Step(copy.form, copy.name, copy.args, copy.kwargs, output, reader.node))
        return output

    alone = {variable for step in steps if step.name != "jnp.concatenate" for variable in reads(step)}
    joined: set[Variable] = set()
    for step in steps:
        output, read = step.outputs, reads(step)
        of_weight = read and all(variable in weights or variable in rearranging for variable in read)
        is_joined = step.name == "jnp.concatenate" or not joined.isdisjoint(read)
        moves = step.name in REARRANGING or (is_joined and step.name in ("jnp.concatenate", ""))
        is_piece = step.name == "" and isinstance(output, Variable) and output not in alone
        if (moves or is_piece) and of_weight and isinstance(output, Variable) and output not in results:
            rearranging[output] = step
            joined.update([output] if is_joined else ())
        else:
            done.append(
                renamed(step, {variable: copied(variable, step) for variable in read if variable in rearranging})
            )
    return done


def renamed(step: Step, names: Mapping[Variable, Variable | HostValue]) -> Step:
    """Return the step on the variables that are kept; its nested functions, too."""
    if not names or names.keys().isdisjoint(reads(step)):
        return step

    def rename(leaf: RuntimeValue) -> RuntimeValue:
        if isinstance(leaf, Function):
            inner = [renamed(part, names) for part in leaf.steps]
            return Function(leaf.name, leaf.parameters, inner, map_leaves(rename, leaf.result))
        if isinstance(leaf, slice):
            return slice(*(rename(part) for part in (leaf.start, leaf.stop, leaf.step)))
        return names.get(leaf, leaf) if isinstance(leaf, Variable) else leaf

    return Step(
        step.form, step.name, map_leaves(rename, step.args), map_leaves(rename, step.kwargs), step.outputs, step.node
    )


def _key(step: Step) -> Hashable:
    """Return a key that equal steps share; None for a step that is not compared."""
    leaves, structure = jax.tree.flatten((step.args, sorted(step.kwargs.items())))
    parts = [leaf_key(leaf) for leaf in leaves]
    if any(part is None for part in parts):
        return None
    return (step.form, step.name, str(structure), tuple(parts))


def _large_key(value: HostValue) -> Hashable:
    """Return the key of a large constant: its identity, or its element if all are the same."""
    first = value.data.flat[0]
    if value.data.dtype.kind not in "OUS" and value.data.tobytes() == first.tobytes() * value.size:  # 0 and -0 differ
        return ("uniform", str(value.dtype), value.shape, first.tobytes())
    return ("host", id(value.data))


def leaf_key(leaf: RuntimeValue) -> Hashable:
    """Return a key that equal arguments of steps share; None for one that is not compared."""
    if isinstance(leaf, Variable):
        return ("variable", id(leaf))
    if isinstance(leaf, HostValue):
        if leaf.size > SMALL:
            return ("host", id(leaf.data)) if leaf.symbolic else _large_key(leaf)
        if leaf.symbolic:
            return ("sizes", str(leaf.dtype), leaf.shape, tuple(map(str, leaf.data.ravel())))
        return (
            "host",
            str(leaf.dtype),
            leaf.shape,
            leaf.data.tobytes() if leaf.data.dtype != object else tuple(leaf.data.ravel()),
        )
    if isinstance(leaf, Recordable):
        return ("function", leaf.name)
    if isinstance(leaf, slice):
        parts = tuple(leaf_key(part) for part in (leaf.start, leaf.stop, leaf.step))
        return None if any(part is None for part in parts) else ("slice", *parts)
    if isinstance(leaf, Function | np.ndarray) or callable(leaf):
        return None
    return (type(leaf).__name__, str(leaf))
