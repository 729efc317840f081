"""Load onnx_ir without SymPy, which it imports for arithmetic on symbolic sizes that nothing here does.

SymPy takes as long to load as a third of JAX. While onnx_ir is imported for the first time, a stand-in is in its place,
which onnx_ir keeps, and which loads SymPy on the first use of a name. Others who import SymPy get SymPy: the stand-in
is gone from `sys.modules` when onnx_ir is loaded.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_CALLED = frozenset({"Max", "Min", "Mod", "floor", "sqrt"})
"""The functions of which onnx_ir makes a table while it is imported."""


class _Sympy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def of_sympy(*operands: Any) -> Any:
            found = getattr(importlib.import_module("sympy"), name)
            return found(*operands) if operands else found

        return of_sympy if name in _CALLED else of_sympy()


def load_onnx_ir() -> None:
    """Import onnx_ir, and SymPy only when onnx_ir uses it.

    >>> import onnx_ir as ir
    >>> load_onnx_ir()
    >>> ir.SymbolicDim("N") * 2
    SymbolicDim('2*N')
    """
    if "onnx_ir" in sys.modules or "sympy" in sys.modules:
        return
    stand_in = _Sympy("sympy")
    sys.modules["sympy"] = stand_in
    try:
        importlib.import_module("onnx_ir")
    finally:
        if sys.modules.get("sympy") is stand_in:
            del sys.modules["sympy"]
