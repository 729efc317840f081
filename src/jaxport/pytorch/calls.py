"""Calls of modules of PyTorch: their arguments, and the sizes of these that stay open."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxport.errors import InvalidArgument, boundary
from jaxport.pytorch.modules import pytorch, pytree, stop_caching, unchanged
from jaxport.pytorch.refusals import check_values

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports]


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module.

    Attributes:
      module: the module.
      leaves: the leaves of the arguments: tensors and others.
      structure: the tree of `(args, kwargs)` that the leaves belong to.
      open_axes: for each leaf, what says that an axis is open, by axis: a name, or a dimension of `torch.export`.
      shapes: the same by the names of parameters, as `torch.export` takes it.
    """

    module: torch.nn.Module
    leaves: list[Any]
    structure: Any
    open_axes: list[dict[int, Any]]
    shapes: dict[str, Any] | None

    @property
    def name(self) -> str:
        """The name of the module's class."""
        return type(self.module).__name__

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments by position and by name: tensors of their own, as PyTorch marks those that it traces with
        open sizes.
        """
        tensor = pytorch().Tensor
        leaves = [leaf.detach() if isinstance(leaf, tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree().tree_unflatten(leaves, self.structure)
        return args, kwargs

    @property
    def axes_of_tensors(self) -> list[dict[int, Any]]:
        """The open axes of each tensor."""
        tensor = pytorch().Tensor
        return [axes for leaf, axes in zip(self.leaves, self.open_axes, strict=True) if isinstance(leaf, tensor)]

    def outputs(self) -> Any:
        """What the module returns."""
        args, kwargs = self.arguments
        with unchanged(self.module):
            return self.module(*args, **kwargs)

    @property
    def sizes(self) -> dict[str, int]:
        """The open sizes that have names.

        Raises:
          InvalidArgument: a name has two sizes.
        """
        sizes: dict[str, int] = {}
        for leaf, axes in zip(self.leaves, self.open_axes, strict=True):
            for axis, dim in axes.items():
                name, size = dim_name(dim), int(leaf.shape[axis])
                if name and (sizes.setdefault(name, size) != size or not size):
                    problem = f"{sizes[name]} and {size}" if size else "0"
                    instead = "give sizes that differ names that differ" if size else "give an example with elements"
                    problem = f"`{name}` is {problem} in the example"
                    raise InvalidArgument(problem, where="`dynamic_shapes`", instead=instead)
        return sizes

    def resized(self, sizes: Mapping[str, int]) -> ModuleCall:
        """Return the call with other open sizes: elements are repeated, so that indices and masks stay valid."""
        torch = pytorch()
        leaves = list(self.leaves)
        for at, axes in enumerate(self.open_axes):
            for axis, dim in axes.items():
                size, now = sizes.get(dim_name(dim)), leaves[at].shape[axis]
                if size is not None and size != now:
                    index = torch.arange(size, device=leaves[at].device) % now
                    leaves[at] = leaves[at].index_select(axis, index)
        return replace(self, leaves=leaves)

    def others(self) -> Iterator[ModuleCall]:
        """Yield the same call with other open sizes; PyTorch may refuse them."""
        sizes = self.sizes
        limits = {dim_name(dim): getattr(dim, "max", None) for axes in self.open_axes for dim in axes.values()}
        for factor, added in ((1, 1), (2, 0)) if all(map(str.isidentifier, sizes)) else ((2, 0),):
            changed = {name: factor * size + added for name, size in sizes.items()}
            if changed and all(size <= (limits.get(name) or size) for name, size in changed.items()):
                yield self.resized(changed)

    def apart(self) -> Iterator[ModuleCall]:
        """Yield the same call with one open size changed alone."""
        sizes = self.sizes
        for name, size in sizes.items() if len(sizes) > 1 else ():
            yield self.resized({name: size + 1})


def dim_name(dim: object) -> str:
    """Return the name of an open size; nothing if it has none, as `torch.export.Dim.DYNAMIC`."""
    return dim if isinstance(dim, str) else getattr(dim, "__name__", "")


def example(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object], dynamic_shapes: object
) -> ModuleCall:
    """Read the arguments of `from_torch`.

    Raises:
      InvalidArgument: the module cannot be called with them, or the open sizes do not fit them.
    """
    where = f"`{type(module).__name__}.forward`"
    signature = inspect.signature(module.forward)
    refused = "the module cannot be called with these arguments"
    advice = "give arguments for which `module(*args, **kwargs)` works"
    with boundary(refused, where=where, instead=advice, kind=InvalidArgument):
        bound = signature.bind(*args, **kwargs).arguments
    order = [*signature.parameters]
    kwargs = dict(sorted(kwargs.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    leaves, structure = pytree().tree_flatten((args, kwargs))
    shapes: dict[str, Any] = {}
    axes: list[dict[int, Any]] = []
    specs = _by_parameter(signature, bound, dynamic_shapes)
    for name, value in bound.items():
        shapes[name], found = _open_axes(value, specs.get(name), name)
        axes += found
    call = ModuleCall(module, leaves, structure, axes, None if dynamic_shapes is None else shapes)
    # PyTorch takes a size of one for a fixed one.
    call = call.resized({name: max(size, 2) for name, size in call.sizes.items()})
    with boundary(refused, where=where, instead=advice, kind=InvalidArgument):
        outputs = call.outputs()
    known = all(
        isinstance(leaf, pytorch().Tensor | int | float | bool | None) for leaf in pytree().tree_leaves(outputs)
    )
    if not known and "use_cache" not in bound | kwargs:
        if "use_cache" in signature.parameters:
            return example(module, args, {**kwargs, "use_cache": False}, dynamic_shapes)
        if stop_caching(module):
            return example(module, args, kwargs, dynamic_shapes)
    check_values("result", outputs)
    check_values("argument", (args, kwargs))
    return call


def _by_parameter(signature: inspect.Signature, bound: Mapping[str, Any], shapes: Any) -> dict[str, Any]:
    """Return what is said of the sizes of each argument, by the name of the parameter.

    Raises:
      InvalidArgument: a name is not that of an argument, or there is more than there are arguments.
    """
    if isinstance(shapes, Mapping):
        by_name = dict(shapes)
    else:
        try:
            by_name = dict(signature.bind_partial(*(shapes or ())).arguments)
        except TypeError as error:
            raise InvalidArgument(
                f"there are {len(shapes)} shapes",
                where="`dynamic_shapes`",
                why=str(error),
                instead="give one for each argument, in order or by name",
            ) from error
    for name in by_name:
        if name not in bound:
            raise InvalidArgument(
                f"`{name}` is not an argument of the example",
                where="`dynamic_shapes`",
                instead=f"the arguments are {', '.join(f'`{known}`' for known in bound)}",
            )
    return by_name


def _open_axes(value: Any, spec: Any, where: str) -> tuple[Any, list[dict[int, Any]]]:
    """Return the open sizes of an argument as `torch.export` takes them, and the open axes of each of its leaves.

    Raises:
      InvalidArgument: what is said does not fit the argument.
    """
    if isinstance(value, pytorch().Tensor):
        axes = dict(spec) if isinstance(spec, Mapping) else dict(enumerate(spec or ()))
        rank = value.dim()
        fits = max(axes, default=-1) < rank if isinstance(spec, Mapping) or spec is None else len(axes) == rank
        wrong = (
            [axis for axis, dim in axes.items() if isinstance(dim, int) and value.shape[axis] != dim] if fits else []
        )
        if not fits or wrong:
            raise InvalidArgument(
                f"`{spec}` does not fit `{where}`, whose example has the shape {list(value.shape)}",
                where="`dynamic_shapes`",
                instead=f"give a name, a number or None for each of its {rank} sizes",
            )
        found = {axis: dim for axis, dim in axes.items() if dim is not None and not isinstance(dim, int)}
        return found or None, [found]
    if isinstance(value, list | tuple | dict):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        inner = dict(spec) if isinstance(spec, Mapping) else dict(enumerate(spec or ()))
        if not inner.keys() <= {*keys}:
            raise InvalidArgument(
                f"`{spec}` does not fit `{where}`, which has {len(keys)} parts",
                where="`dynamic_shapes`",
                instead="give an entry for each part",
            )
        parts = [_open_axes(value[key], inner.get(key), f"{where}[{key!r}]") for key in keys]
        shapes = dict(zip(keys, (part for part, _ in parts), strict=True))
        axes = [each for _, found in parts for each in found]
        return shapes if isinstance(value, dict) else type(value)(shapes.values()), axes
    return spec, [{} for _ in pytree().tree_leaves(value)]
