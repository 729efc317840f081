"""The attributes that a window patches: methods of module classes, and functions selected by name."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

from jaxport.blocks.callables.framework import LIBRARIES, Framework, Prepare, package_of
from jaxport.blocks.marking.recorder import Boundary, Recorder
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Module, PythonFunction, source_info_util
from jaxport.jaxprs.identity import IdentityMap

source_info_util.register_exclusion(__file__)

# An owner, the name of an attribute, and a function from its value to the replacement.
Patch = tuple[Any, str, Callable[[Any], Any]]

# The boundaries of classes. Weak, so that decorating a class does not keep it alive.
class_boundaries: weakref.WeakKeyDictionary[type, Boundary] = weakref.WeakKeyDictionary()

# Functions traced before a class was decorated have to be traced again.
declarations = 0


def declare(cls: type, boundary: Boundary) -> None:
    """Give a class a boundary."""
    class_boundaries[cls] = boundary
    global declarations  # noqa: PLW0603 - a version number
    declarations += 1


# A decorated function carries its boundary under this name; `functools.wraps` copies it to wrappers.
BOUNDARY = "__jaxport_boundary__"

_GENERATES = inspect.CO_GENERATOR | inspect.CO_COROUTINE

_CurrentRecorder = Callable[[], Recorder | None]
_Form = Callable[[Callable], Callable]
"""Returns a function in the form that is called inside a window."""


def method_patches(
    frameworks: Iterable[Framework], decorated: Iterable[type], recorder: _CurrentRecorder
) -> list[Patch]:
    """Return the patches of the public methods of all module classes and of the decorated classes."""
    patches: dict[tuple[type, str], Patch] = {}
    groups = [(framework.module_classes(), framework.bases, framework.methods) for framework in frameworks]
    forms = {(owner, name): form for framework in frameworks for owner, name, form in framework.open_sizes()}
    for classes, bases, methods in [*groups, (decorated, (), None)]:
        for cls in classes:
            is_called = methods is not None or any("__call__" in vars(owner) for owner in cls.__mro__)
            if package_of(cls) in LIBRARIES and not is_called:
                continue  # a container of modules
            for owner in cls.__mro__:
                if owner in bases or owner.__module__ in ("builtins", "abc", "typing"):
                    continue
                for name in public_methods(owner):
                    if (owner, name) not in patches and (methods is None or name in methods):
                        form = forms.get((owner, name))
                        wrap = functools.partial(_method, name=name, recorder=recorder, form=form)
                        patches[owner, name] = (owner, name, wrap)
    for framework in frameworks:
        for owner, name, prepare in framework.state_methods():
            wrap = functools.partial(_redirected, prepare=prepare, recorder=recorder)
            patches.setdefault((owner, name), (owner, name, wrap))
    return list(patches.values())


def public_methods(cls: type) -> Iterator[str]:
    """Yield the names of the public methods that the class itself defines, and `__call__`.

    >>> list(public_methods(Boundary))
    []
    """
    return (name for name, raw in vars(cls).items() if _is_method(name, raw))


def _is_method(name: str, raw: object) -> bool:
    if name != "__call__" and name.startswith("_"):
        return False
    if type(raw) is FunctionType:  # nearly all are, and a window asks for thousands
        return not raw.__code__.co_flags & _GENERATES and BOUNDARY not in raw.__dict__
    if isinstance(raw, type | MethodType | staticmethod | classmethod | property | functools.cached_property):
        return False
    if not callable(raw) or not hasattr(raw, "__get__") or hasattr(raw, BOUNDARY):
        return False
    return not (inspect.isgeneratorfunction(raw) or inspect.iscoroutinefunction(raw))


def _method(raw: Callable, *, name: str, recorder: _CurrentRecorder, form: _Form | None) -> Callable:
    within: Any = raw if form is None else form(raw)

    @functools.wraps(raw)
    def method(self: object, *args: object, **kwargs: object) -> Any:
        current = recorder()
        if current is None:
            return raw.__get__(self, type(self))(*args, **kwargs)
        self = current.stand_in(self)
        bound = within.__get__(self, type(self))
        if not current.is_called(self):
            return bound(*args, **kwargs)
        return current.call_method(self, name, bound, args, kwargs)

    return method


def bound_again(fn: object) -> Any:
    """Rebind a bound method, or a partial of one, to the method as the window has patched it since."""
    if type(fn) is functools.partial:
        func = bound_again(fn.func)
        return fn if func is fn.func else functools.partial(func, *fn.args, **fn.keywords)
    if not isinstance(fn, MethodType):
        return fn
    patched = getattr(type(fn.__self__), getattr(fn.__func__, "__name__", ""), None)
    if not isinstance(patched, FunctionType) or inspect.unwrap(patched) is not inspect.unwrap(fn.__func__):
        return fn
    return MethodType(patched, fn.__self__)


def _redirected(raw: Any, *, prepare: Prepare | None, recorder: _CurrentRecorder) -> Any:
    """Return a method or property that works on the trace's copy of `self` inside a window, without being a block."""
    if isinstance(raw, property):
        within = functools.partial(_redirected, prepare=prepare, recorder=recorder)
        return property(within(raw.fget), raw.fset and within(raw.fset), raw.fdel, raw.__doc__)

    @functools.wraps(raw)
    def redirected(self: Any, *args: Any, **kwargs: Any) -> Any:
        current = recorder()
        if current is not None:
            self = current.stand_in(self)
            if prepare is not None:
                args, kwargs = prepare(self, args, kwargs)
        return raw(self, *args, **kwargs)

    return redirected


@dataclass(frozen=True)
class TargetSelection:
    """The targets of a window, resolved.

    Attributes:
      classes: the classes among them.
      functions: the functions among them, each with its target.
      patches: the patches that make their calls emit markers.
    """

    classes: Mapping[type, Boundary]
    functions: IdentityMap[Any, str]
    patches: Sequence[Patch]


def selection(targets: Iterable[str], recorder: _CurrentRecorder) -> TargetSelection:
    """Resolve the targets.

    Raises:
      InvalidArgument: a target names nothing, or nothing that can be called.
    """
    classes: dict[type, Boundary] = {}
    functions: IdentityMap[Any, str] = IdentityMap()
    patches: list[Patch] = []
    wrap = functools.partial(_selectable, recorder=recorder)
    for target in targets:
        owner, name, value = resolve_target(target)
        value = _unselected(getattr(value, "__func__", value))
        if isinstance(value, type):
            classes[value] = class_boundaries.get(value, Boundary(target))
        elif not hasattr(value, BOUNDARY):  # a decorated function keeps its boundary everywhere
            functions.setdefault(value, target)
            if isinstance(owner, type):
                patches.append((owner, name, wrap))
    if functions:
        # `from jax.nn import gelu` gives another module an attribute of its own.
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType):
                held = list(vars(module).items())
                patches += [(module, name, wrap) for name, value in held if _unselected(value) in functions]
    return TargetSelection(classes, functions, patches)


def function_patches(forms: Mapping[str, tuple[PythonFunction, _Form]], recorder: _CurrentRecorder) -> list[Patch]:
    """Return the patches that give functions, by name, another form inside of windows, wherever modules hold them under
    that name.
    """
    patches: list[Patch] = []
    for module in list(sys.modules.values()):
        if type(module) is ModuleType:
            held = vars(module)
            for name in held.keys() & forms.keys():
                function, form = forms[name]
                if _unselected(held[name]) is function:
                    patches.append((module, name, functools.partial(_selectable, recorder=recorder, form=form)))
    return patches


# The wrapper of a function selected by some window has the function under this name.
_SELECTABLE = "__jaxport_selectable__"


def _unselected(value: object) -> object:
    return value.__dict__.get(_SELECTABLE, value) if type(value) is FunctionType else value


def _selectable(raw: Any, *, recorder: _CurrentRecorder, form: _Form | None = None) -> Any:
    """Wrap a function so that its calls emit markers in the windows that have selected it, and in no other."""
    if isinstance(raw, staticmethod | classmethod):
        return type(raw)(_selectable(raw.__func__, recorder=recorder, form=form))
    within = raw if form is None else form(raw)

    @functools.wraps(raw)
    def selectable(*args: Any, **kwargs: Any) -> object:
        current = recorder()
        if current is None:
            return raw(*args, **kwargs)
        target = current.selected(raw)
        if target is None:
            return within(*args, **kwargs)
        return _call(current, within, Boundary(target), args, kwargs)

    return _like(raw, selectable, _SELECTABLE, raw)


def resolve_target(target: str) -> tuple[Any, str, Any]:
    """Return the owner, the attribute and the value of a qualified name.

    Raises:
      InvalidArgument: it names nothing, or nothing that can be called.

    >>> resolve_target("jax.nn.gelu")[1]
    'gelu'
    """
    parts = target.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        try:
            owner: Module = importlib.import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        *between, name = parts[depth:]
        for part in between:
            owner = getattr(owner, part, None)
        value = getattr(owner, name, None)
        if callable(value):
            if name not in vars(owner):  # a base class's method, or a module's attribute made on demand
                owner = next((c for c in getattr(owner, "__mro__", ()) if name in vars(c)), owner)
            return owner, name, value
        break
    raise InvalidArgument(
        f"`{target}` is not the name of a function, method or class",
        where=f"the target `{target}`",
        why="a target is looked up as an attribute of an importable module",
        instead="give the qualified name, as in `jax.nn.gelu` or `my.pkg.Class.method`",
    )


def with_markers(function: Callable, boundary: Boundary, recorder: _CurrentRecorder) -> Callable:
    """Wrap a function so that its calls are marked inside a window."""

    @functools.wraps(function)
    def marked(*args: object, **kwargs: object) -> object:
        current = recorder()
        if current is None:
            return function(*args, **kwargs)
        return _call(current, function, boundary, args, kwargs)

    return _like(function, marked, BOUNDARY, boundary)


def _call(recorder: Recorder, function: Callable, boundary: Boundary, args: tuple, kwargs: dict) -> object:
    if args and _looks_like_method(function) and recorder.types.framework_of(args[0]) is not None:
        bound = function.__get__(args[0], type(args[0]))
        return recorder.call_method(args[0], function.__name__, bound, args[1:], kwargs, boundary)
    return recorder.call_function(boundary, function, args, kwargs)


def _like(function: Callable, wrapper: Callable, mark: str, value: object) -> Callable:
    """Copy what a transformed function offers beyond a call (such as `jax.jit`'s `lower`) to its wrapper."""
    for name in dir(function):
        if not name.startswith("_") and not hasattr(wrapper, name):
            setattr(wrapper, name, getattr(function, name))
    setattr(wrapper, mark, value)
    return wrapper


def _looks_like_method(function: object) -> bool:
    parts = getattr(function, "__qualname__", "").split("<locals>.")[-1].split(".")
    return len(parts) > 1 and hasattr(function, "__get__")


def subclasses(base: type) -> Iterator[type]:
    """Yield all classes below `base`, each once.

    >>> bool in set(subclasses(int))
    True
    """
    seen = {base}
    waiting = [base]
    while waiting:
        for cls in type.__subclasses__(waiting.pop()):
            if cls not in seen:
                seen.add(cls)
                waiting.append(cls)
                yield cls
