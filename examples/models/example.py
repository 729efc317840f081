"""What an example is, and the helpers by which the model files make one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import numpy as np

Size = Literal["small", "real"]
Framework = Literal["nnx", "linen", "equinox", "jax"]
Sample = Callable[[np.random.Generator, Mapping[str, int]], tuple[Any, ...]]

TEXT_SIZES = ({"B": 1, "T": 5}, {"B": 3, "T": 8})
FRAMEWORKS: tuple[Framework, ...] = ("nnx", "linen", "equinox", "jax")


@dataclass(frozen=True, kw_only=True)
class Example:
    """A model that is ready to be exported: `jaxport.to_onnx(example.fn, example.inputs, **example.options)`.

    Attributes:
      name: the model's row in the table, `"resnet50"`.
      framework: its column, `"nnx"`.
      fn: the callable to export, called with positional arrays.
      inputs: one spec for each argument of `fn`: a shape for float32, or a pytree of `jax.ShapeDtypeStruct`.
        A dimension is an int or a name.
      sample: draws concrete arguments for given sizes of the named dimensions.
      sizes: at least two assignments of sizes to the named dimensions.
      options: further keyword arguments of `to_onnx`.
      weights: the pytree of trainable parameters.
    """

    name: str
    framework: Framework
    fn: Callable[..., Any]
    inputs: tuple[Any, ...]
    sample: Sample
    sizes: tuple[dict[str, int], ...]
    options: dict[str, Any] = field(default_factory=dict)
    weights: Any

    @property
    def parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.weights))


def spec(shape: tuple[int | str, ...], dtype: str = "float32") -> jax.ShapeDtypeStruct:
    """A spec of other than the default dtype, or one inside a pytree.

    >>> spec(("B", "T"), "int32")
    ShapeDtypeStruct(shape=('B', 'T'), dtype=int32)
    """
    return jax.ShapeDtypeStruct(shape, np.dtype(dtype))


def as_specs(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of an example with each plain shape written out as a float32 spec.

    >>> as_specs((("B", 3),))
    (ShapeDtypeStruct(shape=('B', 3), dtype=float32),)
    """
    return tuple(spec(entry) if _is_shape(entry) else entry for entry in inputs)


def _is_shape(entry: Any) -> bool:
    return isinstance(entry, tuple) and all(isinstance(dim, int | str) for dim in entry)


def sized(shape: tuple[int | str, ...], dims: Mapping[str, int]) -> tuple[int, ...]:
    """The shape with the names replaced by their sizes.

    >>> sized(("B", 28, 28), {"B": 3})
    (3, 28, 28)
    """
    return tuple(dims[dim] if isinstance(dim, str) else dim for dim in shape)


def normals(*inputs: Any) -> Sample:
    """Draws arguments for these inputs, all of floating type, from the standard normal distribution."""
    specs = as_specs(inputs)

    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        return jax.tree.map(lambda leaf: normal(rng, sized(leaf.shape, dims)), specs)

    return sample


def numbers(*inputs: Any, sizes: tuple[dict[str, int], ...] = ({"B": 1}, {"B": 3})) -> dict[str, Any]:
    """Inputs, samples and sizes of an example whose inputs are standard normal numbers."""
    return {"inputs": inputs, "sample": normals(*inputs), "sizes": sizes}


def images(config: Any, *, train: bool = False) -> dict[str, Any]:
    """The same for square images, channels last. To train takes several: the statistics of a batch of one say
    little.
    """
    sizes = ({"B": 2}, {"B": 5}) if train else ({"B": 1}, {"B": 3})
    return numbers(("B", config.image, config.image, 3), sizes=sizes)


def images_channels_first(config: Any) -> dict[str, Any]:
    """The same with channels first."""
    return numbers(("B", 3, config.image, config.image))


def text(config: Any) -> dict[str, Any]:
    """The same for ids of tokens, (batch, length)."""
    return {"inputs": (spec(("B", "T"), "int32"),), "sample": token_sample(config.vocabulary), "sizes": TEXT_SIZES}


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal float32 values."""
    return rng.standard_normal(shape, np.float32)


def token_ids(rng: np.random.Generator, shape: tuple[int, ...], vocabulary: int) -> np.ndarray:
    """Valid int32 ids, all over the vocabulary."""
    return rng.integers(0, vocabulary, shape, np.int32)


def lengths_up_to(rng: np.random.Generator, batch: int, length: int) -> np.ndarray:
    """Int32 sequence lengths from 1 to `length`: the first is the full length, the last at most half of it.

    A batch of one is shorter than the full length, too, where it can be.

    >>> lengths_up_to(np.random.default_rng(0), 3, 8).tolist()
    [8, 6, 4]
    """
    lengths = rng.integers(1, length + 1, batch, np.int32)
    lengths[0] = length
    lengths[-1] = min(lengths[-1], math.ceil(length / 2))
    return lengths


def padding_mask(rng: np.random.Generator, batch: int, length: int) -> np.ndarray:
    """A bool mask of shape (batch, length): true on a sequence's tokens, false on the padding that follows them."""
    return np.arange(length) < lengths_up_to(rng, batch, length)[:, None]


def token_sample(vocabulary: int) -> Sample:
    """Draws one argument, ids of shape (B, T)."""

    def sample(rng: np.random.Generator, dims: Mapping[str, int]) -> tuple[Any, ...]:
        return (token_ids(rng, (dims["B"], dims["T"]), vocabulary),)

    return sample
