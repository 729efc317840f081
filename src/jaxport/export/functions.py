"""Export chosen blocks as ONNX functions: one definition per distinct body, with the weights as inputs or inside.

A body is built for every call and compared in its ONNX form: node by node, with its constants. Calls whose bodies are
equal share one function, whatever paths and source lines they come from.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

import jax.numpy as jnp
import onnx_ir as ir
from jax.core import Tracer

from jaxport.blocks.marking.boundary import boundary
from jaxport.blocks.marking.window import target_of
from jaxport.errors import ExportError, InvalidArgument
from jaxport.export.emit import dim_values
from jaxport.export.emit.value import Scope, Value
from jaxport.graph.editing import SMALL
from jaxport.jaxprs import JaxprEqn, Module, Parameters
from jaxport.jaxprs.identity import IdentitySet

if TYPE_CHECKING:
    from jaxport.blocks.block import Block
    from jaxport.export.emit.emitter import Emitter

#: The key under which `onnx_function` stores its options on a block.
OPTION = "onnx_function"


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@overload
def onnx_function(decorated: Decorated) -> Decorated: ...


@overload
def onnx_function(
    *,
    unique: bool = False,
    namespace: str | None = None,
    type: str | None = None,
    name: str | None = None,
    static: Iterable[str] = (),
    runtime: Iterable[str] = (),
) -> Callable[[Decorated], Decorated]: ...


def onnx_function(
    decorated: Module = None,
    *,
    unique: bool = False,
    namespace: str | None = None,
    type: str | None = None,
    name: str | None = None,
    static: Iterable[str] = (),
    runtime: Iterable[str] = (),
) -> Module:
    """Export the calls of a class, method or function as ONNX functions.

    Outside an export, the decorated class, method or function behaves as before.

    Args:
      decorated: a class whose instances are called, a method, or a function.
      unique: keep the weights inside as constants, and share the function only between calls with equal weights; by
        default the weights are inputs, and all calls with equal bodies share it.
      namespace: the domain of the function; by default its package.
      type: the name of the ONNX function; by default that of the decorated one.
      name: the same as `type`.
      static: keyword arguments that must be Python values; they are part of the identity.
      runtime: keyword arguments that become inputs even if a call passes a Python number.

    Raises:
      InvalidArgument: the options contradict each other.

    Example:
      >>> import jax.numpy as jnp, jaxport
      >>> @jaxport.onnx_function
      ... def halve(x):
      ...     return x / 2
      >>> exported = jaxport.to_onnx(lambda x: halve(halve(x)), [("B",)])
      >>> [function.name for function in exported.model.functions.values()]
      ['halve']
    """
    static, runtime = tuple(static), tuple(runtime)
    both = sorted(set(static) & set(runtime))
    if both:
        raise InvalidArgument(
            f"`{both[0]}` is in `static` and in `runtime`",
            where="`onnx_function`",
            why="a keyword argument is either part of the identity or an input",
            instead="leave it in one of them",
        )
    if type is not None and name is not None and type != name:
        raise InvalidArgument(
            f"`type={type!r}` and `name={name!r}` differ", where="`onnx_function`", instead="give one of them"
        )
    options = {OPTION: {"unique": unique, "namespace": namespace, "name": type or name, "runtime": runtime}}

    def prepare(keywords: Parameters) -> dict[str, Any]:
        for key in static:
            if isinstance(keywords.get(key), Tracer):
                raise InvalidArgument(
                    f"`{key}` is static, but a call passes it a traced array",
                    where="`onnx_function(static=...)`",
                    instead="pass a Python value, or name it in `runtime`",
                )
        return {key: jnp.asarray(value) if key in runtime else value for key, value in keywords.items()}

    def decorate(thing: Module) -> Module:
        return boundary(thing, options=options, prepare=prepare)

    return decorate if decorated is None else decorate(decorated)


@dataclass(frozen=True)
class Selector:
    """Selects the blocks that become functions: by target, or by a predicate."""

    targets: tuple[str, ...] = ()
    predicates: tuple[Callable[[Block], bool], ...] = ()

    def matches(self, block: Block) -> list[str | Callable[[Block], bool]]:
        """Return the entries of the selector that a block matches."""
        names = {block.target, block.target.rsplit(".", 1)[-1]}
        return [t for t in self.targets if t in names] + [p for p in self.predicates if p(block)]

    def boundaries(self) -> tuple[str, ...]:
        """Return the targets that name plain functions, which need a boundary."""
        return tuple(target for target in self.targets if _is_function(target))


Chosen = str | type | Callable[["Block"], bool]
"""What selects blocks: a qualified name, a class, or a predicate."""
Functions = Chosen | Iterable[Chosen]


def selector(functions: Functions | None) -> Selector:
    """Return the selector for the argument `to_onnx(functions=...)`.

    Raises:
      InvalidArgument: an entry is neither a name, a class, nor a predicate.
    """
    if functions is None:
        return Selector()
    entries = functions if isinstance(functions, (list, tuple, set, frozenset)) else [functions]
    targets, predicates = [], []
    for entry in entries:
        if isinstance(entry, str):
            targets.append(entry)
        elif isinstance(entry, type):
            targets.append(target_of(entry))
        elif callable(entry):
            predicates.append(entry)
        else:
            raise InvalidArgument(
                f"{entry!r} selects no blocks",
                where="`to_onnx(functions=...)`",
                instead='give a qualified name ("flax.nnx.Linear"), a class, or a predicate on blocks',
            )
    return Selector(tuple(targets), tuple(predicates))


def _is_function(target: str) -> bool:
    """Whether a qualified name is that of a function rather than a class."""
    module, _, name = target.rpartition(".")
    try:
        named = getattr(importlib.import_module(module), name, None) if module else None
    except ImportError:
        return False
    return callable(named) and not isinstance(named, type)


@dataclass(frozen=True)
class IsWhole:
    """Whether a block is exported by a rule for its target, or as an ONNX function."""

    rules: frozenset[str]
    selector: Selector

    def __call__(self, block: Block) -> bool:
        """Return the answer for a block."""
        return block.target in self.rules or OPTION in block.options or bool(self.selector.matches(block))


@dataclass(frozen=True)
class FunctionCall:
    """One call of a function, and why it shares a function or has its own."""

    path: str
    source: str
    function: str
    note: str


@dataclass(eq=False)
class FunctionBuilder:
    """Builds and shares the functions of one export.

    Attributes:
      selector: the user's choice; decorated classes and functions bring their own options.
      functions: the functions by digest of their bodies.
      calls: every call, in order.
    """

    selector: Selector
    functions: dict[str, ir.Function] = field(default_factory=dict)
    calls: list[FunctionCall] = field(default_factory=list)
    _owners: dict[tuple[str, str], str] = field(default_factory=dict)
    _signatures: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    _hit: IdentitySet[str | Callable[[Block], bool]] = field(default_factory=IdentitySet[Any])

    def wants(self, block: Block) -> bool:
        """Whether a block becomes a function."""
        hits = self.selector.matches(block)
        for hit in hits:
            self._hit.add(hit)
        return bool(hits) or OPTION in block.options

    def call(self, op: Emitter, equation: JaxprEqn, operands: Sequence[Value]) -> list[Value]:
        """Emit a call of the function for a block."""
        block = equation.params["block"]
        options: Parameters = block.options.get(OPTION, {})
        scope = Scope("function")
        inner, passed, inside = op.at(scope, base=block.path), [], []
        for index, value in enumerate(operands):
            weight, argument = block.weights.get(index), "".join(block.arguments[index : index + 1])
            kept = options.get("unique") if weight is not None else argument not in options.get("runtime", ())
            if value.is_constant and kept:
                inside.append(value)
                continue
            passed.append(op.expanded(value))
            name = (weight or "").removeprefix(f"{block.path}.") or argument or f"input_{len(passed)}"
            inside.append(scope.add_input(Value(value.dtype, passed[-1].shape, name=name)))
        results = op.walker.inline(inner, equation.params["jaxpr"], inside)
        graph = op.walker.finish_graph(inner, results, name=block.name)
        function = self._shared(op, block, options, graph)
        root = op.at_root()
        passed.extend(dim_values.symbol(root, name) for name in scope.dim_inputs)
        stamps = [(value.dtype, aval.shape) for value, aval in zip(results, op.outs, strict=True)]
        emitted = op.emit(function.name, *passed, domain=function.domain, results=stamps)
        return list(emitted) if isinstance(emitted, tuple) else [emitted]

    def _shared(self, op: Emitter, block: Block, options: Parameters, graph: ir.Graph) -> ir.Function:
        """Return the function with this body: an existing one, or a new one."""
        signature = tuple(_lines(graph))
        package, _, short = block.target.rpartition(".")
        domain = options.get("namespace") or package or "jaxport"
        wish = options.get("name") or short
        digest = hashlib.sha256("\n".join((domain, wish, *signature)).encode()).hexdigest()
        others = self._signatures.setdefault(f"{domain}.{wish}", [])
        note = ""
        if digest not in self.functions:
            owner = self._owners.setdefault((domain, wish), block.target)
            if owner != block.target:
                raise InvalidArgument(
                    f"the ONNX function `{domain}.{wish}` is claimed by `{owner}` and by `{block.target}`",
                    where=op.place.source,
                    instead="give one of them another `name` or `namespace`",
                )
            name = wish if not others else f"{wish}_{len(others)}"
            self.functions[digest] = ir.Function(domain, name, graph=graph, attributes=[])
            note = f"not shared: {_difference(others[-1], signature)}" if others else "defined here"
            others.append(signature)
        function = self.functions[digest]
        self.calls.append(FunctionCall(block.path, op.place.source, f"{domain}.{function.name}", note or "shared"))
        return function

    def check_all_used(self) -> None:
        """Refuse a selector that matched no block.

        Raises:
          ExportError: an entry of `functions` matched nothing.
        """
        for entry in (*self.selector.targets, *self.selector.predicates):
            if entry not in self._hit:
                raise ExportError(
                    f"`functions={entry!r}` matches no call",
                    why="no module class, function or decorated callable of that name is called",
                    instead="`exported.explain()` of an export without `functions` shows the targets",
                )

    def attach(self, model: ir.Model, opset: int, domains: Mapping[str, int]) -> None:
        """Add the functions to a model, and the domains that they and their callers import, in these versions or the
        first.
        """
        for function in self.functions.values():
            model.functions[function.identifier()] = function
            model.graph.opset_imports.setdefault(function.domain, 1)  # runtimes inline nested calls into the graph
        for graph in (model.graph, *self.functions.values()):
            graph.opset_imports[""] = opset
            for node in graph.all_nodes():
                if node.domain:
                    graph.opset_imports.setdefault(node.domain, domains.get(node.domain, 1))


def _lines(graph: ir.Graph) -> Iterable[str]:
    """Return the graph as text that is the same for equal bodies: values are numbered, names and origins omitted."""
    numbers: dict[ir.Value, int] = {}

    def number(value: ir.Value | None) -> str:
        return "-" if value is None else f"%{numbers.setdefault(value, len(numbers))}"

    def described(value: ir.Value) -> str:
        return f"{number(value)}: {value.dtype} {value.shape}"

    def visit(inner: ir.Graph) -> Iterable[str]:
        yield "inputs " + ", ".join(map(described, inner.inputs))
        for node in inner:
            attributes = []
            for attribute in sorted(node.attributes.values(), key=lambda a: a.name):
                if attribute.type == ir.AttributeType.GRAPH:
                    yield from visit(attribute.as_graph())
                elif attribute.type == ir.AttributeType.TENSOR:
                    attributes.append(f"{attribute.name}={_content(attribute.as_tensor())}")
                else:
                    attributes.append(f"{attribute.name}={attribute.value}")
            operands = ", ".join(map(number, node.inputs))
            results = ", ".join(map(described, node.outputs))
            yield f"{results} = {node.domain}.{node.op_type}({operands}) {' '.join(attributes)}"
        yield "outputs " + ", ".join(map(number, inner.outputs))

    return visit(graph)


def _content(tensor: ir.TensorProtocol) -> str:
    """Return a constant as text: by its value if it is small, else by a digest of its bytes."""
    head = f"{tensor.dtype}{list(tensor.shape)}"
    if tensor.nbytes <= SMALL:
        return f"{head} {tensor.numpy().tolist()}"
    return f"{head} {hashlib.sha256(tensor.tobytes()).hexdigest()}"


def _difference(before: Sequence[str], now: Sequence[str]) -> str:
    """Return the first line in which two bodies differ."""
    for old, new in zip(before, now, strict=False):
        if old != new:
            return f"`{new}` where the last one has `{old}`"
    return f"{len(now)} lines where the last one has {len(before)}"
