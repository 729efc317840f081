"""The activation window: while it is open, calls in this thread emit markers.

Methods of classes and attributes of modules are patched while at least one window is open in the process; the patches
act only in threads that opened a window, and the last window to close restores the originals.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import jax

from jaxport.blocks.callables.framework import Framework, public_name
from jaxport.blocks.marking import targets as targets_module
from jaxport.blocks.marking.open_sizes import OPEN_SIZES
from jaxport.blocks.marking.recorder import Operators, Recorder
from jaxport.blocks.marking.targets import Patch, class_boundaries, function_patches, method_patches, selection
from jaxport.jaxprs import CHECKS_OF_SIZES, DECISIONS_ON_SIZES, source_info_util
from jaxport.jaxprs.vmap_axes import RECORDS_OF_VMAP

# The frames of this package are not the user's: jax leaves them out of the source lines that it keeps.
source_info_util.register_exclusion(__file__)

# A function in one of JAX's caches is not traced again and would emit no markers. Inside a window the caches' keys
# have one more part: what the window sees. (jax asks to make contexts at import.)
_view = jax.make_user_context(None)
_local = threading.local()


def current_recorder() -> Recorder | None:
    """Return the recorder of the innermost window open in this thread.

    >>> current_recorder() is None
    True
    """
    recorders: list[weakref.ref[Recorder]] = getattr(_local, "recorders", [])
    while recorders:
        recorder = recorders[-1]()
        if recorder is not None and not recorder.is_closed:
            return recorder
        recorders.pop()  # an interrupt kept the window from doing it
    return None


def loaded_frameworks() -> tuple[Framework, ...]:
    """Return the frameworks that this process has imported."""
    from jaxport.frameworks import loaded

    return loaded()


class Patches:
    """Attributes patched process-wide while they have users, and restored with the last user.

    An interrupt may come between any two steps. So an original is recorded before it is patched, a user is recorded
    before its first patch, and restoring may be repeated: the next user finishes what is left, and so does the
    finalizer of an unreferenced user.

    >>> class Model:
    ...     def __call__(self):
    ...         return 1
    >>> class User: ...
    >>> patches, original, user = Patches(), Model.__call__, User()
    >>> patches.enter(user, [(Model, "__call__", lambda raw: lambda self: 2)])
    >>> Model()()
    2
    >>> patches.leave(user)
    >>> Model.__call__ is original
    True
    """

    def __init__(self) -> None:
        self._turn: dict[str, weakref.ref[_Turn]] = {}
        self._users: weakref.WeakKeyDictionary[Any, tuple[frozenset, weakref.finalize]] = weakref.WeakKeyDictionary()
        # By owner and attribute: the owner, the attribute, the original and its replacement.
        self._patched: dict[tuple[int, str], tuple[Any, str, Any, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._patched)

    def enter(self, user: object, patches: Sequence[Patch]) -> None:
        """Replace each attribute of each owner by ``wrap(original)``, unless it is patched already."""
        turn = self._take_turn()
        try:
            self._restore()
            end = weakref.finalize(user, self._restore_later)
            end.atexit = False
            self._users[user] = frozenset((id(owner), attribute) for owner, attribute, _ in patches), end
            for owner, attribute, wrap in patches:
                key = id(owner), attribute
                if key not in self._patched:
                    raw = vars(owner)[attribute]
                    replacement = wrap(raw)
                    self._patched[key] = owner, attribute, raw, replacement
                    setattr(owner, attribute, replacement)
        except BaseException:
            self._forget(user)
            raise
        finally:
            self._end_turn(turn)

    def leave(self, user: object) -> None:
        """Restore what no other user needs; a second call does nothing."""
        turn = self._take_turn()
        try:
            self._forget(user)
        finally:
            self._end_turn(turn)

    def _forget(self, user: object) -> None:
        _, end = self._users.pop(user, (None, None))
        self._restore()
        if end is not None:
            end.detach()

    def _restore(self) -> None:
        needed = frozenset().union(*(keys for keys, _ in self._users.values()))
        for key, (owner, attribute, raw, replacement) in list(self._patched.items()):
            if key not in needed:
                # If another replacement was put there in the meantime, it stays.
                if vars(owner).get(attribute) is replacement:
                    setattr(owner, attribute, raw)
                self._patched.pop(key, None)

    def _restore_later(self) -> None:
        """Restore at the end of a user that did not leave: now, or with the next user if another thread is at work."""
        turn = self._take_turn(wait=False)
        if turn is not None:
            self._restore()
            self._end_turn(turn)

    # A lock that an interrupt kept from being released would be held for ever. A turn ends with the call that took it.

    def _take_turn(self, wait: bool = True) -> _Turn | None:
        turn = _Turn()
        reference = weakref.ref(turn, self._end_turn_of)
        while (holder := self._turn.setdefault("taken", reference)) is not reference:
            if not wait:
                return None
            taken = holder()
            if taken is not None and taken.thread == turn.thread:
                # The exception that interrupted its call still refers to it.
                self._turn["taken"] = reference
                break
            time.sleep(0.001)
        return turn

    def _end_turn(self, turn: _Turn | None) -> None:
        holder = self._turn.get("taken")
        if holder is not None and holder() is turn:
            self._turn.pop("taken", None)

    def _end_turn_of(self, reference: weakref.ref) -> None:
        if self._turn.get("taken") is reference:
            self._turn.pop("taken", None)


class _Turn:
    """Held by a thread while it changes patches."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


patched = Patches()


class _Comparing:
    """A user of the patches of `comparing_sizes`."""


@contextmanager
def comparing_sizes() -> Iterator[None]:
    """While it is open, JAX compares products of symbolic sizes by their factors, as it does in a window."""
    user = _Comparing()
    try:
        patched.enter(user, DECISIONS_ON_SIZES)
        yield
    finally:
        patched.leave(user)


@contextmanager
def activation(
    targets: Iterable[str] = (), *, frameworks: Iterable[Framework] | None = None, operators: Operators = "none"
) -> Iterator[Recorder]:
    """Open a window: calls of modules, of decorated functions and of the `targets` emit markers while it is open.

    Args:
      targets: qualified names of functions or methods that get a boundary too: ``"jax.nn.gelu"``,
        ``"my.pkg.function"``, ``"my.pkg.Class.method"``. Every module attribute that holds such a function is patched;
        a default argument or a closure that captured it is not reached. Names of a framework that was not imported are
        ignored.
      frameworks: the frameworks to support; by default all that the process has imported.
      operators: the operators of imported programs that get a boundary too: "none", those that are "written" as they
        are in the file, "all".

    Raises:
      InvalidArgument: a target does not exist, or cannot be called.

    >>> import jax, jax.numpy as jnp
    >>> with activation(["jax.nn.gelu"]):
    ...     jaxpr = jax.make_jaxpr(lambda x: jax.nn.gelu(x))(jnp.ones(3))
    >>> [equation.primitive.name for equation in jaxpr.eqns][0]
    'block_enter'
    """
    from jaxport.frameworks import is_absent

    frameworks = loaded_frameworks() if frameworks is None else tuple(frameworks)
    targets = [target for target in targets if not is_absent(target)]
    selected = selection(targets, current_recorder)
    recorder = Recorder(frameworks, selected.functions, {**class_boundaries, **selected.classes}, operators)
    of_methods = method_patches(frameworks, [*class_boundaries, *selected.classes], current_recorder)
    of_open_sizes = function_patches(OPEN_SIZES, current_recorder)
    recorders: list[weakref.ref[Recorder]] = _local.__dict__.setdefault("recorders", [])
    stack = ExitStack()
    weakref.finalize(recorder, stack.close).atexit = False  # does nothing after the stack was closed
    try:
        patched.enter(
            recorder,
            # Of several patches of an attribute the first is made: a selected function may have a form for open sizes,
            # too.
            [*of_open_sizes, *selected.patches, *of_methods, *CHECKS_OF_SIZES, *DECISIONS_ON_SIZES, *RECORDS_OF_VMAP],
        )
        recorders.append(weakref.ref(recorder))
        for framework in frameworks:
            stack.enter_context(framework.interception(current_recorder))
        names = tuple(type(framework).__qualname__ for framework in frameworks)
        stack.enter_context(_view((frozenset(targets), names, targets_module.declarations, operators)))
        yield recorder
    finally:
        recorder.is_closed = True
        try:
            stack.close()
        finally:
            patched.leave(recorder)
            current_recorder()  # drops closed windows


def target_of(cls: type) -> str:
    """Return the qualified name of the blocks of a module class.

    >>> import flax.nnx
    >>> target_of(flax.nnx.Linear)
    'flax.nnx.Linear'
    """
    declared = class_boundaries.get(cls)
    namespaces = [namespace for framework in loaded_frameworks() for namespace in framework.namespaces]
    return (declared and declared.target) or public_name(cls, namespaces)
