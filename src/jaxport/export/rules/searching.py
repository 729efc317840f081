"""Binary searches in few elements: comparisons with all of them, whose number is the result.

The loop of `jnp.searchsorted` is a scan that halves the range in each step. A runtime takes longer for a step than for
comparing some dozens of elements, and a sum of comparisons is what a person would write.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxport.jaxprs import dims
from jaxport.jaxprs.alike import same_value
from jaxport.jaxprs.walk import equations_within

#: The largest number of elements that are all compared. In ONNX Runtime on a CPU a loop takes less from some 100 on.
MOST_ELEMENTS = 64


def searched(op, operands, *, jaxpr, length, num_consts, num_carry):
    """Return the two bounds that the search ends with; None if a scan is no binary search in few elements.

    It is one if it equals the scan that JAX traces for `jnp.searchsorted`.
    """
    if (num_consts, num_carry, len(operands)) != (2, 2, 4):
        return None
    elements, sought, low, high = operands
    shape = elements.logical_shape
    if len(shape or ()) != 1 or not dims.is_static(shape[0]) or not 0 < shape[0] <= MOST_ELEMENTS:
        return None
    starts = ((low.constant, 0), (high.constant, shape[0]))
    if any(start is None or (start != number).any() for start, number in starts):
        return None
    avals = [variable.aval for variable in jaxpr.jaxpr.invars[:num_consts]]
    for side in ("left", "right"):
        program, _ = op.walker.traced(jnp.searchsorted, avals, {"side": side, "method": "scan"})
        for scan in equations_within(program.jaxpr):
            if scan.primitive.name != "scan" or scan.params["length"] != length:
                continue
            if same_value(scan.params["jaxpr"], jaxpr):
                count = op.call(_count, *map(op.expanded, (elements, sought)), side=side, ordered=_is_ordered(elements))
                return [op.call(_before, count), count]
    return None


def _is_ordered(elements):
    """Whether none of the elements can be NaN."""
    array = elements.constant
    return elements.dtype.kind in "iu" or (array is not None and not np.isnan(array).any())


def _count(elements, sought, *, side, ordered):
    """Return the number of elements before what is sought, where NaN comes last; it is no element if they are
    `ordered`.
    """
    elements = elements.reshape(elements.shape + (1,) * sought.ndim)
    if side == "left":
        before = ~(elements >= sought)  # also if NaN is sought
        before = before if ordered else before & (elements == elements)
    else:
        before = ~(elements > sought) if ordered else (elements <= sought) | (sought != sought)
    return jnp.sum(before, axis=0, dtype=np.uint32)


def _before(count):
    """Return the lower bound of the last range: the element before, unless there is none."""
    return jnp.where(count == 0, count, count - 1)
