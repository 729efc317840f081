"""Shared by convolutions and pools: windows that slide over the last axes of a value."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import ArrayLike

from jaxport.export.emit.value import Value
from jaxport.jaxprs import Dim, dims


class Window(NamedTuple):
    """A window that slides along one axis.

    Attributes:
      size: the number of elements in the window.
      stride: the step from one place of the window to the next.
      pads: the padding before and after the elements of the axis; negative to crop.
      dilation: the step between the elements of the window.
      base_dilation: the step between the elements of the axis, with padding in the gaps.
    """

    size: Dim
    stride: int = 1
    pads: tuple[Dim, Dim] = (0, 0)
    dilation: int = 1
    base_dilation: int = 1

    @property
    def reach(self) -> Dim:
        """The distance from the first to the last element of the window."""
        return (self.size - 1) * self.dilation

    @property
    def padless(self) -> Window:
        """The window on data that has its padding and gaps already."""
        return self._replace(pads=(0, 0), base_dilation=1)

    @property
    def pads_nothing(self) -> bool:
        """Whether nothing is added before, after or between the elements of the axis."""
        return dims.same(self.pads[0], 0) and dims.same(self.pads[1], 0) and self.base_dilation == 1

    @property
    def slides(self) -> bool:
        """Whether the window does anything other than returning each element."""
        return not (self.pads_nothing and self.stride == 1 and dims.same(self.size, 1))


def windows(sizes, strides, padding, dilations, base_dilations) -> list[Window]:
    """Return one window per axis, from the parameters of a primitive."""
    fields = zip(sizes, strides, map(tuple, padding), dilations, base_dilations, strict=True)
    return [Window(*entry) for entry in fields]


def attributes(window) -> dict[str, list[int] | None]:
    """Return the attributes that Conv and the pools share; None for defaults."""
    all_attributes = {
        "strides": [w.stride for w in window],
        "dilations": [w.dilation for w in window],
        "pads": [int(w.pads[0]) for w in window] + [int(w.pads[1]) for w in window],
    }
    return {name: None if set(values) == {int(name != "pads")} else values for name, values in all_attributes.items()}


def fitted(op, x, window, value):
    """Return `x` and the attributes of Conv or a pool; other padding is applied to `x` beforehand.

    Args:
      op: the emitter.
      x: a value whose last axes the window slides over.
      window: a `Window` per axis.
      value: the padding value, a number or a scalar value.
    """
    auto_pad = same_padding(x.shape[-len(window) :], window)
    if auto_pad:
        return x, {**attributes([w.padless for w in window]), "auto_pad": auto_pad}
    said = [w.base_dilation == 1 and all(dims.is_static(pad) and pad >= 0 for pad in w.pads) for w in window]
    x = padded(op, x, [w.padless if kept else w for w, kept in zip(window, said, strict=True)], value)
    return x, attributes([w if kept else w.padless for w, kept in zip(window, said, strict=True)])


def same_padding(sizes, window) -> str | None:
    """Return the `auto_pad` equivalent to symbolic padding, or None if that is not SAME."""
    symbolic = not all(dims.all_static(w.pads) for w in window)
    if not symbolic or any(w.dilation != 1 or w.base_dilation != 1 for w in window):
        return None
    for name, auto_pad in (("SAME", "SAME_UPPER"), ("SAME_LOWER", "SAME_LOWER")):
        pads = lax.padtype_to_pads(sizes, [w.size for w in window], [w.stride for w in window], name)
        if all(all(map(dims.same, wanted, w.pads)) for wanted, w in zip(pads, window, strict=True)):
            return auto_pad
    return None


def padded(op, x, window, value: ArrayLike):
    """Return `x` with the padding and the gaps that a window over its last axes needs."""
    config = [(0, 0, 0)] * (x.rank - len(window)) + [(*w.pads, w.base_dilation - 1) for w in window]
    if all(w.pads_nothing for w in window):
        return x
    value = value if isinstance(value, Value) else op.const(value, x.dtype)
    return op.call(lax.pad, x, value, padding_config=tuple(config))


def gathered(op, x, window, counts):
    """Return the elements of a window over the last axes at each place, in data that is padded already.

    `x` of shape `(..., H, W)` gives `(..., places in H, elements of H, places in W, elements of W)`.
    """
    lead = x.rank - len(window)
    for axis in reversed(range(len(window))):
        x = op.Gather(x, seen(op, window[axis], counts[axis]), axis=lead + axis)
    return x


def seen(op, window, count):
    """Return the indices of a window at each of `count` places: `(count, size)`."""
    if dims.all_static((window.size, count)):
        return op.const(indices(window=window, count=count, namespace=np), np.int64)
    return op.call(indices, window=window, count=count)


def indices(*, window, count, namespace=jnp):
    """Return `place * stride + element * dilation` of each place and element."""
    return namespace.arange(count)[:, None] * window.stride + namespace.arange(window.size) * window.dilation
