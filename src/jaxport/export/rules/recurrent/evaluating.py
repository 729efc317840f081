"""Symbolic evaluation of the body of a scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxport.export.rules.recurrent import sheets
from jaxport.export.rules.recurrent.expressions import (
    Dot,
    ElementLeaf,
    Polynomial,
    Unfit,
    applied,
    at_least,
    at_most,
    divided,
    only_atom,
)
from jaxport.export.rules.recurrent.sheets import FEATURE, Sheet, elementwise
from jaxport.jaxprs import Atom, Dim, Jaxpr, JaxprEqn, Literal, Parameters, PythonFunction, Var, dims, parameters
from jaxport.jaxprs.identity import IdentityMap
from jaxport.jaxprs.walk import variables

if TYPE_CHECKING:
    from jax.lax import GatherDimensionNumbers

#: Equations that return their operand unchanged.
SAME = frozenset("copy copy_p name optimization_barrier stop_gradient".split())

ELEMENTWISE: dict[str, Callable[..., Polynomial]] = {
    "abs": lambda x: applied("Abs", x),
    "add": lambda x, y: x + y,
    "add_any": lambda x, y: x + y,
    "clamp": lambda low, x, high: at_most(at_least(x, low), high),
    "div": divided,
    "exp": lambda x: applied("Exp", x),
    "logistic": lambda x: applied("Sigmoid", x),
    "max": at_least,
    "min": at_most,
    "mul": lambda x, y: x * y,
    "neg": lambda x: x * -1.0,
    "sub": lambda x, y: x - y,
    "tanh": lambda x: applied("Tanh", x),
}


class Evaluation:
    """The symbolic values of a body.

    Attributes:
      constant: the loop-invariant variables.
      values: of each other variable a sheet, or why it has none; also of invariants that are looked through.
      invariants: loop-invariant atoms, by the number of their leaf.
      inputs: atoms that depend only on scanned arrays and invariants, by the number of their leaf.
    """

    def __init__(self, label: Callable[[Sequence[Dim]], list[int]]):
        self.label = label
        self.constant: set[Var] = set()
        self.values: dict[Var, Sheet | Unfit] = {}
        self.invariants: list[Atom] = []
        self.inputs: list[Atom] = []
        self._numbers = IdentityMap[Atom, int]()

    def invariant(self, atom: Atom) -> Sheet:
        """Return the sheet of a loop-invariant atom."""
        number = self._number(atom, self.invariants)
        return sheets.leaf("invariant", number, [FEATURE] * len(_aval(atom).shape), _aval(atom).shape)

    def input(self, atom: Atom) -> Sheet:
        """Return the sheet of an atom that depends on scanned arrays, and can be computed for all steps at once."""
        if _dtype(atom) != np.float32:
            raise Unfit(f"a step computes with {_dtype(atom)}")
        return sheets.leaf("input", self._number(atom, self.inputs), self.label(_aval(atom).shape), _aval(atom).shape)

    def _number(self, atom: Atom, known: list[Atom]) -> int:
        if atom not in self._numbers:
            self._numbers[atom] = len(known)
            known.append(atom)
        return self._numbers[atom]

    def weight(self, atom: Atom) -> int | None:
        """Return the number of an invariant; None for atoms that change between steps."""
        is_constant = isinstance(atom, Literal) or atom in self.constant
        return self._number(atom, self.invariants) if is_constant else None

    def read(self, atom: Atom) -> Sheet:
        """Return the sheet of a variable or a literal; raise the reason if there is none."""
        if isinstance(atom, Literal):
            value = np.asarray(atom.val)
            if value.ndim or value.dtype.kind not in "iuf":
                return self.invariant(atom)
            return sheets.vector(Polynomial.number(float(value)), (), ())
        if atom in self.constant and atom not in self.values:
            self.values[atom] = _tried(self.invariant, atom)
        value = self.values[atom]
        if isinstance(value, Unfit):
            raise value
        return value


def evaluated(
    jaxpr: Jaxpr,
    invariants: Sequence[Var],
    scanned: Sequence[Var],
    states: Mapping[Var, Sheet],
    label: Callable[[Sequence[Dim]], list[int]],
) -> Evaluation:
    """Evaluate a flat jaxpr, whose inputs are of three kinds.

    Args:
      jaxpr: the body of a scan.
      invariants: the loop-invariant inputs.
      scanned: those that are slices of scanned arrays.
      states: the others.
      label: returns the labels of the axes of an input with a shape; raises `Unfit` if it has no such axes.
    """
    evaluation = Evaluation(label)
    constant, of_input = evaluation.constant, set(scanned)
    constant.update(invariants)
    evaluation.values.update(states)
    evaluation.values.update((v, _tried(evaluation.input, v)) for v in scanned)
    for equation in jaxpr.eqns:
        used = variables(equation.invars)
        if not equation.effects and used <= constant:
            constant.update(equation.outvars)
            evaluation.values.update(_seen_through(evaluation, equation))
            continue
        made = _tried(_equation, evaluation, equation, of_input)
        many = made if isinstance(made, list) else [made] * len(equation.outvars)
        results = dict(zip(equation.outvars, many, strict=True))
        if not equation.effects and used <= constant | of_input:
            of_input.update(equation.outvars)
            results = {v: value if _is_affine(value) else _tried(evaluation.input, v) for v, value in results.items()}
        evaluation.values.update(results)
    return evaluation


def _seen_through(evaluation: Evaluation, equation: JaxprEqn) -> dict[Var, Sheet]:
    """Look through an equation of invariants if it is a broadcast, or a concatenation of known indices."""
    name = equation.primitive.name
    made = _tried(_equation, evaluation, equation, set()) if name in ("broadcast_in_dim", "concatenate") else None
    if not isinstance(made, list):
        return {}
    numbers = all(polynomial.constant is not None for polynomial in made[0].polynomials)
    return {equation.outvars[0]: made[0]} if numbers or name == "broadcast_in_dim" else {}


def _is_affine(sheet: Sheet | Unfit) -> bool:
    """Whether a value is a sum of inputs, invariants, numbers and products of inputs with weights."""
    if isinstance(sheet, Unfit):
        return False
    atoms = [only_atom(m) for polynomial in sheet.polynomials for m in polynomial.terms if m]
    return all(
        isinstance(a, ElementLeaf) or (isinstance(a, Dot) and isinstance(only_atom(a.vector), ElementLeaf))
        for a in atoms
    )


def _tried(function: PythonFunction, *operands: Any) -> Any:
    """Return the result of a function, or the `Unfit` that it raises."""
    try:
        return function(*operands)
    except Unfit as reason:
        return reason


def _equation(evaluation: Evaluation, equation: JaxprEqn, of_input: set[Var]) -> list[Sheet]:
    name, params = equation.primitive.name, parameters(equation)
    if equation.effects:
        raise Unfit(f"a step has an effect, of `{name}`")
    if name == "dot_general":
        return [_dot_general(evaluation, equation, of_input, **params)]
    operands = [evaluation.read(atom) for atom in equation.invars]
    if name in SAME or (name == "convert_element_type" and _is_same(equation)):
        return operands
    if name in ELEMENTWISE:
        return [elementwise(ELEMENTWISE[name], *operands)]
    if name == "integer_pow" and params["y"] in (1, 2):
        return operands if params["y"] == 1 else [elementwise(lambda x: x * x, *operands)]
    if name == "square":
        return [elementwise(lambda x: x * x, *operands)]
    if not operands:
        raise Unfit(f"a step computes `{name}`")
    return _moved(name, params, *operands)


def _moved(name: str, params: Parameters, first: Sheet, *rest: Sheet) -> list[Sheet]:
    """Return the results of an equation that moves elements."""
    match name:
        case "transpose":
            return [sheets.transposed(first, params["permutation"])]
        case "reshape" if params["dimensions"] is None:
            return [sheets.reshaped(first, params["new_sizes"])]
        case "broadcast_in_dim" if not rest:
            return [sheets.broadcast(first, params["shape"], params["broadcast_dimensions"])]
        case "squeeze":
            return [sheets.squeezed(first, params["dimensions"])]
        case "slice":
            return [sheets.sliced(first, params["start_indices"], params["limit_indices"], params["strides"])]
        case "dynamic_slice":
            return [_window(first, [_number(index) for index in rest], range(len(rest)), params["slice_sizes"])]
        case "gather":
            return [_gathered(first, rest[0], params["dimension_numbers"], params["slice_sizes"])]
        case "split":
            return sheets.split(first, params["sizes"], params["axis"])
        case "rev":
            return [sheets.reversed_(first, params["dimensions"])]
        case "concatenate":
            return [sheets.concatenated([first, *rest], params["dimension"])]
    raise Unfit(f"a step computes `{name}`")


def _gathered(sheet: Sheet, positions: Sheet, numbers: GatherDimensionNumbers, sizes: Sequence[Dim]) -> Sheet:
    """Return one window at a known place, which is how JAX slices an array with a symbolic dim."""
    kept = len(sheet.shape) - len(numbers.collapsed_slice_dims)
    if positions.labels != (FEATURE,) or numbers.operand_batching_dims or numbers.offset_dims != tuple(range(kept)):
        raise Unfit("a step computes `gather`")
    known = {int(place): piece for places, piece in positions.pieces() for place in places}
    starts = [_number(sheets.vector(known[k], (), ())) for k in range(len(known))]
    for axis, start in zip(numbers.start_index_map, starts, strict=True):
        if not (start >= 0 and dims.known(lambda a=axis, s=start: s + sizes[a] <= sheet.shape[a])):
            raise Unfit("a step picks out of bounds")
    return sheets.squeezed(_window(sheet, starts, numbers.start_index_map, sizes), numbers.collapsed_slice_dims)


def _window(sheet: Sheet, starts: Sequence[int], axes: Sequence[int], sizes: Sequence[Dim]) -> Sheet:
    """Return the elements of each axis from these starts on, within bounds."""
    begin: list[int] = [0] * len(sheet.shape)
    for axis, start in zip(axes, starts, strict=True):
        if start:
            if not dims.all_static((sheet.shape[axis], sizes[axis])):
                raise Unfit(sheets.MOVED)
            begin[axis] = min(max(start, 0), int(sheet.shape[axis]) - int(sizes[axis]))
    return sheets.sliced(sheet, begin, [start + size for start, size in zip(begin, sizes, strict=True)], None)


def _number(index: Sheet) -> int:
    """Return an index that is known."""
    polynomial = index.whole()
    number = None if polynomial is None else polynomial.constant
    if number is None:
        raise Unfit("a step picks by an index")
    return int(number)


def _is_same(equation: JaxprEqn) -> bool:
    """Whether a conversion keeps all values unchanged."""
    (source,) = equation.invars
    return _dtype(source) == _dtype(equation.outvars[0]) or (isinstance(source, Literal) and not np.ndim(source.val))


def _aval(atom: Atom) -> Any:
    return atom.aval


def _dtype(atom: Atom) -> np.dtype:
    return _aval(atom).dtype


def _dot_general(
    evaluation: Evaluation, equation: JaxprEqn, of_input: set[Var], *, dimension_numbers: tuple, **_: object
) -> Sheet:
    (contracted, batch), (left, right) = dimension_numbers, equation.invars
    if batch[0]:
        raise Unfit("a step multiplies batches of matrices")
    if any(_dtype(atom) != _dtype(equation.outvars[0]) for atom in equation.invars):
        raise Unfit("a step accumulates products in another dtype")
    for operand, matrix, k in ((left, right, 0), (right, left, 1)):
        weight = evaluation.weight(matrix)
        if weight is not None:
            sheet = _factor(evaluation, operand, of_input)
            return sheets.product(sheet, contracted[k], weight, _aval(matrix).shape, contracted[1 - k], k == 0)
    raise Unfit("a step multiplies values of the step with each other")


def _factor(evaluation: Evaluation, atom: Atom, of_input: set[Var]) -> Sheet:
    """Return an operand of a product; a value that is more than a movement of inputs is an input itself."""
    sheet = evaluation.read(atom)
    if isinstance(atom, Var) and atom in of_input:
        atoms = [only_atom(monomial) for polynomial in sheet.polynomials for monomial in polynomial.terms]
        if not all(isinstance(a, ElementLeaf) for a in atoms):
            return evaluation.input(atom)
    return sheet
