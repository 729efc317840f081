"""Modules that only call another one: the names of exporters make them, nobody would write a class for them."""

from __future__ import annotations

from dataclasses import replace

from jaxport.codegen.structure.modules.sequences import elements_of
from jaxport.codegen.tree import Call, Item, Layer, Module

__all__ = ["without_wrappers"]


def without_wrappers(root: Module) -> Module:
    """Return the tree without modules that do nothing but call their only child, which takes their place.

    A module of which the file knows the class stays.
    """
    return _visited(root, {})


def _visited(module: Module, done: dict[Module, Module]) -> Module:
    if module in done:
        return done[module]
    items: list[Item] = []
    for item in module.items:
        if not isinstance(item, Call):
            items.append(item)
            continue
        call = replace(item, module=_visited(item.module, done))
        items.append(_unwrapped(call, module))
    done[module] = replace(module, items=tuple(items))
    return done[module]


def _unwrapped(call: Call, around: Module) -> Item:
    """Return the call of a module, or, of one that only calls another, that call."""
    module = call.module
    if module.type or len(module.items) != 1 or module.weights or module.uncalled:
        return call
    (inner,) = module.items
    if not isinstance(inner, Call | Layer) or elements_of(module) is not None:
        return call
    if {*inner.outputs} != {*module.outputs} or not {*inner.inputs} <= {*module.inputs}:
        return call
    values = dict(zip(module.inputs, call.inputs, strict=True)) | dict(zip(module.outputs, call.outputs, strict=True))
    inputs, outputs = (tuple(values[variable] for variable in part) for part in (inner.inputs, inner.outputs))
    if isinstance(inner, Layer):
        if "carry" in inner.config:  # a cell names its values elsewhere, too
            return call
        return replace(inner, inputs=inputs, outputs=outputs, label=module.path_in(around))
    return Call(_moved(inner.module, inner.module.path, module.path, {}), inputs, outputs)


def _moved(module: Module, old: str, new: str, done: dict[Module, Module]) -> Module:
    """Return a module at another place, with those inside it."""
    if module not in done:
        path = new + module.path.removeprefix(old) if module.path.startswith(old) else module.path
        items = tuple(
            replace(item, module=_moved(item.module, old, new, done)) if isinstance(item, Call) else item
            for item in module.items
        )
        done[module] = replace(module, path=path, items=items)
    return done[module]
