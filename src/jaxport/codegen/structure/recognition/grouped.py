"""Linear layers with a kernel for each of several groups, as the experts of a mixture have them.

x @ w                                       of `w` of shape (groups, in, out)   →   GroupedLinear(x)
squeeze(take(w, groups, axis=0) @ x[..., None], -1)   of rows of `groups`   →   GroupedLinear(x, groups)
"""

from __future__ import annotations

from jaxport.codegen.rewriting.producers import axes_of
from jaxport.codegen.structure.recognition.matching import Matcher, are_of_type
from jaxport.codegen.tree import Layer, Op, Weight
from jaxport.importer.names import given_name
from jaxport.importer.values.recording import Variable

__all__ = ["grouped_linear"]


def grouped_linear(op: Op, matcher: Matcher) -> Layer | None:
    """Return the product with the kernels of all groups, or of each row with the kernel of its own group."""
    match = _of_all(op, matcher) or _of_chosen(op, matcher)
    if match is None:
        return None
    weight, inputs = match
    groups, in_features, out_features = weight.shape
    if not are_of_type(inputs[0], weight) or inputs[0].shape[-1] != in_features:
        return None
    config = {"num_groups": groups, "in_features": in_features, "out_features": out_features}
    return Layer("GroupedLinear", config, {"kernel": weight}, inputs, op.outputs, given_name(weight.name) or "linear")


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
