"""Every example, exported with symbolic dims and compared with JAX at two sets of sizes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxport
from examples.models import build, cells
from jaxport.export import dims
from jaxport.verify import difference
from jaxport.verify.importing import caller

#: Relative to the largest element of an output. Rounding alone gives some 1e-6 in the deepest of the small models.
LIMIT = 1e-5

#: Compilation is where the time goes, and how fast the programs are does not matter.
COMPILER_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


def error(reference, output):
    """The largest difference, relative to the largest element."""
    return np.abs(np.asarray(output, np.float64) - reference).max() / np.abs(reference).max()


def compare_in_double(example, exported, arguments):
    """Where rounding is amplified (training statistics of two images), both sides are held against float64.

    Each output is within the limit, or at most twice as far from float64 as that of `jax.jit` in float32.
    """
    with jax.enable_x64(True):
        reference = jax.tree.leaves(example.fn(*jax.tree.map(in_double, arguments)))
    expected, actual = jax.tree.leaves(jax.jit(example.fn)(*arguments)), jax.tree.leaves(exported(*arguments))
    for exact, ours, theirs in zip(map(np.asarray, reference), actual, expected, strict=True):
        assert exact.dtype == np.float64
        assert error(np.asarray(theirs), ours) <= LIMIT or error(exact, ours) <= 2 * error(exact, theirs)


def in_double(array):
    return np.asarray(array, np.float64) if np.asarray(array).dtype == np.float32 else array


def compare(name, framework, size):
    """Export a cell, and compare at each of its sizes on its own samples."""
    example = build(name, framework, size)
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    symbols = {name for port in exported.inputs for dim in port.shape for name in dims.symbols(str(dim))}
    assert symbols == set().union(*example.sizes), "a named dimension was lost on the way"
    for sizes in example.sizes:
        arguments = example.sample(np.random.default_rng(0), sizes)
        report = exported.verify(list(arguments), check=False)
        if not report.ok or any(output.difference.relative > LIMIT for output in report.outputs):
            compare_in_double(example, exported, arguments)
    if size == "small":
        imported_back(exported, exported.flatten(arguments, {}), has_modules=framework != "jax")
    return exported


def imported_back(exported, inputs, has_modules):
    """Import what was exported, and compare the program with ONNX Runtime at one set of sizes."""
    program = jaxport.from_onnx(exported.model)
    assert bool(program.modules.children) is has_modules, program.modules
    for name, got, wanted in zip(
        program.output_names, caller(program, inputs, COMPILER_OPTIONS)(), exported.run(inputs), strict=True
    ):
        found = difference(wanted, got)
        assert not found.problem, f"`{name}` of the imported program: {found.problem}"
        assert found.relative <= LIMIT, f"`{name}` of the imported program: {found}"


@pytest.mark.parametrize(("name", "framework"), cells())
def test_small(name, framework):
    compare(name, framework, "small")


@pytest.mark.real
@pytest.mark.parametrize(("name", "framework"), cells())
def test_real(name, framework):
    compare(name, framework, "real")


def transposes(exported):
    return sum(node.op_type == "Transpose" for node in exported.model.graph.all_nodes())


@pytest.mark.parametrize("framework", ["nnx", "linen"])
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_convolutional_models_keep_transposes_at_the_border_only(name, framework):
    example = build(name, framework)
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    assert transposes(exported) == 1
    nchw = jaxport.to_onnx(example.fn, list(example.inputs), inputs_as_nchw=[0], **example.options)
    assert transposes(nchw) == 0
