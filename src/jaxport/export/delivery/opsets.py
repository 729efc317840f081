"""The opsets that can be written, and the IR version of each."""

from __future__ import annotations

import operator
import warnings

import onnx

from jaxport.errors import InvalidArgument
from jaxport.onnx_facts import schema
from jaxport.onnx_facts.kernels import RELEASES

#: The IR version of the ONNX release that brought an opset.
IR_VERSIONS: dict[int, int] = {
    13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13, 26: 13, 27: 13,
    28: 14,
}  # fmt: skip
#: The IR version that brought functions in files.
FUNCTIONS = 8
#: The newest opset is that of the installed onnx; those up to `CHECKED` run in a release of ONNX Runtime.
OLDEST, NEWEST = min(IR_VERSIONS), schema.NEWEST
CHECKED = min(max(RELEASES.values()), NEWEST)
DEFAULT = 23


def ir_version(opset: int) -> int:
    """Return the IR version of a model of an opset.

    >>> ir_version(23)
    11
    """
    return IR_VERSIONS.get(opset, int(onnx.IR_VERSION))


def validated(opset: int | None) -> int:
    """Return the opset to write; warn of one that no runtime has checked.

    Raises:
      InvalidArgument: it is not an integer, or out of range.

    >>> validated(None), validated(18)
    (23, 18)
    """
    if opset is None:
        return DEFAULT
    try:
        number = operator.index(opset)
    except TypeError:
        number = -1
    if not OLDEST <= number <= NEWEST:
        raise InvalidArgument(
            f"opset {opset!r} is out of range",
            where="`to_onnx(opset=...)`",
            why=f"opsets {OLDEST} to {NEWEST} can be written",
            instead="leave it out: then the model has the lowest opset, 18 or newer, that can say what it means",
        )
    if number > CHECKED:
        warnings.warn(unchecked(number), stacklevel=5)
    return number


def unchecked(opset: int) -> str:
    """Return the warning for a model whose opset no runtime has checked."""
    return f"opset {opset} is newer than what ONNX Runtime loads ({CHECKED}): no runtime here can check the model"


def first_release(opset: int) -> str | None:
    """Return the first release of ONNX Runtime, of those tested, that loads an opset.

    >>> first_release(23), first_release(28), first_release(1000)
    ('1.23', '1.32', None)
    """
    return next((release for release, newest in RELEASES.items() if opset <= newest), None)


def loaded_by(version: str) -> int:
    """Return the newest opset that a version of ONNX Runtime loads; versions newer than the last known count as it.

    >>> loaded_by("1.31.1"), loaded_by("1.99.0")
    (26, 28)
    """
    asked = _numbers(version)
    newest = [opset for release, opset in RELEASES.items() if _numbers(release) <= asked]
    return newest[-1] if newest else min(RELEASES.values())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
