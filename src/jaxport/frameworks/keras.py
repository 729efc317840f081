"""Keras 3 on JAX: layers hold variables; inside a `StatelessScope` Keras itself collects new values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import keras  # pyright: ignore[reportMissingImports]
from keras.src.backend.common import global_state  # pyright: ignore[reportMissingImports]  no public name
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask  # pyright: ignore[reportMissingImports]

from jaxport.blocks.callables.framework import Framework, Leaf, static_items
from jaxport.blocks.callables.places import joined
from jaxport.blocks.marking.targets import subclasses
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Module
from jaxport.jaxprs.identity import IdentitySet


class _Scope(keras.StatelessScope):
    """A scope that knows the variables that were assigned to."""

    def __init__(self) -> None:
        super().__init__(collect_losses=True)  # otherwise they are kept in the layers
        self.assigned: IdentitySet[Any] = IdentitySet()

    def add_update(self, update: tuple[object, object]) -> None:
        self.assigned.add(update[0])
        super().add_update(update)


class Keras(Framework[keras.layers.Layer]):
    """`keras`, version 3, with JAX as its backend."""

    namespaces = ("keras.layers", "keras.models", "keras")
    bases = (keras.Operation,)
    methods = frozenset({"__call__"})
    has_whole_paths = True

    def is_module(self, value: object) -> bool:
        """Whether it is a layer; a model is one."""
        return isinstance(value, keras.layers.Layer)

    def is_opaque(self, value: object) -> bool:
        """Whether it is a layer or variable, which have identity."""
        return isinstance(value, keras.layers.Layer | keras.Variable)

    def is_root(self, value: object) -> bool:
        """Whether it is a layer or a single variable, which is state too."""
        return self.is_opaque(value)

    def module_classes(self) -> Iterator[type]:
        """Yield all layers: Keras's and the user's."""
        yield keras.layers.Layer
        yield from subclasses(keras.layers.Layer)

    def carry(self, before: object, after: object) -> None:
        """Copy the mask that Keras attaches to arrays."""
        mask = get_keras_mask(before)
        if mask is not None:
            set_keras_mask(after, mask)

    def named_by(self, module: keras.layers.Layer, method: str) -> Callable | None:
        """Return `call`, whose arguments `__call__` takes."""
        return module.call if method == "__call__" else None

    @contextmanager
    def session(self) -> Iterator[Callable[[], Mapping[str, Leaf]]]:
        """Enter Keras's own scope, in which nothing is assigned in place."""
        waiting = len(_uninitialized())
        with _Scope() as scope:
            values = scope.state_mapping
            yield lambda: {v.path: _leaf(v, values[id(v)]) for v in scope.assigned}
            made = _uninitialized()[waiting:]
            del _uninitialized()[waiting:]
        if made:
            raise InvalidArgument(
                f"{len(made)} variables of Keras are made during the call, `{made[0].path}` first",
                where="the model that is traced",
                why="its layers are not built yet, so it has no weights",
                instead="call the model once, or build it (`model.build(input_shape)`), before",
            )

    def submodules(self, module: keras.layers.Layer) -> Iterator[tuple[str, Module]]:
        """Yield the module and those below it, parents first; a layer's key is its name."""
        seen: IdentitySet[Any] = IdentitySet()
        waiting = [("", module)]
        while waiting:
            path, layer = waiting.pop()
            if layer not in seen and self.is_module(layer):
                seen.add(layer)
                yield path, layer
                below = layer._flatten_layers(include_self=False, recursive=False)  # only a model has `layers`
                waiting += [(joined(path, child.name), child) for child in reversed(below)]

    def leaves(self, module: keras.layers.Layer) -> list[Leaf]:
        """Return the variables under the paths that Keras gives them: `dense/kernel`."""
        variables = [module] if isinstance(module, keras.Variable) else module.variables
        return [_leaf(variable, variable.value) for variable in variables if variable._value is not None]

    def config(self, module: keras.layers.Layer) -> dict[str, Any]:
        """Return the public attributes that describe the layer itself: numbers, names, functions."""
        plain = {k: v for k, v in vars(module).items() if isinstance(v, _PLAIN) and k not in _OF_EVERY_LAYER}
        return static_items(plain, self.is_opaque)


_PLAIN = int | float | str | tuple | list | FunctionType

# Attributes that each layer has for Keras itself.
_OF_EVERY_LAYER = frozenset(
    {"build", "quantize", "built", "name", "autocast", "compiled", "supports_jit", "call_signature_parameters"}
    | {"steps_per_execution", "lora_enabled"}
)


def _uninitialized() -> list[Any]:
    """Return the variables that wait for the end of the outermost scope."""
    return global_state.get_global_attribute("uninitialized_variables", [], set_to_default=True)


def _leaf(variable: Any, value: Any) -> Leaf:
    is_counter = variable.path.rpartition("/")[2] == "seed_generator_state"
    return Leaf(variable.path, value, bool(variable.trainable) and not is_counter, is_counter)


framework = Keras()
