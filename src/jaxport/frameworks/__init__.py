"""The supported frameworks: each in one file, loaded only if the user has imported the framework."""

from __future__ import annotations

import sys
from importlib import import_module

from jaxport.blocks.callables.framework import Framework

__all__ = ["is_absent", "loaded"]

# From the module that must have been imported to the file for it. Equinox comes first: its modules are the cheapest to
# recognise.
_FRAMEWORKS = {
    "equinox": "jaxport.frameworks.equinox",
    "flax.nnx": "jaxport.frameworks.nnx",
    "flax.linen": "jaxport.frameworks.linen",
    "haiku": "jaxport.frameworks.haiku",
    "keras": "jaxport.frameworks.keras",
    # A previously traced program is a model too.
    "jaxport.mox.programs.program": "jaxport.mox.substitution.framework",
    "jaxport.importer.program": "jaxport.frameworks.imported",
    "jaxport.stablehlo.program": "jaxport.frameworks.stablehlo",
    "jax.export": "jaxport.frameworks.artifacts",
}


def loaded() -> tuple[Framework, ...]:
    """Return the frameworks that this process has imported.

    >>> import flax.nnx
    >>> "Nnx" in [type(framework).__name__ for framework in loaded()]
    True
    """
    return tuple(import_module(file).framework for name, file in _FRAMEWORKS.items() if name in sys.modules)


def is_absent(target: str) -> bool:
    """Whether a qualified name belongs to a framework that this process has not imported, so that nothing calls it.

    >>> import flax.nnx
    >>> is_absent("flax.nnx.Linear"), is_absent("jax.nn.gelu")
    (False, False)
    """
    return any(target.startswith(f"{name}.") and name not in sys.modules for name in _FRAMEWORKS)
