"""JAX's own definitions of some primitives, as JAX functions without public names; they serve as rules directly."""

from jax._src.lax.lax import _ragged_dot_general_impl as ragged_dot_general_impl
from jax._src.lax.special import (
    bessel_i0e_impl,
    igamma_grad_a_impl,
    igamma_impl,
    igammac_impl,
    random_gamma_grad_impl,
    regularized_incomplete_beta_impl,
)
