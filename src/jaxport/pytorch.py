"""`from_torch`: a module of PyTorch as a program, by way of PyTorch's own exporter.

Nothing else in the package imports PyTorch.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import logging
import re
import warnings
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from jaxport.arguments import takes
from jaxport.errors import ExportError, InvalidArgument, NotInstalled, boundary
from jaxport.importer.limits import Limits
from jaxport.importer.program import Program
from jaxport.importer.ties import Ties
from jaxport.jaxprs import PythonFunction
from jaxport.onnx_facts import ROLES, STATE_DICT
from jaxport.phases import phase
from jaxport.verify.comparing import OF_DTYPES
from jaxport.verify.importing import Comparison
from jaxport.verify.report import Output, Report
from jaxport.verify.running import Run

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports]

OPSET = 23
"""The operator set that PyTorch writes: the first in which attention is one operator."""


@takes("from_torch", kwargs="named", trainable="some names", ties="mode or names", limits=Limits, verify="flag")
def from_torch(
    module: torch.nn.Module,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    dynamic_shapes: Mapping[str, object] | Sequence[object] | None = None,
    trainable: Collection[str] | None = None,
    ties: Ties = "auto",
    limits: Limits | None = None,
    verify: bool = True,
) -> Program:
    """Import a module of PyTorch as a JAX function.

    PyTorch traces the module in evaluation mode (`torch.onnx.export(dynamo=True)`), and its graph is imported. Names,
    roles and ties are those of the module: the parameters are those that require gradients, under the names of
    `state_dict()`, and two weights are one if and only if they are one in the module. No file is written, and the
    module stays as it is.

    Args:
      module: the module.
      args: example arguments by position: tensors or pytrees of tensors, on any device.
      kwargs: example arguments by name, such as those that a tokenizer returns. If the module returns a cache that is
        no tensor and takes `use_cache`, it is called with `use_cache=False` unless this says otherwise.
      dynamic_shapes: the sizes that stay open, for each argument in order or by name: a tuple with a name for each open
        size, and a number or None for each fixed one, as in `{"input_ids": ("batch", "seq")}`; or what `torch.export`
        takes, such as `{0: torch.export.Dim("batch", max=64)}`. All sizes are fixed by default.
      trainable: the names of the parameters, in place of those that require gradients.
      ties: as for `from_onnx`.
      limits: as for `from_onnx`.
      verify: whether to compare the program with the module: on the example, and with larger open sizes.

    Returns:
      The program, as `from_onnx` returns it; the source that it prints for modules has `load_pytorch(state_dict)`.

    Raises:
      NotInstalled: PyTorch or its exporter is not installed: `pip install "jaxport[torch]"`.
      InvalidArgument: `module` is no module, the example does not fit it, or `dynamic_shapes` does not fit the example.
      ExportError: PyTorch cannot export the module.
      Unsupported: an operator cannot be imported.
      VerificationFailed: the program and the module differ.

    >>> from jaxport import from_torch
    >>> import torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
    >>> program = from_torch(module, (torch.ones(1, 3),), dynamic_shapes=[("batch", 3)])
    >>> {name: array.shape for name, array in program.params.items()}
    {'0.weight': (4, 3), '0.bias': (4,)}
    >>> "load_pytorch" in program.to_source(framework="nnx").code
    True
    """
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgument(
            f"`{type(module).__name__}` is not a `torch.nn.Module`",
            where="`from_torch`",
            instead="give a module and example arguments: `from_torch(module, (x,))`",
        )
    with _evaluating(module), torch.no_grad():
        call = _example(module, tuple(args), dict(kwargs or {}), dynamic_shapes)
        with phase("Exporting from PyTorch"):
            model = _exported(call)
        with (
            phase("Importing"),
            boundary(f"the graph of `{call.name}` cannot be imported", instead="file a report with the module"),
        ):
            program = Program(model, trainable=trainable, ties=ties, limits=limits)
            if trainable is None and (trained := _trained(program, module)) is not None:
                program = Program(model, trainable=trained, ties=ties, limits=limits)
        if verify:
            _compared(program, call).raise_if_failed()
    return program


def _torch() -> Any:
    try:
        import onnxscript  # noqa: F401  # pyright: ignore[reportMissingImports]  PyTorch's exporter needs it
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise NotInstalled(
            f"`{error.name}` is not installed",
            where="`from_torch`",
            instead='install it: `pip install "jaxport[torch]"`; or write an ONNX file elsewhere, and read it by '
            "`from_onnx`",
        ) from error
    return torch


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and back, without what it has kept of earlier calls in that mode."""
    with _unchanged(module):
        module.train().eval()
        yield


@contextmanager
def _unchanged(module: torch.nn.Module) -> Iterator[None]:
    """Restore the attributes of a module and of its parts, such as a cache that a call fills: a trace would read
    constants.
    """
    held = {part: dict(vars(part)) for part in module.modules()}
    containers = [one for own in held.values() for one in own.values() if isinstance(one, dict | list | set)]
    contents = [copy.copy(one) for one in containers]
    try:
        yield
    finally:
        for part, own in held.items():
            vars(part).clear()
            vars(part).update(own)
        for container, content in zip(containers, contents, strict=True):
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(content)


@dataclass(frozen=True)
class _ModuleCall:
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
        """The arguments by position and by name."""
        args, kwargs = _pytree().tree_unflatten(self.leaves, self.structure)
        return args, kwargs

    def outputs(self) -> Any:
        """What the module returns."""
        args, kwargs = self.arguments
        with _unchanged(self.module):
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
                name, size = _dim_name(dim), int(leaf.shape[axis])
                if name and (sizes.setdefault(name, size) != size or not size):
                    problem = f"{sizes[name]} and {size}" if size else "0"
                    instead = "give sizes that differ names that differ" if size else "give an example with elements"
                    problem = f"`{name}` is {problem} in the example"
                    raise InvalidArgument(problem, where="`dynamic_shapes`", instead=instead)
        return sizes

    def resized(self, sizes: Mapping[str, int]) -> _ModuleCall:
        """Return the call with other open sizes: elements are repeated, so that indices and masks stay valid."""
        torch = _torch()
        leaves = list(self.leaves)
        for at, axes in enumerate(self.open_axes):
            for axis, dim in axes.items():
                size, now = sizes.get(_dim_name(dim)), leaves[at].shape[axis]
                if size is not None and size != now:
                    index = torch.arange(size, device=leaves[at].device) % now
                    leaves[at] = leaves[at].index_select(axis, index)
        return replace(self, leaves=leaves)

    def others(self) -> Iterator[_ModuleCall]:
        """Yield the same call with other open sizes; PyTorch may refuse them."""
        sizes = self.sizes
        limits = {_dim_name(dim): getattr(dim, "max", None) for axes in self.open_axes for dim in axes.values()}
        for factor, added in ((1, 1), (2, 0)) if all(map(str.isidentifier, sizes)) else ((2, 0),):
            changed = {name: factor * size + added for name, size in sizes.items()}
            if changed and all(size <= (limits.get(name) or size) for name, size in changed.items()):
                yield self.resized(changed)


def _pytree() -> Any:
    from torch.utils import _pytree  # pyright: ignore[reportMissingImports]

    return _pytree


def _dim_name(dim: object) -> str:
    """Return the name of an open size; nothing if it has none, as `torch.export.Dim.DYNAMIC`."""
    return dim if isinstance(dim, str) else getattr(dim, "__name__", "")


def _example(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object], dynamic_shapes: object
) -> _ModuleCall:
    """Read the arguments of `from_torch`.

    Raises:
      InvalidArgument: the module cannot be called with them, or the open sizes do not fit them.
    """
    torch, where = _torch(), f"`{type(module).__name__}.forward`"
    signature = inspect.signature(module.forward)
    refused = "the module cannot be called with these arguments"
    advice = "give arguments for which `module(*args, **kwargs)` works"
    with boundary(refused, where=where, instead=advice, kind=InvalidArgument):
        bound = signature.bind(*args, **kwargs).arguments
    order = [*signature.parameters]
    kwargs = dict(sorted(kwargs.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    leaves, structure = _pytree().tree_flatten((args, kwargs))
    shapes: dict[str, Any] = {}
    axes: list[dict[int, Any]] = []
    specs = _by_parameter(signature, bound, dynamic_shapes)
    for name, value in bound.items():
        shapes[name], found = _open_axes(value, specs.get(name), name)
        axes += found
    call = _ModuleCall(module, leaves, structure, axes, None if dynamic_shapes is None else shapes)
    # PyTorch takes a size of one for a fixed one.
    call = call.resized({name: max(size, 2) for name, size in call.sizes.items()})
    with boundary(refused, where=where, instead=advice, kind=InvalidArgument):
        outputs = call.outputs()
    known = all(isinstance(leaf, torch.Tensor | int | float | bool | None) for leaf in _pytree().tree_leaves(outputs))
    if not known and "use_cache" in signature.parameters and "use_cache" not in bound:
        return _example(module, args, {**kwargs, "use_cache": False}, dynamic_shapes)
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
    if isinstance(value, _torch().Tensor):
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
    return spec, [{} for _ in _pytree().tree_leaves(value)]


def _exported(call: _ModuleCall) -> ir.Model:
    """Return the graph that PyTorch exports of a call, under the names of the module.

    Raises:
      ExportError: PyTorch cannot export it.
    """
    with _silent():
        traced, names = _traced(call), _output_names(call.outputs())
        with boundary(f"PyTorch cannot write `{call.name}` as ONNX", where="`torch.onnx.export`", kind=ExportError):
            # Not optimized: PyTorch would fold the transposes of weights into tensors without names, and merge equal
            # ones.
            program = _torch().onnx.export(
                traced, (), dynamo=True, optimize=False, verbose=False, opset_version=OPSET, output_names=names
            )  # fmt: skip
    model: ir.Model = program.model
    model.graph.name = call.name
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None:  # the module may change its tensors later
            value.const_value = ir.Tensor(np.array(tensor.numpy()), tensor.dtype, name=name)
    _rename_sizes(model, call)
    _claim(model, call.module)
    return model


@contextmanager
def _silent() -> Iterator[None]:
    """Keep PyTorch's exporter from telling how far it is."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _traced(call: _ModuleCall) -> torch.export.ExportedProgram:
    """Return the module as PyTorch traces it.

    Raises:
      ExportError: PyTorch cannot trace it.
    """
    torch = _torch()
    # Sizes that only have names may have any bounds; those of one name are unified afterwards.
    dynamic = lambda dim: torch.export.Dim.DYNAMIC if isinstance(dim, str) else dim
    args, kwargs = call.arguments
    with (
        boundary(
            f"PyTorch cannot trace `{call.name}`",
            where="`torch.export.export`",
            instead="change the module so that `torch.export.export` traces it: sizes that it takes for numbers are "
            "not open, such "
            "as the number of steps of an LSTM (`torch.onnx.export(..., dynamo=False)` and `jaxport.from_onnx` keep "
            "it open), and an "
            "output that is no tensor, such as a cache, is left out by an argument of the module",
            kind=ExportError,
        ),
        _unchanged(call.module),
    ):
        return torch.export.export(
            call.module, args, kwargs, dynamic_shapes=call.shapes and _mapped(dynamic, call.shapes), strict=False
        )


def _mapped(function: PythonFunction, shapes: object) -> Any:
    """Apply a function to the sizes in what `torch.export` takes as shapes."""
    if isinstance(shapes, Mapping):
        return {key: _mapped(function, part) for key, part in shapes.items()}
    if isinstance(shapes, list | tuple):
        return type(shapes)(_mapped(function, part) for part in shapes)
    return None if shapes is None else function(shapes)


def _rename_sizes(model: ir.Model, call: _ModuleCall) -> None:
    """Give open sizes the user's names, in place of those that PyTorch made up.

    Raises:
      ExportError: PyTorch has made a number of an open size.
    """
    torch = _torch()
    names: dict[str, str] = {}
    tensors = [axes for leaf, axes in zip(call.leaves, call.open_axes, strict=True) if isinstance(leaf, torch.Tensor)]
    for value, axes in zip(model.graph.inputs, tensors, strict=True):
        for axis, dim in axes.items():
            symbol = value.shape[axis] if value.shape is not None else None
            if (
                isinstance(symbol, ir.SymbolicDim)
                and str(symbol.value).isidentifier()
                and _dim_name(dim).isidentifier()
            ):
                names[str(symbol.value)] = _dim_name(dim)
    renamed = lambda text: re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), text)
    values = {*model.graph.inputs, *(value for node in model.graph.all_nodes() for value in node.outputs)}
    for value in values:
        if value.shape is not None and any(isinstance(size, ir.SymbolicDim) for size in value.shape):
            value.shape = ir.Shape(
                [ir.SymbolicDim(renamed(str(size.value))) if isinstance(size, ir.SymbolicDim) and size.value else size
                 for size in value.shape]
            )  # fmt: skip


def _output_names(outputs: object) -> list[str] | None:
    """Return the names of the outputs, if each tensor is an entry of a mapping."""
    if not isinstance(outputs, Mapping):
        return None
    torch, named = _torch(), []
    for key, value in outputs.items():
        tensors = [leaf for leaf in _pytree().tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        named += (
            [str(key)] if tensors == [value] or len(tensors) == 1 else [f"{key}_{at}" for at in range(len(tensors))]
        )
    return named


def _claim(model: ir.Model, module: torch.nn.Module) -> None:
    """Write into the metadata of a model which tensors are parameters, and the names of the state dict, with what is
    tied.

    A tied parameter gets the name that `named_parameters` gives it: that of its first place.
    """
    tensors = model.graph.initializers
    parameters = dict(module.named_parameters(remove_duplicate=False))
    first = {parameter: name for name, parameter in reversed(parameters.items())}
    for name, parameter in parameters.items():
        if name in tensors and first[parameter] not in tensors:
            tensors[name].name = first[parameter]  # which renames the entry of the graph, too
    state = module.state_dict(keep_vars=True)
    states = [name for name, _ in module.named_buffers() if name in tensors and name in state]
    roles = {"parameter": [name for name in parameters if name in tensors], "statistic": states}
    model.metadata_props[ROLES] = json.dumps(roles)
    places = {name: _place(name, value) for name, value in state.items()}
    firsts = {places[name]: name for name in reversed([*state])}
    model.metadata_props[STATE_DICT] = json.dumps({name: firsts[place] for name, place in places.items()})


def _place(name: str, value: Any) -> Hashable:
    """Return what tells an entry of a state dict from others: tied ones are at one place."""
    if not isinstance(value, _torch().Tensor) or not value.numel() or not value.data_ptr():
        return name
    return value.data_ptr(), value.shape, value.stride(), value.dtype


def _trained(program: Program, module: torch.nn.Module) -> list[str] | None:
    """Return the parameters of a program that require gradients in its module; None if all do."""
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    return [name for name in program.weights if name not in frozen] if frozen & {*program.weights} else None


class _Beside(Comparison):
    """A program beside the module that it comes from."""

    def __init__(self, program: Program, call: _ModuleCall):
        super().__init__(program)
        self.call = call

    def run_of(self, call: _ModuleCall) -> Run:
        """Return the inputs of the program that are the arguments of a call."""
        tensors = [leaf for leaf in call.leaves if isinstance(leaf, _torch().Tensor)]
        arrays = dict(zip(self.program.input_names, map(_array, tensors), strict=True))
        run = next(self.runs(arrays))
        return replace(run, sizes=call.sizes)

    def expected(self, run: Run) -> list[np.ndarray]:  # noqa: ARG002  the call has the arguments of the run
        torch = _torch()
        outputs = _pytree().tree_leaves(self.call.outputs())
        return [_array(output) for output in outputs if isinstance(output, torch.Tensor)]


def _compared(program: Program, call: _ModuleCall) -> Report:
    """Compare a program with its module, on the example and at other sizes that the module takes."""
    outputs: list[Output] = []
    for number, other in enumerate(itertools.chain([call], call.others())):
        try:
            other.outputs()
        except (RuntimeError, ValueError, IndexError, AssertionError):
            if number == 0:
                raise
            continue  # the module does not take these sizes
        sides = _Beside(program, other)
        ((_, compared),) = sides.comparisons([sides.run_of(other)], OF_DTYPES)
        outputs += compared
        if number:
            break
    return Report(call.name, tuple(outputs), runtime="PyTorch")


def _array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array, also in types that NumPy lacks."""
    from onnx_ir import tensor_adapters

    return np.asarray(tensor_adapters.TorchTensor(tensor.detach().cpu()).numpy())


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor.

    Raises:
      NotInstalled: PyTorch is not installed.
    """
    return _torch().from_numpy(np.ascontiguousarray(array))
