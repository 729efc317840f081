"""How far an exported example is from `jax.jit`, and where rounding is amplified, how far both are from float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .example import Example

#: How far outputs may be from those of `jax.jit` in float32, relative to the largest element of an output. Rounding
#: alone gives some 1e-6 in the deepest of the models.
LIMIT = 1e-5


class Comparison(NamedTuple):
    """The errors of one output, each relative to the output's largest element.

    Attributes:
      error: of the exported model against `jax.jit`.
      exact: of the exported model against float64; None where `error` is within the limit.
      exact_jax: of `jax.jit` in float32 against float64; None where `error` is within the limit.
    """

    error: float
    exact: float | None = None
    exact_jax: float | None = None

    @property
    def ok(self) -> bool:
        """Within the limit, or at most twice as far from float64 as JAX itself is in float32."""
        if self.exact is None or self.exact_jax is None:
            return self.error <= LIMIT
        return self.exact <= 2 * self.exact_jax


def compare(example: Example, exported: Any, arguments: Sequence[Any]) -> list[Comparison]:
    """Compare each output, at the sizes of the arguments; dtypes and shapes have to be equal."""
    report = exported.verify(list(arguments), check=False)
    errors = [output.difference.relative for output in report.outputs]
    if max(errors) <= LIMIT:
        report.raise_if_failed()
        return [Comparison(error) for error in errors]
    expected = [np.asarray(x) for x in jax.tree.leaves(jax.jit(example.fn)(*arguments))]
    actual = [np.asarray(x) for x in jax.tree.leaves(exported(*arguments))]
    with jax.enable_x64(True):
        exact = [np.asarray(x) for x in jax.tree.leaves(example.fn(*jax.tree.map(_in_double, tuple(arguments))))]
    return [
        Comparison(output.difference.relative)
        if output.ok and output.difference.relative <= LIMIT
        else Comparison(output.difference.relative, relative(best, ours), relative(best, theirs))
        for output, best, ours, theirs in zip(report.outputs, exact, actual, expected, strict=True)
    ]


def relative(reference: np.ndarray, output: np.ndarray) -> float:
    """The largest difference, relative to the largest element of the reference; infinite where one is not a number."""
    if reference.shape != output.shape:
        return float("inf")
    if reference.dtype.kind != "f" or not reference.size:
        return 0.0 if np.array_equal(reference, output) else float("inf")
    difference = np.abs(output.astype(np.float64) - reference).max()
    largest = np.abs(reference).max()
    return float(difference / largest if largest else difference) if np.isfinite(difference) else float("inf")


def _in_double(array: Any) -> Any:
    return np.asarray(array, np.float64) if np.asarray(array).dtype == np.float32 else array
