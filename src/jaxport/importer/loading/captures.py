"""What functions of a model take from the main graph: a function sees no values but its inputs, so each call passes
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import onnx_ir as ir

from jaxport.graph.editing import Namer, subgraphs

MOST_PASSED = 2**20
"""The most inputs that calls get: functions of a model that would need more keep their constants."""
LONGEST = 200
"""The characters of the longest path."""


class FunctionUse(NamedTuple):
    """A node that calls a function, and the function that it is in, if any."""

    node: ir.Node
    caller: ir.Function | None


class Captures:
    """Further inputs of the functions of a model: the same values of the main graph in each call.

    `functions` are those that calls reach, each before those that it calls; none if the calls are not valid.

    >>> import onnx.parser
    >>> model = ir.from_proto(
    ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17, "d": 1]>
    ...     agraph (float[N] x) => (float[N] y) <float w = {2}> { y = d.F(x) }
    ...     <domain: "d", opset_import: ["": 17]> F (a) => (b) { b = Neg(a) }''')
    ... )
    >>> captures = Captures(model)
    >>> captures.path(captures.functions[0])
    'F'
    >>> [value.name for value in captures.take({captures.functions[0]: {model.graph.initializers["w"]: "c"}})]
    ['c']
    >>> [value.name for value in model.graph[0].inputs], [value.name for value in captures.functions[0].inputs]
    (['x', 'w'], ['a', 'c'])
    """

    def __init__(self, model: ir.Model) -> None:
        self._calls: dict[ir.Function, list[FunctionUse]] = {function: [] for function in model.functions.values()}
        for caller in (None, *model.functions.values()) if model.functions else ():
            root = model.graph if caller is None else caller.graph
            for node in (node for graph in (root, *subgraphs(root)) for node in graph):
                function = model.functions.get(node.op_identifier())
                if function is not None:
                    self._calls[function].append(FunctionUse(node, caller))
        self._paths: dict[ir.Function | None, str] = {None: ""}
        for function in self._order():
            self._calls[function] = [call for call in self._calls[function] if call.caller in self._paths]
            if self._calls[function]:
                self._paths[function] = self._path(function)
        self.functions = [function for function in self._paths if function is not None]

    def _order(self) -> list[ir.Function]:
        if any(len(call.node.inputs) > len(f.inputs) for f, calls in self._calls.items() for call in calls):
            return []
        try:
            return list(TopologicalSorter({f: filter(None, self._callers(f)) for f in self._calls}).static_order())
        except CycleError:
            return []

    def path(self, function: ir.Function) -> str:
        """Return the path of the only call of a function, or the name of one that has several."""
        return self._paths[function]

    def _path(self, function: ir.Function) -> str:
        calls = self._calls[function]
        if len(calls) > 1:
            return function.name[:LONGEST]
        name = (calls[0].node.name or function.name).strip("/").replace("/", ".")[:LONGEST]
        around = self._paths[calls[0].caller]
        return f"{around}.{name}" if around and len(around) + len(name) < LONGEST else name

    def allow(self, counts: Mapping[ir.Function, int]) -> bool:
        """Whether functions may take so many values each: it is not more than a file of this size should need."""
        needed = dict.fromkeys(self.functions, 0) | dict(counts)
        for function in reversed(self.functions):
            for caller in self._callers(function):
                if caller is not None:
                    needed[caller] += needed[function]
        return sum(number * len(self._calls[function]) for function, number in needed.items()) <= MOST_PASSED

    def take(self, taken: Mapping[ir.Function, Mapping[ir.Value, str]]) -> list[ir.Value]:
        """Pass values of the main graph to functions; return the inputs that functions have for them, in the same
        order.

        The inputs have these names, unless they are taken. A function that calls others takes what they take, too.
        """
        needed: dict[ir.Function, dict[ir.Value, str]] = {f: dict(taken.get(f, {})) for f in self.functions}
        for function in reversed(self.functions):
            for caller in self._callers(function):
                if caller is not None:
                    needed[caller] = {value: value.name or "" for value in needed[function]} | needed[caller]
        inside: dict[ir.Function | None, dict[ir.Value, ir.Value]] = {None: {}}
        for function, values in needed.items():
            namer = Namer(_names(function) if values else ())
            inside[function] = {
                v: ir.Value(name=namer.unique(n), type=v.type, shape=v.shape) for v, n in values.items()
            }
        for function, values in needed.items():
            count = len(function.inputs)
            function.inputs.extend(inside[function].values())
            for node, caller in self._calls[function] if values else ():
                node.resize_inputs(count + len(values))
                for index, value in enumerate(values, count):
                    node.replace_input_with(index, inside[caller].get(value, value))
        return [inside[function][value] for function, values in taken.items() for value in values]

    def _callers(self, function: ir.Function) -> list[ir.Function | None]:
        return list(dict.fromkeys(call.caller for call in self._calls[function]))


def _names(function: ir.Function) -> Iterator[str | None]:
    for graph in (function.graph, *subgraphs(function.graph)):
        yield from (value.name for value in (*graph.inputs, *graph.initializers.values()))
        yield from (value.name for node in graph for value in node.outputs)
