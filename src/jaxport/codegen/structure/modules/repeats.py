"""Modules that are called several times: their operators told apart by call, and one module made of the calls again.

`separated` gives the operators of each further call of a module a path of their own, `block@1`, so that each call is
closed as a module. `united` replaces those modules by the first one.

    encoder: a @ w, b @ w   →   encoder: a @ w,  encoder@1: b @ w   →   self.encoder(a), self.encoder(b)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import jax

from jaxport.codegen.rewriting.steps import leaf_key
from jaxport.codegen.tree import Call, Item, Layer, Leaf, Module, Op
from jaxport.importer.calls import (
    Chain,
    PlacedOperation,
    call_numbers,
    called,
    separated as separated_calls,
    unnumbered_paths,
)
from jaxport.importer.values.recording import Variable


def separated(
    ops: Sequence[Op], chains: Mapping[Leaf, Chain], weights: Collection[Variable], kept: Collection[str]
) -> tuple[dict[Leaf, Chain], set[str]]:
    """Return the modules around each operator, with a path for each call of a module, and the modules called so.

    Args:
      ops: the operators, in the order of the file.
      chains: the modules around each, by identity.
      weights: the parameters that tell calls apart.
      kept: the paths of modules that are left as they are.
    """
    found = [_operation(op, chains[op], weights) for op in ops]
    plain = unnumbered_paths(found)
    unnumbered = [replace(each, chain=tuple(dict.fromkeys(plain[path] for path in each.chain))) for each in found]
    separate, repeated = separated_calls(unnumbered, kept)
    return dict(zip(ops, separate, strict=True)), repeated


def _operation(op: Op, chain: Chain, weights: Collection[Variable]) -> PlacedOperation:
    return PlacedOperation(chain, (op.step.form, op.step.name), tuple(v for v in op.inputs if v in weights))


def numbers_of_calls(ops: Sequence[Op], alike: Mapping[Variable, Variable]) -> list[int] | None:
    """Return the call that each operator of a module belongs to; None if it is called once, or that cannot be told.

    Args:
      ops: the operators of the module, in the order of the file.
      alike: the parameters that tell calls apart, each with the one of the first call that it is read in place of.
    """
    kinds = [(op.step.form, op.step.name) for op in ops]
    reads = [[alike[variable] for variable in op.inputs if variable in alike] for op in ops]
    return call_numbers([(kind, read, ()) for kind, read in zip(kinds, reads, strict=True)])


def united(module: Module, weights: Collection[Variable]) -> Module:
    """Return the module with calls of one module, or layer, in place of those that are further calls of it.

    A module that computes something else keeps its path, which `further_calls` reports.
    """
    firsts: dict[str, Call | Layer] = {}
    items: list[tuple[Item, Mapping[Variable, Variable]]] = []
    results: dict[Module, dict[Variable, None]] = {}
    for original in module.items:
        item = original
        if isinstance(item, Call):
            item = replace(item, module=united(item.module, weights))
        names: Mapping[Variable, Variable] = {}
        if isinstance(item, Call | Layer):
            path = item.module.path if isinstance(item, Call) else item.label
            first, match = firsts.setdefault(called(path), item), ModuleMatch(weights)
            if first is item or path == called(path):
                pass
            elif isinstance(item, Layer) and isinstance(first, Layer) and _are_one(first, item):
                item = replace(item, weights=first.weights, label=first.label)
            elif isinstance(item, Call) and isinstance(first, Call) and match.modules(first.module, item.module):
                names, origins = match.names, {other: one for one, other in match.names.items()}
                used = results.setdefault(first.module, dict.fromkeys(first.module.outputs))
                used |= dict.fromkeys(origins[variable] for variable in item.module.outputs)
                item = Call(first.module, tuple(names.get(v, v) for v in first.module.inputs), item.outputs)
        items.append((item, names))
    return replace(module, items=tuple(_with_results(items, results)))


def _with_results(
    items: Sequence[tuple[Item, Mapping[Variable, Variable]]], results: Mapping[Module, Mapping[Variable, None]]
) -> Iterator[Item]:
    """Yield the items, each module that is called several times with all results that any of its calls is used for."""
    modules: dict[Module, Module] = {}
    for item, names in items:
        if not isinstance(item, Call) or item.module not in results:
            yield item
            continue
        key = item.module
        known = modules.setdefault(key, replace(item.module, outputs=tuple(results[key])))
        yield Call(known, item.inputs, tuple(names.get(variable, variable) for variable in known.outputs))


def further_calls(module: Module) -> set[str]:
    """Return the modules of which a call after the first is left in the tree."""
    paths = [inner.path for inner in module.walk()]
    for inner in module.walk():
        around = f"{inner.path}." if inner.path else ""
        paths += [f"{around}{item.label}" for item in inner.items if isinstance(item, Layer)]
    return {called(path[: mark.start()]) for path in paths for mark in re.finditer("@", path)}


def _are_one(first: Layer, second: Layer) -> bool:
    """Whether two layers are calls of one: a cell may begin with other states, a dropout drops other elements."""
    configs = [
        {key: value for key, value in layer.config.items() if key not in ("carry", "outputs", "seed")}
        for layer in (first, second)
    ]
    weights = [{role: weight.name for role, weight in layer.weights.items()} for layer in (first, second)]
    return first.kind == second.kind and configs[0] == configs[1] and weights[0] == weights[1]


class ModuleMatch:
    """Says whether two modules are the same but for the names of their values.

    Attributes:
      weights: the variables that stand for tensors: they are the same.
      names: the values of the second by those of the first.
    """

    def __init__(self, weights: Collection[Variable]) -> None:
        self.weights = weights
        self.names: dict[Variable, Variable] = {}

    def modules(self, first: Module, second: Module) -> bool:
        pairs = list(zip(first.items, second.items, strict=False))
        same = len(first.items) == len(second.items) and all(self.items(*pair) for pair in pairs)
        return same and all(variable in self.names.values() for variable in second.outputs)

    def items(self, first: Item, second: Item) -> bool:
        # Their names may differ: exporters number those of further calls.
        if isinstance(first, Layer) and isinstance(second, Layer):
            return self.layers(first, second)
        if isinstance(first, Call) and isinstance(second, Call):
            return self.modules(first.module, second.module)
        if not isinstance(first, Op) or not isinstance(second, Op):
            return False
        one, other = first.step, second.step
        if (one.form, one.name, len(first.outputs)) != (other.form, other.name, len(second.outputs)):
            return False
        same = self.trees((one.args, sorted(one.kwargs.items())), (other.args, sorted(other.kwargs.items())))
        return same and all(map(self.variables, first.outputs, second.outputs))

    def layers(self, first: Layer, second: Layer) -> bool:
        states = [(layer.config.get("carry"), layer.config.get("outputs")) for layer in (first, second)]
        pairs = [*zip(first.inputs, second.inputs, strict=True), *zip(first.outputs, second.outputs, strict=True)]
        return _are_one(first, second) and self.trees(*states) and all(self.variables(*pair) for pair in pairs)

    def trees(self, first: object, second: object) -> bool:
        leaves, structure = jax.tree.flatten(first)
        others, other_structure = jax.tree.flatten(second)
        return str(structure) == str(other_structure) and all(map(self.leaves, leaves, others))

    def leaves(self, first: object, second: object) -> bool:
        if isinstance(first, Variable) and isinstance(second, Variable):
            return self.variables(first, second)
        key = leaf_key(first)
        return key is not None and key == leaf_key(second)

    def variables(self, first: Variable, second: Variable) -> bool:
        if first in self.weights or second in self.weights:
            return first is second
        if (first.shape, first.dtype) != (second.shape, second.dtype):
            return False
        return self.names.setdefault(first, second) is second
