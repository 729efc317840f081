"""The public namespaces that are swept, each with its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from tests.export.sweeps.cases import Case, names_of
from tests.export.sweeps.tables import lax, nn, numpy_arrays


@dataclass(frozen=True)
class Namespace:
    """A public namespace.

    Attributes:
      name: its qualified name.
      module: the module.
      cases: one case for each function.
      reasons: the public names that are no functions of arrays, or that JAX cannot trace, each with why.
      refused: cases of functions that are refused, for a reason that the refusal itself gives.
      target: the share of the functions that must be exported.
    """

    name: str
    module: Any
    cases: Mapping[str, Case]
    reasons: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, Case] = field(default_factory=dict)
    target: float = 1.0

    @property
    def names(self) -> list[str]:
        """All public callables."""
        return names_of(self.module)

    @property
    def share(self) -> float:
        """The share of the functions that are exported."""
        return len(self.cases) / (len(self.cases) + len(self.refused))


NAMESPACES = [
    Namespace("jax.nn", jax.nn, nn.CASES, nn.REASONS, nn.REFUSED),
    Namespace("jax.lax", jax.lax, lax.CASES, lax.REASONS, lax.REFUSED, target=0.99),
    Namespace("jax.numpy", jnp, numpy_arrays.CASES, numpy_arrays.REASONS, numpy_arrays.REFUSED, target=0.97),
]
