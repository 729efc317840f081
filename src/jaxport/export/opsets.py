"""Which opsets can be written, and the IR version that brings each."""

from __future__ import annotations

import operator

from jaxport.errors import InvalidArgument

#: The IR version of the ONNX release that brought an opset.
IR_VERSIONS: dict[int, int] = {17: 8, 18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13, 26: 13}
OLDEST, NEWEST = min(IR_VERSIONS), max(IR_VERSIONS)
DEFAULT = 23


def validated(opset: int | None) -> int:
    """The opset to write.

    Raises:
      InvalidArgument: it is no integer, or out of range.

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
            instead=f"leave it out for opset {DEFAULT}",
        )
    return number
