"""The inputs of a model that declares them itself, for commands without `--input`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from jaxport.errors import InvalidArgument
from jaxport.export.signature.specs import BATCH

if TYPE_CHECKING:
    from jaxport.jaxprs import PythonFunction

__all__ = ["declared_inputs", "inputs_of_file"]

_ATTRIBUTES = ("inputs", "input_specs", "example_inputs")
"""Where models declare their inputs: Keras's tensors, or `jax.ShapeDtypeStruct`s and arrays of one's own."""


def declared_inputs(target: PythonFunction) -> list[Any] | None:
    """Return the inputs that a model declares, as `jaxport.to_onnx` takes them; None if it declares none.

    >>> def scaled(x):
    ...     return 2 * x
    >>> scaled.inputs = [jax.ShapeDtypeStruct((3,), "float32")]
    >>> declared_inputs(scaled)
    [ShapeDtypeStruct(shape=(3,), dtype=float32)]
    """
    for name in _ATTRIBUTES:
        declared = getattr(target, name, None)
        if declared is None or callable(declared):
            continue
        arguments = list(declared) if isinstance(declared, list | tuple) else [declared]
        leaves = jax.tree.leaves(arguments)
        if leaves and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
            return jax.tree.map(_spec, arguments)
    return None


def _spec(leaf: Any) -> object:
    """Return a specification; sizes that are open (None) are the batch in front, and names of their own elsewhere."""
    name = "".join(character if character.isalnum() else "_" for character in getattr(leaf, "name", "") or "dim")
    sizes = tuple(
        size if size is not None else (BATCH if axis == 0 else f"{name}_{axis}") for axis, size in enumerate(leaf.shape)
    )
    return jax.ShapeDtypeStruct(sizes, leaf.dtype)


def inputs_of_file(path: Path) -> list[Any]:
    """Return the inputs that an ONNX file declares, in its order.

    Raises:
      InvalidArgument: it does not declare the shapes.
    """
    from jaxport.importer.loading.load import as_written

    model = as_written(path)
    specs = []
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        if value.shape is None or value.dtype is None:
            raise InvalidArgument(
                f"`{path}` does not declare the shape of its input `{value.name}`", instead="give the inputs: `--input`"
            )
        sizes = tuple(
            size if isinstance(size, int) else size.value or f"{value.name}_{axis}"
            for axis, size in enumerate(value.shape)
        )
        specs.append(jax.ShapeDtypeStruct(sizes, value.dtype.numpy()))
    return specs
