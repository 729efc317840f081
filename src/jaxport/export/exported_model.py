"""An exported model as what verifies it sees it; `jaxport.export.exported.Exported` has methods that save, run and
verify it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from jaxport.export.delivery.runtime import Session
from jaxport.export.ports import Port
from jaxport.export.precision.names import Precision
from jaxport.jaxprs import PythonFunction

if TYPE_CHECKING:
    from jaxport.blocks.tracing import State, Traced
    from jaxport.export.emit.places import Record
    from jaxport.export.functions import FunctionCall
    from jaxport.export.passes import PassReport


@dataclass(eq=False, repr=False)
class ExportedModel:
    """The model, what it was exported from, and how: the attributes of `Exported`."""

    model: ir.Model
    fn: PythonFunction
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    defaults: Mapping[str, np.ndarray]
    traced: Traced
    state: State
    flags: frozenset[int]
    x64: bool
    records: tuple[Record, ...]
    function_calls: tuple[FunctionCall, ...]
    pass_reports: tuple[PassReport, ...]
    again: Callable[..., ExportedModel]
    precision: Precision | None = None
    _ports: Sequence[Port] = field(init=False)

    def __post_init__(self) -> None:
        self._ports = [port for port in self.inputs if not port.weight]

    @functools.cached_property
    def session(self) -> Session:
        """The model, loaded in ONNX Runtime on first use."""
        return Session(self.model)
