"""The releases of ONNX Runtime that models are made for, and the dtypes that they lack."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from jaxport.onnx_facts import CONTROL_FLOW, RESHAPING
from jaxport.onnx_facts.kernels import MISSING, RELEASES

#: Dtypes with a kernel whose values are not those of the operator (Sign of NaN in half precision is 1), and dtypes
#: newer than the opset of the table of kernels.
BESIDE: dict[str, tuple[str, ...]] = {
    "Sign": ("float16", "bfloat16"),
    **dict.fromkeys(RESHAPING, ("float8_e8m0fnu",)),
}
#: Operators whose kernels take every dtype, or do not depend on one: no release is asked for them.
ANY_DTYPE = CONTROL_FLOW | {"Cast", "CastLike", "Constant", "ConstantOfShape"}


#: The releases of ONNX Runtime that models support unless a target asks for others: all from the oldest on, which is
#: the lower bound of the extra `runtime`.
OLDEST, NEWEST = "1.28", next(reversed(RELEASES))

_made_for: contextvars.ContextVar[str] = contextvars.ContextVar("release", default=OLDEST)


@contextlib.contextmanager
def made_for(release: str) -> Iterator[None]:
    """Make models for this release and all newer ones inside the context.

    >>> with made_for("1.17"):
    ...     sorted(dtype.name for dtype in missing("BitShift"))
    ['uint16']
    """
    token = _made_for.set(release)
    try:
        yield
    finally:
        _made_for.reset(token)


def current_release() -> str:
    """Return the oldest release of the runtime that models are made for."""
    return _made_for.get()


def missing(op_type: str, release: str | None = None) -> frozenset[np.dtype]:
    """Return the dtypes for which a release of the runtime has no kernel of an operator, or no exact one.

    Args:
      op_type: the operator.
      release: the release of the runtime; by default the oldest that models are made for.

    >>> sorted(dtype.name for dtype in missing("BitShift") - missing("BitShift", NEWEST))
    ['uint16']
    """
    return _missing(op_type, release or current_release())


@functools.lru_cache(maxsize=2048)
def _missing(op_type: str, release: str) -> frozenset[np.dtype]:
    releases = list(RELEASES)
    entries = (entry.partition("<") for entry in MISSING.get(op_type, "").split())
    names = [name for name, _, since in entries if not since or releases.index(release) < releases.index(since)]
    return frozenset(
        np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in (*names, *BESIDE.get(op_type, ()))
    )
