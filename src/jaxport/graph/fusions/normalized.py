"""The common part of normalizations: a product with `1 / sqrt(variance + epsilon)`.

The factors come in any order: the root, `x - mean(x)` or `x`, and a scale that varies along some axes only; then a bias
may be added. The variance is `mean((x - mean(x))²)`, or `mean(x²) - mean(x)²`, perhaps clamped to be non-negative;
without a mean it is `mean(x²)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from jaxport.graph.axis_groups import expanded_product
from jaxport.graph.editing import PARAMETER, Dim, is_op, size_in
from jaxport.graph.fusing import Anchor, same_dims
from jaxport.graph.matching import Axis, Reduced, Seen, close, over
from jaxport.onnx_facts import VIEWS

#: A product that may have the root as a factor.
PRODUCT = Anchor(at=("Mul", "Div"), below=("Sqrt", "Pow"), through=(*VIEWS, "Mul", "Div", "Reciprocal"))


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
    """

    op_type: str
    x: Seen
    axes: tuple[Axis, ...]
    epsilon: float
    scales: tuple[Seen, ...]
    sizes: Mapping[Axis, Dim]

    def is_parameter(self, seen: Seen) -> bool:
        """Whether a value varies along the normalized axes only, in their order."""
        along = [axis for axis in seen.axes if axis is not None]
        return along == [axis for axis in self.axes if axis in along]


def normalized(node: ir.Node | None) -> Normalized | None:
    """Return the normalization that a product computes."""
    deviation, others = deviation_and_factors(node) or (None, [])
    if deviation is None:
        return None
    variance, epsilon = deviation
    squared = _mean_square(variance)
    for index, seen in enumerate(others):
        scales = tuple(others[:index] + others[index + 1 :])
        centered = _centered(seen)
        if centered is not None and _is_variance(variance, seen, *centered[:2]):
            x, axes, sizes = centered
            return Normalized("LayerNormalization", x, axes, epsilon, scales, sizes)
        axes = None if squared is None else over(squared, seen)
        if squared is not None and axes is not None:
            return Normalized("RMSNormalization", seen, axes, epsilon, scales, squared.sizes)
    return None


def deviation_and_factors(node: ir.Node | None) -> tuple[tuple[Seen, float], list[Seen]] | None:
    """Return the variance and epsilon of a product with one `1 / sqrt(variance + epsilon)`, and its other factors."""
    whole = Seen.whole(node.outputs[0]) if node is not None and is_op(node, "Mul", "Div") else None
    factors = [] if whole is None else list(_factors(whole, 1))
    deviations = [(seen, exponent) for seen, exponent in factors if _is_deviation(seen, exponent)]
    if len(deviations) != 1:
        return None
    others = [seen for seen, exponent in factors if exponent == 1 and (seen, exponent) != deviations[0]]
    radicand = _radicand(deviations[0][0]) if len(others) == len(factors) - 1 else None
    return None if radicand is None else (radicand, others)


def _factors(seen: Seen, exponent: int) -> Iterator[tuple[Seen, int]]:
    """Yield the factors of a product with their exponents; a product that is also used elsewhere is one factor."""
    operands = seen.operands("Mul", "Div", "Reciprocal") or []
    for index, factor in enumerate(operands):
        divides = seen.is_op("Reciprocal") or (seen.is_op("Div") and index == 1)
        power = -exponent if divides else exponent
        is_product = factor.is_op("Mul", "Div") and len(factor.value.uses()) == len(factor.entry.uses()) == 1
        if factor.is_op("Reciprocal") or is_product:
            yield from _factors(factor, power)
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
