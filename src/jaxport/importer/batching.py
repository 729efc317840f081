"""Call a model whose file fixes the batch size with another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.importer.values.host import HostValue, RuntimeValue, Tensor, as_array
from jaxport.importer.values.namespaces import jnp, vmap
from jaxport.jaxprs import Dim


class Batches:
    """Calls with any number of rows to a model that takes a fixed number of them.

    The model is mapped over batches of its own size (`jax.vmap`), so the result is that of separate calls, whatever
    sizes its nodes contain.

    Args:
      inputs: the inputs of the model.
      outputs: its outputs.
      axes: the axis of the rows, by the name of an input or output, or None for an input that all rows share. By
        default it is the first axis of the inputs that have as many rows as the first one.
      static: inputs that decide shapes; all rows share them.

    Raises:
      InvalidArgument: a name or axis does not exist in the model, or inputs have different numbers of rows.
    """

    def __init__(
        self,
        inputs: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        axes: Mapping[str, int | None],
        static: set[ir.Value],
    ):
        names = {value.name: value for value in (*inputs, *outputs)}
        for name, axis in axes.items():
            if name not in names:
                raise _refused(f"`{name}` is not an input or output of the model", f"name some of {_listed(names)}")
            shape = names[name].shape
            if axis is not None and shape is not None and not -shape.rank() <= axis < shape.rank():
                raise _refused(f"`{name}` has no axis {axis}", f"its shape is {shape}")
        self.outputs = {value.name or "": axes.get(value.name or "", 0) or 0 for value in outputs}
        self.axes: dict[str, int] = {}
        self.size = 0
        for value in inputs:
            name, shape = value.name or "", value.shape
            axis = axes.get(name, None if value in static else 0)
            if axis is None or shape is None or not shape.rank():
                continue
            declared = shape[axis]
            size = declared if isinstance(declared, int) else 1  # an open size: one row at a time
            if not self.size or size == self.size:
                self.size, self.axes[name] = size, axis % shape.rank()
            elif name in axes:
                raise _refused(
                    f"`{name}` has {size} rows, `{next(iter(self.axes))}` has {self.size}", "give the axes of the batch"
                )
        if not self.axes:
            raise _refused("no input of the model has rows", "leave it out, or give the axes of the batch by name")

    def __contains__(self, place: tuple[str, int]) -> bool:
        """Whether an axis of an input counts rows."""
        name, axis = place
        return self.axes.get(name) == axis

    def run(
        self,
        evaluate: Callable[[Mapping[str, RuntimeValue]], tuple[RuntimeValue, ...]],
        inputs: Mapping[str, RuntimeValue],
    ) -> tuple[RuntimeValue, ...]:
        """Return the outputs for all rows.

        Raises:
          InvalidArgument: inputs have different numbers of rows, or not a multiple of the model's own; or an output has
            no rows.
        """
        arrays = {name: as_array(inputs[name]) for name in self.axes}
        rows = {name: array.shape[self.axes[name]] for name, array in arrays.items()}
        count = next(iter(rows.values()))
        if any(other != count for other in rows.values()) or count % self.size:
            counts = ", ".join(f"`{name}` {number}" for name, number in rows.items())
            raise InvalidArgument(
                f"the inputs have these numbers of rows: {counts}",
                where="the call of the program",
                instead=f"give all of them the same number of rows, a multiple of {self.size}",
            )
        if count == self.size:
            return evaluate(inputs)
        names = list(self.axes)
        split = [_in_batches(arrays[name], self.axes[name], count // self.size) for name in names]

        def one(*batch: Tensor) -> tuple[Tensor, ...]:
            return tuple(map(jnp.asarray, evaluate({**inputs, **dict(zip(names, batch, strict=True))})))

        axes = tuple(self.outputs.values())
        results = vmap(one, in_axes=tuple(self.axes.values()), out_axes=axes)(*split)
        return tuple(
            self._merged(name, result, axis) for (name, axis), result in zip(self.outputs.items(), results, strict=True)
        )

    def _merged(self, name: str, result: Tensor, axis: int) -> Tensor:
        shape = result.shape
        if len(shape) < axis + 2 or shape[axis + 1] != self.size:
            raise InvalidArgument(
                f"the output `{name}` does not have one row for each row of the inputs",
                where="`from_onnx(batch=…)`",
                why=f"of a batch its shape is {[*shape[:axis], *shape[axis + 1 :]]}",
                instead="name the axis of its rows, or call the program for each batch (`jax.vmap`)",
            )
        return jnp.reshape(result, (*shape[:axis], shape[axis] * self.size, *shape[axis + 2 :]))


def _in_batches(x: Tensor | HostValue | np.ndarray, axis: int, count: Dim) -> Tensor:
    """Split the axis of the rows of `x` into one of batches and one of rows."""
    return jnp.reshape(x, (*x.shape[:axis], count, x.shape[axis] // count, *x.shape[axis + 1 :]))


def _listed(names: Iterable[str | None]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _refused(problem: str, instead: str) -> InvalidArgument:
    return InvalidArgument(problem, where="`from_onnx(batch=…)`", instead=instead)
