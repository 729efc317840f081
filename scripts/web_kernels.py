"""Regenerate `src/jaxport/onnx_facts/web_kernels.json`: the kernels that every build of onnxruntime-web has, and WebGPU's.

The npm package has builds of their own for WebAssembly and for WebGPU, and some kernels are in one of them only. A
model of one node is loaded, in Node, for each operator at the opsets of the target "web" and each choice of its dtypes;
and in Chromium, with WebGPU on a graphics processor in software, where no node may fall back to the CPU. Where there is
a new release, change `tests/runtimes/javascript/package.json` and run `python -m scripts.web_kernels`.
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import defs

from jaxport.export.delivery import opsets
from jaxport.export.delivery.targets import TARGETS
from jaxport.export.emit.emitter import DTYPE_ATTRIBUTES
from jaxport.export.emit.value import data_type
from jaxport.onnx_facts import CONTROL_FLOW, schema
from scripts.kernel_tables import write
from scripts.ort_kernels import calls

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src" / "jaxport" / "onnx_facts" / "web_kernels.json"
SCRIPTS = ROOT / "tests" / "runtimes" / "javascript"
#: The scripts of the package whose builds are asked: for WebGPU, for WebAssembly, and for all backends.
BUILDS = ("ort.webgpu.min.mjs", "ort.wasm.min.mjs", "ort.all.min.mjs")
WEB = TARGETS["web"]
NOT_IMPLEMENTED = "ERROR_CODE: 9,"
DTYPES = [
    np.dtype(name) for name in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
]

#: What WebGPU is asked for: it has no kernel of other dtypes.
GPU_DTYPES = frozenset("bool int8 uint8 int32 uint32 int64 float16 float32".split())

Kernel = tuple[frozenset[str], ...]
"""The dtypes that a kernel takes, by type parameter."""


def versions() -> Iterator[tuple[str, int]]:
    """The operators of tensors that the target may have, and an opset for each of their versions."""
    newest = WEB.newest_opset or WEB.opset
    for name in sorted({each.name for each in defs.get_all_schemas() if not each.domain} - CONTROL_FLOW):
        opsets_of = range(newest, WEB.opset - 1, -1)
        found = {facts.since: opset for opset in opsets_of if (facts := schema.find("", name, opset)) is not None}
        yield from ((name, opset) for opset in sorted(found.values()) if is_of_tensors(name, opset))


def is_of_tensors(name: str, opset: int) -> bool:
    """Whether all that an operator takes and gives are tensors, and may be of numbers."""
    declared = defs.get_schema(name, opset, "")
    kinds = [parameter.types for parameter in (*declared.inputs, *declared.outputs)]
    return all(all(kind.startswith("tensor(") for kind in each) and each != {"tensor(string)"} for each in kinds)


def parameters(facts: schema.Schema) -> dict[str, list[np.dtype]]:
    """The type parameters of an operator with the dtypes that are asked for."""
    kinds = {formal.type: formal.dtypes for formal in (*facts.inputs, *facts.outputs)}
    return {
        name: [d for d in DTYPES if d in dtypes] for name, dtypes in kinds.items() if not name.startswith("tensor(")
    }


def model_of(name: str, opset: int, dtypes: dict[str, np.dtype]) -> ir.Model:
    """A model of one node with these dtypes, of tensors without shapes."""
    facts = schema.find("", name, opset)
    assert facts is not None
    declared = defs.get_schema(name, opset, "")
    known = {key: value for key, value in calls().get(name, ((), {}))[1].items() if key in facts.attributes}
    given = {key: sample_of(each) for key, each in declared.attributes.items() if each.required} | known
    result = facts.outputs[0].type
    if result in dtypes and all(formal.type != result for formal in facts.inputs):
        given |= {key: int(data_type(dtypes[result])) for key in DTYPE_ATTRIBUTES if key in facts.attributes}
    count = max(declared.min_input, sum(p.option.name != "Optional" for p in declared.inputs))
    ins: list[ir.Value | None] = [value_of(f"x{index}", facts.input(index), dtypes) for index in range(count)]
    scales = ir.Value(name="scales", const_value=ir.tensor([1.0, 1.0, 2.0, 2.0], name="scales"))
    if name == "Resize":  # whose optional operands no kernel does without
        ins = [ins[0], None, scales]
    outs = [value_of(f"y{index}", facts.output(index), dtypes) for index in range(max(1, facts.least_outputs))]
    node = ir.Node("", name, ins, ir.convenience.convert_attributes(given), outputs=outs)
    given_ins = [value for value in ins if value is not None and value is not scales]
    held = [scales] if scales in ins else []
    graph = ir.Graph(given_ins, outs, nodes=[node], initializers=held, opset_imports={"": opset}, name="one")
    return ir.Model(graph, ir_version=opsets.ir_version(opset))


def value_of(name: str, formal: schema.Formal | None, dtypes: dict[str, np.dtype]) -> ir.Value:
    """A value for a formal parameter, in the dtype that its type parameter has."""
    assert formal is not None
    dtype = dtypes.get(formal.type) or next(iter(formal.dtypes))
    return ir.Value(name=name, type=ir.TensorType(data_type(dtype)))


def sample_of(attribute: defs.OpSchema.Attribute) -> Any:
    """A value for an attribute that has to be given: no kernel is chosen by it."""
    one = {"INT": 1, "FLOAT": 1.0, "STRING": "LEFT"}
    kind = attribute.type.name
    return one[kind] if kind in one else [one.get(kind.removesuffix("S"), 1)]


def served(build: str, models: Sequence[ir.Model]) -> list[bool]:
    """Whether a build has a kernel for each of these models."""
    lines = "".join(base64.b64encode(ir.to_proto(model).SerializeToString()).decode() + "\n" for model in models)
    command = ["node", "kernels.mjs", build]
    answer = subprocess.run(command, cwd=SCRIPTS, check=True, input=lines, stdout=subprocess.PIPE, text=True).stdout
    return [NOT_IMPLEMENTED not in json.loads(line) for line in answer.splitlines()]


def on_gpu(models: Sequence[ir.Model]) -> list[bool]:
    """Whether WebGPU runs each of these models, in a browser, without the CPU."""
    lines = "".join(base64.b64encode(ir.to_proto(model).SerializeToString()).decode() + "\n" for model in models)
    command = ["node", "gpu_kernels.mjs", shutil.which("chromium") or "google-chrome"]
    answer = subprocess.run(command, cwd=SCRIPTS, check=True, input=lines, stdout=subprocess.PIPE, text=True).stdout
    return [not json.loads(line) for line in answer.splitlines()]


def factored(combinations: set[tuple[str, ...]]) -> list[Kernel]:
    """Combinations of dtypes as few products: rows that differ in one place are one."""
    rows = [tuple(frozenset([name]) for name in each) for each in sorted(combinations)]
    for place in reversed(range(len(rows[0]) if rows else 0)):
        joined: dict[tuple, frozenset[str]] = {}
        for row in rows:
            others = row[:place] + row[place + 1 :]
            joined[others] = joined.get(others, frozenset()) | row[place]
        rows = [(*others[:place], names, *others[place:]) for others, names in joined.items()]
    return rows


Asked = tuple[str, int, dict[str, np.dtype]]
"""An operator, an opset, and the dtype of each type parameter."""


def rows_of(
    asked: Sequence[Asked], runs: Sequence[bool], listed: Callable[[Collection[bool]], bool]
) -> dict[str, list[str]]:
    """The rows of the operators that are to be listed, given whether each of their combinations runs."""
    kernels: dict[tuple[str, int, str], dict[tuple[str, ...], bool]] = {}
    for (name, opset, dtypes), is_served in zip(asked, runs, strict=True):
        facts = schema.find("", name, opset)
        assert facts is not None
        combination = tuple(dtype.name for dtype in dtypes.values())
        kernels.setdefault((name, facts.since, " ".join(dtypes)), {})[combination] = is_served
    order = [dtype.name for dtype in DTYPES]
    rows = {}
    for (name, since, kinds), answered in kernels.items():
        if listed(answered.values()):
            products = factored({combination for combination, is_served in answered.items() if is_served})
            texts = [" ".join("/".join(sorted(names, key=order.index)) for names in each) for each in products]
            rows[f"{name} {since}"] = [kinds, ", ".join(texts)]
    return rows


def main() -> None:
    """Write the tables; with `--check` say whether they are up to date."""
    asked: list[Asked] = [
        (name, opset, dict(zip(kinds, chosen, strict=True)))
        for name, opset in versions()
        for kinds in [parameters(schema.find("", name, opset))]
        for chosen in itertools.product(*kinds.values())
    ]
    of_gpu = [each for each in asked if GPU_DTYPES.issuperset(dtype.name for dtype in each[2].values())]
    gpu_rows = rows_of(of_gpu, on_gpu([model_of(*each) for each in of_gpu]), any)
    runs = [True] * len(asked)
    for build in BUILDS:
        answers = iter(
            served(build, [model_of(*each) for each, is_served in zip(asked, runs, strict=True) if is_served])
        )
        runs = [is_served and next(answers) for is_served in runs]
    rows = rows_of(asked, runs, lambda answers: not all(answers))
    release = json.loads((SCRIPTS / "package.json").read_text())["dependencies"]["onnxruntime-web"]
    write(TARGET, "scripts/web_kernels.py", release=release, kernels=rows, webgpu=gpu_rows)


if __name__ == "__main__":
    main()
