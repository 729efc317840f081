"""The reduced precisions: their names and tolerances."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.export.precision.dense import Int8
from jaxport.export.precision.int4_levels import Int4, quantized, rounding_error


@dataclass(frozen=True)
class Precision:
    """A precision.

    Attributes:
      name: the name in `to_onnx(precision=...)`.
      tolerance: the largest tolerated difference of an output from that of the float32 function, relative to its
        largest element.
      dtype: the name of the dtype in which weights are stored.
      half: the 16-bit dtype in which the model computes; None if it computes in float32.
      form: how weights are stored in few bits; None if they are not, or in several ways.
    """

    name: str
    tolerance: float
    dtype: str
    half: ir.DataType | None = None
    form: Int4 | Int8 | None = None

    @property
    def calibrated(self) -> bool:
        """Whether it needs calibration."""
        return isinstance(self.form, Int8) and not self.form.dynamic


#: The tolerances allow for the rounding error of about ten layers. That of "int4" is an upper bound: each model gets
#: the tolerance that its own weights and its depth justify (`_of_weights`).
PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision("float16", 0.02, "float16", ir.DataType.FLOAT16),
        Precision("bfloat16", 0.1, "bfloat16", ir.DataType.BFLOAT16),
        Precision("int8-dynamic", 0.1, "uint8", form=Int8(dynamic=True)),
        Precision("int8", 0.2, "uint8", form=Int8()),
        Precision("int4", 0.6, "int4", form=Int4()),
    )
}


PrecisionName = Literal["float16", "bfloat16", "int8-dynamic", "int8", "int4"]
"""The names of `PRECISIONS`."""
Border = Literal["float32", "float16", "bfloat16"]
"""The dtype of inputs and outputs that are float32 in JAX."""
Named = PrecisionName | Int4 | Int8
"""What stands for a precision in the arguments of `to_onnx`."""
Chosen = Named | Literal["float32"]
"""What a mapping chooses for the modules of a query."""
FLOAT32: Literal["float32"] = "float32"
"""The name that leaves the modules of a query unchanged."""


def named(precision: Named) -> Precision:
    """Return the precision that an argument stands for.

    Raises:
      InvalidArgument: there is none.

    >>> named("int4").tolerance, round(named(Int4(group=128)).tolerance, 2)
    (0.6, 0.75)
    """
    if isinstance(precision, (Int4, Int8)):
        name = str(precision)
        default = PRECISIONS[name.partition("(")[0]]
        coarser = _normal_rounding(precision) / _normal_rounding(Int4()) if isinstance(precision, Int4) else 1.0
        return replace(default, name=name, tolerance=default.tolerance * coarser, form=precision)
    if not isinstance(precision, str) or precision not in PRECISIONS:
        allowed = f"{', '.join(map(repr, PRECISIONS))}, a `jaxport.Int4` or a `jaxport.Int8`"
        refuse(f"unknown precision {precision!r}", "to_onnx(precision=...)", allowed)
    return PRECISIONS[precision]


@functools.cache
def _normal_rounding(form: Int4) -> float:
    """Return how far normally distributed weights in 4 bits are from what they were."""
    weights = np.random.default_rng(0).normal(size=(2048, 16)).astype(np.float32)
    return rounding_error(weights, quantized(weights, form))


def recorded(name: str) -> Precision | None:
    """Return the precision that a file records; the one with the largest tolerance if there are several, None for none.

    >>> recorded("int4 and float16").name, recorded("")
    ('int4', None)
    """
    parts = name.split(" and ")
    known = [
        precision for key, precision in PRECISIONS.items() if any(key == part.split("(")[0].strip() for part in parts)
    ]
    return max(known, key=lambda precision: precision.tolerance, default=None)


def refuse(problem: str, where: str, instead: str) -> NoReturn:
    """Refuse an argument that chooses a precision."""
    raise InvalidArgument(problem, where=f"`{where}`", instead=instead)
