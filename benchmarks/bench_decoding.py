"""A step of a decoder against the graph that onnxruntime-genai's builder writes for it: CPU time on one thread, in turns.

`python -m benchmarks.bench_decoding [--layers 4] [--repeats 9] [--write]`; `--write` makes `docs/decoding.md`. Both graphs have
the same weights, and their logits are compared first. A static cache is one buffer for past and present on both sides.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import onnxruntime

import jaxport
from benchmarks.graphs.builder_graph import builder_graph
from benchmarks.measure import ROOT, in_turns, rendered
from examples.language_model import Llama
from examples.models.llama import Config
from examples.models.weights import nnx_model

Precision = Literal["float32", "float16", "int4"]
PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int4")
#: New tokens, tokens before them, and rows of the static cache.
STEPS = ((1, 64, 2304), (1, 512, 2304), (1, 2048, 2304), (256, 0, 2304))
#: The lengths of the buffer at which one token behind 64 others is measured, too.
BUFFERS = (128, 512, 2304, 8192)
#: Which graph each session has: ours is 0, the other one 1.
WHOSE = (0, 1, 1, 0)
HEADER = ("cache", "type", *(f"{new} token{'s' * (new > 1)} after {past}" for new, past, _ in STEPS))
PAGE = """# Decoding compared with a graph written by hand

See here how a step of a decoder that jaxport exports compares with the graph that the model builder of onnxruntime-genai writes
for the same weights: projections packed into one product, `GroupQueryAttention` with rotary embedding inside,
`SkipSimplifiedLayerNormalization`, and `MatMulNBits` for 4 bits. Both files run in ONNX Runtime on one thread, alternating in one
process; figures are ratios of the first quintiles of CPU time, below 1 where jaxport's file is faster. Each file has two sessions,
one created before and one after those of the other: where a session's weights happen to lie in memory changes its time by up to a tenth,
and other work on the machine by more, so medians of a single pair differ from run to run by a third. Differences of a few percent
mean nothing.

By operator (`onnxruntime`'s profiler, 4 bits, one token), `MatMulNBits` takes 2.3 ms of a step of 2.7 ms and attention 0.2 ms, on
both sides. Three products of one input cost 4 us more than one packed product of 40 us; RMSNormalization with an Add costs what
SkipSimplifiedLayerNormalization does; the mask, the angles and the lookup of tokens, once in a step, cost 0.1 ms more than what the
other graph has. So products are not packed. A step has 17 nodes per layer and 19 others; the other graph has 11 and 8.

Rotary embedding stays outside of attention. The operator would compute other angles: in a first call it counts on from the first
position of all sequences, whatever the other positions are, so that padding on the left turns keys by other angles than in later
steps; and its tables need as many rows as the longest sequence will have, which neither cache tells. Inside of attention, with
tables made by hand, it would save two nodes a layer and no time that can be measured: a step of one token took 0.99 to 1.02 of its
time in 4 bits, 0.96 to 1.01 in float32, and one of 256 tokens 1 to 1.01.

The model is the Llama of `examples/language_model.py`: hidden size 1,024, 4 layers, 16 heads on 4, vocabulary 8,000. The code is
in `benchmarks/bench_decoding.py`; `python -m benchmarks.bench_decoding --write` writes this page.
"""


class Side:
    """A session with its inputs bound: a static cache is one buffer for past and present."""

    def __init__(self, model: bytes, config: Config, dtype: type):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.config, self.dtype = config, dtype

    def bound(self, new: int, past: int, rows: int | None) -> Callable[[], np.ndarray]:
        """Return a call that runs a step of new tokens, behind some others in a cache of some rows, and returns logits."""
        config, total, binding = self.config, past + new, self.session.io_binding()
        generator = np.random.default_rng(0)
        inputs = {
            "input_ids": generator.integers(0, config.vocabulary, (1, new)),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(past, total)[None],
        }
        caches: list[np.ndarray] = []  # the runtime reads and writes the memory of arrays, which it does not keep
        binding.bind_output("logits")  # the first one that is bound is the first result
        for value in self.session.get_inputs():
            if value.name in inputs:
                binding.bind_cpu_input(value.name, inputs[value.name])
                continue
            shape = (1, config.groups, past if rows is None else rows, config.head)
            caches.append(generator.normal(size=shape).astype(self.dtype))
            cache = onnxruntime.OrtValue.ortvalue_from_numpy(caches[-1])
            binding.bind_ortvalue_input(value.name, cache)
            if rows is not None:
                binding.bind_ortvalue_output(value.name.replace("past_key_values", "present"), cache)
        for value in self.session.get_outputs() if rows is None else ():
            if value.name != "logits":
                binding.bind_output(value.name)

        def call(kept: object = (inputs, caches)) -> np.ndarray:
            self.session.run_with_iobinding(binding)
            return binding.get_outputs()[0].numpy()

        return call


def sides(model: Llama, config: Config, cache: Literal["growing", "static"], precision: Precision) -> list[Side]:
    """Return sessions of our graph and of the other one, in the order of `WHOSE`."""
    dtype = np.float16 if precision == "float16" else np.float32
    inputs = jaxport.decoder_inputs(config.layers, config.groups, config.head, cache=cache)
    options: dict[str, Any] = {} if precision == "float32" else {"precision": precision}
    options |= {"io": "float16"} if precision == "float16" else {}
    ours = jaxport.to_onnx(model, inputs, target="genai", **options)
    theirs = builder_graph(model, config, precision)
    files = [one.SerializeToString() for one in (ours.proto, theirs)]
    return [Side(files[side], config, dtype) for side in WHOSE]


def differ(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference, relative to the largest element."""
    return float(np.abs(one.astype(np.float32) - other).max() / np.abs(other).max())


def ratio(pair: list[Side], new: int, past: int, rows: int | None, repeats: int, most: float) -> float:
    """Return our CPU time in units of the other graph's; all have to return the same logits."""
    calls = [side.bound(new, past, rows) for side in pair]
    first, *others = (call() for call in calls)
    difference = max(differ(first, other) for other in others)
    if not difference < most:
        raise SystemExit(f"the two graphs differ by {difference} after {past} tokens in {rows} rows")
    times = in_turns(calls, repeats if new == 1 else max(3, repeats // 6), share=0.2)
    ours, theirs = (sum(time for side, time in zip(WHOSE, times, strict=True) if side == own) for own in (0, 1))
    return ours / theirs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--precision", choices=PRECISIONS, action="append", help="all by default")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write and (options.precision or (options.layers, options.hidden) != (4, 1024)):
        parser.error("--write is for the model as it is by default, in all precisions")
    logging.disable(logging.INFO)
    hidden = options.hidden
    config = Config(
        vocabulary=8000,
        hidden=hidden,
        layers=options.layers,
        heads=hidden // 64,
        groups=hidden // 256,
        mlp=hidden * 11 // 4,
        new_tokens=4,
    )
    model, rows, buffers = nnx_model(Llama, config, None), [], []
    for precision in options.precision or PRECISIONS:
        most = {"float32": 1e-3, "float16": 2e-2, "int4": 0.5}[
            precision
        ]  # 4 bits are chosen by rules of each side's own
        for cache in ("growing", "static"):
            pair = sides(model, config, cache, precision)
            found = [
                ratio(pair, new, past, length if cache == "static" else None, options.repeats, most)
                for new, past, length in STEPS
            ]
            rows.append([cache, precision, *found])
            print(rows[-1], file=sys.stderr, flush=True)
            if cache == "static":
                measured = [ratio(pair, 1, 64, length, options.repeats, most) for length in BUFFERS]
                buffers.append([precision, *measured])
                print(buffers[-1], file=sys.stderr, flush=True)
    page = rendered("CPU time of ours, in units of the other graph's", HEADER, rows)
    title = "A static cache, one token after 64, by the rows of the buffer"
    page += "\n" + rendered(title, ("type", *map(str, BUFFERS)), buffers)
    print(page)
    if options.write:
        (ROOT / "docs" / "decoding.md").write_text(PAGE + page + "\n")


if __name__ == "__main__":
    main()
