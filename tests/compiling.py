"""What the tests have JAX compile, they run once or twice: it compiles fast, and once for all processes."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

UNSAFE = "xla_cpu_use_fusion_emitters"
"""Without its fusions XLA aborts the process at floats of 6 bits, and computes some scatters wrong: only `check` does without."""


def compile_fast() -> None:
    """Set, before JAX is imported, what it compiles with here and in the processes that are started from here.

    `XLA_FLAGS= make test` runs all tests with XLA's own options. What was compiled is kept for the other processes, and for
    after `jax.clear_caches()`, in a folder that is removed at the end.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = tempfile.mkdtemp(prefix="jaxport-tests-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    from jaxport.jaxprs.releases import QUICKLY

    flags = {name: value for name, value in QUICKLY.items() if name != UNSAFE}
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--{name}={str(value).lower()}" for name, value in flags.items()))


def on_devices(count: int) -> dict[str, str]:
    """The environment of a process that has so many devices, and compiles as this one does."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
