"""ONNX functions for chosen blocks: one definition per distinct body, the weights as inputs or inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir


@dataclass(frozen=True)
class Selector:
    """Which blocks become functions."""

    targets: tuple[str, ...] = ()


def selector(functions: Any) -> Selector:
    return Selector()


@dataclass(eq=False)
class FunctionBuilder:
    """Builds the functions of one export."""

    selector: Selector
    functions: list[ir.Function] = field(default_factory=list)

    def wants(self, block: Any) -> bool:
        return False

    def check_all_used(self) -> None: ...

    def attach(self, model: ir.Model, opset: int) -> None: ...
