"""What a window knows while it is open: where each module is, which call is running; and how a call is marked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jax.extend import core as jex_core, source_info_util

from jaxport.blocks.block import FrozenMapping, freeze
from jaxport.blocks.framework import Framework, public_name
from jaxport.blocks.markers import Anchor, Call, block_enter_p, block_exit_p
from jaxport.blocks.values import Found, exchange, find, put_back

__all__ = ["Boundary", "Place", "Recorder", "joined"]

source_info_util.register_exclusion(__file__)


def joined(*parts: str) -> str:
    """The path made of those of the parts that are not empty.

    >>> joined("layers.0", "", "attn")
    'layers.0.attn'
    """
    return ".".join(part for part in parts if part)


@dataclass(frozen=True)
class Place:
    """Where a module is: absolutely, or relative to the anchored module of a traced body."""

    anchor: Anchor | None
    path: str


@dataclass(frozen=True)
class Boundary:
    """What a decorator or a selection by name says about the calls of one function, method or class.

    `prepare` is given the keyword arguments of each call, and returns those that the call is made with.
    """

    target: str | None = None
    options: Mapping[str, object] = FrozenMapping()
    prepare: Callable[[dict], dict] = dict


@dataclass(frozen=True)
class _Frame:
    """A running call: the object and method it is on, the function that was entered, and its place."""

    owner: object
    method: str
    function: object
    place: Place


class Recorder:
    """The state of one window; it belongs to one thread.

    `boundaries` are what decorators and selections say about classes.
    """

    def __init__(self, frameworks: Sequence[Framework], boundaries: Mapping[object, Boundary]):
        self.frameworks = frameworks
        self._boundaries = boundaries
        self._frames: list[_Frame] = []
        self._types: dict[type, tuple[Framework | None, Framework | None, bool, bool]] = {}
        # Objects are kept with their ids, so that no id is used a second time.
        self._places: dict[int, tuple[object, Place]] = {}
        self._bodies: dict[int, tuple[object, Anchor]] = {}
        self._by_kind: dict[object, list[str]] | None = None
        self._signatures: dict[int, tuple[object, inspect.Signature | None]] = {}

    # -- where things are ------------------------------------------------------------------------------------------

    def framework_of(self, value: object) -> Framework | None:
        """The framework that `value` is a module of, if any."""
        return self._about(value)[0]

    def root_framework_of(self, value: object) -> Framework | None:
        """The framework that `value` is a model, or a piece of one, of."""
        return self._about(value)[1]

    def is_opaque(self, value: object) -> bool:
        """Whether markers leave `value` alone: modules and the like."""
        return self._about(value)[2]

    def is_variable(self, value: object) -> bool:
        """Whether `value` is a box around an array."""
        return self._about(value)[3]

    def _about(self, value: object) -> tuple[Framework | None, Framework | None, bool, bool]:
        """What the frameworks say about a value; they go by its type."""
        known = self._types.get(type(value))
        if known is None:
            known = self._types[type(value)] = (
                next((framework for framework in self.frameworks if framework.is_module(value)), None),
                next((framework for framework in self.frameworks if framework.is_root(value)), None),
                any(framework.is_opaque(value) for framework in self.frameworks),
                any(framework.is_variable(value) for framework in self.frameworks),
            )
        return known

    def register(self, module: object, path: str, anchor: Anchor | None = None) -> None:
        """Notes the place of a module and of all modules below it; what is known already keeps its place."""
        framework = self.root_framework_of(module)
        if framework is None:
            return
        for below, submodule in framework.submodules(module):
            place = Place(anchor, joined(path, below))
            self._places.setdefault(id(submodule), (submodule, place))
        if anchor is None:
            self._by_kind = None

    def _like(self, framework: Framework, module: object) -> tuple[str, ...]:
        """The places of the modules of the same type and config, or at least of the same type."""
        if self._by_kind is None:
            self._by_kind = {}
            for known, place in self._places.values():
                if place.anchor is None:
                    for kind in (type(known), _kind_of(self.framework_of(known), known)):
                        self._by_kind.setdefault(kind, []).append(place.path)
        same_type = self._by_kind.get(type(module), ())
        return tuple(self._by_kind.get(_kind_of(framework, module), same_type))

    def _place(self, framework: Framework, module: object) -> tuple[Place, Anchor | None, list]:
        """The place of a module; for one that was never seen before also its anchor and the arrays that anchor it."""
        own = framework.own_place(module)
        if own is not None:
            known_body = self._bodies.get(id(own.body))
            if known_body is not None:
                return Place(known_body[1], own.path), None, []
            grouped = own.leaves()
            body_path, below = own.body_path, own.path
        else:
            known = self._places.get(id(module))
            if known is not None:
                return known[1], None, []
            grouped = [("", leaf) for leaf in framework.leaves(module)]
            body_path, below = None, ""
        grouped = [(name, leaf) for name, leaf in grouped if jex_core.valid_jaxtype(leaf.value)]
        anchor = Anchor(
            paths=tuple(leaf.path for _, leaf in grouped),
            groups=tuple(name for name, _ in grouped),
            like=self._like(framework, module),
            fallback=type(module).__name__,
            own_path=body_path,
        )
        if own is not None:
            self._bodies[id(own.body)] = own.body, anchor
        else:
            self.register(module, "", anchor)
        return Place(anchor, below), anchor, [leaf.value for _, leaf in grouped]

    # -- calls -----------------------------------------------------------------------------------------------------

    def is_called(self, owner: object) -> bool:
        """Whether calls of the methods of `owner` are blocks: it is a module, or its class was decorated."""
        return type(owner) in self._boundaries or self.framework_of(owner) is not None

    def call_method(
        self,
        owner: object,
        method: str,
        function: Callable,
        args: tuple,
        kwargs: dict,
        boundary: Boundary | None = None,
    ) -> object:
        """Calls `function(*args, **kwargs)`, the bound `method` of `owner`, between markers."""
        framework = self.framework_of(owner)
        entered = getattr(function, "__func__", function)
        if self._frames:
            frame = self._frames[-1]
            # `super().__call__` is part of the call that it is in; the same function again is a recursion.
            if frame.owner is owner and frame.method == method and frame.function is not entered:
                return function(*args, **kwargs)
        boundary = boundary or self._boundaries.get(type(owner), Boundary())
        parameters: list[object] = []
        if framework is None:
            place, anchor, anchored = self._below(type(owner).__name__), None, []
            config: dict[str, object] = {}
        else:
            place, anchor, anchored = self._place(framework, owner)
            config = framework.config(owner)
            parameters = framework.parameters(owner)
        call = Call(
            target=boundary.target or public_name(type(owner), framework.namespaces if framework else ()),
            kind="module",
            method=method,
            path=place.path,
            anchor=place.anchor,
            options=boundary.options,
            short_name=type(owner).__name__,
            anchored=anchor,
        )
        extra, kwargs = [*anchored, *parameters], boundary.prepare(kwargs)
        return self._marked(call, config, extra, _Frame(owner, method, entered, place), function, args, kwargs)

    def call_function(self, boundary: Boundary, function: Callable, args: tuple, kwargs: dict) -> object:
        """Calls `function(*args, **kwargs)` between markers, as a block of the boundary's target."""
        target = boundary.target or public_name(function, ())
        short_name = target.rpartition(".")[2]
        place = self._below(short_name)
        call = Call(
            target=target,
            kind="function",
            method="",
            path=place.path,
            anchor=place.anchor,
            options=boundary.options,
            short_name=short_name,
        )
        frame = _Frame(None, "", function, place)
        return self._marked(call, {}, [], frame, function, args, boundary.prepare(kwargs))

    def _below(self, name: str) -> Place:
        """The place of something that has none of its own: below the running call."""
        if not self._frames:
            return Place(None, name)
        place = self._frames[-1].place
        return Place(place.anchor, joined(place.path, name))

    def _marked(
        self, call: Call, config: dict, extra: list, frame: _Frame, function: Callable, args: tuple, kwargs: dict
    ) -> object:
        found, seen = Found(), set()
        for name, value in self._named(function, args, kwargs):
            find(value, name, self.is_opaque, found, seen)
        # A static argument that is not given leaves the module's own field in force.
        config |= {name: freeze(value) for name, value in found.static.items() if value is not None}
        call.config, call.arguments = FrozenMapping(config), tuple(found.paths)

        entered = block_enter_p.bind(*found.arrays, *extra, call=call, extra=len(extra), batched=0)
        inside = {id(before): after for before, after in reversed(list(zip(found.arrays, entered, strict=True)))}
        undo: list = []
        seen = set()
        args, kwargs = (
            tuple(exchange(a, lambda v, _: inside.get(id(v), v), self.is_opaque, undo, seen) for a in args),
            {k: exchange(a, lambda v, _: inside.get(id(v), v), self.is_opaque, undo, seen) for k, a in kwargs.items()},
        )
        self._frames.append(frame)
        try:
            result = function(*args, **kwargs)
        finally:
            self._frames.pop()
            put_back(undo)

        results = Found()
        find(result, "", self.is_opaque, results, set())
        left = block_exit_p.bind(*results.arrays, call=call, extra=0, batched=0)
        outside = {id(before): after for before, after in zip(results.arrays, left, strict=True)}
        arguments = {id(array) for array in (*found.arrays, *entered)}

        def leave(value: object, shared: bool) -> object:
            # In a container that the caller holds too an argument stays the value that the caller put there.
            return value if shared and id(value) in arguments else outside.get(id(value), value)

        return exchange(result, leave, self.is_opaque, [], set())

    def _named(self, function: Callable, args: tuple, kwargs: dict) -> list[tuple[str, object]]:
        """The arguments with their names, in the order of the signature."""
        signature = self._signature(function)
        if signature is not None:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:  # the call itself will tell the user
                return []
            named = []
            for name, value in bound.arguments.items():
                spread = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
                named += list(value.items()) if spread else [(name, value)]
            return named
        return [*((f"args.{index}", value) for index, value in enumerate(args)), *kwargs.items()]

    def _signature(self, function: Callable) -> inspect.Signature | None:
        key = getattr(function, "__func__", function)
        cached = self._signatures.get(id(key))
        if cached is None:
            try:
                signature = inspect.signature(function)
            except (TypeError, ValueError):  # some callables of C have none
                signature = None
            cached = self._signatures[id(key)] = (key, signature)
        return cached[1]


def _kind_of(framework: Framework, module: object) -> tuple:
    config = framework.config(module)
    return type(module), repr(sorted(config.items(), key=lambda item: item[0]))
