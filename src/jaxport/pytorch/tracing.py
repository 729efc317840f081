"""PyTorch traces a call of a module and writes its graph, under the names of the module."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from jaxport.errors import ExportError, boundary
from jaxport.jaxprs import PythonFunction
from jaxport.onnx_facts import ROLES, STATE_DICT
from jaxport.pytorch.calls import ModuleCall, dim_name
from jaxport.pytorch.modules import pytorch, pytree, spelled_out
from jaxport.pytorch.refusals import advice, users_line

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports]

OPSET = 23
"""The operator set that PyTorch writes: the first in which attention is one operator."""


@dataclass(frozen=True)
class Trace:
    """What PyTorch has traced.

    Attributes:
      model: the graph, under the names of the module.
      program: the same as PyTorch has it. It checks what the module decided by sizes: `x.size()[1] % 4 == 0`.
      most: the greatest sizes for which the module decides alike, by name, as far as there are some.
    """

    model: ir.Model
    program: torch.export.ExportedProgram
    most: dict[str, int]

    def broken(self, call: ModuleCall) -> str:
        """Return what does not hold of a call's sizes, though the module took it for granted; nothing if all holds."""
        args, kwargs = call.arguments
        try:
            self.program.module()(*args, **kwargs)
        except (AssertionError, RuntimeError) as error:
            return str(error).partition("Guard failed: ")[2] or str(error).splitlines()[0]
        return ""


def exported(call: ModuleCall, translations: Mapping[PythonFunction, PythonFunction] | None = None) -> Trace:
    """Return what PyTorch traces and exports of a call; `translations` say what operators are.

    Raises:
      ExportError: PyTorch cannot export it.
    """
    with _silent():
        traced, names = _prepared(_traced(call)), _output_names(call.outputs())
        refused = f"PyTorch cannot write `{call.name}` as ONNX"
        with boundary(refused, where="`torch.onnx.export`", instead=advice, kind=ExportError):
            # Not optimized: PyTorch would fold the transposes of weights into tensors without names, and merge equal
            # ones.
            program = pytorch().onnx.export(
                traced, (), dynamo=True, optimize=False, verbose=False, opset_version=OPSET, output_names=names,
                custom_translation_table=translations,
            )  # fmt: skip
    model: ir.Model = program.model
    model.graph.name = call.name
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None:  # the module may change its tensors later
            value.const_value = ir.Tensor(np.array(tensor.numpy()), tensor.dtype, name=name)
    _rename_sizes(model, call)
    _claim(model, call.module)
    return Trace(model, traced, _most(traced, call))


def _prepared(traced: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Say in the words of PyTorch's exporter what it would refuse, or write as another computation.

    One head of keys that is broadcast to all queries is shared by them; squeezing an axis that has more than one
    element does nothing in PyTorch, and is not valid in ONNX.
    """
    aten, graph = pytorch().ops.aten, traced.graph
    for node in graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default):
        queries, *shared = (len(shape) == 4 and shape[1] for shape in (one.meta["val"].shape for one in node.args[:3]))
        if shared == [1, 1] and queries != 1:
            node.kwargs = node.kwargs | {"enable_gqa": True}
    for target in (aten.squeeze.dim, aten.squeeze.dims):
        for node in graph.find_nodes(op="call_function", target=target):
            if node.meta["val"].dim() == node.args[0].meta["val"].dim():
                node.target, node.args = aten.clone.default, node.args[:1]
    return traced


def _most(traced: torch.export.ExportedProgram, call: ModuleCall) -> dict[str, int]:
    """Return the greatest sizes that a trace is for, where the module has set them, by name."""
    values = {node.name: node.meta.get("val") for node in traced.graph.nodes if node.op == "placeholder"}
    tensors = [
        values[name] for name in traced.graph_signature.user_inputs if isinstance(values.get(name), pytorch().Tensor)
    ]
    ranges = {str(symbol): one.upper for symbol, one in traced.range_constraints.items()}
    most: dict[str, int] = {}
    for tensor, axes in zip(tensors, call.axes_of_tensors, strict=True):
        for axis, dim in axes.items():
            upper = ranges.get(str(tensor.shape[axis]))
            if upper is not None and upper < 2**31 and getattr(dim, "max", None) is None:
                most[dim_name(dim)] = int(upper)
    return most


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


def _traced(call: ModuleCall) -> torch.export.ExportedProgram:
    """Return the module as PyTorch traces it.

    Raises:
      ExportError: PyTorch cannot trace it.
    """
    torch = pytorch()
    # Sizes that only have names may have any bounds; those of one name are unified afterwards.
    dynamic = lambda dim: torch.export.Dim.DYNAMIC if isinstance(dim, str) else dim
    args, kwargs = call.arguments
    with (
        boundary(
            f"PyTorch cannot trace `{call.name}`",
            where=lambda error: users_line(error) or "`torch.export.export`",
            instead=advice,
            kind=ExportError,
        ),
        spelled_out(call.module),
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


def _rename_sizes(model: ir.Model, call: ModuleCall) -> None:
    """Give open sizes the user's names, in place of those that PyTorch made up.

    Raises:
      ExportError: PyTorch has made a number of an open size.
    """
    names: dict[str, str] = {}
    for value, axes in zip(model.graph.inputs, call.axes_of_tensors, strict=True):
        for axis, dim in axes.items():
            symbol = value.shape[axis] if value.shape is not None else None
            if isinstance(symbol, ir.SymbolicDim) and str(symbol.value).isidentifier() and dim_name(dim).isidentifier():
                names[str(symbol.value)] = dim_name(dim)
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
    torch, named = pytorch(), []
    for key, value in outputs.items():
        tensors = [leaf for leaf in pytree().tree_leaves(value) if isinstance(leaf, torch.Tensor)]
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
    if not isinstance(value, pytorch().Tensor) or not value.numel() or not value.data_ptr():
        return name
    return value.data_ptr(), value.shape, value.stride(), value.dtype
