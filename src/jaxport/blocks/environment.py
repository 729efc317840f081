"""What a callable brings with it: modules and arrays in closures, partials, bound methods, defaults and globals.

Modules with mutable state are taken out, so that a trace works on copies: the callable is rebuilt around the copies,
object by object, and the user's own objects stay as they are. Everything else stays where it is: arrays that are
closed over reach the jaxpr as constants and are found again by identity.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from jaxport.blocks.framework import Framework, Leaf, Lifted
from jaxport.blocks.recorder import Recorder, joined
from jaxport.blocks.values import is_array, is_tracer

__all__ = ["Changes", "Environment"]


@dataclass(frozen=True)
class Changes:
    """What a call did to module state: new values of arrays, by path, and the paths of everything else."""

    arrays: Mapping[str, Leaf]
    others: tuple[str, ...]


@dataclass
class _Node:
    """An object that was met, the objects that it refers to, and how it is made anew around others (None: not)."""

    value: object
    children: dict[object, object]
    rebuild: Callable[[Mapping[object, object]], object] | None


@dataclass(frozen=True)
class _Root:
    """A module, or a container of arrays, and the name by which the callable refers to it."""

    name: str
    value: object
    framework: Framework | None
    lifted: Lifted | None


class Environment:
    """The modules and arrays that `fn` brings with it.

    `leaves` are the arrays of the modules that were taken out: the trace gives a value for each to `rebuilt`.
    """

    def __init__(self, fn: Callable, recorder: Recorder):
        self.fn = fn
        self.recorder = recorder
        self._nodes: dict[int, _Node] = {}
        self._roots: dict[int, _Root] = {}
        self._arrays: dict[object, tuple[str, object]] = {}
        self._visit(fn, "", True)
        containers = [root for root in self._roots.values() if not is_array(root.value)]
        # One model needs no name of its own.
        self._prefix = {id(r.value): "" if len(containers) == 1 else r.name for r in containers}
        self.leaves: list[Leaf] = []
        self._before: dict[int, dict[str, Leaf]] = {}
        self._spans: list[tuple[_Root, slice]] = []
        for root in self._roots.values():
            self._take(root)

    def _take(self, root: _Root) -> None:
        prefix = self._prefix.get(id(root.value), root.name)
        if root.lifted is not None:
            leaves = [replace(leaf, path=joined(prefix, leaf.path)) for leaf in root.lifted.leaves]
            self._spans.append((root, slice(len(self.leaves), len(self.leaves) + len(leaves))))
            self.leaves += leaves
            return
        if root.framework is not None:
            self.recorder.register(root.value, prefix)
            leaves = root.framework.leaves(root.value)
        else:
            leaves = [Leaf(path, value) for path, value in _arrays_in(root.value)]
        for leaf in leaves:
            self._arrays.setdefault(_identity(leaf.value), replace(leaf, path=joined(prefix, leaf.path)))

    # -- discovery -------------------------------------------------------------------------------------------------

    def _visit(self, value: object, name: str, rebuildable: bool) -> None:
        """Notes `value`, and all that it refers to, if it is a callable, a module or a container."""
        if id(value) in self._nodes or id(value) in self._roots:
            return
        framework = self.recorder.framework_of(value)
        if framework is not None:
            lifted = framework.lift(value) if rebuildable else None
            self._roots[id(value)] = _Root(name, value, framework, lifted)
            return
        if is_array(value):
            self._roots[id(value)] = _Root(name, value, None, None)
            return
        node = _opened(value)
        if node is None:
            return
        self._nodes[id(value)] = node
        if isinstance(value, dict | list | tuple) or not callable(value):
            holds = any(self.recorder.framework_of(item) or callable(item) for item in jax.tree.leaves(value, is_leaf=self.recorder.is_opaque))
            if not holds:
                if any(True for _ in _arrays_in(value)):
                    self._roots[id(value)] = _Root(name, value, None, None)
                return
        for key, child in node.children.items():
            self._visit(child, joined(name, _child_name(key)), rebuildable and node.rebuild is not None)
