"""Recognise mixtures of experts: ONNX Runtime's MoE multiplies each token by the matrices of its own experts alone.

A program spells the sum over the experts of a token in many ways: all experts answer all tokens, and a one-hot code or
a scatter weighs the answers; the matrices of the chosen experts are gathered, or their answers; a loop adds one expert
after the other. All are one sum of products (`jaxport.graph.fusions.sums`): shares of experts, the last matrix, and
what it multiplies.

The runtime's kernel on CPUs, of releases 1.28 to 1.32, computes in float32. It takes the softmax of all scores itself,
and divides the shares of the chosen experts by their sum if asked to. It has ReLU, SiLU, the approximate GELU, none,
and SiLU with a gate, whose columns alternate with those of the other projection in one matrix. Of equal scores it takes
the last expert, and JAX the first: the experts are in reverse order. A token with a score of NaN gets zeros, and NaN in
JAX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from jaxport.graph.arranging import Arrangement, atoms, sizes_of
from jaxport.graph.axis_groups import product
from jaxport.graph.editing import Dim, dims_of
from jaxport.graph.fusing import Anchor, Builder, Fusion, fuse
from jaxport.graph.fusions.gates import GATED, Activated, Projection, activated
from jaxport.graph.fusions.routing import EXPERTS, Routing, routed
from jaxport.graph.fusions.scores import unrounded
from jaxport.graph.fusions.sums import At, Chosen, Term, multiplied, products, stack
from jaxport.graph.matching import Axis, Seen
from jaxport.onnx_facts import ELEMENTWISE, EXPERT_LAYER, EXPERT_PARTS, LOOKUPS, RUNTIME_DOMAIN, VIEWS

ANCHOR = Anchor(
    at=("MatMul", "ReduceSum", "Add"),
    below=("TopK",),
    through=VIEWS | ELEMENTWISE | LOOKUPS | EXPERT_PARTS,
)


def mixture_of_experts(model: ir.Model) -> str:
    """Replace mixtures of experts by ONNX Runtime's MoE, in the main graph."""

    def find(node: ir.Node) -> Fusion | str | None:
        if node.graph is not model.graph:
            return None
        mixture = Mixture.of(node)
        return mixture.fusion() if isinstance(mixture, Mixture) else mixture

    # What is no longer used may read the numbers of experts: the bounds of an index that is known to be within them.
    common.RemoveUnusedNodesPass()(model)
    report = fuse(model, find, ANCHOR)
    if any(node.op_type == EXPERT_LAYER and node.domain == RUNTIME_DOMAIN for node in model.graph):
        model.opset_imports[RUNTIME_DOMAIN] = 1
    return report


@dataclass(frozen=True)
class Answer:
    """What an expert, or each of a stack, adds to the result.

    Attributes:
      factors: its share.
      expert: the label of the axis of experts; None for a single expert.
      inner: the label of the axis that the last matrix sums over; None for a bias.
      product: the term of the sum.
    """

    factors: tuple[Seen, ...]
    expert: Axis
    inner: Axis
    product: Term

    @classmethod
    def of(cls, product: Term, result: Sequence[Axis]) -> Answer | None:
        """Return the answer that a term is."""
        weights, operand = product.weights, product.operand
        if weights is None:
            return None
        factors = [*product.factors]
        while operand is not None and (split := _share_before(operand)) is not None:
            operand, share = split
            for one in products(share):
                if one.weights is not None or one.scale != 1:
                    return None
                factors += one.factors
            if len(products(share)) != 1:
                return None
        shared = set(atoms([axis for factor in factors for axis in factor.axes]))
        own = [axis for axis in atoms(weights.axes, [*shared, *result]) if axis not in result]
        experts = [axis for axis in own if isinstance(axis, Chosen) or axis in shared]
        rest = [axis for axis in own if axis not in experts]
        taken = {axis for factor in factors for axis in factor.axes if isinstance(axis, At)}
        if len(experts) > 1 or len(taken) > 1 or len(rest) != (operand is not None):
            return None
        expert = (*experts, *taken, None)[0]
        return cls(tuple(factors), expert, (*rest, None)[0], Term(tuple(factors), weights, operand, product.scale))


def _share_before(operand: Seen) -> tuple[Seen, Seen] | None:
    """Return what the last matrix multiplies without a share that multiplies it before, and the share."""
    operand = unrounded(operand)
    sides = operand.operands("Mul") or multiplied(operand)
    for one, other in () if sides is None or len(sides) != 2 else (sides, sides[::-1]):
        if stack(one) is None and stack(other) is None and set(atoms(other.axes)) < set(atoms(one.axes, other.axes)):
            return one, other
    return None


@dataclass(frozen=True)
class Expert:
    """The matrices of an expert, or of a stack of them.

    Attributes:
      answer: what it adds.
      bias: what its last matrix is followed by; None for nothing.
      inside: what it computes before.
      number: its number; None for a stack.
    """

    answer: Answer
    bias: Answer | None
    inside: Activated
    number: int | None


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts.

    Attributes:
      result: what it computes.
      tokens: the labels of the tokens.
      out: the label of the last axis.
      routing: the experts of each token.
      experts: the experts: one stack, or each of them.
      sizes: the size along each label.
      scale: what multiplies the result.
    """

    result: Seen
    tokens: Sequence[Axis]
    out: Axis
    routing: Routing
    experts: Sequence[Expert]
    sizes: Mapping[Axis, Dim]
    scale: float

    @classmethod
    def of(cls, node: ir.Node) -> Mixture | str | None:
        """Return the mixture of experts that a node ends, why the operator cannot compute it, or None."""
        result = Seen.whole(node.outputs[0])
        if result is None or result.value is not node.outputs[0]:
            return None
        terms = products(result)
        if not any(term.operand is not None for term in terms):
            return None
        labels = [axis for axis in result.axes if axis is not None]
        answers = [Answer.of(term, labels) for term in terms]
        known = [one for one in answers if one is not None]
        if len(known) < len(terms) or not all(one.factors for one in known):
            return None
        outs = {
            axis
            for one in known
            for axis in atoms(one.product.weights.axes if one.product.weights else ())
            if axis in labels
        }
        if len(outs) != 1 or len({one.product.scale for one in known}) != 1:
            return None
        (out,) = outs
        return _mixture(result, [axis for axis in labels if axis != out], out, known)

    @property
    def projections(self) -> list[Projection]:
        """The projections of all experts."""
        return [
            one for expert in self.experts for one in (expert.inside.projection, expert.inside.gate) if one is not None
        ]

    def fusion(self) -> Fusion:
        """Return the replacement by the operator."""
        weights = [one.value for expert in self.experts for one in _weights(expert)]
        leaves = [*(one.x.entry for one in self.projections), self.routing.scores.entry, *weights]
        return Fusion(EXPERT_LAYER, self.result.entry, leaves, self._emit)

    def arranged(self) -> tuple[Arrangement, Arrangement] | None:
        """Return how the tokens and the result have one axis of tokens, or two; None if they cannot."""
        x = self.experts[0].inside.projection.x
        inner = [axis for axis in x.axes if axis is not None and axis not in atoms(self.tokens, x.axes)]
        rows = [[one] for one in self.tokens] if len(self.tokens) == 2 else [[*self.tokens]]
        sides = (
            (x.entry, _entered(x), [*rows, inner]),
            (self.result.entry, _entered(self.result), [*rows, [self.out]]),
        )
        ways = [Arrangement.of(dims_of(value) or (), axes, groups, self.sizes) for value, axes, groups in sides]
        known = [one for one in ways if one is not None]
        scores = [axis for axis in _entered(self.routing.scores) if axis is not None]
        in_order = atoms(scores, x.axes) == [*atoms(self.tokens, [*x.axes, *scores]), EXPERTS]
        complete = {*atoms(_entered(x), x.axes)} == {*atoms(self.tokens, x.axes), *inner}
        return (known[0], known[1]) if len(known) == len(ways) and in_order and complete else None

    def _emit(self, builder: Builder) -> ir.Value:
        arranged = self.arranged()
        assert arranged is not None
        inside, float32 = self.experts[0].inside, ir.DataType.FLOAT
        x = arranged[0].apply(builder, builder.now(inside.projection.x.entry))
        scores = _reversed(builder, self._scores(builder, arranged[0].merged[:-1]), 1)
        first, first_bias = self._projected(builder)
        operands = [x, scores, first, first_bias, self._last(builder, bias=False), self._last(builder, bias=True)]
        while operands[-1] is None:
            operands.pop()
        attributes: dict[str, Any] = {
            "k": self.routing.count,
            "normalize_routing_weights": int(self.routing.is_normalized),
            "activation_type": inside.kind,
        }
        if inside.kind == GATED:
            attributes |= {"swiglu_fusion": 1, "activation_alpha": inside.alpha, "activation_beta": inside.beta}
            attributes |= {} if inside.limit is None else {"swiglu_limit": inside.limit}
        dims = arranged[1].merged
        result = builder.emit(EXPERT_LAYER, operands, dims, float32, RUNTIME_DOMAIN, **attributes)
        if self.scale != 1:
            scale = builder.constant(np.asarray(self.scale, np.float32), "scale")
            result = builder.emit("Mul", [result, scale], dims, float32)
        return arranged[1].revert(builder, result)

    def _scores(self, builder: Builder, rows: Sequence[Dim]) -> ir.Value:
        """Return the scores with one axis of tokens."""
        value, dims = builder.now(self.routing.scores.entry), [product(rows), self.routing.experts]
        if dims_of(value) == dims:
            return value
        return builder.emit(
            "Reshape", [value, builder.integers([-1, self.routing.experts], "shape")], dims, value.dtype
        )

    def _projected(self, builder: Builder) -> tuple[ir.Value, ir.Value | None]:
        """Return the matrices before the activation, and what is added: the columns of a gate alternate with the
        others'.
        """
        pairs = [[one.inside.projection, *([one.inside.gate] if one.inside.gate else [])] for one in self.experts]
        matrices, biases = [], []
        for parts in zip(*pairs, strict=True):
            matrices.append(self._stacked(builder, [(one, one.weights) for one in parts]))
            biases.append(self._stacked(builder, [(one, one.bias) for one in parts]))
        if all(one is None for one in biases):
            return _alternating(builder, [one for one in matrices if one is not None]), None
        whole = [dims_of(one) or [] for one in matrices]
        zeros = [builder.constant(np.zeros([int(str(d)) for d in dims[:2]], np.float32), "zeros") for dims in whole]
        added = [zero if one is None else one for one, zero in zip(biases, zeros, strict=True)]
        return _alternating(builder, [one for one in matrices if one is not None]), _alternating(builder, added)

    def _stacked(self, builder: Builder, parts: Sequence[tuple[Projection, Seen | None]]) -> ir.Value | None:
        """Return the weights of a projection of all experts, the last expert first; None if there are none."""
        found = [
            (expert, seen, self._rows_of(expert, one, seen), one.places)
            for expert, (one, seen) in zip(self.experts, parts, strict=True)
            if seen is not None
        ]
        return self._all(builder, found)

    def _last(self, builder: Builder, *, bias: bool) -> ir.Value | None:
        """Return the last matrices of all experts, or what is added to their products."""
        answers = [(expert, expert.bias if bias else expert.answer) for expert in self.experts]
        found = [
            (expert, answer.product.weights, self._rows_of(expert, answer, answer.product.weights), None)
            for expert, answer in answers
            if answer is not None and answer.product.weights is not None
        ]
        return self._all(builder, found)

    def _rows_of(self, expert: Expert, one: Projection | Answer, seen: Seen) -> list[list[Axis]]:
        """Return the axes that weights get: experts, columns, and what is summed over unless they are a bias."""
        if isinstance(one, Projection):
            column, is_bias, summed = one.column, seen is one.bias, _summed(one, self.tokens)
        else:
            column, is_bias, summed = self.out, one.inner is None, one.inner
        groups: list[list[Axis]] = [[expert.answer.expert if expert.number is None else None], [column], [summed]]
        return groups[:2] if is_bias else groups

    def _all(
        self, builder: Builder, found: Sequence[tuple[Expert, Seen, list[list[Axis]], np.ndarray | None]]
    ) -> ir.Value | None:
        """Return weights of all experts, the last expert first, of which some columns may be taken."""
        if not found:
            return None
        values = []
        for _, seen, groups, places in sorted(found, key=lambda one: one[0].number or 0):
            how = self._ordered(seen, groups)
            assert how is not None
            value = how.apply(builder, builder.owned(seen.value))
            wanted = [self.sizes[one[0]] for one in groups]
            value = builder.expanded(value, wanted)
            if places is not None:
                index = builder.constant(places.astype(np.int64), "columns")
                dims = [wanted[0], len(places), *wanted[2:]]
                value = builder.emit("Gather", [value, index], dims, ir.DataType.FLOAT, axis=1)
            values.append(value)
        if len(values) > 1:
            dims = [len(values), *(dims_of(values[0]) or [])[1:]]
            values = [builder.emit("Concat", values, dims, ir.DataType.FLOAT, axis=0)]
        return _reversed(builder, values[0], 0)

    def _ordered(self, seen: Seen, groups: Sequence[Sequence[Axis]]) -> Arrangement | None:
        return Arrangement.of(dims_of(seen.value) or (), seen.axes, groups, self.sizes)

    @property
    def is_ordered(self) -> bool:
        """Whether all weights can get the axes that the operator takes."""
        pairs: list[tuple[Seen, list[list[Axis]]]] = []
        for expert in self.experts:
            for one in (expert.inside.projection, expert.inside.gate):
                if one is not None:
                    pairs += [(each, self._rows_of(expert, one, each)) for each in (one.weights, one.bias) if each]
            for answer in (expert.answer, expert.bias):
                if answer is not None and answer.product.weights is not None:
                    weights = answer.product.weights
                    pairs.append((weights, self._rows_of(expert, answer, weights)))
        return all(
            self._ordered(seen, groups) is not None and all(one[0] in self.sizes for one in groups)
            for seen, groups in pairs
        )


def _reversed(builder: Builder, value: ir.Value, axis: int) -> ir.Value:
    last, least, step = (builder.integers([number], "reverse") for number in (-1, np.iinfo(np.int64).min, -1))
    along = builder.integers([axis], "axis")
    return builder.emit("Slice", [value, last, least, along, step], dims_of(value), ir.DataType.FLOAT)


def _alternating(builder: Builder, parts: Sequence[ir.Value]) -> ir.Value:
    """Return the rows of one value, each followed by that of another."""
    if len(parts) == 1:
        return parts[0]
    count, rows, *rest = dims_of(parts[0]) or []
    apart = [builder.viewed(one, [count, rows, 1, *rest]) for one in parts]
    both = builder.emit("Concat", apart, [count, rows, 2, *rest], ir.DataType.FLOAT, axis=2)
    shape = [int(str(count)), 2 * int(str(rows)), *(int(str(d)) for d in rest)]
    return builder.emit("Reshape", [both, builder.integers(shape, "shape")], shape, ir.DataType.FLOAT)


def _entered(seen: Seen) -> tuple[Axis, ...]:
    """Return the labels of a value where the views of it end."""
    return seen.along[0][0] if seen.along else seen.axes


def _summed(projection: Projection, tokens: Sequence[Axis]) -> Axis:
    return next(axis for axis in projection.x.axes if axis is not None and axis not in atoms(tokens, projection.x.axes))


def _weights(expert: Expert) -> list[Seen]:
    """Return all weights of an expert."""
    inside = expert.inside
    projections = [inside.projection, *([inside.gate] if inside.gate else [])]
    found = [one for projection in projections for one in (projection.weights, projection.bias)]
    found += [answer.product.weights for answer in (expert.answer, expert.bias) if answer is not None]
    return [one for one in found if one is not None]


def _mixture(result: Seen, tokens: Sequence[Axis], out: Axis, answers: Sequence[Answer]) -> Mixture | str | None:
    """Return the mixture that answers are, why the operator cannot compute it, or None."""
    matrices = [one for one in answers if one.inner is not None]
    found: list[tuple[Answer, Activated, Routing, int | None]] = []
    for answer in matrices:
        operand = answer.product.operand
        inside = None if operand is None else activated(operand, answer.inner)
        own = tokens if inside is None or isinstance(inside, str) else atoms(tokens, inside.projection.x.axes)
        routing = routed(answer.factors, answer.expert, own)
        if inside is None or routing is None:
            return None
        if isinstance(inside, str) or isinstance(routing, str):
            return inside if isinstance(inside, str) else routing if isinstance(routing, str) else None
        found.append((answer, inside, *routing))
    return _checked(result, tokens, out, found, [one for one in answers if one.inner is None])


def _checked(
    result: Seen,
    tokens: Sequence[Axis],
    out: Axis,
    found: Sequence[tuple[Answer, Activated, Routing, int | None]],
    biases: Sequence[Answer],
) -> Mixture | str | None:
    """Return the mixture, if its experts are all, and of one kind."""
    routing, inside = found[0][2], found[0][1]
    numbers = [number for *_, number in found]
    if len(found) > 1 and sorted(-1 if one is None else one for one in numbers) != [*range(routing.experts)]:
        return None  # a part of the sum
    if len(found) == 1 and (numbers[0] is not None or found[0][0].expert is None):
        return None
    kinds = {(one.kind, one.alpha, one.beta, one.limit) for _, one, _, _ in found}
    routings = {(one.scores, one.count, one.is_normalized) for _, _, one, _ in found}
    own = atoms(tokens, inside.projection.x.axes)
    sources = {
        (one.x.value, tuple(axis if axis in own else None for axis in one.x.axes))
        for _, each, _, _ in found
        for one in (each.projection, *([each.gate] if each.gate else []))
    }
    if len(kinds) > 1 or len(routings) > 1 or len(sources) > 1:
        return "its experts compute different functions, or from different values"
    experts = []
    for answer, each, _, number in found:
        added = [one for one in biases if one.expert == answer.expert and {*one.factors} == {*answer.factors}]
        if len(added) > 1:
            return None
        experts.append(Expert(answer, (*added, None)[0], each, number))
    if sum(one.bias is not None for one in experts) != len(biases):
        return "what is added to its answers is not one vector for each expert"
    if len({one.bias is None for one in experts}) > 1:
        return "some of its experts have a bias, and some do not"
    seen = [one for expert in experts for one in _weights(expert)]
    x = inside.projection.x
    sizes = sizes_of(result, x, routing.scores, *seen, *(factor for one in found for factor in one[0].factors))
    for answer, *_ in found:
        if answer.product.operand is not None:
            sizes |= sizes_of(answer.product.operand)
    sizes |= {EXPERTS: routing.experts, None: 1}
    if any(sizes.get(one.answer.expert) != routing.experts for one in experts if one.number is None):
        return "its experts are not as many as the scores"
    mixture = Mixture(result, tokens, out, routing, experts, sizes, found[0][0].product.scale)
    return _hindrance(mixture) or mixture


def _hindrance(mixture: Mixture) -> str | None:
    """Return why the operator cannot compute a mixture, or None."""
    x = mixture.experts[0].inside.projection.x
    tokens = atoms(mixture.tokens, x.axes)
    values = [x, mixture.result, mixture.routing.scores, *(one for each in mixture.experts for one in _weights(each))]
    if any(one.value.dtype is not ir.DataType.FLOAT for one in values):
        return "the runtime's experts are in single precision alone"
    if len([axis for axis in x.axes if axis is not None and axis not in tokens]) != 1:
        return "its experts get different tokens"
    if not mixture.is_ordered:
        return "the axes of its matrices are not those of experts, columns and rows"
    return None if mixture.arranged() is not None else "its shapes cannot be told before it runs"
