"""A model as a tree that knows no target: modules, the layers and operators inside them, calls and loops.

Values are variables with a shape and a dtype. What is recognised is a `Layer`: its kind, its options and its weights say
all of it, so that each printer has a table of kinds. All else is an `Op`: an operator after folding, with the operands
that are known beside it, and the recorded calls that compute it in JAX, which the printers of Python write down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxport.importer.recording import Step, Variable

__all__ = ["Call", "Item", "Layer", "Leaf", "Loop", "Module", "Op", "Tie", "Weight"]


@dataclass(frozen=True, eq=False)
class Weight:
    """A tensor of the file, in the layout in which its layer or operator takes it.

    Attributes:
      name: what the file calls it.
      shape: its sizes.
      dtype: its element type.
      read: gives the array; nothing is read before.
      trained: whether it is a parameter; a statistic or a table is not.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    trained: bool = True


@dataclass(frozen=True, eq=False)
class Op:
    """One operator, or a part of one.

    Attributes:
      operator: its type in ONNX.
      step: the recorded call that computes it.
      inputs: the values that it reads, weights included.
      outputs: the values that it makes.
    """

    operator: str
    step: Step
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer that all frameworks have.

    Attributes:
      kind: `Linear`, `Conv`, `ConvTranspose`, `Embed`, `LayerNorm`, `RMSNorm`, `BatchNorm`, `GroupNorm`, `LSTM` or `GRU`.
      config: its options, sizes included.
      weights: its tensors by their role: `kernel` (inputs before outputs), `bias`, `scale`, `embedding`, `mean`, `var`.
      inputs: the value that it is applied to; of a cell, the sequence and the first carry.
      outputs: its result; of a cell, those of the scan.
      label: its path below the module around it.
    """

    kind: str
    config: Mapping[str, Any]
    weights: Mapping[str, Weight]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    label: str


@dataclass(frozen=True, eq=False)
class Tie:
    """A tensor that a layer keeps, and that operators elsewhere read, too."""

    layer: Layer
    role: str


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module."""

    module: Module
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]


@dataclass(frozen=True, eq=False)
class Loop:
    """Calls of modules that follow one another, each with the results of the one before.

    Attributes:
      calls: the calls, in order.
      carried: which inputs of a call are results of the one before: positions of inputs by those of outputs.
      inputs: the inputs of the first call.
      outputs: the results of the last one.
    """

    calls: tuple[Call, ...]
    carried: Mapping[int, int]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]


Leaf = Op | Layer
Item = Op | Layer | Call | Loop


@dataclass(frozen=True, eq=False)
class Module:
    """A module: what it computes between its inputs and its outputs.

    Attributes:
      path: where it is in the model, as the file says; empty for the model itself.
      type: the name of its class; empty where the file does not say.
      items: what it computes, in order.
      inputs: the values that it takes.
      outputs: the values that are used outside of it.
      weights: the tensors that are kept in it, or read from a layer inside it, by the variable that stands for each.
    """

    path: str
    type: str
    items: tuple[Item, ...]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    weights: Mapping[Variable, Weight | Tie] = field(default_factory=dict)

    def calls(self) -> Iterator[Call]:
        """The calls of modules among the items, those of loops included."""
        for item in self.items:
            if isinstance(item, Call):
                yield item
            elif isinstance(item, Loop):
                yield from item.calls

    def walk(self) -> Iterator[Module]:
        """This module and all modules inside it, each once."""
        seen: set[int] = set()
        pending = [self]
        while pending:
            module = pending.pop()
            if id(module) not in seen:
                seen.add(id(module))
                yield module
                pending += [call.module for call in module.calls()][::-1]
