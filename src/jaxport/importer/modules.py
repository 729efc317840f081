"""The tree of modules of an imported model, from the places that exporters record for its nodes."""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import onnx_ir as ir

from jaxport.graph.editing import name_with_place
from jaxport.importer.calls import PlacedOperation, listed_paths, unnumbered_paths
from jaxport.importer.names import given_name, unique
from jaxport.importer.resolving.graph import Body, BodyFunction, BoundNode, nodes_within
from jaxport.importer.values.stored import originals
from jaxport.onnx_facts import ELEMENTWISE, MEASURES, OF_PYTORCH, POOLS, SELECTIONS, SOFTMAXES, VIEWS
from jaxport.printable import printable

Scope = tuple[str, str]
"""The path of a module and the name of its type, which is empty if the exporter did not keep it."""

_NAMES, _CLASSES = OF_PYTORCH, "pkg.torch.onnx.class_hierarchy"
_NAMESPACE = "namespace"
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""The number of a module in the path of one that is in a list."""
_NO_SCOPE = "_empty_nn_module_stack_from_metadata_hook"
"""What PyTorch's exporter writes for the scopes of sizes, which it has none for."""
DEEPEST = 64
_OPERATORS = {name.lower() for name in ELEMENTWISE | VIEWS | SELECTIONS | SOFTMAXES | POOLS | MEASURES} | {
    "auto",
    "biasadd",
    "constantofshape",
    "helper",
    "range",
    "split",
    "tile",
}
"""Operators whose names exporters put between those of modules, and what else they put there."""


@dataclass(eq=False)
class NodeModule:
    """A module of an imported model.

    Attributes:
      path: its path in the model, `encoder.layer.0`; empty for the model itself.
      type: the name of its class or ONNX function; empty if the file has none.
      children: the modules inside it, in the order of the graph.
      operations: the number of its operations, including those of its children.
      parameters: the parameters that are used in it or in its children: their names, and how many elements each has.
      calls: how often it is called, as far as names and weights tell calls apart.
    """

    path: str
    type: str = ""
    children: list[NodeModule] = field(default_factory=list)
    operations: int = 0
    parameters: dict[str, int] = field(default_factory=dict)
    calls: int = 1

    def walk(self) -> Iterator[NodeModule]:
        """Yield this module and all modules inside it, each before its children."""
        yield self
        for child in self.children:
            yield from child.walk()

    def __getitem__(self, path: str) -> NodeModule:
        """Return the module at a path below the model: `program.modules["encoder.layer.0"]`.

        Raises:
          KeyError: there is no such module.
        """
        match = next((module for module in self.walk() if module.path == path), None)
        if match is None:
            raise KeyError(path)
        return match

    def __repr__(self) -> str:
        return f"Module({self.path!r}, {self.type!r}, {self.operations} operations)"

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yield the tree as text, one line per module; consecutive modules of the same structure share a line."""
        run: list[NodeModule] = []
        for child, following in pairwise([*self.children, None]):
            assert child is not None
            run.append(child)
            if following is not None and child.children and child.shape == following.shape:
                continue
            first, last = (module.path.removeprefix(f"{self.path}.") for module in (run[0], run[-1]))
            elements = sum(child.parameters.values())
            size = f"{elements:,}" if len(run) == 1 else f"{len(run)} × {elements:,}"
            parts = ["  " * depth + (first if len(run) == 1 else f"{first} … {last}")]
            parts += [child.type] * bool(child.type) + [size] * bool(elements)
            parts += [f"{child.calls} calls"] * (child.calls > 1)
            yield printable("  ".join(parts))
            yield from child.lines(depth + 1)
            run = []

    @property
    def shape(self) -> tuple:
        """A key that two modules of the same structure share."""
        return (
            self.type,
            self.operations,
            self.calls,
            tuple(self.parameters.values()),
            tuple(c.shape for c in self.children),
        )


Parameters = Mapping[ir.Value | None, tuple[str, int]]
"""The values that are parameters, each with its name and number of elements."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The place of a node in the tree of modules.

    Attributes:
      modules: the modules around it, from the outside in, without the model itself.
      bodies: the places of the nodes in nested bodies: of its branches, or of the function that it calls.
      is_known: whether the file tells the place; optimizers do not of the nodes that they add.
    """

    modules: tuple[NodeModule, ...]
    bodies: dict[Body, dict[BoundNode, NodePlace]]
    is_known: bool = True


def module_tree(body: Body, parameters: Parameters) -> tuple[NodeModule, dict[BoundNode, NodePlace]]:
    """Return the modules of a graph, and the place of each of its nodes."""
    root = NodeModule("")
    scopes = scopes_by_node(bound.node for bound in nodes_within(body))
    return root, _grow(body, parameters, [root], {"": root}, scopes)


def _grow(
    body: Body,
    parameters: Parameters,
    around: Sequence[NodeModule],
    known: dict[str, NodeModule],
    recorded: Mapping[ir.Node, Sequence[Scope]],
) -> dict[BoundNode, NodePlace]:
    places = {}
    parameters = dict(parameters)
    for node in body.nodes:
        inside = list(around)
        function = node.target if isinstance(node.target, BodyFunction) else None
        scopes = _nested([(around[-1].path, around[-1].type), *recorded[node.node]])
        # An exporter numbers the functions of one type that have different bodies.
        if function is not None and (not scopes or scopes[-1][1] != re.sub(r"_\d+$", "", function.label)):
            called = (node.node.name or "").rpartition("/")[2] or node.node.op_type
            path = unique(".".join(part for part in (inside[-1].path, called) if part), known)
            scopes = _nested([*scopes, (path, function.label)])
        for path, kind in scopes:
            module = known.get(path)
            if module is None:
                module = known[path] = NodeModule(path, kind)
                inside[-1].children.append(module)
            module.type = module.type or kind
            if module not in inside:
                inside.append(module)
        used = dict(parameters[value] for value in node.inputs if value in parameters)
        if used and not has_place(node.node) and node.node.op_type in COPIES:
            parameters |= dict.fromkeys(node.outputs, next(iter(used.items())))
        for module in inside:
            module.parameters.update(used)
            module.operations += function is None
        bodies = {inner: _grow(inner, parameters, inside, known, recorded) for inner in node.bodies()}
        if function is not None:
            passed_inputs = zip(function.body.inputs, node.inputs, strict=False)
            passed: Parameters = {formal: parameters[value] for formal, value in passed_inputs if value in parameters}
            bodies[function.body] = _grow(function.body, passed, inside, known, recorded)
        places[node] = NodePlace(tuple(inside[1:]), bodies, bool(recorded[node.node]) or has_place(node.node))
    return places


COPIES = VIEWS | {"Cast", "Identity"}
"""Operators whose result is the weight that they read, in another form."""


def scopes_by_node(nodes: Iterable[ir.Node]) -> dict[ir.Node, list[Scope]]:
    """Return the modules around each node as `scopes_of` does, with one path for all calls of a module.

    PyTorch's older exporter, and TensorFlow, number the calls of a module in the names of nodes: `/layer/fc_1/MatMul`.
    The newer one, and this package, write the paths themselves.
    """
    recorded = _with_counterparts({node: scopes_of(node) for node in nodes})
    paths = {path for scopes in recorded.values() for path, _ in scopes}
    typed = any(kind for scopes in recorded.values() for _, kind in scopes)
    listed = {path: path for path in paths} if typed else listed_paths([p for s in recorded.values() for p, _ in s])
    named = {node for node in recorded if _is_named(node)}
    operations, owners = [], []
    reads = {
        node: [w for value in node.inputs if (w := _weight(value)) is not None] for node in recorded if node in named
    }
    firsts = originals(weight for node, read in reads.items() if node.op_type != "Identity" for weight in read)
    for node, read in reads.items():
        owners += [name for value in (*node.inputs, *node.outputs) if (name := _owner(value))]
        chain = tuple(listed[path] for path, _ in recorded[node])
        operations.append(
            PlacedOperation(chain, node.op_type, tuple(firsts[weight] for weight in read if weight in firsts))
        )
    slashed = {path for node in named if name_with_place(node).startswith("/") for path, _ in recorded[node]}
    counted = {listed[path] for path in slashed}
    plain = unnumbered_paths(operations, owners, counted.__contains__)
    return {
        node: _nested(
            (plain.get(listed[path], listed[path]) if node in named else listed[path], kind) for path, kind in scopes
        )
        for node, scopes in recorded.items()
    }


def _with_counterparts(recorded: Mapping[ir.Node, list[Scope]]) -> dict[ir.Node, list[Scope]]:
    """Place nodes without modules where their counterparts of other layers are.

    ONNX Runtime names what it fuses anew, and the result of the last layer has the name of the model's output:

        SkipLayerNorm_1  of  layer.0/dense and layer.0/attention  →  layer.0/norm
        SkipLayerNorm_3  of  layer.1/dense and layer.1/attention  →  no module: layer.1/norm
    """
    counterparts: dict[Hashable, tuple[list[str], list[Scope]]] = {}
    for node, scopes in recorded.items():
        if scopes and (key := _kind_of_operands(node, recorded)) is not None:
            counterparts.setdefault(key[0], (key[1], scopes))
    placed = dict(recorded)
    for node, scopes in recorded.items():
        key = None if scopes or has_place(node) else _kind_of_operands(node, recorded)
        if key is None or key[0] not in counterparts:
            continue
        numbers, there = counterparts[key[0]]
        here = dict(zip(numbers, key[1], strict=True))
        if len(set(zip(numbers, key[1], strict=True))) == len(here):
            placed[node] = [
                (_NUMBER.sub(lambda found, here=here: here.get(found[0], found[0]), path), kind) for path, kind in there
            ]
    return placed


def _kind_of_operands(node: ir.Node, recorded: Mapping[ir.Node, Sequence[Scope]]) -> tuple[Hashable, list[str]] | None:
    """Return the operator with the modules of its operands, and the numbers in their paths; None if those are not
    known.
    """
    makers = [maker for value in node.inputs if value is not None and (maker := value.producer()) is not None]
    paths = [recorded[maker][-1][0] if recorded.get(maker) else "" for maker in makers]
    numbers = [number for path in paths for number in _NUMBER.findall(path)]
    if not all(paths) or not numbers:
        return None
    return (node.op_type, len(node.inputs), *(_NUMBER.sub("#", path) for path in paths)), numbers


def call_in_name(node: ir.Node, path: str) -> int:
    """Return the number of the call that the name of a node says, of the module of this path around it; 0 if it says
    none.

    >>> call_in_name(ir.node("Relu", [], name="/block/act_2/Relu"), "block.act")
    2
    """
    scopes = scopes_of(node) if _is_named(node) else []
    match = re.fullmatch(r"(.+)_(\d+)", scopes[-1][0].rpartition(".")[2]) if scopes else None
    return int(match[2]) if match is not None and match[1] == path.rpartition(".")[2] else 0


def _is_named(node: ir.Node) -> bool:
    """Whether the name of a node is all that tells the modules around it."""
    return _NAMES not in node.metadata_props and _NAMESPACE not in node.metadata_props


def _weight(value: ir.Value | None) -> ir.Value | None:
    """Return the stored weight that a value is; None if it is none."""
    while value is not None and (maker := value.producer()) is not None and maker.op_type == "Identity":
        value = maker.inputs[0]
    tensor = value.const_value if value is not None and value.is_initializer() else None
    return value if tensor is not None and tensor.dtype.is_floating_point() and len(tensor.shape) else None


def _owner(value: ir.Value | None) -> str:
    """Return the path of the module that the name of a weight says it belongs to; nothing if the name is made up."""
    name = value.name or "" if value is not None else ""
    if not given_name(name) or _weight(value) is None:
        return ""
    return re.split(r":\d+$", name)[0].replace("/", ".").rpartition(".")[0]


def scopes_of(node: ir.Node) -> list[Scope]:
    """Return the modules around a node, from the outside in, without the model itself unless its type is known.

    They are read from the metadata of PyTorch's exporter, from the `namespace` that this package writes, or from the
    name of the node (`/encoder/layer.0/MatMul`).

    >>> scopes_of(ir.node("MatMul", [], name="/encoder/layer.0/MatMul"))
    [('encoder', ''), ('encoder.layer.0', '')]
    >>> scopes_of(ir.node("MatMul", [], metadata_props={"namespace": "Mlp: my.Mlp/layers.0: flax.nnx.Linear"}))
    [('', 'my.Mlp'), ('layers.0', 'flax.nnx.Linear')]

    ONNX Runtime's optimizers name the nodes that they make anew, and keep the names of results:

    >>> scopes_of(ir.node("Gelu", [], name="Gelu_3", outputs=[ir.val("/encoder/act/Mul_1_output_0")]))
    [('encoder', ''), ('encoder.act', '')]
    """
    props = node.metadata_props
    names, classes = _listed(props.get(_NAMES)), _listed(props.get(_CLASSES))
    if names and len(names) == len(classes):
        if names[0] == _NO_SCOPE:
            return []
        # The last entry is the operation itself.
        return _nested(zip(names[:-1], classes[:-1], strict=True))
    if _NAMESPACE in props:
        return _nested(_scope_of(entry) for entry in props[_NAMESPACE].split("/"))
    parts = _modules_in_name(name_with_place(node))
    return _nested((".".join(parts[: end + 1]), "") for end in range(len(parts)))


def _modules_in_name(name: str) -> list[str]:
    """Return the modules in the name of a node: what is before its last part, without names of operators.

    TensorFlow Lite joins the names of all operators that it made one of; the first one has the place.

    >>> _modules_in_name("/encoder/layer.0/MatMul"), _modules_in_name("net/conv/BiasAdd;net/act/Relu6")
    (['encoder', 'layer.0'], ['net', 'conv'])
    >>> _modules_in_name("net/Reshape_1/Cast/MatMul")
    ['net']
    """
    parts = [part for part in name.partition(";")[0].split("/") if part][:-1]
    return [part for part in parts if not _is_operator(part)]


def _is_operator(part: str) -> bool:
    """Whether a part of a name is that of an operator without weights, numbered or not, and so is not a module."""
    match = re.fullmatch(r"([A-Z][A-Za-z]*?)[_\d]*", part)
    return match is not None and match[1].lower() in _OPERATORS


def has_place(node: ir.Node) -> bool:
    """Whether the exporter recorded which module a node is in; optimizers do not for the nodes that they add."""
    if _NAMES in node.metadata_props:
        return _NO_SCOPE not in node.metadata_props[_NAMES]
    return _NAMESPACE in node.metadata_props or "/" in name_with_place(node)


def _scope_of(entry: str) -> Scope:
    path, _, kind = entry.rpartition(": ") if ": " in entry else ("", "", entry)
    # This package names the root, which has no path, after its class.
    return ("" if path == kind.rpartition(".")[2] else path), kind


def _nested(scopes: Iterable[Scope]) -> list[Scope]:
    """Return the scopes without repetitions, each path nested in that of the scope around it."""
    nested: list[Scope] = []
    for path, kind in scopes:
        around = nested[-1][0] if nested else ""
        if around and path != around and not path.startswith(f"{around}."):
            path = f"{around}.{path}" if path else around
        if (not nested or path != around) and (path or kind) and len(nested) < DEEPEST:
            nested.append((path, kind))
    return nested


def _listed(text: str | None) -> list[str]:
    """Parse a list of strings that an exporter wrote as Python prints it; return an empty one for anything else."""
    if not text:
        return []
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return value if isinstance(value, list) and all(isinstance(entry, str) for entry in value) else []
