"""Gradients of printed crates, and trained weights on their way back: a step of descent in Rust is the same step in JAX."""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import jaxport
from examples.models import build
from jaxport.importer import Program
from jaxport.jaxprs.releases import QUICKLY
from tests.burn.crates import BUILD, Built, Case, RunError, build as built_crates, selected

pytestmark = pytest.mark.burn

#: Without batch normalization, which Burn computes with the statistics of the batch wherever gradients are.
CELLS = (
    "mlp/nnx", "vit_b16/nnx", "gpt2/nnx", "bert_base/nnx", "unet/nnx", "lstm/nnx", "llama/nnx", "moe/nnx",
    "cross_attention/equinox", "bidirectional_gru/nnx", "gpt2/nnx/one is trained",
)  # fmt: skip
LIMIT = 1e-4
"""Of each gradient, relative to its largest element."""
NOTHING = 1e-3
"""What part of the model's largest gradient counts as none: a softmax takes no notice of the bias of its keys."""
RATE = 1024.0
"""A step so large that the difference of weights has the digits of the gradient."""

STEP = """
pub fn run(model: &ROOT, inputs: &Tensors, device: &Device) -> Result<Tensors, TensorsError> {
    use burn::optim::{GradientsParams, SgdConfig};

    let device = &device.clone().autodiff();
    FORWARD
    let gradients = GradientsParams::from_grads((LOSS).backward(), model);
    let model = SgdConfig::new().init().step(RATE, model.clone(), gradients);
    model.save("TRAINED").unwrap();
    Ok(Tensors::default())
}
"""


class Trained(NamedTuple):
    """A program, and where the crate leaves the weights after a step.

    Attributes:
      case: the sources of the crate.
      inputs: the inputs of the program, by name, and a cotangent for each result.
    """

    case: Case
    program: Program
    inputs: dict[str, np.ndarray]
    file: Path


def stepping(glue: str, ranks: dict[str, int], trained: Path) -> str:
    """Return the sources beside a model, with a step of descent in place of its results.

    The loss is the sum of the results times the cotangents among the inputs.
    """
    loading, _, running = glue.partition("/// Computes the model on named tensors.")
    root = re.search(r"model: &(\w+)", running)
    forward = re.search(r"let .*? = model\.forward\(.*?\);\n", running, re.DOTALL)
    assert root is not None
    assert forward is not None
    stored = re.findall(r"outputs\.insert(?:_scalar)?\(\s*(\"[^\"]*\"),\s*([\w.]+)", running)
    terms = [
        f'({value}.cast(burn::tensor::FloatDType::F32) * inputs.float::<{ranks[name.strip(chr(34))]}>("cotangent of {name[1:-1]}", device)?).sum()'
        for name, value in stored
        if name.strip('"') in ranks
    ]
    step = STEP.replace("ROOT", root[1]).replace("FORWARD", forward[0]).replace("LOSS", " + ".join(terms))
    step = step.replace("RATE", str(RATE)).replace("TRAINED", str(trained))
    return loading.replace("::load(path, device)", "::load(path, &device.clone().autodiff())") + step


@cache
def prepared(cell: str) -> Trained:
    """Print a model with a step of descent."""
    name, library, *part = cell.split("/")
    example = build(name, library, "small")  # type: ignore[arg-type]
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    program = jaxport.from_onnx(exported.model)
    if part:  # of a layer in a list
        program = jaxport.from_onnx(exported.model, trainable=[sorted(program.params)[len(program.params) // 2]])
    random = np.random.default_rng(0)
    inputs = exported.flatten(example.sample(random, example.sizes[0]), {})
    results = dict(zip(program.output_names, exported.run(inputs), strict=True))
    real = {name: value for name, value in results.items() if value.dtype.kind == "f"}
    cotangents = {
        f"cotangent of {name}": random.normal(size=value.shape).astype(np.float32) for name, value in real.items()
    }
    folder = BUILD / "trained" / cell.replace("/", "_")
    source = program.to_source(folder, framework="burn")
    file = folder / "trained.safetensors"
    lines = source.files["src/lib.rs"]
    uses = lines[lines.index("use burn::tensor::") :]
    uses = re.sub(r"^pub mod .*\n", "", uses, flags=re.MULTILINE)
    ranks = {name: max(1, value.ndim) for name, value in real.items()}
    case = Case(
        source.code,
        stepping(uses, ranks, file),
        source.files.get("src/helpers.rs", ""),
        folder / "model.safetensors",
        source.files["src/weights.rs"],
    )
    return Trained(case, program, {**inputs, **cotangents}, file)


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> Built:
    """The models of the tests that were selected, in one binary."""
    cases = {cell: prepared(cell).case for cell in selected(request, "cell")}
    return built_crates(cases, "training", features=["train"])


@pytest.mark.parametrize("cell", CELLS)
def test_a_step_of_descent_is_the_same_as_in_jax(cell: str, compiled: Built) -> None:
    built = compiled
    assert cell not in built.errors, built.errors[cell][0]
    _, program, inputs, file = prepared(cell)
    file.unlink(missing_ok=True)
    ran = built.run(cell, inputs)
    assert not isinstance(ran, RunError), ran
    assert file.stat().st_mode == file.with_name("Cargo.toml").stat().st_mode  # others may read it, too
    after, stored = program.with_params(file).params, load_file(file.with_name("model.safetensors"))
    changed = [name for name, value in load_file(file).items() if not np.array_equal(value, stored[name])]
    assert len(changed) <= len(program.params), "frozen weights are as they were"
    gradients = jax.jit(jax.grad(partial(loss, program)), compiler_options=QUICKLY)(program.params, inputs)
    assert gradients.keys() == after.keys()
    largest = max(np.max(np.abs(gradient)) for gradient in gradients.values())
    for name, expected in gradients.items():
        found = (np.asarray(program.params[name], np.float64) - np.asarray(after[name], np.float64)) / RATE
        scale = max(np.max(np.abs(expected)), NOTHING * largest)
        assert np.max(np.abs(found - np.asarray(expected))) <= LIMIT * scale, name


def loss(program: Program, params: dict[str, jax.Array], inputs: dict[str, Any]) -> jax.Array:
    given = {name: value for name, value in inputs.items() if not name.startswith("cotangent of ")}
    results = program.apply(params, **given)
    results = results if isinstance(results, tuple) else (results,)
    cotangents = [inputs.get(f"cotangent of {name}") for name in program.output_names]
    return sum(jnp.vdot(x, c) for x, c in zip(results, cotangents, strict=True) if c is not None)
