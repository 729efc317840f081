"""Regenerate `src/jaxport/export/kernels.py`: which dtypes ONNX Runtime has no CPU kernel for, release by release.

For every operator that the rules emit, one-node models are loaded and run in each of `RELEASES`, which pip puts into
folders of their own. Add a release when there is one, and run `python scripts/ort_kernels.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime

from jaxport.export import opsets, schema
from jaxport.export.value import data_type

TARGET = Path(__file__).parents[1] / "src" / "jaxport" / "export" / "kernels.py"
#: The oldest is the lower bound of the extra `runtime`.
RELEASES = ("1.28.0", "1.29.0", "1.30.0", "1.31.1", "1.32.0")
DTYPES = [
    np.dtype(d)
    for d in (
        *"int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16".split(),
        ml_dtypes.bfloat16,
        *"float32 float64 bool".split(),
    )
]
#: What an operator is called with, where it is not operands of shape [2, 2] alone: a dtype in place of an array is the
#: dtype under test, an array is an operand of its own.
T = object()
MATRIX, VECTOR, IMAGE = (2, 2), (2,), (1, 1, 4, 4)
SPECIAL: dict[str, tuple[Sequence[Any], dict[str, Any]]] = {
    "ArgMax": ([(T, MATRIX)], {"axis": 0}),
    "ArgMin": ([(T, MATRIX)], {"axis": 0}),
    "Attention": ([(T, (1, 1, 2, 4)), (T, (1, 1, 2, 4)), (T, (1, 1, 2, 4))], {}),
    "AveragePool": ([(T, IMAGE)], {"kernel_shape": [2, 2]}),
    "BitShift": ([(T, MATRIX), (T, MATRIX)], {"direction": "LEFT"}),
    "Clip": ([(T, MATRIX), (T, ()), (T, ())], {}),
    "Concat": ([(T, MATRIX), (T, MATRIX)], {"axis": 0}),
    "Conv": ([(T, IMAGE), (T, (1, 1, 2, 2))], {}),
    "ConvTranspose": ([(T, IMAGE), (T, (1, 1, 2, 2))], {}),
    "Compress": ([(T, MATRIX), np.array([True, False])], {"axis": 0}),
    "CumProd": ([(T, MATRIX), np.array(0)], {}),
    "CumSum": ([(T, MATRIX), np.array(0)], {}),
    "DFT": ([(T, (1, 4, 1))], {}),
    "DepthToSpace": ([(T, (1, 4, 2, 2))], {"blocksize": 2}),
    "Einsum": ([(T, MATRIX), (T, MATRIX)], {"equation": "ij,jk->ik"}),
    "Expand": ([(T, MATRIX), np.array([2, 2, 2])], {}),
    "Gather": ([(T, MATRIX), np.array([0])], {}),
    "GatherElements": ([(T, MATRIX), np.array([[0, 1]])], {}),
    "GatherND": ([(T, MATRIX), np.array([[0, 1]])], {}),
    "GlobalAveragePool": ([(T, IMAGE)], {}),
    "InstanceNormalization": ([(T, IMAGE), (T, (1,)), (T, (1,))], {}),
    "LayerNormalization": ([(T, MATRIX), (T, VECTOR)], {}),
    "MaxPool": ([(T, IMAGE)], {"kernel_shape": [2, 2]}),
    "Pad": ([(T, MATRIX), np.array([0, 1, 0, 1]), (T, ())], {}),
    "RMSNormalization": ([(T, MATRIX), (T, VECTOR)], {}),
    "Reshape": ([(T, MATRIX), np.array([4])], {}),
    "Resize": ([(T, IMAGE), None, None, np.array([1, 1, 8, 8])], {"mode": "linear"}),
    "RotaryEmbedding": ([(T, (1, 1, 2, 4)), (T, (1, 2, 2)), (T, (1, 2, 2))], {}),
    "ScatterElements": ([(T, MATRIX), np.array([[0, 1]]), (T, (1, 2))], {}),
    "ScatterND": ([(T, MATRIX), np.array([[0, 1]]), (T, (1,))], {}),
    "Slice": ([(T, MATRIX), np.array([0]), np.array([1])], {}),
    "SpaceToDepth": ([(T, IMAGE)], {"blocksize": 2}),
    "Split": ([(T, MATRIX), np.array([1, 1])], {}),
    "Squeeze": ([(T, (1, 2)), np.array([0])], {}),
    "TensorScatter": ([(T, (2, 4, 2)), (T, (2, 1, 2)), np.array([0, 1])], {}),
    "Tile": ([(T, MATRIX), np.array([2, 1])], {}),
    "TopK": ([(T, MATRIX), np.array([1])], {}),
    "Transpose": ([(T, MATRIX)], {"perm": [1, 0]}),
    "Trilu": ([(T, MATRIX)], {}),
    "Unsqueeze": ([(T, MATRIX), np.array([0])], {}),
    "Where": ([np.ones(MATRIX, bool), (T, MATRIX), (T, MATRIX)], {}),
}
OUTPUTS = {"Split": 2, "TopK": 2}
UNARY = """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity
IsInf IsNaN LeakyRelu Log LogSoftmax Mish Neg Not BitwiseNot Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softmax
Softplus Softsign Sqrt Tan Tanh Shape NonZero ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum""".split()
BINARY = """Add And BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual MatMul Max Min Mul
Or Pow Sub Xor Gemm""".split()


def calls() -> dict[str, tuple[Sequence[Any], dict[str, Any]]]:
    """All operators with what they are called with."""
    return {
        **{name: ([(T, MATRIX)], {}) for name in UNARY},
        **{name: ([(T, MATRIX), (T, MATRIX)], {}) for name in BINARY},
        "Mod": ([(T, MATRIX), (T, MATRIX)], {"fmod": 1}),
        **SPECIAL,
    }


def opset_of(op_type: str) -> int:
    """The opset that an operator is tried at: the default one, or the one that brought it."""
    return max(opsets.DEFAULT, schema.first_opset("", op_type) or 0)


def runs(op_type: str, operands: Sequence[Any], attributes: dict[str, Any], dtype: np.dtype) -> bool:
    """Whether the runtime loads and runs one node with this dtype."""
    inputs, nodes, feed, initializers = [], [], {}, []
    for index, operand in enumerate(operands):
        if operand is None:
            inputs.append(None)
        elif isinstance(operand, np.ndarray):
            value = ir.Value(name=f"c{index}", const_value=ir.Tensor(operand, name=f"c{index}"))
            initializers.append(value)
            inputs.append(value)
        else:  # through a Cast from a dtype that the Python binding takes
            shape = operand[1]
            outer = ir.Value(name=f"x{index}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
            inner = ir.Value(name=f"v{index}")
            nodes.append(ir.Node("", "Cast", [outer], [ir.AttrInt64("to", int(data_type(dtype)))], outputs=[inner]))
            feed[outer] = np.full(shape, 0.5 if dtype.kind not in "iub" else 1, np.float32)
            inputs.append(inner)
    results = [ir.Value(name=f"result{index}") for index in range(OUTPUTS.get(op_type, 1))]
    nodes.append(ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes), outputs=results))
    last = ir.Value(name="last", type=ir.TensorType(ir.DataType.FLOAT))
    nodes.append(ir.Node("", "Cast", results[:1], [ir.AttrInt64("to", int(ir.DataType.FLOAT))], outputs=[last]))
    opset = opset_of(op_type)
    graph = ir.Graph(list(feed), [last], nodes=nodes, initializers=initializers, opset_imports={"": opset}, name="one")
    model = ir.Model(graph, ir_version=opsets.ir_version(opset))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        session.run(None, {value.name: array for value, array in feed.items()})
    except Exception:  # noqa: BLE001  the runtime raises errors of many kinds, and each of them means no
        return False
    return True


def missing() -> dict[str, list[str]]:
    """By operator, the dtypes that the schema allows and the installed runtime cannot compute."""
    table = {}
    for op_type, (operands, attributes) in sorted(calls().items()):
        facts = schema.find("", op_type, opset_of(op_type))
        assert facts is not None, op_type
        accepted = next(f.dtypes for f, o in zip(facts.inputs * 2, operands, strict=False) if isinstance(o, tuple))
        table[op_type] = [d.name for d in DTYPES if d in accepted and not runs(op_type, operands, attributes, d)]
    return table


def newest_opset() -> int:
    """The newest opset that the installed runtime loads."""
    return max(opset for opset in opsets.IR_VERSIONS if loads(opset))


def loads(opset: int) -> bool:
    """Whether the installed runtime loads a model of an opset."""
    x, y = (ir.Value(name=n, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2])) for n in "xy")
    graph = ir.Graph([x], [y], nodes=[ir.Node("", "Identity", [x], outputs=[y])], opset_imports={"": opset}, name="one")
    data = ir.to_proto(ir.Model(graph, ir_version=opsets.ir_version(opset))).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  the runtime raises errors of many kinds, and each of them means no
        return False
    return True


def asked(release: str, folder: Path) -> dict[str, Any]:
    """What a release answers, in a process of its own."""
    install = ["install", "--quiet", "--no-deps", "--target", str(folder / release), f"onnxruntime=={release}"]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    answer = subprocess.run(
        [sys.executable, __file__, "--installed"],
        env={**os.environ, "PYTHONPATH": str(folder / release)},
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(answer.stdout)


def words(op_type: str, answers: dict[str, dict[str, Any]]) -> list[str]:
    """The dtypes without a kernel, those that have one in newer releases with the release that brought it."""
    newest = next(reversed(answers.values()))["missing"][op_type]
    later = []
    for dtype in (d.name for d in DTYPES if d.name not in newest):
        without = [release for release, answer in answers.items() if dtype in answer["missing"][op_type]]
        if without:
            releases = list(answers)
            later.append(f"{dtype}<{releases[releases.index(without[-1]) + 1]}")
    return newest + later


def main() -> None:
    """Write the table; with `--check` say whether it is up to date, with `--installed` print the installed one's part."""
    if "--installed" in sys.argv:
        sys.stdout.write(json.dumps({"missing": missing(), "opset": newest_opset()}))
        return
    with tempfile.TemporaryDirectory() as folder:
        answers = {release.rpartition(".")[0]: asked(release, Path(folder)) for release in RELEASES}
    releases = "".join(f'    "{release}": {answer["opset"]},\n' for release, answer in answers.items())
    found = {op_type: " ".join(words(op_type, answers)) for op_type in sorted(calls())}
    rows = "".join(f'    "{op_type}": "{dtypes}",\n' for op_type, dtypes in found.items() if dtypes)
    text = (
        '"""What ONNX Runtime\'s CPU provider has no kernel for: generated by `scripts/ort_kernels.py`, not by hand."""\n\n'
        "#: The releases that were asked, the oldest first, and the newest opset that each loads.\n"
        f"RELEASES: dict[str, int] = {{\n{releases}}}\n\n"
        "#: By operator, the dtypes without a kernel; `dtype<release` has one since that release.\n"
        f"MISSING: dict[str, str] = {{\n{rows}}}\n"
    )
    if "--check" in sys.argv:
        raise SystemExit(0 if TARGET.read_text() == text else f"{TARGET} is out of date")
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
