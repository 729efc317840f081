"""Size and CPU time of each precision, divided by those of float32, at the published sizes with random weights.

`python -m benchmarks.bench_precision [model ...]` prints the table of `docs/deploying.md`. One thread, the runs take turns.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

import jaxport
from benchmarks.measure import in_turns, rendered
from examples.models import build
from examples.models.example import Example
from jaxport import Int4
from jaxport.export.delivery.runtime import Session
from jaxport.export.exported import Exported
from jaxport.export.precision.names import Named, named

#: The models, and the sizes that each is run at.
MODELS: Mapping[str, tuple[dict[str, int], ...]] = {
    "resnet50": ({"B": 1},),
    "vit_b16": ({"B": 1},),
    "bert_base": ({"B": 1, "T": 128},),
    "gpt2": ({"B": 1, "T": 128}, {"B": 1, "T": 1}),
}
PRECISIONS: tuple[Named, ...] = ("float16", "int8-dynamic", "int8", "int4")
#: Other forms of 4 bits, which are measured for the model where they pay.
FORMS = tuple(Int4(group, symmetric) for group in (32, 64, 128) for symmetric in (False, True))[1:]
FORMS_OF = "gpt2"
REPEATS = 7
BATCHES = 4
"""The number of batches that ranges are calibrated on."""


def batches(example: Example) -> list[Any]:
    """The batches that ranges are calibrated on."""
    generator = np.random.default_rng(0)
    return [example.sample(generator, example.sizes[0]) for _ in range(BATCHES)]


def exported(example: Example, precision: Named | None) -> Exported:
    """An example in a precision, for this runtime."""
    options: dict[str, Any] = dict(example.options)
    if precision is not None and named(precision).calibrated:
        options["calibration"] = batches(example)
    return jaxport.to_onnx(example.fn, list(example.inputs), target="onnxruntime", precision=precision, **options)


def rows(name: str) -> Iterator[list[object]]:
    """The rows of a model: its precisions, by sizes."""
    example = build(name, "nnx", "real")
    plain = exported(example, None)
    draws = {str(sizes): example.sample(np.random.default_rng(1), sizes) for sizes in MODELS[name]}
    sessions = {"float32": Session(plain.model, threads=1)}
    bytes_of = {"float32": size_of(plain.model)}
    precisions = PRECISIONS + (FORMS if name == FORMS_OF else ())
    for precision in precisions:
        model = exported(example, precision)
        sessions[str(precision)], bytes_of[str(precision)] = Session(model.model, threads=1), size_of(model.model)
        del model
        gc.collect()
    for sizes, arguments in draws.items():
        inputs = plain.flatten(arguments, {})
        results = {precision: session.run(inputs)[0] for precision, session in sessions.items()}
        milliseconds = in_turns(
            [lambda s=session, given=inputs: s.run(given) for session in sessions.values()], REPEATS
        )
        times = dict(zip(sessions, milliseconds, strict=True))
        largest = np.abs(results["float32"]).max()
        for precision in map(str, precisions):
            error = np.abs(results[precision] - results["float32"]).max() / largest
            size, time = bytes_of[precision] / bytes_of["float32"], times[precision] / times["float32"]
            yield [name, shown(sizes), precision, f"{size:.2f}", f"{time:.2f}", f"{error:.1e}"]
            print(name, sizes, precision, f"{times[precision]:.1f} ms", file=sys.stderr, flush=True)


def shown(sizes: str) -> str:
    """Sizes without the signs of a dict."""
    return sizes.strip("{}").replace("'", "")


def size_of(model: ir.Model) -> int:
    """The bytes of the weights of a model."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def main() -> None:
    wanted = sys.argv[1:] or list(MODELS)
    header = ["model", "sizes", "precision", "size ÷ float32", "CPU time ÷ float32", "largest error"]
    print(rendered("Precisions", header, [row for name in wanted for row in rows(name)]))


if __name__ == "__main__":
    main()
