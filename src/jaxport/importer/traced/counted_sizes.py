"""Sizes that follow from values, such as how many elements are not zero: where a target has them as it runs, they are
names.

JAX has no arrays of such sizes. A tensor of Rust has its sizes when the program runs, so that a printed crate may
compute what a jitted program cannot: `NonZero` of a matrix is traced with the shape `[2, count]`.

A count may be 0: an `If` on whether anything was found has no branch that is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import jax

from jaxport.errors import Refusal, ValueNotKnown
from jaxport.importer.names import identifier, unique
from jaxport.importer.resolving.graph import Attribute, BoundNode, describe
from jaxport.importer.traced.assumptions import Assumptions, Bounds
from jaxport.importer.traced.conditions import names_in
from jaxport.importer.traced.read_sizes import ReadSizes
from jaxport.importer.traced.zero_sizes import SUFFIX, size_text, with_zero
from jaxport.importer.values.host import Dim, RuntimeValue, is_dim
from jaxport.jaxprs.dim_text import symbols
from jaxport.scoped import scoped


@dataclass(eq=False)
class Counts:
    """The sizes that follow from values, while a program is traced.

    Attributes:
      assumed: what is assumed of sizes.
      scope: of the names of sizes.
      taken: the names in use.
      made: the name of each count: of a node, in each of its calls.
      nodes: the node that each name is of.
      calls: how often each node was called in this trace.
      found: the counts in this trace: of an operator, and of the values that decide it.
    """

    assumed: Assumptions
    scope: jax.export.SymbolicScope
    taken: set[str]
    made: dict[tuple[str, int], str] = field(default_factory=dict)
    nodes: dict[str, BoundNode] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    found: list[tuple[tuple, Sequence[RuntimeValue], Dim]] = field(default_factory=list)

    def size(self, node: BoundNode, deciding: Sequence[RuntimeValue], attributes: Mapping[str, Attribute]) -> Dim:
        """Return the size of a result of a node that follows from values: of the same values it is the same."""
        kind = node.node.domain, node.node.op_type, *sorted((key, str(value)) for key, value in attributes.items())
        for other, values, size in self.found:
            if other == kind and all(one is value for one, value in zip(deciding, values, strict=True)):
                return size
        self.found.append((kind, deciding, self._new(node)))
        return self.found[-1][-1]

    def _new(self, node: BoundNode) -> Dim:
        output = next((value.name or "" for value in node.outputs if value is not None), "")
        key = output, self.calls[output]
        self.calls[output] += 1
        if key not in self.made:
            chosen = unique(identifier(f"{node.node.op_type}_count".lower(), "count"), self.taken)
            self.taken.add(chosen)
            self.made[key], self.nodes[chosen] = chosen, node
        return with_zero(self.made[key], self.assumed, self.scope)

    def bounds(self) -> dict[str, Bounds]:
        """Return what each count has to be: the least and the most, if that is known.

        Raises:
          ValueNotKnown: something else has to hold of one.
        """
        bounds: dict[str, Bounds] = {}
        for name, node in self.nodes.items():
            symbol = f"{name}{SUFFIX}"
            needed = [f"{name} == {size_text(text)}" for key, text in self.assumed.sizes.items() if key == symbol]
            others = [text for text in self.assumed.constraints if symbol in names_in(text) and len(names_in(text)) > 1]
            for text in [*needed, *others]:
                why = f"`{text}` has to hold of a size that follows from values, and nothing says so"
                refusal = Refusal(node.node.op_type, describe(node.node), why)
                raise ValueNotKnown("the program cannot be traced with these sizes", [refusal])
            least, most = self.assumed.bounds(symbol)
            bounds[name] = least - 1, None if most is None else most - 1
        return bounds

    def beyond(self) -> Assumptions:
        """Return what is assumed of other sizes."""
        symbols_ = {f"{name}{SUFFIX}" for name in self.nodes}
        constraints = tuple(text for text in self.assumed.constraints if not names_in(text) & symbols_)
        return replace(self.assumed, constraints=constraints)


_counts: ContextVar[Counts | None] = ContextVar("counts", default=None)


def counting(assumed: Assumptions, inputs: Mapping[str, object]) -> AbstractContextManager[Counts]:
    """Trace sizes that follow from values under names.

    Args:
      assumed: what is assumed of sizes.
      inputs: the specs of the model's inputs.
    """
    every = [size for spec in inputs.values() for size in _sizes(spec) if is_dim(size)]
    scope = every[0].scope if every else jax.export.SymbolicScope(assumed.constraints)
    taken = {name for size in every for name in symbols(str(size))} | {*inputs}
    return scoped(_counts, Counts(assumed, scope, taken))


def uncounted() -> AbstractContextManager[None]:
    """Have no such names inside: a loop runs its body many times, with a count of its own each time."""
    return scoped(_counts, None)


def counts_anew() -> None:
    """Begin another trace of the same program, whose counts have the same names."""
    counts = _counts.get()
    if counts is not None:
        counts.calls.clear()
        counts.found.clear()


def is_counting() -> bool:
    """Whether sizes that follow from values have names."""
    return _counts.get() is not None


def counted_size(node: BoundNode, deciding: Sequence[RuntimeValue], attributes: Mapping[str, Attribute]) -> Dim | None:
    """Return the name of a size that follows from values; None if the program is not traced for such sizes.

    Args:
      node: the operator whose result has that size.
      deciding: the inputs that it follows from.
      attributes: those of the node.
    """
    counts = _counts.get()
    return None if counts is None else counts.size(node, deciding, attributes)


def _sizes(spec: object) -> Sequence[Dim]:
    if isinstance(spec, ReadSizes):
        return [*spec.spec.shape, *spec.elements.data.ravel()]
    return [size for leaf in jax.tree.leaves(spec) for size in getattr(leaf, "shape", ())]
