"""What a program shows of itself: `repr(program)`, and `program.explain()`, the graph after each phase of the
import.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from jaxport.columns import counted, titled
from jaxport.errors import JaxportError
from jaxport.graph.editing import operator_name
from jaxport.importer.arguments import declaration
from jaxport.importer.interface import ImportedProgram
from jaxport.importer.modules import Scope, scopes_by_node
from jaxport.importer.resolving.graph import Body, BodyFunction, BoundNode, SchemaFunction
from jaxport.importer.resolving.unchecked import unknown_attributes
from jaxport.importer.running.evaluate import observing
from jaxport.importer.traced.recorded_program import record
from jaxport.importer.values.dtypes import STRING
from jaxport.importer.values.host import HostValue, RuntimeValue
from jaxport.importer.values.recording import Recorded, Step
from jaxport.printable import Shown, printable, printable_lines

LONGEST_VALUE = 60
_OWN = "jaxport.importer.ops."


@dataclass(frozen=True, repr=False)
class Phase(Shown):
    """The graph after one phase: a table with a title, a header and one row for each node."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def text(self) -> str:
        """Return the title, a row for each node, and the note."""
        table = titled(f"{self.name}: {self.title}", [self.header, *self.rows], gap=3)
        return f"{table}\n{printable_lines(self.note)}" if self.note else table


@dataclass(frozen=True, repr=False)
class GraphExplanation(Shown):
    """The graph after each phase; its text is four tables.

    >>> import onnx.parser
    >>> from jaxport.importer import from_onnx
    >>> explanation = from_onnx(
    ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     agraph (float[n, 2] x) => (float[m] y) { s = Size(x) o = Constant<value_ints = [0]>()
    ...         f = Unsqueeze(s, o) y = Reshape(x, f) }''')
    ... ).explain()
    >>> print(explanation["folded"])
    folded: 3 of 4 operations are known before the program runs
      operation   module   result                      why
      Size                 s: known int64 = 2*n        from the shape of its input
      Constant             o: known int64[1] = [0]     it is a constant
      Unsqueeze            f: known int64[1] = [2*n]   all its inputs are known
      Reshape              y: float32[2*n]
    """

    phases: tuple[Phase, ...]

    def __getitem__(self, name: str) -> Phase:
        """Return the phase of a name: "loaded", "resolved", "folded" or "finalized".

        Raises:
          KeyError: there is no such phase, or the program could not be traced that far.
        """
        match = next((phase for phase in self.phases if phase.name == name), None)
        if match is None:
            raise KeyError(name)
        return match

    def text(self) -> str:
        """Return the texts of the phases."""
        return "\n\n".join(phase.text() for phase in self.phases)


@dataclass(eq=False)
class _Seen:
    """The inputs and outputs of a node's last evaluation."""

    inputs: Sequence[RuntimeValue]
    outputs: Sequence[RuntimeValue]


def explain(program: ImportedProgram, inputs: Mapping[str, object] | None = None) -> GraphExplanation:
    """Return the graph of a program after each phase of its import.

    Args:
      program: the imported model.
      inputs: for `jaxport.importer.traced.recorded_program.record`: sizes other than the declared ones, and values that
        decide shapes.
    """
    seen: dict[BoundNode, _Seen] = {}
    steps: list[Step] = []
    note = ""
    try:
        with observing(lambda node, inputs, results: seen.update({node: _Seen(inputs, results)})):
            steps = record(program, inputs).steps
    except JaxportError as error:
        note = f"then it stops, and calls run operator by operator:\n{error}"
    phases = [_loaded(program.model.graph), _resolved(program), _folded(program, seen, note)]
    if not note:
        phases.append(_finalized(program, steps))
    return GraphExplanation(tuple(phases))


def _loaded(graph: ir.Graph) -> Phase:
    rows = [
        (
            node.name or "",
            operator_name(node),
            ", ".join((value.name or "") if value is not None else "" for value in node.inputs),
            ", ".join(f"{value.name}: {_declared(value)}" for value in node.outputs),
        )
        for node in graph.all_nodes()
    ]
    return Phase("loaded", counted(len(rows), "node"), ("node", "operator", "inputs", "outputs"), tuple(rows))


def _resolved(program: ImportedProgram) -> Phase:
    rows = [(_label(node, depth), *_served(node)) for node, depth in _nodes(program.body)]
    whole = sum(1 for _ in program.model.graph)
    dropped = whole - len(program.body.nodes)
    left_out = f"{counted(dropped, 'node')} that no output needs {'is' if dropped == 1 else 'are'} dropped"
    title = counted(len(rows), "operation") + (f"; {left_out}" if dropped else "")
    ignored = [f"  ignored   `{each.name}` of {each.where}: {each.why}" for each in unknown_attributes(program.model)]
    return Phase("resolved", title, ("operation", "served by", "since"), tuple(rows), "\n".join(ignored))


def _folded(program: ImportedProgram, seen: Mapping[BoundNode, _Seen], note: str) -> Phase:
    rows, known = [], 0
    scopes = scopes_by_node(node.node for node, _ in _nodes(program.body))
    for node, depth in _nodes(program.body):
        if node not in seen:
            continue
        results = [
            f"{value.name}: {_shown(result)}"
            for value, result in zip(node.outputs, seen[node].outputs, strict=False)
            if value is not None and result is not None
        ]
        folded = all(isinstance(r, HostValue | list) for r in seen[node].outputs if r is not None)
        known += folded
        rows.append(
            (_label(node, depth), _module(scopes[node.node]), ", ".join(results), _reason(seen[node]) if folded else "")
        )
    title = (
        f"{known} of {counted(len(rows), 'operation')} {'is' if len(rows) == 1 else 'are'} known before the "
        "program runs"
    )
    return Phase("folded", title, ("operation", "module", "result", "why"), tuple(rows), note)


def _finalized(program: ImportedProgram, steps: Sequence[Step]) -> Phase:
    calls: dict[ir.Node | None, list[str]] = {}
    for step in steps:
        calls.setdefault(step.node, []).append(_called(step))
    rows = [
        (_label(node, depth), " ".join(calls[node.node]))
        for node, depth in _nodes(program.body)
        if node.node in calls and depth == 0
    ]
    weights = program.weights
    roles = [("parameter", name, f"{spec.dtype}{list(spec.shape)}") for name, spec in weights.specs.items()]
    roles += [("constant", name, f"{array.dtype}{list(array.shape)}") for name, array in program.constants.items()]
    note = "\n".join(printable(f"  {kind:<9} {name}: {text}") for kind, name, text in roles)
    title = (
        f"{counted(len(steps), 'call')}, {counted(len(weights), 'parameter')}, "
        f"{counted(len(program.constants), 'constant')}"
    )
    return Phase("finalized", title, ("operation", "calls"), tuple(rows), note)


def _nodes(body: Body, depth: int = 0) -> Iterator[tuple[BoundNode, int]]:
    """Yield the operations of a body, each followed by those of its branches, loops and functions."""
    for node in body.nodes:
        yield node, depth
        inner: Iterable[Body] = node.bodies()
        if isinstance(node.target, BodyFunction):
            inner = [*inner, node.target.body]
        for each in inner:
            yield from _nodes(each, depth + 1)


def _label(node: BoundNode, depth: int) -> str:
    return "  " * depth + (node.node.name or node.target.label)


def _module(scopes: Sequence[Scope]) -> str:
    return scopes[-1][0] if scopes else ""


def _served(node: BoundNode) -> tuple[str, str]:
    """Return the name of the function of a node, and the version from which on it applies."""
    target = node.target
    if isinstance(target, BodyFunction | SchemaFunction):
        local = isinstance(target, BodyFunction) and target.positions is None
        return ("the model's own definition" if local else "ONNX's definition"), ""
    function = target.function
    name = getattr(function, "__qualname__", None) or repr(function)
    module = getattr(function, "__module__", None) or ""
    return (name if target.plain else f"{module.removeprefix(_OWN)}.{name}"), str(target.since)


def _declared(value: ir.Value) -> str:
    if value.dtype is None:
        return "?"
    return f"{value.dtype.name.lower()}{value.shape if value.shape is not None else ''}"


def _shown(value: RuntimeValue) -> str:
    if isinstance(value, HostValue):
        kind = "string" if value.dtype == STRING else value.dtype
        text = str(value.tolist() if not value.symbolic else value.data.tolist())
        shape = list(value.shape) if value.ndim else ""
        return f"known {kind}{shape} = {text if len(text) <= LONGEST_VALUE else f'{text[:LONGEST_VALUE]}…'}"
    if isinstance(value, list | tuple):
        return f"a sequence of {len(value)}"
    if isinstance(value, Recorded):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return str(value)


def _reason(seen: _Seen) -> str:
    """Return why a node's result is known."""
    inputs = [value for value in seen.inputs if value is not None]
    if not inputs:
        return "it is a constant"
    if all(isinstance(value, HostValue | list) for value in inputs):
        return "all its inputs are known"
    return "from the shape of its input"


def _called(step: Step) -> str:
    return {"index": "[…]", "vmap": "jax.vmap"}.get(step.form, step.name)


def summary(program: ImportedProgram, calls: str) -> str:
    """Return the inputs, outputs, parameters, operators and modules of a program, and how its `calls` ran."""
    body, weights = program.body, program.weights
    operators = Counter(node.target.label for node in body.nodes)
    rows = [f"Program `{program.model.graph.name}` of {counted(len(body.nodes), 'operation')}"]
    for label, values in (("input", program.inputs), ("output", body.outputs)):
        rows += [f"  {label:<7} {declaration(value)}" for value in values]
    count = sum(body.initializers[value].size for value in weights.initializers.values())
    rows.append(f"  params  {counted(len(weights), 'array')}, {counted(count, 'element')}")
    if program.untied:
        (name, tensor), *others = program.untied.items()
        also = f", and {len(others):,} more such" if others else ""
        rows.append(f"  ties    {name} is stored as {tensor}{also}; each is a parameter")
    rows.append("  ops     " + ", ".join(f"{name} {times}" for name, times in operators.most_common()))
    rows.append(f"  calls   {calls}")
    if program.modules.children:
        rows.append(f"  modules {program.modules.type}".rstrip())
        rows += [f"    {line}" for line in program.modules.lines()]
    return "\n".join(map(printable, rows))
