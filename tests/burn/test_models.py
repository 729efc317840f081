"""Every example in JAX as a crate for Burn: exported, printed, compiled once, and run at each size that it has a sample of."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

import jaxport
from examples.models import build, cells
from examples.models.example import Size
from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.recorded.fused import record_fused
from jaxport.importer.interface import in_model_order
from jaxport.verify import difference
from tests.burn.crates import Built, Case, RunError, build as built_crates, case_of, selected, unformatted

pytestmark = pytest.mark.burn

LIMIT = 1e-5
"""Relative to the largest element of an output in single precision."""
#: Printed with sizes that are given only, in every framework: a size is compared with another one.
REFUSED = {"cnn_train/equinox"}
CELLS = [name for cell in cells() if (name := "/".join(cell)) not in REFUSED]


class Model(NamedTuple):
    """An example as a crate.

    Attributes:
      case: its sources.
      samples: its inputs and what JAX computes of them, at each size.
    """

    case: Case
    samples: list[tuple[dict, dict]]


@cache
def printed(cell: str, size: Size = "small") -> Model:
    """Print an example, and run it in JAX."""
    example = build(*cell.split("/"), size)  # type: ignore[arg-type]
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    program = in_model_order(jaxport.from_onnx(exported.model))
    crate = to_crate(record_fused(program))
    samples = []
    for sizes in example.sizes:
        inputs = exported.flatten(example.sample(np.random.default_rng(0), sizes), {})
        samples.append((inputs, dict(zip(program.output_names, exported.run(inputs), strict=True))))
    return Model(case_of(crate, f"{cell.replace('/', '_')}_{size}"), samples)


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Built:
    """The examples of the tests that were selected, in one binary."""
    return built_crates({cell: printed(cell).case for cell in selected(request, "cell")}, "models")


@pytest.mark.parametrize("cell", CELLS)
def test_a_model_of_jax_computes_the_same_in_rust(cell: str, compiled: Built) -> None:
    compare(compiled, cell, printed(cell))


def compare(built: Built, cell: str, model: Model) -> None:
    """Run a crate at all sizes that there are samples of, and compare it with JAX."""
    assert cell not in built.errors, built.errors[cell][0]
    assert cell not in built.warnings, built.warnings[cell][0]
    for inputs, wanted in model.samples:
        outputs = built.run(cell, inputs)
        assert not isinstance(outputs, RunError), outputs
        for name, expected in wanted.items():
            found = difference(expected, outputs[name].astype(expected.dtype))
            assert not found.problem, f"`{name}`: {found.problem}"
            assert found.relative <= LIMIT, f"`{name}`: {found}"


def test_they_are_laid_out_as_rustfmt_does(compiled: Built) -> None:
    assert unformatted(compiled.cases) == []


def test_clippy_has_nothing_to_say(compiled: Built) -> None:
    linted = built_crates(compiled.cases, "models", lint=True)
    assert linted.errors == {}
    assert linted.warnings == {}
