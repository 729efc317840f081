"""Names of local variables that say what a value is: by what computes it, and by what reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from jaxport.codegen.rewriting.steps import ROTATIONS, readers_of
from jaxport.codegen.structure.spelling.rewritten import MOVING
from jaxport.codegen.tree import Call, Item, Layer, Loop, Module, Op
from jaxport.importer.values.recording import Step, Variable

Readers = Mapping[Variable, Sequence[Step]]
"""The steps that read each value."""

ATTENTIONS = frozenset({"nn.dot_product_attention", "helper.attention"})
OPERANDS = ("query", "key", "value")
"""What the operands of an attention are."""
STARTS = {"helper.with_rows": 2}
"""Which operand says where rows begin."""
PRODUCTS = frozenset({"@", "jnp.matmul", "jnp.einsum"})
BEFORE_SOFTMAX = frozenset({"+", "*", "/", "-", "jnp.where", *MOVING})
"""What scores go through before they are weights: they are scaled and masked."""
DEEPEST = 8
"""Steps between a value and what it is named for: a product and its scores, heads and their attention."""
ACTIVATIONS = frozenset(
    f"nn.{name}"
    for name in "relu relu6 gelu silu elu selu celu leaky_relu softplus mish hard_swish hard_sigmoid hard_tanh".split()
) | {"jnp.tanh", "nn.sigmoid"}

NOUNS = {
    "jnp.mean": "mean", "jnp.var": "variance", "jnp.std": "deviation", "jnp.sum": "total", "jnp.prod": "product",
    "jnp.max": "greatest",
    "jnp.min": "least", "jnp.maximum": "greater", "jnp.minimum": "lesser", "jnp.sqrt": "root", "lax.rsqrt": "scale",
    "jnp.square": "squares", "jnp.exp": "exponentials", "jnp.log": "logarithms", "nn.log_softmax": "logarithms",
    "jnp.abs": "magnitude",
    "jnp.cumsum": "sums", "jnp.arange": "positions", "jnp.argmax": "indices", "jnp.argmin": "indices",
    "jnp.argsort": "order",
    "jnp.sort": "ordered", "jnp.concatenate": "joined", "jnp.stack": "stacked", "jnp.pad": "padded",
    "jnp.tile": "repeated",
    "jnp.repeat": "repeated", "jnp.broadcast_to": "expanded", "jnp.where": "chosen", "jnp.take": "rows",
    "jnp.take_along_axis": "chosen",
    "jnp.clip": "bounded", "jnp.round": "rounded", "jnp.floor": "rounded", "jnp.ceil": "rounded", "jnp.sign": "signs",
    "jnp.roll": "rolled",
    "jnp.flip": "flipped", "jnp.reshape": "arranged", "jnp.transpose": "transposed", "jnp.squeeze": "squeezed",
    "jnp.expand_dims": "unsqueezed", "astype": "converted", "T": "transposed", "mT": "transposed",
    "jnp.matmul": "product", "@": "product",
    "jnp.einsum": "product", "lax.conv_general_dilated": "features", "lax.conv_transpose": "features",
    "lax.reduce_window": "pooled",
    "nn.max_pool": "pooled", "nn.avg_pool": "pooled", **dict.fromkeys(ROTATIONS, "rotated"), "jnp.tril": "triangle",
    "jnp.triu": "triangle",
    "nn.logsumexp": "total", "jnp.linalg.norm": "norm", "jnp.power": "power", "**": "power", "-": "difference",
    "%": "remainder",
    "//": "quotient", "helper.scatter_nd": "updated", "helper.scatter_elements": "updated",
    "helper.write_into_cache": "updated", "jnp.put_along_axis": "updated",
    "helper.gather_nd": "rows", "lax.cond": "chosen", "lax.switch": "chosen", "lax.scan": "state",
    "lax.while_loop": "state", "jnp.logical_and": "mask", "jnp.logical_or": "mask", "jnp.logical_not": "mask",
}  # fmt: skip
"""What a function makes."""
DESCRIPTIONS = frozenset(NOUNS.values()) | frozenset(
    (
        "query key value gate hidden attended mask condition scores part updated mapped indices shifted scaled "
        "residual total ratio"
    ).split()
)
"""Names that say what a value is."""


def role_of(value: Variable, readers: Readers) -> str:
    """Return what a value is to those that read it: `query`, `key`, `value`, `bias` or `mask` of an attention, `starts`
    of rows; or an empty text.

    A value that is only moved on its way, as heads are, is what it is moved for.
    """
    for _ in range(DEEPEST):
        following = readers.get(value, ())
        if following and all(
            reader.name in STARTS and reader.args[STARTS[reader.name]] is value for reader in following
        ):
            return "starts"
        if len(following) != 1:
            return ""
        (reader,) = following
        places = [place for place, operand in enumerate(reader.args) if operand is value]
        named = [key for key, operand in reader.kwargs.items() if operand is value]
        if reader.name in ATTENTIONS and named:
            return named[0]
        if reader.name in ATTENTIONS and len(places) == 1 and places[0] < len(OPERANDS):
            return OPERANDS[places[0]]
        if places != [0] or reader.name not in MOVING | ROTATIONS:
            return ""
        value = reader.outputs
    return ""


def _is_scores(value: Variable, readers: Readers) -> bool:
    """Whether a value is scaled and masked only before it becomes weights."""
    for _ in range(DEEPEST):
        following = readers.get(value, ())
        if len(following) != 1 or not isinstance(following[0].outputs, Variable):
            return False
        (reader,) = following
        if reader.name == "nn.softmax":
            return reader.args[0] is value
        if reader.name not in BEFORE_SOFTMAX:
            return False
        value = reader.outputs
    return False


def _is_product(step: Step, makers: Mapping[Variable, Step], depth: int = 0) -> bool:
    """Whether the result of a step is a product that was scaled, masked and moved only."""
    if step.name in PRODUCTS:
        return True
    operands = [makers[one] for one in step.args if isinstance(one, Variable) and one in makers]
    return (
        step.name in BEFORE_SOFTMAX and depth < DEEPEST and any(_is_product(one, makers, depth + 1) for one in operands)
    )


def _is_gate(step: Step, readers: Readers) -> bool:
    """Whether the result of an activation is only multiplied with another value."""
    following = readers.get(step.outputs, ())
    if step.name not in ACTIVATIONS or len(following) != 1 or following[0].name not in ("*", "jnp.multiply"):
        return False
    return all(isinstance(operand, Variable) for operand in following[0].args)


def description(step: Step, readers: Readers, makers: Mapping[Variable, Step], depth: int = 0) -> str:
    """Return a name for the result of a step, for where `x` has another value: what the function makes, or what it is
    for.

    Args:
      step: a step.
      readers: the steps that read each value.
      makers: the steps that make each value.
      depth: how many moves of the value were looked through.
    """
    value = step.outputs
    if not isinstance(value, Variable):
        return "x"
    if _is_gate(step, readers):
        return "gate"
    if step.name in ACTIVATIONS:
        return "hidden"
    if step.name in ATTENTIONS:
        return "attended"
    if value.dtype == np.bool_:
        return "mask" if value.shape else "condition"
    if step.name in PRODUCTS | BEFORE_SOFTMAX and _is_scores(value, readers) and _is_product(step, makers):
        return "scores"
    source = step.args[0] if step.name in MOVING and step.args else None
    if isinstance(source, Variable) and source in makers and depth < DEEPEST:
        return description(makers[source], readers, makers, depth + 1)
    if step.form == "index":
        return "part"
    if step.name in ("+", "*", "/"):
        return _of_arithmetic(step)
    words = step.name.rpartition(".")[2].split("_")
    named = NOUNS.get(step.name) or next((word for word in words if re.fullmatch("[a-z]+ed", word)), "")
    named = named or {"method": "updated", "vmap": "mapped"}.get(step.form)
    return named or ("indices" if jnp.issubdtype(value.dtype, np.integer) else "x")


def _of_arithmetic(step: Step) -> str:
    operands = [operand for operand in step.args if isinstance(operand, Variable)]
    if len(operands) < 2:
        return "shifted" if step.name == "+" else "scaled"
    first, second = operands
    if step.name == "+":
        return "residual" if first.shape == second.shape and len(first.shape) > 1 else "total"
    return "product" if step.name == "*" else "ratio"


def argument_description(argument: Variable, items: Sequence[Item], parameters: Mapping[Module, Sequence[str]]) -> str:
    """Return a name for an argument of a module beside `x`: what the modules call it that it is handed to, or what is
    done with it.

    Args:
      argument: the argument.
      items: what the module computes.
      parameters: the names of the arguments of the modules inside.
    """
    ops = [item.step for item in items if isinstance(item, Op)]
    readers = readers_of(ops)
    if role := role_of(argument, readers):
        return role
    calls = [
        call for item in items for call in (item.calls if isinstance(item, Loop) else [item]) if isinstance(call, Call)
    ]
    for call in calls:
        for value, name in zip(call.inputs, parameters.get(call.module, ()), strict=False):
            if value is argument and not re.fullmatch(r"x(_\d+)?", name):
                return re.sub(r"_\d+$", "", name)
    labels = [
        item.label.lower() for item in items if isinstance(item, Layer) and any(one is argument for one in item.inputs)
    ]
    if labels and all(re.match(r"(to_)?(k|v|kv)(_|$)|key|value", label.rpartition(".")[2]) for label in labels):
        return "memory"
    sums = [step.outputs for step in readers.get(argument, ()) if step.name == "+"]
    if not sums or len(sums) < len(readers[argument]):
        return "x"
    projected = [value for item in items if isinstance(item, Layer) and item.kind == "Linear" for value in item.inputs]
    return "offset" if any(one is value for one in sums for value in projected) else "residual"
