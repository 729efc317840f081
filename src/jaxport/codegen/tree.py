"""A model as a tree that knows no target: modules, the layers and operators inside them, calls and loops.

Values are variables with a shape and a dtype. A recognised layer is a `Layer`, which its kind, its options and its
weights define, so that each printer has a table of kinds. All else is an `Op`: an operator after folding, with its
known operands, and the recorded calls that compute it in JAX, which the printers of Python write down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

import numpy as np

from jaxport.importer.values.recording import Step, Variable
from jaxport.jaxprs import Parameters

Option: TypeAlias = "bool | int | float | str | tuple[Option, ...] | None"
"""What the constructor of a layer is called with."""


@dataclass(frozen=True, eq=False)
class Weight:
    """A tensor of the file, in the layout in which its layer or operator takes it.

    Attributes:
      name: its name: that in the file, or its place in a list of modules of which the file has one.
      shape: its sizes.
      dtype: its element type.
      read: returns the array; nothing is read before.
      trained: whether it is a parameter; a statistic or a table is not.
      axes: the order of the axes that the file's tensor has here, whatever order its rows have if it is made of
        pieces; None if more than their order and their shape differ.
      reshaped_from: the shape in which `axes` puts them before they are reshaped, and the order of the axes behind
        that; None if they are not reshaped.
      part: where its elements begin and end in the vector of the file; None if it has all of them.
      origin: its name in the file, if that is another one.
      pieces: the tensors that it is made of, for targets that keep these: the gates of a cell, those for the input
        first, or the matrix of a projection without an axis of heads.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    trained: bool = True
    axes: tuple[int, ...] | None = None
    reshaped_from: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    part: tuple[int, int] | None = None
    origin: str = ""
    pieces: tuple[Weight, ...] = ()

    @classmethod
    def constant(cls, array: np.ndarray, name: str = "") -> Weight:
        """Return a tensor that is not trained."""
        return cls(name, array.shape, array.dtype, lambda: np.asarray(array), trained=False)

    @property
    def file(self) -> str:
        """Its name in the file."""
        return self.origin or self.name

    def transposed(self, axes: Sequence[int]) -> Weight:
        """Return the same tensor with its axes in another order."""
        turned = lambda order: tuple(order[axis] for axis in axes)
        order, before = self.axes, self.reshaped_from
        if before is not None:
            before = (before[0], turned(before[1]))
        elif order is not None:
            order = turned(order)
        return replace(
            self, shape=turned(self.shape), read=lambda: self.read().transpose(axes), axes=order, reshaped_from=before,
            pieces=() if order is None else self.pieces,
        )  # fmt: skip

    def reshaped(self, shape: tuple[int, ...]) -> Weight:
        """Return the same tensor in another shape."""
        before, order = self.reshaped_from or (self.shape, tuple(range(len(self.shape))))
        axes = self.axes if [*order] == sorted(order) else None
        return replace(
            self, shape=shape, read=lambda: self.read().reshape(shape), axes=axes,
            reshaped_from=(before, tuple(range(len(shape)))),
        )  # fmt: skip


def present(**weights: Weight | None) -> dict[str, Weight]:
    """Return the tensors that there are, by role."""
    return {role: weight for role, weight in weights.items() if weight is not None}


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
      kind: `Linear`, `QuantizedLinear`, `QuantizedConv`, `DynamicQuantizedLinear`, `QuantizedEmbed`,
        `FakeQuantize`, `GroupedLinear`, `Conv`, `ConvTranspose`, `Embed`, `LayerNorm`, `RMSNorm`, `BatchNorm`,
        `GroupNorm`, `LSTM`, `GatewiseLSTM`, `GRU`, `RNN`, `Dropout` or `MultiHeadAttention`.
      config: its options, sizes included; `keywords` are the names of the last inputs, `is_causal` says what a mask is,
        and `in_single` that a normalization of a narrower type computes in single precision.
      weights: its tensors by their role: `kernel` (inputs before outputs), `bias`, `scale`, `embedding`, `mean`, `var`;
        calls of one layer have the same mapping. Those of an attention are by projection, `query_kernel`, with an axis
        of heads.
      inputs: the value that it is applied to; of a cell, the sequence and the first carry.
      outputs: its result; of a cell, those of the scan.
      label: its path below the module around it.
    """

    kind: str
    config: Parameters
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
    """One call of a module.

    Attributes:
      module: the module.
      inputs: the values that it is called with, in the order of its own.
      outputs: its results in this call.
    """

    module: Module
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]


@dataclass(frozen=True, eq=False)
class Loop:
    """Calls of a module, or of the modules of a list, that follow one another, each with results of the one before.

    Attributes:
      calls: the calls, in order.
      carried: which inputs of a call are results of the one before: positions of inputs by those of outputs.
      rows: the inputs that each call has of its own, by position: the value of each call, or the array whose parts
        along the first axis they are.
      collected: the positions of the outputs of which others than the next call read those of each call.
    """

    calls: tuple[Call, ...]
    carried: Mapping[int, int]
    rows: Mapping[int, Variable | tuple[Variable, ...]]
    collected: tuple[int, ...]

    @property
    def inputs(self) -> tuple[Variable, ...]:
        """The values that it reads, which are there before."""
        first = [variable for place, variable in enumerate(self.calls[0].inputs) if place not in self.rows]
        rows = [row if isinstance(row, tuple) else (row,) for row in self.rows.values()]
        return tuple(dict.fromkeys([*first, *(variable for row in rows for variable in row)]))

    @property
    def outputs(self) -> tuple[Variable, ...]:
        """The results of the last call, and those of each call that are collected."""
        before = [call.outputs[place] for call in self.calls[:-1] for place in self.collected]
        return (*before, *self.calls[-1].outputs)


Leaf = Op | Layer
Item = Op | Layer | Call | Loop
Part = TypeVar("Part", bound=Item)


def makers_of(items: Iterable[Part]) -> dict[Variable, Part]:
    """Return the item that makes each value."""
    return {variable: item for item in items for variable in item.outputs}


def readers_of(items: Iterable[Part]) -> dict[Variable, list[Part]]:
    """Return the items that read each value, each once, in order."""
    readers: dict[Variable, list[Part]] = {}
    for item in items:
        for variable in dict.fromkeys(item.inputs):
            readers.setdefault(variable, []).append(item)
    return readers


@dataclass(frozen=True, eq=False)
class Module:
    """A module: the computation between its inputs and its outputs.

    Attributes:
      path: its place in the model, from the file; empty for the model itself.
      type: the name of its class; empty if the file has none.
      items: its computation, in order.
      inputs: the values that it takes.
      outputs: the values that are used outside of it.
      weights: the tensors that are kept in it, or read from a layer inside it, by the variable that stands for each.
      uncalled: the layers that it has, and that it only reads the weights of.
      inline: whether it is one round of a loop, whose items belong to the module around it.
    """

    path: str
    type: str
    items: tuple[Item, ...]
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    weights: Mapping[Variable, Weight | Tie] = field(default_factory=dict)
    uncalled: tuple[Layer, ...] = ()
    inline: bool = False

    @property
    def parts(self) -> Iterator[Op | Layer | Call]:
        """The items, with the calls of loops, or with the items of their rounds, in place of loops."""
        for item in self.items:
            for part in item.calls if isinstance(item, Loop) else (item,):
                if isinstance(part, Call) and part.module.inline:
                    yield from part.module.parts
                else:
                    yield part

    def path_in(self, around: Module) -> str:
        """Return its path below a module around it."""
        return self.path.removeprefix(f"{around.path}.") if around.path else self.path

    def calls(self) -> Iterator[Call]:
        """Yield the calls of modules among the items, those of loops included."""
        yield from (part for part in self.parts if isinstance(part, Call))

    def changed(self, change: Callable[[Module], Module]) -> Module:
        """Return what a function makes of this module, whose calls are of what it makes of the modules inside, each
        once.
        """
        done: dict[Module, Module] = {}

        def visited(module: Module) -> Module:
            if module not in done:
                done[module] = change(replace(module, items=tuple(map(inside, module.items))))
            return done[module]

        def inside(item: Item) -> Item:
            return replace(item, module=visited(item.module)) if isinstance(item, Call) else item

        return visited(self)

    def walk(self) -> Iterator[Module]:
        """Yield this module and all modules inside it, each once."""
        seen: set[Module] = set()
        pending = [self]
        while pending:
            module = pending.pop()
            if module not in seen:
                seen.add(module)
                yield module
                pending += [call.module for call in module.calls()][::-1]
