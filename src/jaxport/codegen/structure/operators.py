"""Recorded steps as operators with their operands and results: equal ones merged, unused ones left out.

Before and after:

    a = jnp.tanh(x);  b = jnp.tanh(x);  c = jnp.sin(x);  return a + b   →   a = jnp.tanh(x);  return a + a
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence

import jax
import onnx_ir as ir

from jaxport.codegen.rewriting.steps import REARRANGING, leaf_key, reads, renamed, variables
from jaxport.codegen.tree import Op
from jaxport.importer.values.recording import Step, Variable, map_leaves


def operators(steps: Iterable[Step], result: object, weights: Collection[Variable] = ()) -> tuple[list[Op], object]:
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

    Exporters transpose a weight once, or join weights once, for all calls of a module, and for all modules; each has to
    look alike.
    """
    rearranging: dict[Variable, Step] = {}
    copies: dict[tuple[Variable, ir.Node | Step], Variable] = {}
    done: list[Step] = []

    def copied(variable: Variable, reader: Step) -> Variable:
        key = variable, reader if reader.node is None else reader.node
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


def _key(step: Step) -> Hashable:
    """Return a key that equal steps share; None for a step that is not compared."""
    leaves, structure = jax.tree.flatten((step.args, sorted(step.kwargs.items())))
    parts = [leaf_key(leaf) for leaf in leaves]
    if any(part is None for part in parts):
        return None
    return (step.form, step.name, str(structure), tuple(parts))
