"""The parameters of a program as a dict whose arrays are read when they are looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import jax
from jax.tree_util import DictKey

_UNREAD = object()


class Params(dict[str, Any]):
    """A dict of arrays by name, which are read one by one, when they are looked up first.

    For JAX it is a custom pytree type, much like a dict: what is mapped together with it has to be one, too, as its
    gradients are. `dict(parameters)` is a plain one, and reads all of them.

    Args:
      values: the arrays that are known already.
      read: what reads an array, by its name.

    >>> read = []
    >>> parameters = Params({"a": 1}, {"b": lambda: read.append("b") or 2})
    >>> parameters["a"], read
    (1, [])
    >>> parameters["b"], read
    (2, ['b'])
    >>> jax.tree.map(lambda value: value + 1, parameters)
    {'a': 2, 'b': 3}
    """

    def __init__(
        self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), read: Mapping[str, Callable[[], Any]] = {}
    ):
        super().__init__(values)
        super().update(dict.fromkeys(read, _UNREAD))
        self._read = read

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if value is _UNREAD:
            self[name] = value = self._read[name]()
        return value

    def __iter__(self) -> Iterator[str]:  # CPython copies a dict that has none of its own past `__getitem__`
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401  this is `get`

    def setdefault(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else super().setdefault(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        value = self.get(name)
        return super().pop(name, *default) if name not in self else (super().pop(name), value)[1]

    def popitem(self) -> tuple[str, Any]:
        name = next(reversed(self.keys()))
        return name, self.pop(name)

    def items(self) -> Any:
        return self._whole().items()

    def values(self) -> Any:
        return self._whole().values()

    def _whole(self) -> dict[str, object]:
        """Return a plain dict with all arrays."""
        return {name: self[name] for name in self}

    def copy(self) -> Params:
        return Params(self._whole())

    def __or__(self, other: Any) -> Params:
        return Params({**self, **other})

    def __ror__(self, other: Any) -> Any:
        return {**other, **self}

    def __eq__(self, other: object) -> bool:
        return self._whole() == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self._whole())

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Params:
        return Params(deepcopy(self._whole(), memo))

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return dict, (self._whole(),)  # what is pickled can be read without this package


def _flatten_with_keys(parameters: Params) -> tuple[list[tuple[object, object]], tuple[str, ...]]:
    names = tuple(sorted(parameters))
    return [(DictKey(name), parameters[name]) for name in names], names


def _flatten(parameters: Params) -> tuple[list[object], tuple[str, ...]]:
    names = tuple(sorted(parameters))
    return [parameters[name] for name in names], names


jax.tree_util.register_pytree_with_keys(
    Params,
    _flatten_with_keys,
    lambda names, values: Params(zip(names, values, strict=True)),
    _flatten,
)
