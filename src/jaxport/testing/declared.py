"""Check the shapes and dtypes that a model declares for its inner values against the computed ones."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from jaxport.export import dims
from jaxport.export.exported import Exported
from jaxport.jaxprs import Parameters
from jaxport.testing.structure import shape_of
from jaxport.verify.runtime import Session


def check_declared(exported: Exported, inputs: Parameters, sizes: Mapping[str, int]) -> None:
    """Assert that every declared shape and dtype of the main graph is that of the value.

    Args:
      exported: the model.
      inputs: its inputs, by name.
      sizes: the sizes of the symbolic dims in these inputs.

    Raises:
      AssertionError: a declaration is stale.
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
