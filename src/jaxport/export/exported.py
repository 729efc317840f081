"""What `to_onnx` returns: the model, callable like the JAX function that it came from."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.export import specs
from jaxport.export.functions import inlined
from jaxport.export.saving import save, to_proto

if TYPE_CHECKING:
    import onnx
    from jaxport.export.explain import Explanation

    from jaxport.export.passes import PassReport
    from jaxport.export.walker import Record
    from jaxport.verify import Report


@dataclass
class Port:
    """One input or output of the model.

    Attributes:
      name: its name in the model.
      shape: its shape in JAX, whose dims may be symbolic.
      dtype: its NumPy dtype.
      nchw: whether it is NHWC in JAX and NCHW in the model.
      weight: whether it is a parameter that has a default.
    """

    name: str
    shape: tuple[Any, ...]
    dtype: np.dtype
    nchw: bool = False
    weight: bool = False


@dataclass(eq=False)
class Exported:
    """An exported model.

    >>> import jax.numpy as jnp, jaxport
    >>> exported = jaxport.to_onnx(jnp.tanh, [("B", 3)])
    >>> exported.input_names, exported.output_names, exported.outputs[0].shape
    (['x'], ['output'], (B, 3))

    Attributes:
      model: the `onnx_ir.Model`.
      fn: the JAX callable that it came from.
      inputs, outputs: the ports of the model, in order.
      in_tree, out_tree: the pytrees of the function's arguments and of its result.
      defaults: the values of the weights that are inputs of the graph.
      pass_reports: what each graph pass did.
    """

    model: ir.Model
    fn: Callable[..., Any]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    in_tree: Any
    out_tree: Any
    defaults: Mapping[str, np.ndarray]
    records: tuple[Record, ...] = field(repr=False, default=())
    pass_reports: tuple[PassReport, ...] = ()
    state: str = "refuse"
    double_precision: bool = False

    @property
    def proto(self) -> onnx.ModelProto:
        """The model as a protobuf message; above 2 GB use `save`, which writes the weights beside it."""
        return to_proto(self.model)

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs that have no default, in order."""
        return [port.name for port in self.inputs if not port.weight]

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs, in order."""
        return [port.name for port in self.outputs]

    def save(self, path: str | os.PathLike[str], external_data: bool | None = None) -> None:
        """Write the model to a file, all or nothing.

        Args:
          path: the file.
          external_data: whether the weights go to a file beside it, `<path>.data`; by default only above 2 GB.

        Raises:
          SaveError: the path cannot be written, or the disk is full; nothing is left half-written.
        """
        save(self.model, path, external_data)

    def run(self, inputs: Mapping[str, Any]) -> list[np.ndarray]:
        """Run the model in ONNX Runtime: names and layout of the model in, a list of arrays out.

        Raises:
          InvalidArgument: a name is unknown or missing, or a shape or dtype does not fit.
        """
        unknown = sorted(set(inputs) - {port.name for port in self.inputs})
        missing = [name for name in self.input_names if name not in inputs]
        if unknown or missing:
            wrong = f"`{unknown[0]}` is no input of the model" if unknown else f"the input `{missing[0]}` is missing"
            raise InvalidArgument(wrong, where="`run`", instead=f"the inputs are {', '.join(self.input_names)}")
        return self._session.run({**self.defaults, **inputs})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with the signature, the layout and the pytrees of the JAX function.

        Returns NumPy arrays in the pytree that the function returns; where `state="outputs"`, a pair of that and a
        dict of the new state by path.
        """
        arrays = self.flatten(args, kwargs)
        results = self.run({port.name: _to_border(arrays[port.name], port) for port in self.inputs if not port.weight})
        return self.unflatten([_from_border(r, p) for r, p in zip(results, self.outputs, strict=True)])

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The arguments of the JAX function as arrays by input name, in JAX's layout, checked against the ports."""
        leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
        if tree != self.in_tree:
            raise InvalidArgument(
                "the arguments have another structure than the function was exported with",
                where=f"got {tree}",
                why=f"exported with {self.in_tree}",
                instead="pass the same positional and keyword arguments, static ones left out",
            )
        ports = [port for port in self.inputs if not port.weight]
        arrays = {port.name: _array(leaf, port) for port, leaf in zip(ports, leaves, strict=True)}
        specs.sizes_of({port.name: port.shape for port in ports}, arrays)
        return arrays

    def unflatten(self, results: Sequence[np.ndarray]) -> Any:
        """Results in JAX's layout as the pytree that the function returns."""
        count = self.out_tree.num_leaves
        value = jax.tree.unflatten(self.out_tree, results[:count])
        if self.state != "outputs":
            return value
        return value, dict(zip(self.output_names[count:], results[count:], strict=True))

    def verify(
        self,
        inputs: Sequence[Any] | None = None,
        *,
        check: bool = True,
        sizes: Sequence[Mapping[str, int]] | None = None,
        **options: Any,
    ) -> Report:
        """Run the JAX function and the model on the same inputs and compare every output: see `jaxport.verify`."""
        from jaxport.verify import verify

        return verify(self, inputs, check=check, sizes=sizes, **options)

    def inlined(self) -> Exported:
        """The same model without ONNX functions: their calls are replaced by their bodies."""
        return replace(self, model=inlined(self.model))

    def explain(self) -> Explanation:
        """What became of each equation: the user's line, the block's path, the rule, the nodes."""
        from jaxport.export.explain import Explanation

        return Explanation(self)

    @functools.cached_property
    def _session(self) -> Any:
        from jaxport.verify.runtime import Session

        return Session(self.model)


def _array(leaf: Any, port: Port) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype == port.dtype:
        return array
    if isinstance(leaf, (bool, int, float)) or np.can_cast(array.dtype, port.dtype, "same_kind"):
        return array.astype(port.dtype)  # what JAX does with Python numbers and, without x64, with 64-bit arrays
    raise InvalidArgument(
        f"the input `{port.name}` has dtype {array.dtype}",
        why=f"it was exported as {port.dtype}",
        instead=f"cast it to {port.dtype}",
    )


def _to_border(array: np.ndarray, port: Port) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if port.nchw else array


def _from_border(array: np.ndarray, port: Port) -> np.ndarray:
    return array.transpose(0, 2, 3, 1) if port.nchw else array
