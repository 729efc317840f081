"""Channels-last images: which values are held in that layout, and which operators keep it.

ONNX has images as (batch, channels, height, width). XLA's convolutions on CPUs are up to twice as fast on (batch,
height, width, channels), but a transpose before and after each of them would undo the gain. So a convolution leaves its
result with the channels last, operators for which the order of the axes does not matter leave it there, and the first
operator that needs the model's own order causes a transpose, which later ones share.

A value is in the scope in the model's order, with the channels last, or both. An operator is listed here by name
according to how it handles a held value: it works element by element, along axes that can be renamed, or its function
is defined for several layouts (`image_op`). All others only see the model's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

import jax
import numpy as np

from jaxport.importer.graph import BoundNode
from jaxport.importer.host import Attribute, HostValue, RuntimeValue, host
from jaxport.importer.image_layout import CHANNELS_LAST, LAST, ONNX, PLACES, ImageLayout
from jaxport.importer.namespaces import jnp, known
from jaxport.importer.recording import Recorded
from jaxport.importer.registry import Operator
from jaxport.importer.scope import EvaluationScope, Held
from jaxport.onnx_facts import ALONG_AXIS, BROADCASTS_SINCE, CONVOLUTIONS, ELEMENTWISE, REDUCTIONS

__all__ = ["Arranged", "arranged", "channels_last"]

RANK = 4

EACH = dict.fromkeys(ELEMENTWISE | {"CastLike", "QuickGelu"}, 1) | BROADCASTS_SINCE
"""Elementwise operators whose inputs broadcast, and the version from which on they do."""

ALONG = dict.fromkeys(ALONG_AXIS, 1) | dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), 13)
ALONG |= dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), 10)
"""Operators along one `axis`, which earlier versions flatten to two axes."""

OVER = dict.fromkeys(sorted(REDUCTIONS), 1)
"""Operators over `axes`, an attribute or the second input."""

BY_AXIS = {"Pad": 2, "Resize": 10, "Upsample": 7}
"""Operators with a number, or several rows of them, per axis: in the attributes `pads` and `scales`, or in inputs."""


@dataclass(slots=True)
class Arranged:
    """The inputs and attributes that replace an operator's own, for a result with the channels last.

    `held` is set if the result is held so; `prefers_nhwc` if that is worth a transpose of a neighbour in the model's
    own order. `layout` is the one that the operator is computed in.
    """

    inputs: list[RuntimeValue]
    attributes: dict[str, Attribute]
    held: bool = True
    prefers_nhwc: bool = True
    layout: ImageLayout = ONNX


Rule = Callable[[BoundNode, dict[str, RuntimeValue], EvaluationScope], Arranged | None]


def channels_last(x: RuntimeValue) -> RuntimeValue:
    """Return an image in the model's order, or an operand broadcast to one, with the channels last."""
    if x.ndim == RANK:
        return jnp.transpose(x, LAST)
    return jnp.transpose(x, (1, 2, 0)) if x.ndim == RANK - 1 else jnp.expand_dims(x, -1)


def arranged(node: BoundNode, attributes: dict[str, Attribute], scope: EvaluationScope) -> Arranged | None:
    """Return how to compute a node with its channels last; None to compute it in the model's order."""
    rule = _rule(node.target) if isinstance(node.target, Operator) else None
    return rule(node, attributes, scope) if rule is not None else None


@cache
def _rule(operator: Operator) -> Rule | None:
    if operator.lowering is not None:
        return _lowered
    if operator.domain not in ("", "com.microsoft"):
        return None
    tables = ((EACH, _each), (ALONG, _along), (OVER, _over), (BY_AXIS, _by_axis), ({"Transpose": 1}, _transposed))
    return next((rule for names, rule in tables if names.get(operator.name, np.inf) <= operator.since), None)


def _is_image(x: object) -> bool:
    return isinstance(x, jax.Array | np.ndarray | Recorded) and x.ndim == RANK


def _places(axes: Iterable[int]) -> tuple[int, ...] | None:
    """Return the positions of the model's axes in a held value; None if there are no such axes."""
    axes = tuple(axes)
    return tuple(PLACES[axis] for axis in axes) if all(-RANK <= axis < RANK for axis in axes) else None


def _lowered(node: BoundNode, attributes: dict[str, Attribute], scope: EvaluationScope) -> Arranged | None:
    """Arrange an operator that is defined for several layouts.

    The result of a convolution always has the channels last.
    """
    images = CONVOLUTIONS.get(node.node.op_type)
    if len(node.outputs) > 1:
        return None
    inputs = []
    for index, value in enumerate(node.inputs):
        if value is None or index not in (images or (0,)):
            inputs.append(None if value is None else scope[value])
            continue
        held = scope.held(value)
        if held is None and images and _is_image(scope[value]):
            # Another convolution of the same image can use it, too.
            held = scope.last[value] = Held(channels_last(scope[value]), prefers_nhwc=False)
        if held is None:
            return None
        inputs.append(held.array)
    return Arranged(inputs, attributes, layout=replace(CHANNELS_LAST, kernel=node.kernel_layout))


def _each(node: BoundNode, attributes: dict[str, Attribute], scope: EvaluationScope) -> Arranged | None:
    images = [None if value is None else scope.held(value) for value in node.inputs]
    prefers_nhwc = any(held is not None and held.prefers_nhwc for held in images)
    if not any(images) or "axis" in attributes:  # before version 7, which specifies how operands broadcast
        return None
    inputs: list[RuntimeValue] = []
    for value, held in zip(node.inputs, images, strict=True):
        x = held.array if held is not None else None if value is None else scope[value]
        if held is None and x is not None and x.ndim and not (isinstance(x, HostValue) and x.size == 1):
            if x.ndim > RANK or (x.ndim == RANK and not prefers_nhwc):
                return None
            x = channels_last(x)
        inputs.append(x)
    return Arranged(inputs, attributes, prefers_nhwc=prefers_nhwc)


def _along(node: BoundNode, attributes: dict[str, Attribute], scope: EvaluationScope) -> Arranged | None:
    along, _ = ALONG_AXIS.get(node.node.op_type, ((0,), None))
    images = [
        scope.held(value) if value is not None and (along is None or index in along) else None
        for index, value in enumerate(node.inputs)
    ]
    prefers_nhwc = any(held is not None and held.prefers_nhwc for held in images)
    if not any(images) or attributes.get("block_size"):
        return None
    inputs: list[RuntimeValue] = []
    for index, (value, held) in enumerate(zip(node.inputs, images, strict=True)):
        x = held.array if held is not None else None if value is None else scope[value]
        if held is None and (along is None or index in along):
            if not prefers_nhwc or not _is_image(x):
                return None
            x = channels_last(x)
        inputs.append(x)
    target = node.target
    assert isinstance(target, Operator)
    if "axis" not in target.attributes:
        return Arranged(inputs, attributes, prefers_nhwc=prefers_nhwc)
    place = _places([attributes.get("axis", target.attributes["axis"].default)])
    return None if place is None else Arranged(inputs, {**attributes, "axis": place[0]}, prefers_nhwc=prefers_nhwc)


def _over(node: BoundNode, attributes: dict[str, Attribute], scope: EvaluationScope) -> Arranged | None:
    data, *more = node.inputs
    held = None if data is None else scope.held(data)
    if held is None:
        return None
    axes_input = known(scope[more[0]]) if more and more[0] is not None else None
    axes = attributes.get("axes") if axes_input is None else axes_input.tolist()
    if not axes:
        return None
    places = _places(axes)
    if places is None:
        return None
    places = tuple(sorted(places))
    kept = [axis for place, axis in enumerate(LAST) if place not in places]
    if not attributes.get("keepdims", 1) and kept != sorted(kept):
        return None
    if axes_input is None:
        return Arranged([held.array], {**attributes, "axes": places}, prefers_nhwc=held.prefers_nhwc)
    return Arranged([held.array, host(places, np.dtype(np.int64))], attributes, prefers_nhwc=held.prefers_nhwc)


def _by_axis(node: BoundNode, attributes: dict[str, Attribute], scope: EvaluationScope) -> Arranged | None:
    data, *others = node.inputs
    held = None if data is None else scope.held(data)
    operands = [None if value is None else scope[value] for value in others]
    if held is None or "axes" in attributes:
        return None
    if node.node.op_type == "Pad" and len(operands) > 2 and operands[2] is not None:
        axes = known(operands[2])
        places = None if axes is None else _places(axes.tolist())
        if axes is None or places is None:
            return None
        return Arranged(
            [held.array, *operands[:2], host(places, axes.dtype)], attributes, prefers_nhwc=held.prefers_nhwc
        )
    rows = [x if x is None or x.ndim != 1 else known(x) for x in operands]
    if any(x is not None and row is None for x, row in zip(operands, rows, strict=True)):
        return None
    changed = {
        name: _reordered(np.array(attributes[name])).tolist() for name in ("pads", "scales") if name in attributes
    }
    inputs = [HostValue(_reordered(x.data), x.dtype) if isinstance(x, HostValue) and x.ndim == 1 else x for x in rows]
    return Arranged([held.array, *inputs], attributes | changed, prefers_nhwc=held.prefers_nhwc)


def _reordered(numbers: np.ndarray) -> np.ndarray:
    """Reorder a number for each axis, or several rows of them, to match a held value."""
    return numbers.reshape(-1, RANK)[:, LAST].reshape(-1) if numbers.size % RANK == 0 else numbers


def _transposed(node: BoundNode, attributes: dict[str, Attribute], scope: EvaluationScope) -> Arranged | None:
    (data,) = node.inputs
    perm = attributes.get("perm")
    if data is None or perm is None:
        return None
    held = scope.held(data)
    if held is not None:
        places = _places(perm)
        return None if places is None else Arranged([held.array], {"perm": places}, held=False)
    # Nothing is moved yet: an operator that needs the model's order gets the transpose.
    if tuple(perm) == PLACES and _is_image(scope[data]):
        return Arranged([scope[data]], {"perm": tuple(range(RANK))}, prefers_nhwc=False)
    return None
