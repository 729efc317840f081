"""The state of an open window: the paths of modules and the running calls; and the marking of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Literal
from weakref import WeakKeyDictionary

import jax
from jax import core as jax_core

from jaxport import jaxprs
from jaxport.blocks.block import FrozenMapping, freeze
from jaxport.blocks.callables.framework import Framework, public_name
from jaxport.blocks.callables.models import Models
from jaxport.blocks.callables.places import Places, Types, kind_of
from jaxport.blocks.callables.values import Exchange, NamedArrays, collect, is_tracer, twin
from jaxport.blocks.marking.markers import BlockCall, EnclosingModule, block_enter_p, block_exit_p
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Module, PythonFunction, of_one_trace, source_info_util
from jaxport.jaxprs.identity import IdentityMap, IdentitySet
from jaxport.jaxprs.meshes import explicit_mesh, on_automatic_axes

source_info_util.register_exclusion(__file__)

_LEFT = "__jaxport_calls__"


def calls_left(error: BaseException) -> tuple[tuple[str, str], ...]:
    """Return path and target of each marked call that an exception left, the innermost first."""
    return getattr(error, _LEFT, ())


Operators = Literal["none", "written", "all"]
"""Which operators of imported programs are blocks: those that an export writes as they are in the file, or all."""


@dataclass(frozen=True)
class Boundary:
    """The settings of a decorator, or of a selection by name, for the calls of one function, method or class.

    `prepare` maps the keyword arguments of each call to those that the call is made with.
    """

    target: str | None = None
    options: Mapping[str, Any] = FrozenMapping()
    prepare: Callable[[dict], dict] = dict


@dataclass(frozen=True)
class _RunningCall:
    """A running call: the object and method it is on, and the function that was entered."""

    key: Any
    owner: Module
    method: str
    function: PythonFunction


@dataclass
class _Origin:
    """The place that a call gives for its module, and the arrays that prove it."""

    owner: Module = None
    anchor: EnclosingModule | None = None
    path: str = ""
    anchored: EnclosingModule | None = None
    arrays: list[Array] = field(default_factory=list)


class Recorder:
    """The state of one window; it belongs to one thread.

    `functions` are those selected by name, each with its target; `boundaries` are the settings of
    decorators and selections for classes; `operators` tells which of those of imported programs are marked; `models`
    are those of the running trace, if any. The contents of markers outlive the window, in JAX's caches: they do not
    depend on what else the window sees.
    """

    def __init__(
        self,
        frameworks: Sequence[Framework],
        functions: IdentityMap[object, str],
        boundaries: Mapping[Hashable, Boundary],
        operators: Operators = "none",
    ):
        self.types = Types(frameworks)
        self._functions = functions
        self.places = Places(self.types)
        self._boundaries = boundaries
        self.operators = operators
        self.models: Models | None = None
        self.is_closed = False
        self._carriers = [f.carry for f in frameworks if type(f).carry is not Framework.carry]
        self._frames: list[_RunningCall] = []
        self._names: dict[type, str] = {}
        # Modules of traced bodies, and the bodies of modules that know their own path.
        self._anchored: IdentityMap[Module, tuple[EnclosingModule, str]] = IdentityMap()
        self._bodies: IdentityMap[Any, EnclosingModule] = IdentityMap()
        self._automatic: IdentityMap[Array, Array] = IdentityMap()
        self._originals: IdentityMap[Array, Array] = IdentityMap()

    def stand_in(self, value: object) -> Any:
        """Return the running trace's copy of a module, or of another object with state."""
        return value if self.models is None else self.models.stand_in(value)

    def of_automatic_axes(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yield values that the running trace may use; arrays on a mesh with explicit axes as if these were
        automatic.
        """
        for value in values:
            if isinstance(value, jax_core.Tracer) or explicit_mesh([jax.typeof(value)]) is None:
                yield value
            else:
                if value not in self._automatic:
                    made = on_automatic_axes(value)
                    self._automatic[value], self._originals[made] = made, value
                yield self._automatic[value]

    def original(self, value: Any) -> Any:
        """Return the array that another one stands for: of automatic axes, or at a second place of a call."""
        return self._originals.get(value, value)

    def _origin(self, framework: Framework, module: Module) -> _Origin:
        own = framework.own_place(module)
        if own is not None:
            known_body = self._bodies.get(own.body)
            if known_body is not None:
                return _Origin(anchor=known_body, path=own.path)
            leaves, body_path, below = own.leaves(), own.body_path, own.path
        else:
            original = module if self.models is None else self.models.original(module)
            if self.places.knows(original):
                return _Origin(owner=original)
            known = self._anchored.get(module)
            if known is not None:
                return _Origin(anchor=known[0], path=known[1])
            leaves, body_path, below = [("", leaf) for leaf in framework.leaves(module)], None, ""
        leaves = [(group, leaf) for group, leaf in leaves if jaxprs.valid_jaxtype(leaf.value)]
        anchor = EnclosingModule(
            paths=tuple(leaf.path for _, leaf in leaves),
            groups=tuple(group for group, _ in leaves),
            kind=kind_of(framework, module),
            own_path=body_path,
        )
        if own is not None:
            self._bodies[own.body] = anchor
        else:
            for path, submodule in framework.submodules(module):
                self._anchored.setdefault(submodule, (anchor, path))
        return _Origin(None, anchor, below, anchor, [leaf.value for _, leaf in leaves])

    # -- calls -----------------------------------------------------------------------------------------------------

    def selected(self, function: PythonFunction) -> str | None:
        """Return the target by which a function was selected, if it was."""
        return self._functions.get(function)

    def is_called(self, owner: object) -> bool:
        """Whether calls of the methods of `owner` are blocks: it is a module, or its class was decorated."""
        return type(owner) in self._boundaries or self.types.framework_of(owner) is not None

    def call_method(
        self,
        owner: Module,
        method: str,
        function: Callable,
        args: tuple,
        kwargs: dict,
        boundary: Boundary | None = None,
        named_by: Callable | None = None,
    ) -> Any:
        """Call `function(*args, **kwargs)`, the bound `method` of `owner`, between markers.

        The arguments are named by the signature of `named_by`, if `function` hides its own.
        """
        framework = self.types.framework_of(owner)
        entered = getattr(function, "__func__", function)
        if self._frames:
            frame = self._frames[-1]
            # `super().__call__` is part of the call around it; the same function again is a recursion.
            if frame.owner is owner and frame.method == method and frame.function is not entered:
                return function(*args, **kwargs)
        boundary = boundary or self._boundaries.get(type(owner), Boundary())
        origin = _Origin() if framework is None else self._origin(framework, owner)
        call = BlockCall(
            target=boundary.target or self._name_of(type(owner), framework),
            kind="module",
            method=method,
            owner=origin.owner,
            anchor=origin.anchor,
            path=origin.path,
            options=boundary.options,
            short_name=type(owner).__name__,
            anchored=origin.anchored,
        )
        config = framework.config(owner) if framework else {}
        extra = [*origin.arrays, *(framework.parameters(owner) if framework else ())]
        frame = _RunningCall(call.key, owner, method, entered)
        named_by = named_by or (framework and framework.named_by(owner, method))
        return self._marked(call, config, extra, frame, function, args, boundary.prepare(kwargs), named_by)

    def _name_of(self, cls: type, framework: Framework | None) -> str:
        if cls not in self._names:
            self._names[cls] = public_name(cls, framework.namespaces if framework else ())
        return self._names[cls]

    def call_function(self, boundary: Boundary, function: Callable, args: tuple, kwargs: dict) -> Any:
        """Call `function(*args, **kwargs)` between markers, as a block of the boundary's target."""
        target = boundary.target or public_name(function, ())
        call = BlockCall(target, "function", "", options=boundary.options, short_name=target.rpartition(".")[2])
        return self._marked(
            call, {}, [], _RunningCall(call.key, None, "", function), function, args, boundary.prepare(kwargs)
        )

    def _marked(
        self,
        call: BlockCall,
        config: dict,
        extra: list,
        frame: _RunningCall,
        function: Callable,
        args: tuple,
        kwargs: dict,
        named_by: Callable | None = None,
    ) -> object:
        call.around = self._frames[-1].key if self._frames else None
        passed = NamedArrays()
        named = self._named(named_by or function, args, kwargs)
        parts = [collect(value, name, self.types.is_opaque, passed) for name, value in named]
        # If a static argument is not given, the module's own field applies.
        config |= {name: freeze(value) for name, value in passed.static.items() if value is not None}
        call.config, call.arguments = FrozenMapping(config), tuple(passed.paths)

        repeated = passed.repeated
        arrays, twins = self._apart(passed.arrays, repeated, frame.owner)
        entered = block_enter_p.bind(*arrays, *extra, call=call, extra=len(extra), axes=())
        self._carry(arrays, entered)
        traced = {position: entered[position] for position, array in enumerate(arrays) if is_tracer(array)}
        exchange = Exchange(traced | twins, repeated)
        args = tuple(exchange.value(part) for part in parts[: len(args)])
        count = len(args)
        kwargs = {name: exchange.value(part) for (name, _), part in zip(named[count:], parts[count:], strict=True)}
        call.in_place = frozenset(range(len(arrays))) - (exchange.exchanged & traced.keys())
        self._frames.append(frame)
        results = NamedArrays()
        try:
            result = function(*args, **kwargs)
            returned = collect(result, "", self.types.is_opaque, results)
        except Exception as error:
            self._note(error, call)
            raise
        finally:
            self._frames.pop()
            exchange.undo()
        if exchange.changed_copies():
            raise _changed_twice(call, exchange.changed_copies()[0])

        call.returns = tuple(results.paths)
        left = block_exit_p.bind(*results.arrays, call=call, extra=0, axes=())
        self._carry(results.arrays, left)
        # Where an object keeps its arrays, those that were made inside are found by their identity.
        known = IdentitySet((*arrays, *passed.arrays, *entered))
        passed_on = {position for position, array in enumerate(results.arrays) if array in known}
        outside = {position: left[position] for position, array in enumerate(results.arrays) if is_tracer(array)}
        # A container from outside of the running trace keeps an argument: it would hold a value that means nothing
        # there.
        given = IdentityMap((after, before) for before, after in zip(arrays, entered, strict=True) if is_tracer(before))
        for position in passed_on & outside.keys() & set(returned.within(passed.visits)):
            before = given.get(results.arrays[position])
            if before is not None and not of_one_trace(before, outside[position]):
                del outside[position]
        return Exchange(outside, results.repeated | passed_on).value(returned)

    def _apart(
        self, arrays: Sequence[Array], repeated: Container[int], owner: Module
    ) -> tuple[list[Array], dict[int, Array]]:
        """Return the arguments of a call, and those of them that are other objects for stored arrays, by position.

        Callees need the values of stored arrays, so no tracer takes their place. One at a second place, or one that the
        module holds, too, would be one value.
        """
        stored = [i for i, x in enumerate(arrays) if isinstance(x, jax.Array) and not is_tracer(x) and x.ndim]
        held: IdentitySet[Any] = IdentitySet()
        framework = self.types.framework_of(owner) if stored else None
        if framework is not None:
            held = IdentitySet(leaf.value for leaf in framework.leaves(owner))
        twins = {i: twin(arrays[i]) for i in stored if i in repeated or arrays[i] in held}
        for position, made in twins.items():
            self._originals[made] = self.original(arrays[position])
        return [twins.get(position, array) for position, array in enumerate(arrays)], twins

    def _carry(self, before: Sequence[object], after: Sequence[object]) -> None:
        for carry in self._carriers:
            for one, other in zip(before, after, strict=True):
                carry(one, other)

    def _note(self, error: Exception, call: BlockCall) -> None:
        """Add a call that an exception leaves to those recorded on it."""
        path = call.path or (self.places.path_of(call.owner) if call.owner is not None else "") or self._below_a_call()
        with suppress(AttributeError):  # an exception implemented in C may not take attributes
            setattr(error, _LEFT, (*calls_left(error), (path, call.target)))

    def _below_a_call(self) -> str:
        """Return the path of the running call's module below that of the outermost call around it."""
        module = self._frames[-1].owner
        for frame in self._frames[:-1]:
            framework = self.types.framework_of(frame.owner)
            for path, submodule in framework.submodules(frame.owner) if framework else ():
                if submodule is module:
                    return path
        return ""

    def _named(self, function: Callable, args: tuple, kwargs: dict) -> list[tuple[str, object]]:
        """Return the arguments with their names, in the order of the signature."""
        plain = getattr(function, "__func__", function)
        if type(plain) is not FunctionType:
            return _ParameterNames.of(function).of_call(args, kwargs)
        # A bound method omits what it is bound to, its function does not.
        known = _names.setdefault(plain, {})
        bound = plain is not function
        if bound not in known:
            known[bound] = _ParameterNames.of(function)
        return known[bound].of_call(args, kwargs)


def _changed_twice(call: BlockCall, value: object) -> InvalidArgument:
    return InvalidArgument(
        f"the call of `{call.short_name}` changes a `{type(value).__name__}` that it is given at two places, or that "
        "holds one "
        "array twice",
        where="the arguments of the call",
        why="in a block each place of an argument is a separate value, so the call was made with a copy",
        instead="give each place its own object and arrays, or return the new values",
    )


@dataclass(frozen=True)
class _ParameterNames:
    """The names of a function's positional parameters, of its variadic one, and the order of all."""

    positional: tuple[str, ...]
    rest: str
    order: Mapping[str, int]

    @classmethod
    def of(cls, function: Callable) -> _ParameterNames:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # some callables implemented in C have none
            return cls((), "args", {})
        kinds = inspect.Parameter
        rest = [name for name, p in parameters.items() if p.kind is kinds.VAR_POSITIONAL]
        first = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        positional = tuple(name for name, p in parameters.items() if p.kind in first)
        return cls(
            positional, rest[0] if rest else "args", {name: position for position, name in enumerate(parameters)}
        )

    def of_call(self, args: tuple, kwargs: dict) -> list[tuple[str, Any]]:
        count = len(self.positional)
        named = list(zip(self.positional, args, strict=False))
        named += [(f"{self.rest}_{index}", value) for index, value in enumerate(args[count:])]
        return named + sorted(kwargs.items(), key=lambda item: self.order.get(item[0], len(self.order)))


_names: WeakKeyDictionary[Callable, dict[bool, _ParameterNames]] = WeakKeyDictionary()
