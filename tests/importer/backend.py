"""The official backend suite: its cases, how one is run, and which are excluded and why."""

from __future__ import annotations

import argparse
import json
import random
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx.backend.test import loader
from onnx.backend.test.case.test_case import TestCase

from jaxport.errors import ValueNotKnown
from jaxport.importer import Program, from_onnx
from jaxport.jaxprs import release
from tests.importer.models import ONNX

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")


EXCLUDED: dict[str, tuple[str, ...]] = {
    "they divide by `n * scale - 1`, where the operator's page, ONNX Runtime and PyTorch divide by the size less one": (
        "test_resize_downsample_scales_cubic_align_corners",
        "test_resize_downsample_scales_linear_align_corners",
    ),
    **(
        {"onnx before 1.23 expects another fourth output": ("test_attention_4d_with_qk_matmul_bias",)}
        if ONNX < (1, 23)
        else {}
    ),
    **(
        {
            "onnx 1.21 expects other values than its later releases, which have the same model": (
                "test_attention_3d_with_past_and_present_qk_matmul_bias",
                "test_attention_3d_with_past_and_present_qk_matmul_softcap",
                "test_attention_4d_with_past_and_present_qk_matmul_bias",
                "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask",
                "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
                "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask",
                "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
                "test_attention_4d_with_qk_matmul_softcap",
                *(f"test_qlinearmatmul_{rank}D_int8_float{bits}" for rank in (2, 3) for bits in (16, 32)),
            ),
            "onnx 1.21 leaves epsilon out of the model": ("test_adam_multiple",),
        }
        if ONNX < (1, 22)
        else {}
    ),
}
"""Cases that are not run, grouped by the reason, which is ONNX's or the test's own fault."""

DRAWN = re.compile("test_bernoulli|test_training_dropout(_default)?(_mask)?$")
"""Cases whose expected values come from NumPy's generator, which no attribute of the model names: an element is either
kept or zero, so only those that both sides kept are compared, and shapes and types.
"""


COMPILER_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    # Without fusions, XLA's other emitters give wrong values: those of `col2im`, for example.
    **({"xla_cpu_use_fusion_emitters": True} if release < (0, 11) else {}),
    # Fused with a softmax, a mean is computed twice, in two orders. The logits of the networks with made-up weights are
    # about 1e10: there the difference of the two is more than `exp` can take.
    # Some of the executables that XLA makes of one and the same program with its library of fused products give NaN for
    # the ResNet-50 of made-up weights (2 of 14 in jaxlib 0.10.2), and none without it.
    "xla_disable_hlo_passes": "fusion,dot-library-rewriter",
}
"""What makes compilation fast, and the results those of the operations one by one."""


def needs_equal_channels() -> None:
    """Skip a test of a network whose weights are one number: of its logits, about 1e10, a softmax shows the last bit."""
    x, kernel = (
        np.random.default_rng(0).random((1, 13, 13, 512), np.float32),
        np.full((1, 1, 512, 1000), 0.5, np.float32),
    )
    convolve = lambda x, kernel: jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    found = np.asarray(jax.jit(convolve, compiler_options=COMPILER_OPTIONS)(x, kernel))
    if (found != found[..., :1]).any():
        pytest.skip("XLA's convolutions round the last of 1,000 equal channels otherwise on this processor")


def marks(name: str) -> list[pytest.MarkDecorator]:
    """Why a case is not run, or is run in the slow suite only: the fast one has a sixth of the cases, always the same."""
    return [pytest.mark.skip(reason=reason) for reason in reasons(name)] + [pytest.mark.slow] * (name not in _sample())


def reasons(name: str) -> list[str]:
    """Why a case is not run."""
    return [reason for reason, names in EXCLUDED.items() if name in names]


@cache
def _sample() -> set[str]:
    return set(random.Random(0).sample(sorted(cases()), len(cases()) // 6))


class Case(NamedTuple):
    """One model with its tolerances; `data()` yields its inputs and expected outputs. `root` is where onnx is installed."""

    name: str
    kind: str
    test: Any
    root: Path = Path(onnx.__file__).parents[1]

    def model(self) -> onnx.ModelProto:
        if self.test.model is not None:
            return self.test.model
        return onnx.load(self.folder() / "model.onnx" if self.test.model_dir else self.light())

    def compare(self, outputs: Any, expected: Any) -> None:
        """Asserts that the outputs are the expected ones, within the tolerances."""
        if DRAWN.match(self.name):
            outputs = [np.asarray(output) for output in outputs]
            for output, wanted in zip(outputs, expected, strict=True):
                assert (output.shape, output.dtype) == (wanted.shape, wanted.dtype)
            kept = [(output != 0) & (wanted != 0) for output, wanted in zip(outputs, expected, strict=True)]
            outputs = [
                np.where(both, output, wanted) for output, wanted, both in zip(outputs, expected, kept, strict=True)
            ]
            assert all(both.any() and not both.all() for both in kept), "nothing or everything was kept by both"
        compare(outputs, expected, self.test.rtol, self.test.atol)

    def folder(self) -> Path:
        return Path(self.test.model_dir)

    def light(self) -> Path:
        """The file of a model whose weights are made up, so that it fits into the package."""
        return self.root / self.test.url

    def data(self, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
        if self.test.data_sets is not None:
            for inputs, outputs in self.test.data_sets:
                yield [_array(value) for value in inputs], [_array(value) for value in outputs]
            return
        if self.test.model_dir is None:
            weights = {tensor.name for tensor in model.graph.initializer}
            inputs = [_ramp(value) for value in model.graph.input if value.name not in weights]
            files = [
                self.light().with_name(f"{self.light().stem}_output_{i}.pb") for i in range(len(model.graph.output))
            ]
            yield inputs, [_read(path, value) for path, value in zip(files, model.graph.output, strict=True)]
            return
        for folder in sorted(self.folder().glob("test_data_set_*")):
            files = len(list(folder.glob("input_*.pb")))
            inputs = [_read(folder / f"input_{i}.pb", value) for i, value in enumerate(model.graph.input[:files])]
            outputs = [_read(folder / f"output_{i}.pb", value) for i, value in enumerate(model.graph.output)]
            yield inputs, outputs


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _ramp(value: onnx.ValueInfoProto) -> np.ndarray:
    """The input that the suite feeds to its light models."""
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else 1 for dim in value.type.tensor_type.shape.dim)
    size = np.prod(shape)
    return (np.arange(size).reshape(shape) / size).astype(np.float32)


def _read(path: Path, value: onnx.ValueInfoProto) -> Any:
    data = path.read_bytes()
    kind = value.type.WhichOneof("value")
    if kind == "sequence_type":
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "optional_type":
        return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    array = onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data))
    declared = value.type.tensor_type.elem_type
    if array.dtype == np.uint16 and declared == onnx.TensorProto.BFLOAT16:
        return array.view(onnx.helper.tensor_dtype_to_np_dtype(declared))  # older releases wrote the bits
    return array


@cache
def cases() -> dict[str, Case]:
    """All cases of the installed onnx release by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators divide by zero and overflow on purpose
        tests = [(kind, test) for kind in KINDS for test in loader.load_model_tests(kind=kind)]
    return {test.name: Case(test.name, kind, test) for kind, test in tests}


def shipped(root: Path) -> dict[str, Case]:
    """All cases of an older release of onnx, which has them as files, by name: `root` is where it is installed."""
    data = root / "onnx" / "backend" / "test" / "data"
    tests = [(kind, test) for kind in KINDS[1:] for test in loader.load_model_tests(str(data), kind)]
    # The loader of this release makes the cases of single nodes itself and reads no files of them.
    tests += [("node", _from_files(folder)) for folder in sorted((data / "node").iterdir()) if folder.is_dir()]
    return {test.name: Case(test.name, kind, test, root) for kind, test in tests}


def _from_files(folder: Path) -> TestCase:
    tolerances = folder / "data.json"
    stored = json.loads(tolerances.read_text("utf-8")) if tolerances.is_file() else {}
    rtol, atol = stored.get("rtol", 1e-3), stored.get("atol", 1e-7)
    return TestCase(folder.name, folder.name, None, str(folder), None, None, "node", rtol, atol)


def run(case: Case) -> str:
    """Imports the model, runs it, and compares every output; says whether it ran `jitted` or `eager`."""
    model = case.model()
    program = from_onnx(model)
    mode = "jitted"
    with jax.enable_x64(True):
        for inputs, expected in case.data(model):
            try:
                outputs = _jitted_for(program, inputs)
            except ValueNotKnown:
                mode, outputs = "eager", _as_tuple(program(*inputs))
            case.compare(outputs, expected)
    return mode


def _jitted_for(program: Program, inputs: list[Any]) -> tuple[Any, ...]:
    """The outputs under `jax.jit`, with the scalars among the inputs known if it has to be."""
    try:
        return jitted(program, *split(program, inputs))
    except ValueNotKnown:
        return jitted(program, *split(program, inputs, scalars_known=True))


def split(program: Program, inputs: list[Any], scalars_known: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs that have to be known, by name (shapes depend on them, or they are strings or absent), and the others."""
    named = dict(zip(program.input_names, inputs, strict=False))
    traced = {
        name: value
        for name, value in named.items()
        if name not in program.static_inputs
        and _is_array(value)
        and not (scalars_known and getattr(value, "size", 0) == 1)
    }
    return {name: value for name, value in named.items() if name not in traced}, traced


def _is_array(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(
        isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OUST" for leaf in leaves
    )


def jitted(program: Program, known: dict[str, Any], traced: dict[str, Any]) -> tuple[Any, ...]:
    """The outputs under `jax.jit`: over the arrays that no shape depends on."""
    return call_jitted(lambda params, inputs: program.apply(params, **inputs, **known), program.params, traced)


def call_jitted(function: Callable[..., Any], *arrays: Any) -> tuple[Any, ...]:
    """The outputs of a function under `jax.jit`, which cannot return strings: those are handed round it."""
    hosts: dict[int, Any] = {}

    def call(*arrays: Any) -> Any:
        leaves, tree = jax.tree.flatten(_as_tuple(function(*arrays)))
        hosts.update(
            (i, leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "O"
        )
        hosts[-1] = tree
        return [leaf for i, leaf in enumerate(leaves) if i not in hosts]

    # Attention in bfloat16 is a product that XLA has in that library only.
    is_half = any(getattr(array, "dtype", None) == jnp.bfloat16 for array in arrays)
    options = COMPILER_OPTIONS | ({"xla_disable_hlo_passes": "fusion"} if is_half else {})
    results = iter(jax.jit(call, compiler_options=options)(*arrays))
    tree = hosts.pop(-1)
    leaves = [hosts[i] if i in hosts else next(results) for i in range(tree.num_leaves)]
    return tuple(jax.tree.unflatten(tree, leaves))


def _as_tuple(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def compare(outputs: Any, expected: Any, rtol: float, atol: float) -> None:
    assert len(outputs) == len(expected), f"{len(outputs)} outputs, expected {len(expected)}"
    for output, wanted in zip(outputs, expected, strict=True):
        _compare(output, wanted, rtol, atol)


def _compare(output: Any, wanted: Any, rtol: float, atol: float) -> None:
    if isinstance(wanted, list):
        assert isinstance(output, list), f"{type(output)} is not a sequence"
        return compare(output, wanted, rtol, atol)
    if wanted is None:
        assert output is None
        return None
    output, wanted = np.asarray(output), np.asarray(wanted)
    assert output.shape == wanted.shape, f"shape {output.shape}, expected {wanted.shape}"
    if wanted.dtype.kind in "OUST":
        assert output.tolist() == wanted.tolist()
        return None
    assert output.dtype == wanted.dtype, f"{output.dtype}, expected {wanted.dtype}"
    if wanted.dtype.kind in "iub":
        np.testing.assert_array_equal(output, wanted)
    elif wanted.dtype.kind in "fc":
        np.testing.assert_allclose(output, wanted, rtol=rtol, atol=atol)
    else:  # the small types: every value is exact in float32
        if wanted.dtype.name == "bfloat16":
            rtol = max(rtol, 2**-6)  # two units in the last place, as the suite itself allows
        np.testing.assert_allclose(output.astype(np.float32), wanted.astype(np.float32), rtol=rtol, atol=atol)
    return None


def main() -> None:
    """Prints how many cases pass as programs and as source, and what fails."""
    from tests.importer import printed

    parser = argparse.ArgumentParser(prog="python -m tests.importer.backend", description=main.__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="which cases: a regular expression")
    parser.add_argument("--release", type=Path, metavar="FOLDER", help="where another release of onnx is installed")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    failures: dict[str, list[str]] = defaultdict(list)
    for name, case in (shipped(arguments.release) if arguments.release else cases()).items():
        if not re.search(arguments.pattern, name) or reasons(name):
            continue
        for what, check in (("program", run), ("source", printed.check)):
            try:
                counts[f"{what} {check(case) or 'passed'}"] += 1
            except Exception as error:  # noqa: BLE001  a report of failures of all kinds
                counts[f"{what} failed"] += 1
                rows = [f"{r.name}: {r.why}" for r in getattr(error, "refusals", ())]
                text = "; ".join(rows) or " ".join(f"{error}".split())
                failures[f"{what}: {type(error).__name__}: {text[:160]}"].append(name)
    for problem, names in sorted(failures.items(), key=lambda entry: -len(entry[1])):
        print(f"{len(names):5} {problem}   {', '.join(names[:3])}")
    print(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
