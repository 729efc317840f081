"""What runtimes have no kernel for, and what they have registered: tables beside this file, which scripts write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

Table = Mapping[tuple[str, int], tuple[str, str]]
"""By operator and version: its type parameters, and the dtypes that kernels take."""


def _by_version(rows: Mapping[str, Sequence[str]]) -> Table:
    keys = ((key.split(), row) for key, row in rows.items())
    return {(name, int(since)): (kinds, dtypes) for (name, since), (kinds, dtypes) in keys}


_CPU, _REGISTERED, _WEB = (
    json.loads(files("jaxport.onnx_facts").joinpath(f"{name}_kernels.json").read_text("utf-8"))
    for name in ("cpu", "registered", "web")
)

#: The releases of ONNX Runtime that were asked, the oldest first, and the newest opset that each loads.
RELEASES: dict[str, int] = _CPU["releases"]
#: By operator that was asked, the dtypes without a kernel for the CPU; `dtype<release` has one since that release.
MISSING: Mapping[str, str] = _CPU["missing"]
#: By operator, the versions without any kernel in a release that loads their opset; `version<release` as above.
VERSIONS: Mapping[str, str] = _CPU["versions"]
#: The dtypes of each kernel that supported releases have, of operators that no rule emits.
REGISTERED = _by_version(_REGISTERED["kernels"])
#: The release of onnxruntime-web that was asked.
WEB_RELEASE: str = _WEB["release"]
#: Where some dtypes have no kernel, those that all builds of onnxruntime-web have.
WEB_KERNELS = _by_version(_WEB["kernels"])
#: The same of what WebGPU computes by itself; all other operators fall back to the CPU.
WEBGPU_KERNELS = _by_version(_WEB["webgpu"])
