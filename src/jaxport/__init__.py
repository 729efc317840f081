"""jaxport: the bridge between JAX and ONNX.

>>> import jaxport, jax.numpy as jnp
>>> exported = jaxport.to_onnx(jnp.tanh, [("B", 3)])
>>> exported.input_names
['x']
>>> program = jaxport.from_onnx(exported.model)
>>> program(jnp.zeros((1, 3)))
Array([[0., 0., 0.]], dtype=float32)

Names are loaded on first use: `import jaxport` is cheap, and loads no runtime and no framework.
"""

from __future__ import annotations

# Ctrl-C prints a traceback until `jaxport.cli.main` runs, which is after this file: so it loads nothing, nor `typing`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from jaxport import errors, mox
    from jaxport.errors import (
        ExportError,
        InvalidArgument,
        JaxportError,
        ModelError,
        NeedsWideTypes,
        NotInstalled,
        QueryError,
        Refusal,
        RuleError,
        RunError,
        SaveError,
        StateChanged,
        Unsupported,
        ValueNotKnown,
        VerificationFailed,
    )
    from jaxport.export.api import to_onnx
    from jaxport.export.calibration import Calibration
    from jaxport.export.delivery.targets import Target
    from jaxport.export.emit.registry import rule
    from jaxport.export.exported import Exported
    from jaxport.export.functions import onnx_function
    from jaxport.export.generation.decoders import decoder_inputs, encoder_decoder_inputs
    from jaxport.export.precision.dense import Int8
    from jaxport.export.precision.int4_levels import Int4
    from jaxport.importer.limits import Limits
    from jaxport.importer.program import Program, from_onnx
    from jaxport.importer.resolving.registry import op
    from jaxport.mox.make import make_mox
    from jaxport.phases import progress
    from jaxport.pytorch import from_torch
    from jaxport.sourcing import to_source
    from jaxport.stablehlo.program import HloProgram, from_stablehlo
    from jaxport.stablehlo.registry import stablehlo_op

__all__ = [
    "Calibration",
    "ExportError",
    "Exported",
    "HloProgram",
    "Int4",
    "Int8",
    "InvalidArgument",
    "JaxportError",
    "Limits",
    "ModelError",
    "NeedsWideTypes",
    "NotInstalled",
    "Program",
    "QueryError",
    "Refusal",
    "RuleError",
    "RunError",
    "SaveError",
    "StateChanged",
    "Target",
    "Unsupported",
    "ValueNotKnown",
    "VerificationFailed",
    "decoder_inputs",
    "encoder_decoder_inputs",
    "from_onnx",
    "from_stablehlo",
    "from_torch",
    "make_mox",
    "mox",
    "onnx_function",
    "op",
    "progress",
    "rule",
    "stablehlo_op",
    "to_onnx",
    "to_source",
]

__version__ = "0.1.0"

#: The modules of the names above: those of no other module are errors.
_LAZY = {
    "Calibration": "jaxport.export.calibration",
    "Int4": "jaxport.export.precision.int4_levels",
    "Int8": "jaxport.export.precision.dense",
    "Exported": "jaxport.export.exported",
    "make_mox": "jaxport.mox.make",
    "to_source": "jaxport.sourcing",
    "Limits": "jaxport.importer.limits",
    "Program": "jaxport.importer",
    "Target": "jaxport.export.delivery.targets",
    "decoder_inputs": "jaxport.export.generation.decoders",
    "encoder_decoder_inputs": "jaxport.export.generation.decoders",
    "from_onnx": "jaxport.importer",
    "HloProgram": "jaxport.stablehlo.program",
    "from_stablehlo": "jaxport.stablehlo.program",
    "from_torch": "jaxport.pytorch",
    "onnx_function": "jaxport.export.functions",
    "progress": "jaxport.phases",
    "op": "jaxport.importer",  # our operators are registered before the user's
    "stablehlo_op": "jaxport.stablehlo.registry",
    "rule": "jaxport.export.rules",  # our rules are registered before the user's
    "to_onnx": "jaxport.export.api",
}


#: The modules of those that need no ONNX.
_WITHOUT_ONNX = frozenset({"jaxport.errors", "jaxport.mox.make", "jaxport.phases"})

#: Modules that are loaded on first use, too.
_MODULES = frozenset({"errors", "mox"})


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"jaxport.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'jaxport' has no attribute {name!r}")
    from jaxport import collecting, deprecations, lazy_sympy

    deprecations.warn(f"jaxport.{name}")
    module = _LAZY.get(name, "jaxport.errors")
    with collecting.paused():
        if module not in _WITHOUT_ONNX:
            lazy_sympy.load_onnx_ir()
        value = getattr(importlib.import_module(module), name)
    if f"jaxport.{name}" not in deprecations.DEPRECATED:  # each use of those warns
        globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
