"""The initializers of an imported model: which are trained, how they are stored, and how they are written back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax.sharding import NamedSharding, Sharding

from jaxport.errors import InvalidArgument
from jaxport.importer.loading.mapping import MappedTensor
from jaxport.importer.resolving.graph import Body
from jaxport.importer.tensors.parameters import Params
from jaxport.importer.tensors.roles import TRAINABLE, Role, kernels, roles
from jaxport.importer.values.dtypes import canonical
from jaxport.importer.values.host import Tensor
from jaxport.importer.values.image_layout import HWIO, OIHW, order
from jaxport.importer.values.stored import tensor_value
from jaxport.jaxprs import Array
from jaxport.jaxprs.identity import owned
from jaxport.jaxprs.meshes import on_host

Shardings = Mapping[str, Sharding] | Callable[[str, jax.ShapeDtypeStruct], Sharding | None]
"""Where parameters live: by name, or as a function of the name and the shape and dtype of each."""

LARGE = 2**26
"""The bytes of parameters beyond which `params` is no plain dict: one that mixes with no others in JAX, but reads one
by one.
"""

Held = TypeVar("Held", bound="Array | Tensor")


class Weights(Mapping[str, jax.Array]):
    """The parameters of a graph, each read when it is looked up first, and its constants.

    It is a mapping, but no tree: `parameters` is what JAX transforms, `arrays` a plain dict of all.

    Kernels of two-dimensional convolutions are stored as (height, width, in, out), which XLA convolves fastest with;
    everything else as in the model.

    Args:
      body: the graph; `kernel_layout` is set on the nodes whose kernels are stored in another layout.
      model: the model, whose metadata may say what its initializers are.
      static: the values that shapes depend on.
      trainable: the names of the parameters, or None for those whose role is that of a weight.
      shardings: where parameters live, by name, or a function of the name and the shape and dtype of each.
      states: the names of statistics that are arguments beside the parameters, so that no code depends on their values.

    Raises:
      InvalidArgument: a name in `trainable` is not that of a floating point initializer that no shape depends on; a
        sharding is of no parameter, or does not split it evenly.
    """

    def __init__(
        self,
        body: Body,
        model: ir.Model,
        static: set[ir.Value],
        trainable: Collection[str] | None = None,
        shardings: Shardings | None = None,
        states: Collection[str] = (),
    ):
        self.body, self.states = body, frozenset(states)
        self._roles: dict[ir.Value, Role] = roles(body, static, model)
        self._kept = {value for value, role in self._roles.items() if role != "constant"}
        if trainable is not None:
            trained = {*_named(body, static, trainable)}
            others: dict[Role, Role] = {"parameter": "constant", "statistic": "statistic", "constant": "constant"}
            self._roles = {v: "parameter" if v in trained else others[role] for v, role in self._roles.items()}
        chosen = [v for v, role in self._roles.items() if role == "parameter" or v.name in self.states]
        self.initializers: dict[str, ir.Value] = {value.name or "": value for value in chosen}
        self.kernels = kernels(body, chosen)
        for node in body.nodes:
            if not self.kernels.isdisjoint(node.inputs):
                node.kernel_layout = HWIO
        self._read: dict[bool, dict[str, jax.Array]] = {False: {}, True: {}}
        self._untrained: dict[bool, dict[ir.Value, jax.Array]] = {}
        self.shardings = _checked(shardings, self.specs)

    @property
    def roles(self) -> dict[str, Role]:
        """What each initializer is, by name."""
        return {value.name or "": self._roles[value] for value in self._roles}

    def tensor(self, name: str) -> ir.TensorProtocol:
        """Return the initializer behind a parameter, without reading it."""
        return self.body.initializers[self.initializers[name]]

    def host_array(self, name: str) -> np.ndarray:
        """Return a parameter in the model's own type and in its stored layout."""
        return tensor_value(self.tensor(name)).data.transpose(self.axes(name))

    def axes(self, name: str) -> tuple[int, ...]:
        """Return the order in which the axes of a parameter's initializer are stored."""
        return (
            order(OIHW, HWIO) if self.initializers[name] in self.kernels else tuple(range(len(self.tensor(name).shape)))
        )

    @property
    def specs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shape and dtype of each parameter; nothing is read."""
        specs = {}
        for name, value in self.initializers.items():
            tensor = self.body.initializers[value]
            sizes = tensor.shape.numpy()
            shape = tuple(sizes[axis] for axis in self.axes(name))
            specs[name] = jax.ShapeDtypeStruct(shape, canonical(np.dtype(tensor.dtype.numpy())))
        return specs

    def __getitem__(self, name: str) -> jax.Array:
        """Return a parameter, in JAX's type, with 64-bit types on or off."""
        if name not in self.initializers:
            raise KeyError(name)
        read = self._read[_is_wide()]
        if name not in read:
            with jax.ensure_compile_time_eval():  # a caller may trace, and cached arrays must not belong to a trace
                read[name] = self._array(name)
        return read[name]

    def __contains__(self, name: object) -> bool:
        return name in self.initializers

    def __iter__(self) -> Iterator[str]:
        return iter(self.initializers)

    def __len__(self) -> int:
        return len(self.initializers)

    @property
    def arrays(self) -> dict[str, jax.Array]:
        """All parameters by name, in the model's order."""
        if list(self._read[_is_wide()]) != list(self):
            self._read[_is_wide()] = {name: self[name] for name in self}
        return dict(self._read[_is_wide()])

    @property
    def parameters(self) -> dict[str, jax.Array]:
        """All parameters by name: a plain dict, or one that reads an array when it is looked up if all are large."""
        if sum(self.tensor(name).nbytes for name in self) <= LARGE:
            return self.arrays
        return Params(read={name: functools.partial(self.__getitem__, name) for name in self})

    def _array(self, name: str) -> jax.Array:
        tensor, host, sharding = self.tensor(name), self.host_array(name), self.shardings.get(name)
        if sharding is not None:  # each device reads only its own part
            dtype = canonical(host.dtype)
            read = lambda index: host[index].astype(dtype, copy=False)
            array = jax.block_until_ready(jax.make_array_from_callback(host.shape, sharding, read))
            if isinstance(tensor, MappedTensor):
                tensor.release()
            return array
        if not isinstance(tensor, MappedTensor):
            return jnp.array(host, dtype=canonical(host.dtype))
        # Mapped memory is never written, so JAX may use it in place. If JAX copies an array, the original is released.
        array = jax.block_until_ready(jax.device_put(host.astype(canonical(host.dtype), copy=False)))
        tensor.release()
        return array

    @property
    def untrained(self) -> dict[ir.Value, jax.Array]:
        """The statistics, and the weights that `trainable` leaves out, as arrays, which are the same each time."""
        if _is_wide() not in self._untrained:
            with jax.ensure_compile_time_eval():
                self._untrained[_is_wide()] = {
                    value: jnp.array(array, dtype=canonical(array.dtype))
                    for value in self._roles
                    if value in self._kept and self._roles[value] != "parameter"
                    for array in [tensor_value(self.body.initializers[value]).data]
                }
        return self._untrained[_is_wide()]

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """The initializers that are not parameters."""
        kept = set(self.initializers.values())
        return {
            value.name or "": tensor_value(tensor).data
            for value, tensor in self.body.initializers.items()
            if value not in kept
        }

    @cached_property
    def constant_bytes(self) -> int:
        """The bytes of the initializers that are not parameters."""
        kept = set(self.initializers.values())
        return sum(tensor.nbytes for value, tensor in self.body.initializers.items() if value not in kept)

    def values_of(self, params: Mapping[str, Held]) -> dict[ir.Value, Held]:
        """Return the values of the graph for arrays by name.

        Raises:
          InvalidArgument: arrays are missing, unknown, or of another shape.
        """
        specs = self.specs
        for name, array in params.items():
            if name not in specs:
                raise _unknown(name, "`apply(params, …)`", "give arrays for the names in `program.params`")
            if tuple(array.shape) != specs[name].shape:
                kernel = self.initializers[name] in self.kernels
                raise InvalidArgument(
                    f"the parameter `{name}` has shape {list(array.shape)}, not {list(specs[name].shape)}",
                    where="`apply(params, …)`",
                    why="kernels of convolutions are kept as (height, width, in, out)" if kernel else "",
                    instead="start from `program.params`",
                )
        missing = [name for name in specs if name not in params]
        if missing:
            raise InvalidArgument(
                f"{len(missing)} parameters are missing, `{missing[0]}` first",
                where="`apply(params, …)`",
                instead="start from `program.params`",
            )
        return {self.initializers[name]: array for name, array in params.items()}

    def written(self, model: ir.Model, params: Mapping[str, Array]) -> ir.Model:
        """Return a copy of the model with other values of its parameters.

        Raises:
          InvalidArgument: arrays are missing, unknown, or of another shape.
        """
        tensors: dict[str, np.ndarray] = {}
        for value, array in self.values_of(params).items():
            data = on_host(array)
            tensors[value.name or ""] = data.transpose(order(HWIO, OIHW)) if value in self.kernels else data
        return self.filled(model, tensors)

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """All floating-point initializers by name, in the model's own order of axes."""
        return {
            value.name or "": tensor_value(tensor).data
            for value, tensor in self.body.initializers.items()
            if tensor.dtype in TRAINABLE
        }

    def filled(self, model: ir.Model, tensors: Mapping[str, np.ndarray]) -> ir.Model:
        """Return a copy of the model with other values of initializers, in the model's own order of axes."""
        copy = model.clone()
        for value, known in self.body.initializers.items():
            name = value.name or ""
            if name not in tensors:
                continue
            tensor = ir.Tensor(owned(tensors[name].astype(known.dtype.numpy(), copy=False)), known.dtype, name=name)
            if name not in copy.graph.initializers:
                new = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
                copy.graph.register_initializer(new)
            copy.graph.initializers[name].const_value = tensor
        return copy


def _is_wide() -> bool:
    return bool(jax.config.read("jax_enable_x64"))


def _checked(shardings: Shardings | None, specs: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Sharding]:
    """Return the shardings by name, without the parameters for which a function returns None.

    Raises:
      InvalidArgument: a name is that of no parameter, or a sharding does not divide the parameter.
    """
    if callable(shardings):
        by_name = {name: sharding for name, spec in specs.items() if (sharding := shardings(name, spec)) is not None}
    else:
        by_name = dict(shardings or {})
    for name, sharding in by_name.items():
        if name not in specs:
            raise _unknown(name, "`from_onnx(shardings=…)`", "give shardings for the names in `program.param_specs`")
        shape = specs[name].shape
        try:
            why = ""
            sharding.shard_shape(shape)
        except (ValueError, IndexError) as error:  # an axis that is not divided evenly; JAX 0.9: one that is not there
            why = str(error)
        if isinstance(sharding, NamedSharding) and len(sharding.spec) > len(shape):
            why = f"it has {len(shape)} axes, {sharding.spec} is for {len(sharding.spec)}"
        if why:
            raise InvalidArgument(
                f"`{name}` cannot be split in this way",
                where="`from_onnx(shardings=…)`",
                why=why,
                instead="divide an axis whose size is a multiple of the number of devices, or leave the parameter out",
            )
    return by_name


def _unknown(name: str, where: str, instead: str) -> InvalidArgument:
    return InvalidArgument(f"`{name}` is not a parameter of the model", where=where, instead=instead)


def _named(body: Body, static: set[ir.Value], names: Collection[str]) -> list[ir.Value]:
    known = {value.name: value for value in body.initializers}
    for name in names:
        value = known.get(name)
        tensor = body.initializers[value] if value is not None else None
        if value is None or tensor is None or tensor.dtype not in TRAINABLE or value in static:
            problem = "is not an initializer" if value is None else f"is {tensor.dtype.name}" if tensor else ""
            raise InvalidArgument(
                f"`{name}` cannot be trained",
                where="`from_onnx(trainable=…)`",
                why="a shape depends on it" if value in static else f"it {problem}",
                instead="name floating point initializers of the model",
            )
    return [known[name] for name in names]
