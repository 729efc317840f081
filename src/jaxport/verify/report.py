"""The report of a verification."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from jaxport.columns import aligned
from jaxport.errors import VerificationFailed
from jaxport.printable import Shown, printable, printable_lines
from jaxport.verify.comparing import Difference


@dataclass(frozen=True)
class Output:
    """The comparison of one output at one set of sizes.

    Attributes:
      name: the name of the output.
      dtype, shape: those of the JAX result.
      sizes: the sizes of the symbolic dims.
      difference: the difference of the model's value.

    >>> import jax.numpy as jnp, jaxport
    >>> output = jaxport.to_onnx(jnp.abs, [(3,)]).verify().outputs[0]
    >>> output.ok, output.dtype, output.shape
    (True, 'float32', (3,))
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    sizes: Mapping[str, int]
    difference: Difference

    @property
    def ok(self) -> bool:
        """Whether the two sides agree."""
        return not self.difference.problem


def compared_outputs(
    names: Iterable[str], sizes: Mapping[str, int], expected: Iterable[np.ndarray], differences: Iterable[Difference]
) -> list[Output]:
    """Return the comparisons of all outputs at one set of sizes, given their names, the JAX results and the
    differences.
    """
    return [
        Output(name, str(value.dtype), value.shape, sizes, difference)
        for name, value, difference in zip(names, expected, differences, strict=True)
    ]


@dataclass(frozen=True)
class Divergence:
    """The place where the model and the function diverge.

    Attributes:
      place: the first block, or equation outside all blocks, whose result differs, as text.
      source: the user's line.
      problem: the difference there.

    >>> from jaxport.verify import Divergence
    >>> print(Divergence("layers.0: Linear", "model.py:12", "the first element is 2, 1 is expected"))
    layers.0: Linear
    model.py:12
    the first element is 2, 1 is expected
    """

    place: str
    source: str
    problem: str

    def __str__(self) -> str:
        return "\n".join(printable_lines(text) for text in (self.place, self.source, self.problem) if text)


@dataclass(frozen=True)
class BlockDifference:
    """The difference of a block's results from those of the JAX function.

    Attributes:
      path: the path of the module; the name of the block if it has none.
      target: the qualified name of the module's class, or of the function.
      relative: the root mean square of the difference, in units of that of the expected values; the largest one if
        there are several results. The calls of a scan count together.
      added: what the block costs: `relative` without the largest such difference of the values that the block is
        computed from, where both are taken as independent, so that their squares add up.
    """

    path: str
    target: str
    relative: float
    added: float


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """The result of a verification.

    >>> import jaxport
    >>> report = jaxport.to_onnx(lambda x: x * 2, [("B", 3)]).verify()
    >>> report.ok, [output.shape for output in report.outputs]
    (True, [(4, 3), (1, 3)])

    Attributes:
      name: the name of the model.
      outputs: one per output and set of sizes.
      divergence: where the two sides diverge, if they do and the place was found.
      precision: the reduced precision of the model, if any.
      blocks: the difference of each block, the largest first, if requested.
      runtime: what ran beside JAX.
    """

    name: str
    outputs: tuple[Output, ...]
    divergence: Divergence | None = None
    precision: str = ""
    blocks: tuple[BlockDifference, ...] = ()
    runtime: str = "ONNX Runtime"

    @property
    def ok(self) -> bool:
        """Whether all outputs agree at all sizes."""
        return all(output.ok for output in self.outputs)

    @property
    def failures(self) -> list[Output]:
        """The outputs that do not agree."""
        return [output for output in self.outputs if not output.ok]

    def raise_if_failed(self) -> None:
        """Raise an error if an output does not agree.

        Raises:
          VerificationFailed: an output does not agree.
        """
        if self.ok:
            return
        worst = self.failures[0]
        more = len(self.failures) - 1
        also = f" (and {more} more)" if more else ""
        raise VerificationFailed(
            f"the output `{worst.name}` of `{self.name}` differs{_at(worst.sizes)}{also}",
            where=str(self.divergence or ""),
            why=worst.difference.problem,
            instead="if such an error is expected here, say so: `verify(rtol=..., atol=...)`",
        )

    def text(self) -> str:
        """Return the verdict, a row for each output, and where the two sides diverge."""
        head = ("sizes", "output", "dtype", "shape", "max error", "relative", "ulps", "")
        lines = aligned([head, *map(_row, self.outputs)])
        verdict = "agrees" if self.ok else "differs"
        if self.ok and any(output.difference.note for output in self.outputs):
            verdict = "agrees where it is well-conditioned"
        where = f", where it is in {self.precision}" if self.precision else ""
        text = [f"`{self.name}` {verdict} in JAX and in {self.runtime}{where}", *(f"  {line}" for line in lines)]
        if self.divergence is not None:
            text += ["first divergence:", *(f"  {line}" for line in str(self.divergence).splitlines())]
        if self.blocks:
            rows = [(b.path, b.target, f"{b.relative:.2g}", f"{b.added:.2g}") for b in self.blocks]
            text += ["blocks:", *(f"  {line}" for line in aligned([("block", "type", "relative", "added"), *rows]))]
        return "\n".join(map(printable, text))


def _row(output: Output) -> tuple[str, ...]:
    difference = output.difference
    note = difference.problem or difference.note
    if not note and difference.finite < 1:
        note = f"{difference.finite:.0%} finite" if difference.finite else "nothing finite: give inputs of your own"
    return (
        ", ".join(f"{name}={size}" for name, size in output.sizes.items()) or "-",
        output.name,
        output.dtype,
        "×".join(map(str, output.shape)) or "scalar",
        f"{difference.absolute:.2g}",
        f"{difference.relative:.2g}",
        "-" if difference.ulps is None else str(difference.ulps),
        note,
    )


def _at(sizes: Mapping[str, int]) -> str:
    return " at " + ", ".join(f"{name}={size}" for name, size in sizes.items()) if sizes else ""
