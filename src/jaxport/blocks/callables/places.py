"""The paths of the modules of the traced callable, by identity."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from jaxport.blocks.callables.framework import Framework
from jaxport.jaxprs import Module
from jaxport.jaxprs.identity import IdentityMap, IdentitySet


def joined(*parts: str) -> str:
    """Return the path made of the non-empty parts.

    >>> joined("layers.0", "", "attn")
    'layers.0.attn'
    """
    return ".".join(part for part in parts if part)


class Types:
    """The frameworks' classification of values, by type; the result for each type is cached."""

    def __init__(self, frameworks: Sequence[Framework]):
        self.frameworks = tuple(frameworks)
        self._known: dict[type, tuple[Framework | None, Framework | None, bool, bool, bool]] = {}

    def framework_of(self, value: object) -> Framework | None:
        """Return the framework that `value` is a module of, if any."""
        return self._about(value)[0]

    def root_framework_of(self, value: object) -> Framework | None:
        """Return the framework that `value` is a model, or a piece of one, of."""
        return self._about(value)[1]

    def is_opaque(self, value: object) -> bool:
        """Whether markers leave `value` alone: modules and the like."""
        return self._about(value)[2]

    def is_variable(self, value: object) -> bool:
        """Whether `value` is a box around an array."""
        return self._about(value)[3]

    def is_state(self, value: object) -> bool:
        """Whether `value` is a container of statistics and the like."""
        return self._about(value)[4]

    def _about(self, value: object) -> tuple[Framework | None, Framework | None, bool, bool, bool]:
        known = self._known.get(type(value))
        if known is None:
            known = self._known[type(value)] = (
                next((framework for framework in self.frameworks if _says(framework.is_module, value)), None),
                next((framework for framework in self.frameworks if _says(framework.is_root, value)), None),
                any(_says(framework.is_opaque, value) for framework in self.frameworks),
                any(_says(framework.is_variable, value) for framework in self.frameworks),
                any(_says(framework.is_state, value) for framework in self.frameworks),
            )
        return known


def _says(predicate: Callable[[object], bool], value: object) -> bool:
    try:
        return predicate(value)
    except Exception:  # noqa: BLE001 - `isinstance` asks an object for its class, and a foreign one may do anything
        return False


class Places:
    """The paths of modules."""

    def __init__(self, types: Types):
        self.types = types
        self._paths: IdentityMap[Module, str] = IdentityMap()
        self._expected: IdentitySet[Module] = IdentitySet()
        self._by_kind: dict[Hashable, list[str]] | None = None

    def register(self, module: Module, path: str) -> None:
        """Record the path of a module and of all modules below it; known modules keep their path."""
        for below, submodule in self.below(module):
            self._paths.setdefault(submodule, joined(path, below))
        self._by_kind = None

    def expect(self, module: Module) -> None:
        """Record that the module will be registered, when the names of all models are known."""
        self._expected.add(module)

    def knows(self, module: Module) -> bool:
        """Whether the module is registered, or will be."""
        return module in self._expected or module in self._paths

    def below(self, module: Module) -> Iterator[tuple[str, Module]]:
        """Yield the module and the modules below it, with their relative paths."""
        framework = self.types.root_framework_of(module)
        return iter(()) if framework is None else framework.submodules(module)

    def path_of(self, module: Module) -> str | None:
        """Return the path of a module, None if it is unknown."""
        return self._paths.get(module)

    def like(self, kind: tuple) -> Sequence[str]:
        """Return the paths of the modules of the same type and config (see `kind_of`), or at least of the same type."""
        if self._by_kind is None:
            self._by_kind = {}
            for module, path in self._paths.items():
                framework = self.types.framework_of(module)
                if framework is not None:
                    for key in (type(module), kind_of(framework, module)):
                        self._by_kind.setdefault(key, []).append(path)
        return self._by_kind.get(kind) or self._by_kind.get(kind[0]) or ()


def kind_of(framework: Framework, module: Module) -> tuple:
    """Return the type and the config of a module as a comparable key."""
    config = framework.config(module)
    return type(module), repr(sorted(config.items(), key=lambda item: item[0]))
