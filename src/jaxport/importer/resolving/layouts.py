"""Channels-last images: which operators compute on that layout, and how.

ONNX has images as (batch, channels, height, width). XLA's convolutions on CPUs are up to twice as fast on (batch,
height, width, channels), but a transpose before and after each of them would undo the gain. So the operators around
them compute on that layout too, as far as this saves transposes: `choose` marks them, by a minimum cut of the graph.

While a program runs, a value is in the scope in the model's order, with the channels last, or both; what an operator
does not have in its own order is transposed, once for all that need it. An operator is listed here by name according to
how it handles the layout: it works element by element, along axes that can be renamed, or its function is defined for
several layouts (`image_op`). All others only see the model's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol, TypeGuard

import jax
import numpy as np
import onnx_ir as ir

from jaxport.graph.editing import dims_of, is_op
from jaxport.graph.layout import Layout, Region, moves_only_ones
from jaxport.importer.resolving.graph import Attribute, Body, BodyFunction, BoundNode, integers_of
from jaxport.importer.resolving.registry import Operator
from jaxport.importer.values.host import HostValue, RuntimeValue, Tensor, as_array, host
from jaxport.importer.values.image_layout import CHANNELS_LAST, LAST, OIHW, ONNX, PLACES, ImageLayout
from jaxport.importer.values.namespaces import jnp, known
from jaxport.importer.values.recording import Recorded
from jaxport.onnx_facts import ALONG_AXIS, BROADCASTS_SINCE, CONVOLUTIONS, ELEMENTWISE, REDUCTIONS, SOFTMAXES

RANK = 4

EACH = dict.fromkeys(ELEMENTWISE | {"CastLike", "QuickGelu"}, 1) | BROADCASTS_SINCE
"""Elementwise operators whose inputs broadcast, and the version from which on they do."""

ALONG = dict.fromkeys(ALONG_AXIS, 1) | dict.fromkeys(SOFTMAXES, 13)
ALONG |= dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), 10)
"""Operators along one `axis`, which earlier versions flatten to two axes."""

OVER = dict.fromkeys(sorted(REDUCTIONS), 1)
"""Operators over `axes`, an attribute or the second input."""

BY_AXIS = {"Pad": 2, "Resize": 10, "Upsample": 7}
"""Operators with a number, or several rows of them, per axis: in the attributes `pads` and `scales`, or in inputs."""


LATE = 1024
"""How much less a transpose of the last value of a body costs than one of the first: of two places that are equally
good it takes the later one, behind the arithmetic that XLA fuses with what computes its operands."""

TRANSPOSE = 8 * LATE
"""The cost of a transpose of an image."""


@dataclass(slots=True)
class Arranged:
    """The inputs and attributes that replace an operator's own, for a result with the channels last.

    `held` is set if the result is held so. `layout` is the one that the operator is computed in.
    """

    inputs: list[RuntimeValue]
    attributes: Mapping[str, Attribute]
    held: bool = True
    layout: ImageLayout = ONNX


class ValuesInLayouts(Protocol):
    """The values of a graph while it is evaluated: `jaxport.importer.running.scope.EvaluationScope`.

    Attributes:
      last: the images that are held with their channels last.
    """

    last: dict[ir.Value, RuntimeValue]

    def held(self, value: ir.Value) -> RuntimeValue | None:
        """Return the value with its channels last, if it is held so."""
        ...

    def __getitem__(self, value: ir.Value) -> RuntimeValue:
        """Return the value in the model's order."""
        ...


Rule = Callable[[BoundNode, Mapping[str, Attribute], "ValuesInLayouts"], Arranged | None]


# The choice, before a program runs


@dataclass(frozen=True)
class _Images:
    """The images among the inputs and outputs of a node, which all have the same layout."""

    layouts: Mapping[ir.Value, Layout]


def choose(body: Body) -> None:
    """Mark the nodes of a body that compute with the channels last: convolutions, and others if this saves transposes.

    Shapes need not be declared: an operator that turns out to have other operands is computed in the model's order.
    """
    bound = {node.node: node for node in body.nodes}
    convolutions = [node.node for node in body.nodes if _rule(node) and node.node.op_type in CONVOLUTIONS]
    constants = _constants(body) if convolutions else set()

    def layouts(node: ir.Node) -> dict[ir.Value, Layout]:
        images = _images(bound[node]) if node in bound else ()
        return {x: PLACES for x in images if x not in constants and (x.shape is None or x.shape.rank() == RANK)}

    def carry(node: ir.Node, value: ir.Value, _: Layout) -> _Images | None:
        carried = layouts(node)
        return _Images(carried) if value in carried else None

    def cost(value: ir.Value) -> int:
        # An image of one position, or of one channel; of those whose shape is not declared, the ones that are made so.
        if moves_only_ones(dims_of(value), PLACES) or is_op(value.producer(), "Unsqueeze"):
            return 1
        return TRANSPOSE + LATE - LATE * order.get(value, 0) // len(order)

    order = {
        value: number for number, value in enumerate(x for node in body.nodes for x in node.outputs if x is not None)
    }
    seen: set[tuple[ir.Value, Layout]] = set()
    for convolution in convolutions:
        for value in layouts(convolution):
            if (value, PLACES) not in seen:
                region = Region.around(convolution.graph, value, PLACES, carry, seen)
                for node in region.cut(set(convolutions), cost):
                    bound[node].channels_last = True


def keep_order(body: Body) -> None:
    """Let all nodes of a body, and of those inside it, compute in the order of the model's axes."""
    pending, seen = [body], set[Body]()
    while pending:
        inner = pending.pop()
        if inner in seen:
            continue
        seen.add(inner)
        for node in inner.nodes:
            node.channels_last, node.kernel_layout = False, OIHW
            pending += node.bodies()
            pending += [node.target.body] if isinstance(node.target, BodyFunction) else []


def _constants(body: Body) -> set[ir.Value]:
    """Return the values that depend on weights only: to transpose them costs little, compared with images."""
    constants = set(body.initializers)
    for node in body.nodes:
        if constants.issuperset(value for value in node.inputs if value is not None) and not any(node.bodies()):
            constants.update(value for value in node.outputs if value is not None)
    return constants


def _images(node: BoundNode) -> list[ir.Value]:
    """Return the inputs and outputs of a node that have the same layout."""
    rule = _rule(node)
    if rule is None and isinstance(node.target, Operator):  # of which only the shape matters
        values = [x for index, x in enumerate(node.inputs) if node.target.input_mark(index) == "shape only"]
    elif rule in (None, _transposed) or (rule is _lowered and len(node.outputs) > 1):
        return []
    else:
        reduced = rule is _over and not node.attributes.get("keepdims", 1)
        values = [*(node.inputs[index] for index in _image_inputs(node)), *(() if reduced else node.outputs)]
    return [value for value in values if value is not None]


def _image_inputs(node: BoundNode) -> Sequence[int]:
    """Return which inputs of a node are images if its result is one; others are per axis, per channel or scalar."""
    name, everything = node.node.op_type, range(len(node.inputs))
    if _rule(node) is _each:
        return everything
    indices = CONVOLUTIONS[name] if name in CONVOLUTIONS else ALONG_AXIS.get(name, ((0,), None))[0]
    return everything if indices is None else [index for index in indices if index in everything]


# The arrangement, while a program runs


def channels_last(x: Tensor | HostValue | np.ndarray) -> Tensor:
    """Return an image in the model's order, or an operand broadcast to one, with the channels last."""
    if x.ndim == RANK:
        return jnp.transpose(x, LAST)
    return jnp.transpose(x, (1, 2, 0)) if x.ndim == RANK - 1 else jnp.expand_dims(x, -1)


def arranged(node: BoundNode, attributes: Mapping[str, Attribute], scope: ValuesInLayouts) -> Arranged | None:
    """Return how to compute a node with its channels last; None to compute it in the model's order."""
    rule = _rule(node)
    return rule(node, attributes, scope) if rule is not None and (node.channels_last or rule is _transposed) else None


def _rule(node: BoundNode) -> Rule | None:
    return _rule_of(node.target) if isinstance(node.target, Operator) else None


@cache
def _rule_of(operator: Operator) -> Rule | None:
    if operator.lowering is not None:
        return _lowered
    if operator.domain not in ("", "com.microsoft"):
        return None
    tables = ((EACH, _each), (ALONG, _along), (OVER, _over), (BY_AXIS, _by_axis), ({"Transpose": 1}, _transposed))
    return next((rule for names, rule in tables if names.get(operator.name, np.inf) <= operator.since), None)


def _is_image(x: RuntimeValue) -> TypeGuard[Tensor]:
    return isinstance(x, jax.Array | np.ndarray | Recorded) and x.ndim == RANK


def _places(axes: Iterable[int]) -> tuple[int, ...] | None:
    """Return the positions of the model's axes in a held value; None if there are no such axes."""
    axes = tuple(axes)
    return tuple(PLACES[axis] for axis in axes) if all(-RANK <= axis < RANK for axis in axes) else None


def as_image(value: ir.Value | None, scope: ValuesInLayouts) -> RuntimeValue | None:
    """Return an image with its channels last; None if the value is no image."""
    if value is None:
        return None
    held = scope.held(value)
    if held is None and _is_image(image := scope[value]):
        held = scope.last[value] = channels_last(image)  # which other operators can use, too
    return held


def _operands(node: BoundNode, scope: ValuesInLayouts) -> list[RuntimeValue] | None:
    """Return the inputs of a node, images with the channels last; None if one that should be an image is none."""
    images, inputs = _image_inputs(node), []
    for index, value in enumerate(node.inputs):
        x = None if value is None else as_image(value, scope) if index in images else scope[value]
        if x is None and value is not None:
            return None
        inputs.append(x)
    return inputs


def _lowered(node: BoundNode, attributes: Mapping[str, Attribute], scope: ValuesInLayouts) -> Arranged | None:
    """Arrange an operator that is defined for several layouts."""
    inputs = _operands(node, scope)
    layout = replace(CHANNELS_LAST, kernel=node.kernel_layout)
    return None if inputs is None else Arranged(inputs, attributes, layout=layout)


def _each(node: BoundNode, attributes: Mapping[str, Attribute], scope: ValuesInLayouts) -> Arranged | None:
    images = [as_image(value, scope) for value in node.inputs]
    if all(image is None for image in images) or "axis" in attributes:  # before version 7, which specifies broadcasting
        return None
    inputs: list[RuntimeValue] = []
    for value, image in zip(node.inputs, images, strict=True):
        x = image if image is not None or value is None else scope[value]
        if (
            image is None
            and x is not None
            and (array := as_array(x)).ndim
            and not (isinstance(x, HostValue) and x.size == 1)
        ):
            if array.ndim > RANK:
                return None
            x = channels_last(array)
        inputs.append(x)
    return Arranged(inputs, attributes)


def _along(node: BoundNode, attributes: Mapping[str, Attribute], scope: ValuesInLayouts) -> Arranged | None:
    inputs = None if attributes.get("block_size") else _operands(node, scope)
    if inputs is None:
        return None
    target = node.target
    assert isinstance(target, Operator)
    if "axis" not in target.attributes:
        return Arranged(inputs, attributes)
    axis = attributes.get("axis", target.attributes["axis"].default)
    place = _places([axis]) if isinstance(axis, int) else None
    return None if place is None else Arranged(inputs, {**attributes, "axis": place[0]})


def _over(node: BoundNode, attributes: Mapping[str, Attribute], scope: ValuesInLayouts) -> Arranged | None:
    data, *more = node.inputs
    image = as_image(data, scope)
    if image is None:
        return None
    axes_input = known(scope[more[0]]) if more and more[0] is not None else None
    axes = integers_of(attributes.get("axes")) if axes_input is None else axes_input.tolist()
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
        return Arranged([image], {**attributes, "axes": places})
    return Arranged([image, host(places, np.dtype(np.int64))], attributes)


def _by_axis(node: BoundNode, attributes: Mapping[str, Attribute], scope: ValuesInLayouts) -> Arranged | None:
    data, *others = node.inputs
    image = as_image(data, scope)
    operands = [None if value is None else scope[value] for value in others]
    if image is None or "axes" in attributes:
        return None
    if node.node.op_type == "Pad" and len(operands) > 2 and operands[2] is not None:
        axes = known(operands[2])
        places = None if axes is None else _places(axes.tolist())
        if axes is None or places is None:
            return None
        return Arranged([image, *operands[:2], host(places, axes.dtype)], attributes)
    rows = [x if x is None or as_array(x).ndim != 1 else known(x) for x in operands]
    if any(x is not None and row is None for x, row in zip(operands, rows, strict=True)):
        return None
    changed = {
        name: _reordered(np.array(attributes[name])).tolist() for name in ("pads", "scales") if name in attributes
    }
    inputs = [HostValue(_reordered(x.data), x.dtype) if isinstance(x, HostValue) and x.ndim == 1 else x for x in rows]
    return Arranged([image, *inputs], {**attributes, **changed})


def _reordered(numbers: np.ndarray) -> np.ndarray:
    """Reorder a number for each axis, or several rows of them, to match a held value."""
    return numbers.reshape(-1, RANK)[:, LAST].reshape(-1) if numbers.size % RANK == 0 else numbers


def _transposed(node: BoundNode, attributes: Mapping[str, Attribute], scope: ValuesInLayouts) -> Arranged | None:
    (data,) = node.inputs
    perm = integers_of(attributes.get("perm"))
    if data is None or not perm:
        return None
    held = scope.held(data)
    if held is not None:
        places = _places(perm)
        return None if places is None else Arranged([held], {"perm": places}, held=False)
    # Nothing is moved yet: an operator that needs the model's order gets the transpose.
    if perm == PLACES and _is_image(scope[data]):
        return Arranged([scope[data]], {"perm": tuple(range(RANK))})
    return None
