"""Match the computation of one step with those of ONNX's recurrent operators.

https://onnx.ai/onnx/operators/onnx__LSTM.html, onnx__GRU.html and onnx__RNN.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxport.export.rules.recurrent.expressions import (
    ONE,
    Applied,
    Atom,
    Dot,
    ElementLeaf,
    Monomial,
    Polynomial,
    Unfit,
    atoms_of,
    only_atom,
)
from jaxport.jaxprs import Parameters

#: Activations by their names in polynomials: the name in ONNX, with its alpha and beta.
ACTIVATIONS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "Clip": ("HardSigmoid", (1.0, 0.0)),
    "Relu": ("Relu", ()),
    "Sigmoid": ("Sigmoid", ()),
    "Softsign": ("Softsign", ()),
    "Tanh": ("Tanh", ()),
}

NO_CELL = "a step is none of the cells LSTM, GRU and RNN"


@dataclass(frozen=True)
class Sum:
    """A sum of products with matrices and of biases.

    Attributes:
      inputs, states: products of scanned inputs, and of the state, each with its coefficient.
      biases: invariants, or products of a vector of ones, each with its coefficient.
      number: a number added to each element.
    """

    inputs: tuple[tuple[float, Dot], ...] = ()
    states: tuple[tuple[float, Dot], ...] = ()
    biases: tuple[tuple[float, ElementLeaf | Dot], ...] = ()
    number: float = 0.0

    @property
    def weights(self) -> set[int]:
        """The numbers of the invariants in it."""
        dots = [bias for _, bias in self.biases if isinstance(bias, Dot)] + [d for _, d in (*self.inputs, *self.states)]
        return {dot.weight for dot in dots} | {bias.number for _, bias in self.biases if isinstance(bias, ElementLeaf)}


@dataclass(frozen=True)
class Cell:
    """A cell that an ONNX operator computes.

    Attributes:
      op_type: `LSTM`, `GRU` or `RNN`.
      states: the numbers of the states `h` and, of an LSTM, `c`.
      gates: the argument of each gate, in ONNX's order.
      activations: the functions, by their names in polynomials.
      recurrent: the part of the last gate of a GRU that the reset gate multiplies.
      options: attributes of the operator.
    """

    op_type: str
    states: tuple[int, ...]
    gates: tuple[Sum, ...]
    activations: tuple[str, ...]
    recurrent: Sum | None = None
    options: Parameters = field(default_factory=dict)


def cell_of(states: Mapping[int, Polynomial], size: int) -> Cell:
    """Return the cell that computes new states, by their numbers, of `size` elements each.

    Raises:
      Unfit: ONNX has no such cell.
    """
    if len(states) == 2:
        (one, new_one), (other, new_other) = states.items()
        if any(_is_state(atom, one, size) for monomial in new_one.terms for atom, _ in monomial):
            return _lstm(other, one, new_other, new_one, size)
        return _lstm(one, other, new_one, new_other, size)
    if len(states) != 1:
        raise Unfit(f"a step has {len(states)} states")
    ((number, new),) = states.items()
    atom = new.atom
    if isinstance(atom, Applied):
        return Cell("RNN", (number,), (_sum(atom.argument, number, size),), (_activation(atom),))
    return _gru(number, new, size)


def _is_state(atom: Atom, number: int, size: int) -> bool:
    """Whether an atom is exactly a state."""
    return atom == ElementLeaf("state", number, range(size))


def _activation(atom: Applied) -> str:
    if atom.function not in ACTIVATIONS:
        raise Unfit(f"a gate is a function `{atom.function}` that the operators do not have")
    return atom.function


def _other_factor(monomial: Monomial, one: Atom | None) -> Applied:
    """Return the activation that one atom is multiplied by."""
    factors = _factors(monomial, one)
    if len(factors) != 1 or one not in dict(monomial):
        raise Unfit(NO_CELL)
    return factors[0]


def _factors(monomial: Monomial, without: Atom | None = None) -> list[Applied]:
    """Return the activations in a monomial, without one other atom."""
    rest = [atom for atom, power in monomial for _ in range(power)]
    if without in rest:
        rest.remove(without)
    activations = [atom for atom in rest if isinstance(atom, Applied)]
    if len(activations) != len(rest):
        raise Unfit(NO_CELL)
    return activations


def _lstm(h: int, c: int, new_h: Polynomial, new_c: Polynomial, size: int) -> Cell:
    """Match `c = f*c + i*g`, `h = o*tanh(c)`."""
    kept = [m for m in new_c.terms if any(_is_state(atom, c, size) for atom, _ in m)]
    added = [m for m in new_c.terms if m not in kept]
    if len(kept) != 1 or len(added) != 1 or set(new_c.terms.values()) != {1.0} or set(new_h.terms.values()) != {1.0}:
        raise Unfit(NO_CELL)
    forget, incoming = _factors(kept[0], ElementLeaf("state", c, range(size))), _factors(added[0])
    outgoing = [factor for monomial in new_h.terms for factor in _factors(monomial)]
    squashed = [factor for factor in outgoing if factor.argument == new_c]
    gates = [factor for factor in outgoing if factor.argument != new_c]
    if (len(forget), len(incoming), len(squashed), len(gates), len(new_h.terms)) != (1, 2, 1, 1, 1):
        raise Unfit(NO_CELL)
    (f,), (i, g), (o,) = forget, incoming, gates
    if i.function != f.function or (g.function == f.function and _key(g) < _key(i)):
        i, g = g, i
    if not i.function == f.function == o.function:
        raise Unfit("the gates of an LSTM have different activations")
    sums = tuple(_sum(gate.argument, h, size) for gate in (i, o, f, g))
    return Cell("LSTM", (h, c), sums, (_activation(f), _activation(g), _activation(squashed[0])))


def _key(gate: Applied) -> tuple:
    """Return a key that orders interchangeable gates: their position in the weights."""
    return min(((a.weight, *a.columns[:1]) for a in gate.argument.atoms() if isinstance(a, Dot)), default=())


def _gru(h: int, new: Polynomial, size: int) -> Cell:
    """Match `h = (1-z)*n + z*h`."""
    state = ElementLeaf("state", h, range(size))
    alone = [m for m, c in new.terms.items() if c == 1.0 and only_atom(m)]
    plus = [m for m, c in new.terms.items() if c == 1.0 and m not in alone]
    minus = [m for m, c in new.terms.items() if c == -1.0]
    if (len(new.terms), len(alone), len(plus), len(minus)) != (3, 1, 1, 1):
        raise Unfit(NO_CELL)
    first = only_atom(alone[0])
    z = _other_factor(minus[0], first)
    if first == state:  # h - z*h + z*n
        n, update = _other_factor(plus[0], z), _complement(z)
    else:  # n - z*n + z*h
        n, update = first, z
        if plus[0] != frozenset([(z, 1), (state, 1)]):
            raise Unfit(NO_CELL)
    if not isinstance(n, Applied) or n == z:
        raise Unfit(NO_CELL)
    r, candidate, recurrent = _reset(n.argument, h, size)
    if r == z:
        raise Unfit("one gate updates and resets (a minimal gated unit)")
    if r.function != z.function:
        raise Unfit("the gates of a GRU have different activations")
    gates = (*(_sum(gate.argument, h, size) for gate in (update, r)), candidate)
    options = {} if recurrent is None else {"linear_before_reset": 1}
    return Cell("GRU", (h,), gates, (_activation(z), _activation(n)), recurrent, options)


def _complement(gate: Applied) -> Applied:
    """Return one minus a gate."""
    if gate.function == "Sigmoid":
        return Applied("Sigmoid", gate.argument * -1.0)
    if gate.function == "Clip":
        return Applied("Clip", 1 - gate.argument)
    raise Unfit("the update gate of a GRU has an activation without a complement")


def _reset(argument: Polynomial, h: int, size: int) -> tuple[Applied, Sum, Sum | None]:
    """Return the reset gate, the last gate without it, and its other factor if that is a product with weights."""
    state = ElementLeaf("state", h, range(size))
    resets: set[Applied] = set()
    rest: dict[Monomial, float] = {}
    scaled: dict[Monomial, float] = {}
    products = []
    for monomial, coefficient in argument.terms.items():
        atom = only_atom(monomial)
        if isinstance(atom, Dot) and len(atom.vector) == 2:  # (r*h) @ R
            resets.update(_factors(atom.vector, state))
            products.append((coefficient, _of_state(atom, state)))
        elif any(isinstance(factor, Applied) for factor, _ in monomial):  # r*(h @ R + b)
            applied_factors = [(factor, power) for factor, power in monomial if isinstance(factor, Applied)]
            if len(applied_factors) != 1 or applied_factors[0][1] != 1:
                raise Unfit(NO_CELL)
            resets.add(applied_factors[0][0])
            scaled[monomial - {applied_factors[0]}] = coefficient
        else:
            rest[monomial] = coefficient
    candidate = _sum(Polynomial(rest), h, size)
    if len(resets) != 1 or (products and scaled):
        raise Unfit("a step has no reset gate, or several" if len(resets) != 1 else NO_CELL)
    if candidate.states:
        raise Unfit("the reset gate of a GRU is for a part of the products")
    (r,) = resets
    if products:
        return r, Sum(candidate.inputs, tuple(products), candidate.biases, candidate.number), None
    recurrent = _sum(Polynomial(scaled), h, size)
    if recurrent.inputs:
        raise Unfit("the reset gate multiplies an input")
    return r, candidate, recurrent


def _of_state(dot: Dot, state: ElementLeaf) -> Dot:
    """Return a product of the gated state as one of the state."""
    if state not in dict(dot.vector) or any(power != 1 for _, power in dot.vector):
        raise Unfit(NO_CELL)
    return Dot(frozenset([(state, 1)]), dot.weight, dot.axes, dot.contracted, dot.rows, dot.columns)


def _sum(argument: Polynomial, h: int, size: int) -> Sum:
    """Return a polynomial as a sum of products and biases."""
    inputs: list[tuple[float, Dot]] = []
    states: list[tuple[float, Dot]] = []
    biases: list[tuple[float, ElementLeaf | Dot]] = []
    for monomial, coefficient in argument.terms.items():
        atom = only_atom(monomial)
        vector = only_atom(atom.vector) if isinstance(atom, Dot) else None
        if isinstance(atom, Dot) and atom.vector == ONE:
            biases.append((coefficient, atom))
        elif isinstance(atom, Dot) and isinstance(vector, ElementLeaf) and vector.kind == "input":
            if len(set(vector.elements)) < len(vector.elements):
                raise Unfit("a step repeats an input")
            inputs.append((coefficient, atom))
        elif isinstance(atom, Dot) and vector is not None and _is_state(vector, h, size):
            states.append((coefficient, atom))
        elif isinstance(atom, ElementLeaf) and atom.kind == "invariant":
            biases.append((coefficient, atom))
        elif monomial != ONE:
            raise Unfit(_why_no_sum(monomial))
    return Sum(tuple(inputs), tuple(states), tuple(biases), argument.terms.get(ONE, 0.0))


def _why_no_sum(monomial: Monomial) -> str:
    """Return why a monomial of a gate is neither a product nor a bias."""
    kinds = {atom.kind for atom in atoms_of(monomial) if isinstance(atom, ElementLeaf)}
    atom = only_atom(monomial)
    if isinstance(atom, ElementLeaf) and atom.kind == "input":
        return "a gate takes an input as it is, without a product"
    if isinstance(atom, Dot):
        return "a product is of other than an input or the state"
    if "state" in kinds and not any(isinstance(a, Dot | Applied) for a, _ in monomial):
        return "a gate takes a state element by element, as with peepholes"
    return "a gate takes more than products and biases"
