"""Calls that follow one another, of the elements of a list or of one module, as a loop.

    x = self.layers[0](x, mask)
    x = self.layers[1](x, mask)      →      for layer in self.layers:
    x = self.layers[2](x, mask)                 x = layer(x, mask)

What each call reads of another array, a cache for each layer, is looped over beside the layers:
`zip(self.layers, caches)`. What each call returns beside the carried value is collected in a list.

Calls that are alike and joined are a loop, too, of which nothing is carried: a layer that is applied to each step of a
sequence.

    a = self.dense(x[:, 0])                      parts = []
    b = self.dense(x[:, 1])               →      for row in jnp.transpose(x, (1, 0, 2)):
    y = jnp.stack([a, b, …], axis=1)                 parts.append(self.dense(row))
                                                 y = jnp.stack(parts, axis=1)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from jaxport.codegen.rewriting.producers import as_tuple
from jaxport.codegen.rewriting.steps import JOINS, renamed, variables
from jaxport.codegen.structure.modules.loop_bodies import LONGEST, Alike, with_rounds
from jaxport.codegen.structure.modules.scopes import element_of
from jaxport.codegen.structure.sequences import elements_of
from jaxport.codegen.tree import Call, Item, Layer, Loop, Module, Op
from jaxport.importer.values.recording import Step, Variable
from jaxport.onnx_facts import UNARY


def with_loops(root: Module) -> Module:
    """Return the tree with loops in place of runs of calls."""
    return root.changed(_with_loops)


def _with_loops(module: Module) -> Module:
    if elements_of(module) is not None:  # it is printed as a list already
        return module
    items = with_rounds(_with_branches(module.items, module.outputs), module.outputs)
    uses = Counter(variable for item in items for variable in item.inputs)
    uses.update(module.outputs)
    makers = {variable: item for item in items for variable in item.outputs}
    done: list[Item] = []
    index = 0
    while index < len(items):
        run = _Rounds(items, index)
        if len(run.calls) < 2:
            item = items[index]
            done += item.module.items if isinstance(item, Call) and item.module.inline else [item]
            index += 1
            continue
        added: list[Item] = []
        loop = _loop(run, uses, makers, added)
        done += [*run.before, *added, loop, *run.after]
        index = run.end
    return replace(module, items=tuple(done))


MOST_BETWEEN = 64
"""Operators between two calls of a loop at most."""


class _Rounds:
    """The calls that a loop can be made of, from an item on.

    Attributes:
      calls: the calls, each with a result of the one before.
      carried: which inputs of a call are results of the one before.
      before: items between calls that do not depend on the calls.
      after: items between calls that depend on them, and that no later call needs.
      end: the place of the first item behind.
    """

    def __init__(self, items: Sequence[Item], begin: int):
        self.calls: list[Call] = []
        self.carried: dict[int, int] = {}
        self.before: list[Item] = []
        self.after: list[Item] = []
        self.end = begin + 1
        first = items[begin]
        if not isinstance(first, Call):
            return
        self.calls.append(first)
        made = set(first.outputs)
        between: list[Item] = []
        for place, item in enumerate(items[begin + 1 :], begin + 1):
            if isinstance(item, Call) and _is_next(self.calls[-1], item):
                carried = _carried(self.calls[-1], item)
                others = {variable for at, variable in enumerate(item.inputs) if at not in carried}
                if not carried or (self.carried and carried != self.carried) or not made.isdisjoint(others):
                    return
                for other in between:
                    (self.after if not made.isdisjoint(other.inputs) else self.before).append(other)
                self.calls.append(item)
                self.carried, self.end, between = carried, place + 1, []
                made |= set(item.outputs)
                continue
            between.append(item)
            if len(between) > MOST_BETWEEN:
                return
            if not made.isdisjoint(item.inputs):
                made |= set(item.outputs)


def _is_next(before: Call, call: Call) -> bool:
    """Whether a call is one of the same module, or of the one that follows in a list."""
    if len(before.inputs) != len(call.inputs) or len(before.outputs) != len(call.outputs):
        return False
    if before.module.inline is not call.module.inline:  # an element behind rounds of others is no round
        return False
    first, second = element_of(before.module.path), element_of(call.module.path)
    return call.module is before.module or (
        first is not None and second is not None and second == (first[0], first[1] + 1)
    )


def _carried(before: Call, call: Call) -> dict[int, int]:
    """Return which inputs of a call are results of the one before; none if one is several inputs."""
    results = {variable: place for place, variable in enumerate(before.outputs)}
    carried = {place: results[variable] for place, variable in enumerate(call.inputs) if variable in results}
    return carried if len({*carried.values()}) == len(carried) else {}


def _loop(run: _Rounds, uses: Mapping[Variable, int], makers: Mapping[Variable, Item], added: list[Item]) -> Loop:
    rows: dict[int, Variable | tuple[Variable, ...]] = {}
    for place in range(len(run.calls[0].inputs)):
        values = tuple(call.inputs[place] for call in run.calls)
        if place not in run.carried and any(value is not values[0] for value in values):
            rows[place] = _rows(values, makers, added)
    passed = {*run.carried.values()}
    collected = []
    for place in range(len(run.calls[0].outputs)):
        read = [uses[call.outputs[place]] - (place in passed) for call in run.calls[:-1]]
        if any(read) or (place not in passed and uses[run.calls[-1].outputs[place]]):
            collected.append(place)
    return Loop(tuple(run.calls), run.carried, rows, tuple(collected))


def _rows(
    values: Sequence[Variable], makers: Mapping[Variable, Item], added: list[Item]
) -> Variable | tuple[Variable, ...]:
    """Return the array whose parts along an axis values are, all of them in order, or else the values.

    The axis is the first one of the array; what moves it there is added to the items.
    """
    found = _array_of(values, makers)
    if found is None or found[1] == 0:
        return tuple(values) if found is None else found[0]
    array, axis = found
    order = (axis, *(other for other in range(len(array.shape)) if other != axis))
    turned = Variable(tuple(array.shape[other] for other in order), array.dtype)
    added.append(Op("Transpose", Step("call", "jnp.transpose", (array, order), {}, turned, None), (array,), (turned,)))
    return turned


def _array_of(values: Sequence[Variable], makers: Mapping[Variable, Item]) -> tuple[Variable, int] | None:
    """Return the array whose parts along an axis values are, all of them in order, and the axis."""
    found: set[tuple[Variable, int]] = set()
    for place, value in enumerate(values):
        item = makers.get(value)
        if not isinstance(item, Op) or item.step.form != "index" or len(item.step.args) != 2:
            return None
        array, index = item.step.args
        *others, last = as_tuple(index)
        if not isinstance(array, Variable) or type(last) is not int or last != place:
            return None
        if any(other != slice(None) for other in others):
            return None
        found.add((array, len(others)))
    (array, axis), *others = found
    return (array, axis) if not others and array.shape[axis] == len(values) else None


FEWEST_BRANCHES = 3
"""Parts of a join that a loop is made for at least."""

ROW_LAYERS = frozenset({"Linear", "LayerNorm", "RMSNorm"})
"""Layers that compute along the last axis."""


def _with_branches(items: Sequence[Item], results: Collection[Variable]) -> list[Item]:
    """Return the items with a loop in place of the branches that a stack or a concatenation joins, if they are
    alike.
    """
    done = [*items]
    for join in [item for item in items if isinstance(item, Op) and item.step.name in JOINS][::-1]:
        if join in done and len(join.inputs) >= FEWEST_BRANCHES:
            done = _Branches(done, join, results).replaced()
    return done


class _Branches:
    """The computations of the parts of a join.

    Args:
      items: the items of a module, in order.
      join: the one that reads a result of each branch.
      results: the values that the module returns.

    Attributes:
      branches: the items of each branch, without those that take its operand from an array.
      taken: those.
      calls: the branches as calls; none if they are not alike, or if a loop would not be shorter.
    """

    def __init__(self, items: Sequence[Item], join: Op, results: Collection[Variable]):
        self.items, self.join = items, join
        self.makers = {variable: item for item in items for variable in item.outputs}
        self.calls: list[Call] = []
        parts = join.inputs
        owners = _owners(items, join, results)
        whole = {part: [item for item in items if owners.get(item) is part] for part in parts}
        self.taken = {item for own in whole.values() for item in own if _is_taken(item, own)}
        self.branches = [[item for item in own if item not in self.taken] for own in whole.values()]
        first, *_ = self.branches
        is_shorter = len(parts) * (len(first) + 1) >= 2 * (len(first) + 3)
        has_parts = any(isinstance(item, Layer | Call) for item in first)
        if [*variables(join.step.args[0])] != [*parts] or len(first) > LONGEST or not is_shorter or not has_parts:
            return
        for distance in (0, 1):  # of one module, or of those that follow one another in a list
            matches = [Alike(distance * place) for place in range(len(parts))]
            if all(match.all(first, own) for match, own in zip(matches, self.branches, strict=True)):
                names = [match.names for match in matches]
                self.calls = [*self._calls(parts, names)] if [one[parts[0]] for one in names] == [*parts] else []
                return

    def _calls(self, parts: Sequence[Variable], names: Sequence[Mapping[Variable, Variable]]) -> Iterator[Call]:
        first, *_ = self.branches
        made = {variable for item in first for variable in item.outputs}
        inputs = dict.fromkeys(variable for item in first for variable in item.inputs if variable not in made)
        for branch, own, part in zip(self.branches, names, parts, strict=True):
            taken = tuple(own[variable] for variable in inputs)
            (item, *others) = branch
            if isinstance(item, Call) and not others and len(item.outputs) == 1:
                yield item
            else:
                yield Call(Module("", "", tuple(branch), taken, (part,), inline=True), taken, (part,))

    def replaced(self) -> list[Item]:
        """Return the items with a loop in place of the branches, or with layers that take all rows at once."""
        if not self.calls:
            return [*self.items]
        added: list[Item] = []
        gone = {item for branch in self.branches for item in branch}
        columns = {
            place: [*column] for place, column in enumerate(zip(*(call.inputs for call in self.calls), strict=True))
        }
        differing = {place: column for place, column in columns.items() if any(one is not column[0] for one in column)}
        for column in differing.values():
            found = _array_of(column, self.makers)
            if found is not None:
                gone |= {self.makers[value] for value in column} & self.taken
            if found is not None and len(columns) == 1 and (layers := [*self._on_rows(*found)]):
                at = self.items.index(self.join)
                before, behind = (
                    [item for item in part if item not in gone] for part in (self.items[:at], self.items[at + 1 :])
                )
                return [*before, *layers, *behind]
        rows = {place: _rows(column, self.makers, added) for place, column in differing.items()}
        end = max(self.items.index(branch[-1]) for branch in self.branches)
        before, behind = ([item for item in part if item not in gone] for part in (self.items[:end], self.items[end:]))
        return [*before, *added, Loop(tuple(self.calls), {}, rows, (0,)), *behind]

    def _on_rows(self, array: Variable, axis: int) -> Iterator[Item]:
        """Yield the items of a branch for all parts of an array at once, if they compute along the last axis alone."""
        step, first = self.join.step, self.branches[0]
        is_stacked = step.name == "jnp.stack" and step.kwargs.get("axis", 0) == axis < len(array.shape) - 1
        if not is_stacked or not all(map(_is_along_last, first)):
            return
        value = array
        for item in first:
            (output,) = item.outputs
            shape = (*output.shape[:axis], array.shape[axis], *output.shape[axis:])
            made = self.join.outputs[0] if item is first[-1] else Variable(shape, output.dtype, output.hint)
            if isinstance(item, Op):
                renamed_step = replace(renamed(item.step, {item.inputs[0]: value}), outputs=made)
                yield Op(item.operator, renamed_step, (value,), (made,))
            elif isinstance(item, Layer):
                yield replace(item, inputs=(value,), outputs=(made,))
            value = made


def _owners(items: Sequence[Item], join: Op, results: Collection[Variable]) -> dict[Item, Variable]:
    """Return the part of a join that items are computed for, of those that are computed for one alone."""
    wanted: dict[Variable, set[Variable | None]] = {variable: {None} for variable in results}
    owners: dict[Item, Variable] = {}
    for item in reversed(items):
        owner, *others = set().union(*(wanted.get(variable, ()) for variable in item.outputs)) or {None}
        if owner is not None and not others:
            owners[item] = owner
        for variable in item.inputs:
            wanted.setdefault(variable, set()).add(variable if item is join else owners.get(item))
    return owners


def _is_taken(item: Item, branch: Sequence[Item]) -> bool:
    """Whether an item takes a part of an array that a branch does not compute itself."""
    is_part = isinstance(item, Op) and item.step.form == "index"
    return is_part and not any(variable in item.inputs for other in branch for variable in other.outputs)


def _is_along_last(item: Item) -> bool:
    """Whether an item computes along the last axis of one value, whatever the axes before are."""
    if isinstance(item, Layer):
        return item.kind in ROW_LAYERS and len(item.inputs) == 1
    return isinstance(item, Op) and item.operator in UNARY and len(item.inputs) == 1 and item.step.form != "vmap"
