"""Options of XLA's compiler for the installed release of JAX, which refuses unknown ones."""

from __future__ import annotations

from jaxport.jaxprs.versions import release

__all__ = ["QUICKLY"]

QUICKLY: dict[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    # The other emitters are gone from 0.11 on, and the option with them.
    **({"xla_cpu_use_fusion_emitters": False} if release < (0, 11) else {}),
}
"""Compile fast, and run slowly: for programs that run once."""
