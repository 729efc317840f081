"""Turn a scan into the operator of its cell."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxport import jaxprs
from jaxport.blocks.block import Block, block_p
from jaxport.export.emit.registry import RULES
from jaxport.export.emit.shapes import shape_of
from jaxport.export.emit.value import Value
from jaxport.export.rules.recurrent import sheets
from jaxport.export.rules.recurrent.cells import ACTIVATIONS, Cell, cell_of
from jaxport.export.rules.recurrent.evaluating import Evaluation, evaluated
from jaxport.export.rules.recurrent.expressions import ElementLeaf, Polynomial, Unfit
from jaxport.export.rules.recurrent.flattening import flat, needed
from jaxport.export.rules.recurrent.packing import Packing, is_kept
from jaxport.export.rules.recurrent.sheets import FEATURE, Sheet
from jaxport.jaxprs import Atom, ClosedJaxpr, Dim, Jaxpr, JaxprEqn, Literal, Shape, Var, dims

if TYPE_CHECKING:
    from jaxport.export.emit.emitter import Emitter

#: The activations of each operator that need no attribute.
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


@dataclass(frozen=True)
class ScanBody:
    """The body of a scan without calls, and the roles of its inputs.

    Attributes:
      jaxpr: the body.
      values: the operands of the scan, by input.
      invariants, scanned: the loop-invariant inputs, and the slices of scanned arrays.
      states: the other inputs, with their places among the states.
      first: the initial states.
      new, stacked: the new states, and the stacked results.
      blocks: the calls of modules in it.
    """

    jaxpr: Jaxpr
    values: Mapping[Var, Value]
    invariants: list[Var]
    scanned: list[Var]
    states: dict[Var, int]
    first: Sequence[Value]
    new: list[Atom]
    stacked: list[Atom]
    blocks: list[Block]


def recurrent_layer(
    op: Emitter,
    operands: Sequence[Value],
    *,
    jaxpr: ClosedJaxpr,
    length: Dim,
    reverse: bool,
    num_consts: int,
    num_carry: int,
) -> list[Value]:
    """Return the results of a scan whose body is the cell of a recurrent operator.

    Args:
      op: the emitter of the scan.
      operands: the operands of the scan.
      jaxpr, length, reverse, num_consts, num_carry: its parameters.

    Raises:
      Unfit: it is no such scan; the reason is empty if nobody would expect one. Nothing was emitted.
    """
    body = _body(op, operands, jaxpr, num_consts, num_carry)
    products = any(equation.primitive.name == "dot_general" for equation in body.jaxpr.eqns)
    if not products or any(value.is_constant and value.rank > 2 for value in operands[num_consts + num_carry :]):
        raise Unfit("")  # not similar to one, or a loop over layers
    if not dims.known(lambda: length >= 1):
        raise Unfit("the loop may have no step")
    if op.walker.nonfinite == "exact":
        raise Unfit("the operators pass over NaN")
    reasons = []
    for last in (True, False):
        try:
            return _RecurrentLayer(op, body, length, reverse, last).results()
        except Unfit as reason:
            reasons.append(reason)
    raise reasons[0]


def _body(op: Emitter, operands: Sequence[Value], jaxpr: ClosedJaxpr, num_consts: int, num_carry: int) -> ScanBody:
    blocks: list[Block] = []

    def look_at(equation: JaxprEqn) -> None:
        name, block = equation.primitive.name, equation.params.get("block")
        if equation.primitive is not block_p and op.walker.rules.get(name) is not RULES.get(name):
            raise Unfit(f"`{name}` has a rule of its own in this export")
        if block is not None and op.walker.is_whole(block):
            raise Unfit(f"`{block.target}` keeps its boundary")
        blocks.extend([block] if block is not None else [])

    body = flat(jaxpr, look_at)
    states = body.invars[num_consts : num_consts + num_carry]
    new, stacked = body.outvars[:num_carry], body.outvars[num_carry:]
    changed = {v: k for k, v in enumerate(states) if new[k] is not v}
    return ScanBody(
        jaxpr=body,
        values=dict(zip(body.invars, operands, strict=True)),
        invariants=[v for v in body.invars[: num_consts + num_carry] if v not in changed],
        scanned=list(body.invars[num_consts + num_carry :]),
        states=changed,
        first=operands[num_consts : num_consts + num_carry],
        new=list(new),
        stacked=list(stacked),
        blocks=blocks,
    )


class _RecurrentLayer:
    """One scan whose values have their features in the last axes, or in the first."""

    def __init__(self, op: Emitter, body: ScanBody, length: Dim, reverse: bool, last: bool):
        self.op, self.body, self.length, self.reverse, self.last = op, body, length, reverse, last
        avals: list[Any] = [v.aval for v in body.states]
        if not 1 <= len(avals) <= 2 or not body.scanned:
            raise Unfit(f"a step has {len(avals)} states" if body.scanned else "nothing is scanned")
        shape = avals[0].shape
        if not shape or any(aval.dtype != np.float32 or aval.shape != shape for aval in avals):
            raise Unfit("the states are no float32 arrays of one shape")
        self.size, self.batch = (shape[-1], shape[:-1]) if last else (shape[0], shape[1:])
        if not dims.is_static(self.size) or not all(dims.known(lambda d=d: d >= 1) for d in (*self.batch, self.size)):
            raise Unfit("the features have a symbolic size, or an axis may be empty")
        self.labels = self.label(shape)

    def label(self, shape: Sequence[Dim]) -> list[int]:
        """Return the labels of a state's or input's axes: those of the batch as in the states, and in their order."""
        count = len(self.batch)
        features = len(shape) - count
        batch = shape[:count] if self.last else shape[features:]
        if features < 0 or not all(map(dims.same, batch, self.batch)):
            raise Unfit("an input has other axes of the batch than the state")
        labels = [*range(count)]
        return [*labels, *[FEATURE] * features] if self.last else [*[FEATURE] * features, *labels]

    def results(self) -> list[Value]:
        """Return the results of the scan, from the operator.

        Raises:
          Unfit: there is no operator for it.
        """
        body = self.body
        states = {v: sheets.leaf("state", k, self.labels, _shape(v)) for v, k in body.states.items()}
        evaluation = evaluated(body.jaxpr, body.invariants, body.scanned, states, self.label)
        new = {k: self._polynomial(evaluation.read(body.new[k])) for k in body.states.values()}
        cell = cell_of(new, int(self.size))
        hidden = new[cell.states[0]]
        same = [v for v, sheet in evaluation.values.items() if isinstance(sheet, Sheet) and self._is(sheet, hidden)]
        after = self._after(same)
        outputs = self._operator(cell, evaluation)
        rows = self._from_layer(outputs[0], 1, (self.length,))
        last = {k: self._from_layer(y, 0, ()) for k, y in zip(cell.states, outputs[1:], strict=True)}
        carried = [last.get(k, value) for k, value in enumerate(body.first)]
        stacked = [rows] * len(body.stacked) if after is None else self._for_all_steps(after, dict.fromkeys(same, rows))
        return [*carried, *stacked]

    def _polynomial(self, sheet: Sheet) -> Polynomial:
        """Return the polynomial of a new state, in the order of the old one."""
        polynomial = sheet.whole()
        if polynomial is None or list(sheet.labels) != self.labels:
            raise Unfit("the parts of a state are computed in different ways")
        return polynomial

    def _is(self, sheet: Sheet, hidden: Polynomial) -> bool:
        return list(sheet.labels) == self.labels and sheet.whole() == hidden

    # Computations outside the loop

    def _after(self, same: Sequence[Var]) -> Jaxpr | None:
        """Return the jaxpr that computes the stacked values from the new states; None if they are the same."""
        body = self.body
        if all(v in same for v in body.stacked):
            return None
        after = needed(body.jaxpr, [*body.invariants, *body.scanned, *same], body.stacked)
        if not body.states.keys().isdisjoint(after.invars):
            raise Unfit("a step returns more than its new state, from what only the loop knows")
        if any(equation.effects for equation in after.eqns):
            raise Unfit("a step has an effect")
        return after

    def _for_all_steps(self, jaxpr: Jaxpr, stacked: Mapping[Var, Value]) -> list[Value]:
        """Return the results of a part of the body for all steps, stacked."""
        values = {**self.body.values, **stacked}
        axes = tuple(0 if v in stacked or v in self.body.scanned else None for v in jaxpr.invars)
        plain = jaxprs.jaxpr_as_fun(jaxprs.closed(jaxpr, ()))
        operands = [self.op.expanded(values[v]) for v in jaxpr.invars]
        if any(axis == 0 for axis in axes):
            return self.op.call(jax.vmap(plain, axes), *operands)
        return [
            self.op.expand(y, (self.length, *shape_of(y)))
            for y in map(self.op.expanded, self.op.call(plain, *operands))
        ]

    def _invariant(self, atom: Atom) -> Value:
        """Return the value of a loop-invariant atom: folded from constants, else computed before the operator."""
        op, values = self.op, self.body.values
        if isinstance(atom, Literal):
            return op.const(np.asarray(atom.val), getattr(atom.aval, "dtype"))  # noqa: B009
        if atom in values:
            return op.expanded(values[atom])
        part = needed(self.body.jaxpr, self.body.invariants, [atom])
        operands = [op.expanded(values[v]) for v in part.invars]
        if all(value.constant is not None and not is_kept(value) for value in operands):
            (made,) = jaxprs.jaxpr_as_fun(jaxprs.closed(part, ()))(*(value.constant for value in operands))
            return op.const(np.asarray(made))
        return op.expanded(op.inline(part, *operands)[0])

    def _input(self, atom: Any) -> Value:
        """Return the rows of an input: a scanned array, or a value computed from such arrays for all steps."""
        if atom in self.body.values:
            return self.op.expanded(self.body.values[atom])
        part = needed(self.body.jaxpr, [*self.body.invariants, *self.body.scanned], [atom])
        return self._for_all_steps(part, {})[0]

    # The operator

    def _operator(self, cell: Cell, evaluation: Evaluation) -> tuple[Value, ...]:
        size, count = int(self.size), math.prod(self.batch)
        sums = [*cell.gates, *([cell.recurrent] if cell.recurrent else [])]
        used = sorted(
            {
                leaf.number
                for s in sums
                for _, dot in s.inputs
                for leaf, _ in dot.vector
                if isinstance(leaf, ElementLeaf)
            }
        )
        if not used or not any(s.states for s in sums):
            raise Unfit("a step takes no state" if used else "a step takes no input")
        numbers = sorted({number for s in sums for number in s.weights})
        invariants = {number: self._invariant(evaluation.invariants[number]) for number in numbers}
        widths = {number: self._width(_shape(evaluation.inputs[number])) for number in used}
        path = self._name([evaluation.invariants[number] for number in numbers])
        op, name = self._inside(path), path or cell.op_type.lower()
        weights = Packing(op, cell, size, invariants, widths, name).operands()
        inputs = [
            self._to_layer(self._input(evaluation.inputs[n]), 1, (self.length, count, w)) for n, w in widths.items()
        ]
        first = [self.body.first[k] for k in cell.states]
        initial = [None if _is_zero(v) else self._to_layer(op.expanded(v), 0, (1, count, size)) for v in first]
        states = [(np.float32, (1, count, size))] * len(cell.states)
        self.op.remark = 'passes over NaN; `nonfinite="exact"` keeps the loop'
        return op.emit(
            cell.op_type,
            op.concat(inputs, 2),
            *weights,
            None,  # no sequence lengths
            *initial,
            outputs=1 + len(states),
            results=[(np.float32, (self.length, 1, count, size)), *states],
            hidden_size=size,
            direction="reverse" if self.reverse else None,
            **cell.options,
            **_activations(cell),
        )

    def _inside(self, path: str) -> Emitter:
        """Return an emitter in the module that has the weights, if the body calls it."""
        module = next((block for block in self.body.blocks if block.path == path), None)
        return self.op if module is None else self.op.inside(module)

    def _width(self, shape: Sequence[Dim]) -> int:
        """Return the number of features of an input."""
        return math.prod(int(d) for d, label in zip(shape, self.label(shape), strict=True) if label == FEATURE)

    def _name(self, atoms: Sequence[Atom]) -> str:
        """Return the common path of the weights that some invariants are computed from, to name the packed weights."""
        used = needed(self.body.jaxpr, self.body.invariants, atoms).invars
        names = [name for v in used if (name := self.body.values[v].name)]
        columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*names, strict=False))
        common = "".join(column[0] for column in columns)
        return common[: max(common.rfind("."), common.rfind("/"), 0)]

    def _to_layer(self, x: Value, lead: int, shape: Sequence[Dim]) -> Value:
        """Return `x` with batch and features merged into one axis each, after `lead` leading axes."""
        rank = x.rank - lead
        if not self.last:
            features = rank - len(self.batch)
            order = [*range(features, rank), *range(features)]
            x = self.op.transpose(x, [*range(lead), *(lead + axis for axis in order)])
        return self.op.reshape(x, shape)

    def _from_layer(self, y: Value, axis: int, lead: Sequence[Dim]) -> Value:
        """Return a result of the operator, whose axis of directions is `axis`, in the layout of the scan."""
        y = self.op.reshape(self.op.squeeze(y, [axis]), (*lead, *self.batch, self.size))
        rank, first = len(self.batch) + 1, len(lead)
        order = [*range(rank)] if self.last else [rank - 1, *range(rank - 1)]
        return self.op.transpose(y, [*range(first), *(first + a for a in order)])


def _shape(atom: Atom) -> Shape:
    return getattr(atom.aval, "shape")  # noqa: B009


def _is_zero(value: Value) -> bool:
    return value.constant is not None and not np.asarray(value.constant).any()


def _activations(cell: Cell) -> dict[str, Any]:
    """Return the attributes that name the activations, unless these are the default ones."""
    if cell.activations == DEFAULTS[cell.op_type]:
        return {}
    known = [ACTIVATIONS[name] for name in cell.activations]
    alphas, betas = ([constants[k] for _, constants in known if constants] for k in (0, 1))
    return {
        "activations": [name for name, _ in known],
        "activation_alpha": alphas or None,
        "activation_beta": betas or None,
    }
