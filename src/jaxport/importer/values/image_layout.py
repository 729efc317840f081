"""The orders of axes that images and kernels of convolutions may have while a program runs.

ONNX has images as (batch, channels, *spatial) and kernels as (out, in, *spatial). An operator on images is defined
once, as a function whose first parameter is an `ImageLayout`. `jaxport.importer.resolving.layouts` decides which images
have another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from jaxport.importer.names import given_name
from jaxport.importer.values.host import HostValue, Tensor
from jaxport.importer.values.namespaces import jnp
from jaxport.jaxprs import Dim

Entry = TypeVar("Entry")

OIHW, HWIO = "OIHW", "HWIO"


def order(old: str, new: str) -> tuple[int, ...]:
    """Return the old place of each of the new axes, as a transpose takes it.

    >>> order(OIHW, HWIO)
    (2, 3, 1, 0)
    """
    return tuple(map(old.index, new))


LAST, PLACES = order("NCHW", "NHWC"), order("NHWC", "NCHW")
"""Which of ONNX's axes each axis of an image with its channels last is, and the place of each of ONNX's axes there."""


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The order of the axes of images, and of the kernels that they are convolved with.

    Attributes:
      channels_last: whether images are (batch, *spatial, channels) instead of (batch, channels, *spatial).
      kernel: the order of the axes of kernels of two-dimensional convolutions.
    """

    channels_last: bool = False
    kernel: str = OIHW

    @property
    def images(self) -> str:
        """The axes of two-dimensional images by their letters, as `lax` takes them."""
        return "NHWC" if self.channels_last else "NCHW"

    def channels(self, x: Tensor) -> int:
        """Return the axis of the channels of `x`."""
        return x.ndim - 1 if self.channels_last else 1

    def spatial(self, x: Tensor) -> tuple[int, ...]:
        """Return the spatial axes of `x`."""
        return tuple(axis for axis in range(1, x.ndim) if axis != self.channels(x))

    def sizes(self, x: Tensor) -> tuple[Dim, ...]:
        """Return the sizes of the spatial axes of `x`."""
        return tuple(x.shape[axis] for axis in self.spatial(x))

    def entries(self, spatial: Iterable[Entry], other: Entry) -> tuple[Entry, ...]:
        """Return one entry for each axis of an image: those of the spatial axes, and `other` for batch and channels.

        >>> CHANNELS_LAST.entries([3, 5], 1), ONNX.entries([3, 5], 1)
        ((1, 3, 5, 1), (1, 1, 3, 5))
        """
        return (other, *spatial, other) if self.channels_last else (other, other, *spatial)

    def per_channel(self, parameter: Tensor, x: Tensor) -> Tensor:
        """Return a parameter of shape (channels,) in a shape that broadcasts against `x`."""
        if x.ndim <= 2 or self.channels_last:
            return parameter
        return jnp.reshape(parameter, (-1, *[1] * (x.ndim - 2)))

    def with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return `x` plus a bias of shape (channels,), if there is one: exporters write zeros, under no name, for
        none.
        """
        if bias is None or (isinstance(bias, HostValue) and not given_name(bias.name) and not bias.data.any()):
            return x
        return x + self.per_channel(bias, x)


ONNX = ImageLayout()
CHANNELS_LAST = ImageLayout(channels_last=True)
