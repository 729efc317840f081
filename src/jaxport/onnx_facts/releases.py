"""The releases of ONNX Runtime that models are made for, and the dtypes that they lack."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Literal

import ml_dtypes
import numpy as np

from jaxport.onnx_facts import CONTROL_FLOW, RESHAPING, schema
from jaxport.onnx_facts.kernels import MISSING, REGISTERED, RELEASES, WEB_KERNELS, WEBGPU_KERNELS, Table
from jaxport.scoped import scoped

#: Dtypes with a kernel whose values are not those of the operator (Sign of NaN in half precision is 1), and dtypes
#: newer than the opset of the table of kernels.
BESIDE: dict[str, tuple[str, ...]] = {
    "Sign": ("float16", "bfloat16"),
    "TopK": ("bfloat16",),
    **dict.fromkeys(RESHAPING | {"Identity", "Pad"}, ("float8_e8m0fnu", "int4", "uint4", "int2", "uint2")),
}
#: By operator and version, the dtypes that the schema allows, but of which only newer versions have a kernel.
NEWER: dict[tuple[str, int], tuple[str, ...]] = {("IsNaN", 13): ("bfloat16",)}
#: Operators whose kernels take every dtype, or do not depend on one: no release is asked for them.
ANY_DTYPE = CONTROL_FLOW | {"Cast", "CastLike", "Constant", "ConstantOfShape"}


#: Operators that WebGPU has besides those of the table: no tensor, or any, decides on their kernels.
ON_ANY_GPU = frozenset({"Constant", "Identity", "If"})
Build = Literal["", "wasm", "webgpu"]
"""What has to have a kernel, too: nothing, all builds of onnxruntime-web, or these and WebGPU."""

#: The releases of ONNX Runtime that models support unless a target asks for others: all from the oldest on, which is
#: the lower bound of the extra `runtime`.
OLDEST, NEWEST = "1.28", next(reversed(RELEASES))

_made_for: contextvars.ContextVar[tuple[str, Build]] = contextvars.ContextVar("release", default=(OLDEST, ""))


def made_for(release: str, web: Build = "") -> AbstractContextManager[object]:
    """Make models for this release and all newer ones inside the context, and for a build of onnxruntime-web, if any.

    >>> with made_for("1.19"):
    ...     sorted(dtype.name for dtype in missing("BitShift"))
    ['uint16']
    """
    return scoped(_made_for, (release, web))


def current_release() -> str:
    """Return the oldest release of the runtime that models are made for."""
    return _made_for.get()[0]


def made_for_web() -> Build:
    """Return the build of onnxruntime-web that models are made for; an empty text for none."""
    return _made_for.get()[1]


def is_at_least(release: str, other: str) -> bool:
    """Whether a release of the runtime is another one, or newer.

    >>> is_at_least("1.28", "1.9"), is_at_least("1.19", "1.28")
    (True, False)
    """
    one, two = (tuple(map(int, text.split("."))) for text in (release, other))
    return one >= two


def missing(op_type: str, release: str | None = None, web: Build | None = None) -> frozenset[np.dtype]:
    """Return the dtypes for which a release of the runtime has no kernel of an operator, or no exact one.

    Args:
      op_type: the operator.
      release: the release of the runtime; by default the oldest that models are made for.
      web: whether onnxruntime-web has to have the kernel, too; by default if models are made for it.

    >>> sorted(dtype.name for dtype in missing("BitShift") - missing("BitShift", NEWEST))
    ['uint16']
    """
    return _missing(op_type, release or current_release(), made_for_web() if web is None else web)


def has_newer_kernel(op_type: str, since: int, dtype: np.dtype) -> bool:
    """Whether newer versions of an operator have a kernel of a dtype, but the version `since` has none.

    >>> has_newer_kernel("IsNaN", 13, np.dtype("float32")), has_newer_kernel("IsNaN", 13, np.dtype(ml_dtypes.bfloat16))
    (False, True)
    """
    return dtype.name in NEWER.get((op_type, since), ())


@functools.lru_cache(maxsize=2048)
def _missing(op_type: str, release: str, web: Build) -> frozenset[np.dtype]:
    releases = list(RELEASES)
    entries = (entry.partition("<") for entry in MISSING.get(op_type, "").split())
    names = [name for name, _, since in entries if not since or releases.index(release) < releases.index(since)]
    return frozenset(
        np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        for name in (
            *names,
            *BESIDE.get(op_type, ()),
            *_unregistered(op_type),
            *(_missing_on_web(op_type, WEB_KERNELS) if web else ()),
            *(_missing_on_web(op_type, WEBGPU_KERNELS) if web == "webgpu" else ()),
        )
    )


#: The dtypes of tensors that one kernel or another takes. The runtime computes float16 in float32 by itself.
_ASKED = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float32 float64".split()


def _unregistered(op_type: str) -> Iterator[str]:
    """Yield the dtypes that no kernel of an operator with one type parameter takes."""
    since = max((since for name, since in REGISTERED if name == op_type), default=None)
    parameters, kernels = ((), ()) if since is None else registered(op_type, since)
    if len(parameters) == 1:
        yield from (name for name in _ASKED if not any(name in kernel[0] for kernel in kernels))


def _missing_on_web(op_type: str, table: Table) -> Iterator[str]:
    """Yield the dtypes that no kernel of onnxruntime-web computes an operator in, in one version or another."""
    for since in (since for name, since in table if name == op_type):
        facts = schema.find("", op_type, since)
        parameters, kernels = _parsed(table, op_type, since)
        if facts is not None and parameters:
            place = parameters.index(schema.type_parameter(facts))
            yield from (name for name in _ASKED if not any(name in kernel[place] for kernel in kernels))


Kernel = tuple[frozenset[str], ...]
"""The names of the dtypes that a kernel takes, by type parameter."""


@functools.lru_cache(maxsize=512)
def registered(op_type: str, since: int, web: bool = False) -> tuple[tuple[str, ...], tuple[Kernel, ...]]:
    """Return the type parameters of a version of an operator, and its kernels; () if all is served, or is in `missing`.

    Those of onnxruntime-web are known for all operators.

    >>> parameters, kernels = registered("RoiAlign", 16)
    >>> parameters, [tuple(map(sorted, kernel)) for kernel in kernels]
    (('T1', 'T2'), [(['float32'], ['int64']), (['float64'], ['int64'])])
    """
    return _parsed(WEB_KERNELS if web else REGISTERED, op_type, since)


def _parsed(table: Table, op_type: str, since: int) -> tuple[tuple[str, ...], tuple[Kernel, ...]]:
    parameters, kernels = table.get((op_type, since), ("", ""))
    rows = (row.split() for row in kernels.split(", "))
    return tuple(parameters.split()), tuple(tuple(frozenset(kinds.split("/")) for kinds in row) for row in rows if row)


def lacks_kernel(op_type: str, since: int, dtypes: Mapping[str, str], web: bool = False) -> bool:
    """Whether no kernel takes these dtypes: their names, by type parameter.

    >>> lacks_kernel("OneHot", 11, {"T1": "int32", "T2": "int64", "T3": "float32"})
    True
    >>> lacks_kernel("OneHot", 11, {"T1": "int64", "T2": "int64", "T3": "float32"})
    False
    """
    return _lacks(*registered(op_type, since, web), dtypes)


@functools.lru_cache(maxsize=512)
def _of_gpu(op_type: str, since: int) -> tuple[tuple[str, ...], tuple[Kernel, ...]]:
    return _parsed(WEBGPU_KERNELS, op_type, since)


def falls_back(op_type: str, since: int, dtypes: Mapping[str, str]) -> bool:
    """Whether WebGPU leaves an operator of these dtypes, by type parameter, to the CPU.

    >>> falls_back("Tanh", 13, {"T": "float32"}), falls_back("Add", 14, {"T": "int64"}), falls_back("IsNaN", 20, {})
    (False, True, True)
    """
    parameters, kernels = _of_gpu(op_type, since)
    return op_type not in ON_ANY_GPU and (not kernels or _lacks(parameters, kernels, dtypes))


def _lacks(parameters: tuple[str, ...], kernels: tuple[Kernel, ...], dtypes: Mapping[str, str]) -> bool:
    named = {"float16": ("float16", "float32")}
    wanted = [(place, named.get(dtypes[p], (dtypes[p],))) for place, p in enumerate(parameters) if p in dtypes]
    return bool(parameters) and not any(
        all(not kernel[place].isdisjoint(names) for place, names in wanted) for kernel in kernels
    )
