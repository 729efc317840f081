"""Writes the models of `tests.torch.models` as files: `python -m tests.torch.exporting FOLDER [name …]`.

Each is exported by both of PyTorch's exporters, with open sizes, in float32 and some in float16; of some files ONNX
Runtime's tools make others. Beside `NAME.onnx` there are two sets of inputs, `NAME.0.npz` and `NAME.1.npz`.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.torch.imported import RESULT
from tests.torch.models import CASES, SIZES, Case, Plain, Sizes

EXPORTERS = {"dynamo": tuple(range(18, 24)), "legacy": tuple(range(14, 19))}
"""PyTorch's exporters, and the operator sets that they are asked for in turns."""

SOURCES = {"qdq": "dynamo", "int8": "legacy", "fused": "legacy", "optimized": "dynamo"}
"""Which exporter's file ONNX Runtime's tools change: into a model that is quantized statically or dynamically, whose
attention is fused by the optimizer of transformers, or that is what the runtime itself makes of a model when it loads it."""


def cells() -> list[tuple[str, str, str]]:
    """The files: name of the model, exporter, and variant (nothing for the model as it is)."""
    found = []
    for name, case in CASES.items():
        found += [(name, exporter, "") for exporter in EXPORTERS]
        found += [(name, exporter, "float16") for exporter in EXPORTERS if "float16" in case.variants]
        found += [(name, SOURCES[variant], variant) for variant in case.variants if variant in SOURCES]
    return found


def opset(name: str, exporter: str) -> int:
    """The operator set of a file."""
    versions = EXPORTERS[exporter]
    return CASES[name].opsets.get(exporter, versions[list(CASES).index(name) % len(versions)])


def export(name: str, exporter: str, variant: str, folder: Path) -> Path:
    """Writes one file and its inputs."""
    path = folder / (".".join(filter(None, (name.replace(" ", "_"), exporter, variant))) + ".onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            inputs = export_case(CASES[name], SIZES, exporter, opset(name, exporter), path, half=variant == "float16")
            if variant in SOURCES:
                _changed(name, variant, path, inputs)
        finally:
            logging.disable(logging.NOTSET)
    for number, given in enumerate(inputs):
        np.savez(path.with_suffix(f".{number}.npz"), **given)
    return path


def _awaken(model: nn.Module) -> None:
    """Give convolutions and norms of batches weights that keep what goes through: many small ones leave nothing of it."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.8, 1.2)


def export_case(
    case: Case, sizes: Sequence[Sizes], exporter: str, opset: int, path: Path, half: bool = False
) -> list[dict[str, np.ndarray]]:
    """Exports a model; sets of inputs of the sizes, with what PyTorch makes of them."""
    torch.manual_seed(0)
    model = case.make().eval()
    _awaken(model)
    sets = [case.inputs(each) for each in sizes]
    if half:
        model = model.half()
        sets = [{key: x.half() if x.is_floating_point() else x for key, x in given.items()} for given in sets]
    arguments = sets[0]
    options: dict[str, Any] = {"dynamic_axes": {key: case.axes.get(key, {}) for key in arguments}}
    if exporter == "dynamo":
        shapes = tuple(case.axes.get(key, {}) for key in arguments)
        # Of a model that takes `*tensors` the shapes are one tuple.
        options = {"dynamic_shapes": (shapes,) if isinstance(model, Plain) else shapes}
    torch.onnx.export(
        model, tuple(arguments.values()), path, input_names=list(arguments), dynamo=exporter == "dynamo",
        opset_version=opset, external_data=False, verbose=False, **options,
    )  # fmt: skip
    with torch.no_grad():
        outputs = [pytree.tree_leaves(model(*given.values())) for given in sets]
    results = [{f"{RESULT}{index}": x for index, x in enumerate(found)} for found in outputs]
    return [{key: x.numpy() for key, x in (given | found).items()} for given, found in zip(sets, results, strict=True)]


def _changed(name: str, variant: str, path: Path, inputs: list[dict[str, np.ndarray]]) -> None:
    """Puts what ONNX Runtime's tools make of a file in its place."""
    import onnxruntime
    from onnxruntime import quantization
    from onnxruntime.transformers import optimizer

    original = path.rename(path.with_suffix(".original.onnx"))
    if variant == "qdq":
        quantization.quantize_static(original, path, _Calibration(inputs))
    elif variant == "int8":
        quantization.quantize_dynamic(original, path)
    elif variant == "fused":
        fused = optimizer.optimize_model(
            str(original), name if name != "distilbert" else "bert", CASES[name].heads, 32, opt_level=0
        )
        fused.save_model_to_file(str(path))
    else:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(str(original), options, providers=["CPUExecutionProvider"])
    original.unlink()


class _Calibration:
    """The inputs that the ranges of a quantized model are found with."""

    def __init__(self, inputs: list[dict[str, np.ndarray]]):
        self.inputs = iter([{k: x for k, x in given.items() if not k.startswith(RESULT)} for given in inputs])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.inputs, None)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, exporter, variant in cells():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        try:
            path = export(name, exporter, variant, folder)
            print(f"{path.name}: {path.stat().st_size:,} bytes", flush=True)
        except Exception as error:  # noqa: BLE001  PyTorch's exporters raise everything; the others are wanted all the same
            print(f"{name} {exporter} {variant}: {type(error).__name__}: {str(error)[:300]!r}", flush=True)


if __name__ == "__main__":
    main()
