"""Blocks that equal one another are walked once: a model of 32 layers has one layer 32 times.

The second block of its kind is recorded while it is walked: each node that enters the graph becomes a step of a
`BlockTemplate`. A later block that equals it is not walked: the steps are made again with its operands and its path.
The graph is the same, node by node and name by name.

What a rule emits may depend on more than the program of the block. So operands are watched while a template is
recorded: one whose elements were read has to have the same elements again, and one whose origin was asked for has to
have none. A block gives no template if its rules are not all of this package, looked at the graph itself, built
subgraphs or functions, or computed the first value of a symbolic dim.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from jaxport.blocks.block import block_p
from jaxport.export.emit import folding
from jaxport.export.emit.value import Emission, Log, Move, Scope, Step, Value, Watch, Withdrawal
from jaxport.jaxprs import ClosedJaxpr, Jaxpr, JaxprEqn, Parameters, dims
from jaxport.jaxprs.alike import same_dataflow, same_operation, same_value
from jaxport.jaxprs.identity import IdentityMap

if TYPE_CHECKING:
    from jaxport.export.emit.emitter import Emitter, Walk
    from jaxport.export.emit.places import Place, Record

#: The number of templates of one kind: blocks that differ more often are not worth comparing.
MANY = 4


@dataclass(eq=False)
class BlockTemplates:
    """The templates of one walk, by the kind of their blocks; None for a kind that gives none, or too many."""

    _by_kind: dict[Hashable, list[BlockTemplate] | None] = field(default_factory=dict)
    _recording: bool = False

    def exported(self, op: Emitter, equation: JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        """Return the results of a block: emitted from a template if one fits, otherwise from the walk, which may record
        one.
        """
        if self._recording or op.place.base:  # the body of a function is in a graph of its own
            return op.walker.walk_block(op, equation, operands)
        kind = _kind(op, equation, operands)
        if kind not in self._by_kind:
            self._by_kind[kind] = []
            return op.walker.walk_block(op, equation, operands)
        templates = self._by_kind[kind]
        for template in templates or ():
            if template.fits(op, equation, operands):
                return _Instance(template, op, equation, operands).emitted()
        if templates is None or len(templates) == MANY:
            self._by_kind[kind] = None
            return op.walker.walk_block(op, equation, operands)
        self._recording = True
        try:
            template, results = BlockTemplate.recorded(op, equation, operands)
        finally:
            self._recording = False
        if template is None:
            self._by_kind[kind] = None
        else:
            templates.append(template)
        return results


@dataclass(frozen=True, eq=False)
class BlockTemplate:
    """What one block emitted.

    Attributes:
      equation: the block.
      place: the place around it.
      scope: the graph that it is in.
      operands: its operands.
      watches: the watch of each operand; a value that is passed twice has one.
      elements_read: the operands whose elements were read, by position.
      origins_read: the operands whose origin was asked for.
      results: its results.
      steps: what entered the graph, in order.
      records: how its equations were exported.
    """

    equation: JaxprEqn
    place: Place
    scope: Scope
    operands: tuple[Value, ...]
    watches: tuple[Watch, ...]
    elements_read: tuple[int, ...]
    origins_read: tuple[int, ...]
    results: tuple[Value, ...]
    steps: tuple[Step, ...]
    records: tuple[Record, ...]

    @classmethod
    def recorded(
        cls, op: Emitter, equation: JaxprEqn, operands: Sequence[Value]
    ) -> tuple[BlockTemplate | None, list[Value]]:
        """Walk a block; return its template, or None if it gives none, and its results."""
        walker, log = op.walker, Log()
        op.scope.log = log
        watches = IdentityMap((value, Watch()) for value in operands)
        watched = IdentityMap((value, value.watched(watch)) for value, watch in watches.items())
        outside, start = _outside(op), len(walker.records)
        try:
            results = walker.walk_block(op, equation, [watched[value] for value in operands])
        finally:
            op.scope.log = None
        for move in reversed([step for step in _flat(log.steps) if isinstance(step, Move)]):
            (source, *_), result = move.operands, move.result
            if source is not None and source.watch and result.watch and result.watch.elements_read:
                source.watch.elements_read = True
        records = tuple(walker.records[start:])
        others = log.graph_seen or any(map(_has_graph, _flat(log.steps))) or not all(map(_is_own, records))
        if others or _outside(op) != outside:
            return None, results
        template = cls(
            equation=equation,
            place=op.place,
            scope=op.scope,
            operands=tuple(operands),
            watches=tuple(watches[value] for value in operands),
            elements_read=tuple(i for i, x in enumerate(operands) if watches[x].elements_read and x.is_constant),
            origins_read=tuple(i for i, x in enumerate(operands) if watches[x].origin_read),
            results=tuple(results),
            steps=tuple(log.steps),
            records=records,
        )
        return (None if any(operands[i].origin for i in template.origins_read) else template), results

    def fits(self, op: Emitter, equation: JaxprEqn, operands: Sequence[Value]) -> bool:
        """Whether a block would emit the same with these operands."""
        around = op.place._replace(blocks=(), primitive="")
        if op.scope is not self.scope or around != self.place._replace(blocks=(), primitive=""):
            return False
        if not all(map(_same_kind, self.operands, operands)) or _partition(self.operands) != _partition(operands):
            return False
        if not all(self.operands[i].same_elements(operands[i]) for i in self.elements_read):
            return False
        if any(operands[i].origin for i in self.origins_read):
            return False
        return _Comparison(op.walker, self.equation, equation).equal()


class _Comparison:
    """The comparison of two blocks, up to the path of their module and those of the weights."""

    def __init__(self, walker: Walk, one: JaxprEqn, other: JaxprEqn):
        self.walker, self.one, self.other = walker, one.params, other.params
        self.renamed = _renaming(self.one["block"].path, self.other["block"].path)

    def equal(self) -> bool:
        """Whether the blocks are equal; their names are the ends of their paths."""
        name = self.other["block"].name
        return self._same_blocks({**self.one, "block": replace(self.one["block"], name=name)}, self.other)

    def _same_equations(self, one: JaxprEqn, other: JaxprEqn) -> bool:
        if self.walker.source_lines(one) != self.walker.source_lines(other):
            return False
        if one.primitive is block_p and other.primitive is block_p:
            return self._same_blocks(one.params, other.params)
        return same_operation(one, other, self._same_values)

    def _same_blocks(self, one: Parameters, other: Parameters) -> bool:
        block, theirs = one["block"], other["block"]
        if block.weights.keys() != theirs.weights.keys() or block.exchanged.keys() != theirs.exchanged.keys():
            return False
        path = self.renamed(block.path)
        expected = replace(block, path=path, weights=theirs.weights, exchanged=theirs.exchanged)
        return same_value(expected, theirs) and self._same_values(one["jaxpr"], other["jaxpr"])

    def _same_values(self, one: object, other: object) -> bool:
        """Whether two parameters are equal. Results need no look: equal operations on equal operands have equal
        ones.
        """
        if isinstance(one, ClosedJaxpr) and isinstance(other, ClosedJaxpr):
            if not same_value(tuple(one.consts), tuple(other.consts)):
                return False
            one, other = one.jaxpr, other.jaxpr
        if isinstance(one, Jaxpr) and isinstance(other, Jaxpr):
            return same_dataflow(one, other, self._same_equations)
        return same_value(one, other)


class _Instance:
    """What a template emits for another block."""

    def __init__(self, template: BlockTemplate, op: Emitter, equation: JaxprEqn, operands: Sequence[Value]):
        self.template, self.op = template, op
        inside = (template.place.enter(template.equation.params["block"]), op.place.enter(equation.params["block"]))
        self.renamed = _renaming(*(place.path for place in inside))
        self.watched = dict(zip(template.watches, operands, strict=True))
        self.values: dict[int, Value] = {}
        self.nodes: dict[ir.Node, ir.Node] = {}
        self.places: IdentityMap[Place, Place] = IdentityMap()
        self.blocks: dict[tuple, tuple] = {}

    def emitted(self) -> list[Value]:
        """Emit it; return the results of the block."""
        self._repeat(self.template.steps)
        records = self.op.walker.records
        records += [record.moved(self._place(record.place), self.nodes) for record in self.template.records]
        return [self._value(value) for value in self.template.results]

    def _repeat(self, steps: Sequence[Step]) -> None:
        scope = self.op.scope
        for step in steps:
            if isinstance(step, Emission):
                results = [Value(result.dtype, result.shape) for result in step.results]
                self.values.update(zip((result.identity for result in step.results), results, strict=True))
                call = step.call._replace(operands=self._values(step.call.operands))
                self.nodes[step.node] = scope.add(call, results, self._place(step.place))
            elif isinstance(step, Move):
                operands = self._values(step.operands)  # which may lie in memory in another order than those folded
                moved = folding.fold(step.op_type, operands, step.attributes, step.result.dtype, copies=True)
                assert moved is not None, "the operands have the dtypes and shapes of those that were folded"
                assert step.result.watch is not None, "only moves of watched constants are steps"
                self.watched[step.result.watch] = moved
            else:
                mark = scope.mark()
                self._repeat(step.steps)
                scope.undo(mark)

    def _values(self, values: Sequence[Value | None]) -> tuple[Value | None, ...]:
        return tuple(None if value is None else self._value(value) for value in values)

    def _value(self, value: Value) -> Value:
        """Return the instance's value for one of the template; a number, or the size of a dim, is its own."""
        own = self.values.get(value.identity, value) if value.watch is None else self.watched[value.watch]
        if value.broadcast is not None and own is not value:
            return own.broadcasting(value.broadcast)
        return own if own is value or own.broadcast is None else own.stored()

    def _place(self, place: Place) -> Place:
        if place not in self.places:
            if place.blocks not in self.blocks:
                inner = place.blocks[len(self.template.place.blocks) :]
                renamed = ((self.renamed(path), target) for path, target in inner)
                self.blocks[place.blocks] = (*self.op.place.blocks, *renamed)
            self.places[place] = place.within(self.blocks[place.blocks])
        return self.places[place]


def _kind(op: Emitter, equation: JaxprEqn, operands: Sequence[Value]) -> Hashable:
    """Return a key that two blocks share if they may be equal."""
    block, body = equation.params["block"], equation.params["jaxpr"].jaxpr
    stored = tuple((x.dtype, x.is_constant, tuple(filter(dims.is_static, x.shape or ()))) for x in operands)
    return op.scope, block.target, block.method, len(body.eqns), stored


def _same_kind(one: Value, other: Value) -> bool:
    """Whether two operands look the same from inside a block: all but what they hold and come from."""
    kinds = [(x.dtype, x.is_constant, bool(x.name), x.held and x.held.role) for x in (one, other)]
    if kinds[0] != kinds[1]:
        return False
    shapes = ((one.shape, other.shape), (one.broadcast, other.broadcast))
    return one.scope is other.scope and all(
        a is b or (a is not None and b is not None and len(a) == len(b) and all(map(dims.same, a, b)))
        for a, b in shapes
    )


def _partition(operands: Sequence[Value]) -> list[tuple[int, int]]:
    """Return numbers that say which operands are the same object, and which are the same tensor."""
    objects: IdentityMap[Value, int] = IdentityMap()
    tensors: dict[int, int] = {}
    return [
        (objects.setdefault(value, len(objects)), tensors.setdefault(value.identity, len(tensors)))
        for value in operands
    ]


def _renaming(old: str, new: str) -> Callable[[str], str]:
    """Return a function that moves the paths at and below `old` to `new`."""
    return lambda path: new + path[len(old) :] if path == old or path.startswith(f"{old}.") else path


def _outside(op: Emitter) -> tuple[int, ...]:
    """Return the sizes of all that a block may change beside the graph: if one grows, another block would differ."""
    root, walker = op.scope.root, op.walker
    functions = walker.functions.calls if walker.functions is not None else ()
    return len(root.dim_values), len(root.dim_inputs), len(walker.refusals), len(functions)


def _flat(steps: Sequence[Step]) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, Withdrawal):
            yield from _flat(step.steps)
        else:
            yield step


def _is_own(record: Record) -> bool:
    """Whether a rule of this package exported an equation: another may depend on anything, as on the block's path."""
    return record.rule.partition(".")[0] in ("a constant", "jax", "jaxport")


def _has_graph(step: Step) -> bool:
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return isinstance(step, Emission) and any(attribute.type in kinds for attribute in step.call.written)
