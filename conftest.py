"""What each run of pytest begins with: XLA compiles fast, processes share what they compiled, a few files are left
out.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
from pathlib import Path

from tests.compiling import compile_fast

_FRAMEWORKS = ("haiku", "keras")

# Modules that need a library that is not installed cannot be imported for their examples.
_NEEDED = {
    **{f"src/jaxport/frameworks/{name}.py": name for name in _FRAMEWORKS},
    "src/jaxport/pytorch": "torch",
    "tests/fuzzing/guided.py": "atheris",
}

# A stranger's package registers rules of its own: only a process of its own loads it.
collect_ignore = ["tests/packaging/stranger"]
collect_ignore += [path for path, library in _NEEDED.items() if importlib.util.find_spec(library) is None]

#: After so many new objects Python looks for garbage. By default after 700, and each time JAX has XLA look too.
OBJECTS = 50_000


compile_fast()
SOURCE = Path(__file__).parent / "src"


def pytest_collect_file(file_path: Path) -> None:
    """Load a file of the package as the package does: pytest would run it twice, and rules and operators register
    once.
    """
    if file_path.suffix == ".py" and file_path.is_relative_to(SOURCE):
        parts = file_path.relative_to(SOURCE).with_suffix("").parts
        with contextlib.suppress(Exception):  # which pytest shows, when it imports the file itself
            importlib.import_module(".".join(parts).removesuffix(".__init__"))


def pytest_collection_finish() -> None:
    """What the test files made stays until the end: no search for garbage looks at it."""
    gc.freeze()
    gc.set_threshold(OBJECTS)
