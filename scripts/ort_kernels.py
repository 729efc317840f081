"""Regenerate `src/jaxport/onnx_facts/cpu_kernels.json`: which dtypes ONNX Runtime has no CPU kernel for, release by release.

For every operator that the rules emit, one-node models are loaded and run in each of `RELEASES`, which pip puts into
folders of their own, at the default opset and at each version that the operator has since the opset of the target
"portable". Add a release when there is one, and run `python -m scripts.ort_kernels`.
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

from jaxport.export.delivery import opsets
from jaxport.export.emit.value import data_type
from jaxport.onnx_facts import schema
from scripts.kernel_tables import write

PORTABLE = 18  # the opset of the target "portable"
TARGET = Path(__file__).parents[1] / "src" / "jaxport" / "onnx_facts" / "cpu_kernels.json"
ANSWERS = Path(__file__).with_name("ort_answers.py")
#: One per line of releases, the oldest first. From the second call of a session on, those before 1.19 write results that nobody
#: uses, such as the values of a TopK for its indices, over operands; and their Max and Min lose NaN.
RELEASES = (
    *("1.19.2", "1.20.1", "1.21.1", "1.22.1", "1.23.2", "1.24.1", "1.25.1"),
    *("1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.1", "1.32.0"),
)
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
    "BatchNormalization": ([(T, IMAGE), *[(T, (1,))] * 4], {}),
    "BitShift": ([(T, MATRIX), (T, MATRIX)], {"direction": "LEFT"}),
    "Clip": ([(T, MATRIX), (T, ()), (T, ())], {}),
    "Concat": ([(T, MATRIX), (T, MATRIX)], {"axis": 0}),
    "Conv": ([(T, IMAGE), (T, (1, 1, 2, 2))], {}),
    "ConvTranspose": ([(T, IMAGE), (T, (1, 1, 2, 2))], {}),
    "ConvInteger": ([(T, IMAGE), (T, (1, 1, 2, 2))], {}),
    "Compress": ([(T, MATRIX), np.array([True, False])], {"axis": 0}),
    "CumProd": ([(T, MATRIX), np.array(0)], {}),
    "CumSum": ([(T, MATRIX), np.array(0)], {}),
    "DequantizeLinear": ([(T, MATRIX), np.array(0.5, np.float32)], {}),
    "DFT": ([(T, (1, 4, 1))], {}),
    "DepthToSpace": ([(T, (1, 4, 2, 2))], {"blocksize": 2}),
    "Einsum": ([(T, MATRIX), (T, MATRIX)], {"equation": "ij,jk->ik"}),
    "Expand": ([(T, MATRIX), np.array([2, 2, 2])], {}),
    "GRU": ([(T, (2, 1, 2)), (T, (1, 6, 2)), (T, (1, 6, 2))], {"hidden_size": 2}),
    "Gather": ([(T, MATRIX), np.array([0])], {}),
    "GatherElements": ([(T, MATRIX), np.array([[0, 1]])], {}),
    "GatherND": ([(T, MATRIX), np.array([[0, 1]])], {}),
    "GlobalAveragePool": ([(T, IMAGE)], {}),
    "InstanceNormalization": ([(T, IMAGE), (T, (1,)), (T, (1,))], {}),
    "LSTM": ([(T, (2, 1, 2)), (T, (1, 8, 2)), (T, (1, 8, 2))], {"hidden_size": 2}),
    "LayerNormalization": ([(T, MATRIX), (T, VECTOR)], {}),
    "MatMulInteger": ([(T, MATRIX), (T, MATRIX)], {}),
    "MaxPool": ([(T, IMAGE)], {"kernel_shape": [2, 2]}),
    "Pad": ([(T, MATRIX), np.array([0, 1, 0, 1]), (T, ())], {}),
    "RNN": ([(T, (2, 1, 2)), (T, (1, 2, 2)), (T, (1, 2, 2))], {"hidden_size": 2}),
    "Range": ([(T, ()), (T, ()), (T, ())], {}),
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
Softplus Softsign Sqrt Tan Tanh Shape Size NonZero ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum""".split()
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


def opsets_of(op_type: str) -> list[int]:
    """The opsets that an operator is tried at: one for each of its versions, and the default one."""
    brought = schema.first_opset("", op_type) or 0
    return sorted({*versions_of(op_type), max(opsets.DEFAULT, brought)})


def versions_of(op_type: str) -> list[int]:
    """The versions of an operator; the one that is in force at the smallest opset has that number."""
    schemas = (schema.find("", op_type, opset) for opset in range(PORTABLE, schema.NEWEST + 1))
    return sorted({max(PORTABLE, facts.since) for facts in schemas if facts is not None})


def model_of(
    op_type: str, operands: Sequence[Any], attributes: dict[str, Any], dtype: np.dtype, opset: int
) -> ir.Model:
    """A model of one node with this dtype."""
    inputs, nodes, outer_values, initializers = [], [], [], []
    for index, operand in enumerate(operands):
        if operand is None:
            inputs.append(None)
        elif isinstance(operand, np.ndarray):
            value = ir.Value(name=f"c{index}", const_value=ir.Tensor(operand, name=f"c{index}"))
            initializers.append(value)
            inputs.append(value)
        else:  # through a Cast from a dtype that the Python binding takes
            outer = ir.Value(name=f"x{index}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(operand[1]))
            inner = ir.Value(name=f"v{index}")
            nodes.append(ir.Node("", "Cast", [outer], [ir.AttrInt64("to", int(data_type(dtype)))], outputs=[inner]))
            outer_values.append(outer)
            inputs.append(inner)
    results = [ir.Value(name=f"result{index}") for index in range(OUTPUTS.get(op_type, 1))]
    nodes.append(ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes), outputs=results))
    last = ir.Value(name="last", type=ir.TensorType(ir.DataType.FLOAT))
    nodes.append(ir.Node("", "Cast", results[:1], [ir.AttrInt64("to", int(ir.DataType.FLOAT))], outputs=[last]))
    graph = ir.Graph(
        outer_values, [last], nodes=nodes, initializers=initializers, opset_imports={"": opset}, name="one"
    )
    return ir.Model(graph, ir_version=opsets.ir_version(opset))


def model_of_opset(opset: int) -> ir.Model:
    """A model that loads wherever its opset does."""
    x, y = (ir.Value(name=n, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2])) for n in "xy")
    graph = ir.Graph([x], [y], nodes=[ir.Node("", "Identity", [x], outputs=[y])], opset_imports={"": opset}, name="one")
    return ir.Model(graph, ir_version=opsets.ir_version(opset))


def ask(folder: Path) -> None:
    """Write all models into a folder, and the value that the inputs of each get."""
    questions = {}

    def put(name: str, model: ir.Model, value: float) -> None:
        (folder / name).write_bytes(ir.to_proto(model).SerializeToString())
        questions[name] = value

    for opset in opsets.IR_VERSIONS:
        put(f"{opset}.onnx", model_of_opset(opset), 0.5)
    for op_type, (operands, attributes) in calls().items():
        for opset in opsets_of(op_type):
            facts = schema.find("", op_type, opset)
            known = {n: v for n, v in attributes.items() if facts is not None and n in facts.attributes}
            for dtype in accepted(op_type, operands, opset):
                model = model_of(op_type, operands, known, dtype, opset)
                put(f"{op_type}-{dtype.name}-{opset}.onnx", model, 0.5 if dtype.kind not in "iub" else 1)
    (folder / "questions.json").write_text(json.dumps(questions))


def accepted(op_type: str, operands: Sequence[Any], opset: int) -> list[np.dtype]:
    """The dtypes that the schema of an operator allows."""
    facts = schema.find("", op_type, opset)
    assert facts is not None, op_type
    dtypes = next(f.dtypes for f, o in zip(facts.inputs * 2, operands, strict=False) if isinstance(o, tuple))
    return [dtype for dtype in DTYPES if dtype in dtypes]


def answers_of(release: str, folder: Path) -> frozenset[str]:
    """The models that a release runs, in a process of its own."""
    place = folder / release
    install = ["install", "--quiet", "--no-deps", "--target", str(place), f"onnxruntime=={release}"]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    answer = subprocess.run(
        [sys.executable, str(ANSWERS), str(folder)],
        env={**os.environ, "PYTHONPATH": str(place)},
        check=True,
        stdout=subprocess.PIPE,
    )
    return frozenset(json.loads(answer.stdout))


def newest_opset(run: frozenset[str]) -> int:
    """The newest opset that a release loads."""
    return max(opset for opset in opsets.IR_VERSIONS if f"{opset}.onnx" in run)


def missing(op_type: str, run: frozenset[str]) -> list[str]:
    """The dtypes that a release cannot compute an operator in: at the default opset, if it loads that, or a small
    one.
    """
    wanted = opsets.DEFAULT if newest_opset(run) >= opsets.DEFAULT else PORTABLE
    tried = opsets_of(op_type)
    opset = max((opset for opset in tried if opset <= wanted), default=tried[0])
    without = _without(op_type, opset, run)
    lacks_all = len(without) == len(accepted(op_type, calls()[op_type][0], opset))
    return [] if opset > newest_opset(run) or lacks_all else without


def _without(op_type: str, opset: int, run: frozenset[str]) -> list[str]:
    dtypes = accepted(op_type, calls()[op_type][0], opset)
    return [dtype.name for dtype in dtypes if f"{op_type}-{dtype.name}-{opset}.onnx" not in run]


def versions(op_type: str, answers: dict[str, frozenset[str]]) -> str:
    """The versions of an operator that a release loads and has no kernel of, with the release that brought one."""
    ranges, releases = [], list(answers)
    for opset in versions_of(op_type):
        count = len(accepted(op_type, calls()[op_type][0], opset))
        lacking = [
            release
            for release, run in answers.items()
            if opset <= newest_opset(run) and len(_without(op_type, opset, run)) == count
        ]
        if lacking:
            later = releases[releases.index(lacking[-1]) + 1 :]
            ranges.append(f"{opset}<{later[0]}" if later else str(opset))
    return " ".join(ranges)


def words(op_type: str, answers: dict[str, frozenset[str]]) -> list[str]:
    """The dtypes without a kernel, those that have one in newer releases with the release that brought it."""
    missing_in = {release: missing(op_type, run) for release, run in answers.items()}
    releases = list(answers)
    newest = missing_in[releases[-1]]
    later = []
    for dtype in (d.name for d in DTYPES if d.name not in newest):
        without = [release for release in releases if dtype in missing_in[release]]
        if without:
            later.append(f"{dtype}<{releases[releases.index(without[-1]) + 1]}")
    return newest + later


def main() -> None:
    """Write the table; with `--check` say whether it is up to date."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ask(folder)
        answers = {release.rpartition(".")[0]: answers_of(release, folder) for release in RELEASES}
    by_version = {op_type: versions(op_type, answers) for op_type in sorted(calls())}
    write(
        TARGET,
        "scripts/ort_kernels.py",
        releases={release: newest_opset(run) for release, run in answers.items()},
        missing={op_type: " ".join(words(op_type, answers)) for op_type in sorted(calls())},
        versions={op_type: text for op_type, text in by_version.items() if text},
    )


if __name__ == "__main__":
    main()
