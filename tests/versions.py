"""Names of JAX that tests need, and that lie elsewhere in other releases; the package's own are in `jaxport.jaxprs`."""

from __future__ import annotations

from jax.experimental import pallas

from jaxport.jaxprs import release

if release < (0, 10):
    from jax._src.compute_on import compute_on2 as compute_on
elif release < (0, 11):
    from jax.experimental.compute_on import compute_on2 as compute_on
else:
    from jax.experimental.compute_on import compute_on

if release < (0, 11):
    kernel_reciprocal = pallas.reciprocal
else:
    from jax.experimental.pallas import tpu

    kernel_reciprocal = tpu.reciprocal

__all__ = ["compute_on", "kernel_reciprocal"]
