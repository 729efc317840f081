"""Load the rules of other packages, found by their entry points.

A package that brings rules names the module that registers them in its `pyproject.toml`:

    [project.entry-points."jaxport.rules"]
    my_package = "my_package.onnx_rules"

All of them are imported before the first export of a process. One that cannot be imported, or that registers a name
already taken, is reported by name, leaves nothing registered, and does not prevent exports.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import metadata

from jaxport.export.emit.registry import BLOCK_RULES, RULES

GROUP = "jaxport.rules"
#: Why plugins could not be loaded, by name.
FAILED: dict[str, str] = {}
_loaded: set[str] = set()


def load() -> None:
    """Import the plugins that are not loaded yet.

    >>> load()
    >>> FAILED
    {}
    """
    for entry in _entries(tuple((path, _changed(path)) for path in sys.path)):
        identity = f"{entry.name} = {entry.value}"
        if identity in _loaded:
            continue
        _loaded.add(identity)
        before = dict(RULES), dict(BLOCK_RULES)
        try:
            entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it raises, the export goes on without it
            for registry, rules in zip((RULES, BLOCK_RULES), before, strict=True):
                registry.clear()
                registry.update(rules)
            package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
            FAILED[entry.name] = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"the rules `{entry.name}`{package} (`{entry.value}`) are not loaded: {FAILED[entry.name]}",
                stacklevel=3,
            )


@functools.lru_cache(maxsize=1)
def _entries(folders: tuple[tuple[str, float], ...]) -> Sequence[metadata.EntryPoint]:  # noqa: ARG001  what they depend on
    """Return the entry points of the packages in these folders; cached, since reading them is slow."""
    return tuple(metadata.entry_points(group=GROUP))


def _changed(path: str) -> float:
    """Return when something was last installed in a folder, or removed from it."""
    try:
        return os.stat(path).st_mtime
    except OSError:  # no such folder
        return 0.0


def block_targets() -> tuple[str, ...]:
    """Return the block targets that have a rule, except those of packages that are not imported and so never called.

    >>> BLOCK_RULES["not_imported.function"] = None
    >>> "not_imported.function" in block_targets()
    False
    >>> del BLOCK_RULES["not_imported.function"]
    """
    return tuple(target for target in BLOCK_RULES if target.partition(".")[0] in sys.modules)


def failures() -> str:
    """Return a text to add if a rule is missing: the plugins that are not loaded and may have had it.

    >>> failures()
    ''
    """
    return "".join(f"; the plugin `{name}` is not loaded ({why.splitlines()[0]})" for name, why in FAILED.items())
