"""A parameter followed through a program: where the program multiplies by it, and what becomes of the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from jaxport import jaxprs
from jaxport.jaxprs import Atom, Dim, JaxprEqn, aval_of
from jaxport.jaxprs.body_inputs import DISSOLVED, PLAIN_CALLS, runs_bodies, source_of
from jaxport.jaxprs.walk import bodies, interpret
from jaxport.mox.querying.axes import ELEMENTWISE, Axes, AxisPart, arranged, axes_of, cut, unknown
from jaxport.mox.querying.computed import ComputedWeight

Role = Literal["input", "output", "batch"]

WEIGHT = "weight"
"""The parameter, as the source of parts of axes; arguments are sources by their position."""


@dataclass(frozen=True)
class FollowedValue:
    """What is known of a value.

    Attributes:
      kind: the parameter or an argument, in another arrangement or type; the product of the two; rows that were looked
        up; an argument as one column of indices; or a step of `jnp.where(index < 0, index + size, index)`.
      axes: of the parameter and of the arguments.
      exact: whether it is nothing but the parameter, the argument, or the product and summands.
      linear: of a parameter, whether each element is one of its own or zero.
      alone: of a product, whether only parameters were added to it.
      selected: of looked-up rows, the axes of the parameter that were indexed.
      source: the number of the argument, -1 of other values.
      size: that was added to an index, if it is negative.
      column: of indices, which of them is the argument.
    """

    kind: Literal["weight", "argument", "product", "rows", "indices", "is negative", "shifted"]
    axes: Axes
    exact: bool = True
    linear: bool = True
    alone: bool = True
    selected: frozenset[int] = frozenset()
    source: int = -1
    size: Dim | None = None
    column: int = 0


@dataclass(frozen=True)
class Reading:
    """An operation that combines the parameter with a value.

    Attributes:
      kind: which one.
      roles: of each axis of the parameter, as far as it is known.
      met: for axes of the parameter, the parts of arguments that they are contracted with.
      exact: whether it is the parameter itself that is combined.
      is_constant: whether it is combined with parameters and constants alone.
      index: of a lookup, whether the index is an argument itself; negative ones may count from the end.
    """

    kind: Literal["product", "convolution", "lookup"]
    roles: Mapping[int, set[Role]]
    met: Mapping[int, AxisPart] = field(default_factory=dict)
    exact: bool = True
    is_constant: bool = False
    index: FollowedValue | None = None

    def axes(self, role: Role) -> tuple[int, ...]:
        """Return the axes that have a role."""
        return tuple(sorted(axis for axis, roles in self.roles.items() if role in roles))


@dataclass(frozen=True)
class _Operand:
    """What is known of a value.

    Attributes:
      value: where the parameter or an argument is in it.
      is_constant: whether it is computed from parameters and constants alone.
      is_mixed: whether it is computed from parameters other than the one that is followed.
    """

    value: FollowedValue | None = None
    is_constant: bool = False
    is_mixed: bool = False


class ParameterFlow:
    """The way of one parameter through a body without blocks.

    Attributes:
      readings: the operations that combine it with other values, in order.
      strays: whether anything else is computed from it, or from a product, than the results.
      results: what is known of the results.
      shape, dtype: of the parameter.
      added: the sums that a product is a summand of, or that the parameter itself is one of.
    """

    def __init__(
        self, jaxpr: jaxprs.Jaxpr, weight: int | ComputedWeight, constants: Sequence[int], arguments: Sequence[int]
    ):
        """Follow the input number `weight`, or what an equation computes; the inputs `constants` are parameters,
        too.
        """
        self.readings: list[Reading] = []
        self.added: dict[JaxprEqn, Axes] = {}
        self.strays = False
        avals = [aval_of(variable) for variable in jaxpr.invars]
        inputs = [_Operand(is_constant=index in constants, is_mixed=index in constants) for index in range(len(avals))]
        for index in arguments:
            if hasattr(avals[index], "shape"):
                inputs[index] = _Operand(FollowedValue("argument", axes_of(index, avals[index].shape), source=index))
        self._start = weight.equation if isinstance(weight, ComputedWeight) else None
        first = avals[weight] if isinstance(weight, int) else aval_of(weight.equation.outvars[0])
        self.shape: Sequence[Dim] = first.shape
        self.dtype = first.dtype
        self._weight = _Operand(FollowedValue("weight", axes_of(WEIGHT, self.shape)), is_constant=True)
        if isinstance(weight, int):
            inputs[weight] = self._weight
        self.results = [known.value for known in self._body(jaxpr, inputs)]

    def _body(self, jaxpr: jaxprs.Jaxpr, inputs: Sequence[_Operand]) -> list[_Operand]:
        constants = [_Operand(is_constant=True)] * len(jaxpr.constvars)
        return interpret(jaxpr, [*constants, *inputs], self._equation, lambda _: _Operand(is_constant=True))

    def _equation(self, equation: JaxprEqn, operands: list[_Operand]) -> Sequence[_Operand]:
        """Return what is known of the results of an equation."""
        if runs_bodies(equation):
            return self._call(equation, operands)
        if equation is self._start:
            return [self._weight]
        is_constant = [operand.is_constant for operand in operands]
        known = [operand.value for operand in operands]
        is_mixed = any(operand.is_mixed for operand in operands)
        made = self._result(equation, known, is_constant) if any(known) else None
        if made is not None and made.kind in ("product", "rows") and equation.primitive.name in ("add", "add_any"):
            others = [operand for operand in operands if not _is(operand.value, "product", "rows")]
            made = replace(made, alone=made.alone and all(o.is_constant and o.is_mixed for o in others))
        if made is not None and made.kind == "weight" and is_mixed and equation.primitive.name in ELEMENTWISE:
            made, self.strays = None, True  # another weight, of several parameters
        others = _Operand(is_constant=all(is_constant) and not equation.effects, is_mixed=is_mixed)
        return [replace(others, value=made), *[others] * (len(equation.outvars) - 1)][: len(equation.outvars)]

    def _call(self, equation: JaxprEqn, operands: Sequence[_Operand]) -> Sequence[_Operand]:
        is_plain = equation.primitive.name in PLAIN_CALLS | DISSOLVED
        # What loops and branches compute is not followed out of them.
        self.strays |= not is_plain and any(_is(known.value, "weight", "product", "rows") for known in operands)
        results: list[_Operand] = []
        for number, body in enumerate(bodies(equation.params)):
            inputs = []
            for position in range(len(body.invars)):
                source = source_of(equation, number, position)
                known = _Operand() if source is None or source.carried else operands[source.operand]
                inputs.append(replace(known, value=None) if source is not None and source.sliced else known)
            results = self._body(body, inputs)
        return results if is_plain and len(results) == len(equation.outvars) else [_Operand()] * len(equation.outvars)

    def _result(
        self, equation: JaxprEqn, known: Sequence[FollowedValue | None], is_constant: Sequence[bool]
    ) -> FollowedValue | None:
        """Return what is known of the result of an equation; note what it reads."""
        name, first = equation.primitive.name, known[0]
        made: FollowedValue | None = None
        if name == "dot_general":
            made = self._product(equation, known, is_constant)
        elif name == "conv_general_dilated":
            made = self._convolution(equation, known, is_constant)
        elif name == "gather" and _is(first, "weight"):
            made = self._gathered(equation, known)
        elif name == "dynamic_slice" and _is(first, "weight"):
            made = self._sliced(equation, known, is_constant)
        elif name in ELEMENTWISE:
            made = self._combined(equation, known, is_constant)
        elif name == "concatenate":
            made = _concatenated(equation, known, is_constant)
        elif first is not None:
            axes = arranged(equation, first.axes)
            made = None if axes is None else replace(first, axes=axes)
            if made is not None and name in _OTHER_VALUES:
                made = replace(made, exact=False)
        self.strays |= made is None and any(_is(value, "weight", "product", "rows") for value in known)
        return made

    def _product(
        self, equation: JaxprEqn, known: Sequence[FollowedValue | None], is_constant: Sequence[bool]
    ) -> FollowedValue | None:
        positions = [place for place, value in enumerate(known) if _is(value, "weight", "rows")]
        if len(positions) != 1 or any(_is(value, "product") for value in known):
            return None
        (place,) = positions
        own, other = known[place], known[1 - place]
        contracted, batch = equation.params["dimension_numbers"]
        if own is None or (own.kind == "rows" and is_constant[1 - place]):
            return None  # an embedding before a layer
        if any(part.source != WEIGHT for axis in contracted[place] for part in own.axes[axis] if part.size != 1):
            return None  # a factor of the weights, such as a scale
        free: list[tuple[Axes, list[int]]] = []
        for side in (0, 1):
            taken = {*contracted[side], *batch[side]}
            axes = _axes_of(known[side], equation.invars[side])
            free.append((axes, [axis for axis in range(len(axes)) if axis not in taken]))
        roles = _roles(own, contracted[place], batch[place])
        if own.kind == "rows" and not any("output" in of_axis for of_axis in roles.values()):
            return None
        met = _met(own, other, contracted[place], contracted[1 - place])
        self.readings.append(Reading("product", roles, met, own.exact, is_constant[1 - place]))
        made = [own.axes[axis] for axis in batch[place]]
        made += [axes[axis] for axes, left in free for axis in left]
        return FollowedValue("product", tuple(made), own.linear and own.kind == "weight")

    def _convolution(
        self, equation: JaxprEqn, known: Sequence[FollowedValue | None], is_constant: Sequence[bool]
    ) -> FollowedValue | None:
        own, image = known[1], known[0]
        if own is None or not _is(own, "weight") or _is(image, "weight", "product", "rows"):
            return None
        numbers = equation.params["dimension_numbers"]
        features, *met_axes = numbers.rhs_spec
        if any(part.source != WEIGHT for axis in met_axes for part in own.axes[axis] if part.size != 1):
            return None
        channels = _met(own, image, numbers.rhs_spec[1:2], numbers.lhs_spec[1:2])
        grouped = equation.params["feature_group_count"] != 1 or equation.params["batch_group_count"] != 1
        roles = _roles(own, met_axes, ())
        self.readings.append(Reading("convolution", roles, {} if grouped else channels, own.exact, is_constant[0]))
        result = aval_of(equation.outvars[0])
        made = [unknown(size) for size in result.shape]
        made[numbers.out_spec[1]] = own.axes[features]
        if image is not None and image.kind == "argument" and equation.params["batch_group_count"] == 1:
            made[numbers.out_spec[0]] = image.axes[numbers.lhs_spec[0]]
        return FollowedValue("product", tuple(made), own.linear)

    def _gathered(self, equation: JaxprEqn, known: Sequence[FollowedValue | None]) -> FollowedValue | None:
        own, indices = known[0], known[1]
        numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
        table = aval_of(equation.invars[0])
        selected = [axis for axis in numbers.start_index_map if sizes[axis] != table.shape[axis]]
        batch = tuple(getattr(numbers, "operand_batching_dims", ()))
        if own is None or not selected or any(sizes[axis] != 1 for axis in selected):
            return None
        result = aval_of(equation.outvars[0])
        dropped = {*numbers.collapsed_slice_dims, *batch}
        kept = [axis for axis in range(len(own.axes)) if axis not in dropped]
        rows = list(_axes_of(indices, equation.invars[1])[:-1])
        made = []
        for axis in range(len(result.shape)):
            if axis in numbers.offset_dims:
                place = kept.pop(0)
                made.append(unknown(1) if place in selected else own.axes[place])
            else:
                made.append(rows.pop(0))
        index = None
        if indices is not None and numbers.start_index_map[indices.column] == selected[0] and len(selected) == 1:
            index = indices if _counts_from_the_end(indices, table.shape[selected[0]]) else None
        return self._looked_up(own, selected, batch, tuple(made), index)

    def _sliced(
        self, equation: JaxprEqn, known: Sequence[FollowedValue | None], is_constant: Sequence[bool]
    ) -> FollowedValue | None:
        own, sizes = known[0], equation.params["slice_sizes"]
        table = aval_of(equation.invars[0])
        selected = [axis for axis, size in enumerate(table.shape) if sizes[axis] != size]
        if own is None:
            return None
        if all(is_constant[1:]):
            axes = (cut(axis, sizes[i]) if i in selected else axis for i, axis in enumerate(own.axes))
            return replace(own, axes=tuple(axes), exact=not selected and own.exact)
        if not selected or any(sizes[axis] != 1 for axis in selected):
            return None
        made = tuple(unknown(1) if i in selected else axis for i, axis in enumerate(own.axes))
        start = known[1 + selected[0]]
        index = start if len(selected) == 1 and _counts_from_the_end(start, table.shape[selected[0]]) else None
        return self._looked_up(own, selected, (), made, index)

    def _looked_up(
        self, own: FollowedValue, selected: Sequence[int], batch: Sequence[int], made: Axes, index: FollowedValue | None
    ) -> FollowedValue:
        roles = _roles(own, selected, batch)
        self.readings.append(Reading("lookup", roles, exact=own.exact, index=index))
        taken = frozenset(part.axis for axis in selected for part in own.axes[axis] if part.source == WEIGHT)
        return FollowedValue("rows", made, own.linear, selected=taken)

    def _combined(
        self, equation: JaxprEqn, known: Sequence[FollowedValue | None], is_constant: Sequence[bool]
    ) -> FollowedValue | None:
        """Return what is known of the result of an operation on elements."""
        known = [
            None if v is None else _spread(equation, atom, v) for v, atom in zip(known, equation.invars, strict=True)
        ]
        carriers = [value for value in known if value is not None and value.kind in ("weight", "product", "rows")]
        is_sum = equation.primitive.name in ("add", "add_any")
        if not carriers:
            return _index(equation, known)
        first = carriers[0]
        if any((value.kind, value.axes) != (first.kind, first.axes) for value in carriers):
            return None
        result = aval_of(equation.outvars[0])
        if len(result.shape) != len(first.axes):
            return None
        if is_sum and len(carriers) == 1 and (first.exact or first.kind != "weight"):
            self.added[equation] = first.axes
        if first.kind == "weight":
            return replace(first, exact=False, linear=False) if all(is_constant) else None
        return replace(first, exact=first.exact and is_sum and len(carriers) == 1)


# Arrangements that leave values out, add others, or reverse their order.
_OTHER_VALUES = frozenset({"pad", "rev", "slice"})


def _is(value: FollowedValue | None, *kinds: str) -> bool:
    return value is not None and value.kind in kinds


def _spread(equation: JaxprEqn, operand: Atom, value: FollowedValue) -> FollowedValue:
    """Return what is known of an operand in the shape of the result: axes of one element are repeated."""
    before = aval_of(operand)
    after = aval_of(equation.outvars[0])
    if before.shape == after.shape or len(before.shape) != len(after.shape):
        return value
    pairs = zip(value.axes, before.shape, after.shape, strict=True)
    return replace(value, axes=tuple(axis if old == new else unknown(new) for axis, old, new in pairs))


def _axes_of(value: FollowedValue | None, atom: Atom) -> Axes:
    aval = aval_of(atom)
    return value.axes if value is not None else tuple(unknown(size) for size in aval.shape)


def _roles(own: FollowedValue, inputs: Sequence[int], batch: Sequence[int]) -> dict[int, set[Role]]:
    """Return the roles of the axes of a parameter, from those of a value that it is in."""
    roles: dict[int, set[Role]] = {axis: {"batch"} for axis in own.selected}
    for place, axis in enumerate(own.axes):
        role: Role = "input" if place in inputs else "batch" if place in batch else "output"
        for part in axis:
            if part.source == WEIGHT:
                roles.setdefault(part.axis, set()).add(role)
    return roles


def _met(
    own: FollowedValue, other: FollowedValue | None, axes: Sequence[int], others: Sequence[int]
) -> dict[int, AxisPart]:
    """Return the axis of an argument that each contracted axis of the parameter meets, where both are whole."""
    met = {}
    if other is not None and other.kind == "argument" and other.exact:
        for axis, its in zip(axes, others, strict=True):
            if len(own.axes[axis]) == len(other.axes[its]) == 1:
                (part,), (theirs,) = own.axes[axis], other.axes[its]
                if part.source == WEIGHT and part.stride == theirs.stride == 1 and theirs.source is not None:
                    met[part.axis] = theirs
    return met


def _concatenated(
    equation: JaxprEqn, known: Sequence[FollowedValue | None], is_constant: Sequence[bool]
) -> FollowedValue | None:
    """Return what is known of a parameter beside others in one array, or of an argument among columns of indices."""
    along = equation.params["dimension"]
    operands = [aval_of(atom) for atom in equation.invars]
    result = aval_of(equation.outvars[0])
    (place, *more) = [place for place, value in enumerate(known) if value is not None]
    first = known[place]
    if first is None or more:
        return None
    if first.kind == "argument" and along == len(result.shape) - 1 and operands[place].shape[-1] == 1:
        column = sum(operand.shape[-1] for operand in operands[:place])
        return replace(first, kind="indices", axes=(*first.axes[:-1], unknown(result.shape[-1])), column=column)
    if first.kind != "weight" or not all(is_constant):
        return None
    axes = [cut(axis, result.shape[along]) if at == along else axis for at, axis in enumerate(first.axes)]
    return replace(first, axes=tuple(axes), exact=False)


def _index(equation: JaxprEqn, known: Sequence[FollowedValue | None]) -> FollowedValue | None:
    """Return what is known of a step that makes negative indices count from the end, or of its result."""
    name, first = equation.primitive.name, known[0]
    if first is None or not first.exact:
        return None
    number = equation.invars[-1].val if isinstance(equation.invars[-1], jaxprs.Literal) else None
    if name == "lt" and first.kind == "argument" and number == 0:
        return replace(first, kind="is negative")
    if name == "add" and first.kind == "argument" and first.size is None and number is not None:
        return replace(first, kind="shifted", size=int(number))
    if name == "select_n" and [_kind(value) for value in known] == ["is negative", "argument", "shifted"]:
        _, index, shifted = known
        if index is not None and shifted is not None and index.axes == shifted.axes == first.axes:
            return replace(index, size=shifted.size)
    return None


def _kind(value: FollowedValue | None) -> str:
    return "" if value is None else value.kind


def _counts_from_the_end(index: FollowedValue | None, size: Dim) -> bool:
    return _is(index, "argument", "indices") and index is not None and index.exact and index.size in (None, size)
