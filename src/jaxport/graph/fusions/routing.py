"""Recognise which experts a token visits, and how much each of their answers counts: a softmax, and the best of a
row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from jaxport.graph.arranging import atoms
from jaxport.graph.editing import constant_of, dims_of, integer, is_op, source
from jaxport.graph.fusions.scores import softmax_axis, unrounded
from jaxport.graph.fusions.sums import At, Chosen, plain_index
from jaxport.graph.matching import Axis, Seen, look, over

#: The label of the axis of experts, where a score of each is known.
EXPERTS = "experts"
#: What is added to the sum of shares, so as not to divide by zero, vanishes beside a sum of at least `k` of `n` shares.
NEGLIGIBLE = 2.0**-25


@dataclass(frozen=True)
class Routing:
    """The experts of each token.

    Attributes:
      scores: the scores of all experts, before any softmax.
      count: the number of experts of a token.
      experts: the number of all experts.
      is_normalized: whether the shares of the chosen ones are divided by their sum.
    """

    scores: Seen
    count: int
    experts: int
    is_normalized: bool


@dataclass(frozen=True)
class BestExperts:
    """The best experts of each token.

    Attributes:
      index: their numbers, with the labels of the axes.
      best: the label of the axis along which a token has several.
      scored: what they are the best of, along the tokens and `EXPERTS`.
      count: how many there are.
    """

    index: Seen
    best: Axis
    scored: Seen
    count: int

    @classmethod
    def of(cls, index: Seen, tokens: Sequence[Axis]) -> BestExperts | None:
        """Return the choice that numbers of experts are."""
        node, axes = index.value.producer(), index.axes
        own = [axis for axis in atoms(axes, tokens) if axis not in tokens]
        count, labels = (dims_of(index.value) or [None])[-1], [*axes[:-1], EXPERTS]
        if not isinstance(count, int) or len(own) > 1 or (own and axes[-1] != own[0]):
            return None
        order, places = None, index.value
        if _is_in_rows(node, "GatherElements"):  # of two keys, the second one is ordered first
            order, places = look(source(node), labels), source(node, 1)
            node = places.producer()
        if not _is_best(node, places):
            return None
        key = look(source(node), labels)
        scored = _ordered(key) if order is None else _ordered_twice(key, order)
        return None if scored is None else cls(index, (*own, None)[0], unrounded(scored), count)


def _is_in_rows(node: ir.Node | None, op_type: str) -> TypeGuard[ir.Node]:
    """Whether an operator moves elements along the last axis."""
    if not is_op(node, op_type):
        return False
    rank = len(dims_of(node.outputs[0]) or ())
    return rank > 0 and integer(node, "axis", -1 if op_type == "TopK" else 0) % rank == rank - 1


def _is_best(node: ir.Node | None, places: ir.Value) -> TypeGuard[ir.Node]:
    """Whether a value has the places of the largest of each row."""
    return _is_in_rows(node, "TopK") and places is node.outputs[1] and bool(integer(node, "largest", 1))


def _ordered(seen: Seen) -> Seen:
    """Return the values that are ordered, where NaN counts as infinity: `where(isnan(x), inf, x)`."""
    chosen = seen.operands("Where")
    tested = None if chosen is None else chosen[0].operands("IsNaN")
    return seen if chosen is None or tested is None or chosen[2] != tested[0] else tested[0]


def _ordered_twice(key: Seen, order: Seen) -> Seen | None:
    """Return the values that are ordered after `order`, which is that of zeros: `where(isnan(x), inf, 1 / x)`."""
    if not _is_in_rows(key.value.producer(), "GatherElements") or source(key.node, 1) is not order.value:
        return None
    first, scored = order.value.producer(), _ordered(look(source(key.node), key.axes))
    chosen = look(source(first), key.axes).operands("Where") if _is_best(first, order.value) else None
    inverse = None if chosen is None else chosen[2].operands("Reciprocal")
    return scored if inverse == [scored] else None


def numbered(condition: Seen, expert: Axis) -> tuple[Seen, int | None] | None:
    """Return the numbers of experts that a condition compares with those along an axis, or with one.

    The second result is the one; None if it compares with all in order.
    """
    sides = condition.operands("Equal") or ()
    for constant, index in zip(sides, sides[::-1], strict=True):
        array = constant_of(constant.value)
        if array is None or array.dtype.kind not in "iu":
            continue
        if array.size == 1 and expert is None:
            return plain_index(index), int(array.item())
        along = [axis for axis in constant.axes if axis is not None]
        if along == [expert] and np.array_equal(array.ravel(), np.arange(array.size)):
            return plain_index(index), expert.number if isinstance(expert, At) else None
    return None


def routed(factors: Sequence[Seen], expert: Axis, tokens: Sequence[Axis]) -> tuple[Routing, int | None] | str | None:
    """Return the routing that factors of an expert's answer are, and the number of the expert if it is a single one.

    Args:
      factors: what multiplies the answers.
      expert: the label of the axis of experts; None if there is one expert.
      tokens: the labels of the tokens.
    """
    number = None
    if isinstance(expert, Chosen):
        index, shares = Seen(expert.index, expert.axes, expert.index), [*factors]
    elif len(factors) == 1 and (scattered := _scattered(factors[0], expert)) is not None:
        index, shares = scattered[0], [scattered[1]]
    else:
        found = [pair for one in factors if (pair := numbered(one, expert)) is not None]
        if len(found) != 1:
            return None
        index, number = found[0]
        shares = [one for one in factors if numbered(one, expert) is None]
    choice = BestExperts.of(index, tokens)
    if choice is None or len(shares) != 1:
        return None
    routing = _shared(unrounded(shares[0]), choice)
    return (routing, number) if isinstance(routing, Routing) else routing


def _scattered(seen: Seen, expert: Axis) -> tuple[Seen, Seen] | None:
    """Return the index and the shares that are scattered along the experts over zeros."""
    if not seen.is_op("ScatterElements") or seen.axes[-1:] != (expert,) or "reduction" in seen.node.attributes:
        return None
    data, index, shares = (source(seen.node, place) for place in range(3))
    zeros = look(data, seen.axes)
    if integer(seen.node, "axis", 0) % len(seen.axes) != len(seen.axes) - 1 or zeros.scalar != 0:
        return None
    labels = [*seen.axes[:-1], ("best of", expert)]
    return plain_index(look(index, labels)), look(shares, labels)


def _shared(shares: Seen, choice: BestExperts) -> Routing | str:
    """Return the routing with these shares of the chosen experts."""
    no_softmax = "its shares are no softmax of the scores by which experts are chosen"
    experts = (dims_of(choice.scored.value) or [None])[-1]
    is_normalized = False
    if (normalized := _undivided(shares, choice, experts)) is not None:
        shares, is_normalized = normalized, True
    if shares.is_op("Softmax") and softmax_axis(shares) == choice.best:
        inner = _taken(unrounded(look(source(shares.node), shares.axes)), choice)
        if inner is None or choice.best is None or is_normalized or inner != _unshared(choice.scored):
            return no_softmax
        return _routing(inner, choice, experts, is_normalized=True)
    taken = _taken(shares, choice)
    if taken is None or _unshared(taken) == taken or _unshared(taken) != _unshared(choice.scored):
        return no_softmax
    return _routing(_unshared(taken), choice, experts, is_normalized)


def _routing(scores: Seen, choice: BestExperts, experts: object, is_normalized: bool) -> Routing | str:
    if not isinstance(experts, int):
        return "the number of its experts is not known"
    return Routing(scores, choice.count, experts, is_normalized)


def _undivided(shares: Seen, choice: BestExperts, experts: object) -> Seen | None:
    """Return the shares before they are divided by their sum, perhaps with a negligible number added to it."""
    whole, total = shares.operands("Div") or (None, None)
    if whole is None or total is None:
        return None
    least = NEGLIGIBLE * choice.count / experts if isinstance(experts, int) else 0
    padded = total.commuted("Add", lambda one: one.scalar is not None and 0 <= one.scalar <= least)
    summed = (total if padded is None else padded[1]).reduced("ReduceSum")
    whole = unrounded(whole)
    inner = None if summed is None else unrounded(summed)
    alone = choice.best is None and inner is not None and inner == whole
    if inner is None or not (alone or over(inner, whole) == (choice.best,)):
        return None
    return whole


def _taken(shares: Seen, choice: BestExperts) -> Seen | None:
    """Return what the values of the chosen experts are taken from."""
    axes = (*choice.index.axes[:-1], EXPERTS)
    if shares.axes != choice.index.axes:
        return None
    if shares.is_op("TopK") and shares.value is shares.node.outputs[0]:
        return choice.scored if choice.index.value is shares.node.outputs[1] else None
    if not shares.is_op("GatherElements") or integer(shares.node, "axis", 0) % len(axes) != len(axes) - 1:
        return None
    index = plain_index(look(source(shares.node, 1), shares.axes))
    if index.value is not choice.index.value:
        return None
    return unrounded(look(source(shares.node), axes))


def _unshared(seen: Seen) -> Seen:
    """Return the scores that shares are a softmax of, along the experts; the value itself if it is none."""
    if seen.is_op("Softmax") and softmax_axis(seen) == EXPERTS:
        return unrounded(look(source(seen.node), seen.axes))
    return seen
