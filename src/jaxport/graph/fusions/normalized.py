"""The common part of normalizations: a product with `1 / sqrt(variance + epsilon)`.

The factors come in any order: the root, `x - mean(x)` or `x`, and a scale that varies along some axes only; then a bias
may be added. The variance is `mean((x - mean(x))²)`, or `mean(x²) - mean(x)²`, perhaps clamped to be non-negative;
without a mean it is `mean(x²)`.

TensorFlow and Keras distribute the product: with `f` for the root and the scale, they write
`x * f + (bias - mean * f)`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from jaxport.graph.axis_groups import expanded_product
from jaxport.graph.editing import PARAMETER, Dim, is_op, size_in
from jaxport.graph.fusing import Anchor, same_but_for_ones, same_dims
from jaxport.graph.fusions.scores import unrounded
from jaxport.graph.matching import Axis, Reduced, Seen, close, over
from jaxport.graph.remembering import remembered
from jaxport.onnx_facts import ARITHMETIC, VIEWS

#: A product that may have the root as a factor.
PRODUCT = Anchor(at=("Mul", "Div"), below=("Sqrt", "Pow"), through=VIEWS | ARITHMETIC | {"Reciprocal", "Cast"})
#: A sum whose terms may have it.
SUM = Anchor(at=("Add", "Sub"), below=("Sqrt", "Pow"), through=VIEWS | ARITHMETIC | {"Reciprocal", "Neg"})
#: The most terms of a sum that are looked at: two products and a bias.
MOST_TERMS = 3


@dataclass(frozen=True)
class Scaling:
    """A value, perhaps without its mean, that is divided by `sqrt(variance + epsilon)`, scaled and shifted.

    Attributes:
      result: what is computed.
      variance: the variance.
      epsilon: the number added to it.
      factors: the other factors; if `centered` is absent, one of them is the value.
      centered: the value and its mean, if the product is distributed.
      bias: what is added, if the product is distributed.
    """

    result: ir.Value
    variance: Seen
    epsilon: float
    factors: tuple[Seen, ...]
    centered: tuple[Seen, Seen] | None = None
    bias: Seen | None = None

    def with_bias(self, is_parameter: Callable[[Seen], bool]) -> tuple[ir.Value, Seen | None]:
        """Return the sum of the result and a bias, and the bias; the result itself and None if no bias is added."""
        return (self.result, self.bias) if self.bias is not None else with_bias(self.result, is_parameter)


@dataclass(frozen=True)
class Normalized:
    """A normalization, as a product of factors.

    Attributes:
      op_type: the operator.
      x: the value that is normalized.
      axes: the normalized axes.
      epsilon: the number added to the variance.
      scales: the other factors.
      sizes: the size along each axis that a mean goes over or keeps.
      scaled: all factors, and the result.
    """

    op_type: str
    x: Seen
    axes: tuple[Axis, ...]
    epsilon: float
    scales: tuple[Seen, ...]
    sizes: Mapping[Axis, Dim]
    scaled: Scaling

    def is_parameter(self, seen: Seen) -> bool:
        """Whether a value varies along the normalized axes only, in their order."""
        along = [axis for axis in seen.axes if axis is not None]
        return along == [axis for axis in self.axes if axis in along]


@remembered
def normalized(node: ir.Node | None) -> list[Normalized]:
    """Return the normalizations that a product or a sum may compute, seen from it and from the Reshape behind it."""
    return [match for scaled in scalings(node) for match in _matches(scaled)]


def _matches(scaled: Scaling) -> Iterator[Normalized]:
    variance, epsilon, factors = scaled.variance, scaled.epsilon, scaled.factors
    if scaled.centered is not None:
        x, mean = scaled.centered
        averaged = mean_of(mean)
        axes = None if averaged is None else over(averaged, x)
        if averaged is not None and axes is not None and _is_variance(variance, x, x, axes):
            x = _entered(x, scaled.result)
            yield Normalized("LayerNormalization", x, axes, epsilon, factors, averaged.sizes, scaled)
        return
    squared = _mean_square(variance)
    for index, seen in enumerate(factors):
        scales = (*factors[:index], *factors[index + 1 :])
        centered = _centered(seen)
        if centered is not None and _is_variance(variance, seen, *centered[:2]):
            x, axes, sizes = centered
            yield Normalized("LayerNormalization", x, axes, epsilon, scales, sizes, scaled)
            return
        axes = None if squared is None else over(squared, seen)
        if squared is not None and axes is not None:
            yield Normalized("RMSNormalization", seen, axes, epsilon, scales, squared.sizes, scaled)
            return


def _entered(x: Seen, result: ir.Value) -> Seen:
    """Return a value as it is where it has the shape of the result: before it was divided into groups, for example."""
    axes = [axis for axis in x.axes if axis is not None]
    in_order = all(isinstance(axis, int) for axis in axes) and axes == sorted(axes, key=str)
    if in_order and not same_but_for_ones(x.entry, result) and same_but_for_ones(x.value, result):
        return replace(x, entry=x.value)
    return x


def scalings(node: ir.Node | None) -> Iterator[Scaling]:
    """Yield what a product or a sum with one `1 / sqrt(variance + epsilon)` may compute."""
    if node is None or not is_op(node, *ARITHMETIC):
        return
    result = node.outputs[0]
    if is_op(node, "Mul", "Div"):
        whole = Seen.whole(result)
        found = None if whole is None else _divided(list(_factors(whole, 1)))
        if found is not None:
            yield Scaling(result, *found)
        return
    yield from _distributed(result)
    users = [] if result.is_graph_output() else list(result.consumers())
    if len(users) == 1 and is_op(users[0], "Reshape"):
        yield from _distributed(users[0].outputs[0])


def _divided(factors: Sequence[tuple[Seen, int]]) -> tuple[Seen, float, tuple[Seen, ...]] | None:
    """Return the variance and epsilon of the only root among factors that divides, and the other factors."""
    deviations = [(seen, exponent) for seen, exponent in factors if _is_deviation(seen, exponent)]
    if len(deviations) != 1:
        return None
    others = [seen for seen, exponent in factors if exponent == 1 and (seen, exponent) != deviations[0]]
    radicand = _radicand(deviations[0][0]) if len(others) == len(factors) - 1 else None
    return None if radicand is None else (*radicand, tuple(others))


def _distributed(result: ir.Value) -> Iterator[Scaling]:
    """Match `x * f + (bias - mean * f)`, in any order and with any signs that amount to it."""
    whole = Seen.whole(result)
    terms = [] if whole is None else list(itertools.islice(_terms(whole, 1, True), MOST_TERMS + 1))
    if not 2 <= len(terms) <= MOST_TERMS:
        return
    for one, other in itertools.permutations(terms, 2):
        biases = [term for term in terms if term is not one and term is not other]
        if any(term.sign < 0 for term in (one, *biases)) or other.sign > 0:
            continue
        for x, factor in itertools.permutations(one.factors, 2):
            means = [each for each in other.factors if each != factor]
            found = _divided(list(_factors(factor, 1)) or [(factor, 1)]) if len(means) == 1 else None
            if found is not None:
                yield Scaling(result, *found, (x, means[0]), biases[0].value if biases else None)


@dataclass(frozen=True)
class _Term:
    """A term of a sum, with its sign; `factors` are two if it is a product."""

    sign: int
    value: Seen
    factors: tuple[Seen, ...] = ()


def _terms(seen: Seen, sign: int, is_whole: bool = False) -> Iterator[_Term]:
    """Yield the terms of a sum; a sum that is also used elsewhere is one term."""
    alone = is_whole or len(seen.value.uses()) == len(seen.entry.uses()) == 1
    operands = (seen.operands("Add", "Sub", "Neg") or []) if alone else []
    for index, operand in enumerate(operands):
        yield from _terms(operand, -sign if seen.is_op("Neg") or (seen.is_op("Sub") and index) else sign)
    if operands:
        return
    factors: list[Seen] = []
    for factor in seen.operands("Mul") or []:
        negated, *_ = factor.operands("Neg") or [None]
        sign, factor = (sign, factor) if negated is None else (-sign, negated)
        factors.append(factor)
    yield _Term(sign, seen, tuple(factors))


def _factors(seen: Seen, exponent: int) -> Iterator[tuple[Seen, int]]:
    """Yield the factors of a product with their exponents; a product that is also used elsewhere is one factor."""
    operands = seen.operands("Mul", "Div", "Reciprocal") or []
    for index, factor in enumerate(operands):
        divides = seen.is_op("Reciprocal") or (seen.is_op("Div") and index == 1)
        power = -exponent if divides else exponent
        inner = unrounded(factor)
        is_alone = all(len(one.uses()) == 1 for one in (factor.entry, factor.value, inner.entry, inner.value))
        if factor.is_op("Reciprocal") or (inner.is_op("Mul", "Div") and is_alone):
            yield from _factors(inner, power)
        elif factor.scalar != 1 or factor.value.meta.get(
            PARAMETER
        ):  # a scale stays even while it has its initial value
            yield factor, power


def _is_deviation(seen: Seen, exponent: int) -> bool:
    """Whether a factor is a square root in the denominator."""
    if seen.is_op("Sqrt"):
        return exponent == -1
    operands = seen.operands("Pow")
    return exponent == 1 and operands is not None and operands[1].scalar == -0.5


def _radicand(deviation: Seen) -> tuple[Seen, float] | None:
    """Return the variance and the epsilon under the root. A variance may also be one number."""
    under, *_ = deviation.operands("Sqrt", "Pow") or [None]
    if under is None:
        return None
    epsilon_and_variance = under.commuted(
        "Add", lambda seen: None if any(axis is not None for axis in seen.axes) else seen.scalar
    )
    epsilon_and_variance = epsilon_and_variance or under.commuted("Add", lambda seen: seen.scalar)
    return None if epsilon_and_variance is None else (epsilon_and_variance[1], float(epsilon_and_variance[0]))


def mean_of(seen: Seen) -> Seen | None:
    """Return the operand of a mean: ReduceMean, or a sum divided by the number of its elements."""
    averaged = seen.reduced("ReduceMean")
    if averaged is not None:
        return averaged
    operands = seen.operands("Div") or seen.operands("Mul") or ()
    for index, total in enumerate(operands):
        factor, summed = operands[1 - index].scalar, total.reduced("ReduceSum")
        if summed is None or (seen.is_op("Div") and index):
            continue
        count = _count(summed, total)
        if not isinstance(count, int):
            if seen.is_op("Div") and count == size_in(operands[1 - index].value):
                return summed
        elif factor and close(count, factor if seen.is_op("Div") else 1 / factor, seen.value.dtype):
            return summed
    return None


def _count(summed: Seen, total: Seen) -> Dim:
    """Return the number of elements in each sum."""
    reduction = total.value.producer()
    return expanded_product(
        dim for axis, dim in summed.sizes.items() if isinstance(axis, Reduced) and axis.node is reduction
    )


def _square_of(seen: Seen) -> Seen | None:
    """Return `x` if `seen` is x²."""
    operands = seen.operands("Mul")
    if operands is not None:
        return operands[0] if operands[0] == operands[1] else None
    base, exponent = seen.operands("Pow") or (None, None)
    return base if exponent is not None and exponent.scalar == 2 else None


def _mean_square(seen: Seen) -> Seen | None:
    averaged = mean_of(seen)
    return None if averaged is None else _square_of(averaged)


def _centered(seen: Seen) -> tuple[Seen, tuple[Axis, ...], Mapping[Axis, Dim]] | None:
    """Return `x`, the axes of the mean and their sizes, if `seen` is x - mean(x)."""
    x, mean = seen.operands("Sub") or (None, None)
    averaged = None if mean is None else mean_of(mean)
    axes = None if averaged is None or x is None else over(averaged, x)
    return None if x is None or averaged is None or axes is None else (x, axes, averaged.sizes)


def _is_variance(variance: Seen, centered: Seen, x: Seen, axes: tuple[Axis, ...]) -> bool:
    """Whether `variance` is that of `x` along `axes`, given `centered`, which is x - mean(x)."""
    clamped = variance.commuted("Max", lambda seen: seen.scalar == 0)
    variance = variance if clamped is None else clamped[1]
    deviation = _mean_square(variance)
    if deviation is not None:
        return over(deviation, centered) == axes or _is_centered_alike(deviation, x, axes)
    squares, square = variance.operands("Sub") or (None, None)
    squared = None if squares is None else _mean_square(squares)
    mean = None if square is None else _square_of(square)
    averaged = None if mean is None else mean_of(mean)
    return squared is not None and averaged is not None and over(squared, x) == over(averaged, x) == axes


def _is_centered_alike(deviation: Seen, x: Seen, axes: tuple[Axis, ...]) -> bool:
    """Whether `deviation`, the operand of a reduction, is x minus its mean along exactly the reduced axes."""
    inside, along, _ = _centered(deviation) or (None, (), {})
    reduced = len(along) == len(axes) and all(isinstance(axis, Reduced) for axis in along)
    return inside is not None and reduced and over(inside, x) == axes


def with_bias(product: ir.Value, is_parameter: Callable[[Seen], bool]) -> tuple[ir.Value, Seen | None]:
    """Return the sum of a product and a bias, and the bias; the product itself and None if no bias is added."""
    if not product.is_graph_output() and len(product.uses()) == 1:
        ((user, place),) = product.uses()
        whole = Seen.whole(user.outputs[0]) if is_op(user, "Add") and same_dims(user.outputs[0], product) else None
        added = None if whole is None else (whole.operands("Add") or (None, None))[1 - place]
        if added is not None and is_parameter(added):
            return user.outputs[0], added
    return product, None
