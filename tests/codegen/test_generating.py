"""The example of greedy generation in the docstring of a printed decoder: it runs, and gives JAX's tokens."""

from __future__ import annotations

import doctest
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from benchmarks.graphs.builder_graph import builder_graph
from examples.language_model import CONFIGS, build, export, greedy
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


LOOP = "for layer, (past_key, past_value) in zip(self.layers[:2], past_key_values, strict=True):"


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
def test_the_graph_of_the_builder_is_a_loop_over_layers_of_one_class(framework: str, tmp_path: Path) -> None:
    """It adds the results of a layer in the norm of the next one, and has tables of angles."""
    graph = builder_graph(build(), CONFIGS["small"], "float32")
    source = jaxport.from_onnx(graph).to_source(tmp_path / "printed", framework=framework)
    assert LOOP in source.code
    for text in ("x + self.mlp(", "self.cos_cache", "self.sin_cache", "with_rows(past_key, x, starts, "):
        assert text in source.code
    for name in ("Layer", "Attn", "Mlp"):
        assert source.code.count(f"class {name}(") == 1
        assert f"class {name}_" not in source.code
    names = dict(vars(structured.load(tmp_path / "printed")))
    for example in doctest.DocTestParser().get_examples(names["__doc__"]):
        exec(example.source, names)
    assert np.asarray(names["tokens"])[0].tolist() == greedy(build(), [1, 2, 3], 5)


def test_what_is_added_to_scores_is_a_bias_in_all_layers() -> None:
    code = jaxport.from_onnx(export(build()).model).to_source(framework="nnx").code
    assert code.count("        bias: Array,") == 2
    assert "bias=bias, mask=mask" in code
    assert "x_2" not in code


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
