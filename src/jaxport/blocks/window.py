"""The activation window: while it is open, calls in this thread emit markers.

Methods of classes and attributes of modules are patched while at least one window is open in the process; the
patches act only in threads that opened a window, and the last window to close restores exactly what was there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax

from jaxport.blocks import targets as targets_module
from jaxport.blocks.framework import Framework, public_name
from jaxport.blocks.recorder import Recorder
from jaxport.blocks.targets import class_boundaries, method_patches, selection
from jaxport.jaxprs import source_info_util

__all__ = ["Patches", "activation", "current_recorder", "patched", "target_of"]

# The frames of this package are none of the user's: jax leaves them out of the source lines that it keeps.
source_info_util.register_exclusion(__file__)

# A function that is already in one of JAX's caches is not traced again and would show no markers. Inside a window the
# caches' keys have one more part: what the window sees. (jax asks to make contexts at import.)
_view = jax.make_user_context(None)
_local = threading.local()


def current_recorder() -> Recorder | None:
    """The recorder of the innermost window open in this thread.

    >>> current_recorder() is None
    True
    """
    recorders = getattr(_local, "recorders", None)
    return recorders[-1] if recorders else None


class Patches:
    """Attributes exchanged process-wide, counted, and restored by whoever leaves last.

    >>> class Model:
    ...     def __call__(self):
    ...         return 1
    >>> patches, original = Patches(), Model.__call__
    >>> patches.enter([(Model, "__call__", lambda raw: lambda self: 2)])
    >>> Model()()
    2
    >>> patches.leave([(Model, "__call__")])
    >>> Model.__call__ is original
    True
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._patched: dict[tuple[int, str], list] = {}

    def __bool__(self) -> bool:
        return bool(self._patched)

    def enter(self, patches: Iterable[tuple[Any, str, Callable[[Any], Any]]]) -> None:
        """Replaces each attribute of each owner by ``wrap(what is there)``, or counts one more user of it."""
        done = []
        with self._lock:
            try:
                for owner, attribute, wrap in patches:
                    entry = self._patched.get((id(owner), attribute))
                    if entry is None:
                        raw = vars(owner)[attribute]
                        replacement = wrap(raw)
                        setattr(owner, attribute, replacement)
                        self._patched[id(owner), attribute] = [owner, raw, replacement, 1]
                    else:
                        entry[3] += 1
                    done.append((owner, attribute))
            except BaseException:
                self.leave(done)
                raise

    def leave(self, patches: Iterable[tuple[Any, str]]) -> None:
        """Counts one user less of each attribute; the last one restores it."""
        with self._lock:
            for owner, attribute in patches:
                entry = self._patched[id(owner), attribute]
                entry[3] -= 1
                if entry[3]:
                    continue
                _, raw, replacement, _ = self._patched.pop((id(owner), attribute))
                # Somebody else may have put something there meanwhile: that is theirs.
                if vars(owner).get(attribute) is replacement:
                    setattr(owner, attribute, raw)


patched = Patches()


@contextmanager
def activation(
    targets: Iterable[str] = (), *, frameworks: Iterable[Framework] | None = None, operators: bool = False
) -> Iterator[Recorder]:
    """Opens a window: calls of modules, of decorated functions and of the `targets` emit markers while it is open.

    Args:
      targets: qualified names of functions or methods that get a boundary too: ``"jax.nn.gelu"``,
        ``"my.pkg.function"``, ``"my.pkg.Class.method"``. Every module attribute that holds such a function is
        patched; a default argument or a closure that captured it is not reached. Names of a framework that was not
        imported are passed over.
      frameworks: the frameworks to look at; by default all that the process has imported.
      operators: whether the operators of imported programs get a boundary too.

    Raises:
      InvalidArgument: a target names nothing, or nothing that can be called.

    >>> import jax, jax.numpy as jnp
    >>> with activation(["jax.nn.gelu"]):
    ...     jaxpr = jax.make_jaxpr(lambda x: jax.nn.gelu(x))(jnp.ones(3))
    >>> [equation.primitive.name for equation in jaxpr.eqns][0]
    'block_enter'
    """
    from jaxport.frameworks import is_absent, loaded

    frameworks = loaded() if frameworks is None else tuple(frameworks)
    targets = [target for target in targets if not is_absent(target)]
    selected = selection(targets, current_recorder)
    recorder = Recorder(frameworks, selected.functions, {**class_boundaries, **selected.classes}, operators)
    of_methods = method_patches(frameworks, [*class_boundaries, *selected.classes], current_recorder)
    patches = [*selected.patches, *of_methods]
    with ExitStack() as stack:
        patched.enter(patches)
        stack.callback(patched.leave, [(owner, name) for owner, name, _ in patches])
        recorders = _local.__dict__.setdefault("recorders", [])
        recorders.append(recorder)
        stack.callback(recorders.pop)
        for framework in frameworks:
            stack.enter_context(framework.interception(recorder.call_method, recorder.stand_in))
        names = tuple(type(framework).__qualname__ for framework in frameworks)
        stack.enter_context(_view((frozenset(targets), names, targets_module.declarations, operators)))
        yield recorder


def target_of(cls: type) -> str:
    """The qualified name that the blocks of a module class have.

    >>> import flax.nnx
    >>> target_of(flax.nnx.Linear)
    'flax.nnx.Linear'
    """
    from jaxport.frameworks import loaded

    declared = class_boundaries.get(cls)
    namespaces = [namespace for framework in loaded() for namespace in framework.namespaces]
    return (declared and declared.target) or public_name(cls, namespaces)
