"""Sums of products of elements as values of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np
import onnx_ir as ir

from jaxport.graph.arranging import Arrangement
from jaxport.graph.axes.elements import IndexedElements
from jaxport.graph.axes.sums import AppliedOperator, Atom, Element, ElementSum, Index, KnownElement
from jaxport.graph.editing import Dim, dims_of
from jaxport.graph.facts.forms import ZERO
from jaxport.graph.fusing import Builder
from jaxport.graph.matching import Axis, Seen, look


@dataclass(frozen=True)
class ElementEmission:
    """Emits elements as a value, with axes in the order that is wanted.

    Args:
      elements: what is known of them.
      groups: the labels of each axis of the value; those of an element are some of them.
      sizes: how many there are of each label.
      dtype: the dtype of numbers.
    """

    elements: IndexedElements
    groups: Sequence[Sequence[int]]
    sizes: dict[Axis, Dim]
    dtype: ir.DataType

    def leaves(self, total: ElementSum) -> Iterator[ir.Value | None]:
        """Yield the values that a sum is computed from; None for one that has no arrangement."""
        whole = self._whole(total)
        if whole is not None:
            yield whole.value
            return
        for atoms, _ in total.terms:
            for atom, _ in atoms:
                if isinstance(atom, AppliedOperator):
                    for operand in atom.operands:
                        yield from self.leaves(operand)
                elif isinstance(atom, Element):
                    yield atom.value if self._cut(atom.index, dims_of(atom.value) or ()) is not None else None

    def emit(self, builder: Builder, total: ElementSum, like: ir.DataType | None = None) -> ir.Value:
        """Return a sum; numbers have a dtype `like` that of others."""
        whole = self._whole(total)
        if whole is not None:
            return self._arranged(builder, builder.now(whole.value), whole.axes)
        dtype = like or self.dtype
        terms = [
            self._product(builder, atoms, factor, dtype) for atoms, factor in sorted(total.terms, key=lambda t: -t[1])
        ]
        made = terms[0] if terms else builder.constant(np.array(0, dtype.numpy()), "zero")
        for term in terms[1:]:
            made = self._applied(builder, "Add", [made, term], dtype)
        return made

    def _product(
        self, builder: Builder, atoms: frozenset[tuple[Atom, int]], factor: float, dtype: ir.DataType
    ) -> ir.Value:
        factors = [self._atom(builder, atom) for atom, power in atoms for _ in range(power)]
        dtype = factors[0].dtype if factors and factors[0].dtype is not None else dtype
        if factor == -1 and factors:
            factors[0] = self._applied(builder, "Neg", factors[:1], dtype)
        elif factor != 1 or not factors:
            factors.append(builder.constant(np.array(factor, dtype.numpy()), "factor"))
        made = factors[0]
        for each in factors[1:]:
            made = self._applied(builder, "Mul", [made, each], dtype)
        return made

    def _atom(self, builder: Builder, atom: Atom) -> ir.Value:
        if isinstance(atom, AppliedOperator):
            node, types = atom.node, [value.dtype for value in atom.node.inputs if value is not None]
            operands = list(
                starmap(lambda x, dtype: self.emit(builder, x, dtype), zip(atom.operands, types, strict=True))
            )
            return self._applied(builder, node.op_type, operands, node.outputs[0].dtype, node)
        value = builder.constant(atom.array, "elements") if isinstance(atom, KnownElement) else builder.now(atom.value)
        cut = self._cut(atom.index, dims_of(value) or ())
        assert cut is not None
        axes, taken = cut
        for axis, places in taken.items():
            vectors = [builder.integers([each], "slice") for each in (places.start, places.stop, axis, places.step)]
            shape = [len(places) if place == axis else dim for place, dim in enumerate(dims_of(value) or ())]
            value = builder.emit("Slice", [value, *vectors], shape, value.dtype)
        return self._arranged(builder, value, axes)

    def _applied(
        self,
        builder: Builder,
        operator: str,
        operands: Sequence[ir.Value],
        dtype: ir.DataType | None,
        node: ir.Node | None = None,
    ) -> ir.Value:
        shapes = [dims_of(value) or [] for value in operands]
        rank = max(map(len, shapes))
        shape = [
            next((d for d in column if d != 1), 1)
            for column in zip(*([1] * (rank - len(s)) + s for s in shapes), strict=True)
        ]
        attributes = {} if node is None else {name: each.value for name, each in node.attributes.items()}
        return builder.emit(operator, operands, shape, dtype, **attributes)

    def _arranged(self, builder: Builder, value: ir.Value, axes: Sequence[Axis]) -> ir.Value:
        how = Arrangement.of(dims_of(value) or (), axes, self.groups, self.sizes)
        return value if how is None else how.apply(builder, value)

    def _whole(self, total: ElementSum) -> Seen | None:
        """Return a value of the graph whose elements are a sum, unless they are a function of one that lies nearer."""
        seen = next(self._seen(total), None)
        if seen is None or self._lies_as_wanted(seen):
            return seen
        ((atoms, factor),) = total.terms if len(total.terms) == 1 else ((frozenset(), 0),)
        ((atom, power),) = atoms if len(atoms) == 1 else ((None, 0),)
        if not isinstance(atom, AppliedOperator) or factor != 1 or power != 1:
            return seen
        operands = [next(self._seen(operand), None) for operand in atom.operands if operand.number is None]
        is_nearer = operands and all(each is not None and self._lies_as_wanted(each) for each in operands)
        return None if is_nearer else seen

    def _seen(self, total: ElementSum) -> Iterator[Seen]:
        for value, index in self.elements.known_as.get(total, ()):
            dims = dims_of(value) or ()
            cut = self._cut(index, dims)
            if cut is not None and not cut[1] and dims:
                seen = look(value, cut[0])
                if Arrangement.of(dims_of(seen.value) or (), seen.axes, self.groups, self.sizes) is not None:
                    yield seen

    def _lies_as_wanted(self, seen: Seen) -> bool:
        dims = list(dims_of(seen.value) or ())
        how = Arrangement.of(dims, seen.axes, self.groups, self.sizes)
        return how is not None and how.moves == 0 and [*how.merged] == dims

    def _cut(self, index: Index, dims: Sequence[Dim]) -> tuple[list[Axis], dict[int, range]] | None:
        """Return the labels of the axes of a value, and which places along them are taken; None if it is not known."""
        axes: list[Axis] = []
        taken: dict[int, range] = {}
        for axis, (form, dim) in enumerate(zip(index, dims, strict=True)):
            label = next((label for label, slope in enumerate(form.slopes) if slope != ZERO), None)
            start = form.constant.value
            if label is None:
                axes.append(None)
                if dim != 1:
                    if start is None:
                        return None
                    taken[axis] = range(start, start + 1)
                continue
            size, step = self.sizes[label], form.slopes[label].value
            if sum(slope != ZERO for slope in form.slopes) > 1:
                return None
            axes.append(label)
            if start == 0 and step == 1 and size == dim:
                continue
            if start is None or step is None or step < 1 or not isinstance(size, int):
                return None
            taken[axis] = range(start, start + step * (size - 1) + 1, step)
        known = [label for label in axes if label is not None]
        wanted = {label for group in self.groups for label in group}
        return (axes, taken) if len({*known}) == len(known) and {*known} <= wanted else None
