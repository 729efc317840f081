"""The inputs that a user gives to `verify`: arrays, or shapes, of which arrays are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Dim, Parameters, dims


def is_shape(value: object) -> bool:
    """Whether a value says the shape of an input, and not the input.

    >>> is_shape(("n", 3)), is_shape((None, 3)), is_shape((2, 3)), is_shape(jax.ShapeDtypeStruct((2,), "float32"))
    (True, True, False, True)
    """
    if isinstance(value, jax.ShapeDtypeStruct):
        return True
    return (
        isinstance(value, tuple)
        and all(size is None or isinstance(size, int | str) for size in value)
        and any(size is None or isinstance(size, str) for size in value)
    )


def arrays_and_sizes(inputs: Parameters, declared: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the arrays among the inputs, and the sizes that the shapes among them give to the open sizes of the model.

    Args:
      inputs: an array or a shape for each input. A size of a shape is a number, or open: a name, or None.
      declared: what has the declared shape and dtype of each input.

    Raises:
      InvalidArgument: a shape has another rank, size or dtype than the input, or its names say that open sizes are
        equal.

    >>> (n,) = jax.export.symbolic_shape("n")
    >>> struct = lambda *shape: jax.ShapeDtypeStruct(shape, "float32")
    >>> arrays_and_sizes({"x": ("batch", 3), "y": (None, 4)}, {"x": struct(n, 3), "y": struct(n, n)})
    ({}, {'n': 4})
    """
    arrays: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    names: dict[str, Dim] = {}
    for name, value in inputs.items():
        if not is_shape(value):
            arrays[name] = value
            continue
        given, shape = tuple(getattr(value, "shape", value) or ()), tuple(declared[name].shape)
        fits = [len(given) == len(shape), getattr(value, "dtype", declared[name].dtype) == declared[name].dtype]
        for size, dim in zip(given, shape, strict=False):
            if dims.is_static(dim):
                fits.append(size == dim)
            elif isinstance(size, int):
                fits.append(str(dim).isidentifier() and sizes.setdefault(str(dim), size) == size)
            elif size is not None:
                fits.append(names.setdefault(str(size), dim) == dim and (str(size).isidentifier() or size == str(dim)))
        if not all(fits):
            text = lambda shape: f"({', '.join('None' if size is None else str(size) for size in shape)})"
            raise InvalidArgument(
                f"the shape {text(given)} does not fit the input `{name}`",
                where="`verify(inputs=...)`",
                why=f"the model declares {text(shape)} of {declared[name].dtype}",
                instead="name the sizes that are open, and give the others as declared; or pass an array",
            )
    return arrays, sizes
