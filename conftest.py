"""What is not collected: the modules of frameworks that are not installed, which cannot be imported for their examples."""

from __future__ import annotations

import importlib.util

_FRAMEWORKS = ("haiku", "keras")

collect_ignore = [f"src/jaxport/frameworks/{name}.py" for name in _FRAMEWORKS if importlib.util.find_spec(name) is None]
