"""Values that are rounded to those of an integer type: layers that keep the scale and the zero point.

fake_quantized(x, 0.1, 3, "uint8")   →   FakeQuantize("uint8")(x), whose scale is 0.1 and whose zero point is 3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from jaxport.codegen.structure.sequences import elements_of
from jaxport.codegen.tree import Item, Layer, Module, Op, Weight
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Variable

LABEL = "quantize"
"""The name of a layer that rounds, or of the list of those of a module."""


def with_quantizers(root: Module, accepts: Callable[[Layer], bool]) -> Module:
    """Return the tree with a layer in place of each `fake_quantized(x, scale, zero_point, dtype)`.

    The numbers are data of the layers, so that blocks which differ in them only are one class. `accepts` says whether
    the target has the layer.
    """

    def quantized(module: Module) -> Module:
        layers = {op: _layer(op, label) for op, label in _labels(module).items()}
        accepted: dict[Item, Layer] = {op: layer for op, layer in layers.items() if accepts(layer)}
        return replace(module, items=tuple(accepted.get(item, item) for item in module.items))

    return root.changed(quantized)


def _labels(module: Module) -> Mapping[Op, str]:
    """Return the place of each rounding below a module: in a list of them, or its own among the elements of a
    sequence.
    """
    rounding = [item for item in module.items if isinstance(item, Op) and _is_rounding(item)]
    elements = elements_of(module)
    if elements is None:
        return {op: f"{LABEL}.{place}" if len(rounding) > 1 else LABEL for place, op in enumerate(rounding)}
    begin = f"{elements.stem}." if elements.stem else ""
    single = {run[0]: number for number, run in elements.functions.items() if len(run) == 1}
    return {op: f"{begin}{single[op]}" for op in rounding if op in single}


def _is_rounding(op: Op) -> bool:
    if op.step.name != "helper.fake_quantized":
        return False
    x, scale, zero_point, dtype = op.step.args
    is_known = isinstance(scale, HostValue) and not scale.ndim and scale.dtype == op.outputs[0].dtype
    return is_known and isinstance(x, Variable) and isinstance(zero_point, int) and np.dtype(dtype).kind in "iu"


def _layer(op: Op, label: str) -> Layer:
    x, scale, zero_point, dtype = op.step.args
    kind, offset = np.dtype(dtype), np.asarray(zero_point, np.dtype(dtype))
    weights = {
        "scale": Weight("", (), np.dtype(scale.dtype), lambda: np.asarray(scale.data), trained=False),
        "zero_point": Weight.constant(offset),
    }
    return Layer("FakeQuantize", {"dtype": kind.name}, weights, (x,), op.outputs, label)
