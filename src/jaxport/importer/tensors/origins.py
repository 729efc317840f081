"""Weights of printed source, and the tensors of the model that they come from: the way back from training elsewhere."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxport.errors import InvalidArgument, boundary
from jaxport.files import checked_path, existing_file

ORIGINS = "origins"
"""The key in the metadata of a file of weights: where each of its tensors comes from, as JSON."""
BESIDE = "model.safetensors"
"""The file of a printed crate that has this metadata."""


class WeightOrigin(NamedTuple):
    """Where a weight comes from.

    Attributes:
      tensor: the name of the tensor of the model.
      axes: the order that the axes of that tensor, or of its part, have in the weight; None if they have the same
        elements in the same order, in another shape.
      part: where the weight begins and ends in the elements of the tensor; None if it has all of them.
    """

    tensor: str
    axes: tuple[int, ...] | None = None
    part: tuple[int, int] | None = None


def read_back(path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return tensors of a model with the values that a file of weights gives them.

    Args:
      path: a file of safetensors with the weights of printed source. Its metadata says where each comes from, or that
        of `model.safetensors` in the same folder.
      tensors: the tensors of the model by name, in the model's own order of axes.

    Raises:
      InvalidArgument: there is no such file, it does not say where its weights come from, or they are not those of the
        model; weights that come from one tensor differ.
      ModelError: it is malformed or truncated.
    """
    from safetensors import safe_open

    where = "the trained weights"
    existing_file(checked_path(path, where), where)
    origins = _origins(path)
    made: dict[str, np.ndarray] = {}
    written: dict[str, tuple[str, np.ndarray]] = {}
    problems: list[tuple[str, str, str]] = []
    with boundary(f"`{path}` cannot be read", where=where), safe_open(path, framework="numpy") as file:
        present = set(file.keys())
        for name, origin in origins.items():
            if name not in present:
                problem = "the file has no such weight"
            elif origin.tensor not in tensors:
                problem = "the model has no such tensor"
            else:
                whole = made.setdefault(origin.tensor, np.array(tensors[origin.tensor], order="C"))
                other, kept = written.setdefault(origin.tensor, (name, np.zeros(whole.size, bool)))
                problem = _write(whole, kept, file.get_tensor(name), origin, other)
            if problem:
                problems.append((name, origin.tensor, problem))
        computed = "it was computed from tensors of the model, and was trained"
        others = sorted(present - origins.keys())
        problems += [(name, "", computed) for name in others if not _is_as_printed(path, name, file.get_tensor(name))]
    if problems:
        (name, tensor, why), *others = problems
        also = f", and {len(others)} more" if others else ""
        raise InvalidArgument(
            f"the weight `{name}` of `{path}`{also} cannot be loaded",
            where=f"the tensor `{tensor}`" if tensor else "",
            why=why,
            instead="give weights of source that was printed from this model",
        )
    return made


def stored(origins: Mapping[str, WeightOrigin]) -> str:
    """Return origins as text for the metadata of a file.

    >>> stored({"head.weight": WeightOrigin("fc.weight", (1, 0))})
    '{"head.weight": {"tensor": "fc.weight", "axes": [1, 0]}}'
    """
    entries = {
        name: {key: value for key, value in origin._asdict().items() if value is not None}
        for name, origin in origins.items()
    }
    return json.dumps(entries)


def _origins(path: str | os.PathLike[str]) -> dict[str, WeightOrigin]:
    from safetensors import safe_open

    for candidate in (Path(path), Path(path).with_name(BESIDE)):
        if not candidate.is_file():
            continue
        with boundary(f"`{candidate}` cannot be read"), safe_open(candidate, framework="numpy") as file:
            text = (file.metadata() or {}).get(ORIGINS)
            if text is not None:
                return {name: _origin(entry) for name, entry in json.loads(text).items()}
    raise InvalidArgument(
        f"`{path}` does not say which of the model's tensors its weights belong to",
        where="the trained weights",
        instead=f"save them in the folder of the crate, beside its `{BESIDE}`",
    )


def _is_as_printed(path: str | os.PathLike[str], name: str, value: np.ndarray) -> bool:
    """Whether a weight has the value with which the source was printed, as far as that file is there."""
    from safetensors import safe_open

    printed = Path(path).with_name(BESIDE)
    if not printed.is_file():
        return True
    with safe_open(printed, framework="numpy") as file:
        return name not in file.keys() or np.array_equal(file.get_tensor(name), value, equal_nan=True)  # noqa: SIM118


def _origin(entry: Mapping[str, object]) -> WeightOrigin:
    def numbers(key: str) -> tuple[int, ...] | None:
        value = entry.get(key)
        return tuple(map(int, value)) if isinstance(value, list) else None

    part = numbers("part")
    return WeightOrigin(str(entry["tensor"]), numbers("axes"), None if part is None else (part[0], part[1]))


def _write(whole: np.ndarray, written: np.ndarray, value: np.ndarray, origin: WeightOrigin, other: str) -> str:
    """Write a weight into the tensor that it comes from, and return why it does not fit."""
    first, last = origin.part or (0, whole.size)
    if origin.axes is not None and value.ndim == len(origin.axes):
        value = value.transpose(np.argsort(origin.axes))
        if origin.part is None and value.shape != whole.shape:
            return f"it has the shape {list(value.shape)} there, not {list(whole.shape)}"
    if math.prod(value.shape) != last - first:
        return f"it has {math.prod(value.shape)} elements, not {last - first}"
    target, given = whole.reshape(-1)[first:last], value.reshape(-1).astype(whole.dtype)
    if written[first:last].any() and not np.array_equal(target, given, equal_nan=True):
        return f'`{other}` comes from the same tensor, and they were trained apart: print `from_onnx(…, ties="none")`'
    target[...] = given
    written[first:last] = True
    return ""
