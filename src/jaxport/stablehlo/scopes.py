"""The calls of modules in a block: operations whose locations name the same scope, one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxport.importer.modules import NodeModule
from jaxport.stablehlo.tree import HloBody, HloModule, HloOperation


@dataclass(eq=False)
class ScopeCall:
    """One call of a module: its path, what it computes, the values that it reads, and those that are read later."""

    path: tuple[str, ...]
    items: list[HloOperation | ScopeCall]
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def segments(body: HloBody) -> list[HloOperation | ScopeCall]:
    """Return the operations of a block with those of each call of a module in a segment; constants are outside."""
    scoped = [(operation, operation.scope) for operation in body.operations]
    free = [(o, ()) for o, _ in scoped if o.name == "stablehlo.constant"]
    rest = [(o, s) for o, s in scoped if o.name != "stablehlo.constant"]
    if not any(scope for _, scope in rest):
        return list(body.operations)
    read: dict[int, int] = {}
    for at, (operation, _) in enumerate(rest):
        read.update(dict.fromkeys(_read(operation), at))
    read.update(dict.fromkeys(body.returned, len(rest)))
    positions = {operation: at for at, (operation, _) in enumerate(rest)}
    return [o for o, _ in free] + _grouped(rest, 0, read, positions)


def _grouped(
    scoped: Sequence[tuple[HloOperation, tuple[str, ...]]],
    depth: int,
    read: Mapping[int, int],
    positions: Mapping[HloOperation, int],
) -> list[HloOperation | ScopeCall]:
    items: list[HloOperation | ScopeCall] = []
    start = 0
    while start < len(scoped):
        operation, scope = scoped[start]
        if len(scope) <= depth:
            items.append(operation)
            start += 1
            continue
        end = start
        while end < len(scoped) and scoped[end][1][: depth + 1] == scope[: depth + 1]:
            end += 1
        inside = scoped[start:end]
        last = positions[inside[-1][0]]
        made = [value for operation, _ in inside for value in operation.results]
        reads = dict.fromkeys(value for operation, _ in inside for value in _read(operation))
        items.append(
            ScopeCall(
                scope[: depth + 1],
                _grouped(inside, depth + 1, read, positions),
                [value for value in reads if value not in made],
                [value for value in made if read.get(value, -1) > last],
            )
        )
        start = end
    return items


def _read(operation: HloOperation) -> list[int]:
    """Return the values that an operation reads, those of its regions from outside included."""
    inner = [each for body in operation.bodies for each in body.walk()]
    made = {v for each in inner for v in each.results} | {
        v for o in (operation, *inner) for body in o.bodies for v in body.arguments
    }
    values = [*operation.operands, *(v for each in inner for v in each.operands)]
    values += [v for o in (operation, *inner) for body in o.bodies for v in body.returned]
    return [value for value in values if value not in made]


def modules_of(module: HloModule) -> dict[str, NodeModule]:
    """Return the modules that the locations of operations name, by path; the root is at ""."""
    found = {"": NodeModule("", calls=1)}
    for operation in module.operations():
        for depth in range(1, len(operation.scope) + 1):
            path = ".".join(operation.scope[:depth])
            if path not in found:
                found[path] = NodeModule(path, operation.scope[depth - 1])
                found[".".join(operation.scope[: depth - 1])].children.append(found[path])
            found[path].operations += 1
        found[""].operations += 1
    return found


@dataclass(frozen=True)
class ConstantUse:
    """Where a constant is used first, past what only moves it: the scope, and what computes with it."""

    scope: tuple[str, ...]
    operation: str = ""


def uses_of_constants(module: HloModule) -> dict[int, ConstantUse]:
    """Return the first use of each constant."""
    found: dict[int, ConstantUse] = {}
    for operation in module.operations():
        for value in operation.operands if operation.name not in _MOVES else ():
            origin: HloOperation | None = module.makers.get(value)
            while origin is not None and origin.name in _MOVES:
                origin = module.makers.get(origin.operands[0])
            if origin is not None and origin.name == "stablehlo.constant":
                found.setdefault(
                    origin.results[0], ConstantUse(operation.scope, operation.name.removeprefix("stablehlo."))
                )
    return found


def untie(module: HloModule) -> None:
    """Give each scope that reads a vector of one repeated number a constant of its own: the file has equal ones
    once.
    """
    last = module.values
    for function in module.functions.values():
        made: dict[tuple[int, tuple[str, ...]], HloOperation] = {}
        for operation in list(function.body.operations):
            for at, value in enumerate(operation.operands):
                maker = module.makers.get(value)
                if maker is None or maker.name != "stablehlo.constant" or not operation.scope:
                    continue
                array = maker.attributes["value"]
                if array.ndim != 1 or array.strides != (0,) or array.dtype.kind not in "fV":
                    continue
                if (value, operation.scope) not in made:
                    last += 1
                    copy = replace(maker, results=(last,), scope=operation.scope)
                    made[value, operation.scope] = module.makers[last] = copy
                own = made[value, operation.scope].results[0]
                operation.operands = (*operation.operands[:at], own, *operation.operands[at + 1 :])
        function.body.operations[:0] = made.values()


_MOVES = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "convert", "dynamic_broadcast_in_dim", "reshape", "transpose")
)
