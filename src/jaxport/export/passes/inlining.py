"""Replace the calls of ONNX functions by their bodies, for runtimes that do not load functions.

OpenVINO 2026.4 refuses a file with a function of the model ("No conversion rule found for operations").
"""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common


def inlining(model: ir.Model) -> str:
    """Inline all functions; their constants become initializers, which `tied` merges where two calls share them."""
    count = len(model.functions)
    if not count:
        return "nothing to do"
    common.InlinePass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    common.LiftConstantsToInitializersPass(size_limit=0)(model)
    return f"{count} function{'s' if count > 1 else ''} inlined"
