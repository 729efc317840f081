"""Rules of positions and sizes: what counts along axes."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from jaxport.graph.facts.arithmetic import present
from jaxport.graph.facts.facts import EXACT, Facts, SeenNode
from jaxport.graph.facts.forms import ALWAYS, NEVER, ZERO, Band, Form
from jaxport.graph.facts.truth import band_over
from jaxport.sizes.sums import size_sum


def counted(operation: SeenNode) -> Facts:
    """Return what is known of a Range."""
    start, _, step = (x.facts.form for x in present(operation))
    if start is None or step is None or str(operation.dtype.numpy()) not in EXACT:
        return Facts()
    return Facts(form=Form(start.constant, (step.constant,)))


def shape(operation: SeenNode) -> Facts:
    """Return what is known of the sizes of a value."""
    (x,) = present(operation)
    if x.dims is None:
        return Facts()
    start, end = operation.attributes.get("start"), operation.attributes.get("end")
    sizes = [size_sum(dim) for dim in x.dims][slice(start, end)]  # type: ignore[misc]
    elements = np.empty(len(sizes), object)
    elements[:] = sizes
    return Facts(elements=elements, form=Form(sizes[0], (size_sum(0),)) if len(sizes) == 1 else None)


def filled(operation: SeenNode) -> Facts:
    """Return what is known of a value whose elements are all one number."""
    tensor = operation.attributes.get("value")
    number = tensor.numpy().item() if isinstance(tensor, ir.TensorProtocol) else 0.0
    return Facts(choice=(ALWAYS, number, number))


def size(operation: SeenNode) -> Facts:
    """Return what is known of the number of elements of a value."""
    (x,) = present(operation)
    return Facts() if x.dims is None else Facts(form=Form(math.prod(map(size_sum, x.dims), start=size_sum(1)), ()))


def running_sum(operation: SeenNode) -> Facts:
    """Return what is known of the running sum of equal numbers: they count."""
    x = present(operation)[0]
    axis, form, rank = (
        (operation.operands[1].numbers if operation.operands[1] else None),
        x.facts.form,
        len(operation.dims),
    )
    if not axis or form is None or not form.is_uniform or operation.integer("reverse", 0):
        return Facts()
    slopes = [form.constant if place == axis[0] % rank else size_sum(0) for place in range(rank)]
    first = size_sum(0) if operation.integer("exclusive", 0) else form.constant
    return Facts(form=Form(first, tuple(slopes)))


def position(operation: SeenNode) -> Facts:
    """Return what is known of a place along an axis."""
    x = present(operation)[0]
    if x.dims is None:
        return Facts()
    axis = operation.integer("axis", 0) % len(x.dims)
    return Facts(low=size_sum(0), high=size_sum(x.dims[axis]) - 1)


def triangle(operation: SeenNode) -> Facts:
    """Return what is known of a value of which one triangle is kept."""
    x = present(operation)[0]
    shift = operation.operand(1)
    offset = size_sum(0) if shift is None else None if shift.facts.form is None else shift.facts.form.constant
    if offset is None:
        return Facts()
    rank, upper = len(operation.dims), operation.integer("upper", 1)
    slopes = [ZERO] * (rank - 2) + [size_sum(1), size_sum(-1)]  # k + row - column
    below = Form(offset, tuple(slopes))
    band = Band.where([below * -1 if upper else below], operation.dims)
    f = x.facts
    if operation.dtype is ir.DataType.BOOL:
        inside = None if f.band is None else band_over(f.band, rank)
        if inside is None or inside.is_never or band.is_never:
            return Facts(band=None if inside is None and not band.is_never else NEVER)
        return Facts(band=Band.where([*band.conditions, *inside.conditions], operation.dims))
    number = f.number
    zero = type(number)(0) if number is not None else 0
    choice = (band, number, zero) if number is not None else None
    return Facts(choice=choice, never_nan=f.never_nan,
                 never_infinite=f.never_infinite, never_minus_infinite=f.never_minus_infinite,
                 never_negative_zero=f.never_negative_zero, is_integral=f.is_integral)  # fmt: skip
