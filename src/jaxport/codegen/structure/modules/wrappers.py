"""Modules that only call another one: the names of exporters make them, nobody would write a class for them.

Before and after:

    self.encoder.layer.0.attention(x)   →   self.encoder.0.attention(x)   where `layer` only calls its child
"""

from __future__ import annotations

from dataclasses import replace

from jaxport.codegen.structure.sequences import elements_of
from jaxport.codegen.tree import Call, Item, Layer, Module


def without_wrappers(root: Module) -> Module:
    """Return the tree without modules that do nothing but call their only child, which takes their place.

    A module of which the file knows the class stays, and so does one around what is called elsewhere, too.
    """
    return _Unwrapping(root).visited(root)


class _Unwrapping:
    """One pass over a tree: each module is changed once, however often it is called."""

    def __init__(self, root: Module) -> None:
        self.callers: dict[Module, set[Module]] = {}
        for module in root.walk():
            for item in module.items:
                if isinstance(item, Call):
                    self.callers.setdefault(item.module, set()).add(module)
        self.done: dict[Module, Module] = {}
        self.moved: dict[Module, Module] = {}

    def visited(self, module: Module) -> Module:
        if module not in self.done:
            items = [self.call(item, module) if isinstance(item, Call) else item for item in module.items]
            self.done[module] = replace(module, items=tuple(items))
        return self.done[module]

    def call(self, item: Call, around: Module) -> Item:
        """Return the call of a module, or, of one that only calls another, that call."""
        call = replace(item, module=self.visited(item.module))
        module = call.module
        if module.type or len(module.items) != 1 or module.weights or module.uncalled:
            return call
        (inner,) = module.items
        if (
            not isinstance(inner, Call | Layer)
            or elements_of(module) is not None
            or self.is_called_elsewhere(item.module)
        ):
            return call
        if {*inner.outputs} != {*module.outputs} or not {*inner.inputs} <= {*module.inputs}:
            return call
        values = dict(zip(module.inputs, call.inputs, strict=True))
        values |= dict(zip(module.outputs, call.outputs, strict=True))
        inputs, outputs = (tuple(values[variable] for variable in part) for part in (inner.inputs, inner.outputs))
        if isinstance(inner, Layer):
            if "carry" in inner.config:  # a cell names its values elsewhere, too
                return call
            return replace(inner, inputs=inputs, outputs=outputs, label=module.path_in(around))
        if module not in self.moved:
            old = inner.module.path
            self.moved[module] = inner.module.changed(lambda one: _moved(one, old, module.path))
        return Call(self.moved[module], inputs, outputs)

    def is_called_elsewhere(self, module: Module) -> bool:
        """Whether something inside a module is called outside of it."""
        inside = [inner for inner in module.walk() if inner is not module]
        within = {module, *inside}
        return any(not self.callers[inner] <= within for inner in inside)


def _moved(module: Module, old: str, new: str) -> Module:
    """Return a module at its place below a module that is moved."""
    return replace(module, path=new + module.path.removeprefix(old)) if module.path.startswith(old) else module
