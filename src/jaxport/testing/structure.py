"""Assertions on the structure of a graph, in terms that survive a change of its details, and on the shapes it declares.

A path is written `Transpose -> Conv -> Relu`: nodes of these operators, each of which uses a result of the one before
it. A shape may follow an operator, `Conv[B, 8, 6, 6]`: that of the node's first result, with `?` for any dim. Operators
of other domains are written with them: `flax.nnx.Linear`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from jaxport.export.delivery.runtime import Session
from jaxport.export.exported import Exported
from jaxport.jaxprs import Parameters, dims
from jaxport.jaxprs.dim_text import split_sizes


def expect_graph(
    exported: Exported | ir.Model,
    paths: Sequence[str] = (),
    *,
    exact: bool = False,
    counts: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[object]] | None = None,
    functions: Mapping[str, int] | None = None,
) -> None:
    """Assert the structure of a model.

    Args:
      exported: the model.
      paths: paths that the main graph, a subgraph or a function must have.
      exact: whether every node of the main graph must be on one of the paths, and each path occur as often as it is
        listed.
      counts: the required number of nodes of an operator, in the graph, its subgraphs and its functions.
      shapes: the declared shape of values by name: sizes, names and expressions.
      functions: the number of calls of each ONNX function; no others are allowed.

    Raises:
      AssertionError: the structure differs; the message shows the expectation and the paths of the model.

    >>> from jaxport.testing import expect_graph
    >>> import jax.numpy as jnp, jaxport
    >>> exported = jaxport.to_onnx(lambda x: jnp.tanh(x) * 2, [("B", 3)])
    >>> expect_graph(exported, ["Tanh -> Mul[B, 3]"], exact=True, counts={"Cast": 0}, shapes={"output": ("B", 3)})
    """
    model = exported.model if isinstance(exported, Exported) else exported
    graphs = [model.graph, *model.functions.values()]
    nodes = [node for graph in graphs for node in graph.all_nodes()]
    used: Counter[ir.Node] = Counter()
    for path in paths:
        elements = [_Element(text) for text in path.split("->")]
        match = next((p for p in _matches(nodes, elements) if not (exact and any(used[n] for n in p))), None)
        assert match is not None, f"there is no path `{path}`; the model has\n{_listed(linear_paths(model.graph))}"
        used.update(match)
    if exact:
        left = [name(node) for node in model.graph if not used[node]]
        assert not left, f"no path names {', '.join(left)}; the model has\n{_listed(linear_paths(model.graph))}"
    operators = Counter(map(name, nodes))
    for operator, count in (counts or {}).items():
        assert operators[operator] == count, f"there are {operators[operator]} {operator}, {count} are expected"
    values = {v.name: v for g in graphs for v in (*g.inputs, *(o for n in g.all_nodes() for o in n.outputs))}
    for value_name, shape in (shapes or {}).items():
        assert value_name in values, f"there is no value `{value_name}`"
        found_shape = shape_of(values[value_name])
        assert found_shape == tuple(shape), f"`{value_name}` has the shape {found_shape}, {tuple(shape)} is expected"
    if functions is not None:
        called = {f"{domain}.{n}": operators[f"{domain}.{n}"] for domain, n, _ in model.functions}
        assert called == dict(functions), f"the functions are called {called}, {dict(functions)} is expected"


def expectation(exported: Exported | ir.Model) -> str:
    """Return the call of `expect_graph` that a model passes, as text to paste into a test.

    >>> from jaxport.testing import expectation
    >>> import jax.numpy as jnp, jaxport
    >>> print(expectation(jaxport.to_onnx(lambda x: jnp.tanh(x) * 2, [("B", 3)])))
    expect_graph(
        exported,
        ["Tanh -> Mul"],
        exact=True,
        counts={"Mul": 1, "Tanh": 1},
        shapes={"output": ("B", 3)},
        functions={},
    )
    """
    model = exported.model if isinstance(exported, Exported) else exported
    operators = Counter(name(n) for g in (model.graph, *model.functions.values()) for n in g.all_nodes())
    called = {f"{domain}.{n}": operators[f"{domain}.{n}"] for domain, n, _ in model.functions}
    counts = {operator: operators[operator] for operator in sorted(operators) if operator not in called}
    lines = [
        _quoted([" -> ".join(map(name, path)) for path in linear_paths(model.graph)]),
        "exact=True",
        f"counts={_quoted(counts)}",
        f"shapes={_quoted({value.name: shape_of(value) for value in model.graph.outputs})}",
        f"functions={_quoted(called)}",
    ]
    return "\n".join(["expect_graph(", "    exported,", *(f"    {line}," for line in lines), ")"])


def linear_paths(graph: ir.Graph) -> list[list[ir.Node]]:
    """Split a graph where it branches or joins: each node is on one path, whose inner results are used once."""
    paths: list[list[ir.Node]] = []
    ends: dict[ir.Node, list[ir.Node]] = {}
    for node in graph:
        before = [p for p in dict.fromkeys(v.producer() for v in node.inputs if v is not None) if p is not None]
        joined = ends.get(before[0]) if len(before) == 1 and _used_once(before[0]) else None
        if joined is None:
            joined = []
            paths.append(joined)
        else:
            del ends[joined[-1]]
        joined.append(node)
        ends[node] = joined
    return paths


def name(node: ir.Node) -> str:
    """Return the operator of a node, with its domain unless that is the default one."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def shape_of(value: ir.Value) -> tuple[Any, ...] | None:
    """Return the declared shape: sizes, and names or expressions as text."""
    return None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)


class _Element:
    """One operator of a path, perhaps with the shape of its first result."""

    def __init__(self, text: str):
        matched = re.fullmatch(r"\s*([\w.]+)\s*(?:\[(.*)\])?\s*", text)
        assert matched is not None, f"`{text}` is not an element of a path: write an operator, or `Conv[B, 8, 6, 6]`"
        self.operator, shape = matched.groups()
        self.shape = None if shape is None else split_sizes(shape) if shape.strip() else []

    def fits(self, node: ir.Node) -> bool:
        if name(node) != self.operator:
            return False
        if self.shape is None:
            return True
        shape = shape_of(node.outputs[0])
        return (
            shape is not None
            and len(shape) == len(self.shape)
            and all(wanted in ("?", str(dim)) for wanted, dim in zip(self.shape, shape, strict=True))
        )


def _matches(nodes: Sequence[ir.Node], elements: Sequence[_Element]) -> Iterator[list[ir.Node]]:
    """Yield the paths of nodes that match the elements."""

    def following(node: ir.Node, rest: Sequence[_Element]) -> Iterator[list[ir.Node]]:
        if not rest:
            yield [node]
            return
        users = dict.fromkeys(user for value in node.outputs for user, _ in value.uses())
        for user in users:
            if rest[0].fits(user):
                yield from ([node, *tail] for tail in following(user, rest[1:]))

    for node in nodes:
        if elements[0].fits(node):
            yield from following(node, elements[1:])


def _used_once(node: ir.Node) -> bool:
    users = [user for value in node.outputs for user, _ in value.uses()]
    return len(set(users)) == 1 and not any(value.is_graph_output() for value in node.outputs)


def _quoted(value: object) -> str:
    return repr(value).replace("'", '"')


def _listed(paths: Sequence[Sequence[ir.Node]]) -> str:
    return "\n".join("  " + " -> ".join(map(name, path)) for path in paths)


def check_declared(exported: Exported, inputs: Parameters, sizes: Mapping[str, int]) -> None:
    """Assert that every shape and dtype that the main graph declares is that of the value.

    Args:
      exported: the model.
      inputs: its inputs, by name.
      sizes: the sizes of the symbolic dims in these inputs.

    Raises:
      AssertionError: a declaration does not match its value.

    >>> import jax.numpy as jnp, numpy as np, jaxport
    >>> from jaxport.testing import check_declared
    >>> check_declared(jaxport.to_onnx(jnp.tanh, [("B",)]), {"x": np.ones(2, np.float32)}, {"B": 2})
    """
    model = exported.model.clone()
    values = [value for node in model.graph for value in node.outputs if value.name]
    inside = [value for value in values if not value.is_graph_output() and value.type is not None]
    model.graph.outputs.extend(inside)
    declared = {value.name: value for value in model.graph.outputs}
    session = Session(model, threads=1)
    results = session.run({**exported.defaults, **inputs})
    for name, result in zip(session.output_names, results, strict=True):
        value = declared[name]
        shape = shape_of(value)
        if shape is not None:
            wanted = tuple(d if d is None else dims.evaluate(d, sizes) for d in shape)
            fits = len(wanted) == result.ndim and all(w in (None, n) for w, n in zip(wanted, result.shape, strict=True))
            assert fits, f"`{name}` declares {shape}, which is {wanted}, and has {result.shape}"
        assert value.dtype == ir.DataType.from_numpy(result.dtype), f"`{name}` declares {value.dtype}: {result.dtype}"
