"""Sequences: modules that call their elements one after the other, with functions between them.

PyTorch's and Flax's `Sequential` are such modules. Their elements are numbered by the paths of the file; what is
computed between two elements is a function, and takes a number that no module of the file has.

Before and after:

    features.0(x), relu, features.2(x), relu   →   Sequential([Conv(…), nn.relu, Conv(…), nn.relu])
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxport.codegen.rewriting.steps import REARRANGING, renamed
from jaxport.codegen.tree import Call, Item, Layer, Loop, Module, Op, Tie
from jaxport.importer.values.recording import Variable

LONGEST = 3
"""Digits of a number at most: one element of a large number would be a long list."""
MOST_MISSING = 2
"""Elements in a row that the file does not have, such as dropout: longer gaps are no sequence that anyone would write.
"""


@dataclass(frozen=True)
class Elements:
    """The elements of a sequence.

    Attributes:
      stem: the list in the module that holds them, `layers`; empty if the module is the list itself.
      modules: the modules and layers, by number.
      functions: the operators of the functions between them, by number.
    """

    stem: str
    modules: Mapping[int, Layer | Call]
    functions: Mapping[int, tuple[Op, ...]]

    @property
    def count(self) -> int:
        """The number of elements."""
        return 1 + max([*self.modules, *self.functions])


def elements_of(module: Module, weights: Collection[Variable] = ()) -> Elements | None:
    """Return the elements of a module that is a sequence; None for any other.

    Args:
      module: the module.
      weights: the variables that stand for tensors; none if the module has its weights already.
    """
    numbers = _numbers(module)
    inputs = [variable for variable in module.inputs if variable not in weights]
    if numbers is None or len(inputs) != 1 or len(module.outputs) != 1 or module.weights:
        return None
    value = inputs[0]
    modules: dict[int, Layer | Call] = {}
    functions: dict[int, tuple[Op, ...]] = {}
    following = 0
    for run, item in _runs(module.items):
        end = value
        if run:
            made = {variable for op in run for variable in op.outputs}
            if any(variable is not value and variable not in made for op in run for variable in op.inputs):
                return None
            after = module.outputs if item is None else [v for v in item.inputs if v not in weights]
            end = after[0] if after else value
            if end not in made:
                return None
            functions[following] = tuple(run)
        if item is None:
            break
        number = numbers[item]
        taken = [variable for variable in item.inputs if variable not in weights]
        if not 0 <= number - following - bool(run) <= MOST_MISSING or taken != [end] or len(item.outputs) != 1:
            return None
        modules[number], value, following = item, item.outputs[0], number + 1
    last = functions[following][-1].outputs if following in functions else (value,)
    if not modules or module.outputs[0] not in last:
        return None
    return Elements(_stem(module), modules, functions)


def sequence_of(module: Module, weights: Collection[Variable]) -> list[Item] | None:
    """Return the call of a sequence, and what only rearranges axes before and behind it; None for any other module."""
    items = module.items
    begin = next((at for at, item in enumerate(items) if not rearranges(item)), len(items))
    end = next((at for at in range(len(items), begin, -1) if not rearranges(items[at - 1])), begin)
    inner = items[begin:end]
    made = {variable for item in inner for variable in item.outputs}
    after = {variable for item in items[end:] for variable in item.inputs} | {*module.outputs}
    inputs = tuple(dict.fromkeys(v for item in inner for v in item.inputs if v not in made))
    core = replace(module, items=inner, inputs=inputs, outputs=tuple(v for v in made if v in after))
    if elements_of(core, weights) is None:
        return None
    return [*items[:begin], Call(core, core.inputs, core.outputs), *items[end:]]


def in_place(root: Module, longest: int) -> Module:
    """Return the tree with the elements of short sequences in the modules around them, for targets without sequences.

    Args:
      root: the tree.
      longest: the largest number of modules and layers of a sequence that vanishes.
    """
    calls = Counter(call.module for module in root.walk() for call in module.calls())
    tied = {tie.layer for module in root.walk() for tie in module.weights.values() if isinstance(tie, Tie)}
    done: dict[Module, Module] = {}

    def is_short(module: Module) -> bool:
        elements = elements_of(module) if calls[module] == 1 and "@" not in module.path else None
        return (
            elements is not None
            and len(elements.modules) <= longest
            and not any(element in tied for element in elements.modules.values())
        )

    def spread(items: Iterable[Item], around: Module) -> Iterator[Item]:
        for item in items:
            if isinstance(item, Call) and is_short(item.module):
                yield from spread(_elements_in(item, around), around)
            elif isinstance(item, Call):
                yield replace(item, module=visited(item.module))
            elif isinstance(item, Loop):
                inner = tuple(replace(call, module=visited(call.module)) for call in item.calls)
                yield replace(item, calls=inner)
            else:
                yield item

    def visited(module: Module) -> Module:
        if module not in done:
            done[module] = replace(module, items=tuple(spread(module.items, module)))
        return done[module]

    return visited(root)


def _elements_in(call: Call, around: Module) -> Iterator[Item]:
    """Yield the items of a sequence as items of the module around it: `mlp.layers.0` is `mlp.0` there."""
    module, path = call.module, call.module.path_in(around)
    stem = f"{_stem(module)}."
    values = dict(zip(module.inputs, call.inputs, strict=True)) | dict(zip(module.outputs, call.outputs, strict=True))
    for item in module.items:
        inputs, outputs = (tuple(values.get(v, v) for v in part) for part in (item.inputs, item.outputs))
        if isinstance(item, Op):
            yield replace(item, step=renamed(item.step, values), inputs=inputs, outputs=outputs)
        elif isinstance(item, Layer):
            yield replace(item, inputs=inputs, outputs=outputs, label=f"{path}.{item.label.removeprefix(stem)}")
        elif isinstance(item, Call):
            yield replace(item, inputs=inputs, outputs=outputs)


def rearranges(item: Item) -> bool:
    """Whether an item is an operator that only rearranges the axes of a value."""
    return isinstance(item, Op) and item.step.name in REARRANGING


def _stem(module: Module) -> str:
    """Return the list of a module in which a `Sequential` of JAX's frameworks keeps its elements."""
    return "layers" if re.search(r"\bSequential$", module.type) and not module.type.startswith("torch.") else ""


def _numbers(module: Module) -> dict[Item, int] | None:
    """Return the numbers of the modules and layers in a module, by identity, if all have one."""
    begin = f"{_stem(module)}." if _stem(module) else ""
    numbers: dict[Item, int] = {}
    for item in module.items:
        if isinstance(item, Op):
            continue
        if not isinstance(item, Layer | Call) or (isinstance(item, Layer) and _has_options(item)):
            return None
        label = item.label if isinstance(item, Layer) else item.module.path_in(module)
        number = label.removeprefix(begin)
        if not label.startswith(begin) or not number.isdigit() or len(number) > LONGEST:
            return None
        numbers[item] = int(number)
    return numbers


def _has_options(layer: Layer) -> bool:
    return "carry" in layer.config or bool(layer.config.get("keywords"))


def _runs(items: Sequence[Item]) -> Iterator[tuple[list[Op], Layer | Call | None]]:
    """Yield the operators before each module or layer, and behind the last."""
    run: list[Op] = []
    for item in items:
        if isinstance(item, Op):
            run.append(item)
        elif isinstance(item, Layer | Call):
            yield run, item
            run = []
    yield run, None
