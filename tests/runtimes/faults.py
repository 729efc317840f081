"""What runtimes get wrong, each as the smallest file that shows it.

`make test-runtimes` expects that each fails in its runtime: when one does not, the runtime was mended, and what is done
about it (the passes and refusals of the target, and the row in `docs/running.md`) can go. To report a fault upstream:

    python -m tests.runtimes.faults FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx.reference import ReferenceEvaluator

Inputs = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Fault:
    """A file that a runtime gets wrong.

    Attributes:
      name: the name of the file.
      runtime: the runtime, by the name that `make test-runtimes` has for it.
      effect: what the runtime does, as `docs/running.md` says it.
      graph: the graph, in the text format of ONNX, and the functions after it.
      inputs: its inputs.
      opset: the opset of the default domain.
      ir_version: the IR version.
    """

    name: str
    runtime: str
    effect: str
    graph: str
    inputs: Inputs
    opset: int = 18
    ir_version: int = 8

    @property
    def model(self) -> onnx.ModelProto:
        """The file."""
        domains = ', "own" : 1' if "own." in self.graph else ""
        head = f'<ir_version: {self.ir_version}, opset_import: ["" : {self.opset}{domains}]>'
        model = onnx.parser.parse_model(f"{head}\n{self.graph}")
        onnx.checker.check_model(model, full_check=True)
        return model

    @property
    def expected(self) -> list[np.ndarray]:
        """What the standard says, by ONNX's reference."""
        return [np.asarray(value) for value in ReferenceEvaluator(self.model).run(None, dict(self.inputs))]


def uint32(*numbers: int) -> np.ndarray:
    """A vector of uint32."""
    return np.array(numbers, np.uint32)


def normal(*shape: int) -> np.ndarray:
    """Numbers of a normal distribution, the same ones for the same shape."""
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


FAULTS = (
    Fault(
        "two-forms-of-a-square-weight",
        "openvino",
        "multiplies with `w`, not its transpose, in the second product",
        """twice (float[1,2] x) => (float[1,2] z) <float[2,2] w = {1.0, 2.0, 3.0, 4.0}> {
            y = MatMul(x, w)
            t = Transpose <perm = [1, 0]> (w)
            z = MatMul(y, t)
        }""",
        {"x": np.float32([[1, -1]])},
    ),
    Fault(
        "half-a-spectrum",
        "openvino",
        "gives half a spectrum a wrong shape",
        "spectrum (float[1,8,1] x) => (float[1,5,2] y) { y = DFT <axis = 1, onesided = 1> (x) }",
        {"x": np.arange(8, dtype=np.float32).reshape(1, 8, 1)},
    ),
    Fault(
        "a-function",
        "openvino",
        "refuses a file with a function of the model",
        """calls (float[2] x) => (float[2] y) { y = own.double(x) }
        <domain: "own", opset_import: ["" : 18]> double (a) => (b) { b = Add(a, a) }""",
        {"x": np.float32([1, 2])},
    ),
    Fault(
        "blocks-that-do-not-divide-an-axis",
        "openvino",
        "refuses blocks that do not divide an axis",
        """blocks (float[1,3] x) => (float[1,1] y) <int8[3,1] w = {1, 2, 3}, float[2,1] s = {1.0, 2.0}> {
            whole = DequantizeLinear <axis = 0, block_size = 2> (w, s)
            y = MatMul(x, whole)
        }""",
        {"x": np.float32([[1, 10, 100]])},
        opset=21,
        ir_version=10,
    ),
    Fault(
        "shift-of-uint32",
        "openvino",
        "shifts uint32 as a signed integer, in float32",
        'shift (uint32[1] x, uint32[1] n) => (uint32[1] y) { y = BitShift <direction = "RIGHT"> (x, n) }',
        {"x": uint32(0xF0000001), "n": uint32(4)},
    ),
    Fault(
        "comparison-of-uint32",
        "openvino",
        "compares uint32 as if it had a sign",
        "less (uint32[1] x, uint32[1] y) => (bool[1] z) { z = Less(x, y) }",
        {"x": uint32(0x80000001), "y": uint32(1)},
    ),
    Fault(
        "comparison-of-uint64",
        "openvino",
        "compares uint64 as if it had a sign",
        "greater (uint64[1] x, uint64[1] y) => (bool[1] z) { z = Greater(x, y) }",
        {"x": np.uint64([2**63 + 1]), "y": np.uint64([1])},
    ),
    Fault(
        "conversion-of-uint32",
        "openvino",
        "converts uint32 as if it had a sign",
        "convert (uint32[1] x) => (int64[1] y) { y = Cast <to = 7> (x) }",
        {"x": uint32(0x80000001)},
    ),
    Fault(
        "large-constant-of-uint32",
        "openvino",
        "clamps large constants of uint32",
        "add (uint32[1] x) => (uint32[1] y) <uint32[1] c = {4000000000}> { y = Add(x, c) }",
        {"x": uint32(1)},
    ),
    Fault(
        "choice-of-int32",
        "openvino",
        "rounds integers to the 24 bits of float32",
        """choose (int32[1] x, int32[1] y) => (int32[1] z) {
            c = Less(x, y)
            a = Add(x, y)
            b = Sub(x, y)
            z = Where(c, a, b)
        }""",
        {"x": np.int32([1]), "y": np.int32([2**24])},
    ),
    Fault(
        "division-of-int32",
        "openvino",
        "divides integers in float32",
        "divide (int32[1] x, int32[1] y) => (int32[1] z) { z = Div(x, y) }",
        {"x": np.int32([2**26 + 1]), "y": np.int32([1])},
    ),
    Fault(
        "sum-of-int64",
        "openvino",
        "computes int64 in 32 bits",
        "add (int64[1] x) => (int64[1] y) { y = Add(x, x) }",
        {"x": np.int64([2**40])},
    ),
    Fault(
        "linear-resize-of-channels-last",
        "webgpu",
        "resizes along the last two axes, whichever are named",
        'grow (float[1,2,2,3] x) => (float[1,4,4,3] y) <float[4] s = {1.0, 2.0, 2.0, 1.0}> { y = Resize <mode = "linear"> (x, , s) }',
        {"x": normal(1, 2, 2, 3)},
    ),
    Fault(
        "convolution-of-six-channels",
        "webgpu",
        "convolves 6, 9 or 15 channels (multiples of 3, but not of 4) to a multiple of 4 wrongly",
        "conv (float[1,6,5,5] x, float[4,6,3,3] w) => (float[1,4,3,3] y) { y = Conv (x, w) }",
        {"x": normal(1, 6, 5, 5), "w": normal(4, 6, 3, 3)},
    ),
    Fault(
        "convolution-of-nine-channels",
        "webgpu",
        "convolves 6, 9 or 15 channels (multiples of 3, but not of 4) to a multiple of 4 wrongly",
        "conv (float[1,9,5,5] x, float[4,9,3,3] w) => (float[1,4,3,3] y) { y = Conv (x, w) }",
        {"x": normal(1, 9, 5, 5), "w": normal(4, 9, 3, 3)},
    ),
    Fault(
        "groups-that-give-six-channels",
        "webgpu",
        "convolves groups that give 5 or 6 channels wrongly",
        "conv (float[1,4,5,5] x, float[12,2,3,3] w) => (float[1,12,3,3] y) { y = Conv <group = 2> (x, w) }",
        {"x": normal(1, 4, 5, 5), "w": normal(12, 2, 3, 3)},
    ),
    Fault(
        "number-of-uint8",
        "webgpu",
        "fails at an `Expand` of a number of uint8",
        "expand (uint8 x, int64[1] sizes) => (uint8[N] y) { y = Expand (x, sizes) }",
        {"x": np.uint8(3), "sizes": np.int64([5])},
    ),
    Fault(
        "relu-of-nan",
        "webgpu",
        "may take NaN and infinities for numbers, as WGSL allows",
        "relu (float[2] x) => (float[2] y) { y = Relu (x) }",
        {"x": np.float32([np.nan, 1])},
    ),
    Fault(
        "sine",
        "webgpu",
        "computes sine and cosine to within 2⁻¹¹, as WGSL allows",
        "sine (float[5] x) => (float[5] y) { y = Sin (x) }",
        {"x": np.float32([-2.5, -1, 0.5, 1.5, 3])},
    ),
)


def write(folder: Path, faults: Iterable[Fault]) -> None:
    """Write the files, their inputs, and what is expected, as `running.results` reads them."""
    models = {}
    for fault in faults:
        (folder / f"{fault.name}.onnx").write_bytes(fault.model.SerializeToString())
        np.savez(folder / f"{fault.name}-inputs.npz", **dict(fault.inputs))
        np.savez(folder / f"{fault.name}-outputs.npz", *fault.expected)
        models[fault.name] = {"cases": [fault.name], "limit": 1e-5}
    (folder / "models.json").write_text(json.dumps(models))


if __name__ == "__main__":
    write(Path(sys.argv[1]), FAULTS)
