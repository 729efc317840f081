"""The example of greedy generation in the docstring of a printed decoder: it runs, and gives JAX's tokens."""

from __future__ import annotations

import doctest
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from jaxport.codegen.modules import ModuleSource
from jaxport.export.generation.decoders import decoder_inputs
from tests.codegen import structured
from tests.graph.test_caches import GROUPS, SIZE, step

DECODER = step()


def chosen_by_jax(tokens: list[int]) -> list[int]:
    """Return the best token behind each of some tokens, without a cache."""
    count = len(tokens)
    empty = [{side: jnp.zeros((1, GROUPS, 0, SIZE)) for side in ("key", "value")}]
    arguments = jnp.array([tokens]), jnp.ones((1, count), int), jnp.arange(count)[None], empty
    return jax.jit(DECODER)(*arguments)["logits"][0].argmax(-1).tolist()


def printed(framework: str, folder: Path, *, cache: str = "growing", target: str = "genai", **options) -> ModuleSource:
    inputs = decoder_inputs(1, GROUPS, SIZE, cache=cache)
    exported = jaxport.to_onnx(DECODER, inputs, target="genai")
    exported.save(folder / "decoder.onnx")
    return jaxport.from_onnx(folder / "decoder.onnx").to_source(framework=framework)


@pytest.mark.parametrize(("framework", "cache"), [("nnx", "growing"), ("equinox", "static")])
def test_the_example_generates_the_tokens_of_jax(framework: str, cache: str, tmp_path: Path) -> None:
    source = printed(framework, tmp_path, cache=cache)
    source.save(tmp_path / "printed")
    code = (tmp_path / "printed" / "model.py").read_text()
    assert ("64, 8)" in code) == (cache == "static")
    module = structured.load(tmp_path / "printed")
    names = dict(vars(module))
    for example in doctest.DocTestParser().get_examples(module.__doc__ or ""):
        exec(example.source, names)
    found = np.asarray(names["tokens"])[0].tolist()
    assert found[3:] == chosen_by_jax(found[:-1])[2:]


def test_other_models_have_no_example(tmp_path: Path) -> None:
    jaxport.to_onnx(lambda x: jnp.tanh(x), [("B", 3)]).save(tmp_path / "model.onnx")
    assert ">>>" not in jaxport.from_onnx(tmp_path / "model.onnx").to_source(framework="nnx").code


@pytest.mark.parametrize(("cache", "argument"), [("growing", ""), ("static", " rows: usize,")])
def test_a_crate_of_a_decoder_generates(cache: str, argument: str) -> None:
    source = jaxport.to_source(DECODER, decoder_inputs(1, GROUPS, SIZE, cache=cache), framework="burn")
    text = " ".join(source.files["src/generate.rs"].split())
    assert f"fn generate(&self, text: &[i32],{argument} device: &Device) -> impl Iterator<Item = i32>" in text.replace(
        "( &self", "(&self"
    ).replace(", )", ")")
    assert "pub mod generate;" in source.files["src/lib.rs"]
    assert ("check_cache" in source.code) == (cache == "growing")
    assert "model.generate(&[1, 2, 3]," in source.files["README.md"]


def test_a_crate_of_another_model_does_not_generate() -> None:
    source = jaxport.to_source(jnp.tanh, [("B", 3)], framework="burn")
    assert "src/generate.rs" not in source.files
    assert "generate" not in source.files["src/lib.rs"] + source.files["README.md"]
