"""Statements and names that the printer of modules makes, whatever the module is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxport.codegen.rewriting.steps import leaves
from jaxport.codegen.tree import Call, Item, Layer, Loop, Module, Op
from jaxport.codegen.writing.fields import Fields, table_name
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Step, Variable


def lowered(text: str) -> str:
    """Return a name as variables have it.

    >>> lowered("LayerNorm"), lowered("c_fc")
    ('layer_norm', 'c_fc')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()


def plural(text: str) -> str:
    """Return a name for a list of values of a name.

    >>> plural("cache"), plural("bias")
    ('caches', 'bias_list')
    """
    return f"{text}s" if not text.endswith("s") else f"{text}_list"


def singular(text: str) -> str:
    """Return a name for an element of a list of a name.

    >>> singular("blocks"), singular("h")
    ('block', 'layer')
    """
    return text[:-1] if text.endswith("s") and len(text) > 2 else "layer" if text != "layer" else "one"


def names_of_parts(whole: str, count: int) -> list[str]:
    """Return names for the parts of a value, which its own name may tell.

    >>> names_of_parts("qkv", 3), names_of_parts("to_kv", 2), names_of_parts("gate_up_proj", 2), names_of_parts("x", 2)
    (['q', 'k', 'v'], ['k', 'v'], ['gate', 'up'], ['part', 'part'])
    """
    words = [word for word in whole.split("_") if word.isalpha() and word not in ("to", "in", "proj", "linear", "fc")]
    for names in (words, list(words[-1]) if words and words[-1] in ("qkv", "qk", "kv") else []):
        if len(names) == count and names:
            return names
    return ["part"] * count


def same_tensor(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two tensors are of one dtype and shape, and have the same bytes."""
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def direct_operands(step: Step, loops: Mapping[Step, Loop]) -> Iterator[Variable]:
    """Yield the values that are operands of a step itself, not of a loop or of a function that is one of its
    operands.
    """
    for leaf in () if step in loops else leaves((step.args, step.kwargs)):
        if isinstance(leaf, Variable):
            yield leaf


def replaced_inputs(loop: Loop) -> dict[int, int]:
    """Return which input of its own each call updates, such as the cache of a layer, by positions of outputs."""
    first = loop.calls[0]
    pairs = list(zip(loop.collected, loop.rows, strict=False))
    alike = all(
        (first.outputs[output].shape, first.outputs[output].dtype) == (first.inputs[row].shape, first.inputs[row].dtype)
        for output, row in pairs
    )
    return dict(pairs) if alike and len(loop.collected) == len(loop.rows) else {}


def begin_in(values: Sequence[object], part: Sequence[Variable]) -> int | None:
    """Return the position at which values begin among others, in their order."""
    for begin in range(len(values) - len(part) + 1):
        if all(one is other for one, other in zip(values[begin:], part, strict=False)):
            return begin
    return None


def parts_by_place(loop: Loop) -> list[list[Module | Layer]]:
    """Return the parts that the calls of a loop call: for each, those of all calls."""
    rounds = [
        [part for part in one.module.parts if not isinstance(part, Op)] if one.module.inline else [one]
        for one in loop.calls
    ]
    return [
        [part.module if isinstance(part, Call) else part for part in column] for column in zip(*rounds, strict=True)
    ]


def items_of_rounds(loop: Item) -> Iterator[Item]:
    """Yield the items of all rounds of a loop, as they are without it."""
    assert isinstance(loop, Loop)
    for index, one in enumerate(loop.calls):
        for position, row in loop.rows.items():
            if isinstance(row, Variable):
                part = one.inputs[position]
                yield Op("Gather", Step("index", "", (row, index), {}, part, None), (row,), (part,))
        yield from one.module.items if one.module.inline else [one]


def listed_parts(fields: Fields, around: Sequence[str | int], begin: int, count: int) -> str:
    """Return the modules of a list that a loop calls: `self.layers[1:]`."""
    members, end = fields.members(around), begin + count
    listed = f"self.{around[0]}" + "".join(f"[{place}]" for place in around[1:])
    if (begin, end) == (0, len(members)):
        return listed
    return f"{listed}[{begin or ''}:{end if end < len(members) else ''}]"


def stored_as(tables: dict[str, HostValue], value: HostValue, fields: Fields) -> str:
    """Return the attribute in which a module keeps a tensor, which is among `tables` from now on."""
    known = next((key for key, other in tables.items() if same_tensor(other.data, value.data)), None)
    key = known or fields.fresh(table_name(value.name))
    tables.setdefault(key, value)
    return key


class SizeName(str):
    """The name of a size that is an argument of a module."""

    __slots__ = ()


class CellText(str):
    """A cell of the module that `lax.scan` runs.

    It is printed as a function that each call makes anew: `lambda carry, row: self.cell(carry, row)`. JAX keeps what it
    traced of a callable, with the weights of that time as constants, for as long as the callable lives:
    `lax.scan(self.cell, …)` would not see weights that change in place.
    """

    __slots__ = ()


LONGEST_INLINE = 72
"""Characters up to which a value that is used once is written where it is used."""

LONGEST_DISTANT = 32
"""Characters of an expression that is an operand of a later step than the next at most."""

KEPT = {"mask", "softmax", "top_k"}
"""Defaults that say more than `x`."""


def attending(steps: Sequence[Step], tables: Mapping[Variable, str], method: str) -> list[Step]:
    """Return steps with `self.embed(x)` in place of `take(table, x)`, and `self.embed.attend(x)` in place of
    `x @ table.T`.

    Args:
      steps: the steps of a module.
      tables: where the embeddings are, by the variable that stands for the table of each.
      method: the name of the method that multiplies; empty if embeddings have none.
    """
    turned = {
        step.outputs: tables[step.args[0]]
        for step in steps
        if step.name in ("T", "jnp.transpose") and step.form != "vmap"
        if isinstance(step.args[0], Variable) and step.args[0] in tables
    }

    def called(step: Step) -> Step:
        if (step.form, step.name, len(step.args), step.kwargs) != ("call", "jnp.take", 2, {"axis": 0}):
            return attended(step) if method else step
        table, indices = step.args
        if not isinstance(table, Variable) or table not in tables or not isinstance(indices, Variable):
            return step
        is_whole = np.dtype(indices.dtype).kind in "iu"
        return Step("call", tables[table], (indices,), {}, step.outputs, step.node) if is_whole else step

    def attended(step: Step) -> Step:
        is_product = step.name in ("@", "jnp.matmul") and step.form != "vmap" and len(step.args) == 2
        table = step.args[1] if is_product and isinstance(step.args[1], Variable) else None
        if table not in turned:
            return step
        return Step("call", f"{turned[table]}.{method}", step.args[:1], {}, step.outputs, step.node)

    return [called(step) for step in steps]
