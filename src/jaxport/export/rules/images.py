"""Images that are resized to sizes that are known only when the model runs.

Resizes whose sizes are known are recognised in the graph, by what they compute: see `jaxport.export.passes.resizing`.
"""

from __future__ import annotations

import jax
import numpy as np

from jaxport.export.passes.layout_ops import INTERPOLATED
from jaxport.export.registry import rule
from jaxport.jaxprs import dims


@rule(block="jax.image.resize")
def resize(op, image, *, block, jaxpr):
    before, after = image.shape or (), op.out.shape or ()
    if block.batched or dims.all_static((*before, *after)):
        op.decline("its sizes are known")
    factors = [factor(*sizes) for sizes in zip(before, after, strict=True)]
    if None in factors or image.dtype != np.float32 or len(factors) != 4:
        op.decline("it is no enlargement of float32 images by whole numbers")
    method = block.config["method"]
    method = jax.image.ResizeMethod.from_string(method) if isinstance(method, str) else method
    if method == jax.image.ResizeMethod.NEAREST:
        options = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return op.Resize(image, None, np.array(factors, np.float32), **options)
    enlarged = {axis for axis, times in enumerate(factors) if times != 1}
    if method != jax.image.ResizeMethod.LINEAR or not any(enlarged <= axes for axes in INTERPOLATED):
        op.decline("the runtime does not interpolate so")
    return op.Resize(image, None, np.array(factors, np.float32), mode="linear")


def factor(before: dims.Dim, after: dims.Dim) -> int | None:
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
