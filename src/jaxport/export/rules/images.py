"""Images that are enlarged to sizes that are known only when the model runs.

Resizes whose sizes are known are recognised in the graph, by what they compute: see `jaxport.export.passes.resizing`.
"""

from __future__ import annotations

import itertools

import jax
import numpy as np

from jaxport.export.passes.layout_ops import INTERPOLATED
from jaxport.jaxprs import Dim, dims
from jaxport.jaxprs.alike import same_value
from jaxport.jaxprs.releases import RESIZE
from jaxport.jaxprs.walk import equations_within

_NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
METHODS = {"nearest": _NEAREST, "linear": {"mode": "linear"}}
"""The attributes of the operator, by the method of `jax.image.resize`."""


def enlarged(op, operands, jaxpr):
    """Return the image that the compiled part of `jax.image.resize` computes by one operator; None if it cannot.

    The sizes, the method and the antialiasing are not among the parameters of the call: its program is compared, so
    that another function of this name is not taken for it.
    """
    if (len(jaxpr.in_avals), len(jaxpr.out_avals)) != (1, 1):  # a derivative
        return None
    (image,), (before,), (after,) = operands, jaxpr.in_avals, jaxpr.out_avals
    if dims.all_static((*before.shape, *after.shape)) or (before.dtype, after.dtype) != (np.float32, np.float32):
        return None
    if (len(before.shape), len(after.shape)) != (4, 4):
        return None
    factors = [factor(*sizes) for sizes in zip(before.shape, after.shape, strict=True)]
    axes = {axis for axis, times in enumerate(factors) if times != 1}
    if None in factors or not axes:
        return None
    for method, antialias in itertools.product(METHODS, (True, False)):
        parameters = {"shape": after.shape, "method": method, "antialias": antialias}
        own, _ = op.walker.traced(jax.image.resize, [before], parameters)
        calls = (equation.params for equation in equations_within(own.jaxpr) if equation.params.get("name") == RESIZE)
        if any(same_value(params["jaxpr"], jaxpr) for params in calls):
            if method == "linear" and not any(axes <= image_axes for image_axes in INTERPOLATED):
                return None
            return op.Resize(op.expanded(image), None, np.array(factors, np.float32), **METHODS[method])
    return None


def factor(before: Dim, after: Dim) -> int | None:
    """Return the whole number that one size is multiplied with to give another; None if there is none.

    >>> import jax.export
    >>> (H,) = jax.export.symbolic_shape("H")
    >>> factor(H, 2 * H), factor(3, 3), factor(H, 2 * H + 1), factor(H, 7)
    (2, 1, None, None)
    """
    if dims.is_static(before) and before == 0:
        return None
    whole = after // before
    return int(whole) if dims.is_static(whole) and dims.same(whole * before, after) else None
