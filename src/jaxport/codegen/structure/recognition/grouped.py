"""Linear layers with a kernel for each of several groups, as the experts of a mixture have them.

x @ w                                       of `w` of shape (groups, in, out)   →   GroupedLinear(x)
squeeze(take(w, groups, axis=0) @ x[..., None], -1)   of rows of `groups`   →   GroupedLinear(x, groups)

Behind either, a bias for each group may be added: `b[:, None]`, or `take(b, groups, axis=0)`.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxport.codegen.rewriting.producers import axes_of
from jaxport.codegen.structure.recognition.matching import Matcher, are_of_type
from jaxport.codegen.tree import Layer, Op, Weight
from jaxport.importer.names import given_name
from jaxport.importer.values.recording import Variable


def grouped_linear(op: Op, matcher: Matcher) -> Layer | None:
    """Return the product with the kernels of all groups, or of each row with the kernel of its own group."""
    made = _product(op, matcher)
    weights: dict[str, Weight] = {} if made is None else {"kernel": made[0]}
    inputs: tuple[Variable, ...] = () if made is None else made[1]
    terms = op.step.args if op.step.name == "+" else ()
    for product, bias in (terms, terms[::-1]) if terms else ():
        before = matcher.made.get(product) if isinstance(product, Variable) and matcher.uses[product] == 1 else None
        made = None if before is None or product.shape != op.outputs[0].shape else _product(before, matcher)
        vectors = None if made is None else _bias(bias, *made, matcher)
        if made is not None and vectors is not None:
            weights, inputs = {"kernel": made[0], "bias": vectors}, made[1]
    if not inputs or not are_of_type(inputs[0], *weights.values()):
        return None
    groups, in_features, out_features = weights["kernel"].shape
    config = {"num_groups": groups, "in_features": in_features, "out_features": out_features}
    named = given_name(weights["kernel"].name) or "linear"
    return Layer("GroupedLinear", config, weights, inputs, op.outputs, named)


def _product(op: Op, matcher: Matcher) -> tuple[Weight, tuple[Variable, ...]] | None:
    """Return the kernels that a product is with, and its operands: the rows, and the group of each if they are
    chosen.
    """
    match = _of_all(op, matcher) or _of_chosen(op, matcher)
    if match is None or match[1][0].shape[-1] != match[0].shape[1]:
        return None
    return match


def _bias(value: object, kernel: Weight, inputs: Sequence[Variable], matcher: Matcher) -> Weight | None:
    """Return the vectors of all groups that a term has, each where its group is."""
    if not isinstance(value, Variable):
        return None
    groups, _, size = kernel.shape
    chosen, term = inputs[1:], value
    if chosen:
        bound = matcher.bound("jnp.take(vectors, groups, axis=0)", value)
        term = bound["vectors"] if bound is not None and bound["groups"] is chosen[0] else None
    elif value.shape != (*[1] * (len(value.shape) - 3), groups, 1, size):
        return None
    elif (spread := matcher.step(value, "jnp.expand_dims", "jnp.reshape")) is not None:
        term = spread.step.args[0]
    is_own = matcher.is_parameter(value) or matcher.uses[value] == 1
    weight = matcher.parameter(term, turned=False) if is_own else None
    if weight is None or [extent for extent in weight.shape if extent != 1] != [groups, size]:
        return None
    return weight if weight.shape == (groups, size) else weight.reshaped((groups, size))


def _of_all(op: Op, matcher: Matcher) -> tuple[Weight, tuple[Variable, ...]] | None:
    """`x @ kernel`, of a kernel of three axes."""
    if op.step.name != "@" or op.step.kwargs:
        return None
    x, kernel = op.step.args
    weight = matcher.parameter(kernel)
    if weight is None or len(weight.shape) != 3 or not isinstance(x, Variable) or matcher.is_parameter(x):
        return None
    return weight, (x,)


def _of_chosen(op: Op, matcher: Matcher) -> tuple[Weight, tuple[Variable, ...]] | None:
    """`squeeze(take(kernel, groups, axis=0) @ expand_dims(x, -1), -1)`, or the same of a row and kernels turned."""
    for text, place, order in (
        ("jnp.squeeze((product := jnp.take(kernel, groups, axis=0) @ jnp.expand_dims(x, added)), left)", 1, (0, 2, 1)),
        ("jnp.squeeze((product := jnp.expand_dims(x, added) @ jnp.take(kernel, groups, axis=0)), left)", 2, (0, 1, 2)),
    ):
        bound = matcher.bound(text, op.step)
        if bound is None or matcher.uses[bound["product"]] != 1:
            continue
        rank, x, groups = len(bound["product"].shape), bound["x"], bound["groups"]
        if any(axes_of(bound[name], rank) != [rank - place] for name in ("added", "left")):
            continue
        weight = matcher.parameter(bound["kernel"], turned=False)
        known = isinstance(x, Variable) and isinstance(groups, Variable) and x.shape[:-1] == groups.shape
        if weight is not None and len(weight.shape) == 3 and known:
            return weight.transposed(order), (x, groups)
    return None
