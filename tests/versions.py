"""Names of JAX that tests need, and that lie elsewhere in other releases; the package's own are in `jaxport.jaxprs`."""

from __future__ import annotations

from jaxport.jaxprs import release

if release < (0, 10):
    from jax._src.compute_on import compute_on2 as compute_on
elif release < (0, 11):
    from jax.experimental.compute_on import compute_on2 as compute_on
else:
    from jax.experimental.compute_on import compute_on

__all__ = ["compute_on"]
