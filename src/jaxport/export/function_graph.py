"""The nodes that the exporter emits for a JAX function, as a graph of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from jaxport.export.emit.emitter import Emitter
from jaxport.export.emit.places import Place
from jaxport.export.emit.value import Scope, Value
from jaxport.export.passes.constants import constants
from jaxport.export.passes.repeated import repeated
from jaxport.export.passes.simplify import simplify
from jaxport.export.passes.tidy import tidy
from jaxport.export.rules import RULES
from jaxport.export.walk.walker import Walker
from jaxport.graph.identities import identities
from jaxport.jaxprs import Array, PythonFunction


def function_graph(
    function: PythonFunction, names: Sequence[str], dtype: np.dtype, opset: int, late: bool = False
) -> ir.Graph:
    """Return the graph of a JAX function of an array and numbers, simplified as far as no fusion is needed.

    Args:
      function: takes an array, and the numbers as keywords.
      names: the names of the numbers.
      dtype: that of the array and the numbers.
      opset: the opset of the graph.
      late: whether what exports write out last is one node.
    """
    walker = Walker(opset, RULES, {}, late=late)
    op = Emitter(walker, Scope("main"), Place())
    x = op.scope.add_input(Value(dtype, (2, 3), name="x"))
    numbers = [op.scope.add_input(Value(dtype, (), name=name)) for name in names]

    def positional(x: Array, *numbers: Array) -> Any:
        return function(x, **dict(zip(names, numbers, strict=True)))

    with jax.enable_x64(dtype == np.float64):
        outputs = [op.expanded(op.call(positional, x, *numbers))]
    graph = walker.finish_graph(op, outputs, name="pattern")
    graph.opset_imports[""] = opset
    model = ir.Model(graph, ir_version=10)
    for graph_pass in (identities, tidy, constants, simplify, repeated):
        graph_pass(model)
    return graph
