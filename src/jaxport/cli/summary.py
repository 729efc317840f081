"""The contents of a model file, as plain values that `jaxport inspect` prints as tables or as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError

from jaxport.errors import JaxportError, ModelError
from jaxport.export.delivery import minimal_opset
from jaxport.importer import Program, from_onnx
from jaxport.importer.loading.load import as_written
from jaxport.importer.modules import NodeModule
from jaxport.phases import unseen

NAMESPACE = "namespace"
"""The key of the node metadata in which exporters keep the blocks around a node, as `path: type/path: type`."""


@dataclass(frozen=True)
class TensorRow:
    """An input, an output or an initializer; a dim is a size, a symbol, or `None` if it is unknown."""

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    bytes: int = 0


@dataclass(frozen=True)
class ModuleRow:
    """One block of the model: its depth, its path and type, its operators and parameters.

    Those of the blocks inside are included.
    """

    level: int
    path: str
    type: str
    nodes: int
    parameters: int


@dataclass(frozen=True)
class Summary:
    """The contents of a model file.

    `opset_for` are the operators that require its opset, if the file says so; `roles` says which tensors are
    parameters, statistics and constants, as far as the model can be imported; `in_nodes` are those of them that
    `Constant` nodes hold.
    """

    file: str
    file_bytes: int
    ir_version: int
    opsets: dict[str, int]
    opset_for: list[str]
    producer: str
    inputs: list[TensorRow]
    outputs: list[TensorRow]
    initializers: list[TensorRow]
    operators: dict[str, int]
    functions: dict[str, int]
    modules: list[ModuleRow]
    roles: dict[str, str]
    in_nodes: list[TensorRow] = field(default_factory=list)

    @property
    def element_count(self) -> int:
        """The number of elements of all initializers."""
        return sum(_elements(tensor) for tensor in self.initializers)

    @property
    def parameters(self) -> str:
        """How many parameters `from_onnx` finds: tensors, and their elements."""
        if not self.roles:
            return "unknown: the file cannot be imported"
        trained = [
            tensor for tensor in [*self.initializers, *self.in_nodes] if self.roles.get(tensor.name) == "parameter"
        ]
        elements = sum(map(_elements, trained))
        return f"{len(trained)} tensor{'s' * (len(trained) != 1)}, {elements:,} element{'s' * (elements != 1)}"

    @property
    def weight_bytes(self) -> int:
        """The size of all initializers."""
        return sum(tensor.bytes for tensor in self.initializers)


def load_model(path: Path) -> ir.Model:
    """Load a model file; tensors in external files are not read.

    Raises:
      ModelError: there is no such file, or it is not an ONNX model.
    """
    try:
        model = as_written(path)
    except OSError as error:
        raise ModelError(f"`{path}` cannot be read", why=error.strerror or str(error)) from error
    except (DecodeError, ir.serde.SerdeError) as error:
        raise ModelError(f"`{path}` is not an ONNX model", why=str(error)) from error
    if not model.opset_imports:  # an empty file is a valid protobuf message too
        raise ModelError(f"`{path}` is not an ONNX model", why="it declares no operator set")
    return model


def summarize(path: Path) -> Summary:
    """Read a model file.

    Args:
      path: the file; tensors in external files count, and are not read.

    Raises:
      ModelError: there is no such file, or it is not an ONNX model.
    """
    model = load_model(path)
    nodes = [
        *model.graph.all_nodes(),
        *(node for function in model.functions.values() for node in function.all_nodes()),
    ]
    initializers = [
        _tensor(value, value.const_value.nbytes)
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    ]
    calls = Counter(_operator(node) for node in nodes)
    functions = {_qualified(domain, name): 0 for domain, name, _ in model.functions}
    program = _imported(path)
    roles: dict[str, str] = {} if program is None else {**program.roles}
    tensors = [_tensor(v, t.nbytes) for v, t in program.body.initializers.items()] if program is not None else []
    named = {tensor.name for tensor in initializers}
    in_nodes = [tensor for tensor in tensors if tensor.name not in named]
    everything = [*initializers, *in_nodes]
    counted = [tensor for tensor in everything if roles.get(tensor.name) == "parameter"] if roles else everything
    return Summary(
        file=str(path),
        file_bytes=path.stat().st_size,
        ir_version=model.ir_version,
        opsets={domain or "ai.onnx": version for domain, version in model.opset_imports.items()},
        opset_for=list(minimal_opset.recorded(model)),
        producer=" ".join(text for text in (model.producer_name, model.producer_version) if text),
        inputs=[_tensor(value) for value in model.graph.inputs],
        outputs=[_tensor(value) for value in model.graph.outputs],
        initializers=initializers,
        operators={name: count for name, count in calls.most_common() if name not in functions},
        functions={name: calls[name] for name in functions},
        modules=_modules(nodes, counted) or ([] if program is None else _imported_modules(program.modules)),
        roles=roles,
        in_nodes=in_nodes,
    )


def _imported(path: Path) -> Program | None:
    """Return what `from_onnx` makes of a model; None if it refuses it."""
    try:
        with unseen():
            return from_onnx(path)
    except JaxportError:
        return None


def _tensor(value: ir.Value, size: int = 0) -> TensorRow:
    shape = value.shape
    dims = None if shape is None else tuple(dim if isinstance(dim, int) else dim.value for dim in shape)
    return TensorRow(value.name or "", _dtype_name(value.dtype), dims, size)


def _dtype_name(dtype: ir.DataType | None) -> str:
    """Return NumPy's name: ONNX's own spelling of float32 is "float", and of float64 "double"."""
    if dtype is None:
        return "unknown"
    return "string" if dtype == ir.DataType.STRING else dtype.numpy().name


def _elements(tensor: TensorRow) -> int:
    count = 1
    for dim in tensor.shape or ():
        count *= dim if isinstance(dim, int) else 0
    return count


def _qualified(domain: str, name: str) -> str:
    return f"{domain}::{name}" if domain not in ("", "ai.onnx") else name


def _operator(node: ir.Node) -> str:
    return _qualified(node.domain, node.op_type)


def _modules(nodes: list[ir.Node], initializers: list[TensorRow]) -> list[ModuleRow]:
    """Return the blocks in the nodes' metadata, each followed by those inside it, in the order of the model."""
    counts: Counter[tuple[str, ...]] = Counter()
    for node in nodes:
        blocks = tuple(block for block in node.metadata_props.get(NAMESPACE, "").split("/") if block)
        counts.update(blocks[: depth + 1] for depth in range(len(blocks)))
    first_seen = {blocks: position for position, blocks in enumerate(counts)}
    modules = []
    for blocks in sorted(counts, key=lambda blocks: [first_seen[blocks[: d + 1]] for d in range(len(blocks))]):
        path, _, kind = blocks[-1].partition(": ")
        parameters = sum(_elements(tensor) for tensor in initializers if tensor.name.startswith(f"{path}."))
        modules.append(ModuleRow(len(blocks) - 1, path, kind, counts[blocks], parameters))
    return modules


def _imported_modules(around: NodeModule, level: int = 0) -> list[ModuleRow]:
    """Return the modules that other exporters have recorded, each followed by those inside it."""
    rows = []
    for module in around.children:
        rows.append(ModuleRow(level, module.path, module.type, module.operations, sum(module.parameters.values())))
        rows += _imported_modules(module, level + 1)
    return rows
