"""Size, error and CPU time of models of few bits, beside those that ONNX Runtime's own quantizer makes of the same model.

`python -m benchmarks.bench_quantizers [model ...]` prints the table of `docs/deploying.md`. Both calibrate on the same
batches. The error is the root mean square of the differences from float32, relative to that of the outputs, over several
inputs.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from jaxport.export.passes.int4 import ACCURACY, Int4
from jaxport.verify.runtime import Session

Inputs = dict[str, np.ndarray]
PRECISIONS = ("int8-dynamic", "int8", "int4")
#: The operators that are quantized: the others of its list are those that it takes for operators of com.microsoft.
DYNAMIC, STATIC = ["MatMul", "Gemm", "Gather"], ["MatMul", "Gemm", "Conv"]
DRAWS = 4
"""The number of inputs that errors are averaged over."""


class Reader(CalibrationDataReader):
    """Gives the batches to ONNX Runtime's quantizer."""

    def __init__(self, given: Sequence[Inputs]):
        self._given = iter(given)

    def get_next(self) -> Inputs:
        """The next batch; None after the last."""
        return next(self._given, None)  # pyright: ignore[reportReturnType]  the protocol of the quantizer


def dynamic_int8(source: Path, result: Path, _: Sequence[Inputs]) -> None:
    """8 bits with a scale per column, the other operand by its range at run time."""
    quantize_dynamic(source, result, DYNAMIC, per_channel=True, weight_type=QuantType.QInt8)


def static_int8(source: Path, result: Path, given: Sequence[Inputs]) -> None:
    """8 bits with a scale per channel, the ranges of activations from the batches."""
    quantize_static(
        source,
        result,
        Reader(given),
        op_types_to_quantize=STATIC,
        per_channel=True,
        activation_type=QuantType.QUInt8,
    )


def block_int4(source: Path, result: Path, _: Sequence[Inputs]) -> None:
    """4 bits in groups like those of "int4"."""
    form = Int4()
    quantizer = MatMulNBitsQuantizer(
        onnx.load(source), block_size=form.group, is_symmetric=form.symmetric, accuracy_level=ACCURACY
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(result))


PEERS: Mapping[str, Callable[[Path, Path, Sequence[Inputs]], None]] = {
    "int8-dynamic": dynamic_int8,
    "int8": static_int8,
    "int4": block_int4,
}


def rows(name: str) -> Iterator[list[object]]:
    """The rows of a model: its precisions, at the first of its sizes."""
    example, sizes = build(name, "nnx", "real"), MODELS[name][0]
    plain = exported(example, None)
    given = [plain.flatten(batch, {}) for batch in batches(example)]
    generator = np.random.default_rng(1)
    inputs = [plain.flatten(example.sample(generator, sizes), {}) for _ in range(DRAWS)]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        source = folder / "float32.onnx"
        plain.save(source)
        reference, whole = Session(source, threads=1), size_of(plain.model)
        expected = [reference.run(one)[0] for one in inputs]
        for precision in PRECISIONS:
            made = exported(example, precision).model
            peer = folder / f"{precision}.onnx"
            PEERS[precision](source, peer, given)
            sessions = {"jaxport": Session(made, threads=1), "peer": Session(peer, threads=1)}
            bytes_of = {"jaxport": size_of(made), "peer": size_of(ir.load(peer))}
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
            yield [name, shown(str(sizes)), precision, *cells]
            print(name, precision, *cells, file=sys.stderr, flush=True)
            del made, sessions, calls
            gc.collect()


def error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The root mean square of the differences, relative to that of what is expected."""
    squares = [(np.square(a - b).mean(), np.square(b).mean()) for a, b in zip(found, expected, strict=True)]
    difference, whole = np.sum(squares, axis=0)
    return float(np.sqrt(difference / whole))


def main() -> None:
    wanted = sys.argv[1:] or list(MODELS)
    columns = [f"{what}, {who}" for what in ("size", "CPU time", "error") for who in ("jaxport", "ONNX Runtime")]
    header = ["model", "sizes", "precision", *columns]
    print(rendered("Quantizers", header, [row for name in wanted for row in rows(name)]))


if __name__ == "__main__":
    main()
