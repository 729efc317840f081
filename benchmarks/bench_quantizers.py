"""Size, error and CPU time of models of few bits, beside those that ONNX Runtime's own quantizer makes of the same model.

`python -m benchmarks.bench_quantizers [model ...]` prints the table of `docs/deploying.md`. Both calibrate on the same
batches. The error is the root mean square of the differences from float32, relative to that of the outputs, over several
inputs.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from benchmarks.bench_precision import MODELS, REPEATS, batches, exported, shown, size_of
from benchmarks.measure import in_turns, rendered
from examples.models import build
from jaxport import Int4, Int8
from jaxport.export.delivery.runtime import Session
from jaxport.export.precision.int4 import ACCURACY

Inputs = dict[str, np.ndarray]
FORMS = (Int8(dynamic=True), Int8(dynamic=True, full_range=True), Int8(), Int8(full_range=True), Int4())
#: The operators that are quantized: the others of its list are those that it takes for operators of com.microsoft.
DYNAMIC, STATIC = ["MatMul", "Gemm", "Gather"], ["MatMul", "Gemm", "Conv"]
DRAWS = 4
"""The number of inputs that errors are averaged over."""


class Reader(CalibrationDataReader):
    """Gives the batches to ONNX Runtime's quantizer."""

    def __init__(self, calibration: Sequence[Inputs]):
        self._calibration = iter(calibration)

    def get_next(self) -> Inputs:
        """The next batch; None after the last."""
        return next(self._calibration, None)  # pyright: ignore[reportReturnType]  the protocol of the quantizer


def peer(source: Path, result: Path, form: Int4 | Int8, calibration: Sequence[Inputs]) -> None:
    """Let ONNX Runtime's quantizer make what a precision makes: with the same groups, ranges and batches."""
    match form:
        case Int4():
            quantizer = MatMulNBitsQuantizer(
                onnx.load(source), block_size=form.group, is_symmetric=form.symmetric, accuracy_level=ACCURACY
            )
            quantizer.process()
            onnx.save(quantizer.model.model, result)
        case Int8(dynamic=True):
            reduced = not form.full_range
            quantize_dynamic(
                source, result, DYNAMIC, per_channel=True, reduce_range=reduced, weight_type=QuantType.QInt8
            )
        case Int8():
            reduced = not form.full_range
            quantize_static(
                source,
                result,
                Reader(calibration),
                op_types_to_quantize=STATIC,
                per_channel=True,
                reduce_range=reduced,
                activation_type=QuantType.QUInt8,
            )


def rows(name: str) -> Iterator[list[object]]:
    """The rows of a model: its precisions, at the first of its sizes."""
    example, sizes = build(name, "nnx", "real"), MODELS[name][0]
    plain = exported(example, None)
    calibration = [plain.flatten(batch, {}) for batch in batches(example)]
    generator = np.random.default_rng(1)
    inputs = [plain.flatten(example.sample(generator, sizes), {}) for _ in range(DRAWS)]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        source = folder / "float32.onnx"
        plain.save(source)
        reference, whole = Session(source, threads=1), size_of(plain.model)
        expected = [reference.run(one)[0] for one in inputs]
        for form in FORMS:
            made, other = exported(example, form).model, folder / "peer.onnx"
            peer(source, other, form, calibration)
            sessions = {"jaxport": Session(made, threads=1), "peer": Session(other, threads=1)}
            bytes_of = {"jaxport": size_of(made), "peer": size_of(ir.load(other))}
            errors = {
                who: error([session.run(one)[0] for one in inputs], expected) for who, session in sessions.items()
            }
            calls: list[Callable[[], Any]] = [
                lambda s=session: s.run(inputs[0]) for session in (reference, *sessions.values())
            ]
            base, *milliseconds = in_turns(calls, REPEATS)
            cells = [f"{size / whole:.2f}" for size in bytes_of.values()]
            cells += [f"{time / base:.2f}" for time in milliseconds]
            cells += [f"{each:.1e}" for each in errors.values()]
            yield [name, shown(str(sizes)), form, *cells]
            print(name, form, *cells, file=sys.stderr, flush=True)
            del made, sessions, calls
            gc.collect()


def error(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The root mean square of the differences, relative to that of what is expected."""
    squares = [(np.square(a - b).mean(), np.square(b).mean()) for a, b in zip(actual, expected, strict=True)]
    difference, whole = np.sum(squares, axis=0)
    return float(np.sqrt(difference / whole))


def main() -> None:
    wanted = sys.argv[1:] or list(MODELS)
    columns = [f"{what}, {who}" for what in ("size", "CPU time", "error") for who in ("jaxport", "ONNX Runtime")]
    header = ["model", "sizes", "precision", *columns]
    print(rendered("Quantizers", header, [row for name in wanted for row in rows(name)]))


if __name__ == "__main__":
    main()
