"""The examples themselves: each traces with symbolic sizes, and its symbolic program computes what the model computes."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export

from examples.models import FRAMEWORKS, MODELS, build, cells, gpt2, llama
from examples.models.example import as_specs, sized
from jaxport.jaxprs.releases import QUICKLY

README = Path(__file__).parents[2] / "examples" / "README.md"

# Every kind of model that users export, and the frameworks in which it must exist at least.
REQUIRED = {
    **dict.fromkeys(("mlp", "cnn", "cnn_train", "resnet50", "vit_b16", "bert_base", "gpt2"), "nnx linen equinox"),
    **dict.fromkeys(("mlp_grad", "mobilenet_v2", "llama", "llama_scan", "unet", "lstm", "bidirectional_gru"), "nnx"),
    **dict.fromkeys(("gpt2_decode", "gpt2_greedy", "moe"), "nnx"),
    **dict.fromkeys(("llama_decode", "llama_greedy", "preprocess"), "jax"),
    "resnet50_train": "linen",
    "cross_attention": "equinox",
}


@functools.cache
def built(name, framework):
    return build(name, framework)


def functional(example):
    """The function of an example without side effects: an NNX module's new state is one more result."""
    if not isinstance(example.fn, nnx.Module):
        return example.fn
    graphdef, state = nnx.split(example.fn)

    def call(*arguments):
        module = nnx.merge(graphdef, state, copy=True)
        return module(*arguments), nnx.state(module, nnx.Not(nnx.RngState))

    return call


@functools.cache
def compiled(name, framework):
    """The same as one compiled function for all tests."""
    return jax.jit(functional(built(name, framework)), compiler_options=QUICKLY)


def has_changed(module, state):
    before = nnx.state(module, nnx.Not(nnx.RngState))
    return any(np.any(a != b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True))


def symbolic(inputs):
    scope = export.SymbolicScope()

    def shaped(leaf):
        dims = (export.symbolic_shape(d, scope=scope)[0] if isinstance(d, str) else d for d in leaf.shape)
        return jax.ShapeDtypeStruct(tuple(dims), leaf.dtype)

    return jax.tree.map(shaped, as_specs(inputs))


def assert_close(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * (1 + np.max(np.abs(want))))


def sample(example, seed=0, sizes=-1):
    return example.sample(np.random.default_rng(seed), example.sizes[sizes])


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "framework"), cells())
def test_the_symbolic_program_computes_what_the_model_computes(name, framework):
    example = built(name, framework)
    assert (example.name, example.framework) == (name, framework)
    names = {dim for leaf in jax.tree.leaves(as_specs(example.inputs)) for dim in leaf.shape if isinstance(dim, str)}
    assert len(example.sizes) >= 2
    assert names, "every example has a named dimension"

    fn = compiled(name, framework)
    program = export.export(jax.jit(functional(example)))(*symbolic(example.inputs))
    run_program = jax.jit(program.call, compiler_options=QUICKLY)
    for sizes in example.sizes:
        assert sizes.keys() == names
        arguments = example.sample(np.random.default_rng(0), sizes)
        expected_specs = jax.tree.map(
            lambda leaf, s=sizes: (sized(leaf.shape, s), leaf.dtype), as_specs(example.inputs)
        )
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), arguments) == expected_specs
        expected = fn(*arguments)
        assert_close(run_program(*arguments), expected)
        if isinstance(example.fn, nnx.Module):
            assert has_changed(example.fn, expected[1]) == (example.options == {"state": "outputs"})


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "framework"), cells())
def test_no_weight_is_at_its_initial_value(name, framework):
    for path, leaf in jax.tree_util.tree_leaves_with_path(built(name, framework).weights):
        assert np.ptp(leaf) > 0, jax.tree_util.keystr(path)


@pytest.mark.parametrize("framework", ["nnx", "linen", "equinox"])
def test_padding_does_not_matter_to_bert(framework):
    fn = compiled("bert_base", framework)
    ids, mask, segments = sample(built("bert_base", framework))
    assert not mask.all()
    (states, pooled), (other_states, other_pooled) = (
        jax.tree.leaves(fn(np.where(mask, ids, padding), mask, segments))[:2] for padding in (0, 7)
    )
    np.testing.assert_allclose(states[mask == 1], other_states[mask == 1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pooled, other_pooled, rtol=1e-5, atol=1e-6)
    assert not np.allclose(states[mask == 0], other_states[mask == 0])


@pytest.mark.parametrize(
    ("name", "framework"), [cell for cell in cells() if cell[0] in ("gpt2", "llama", "llama_scan")]
)
def test_a_token_does_not_matter_to_those_before_it(name, framework):
    fn = compiled(name, framework)
    (ids,) = sample(built(name, framework))
    changed = ids.copy()
    changed[:, -1] = (ids[:, -1] + 1) % 40
    logits, other = (jax.tree.leaves(fn(i))[0] for i in (ids, changed))
    np.testing.assert_allclose(logits[:, :-1], other[:, :-1], rtol=1e-5, atol=1e-5)
    assert not np.allclose(logits[:, -1], other[:, -1])


def test_layers_scanned_and_unrolled_are_equal():
    (ids,) = sample(built("llama", "jax"))
    assert_close(compiled("llama_scan", "jax")(ids), compiled("llama", "jax")(ids))


def test_a_llama_decodes_what_it_computes_at_once():
    (ids,) = sample(built("llama", "jax"))
    step = compiled("llama_decode", "jax")
    cache = jax.tree.map(np.zeros_like, sample(built("llama_decode", "jax"))[2])
    logits = []
    for position, token in enumerate(ids.T):
        last, cache = step(token, np.full(token.shape, position, np.int32), cache)
        logits.append(last)
    assert_close(jnp.stack(logits, axis=1), compiled("llama", "jax")(ids))


@pytest.mark.parametrize("framework", ["nnx", "linen"])
def test_a_gpt2_decodes_what_it_computes_at_once(framework):
    (ids,) = sample(built("gpt2", framework))
    step = compiled("gpt2_decode", framework)
    cache = jax.tree.map(np.zeros_like, sample(built("gpt2_decode", framework))[0])
    logits = []
    for position, token in enumerate(ids.T):
        last, cache = step(cache, token[:, None], np.full(1, position, np.int32))
        logits.append(last)
    assert_close(jnp.stack(logits, axis=1), jax.tree.leaves(compiled("gpt2", framework)(ids))[0])


@pytest.mark.parametrize(
    ("greedy", "model", "framework", "config"),
    [
        ("gpt2_greedy", "gpt2", "nnx", gpt2.CONFIGS["small"]),
        ("llama_greedy", "llama", "jax", llama.CONFIGS["small"]),
    ],
)
def test_greedy_decoding_takes_the_best_token_until_a_text_ends(greedy, model, framework, config):
    (prompt,) = sample(built(greedy, framework))
    ids = np.asarray(compiled(greedy, framework)(prompt))
    length = prompt.shape[1]
    assert ids.shape[1] == length + config.new_tokens
    np.testing.assert_array_equal(ids[:, :length], prompt)
    best = np.argmax(jax.tree.leaves(compiled(model, framework)(ids))[0], axis=-1)
    ended = np.zeros(len(ids), bool)
    for position in range(length, ids.shape[1]):
        expected = np.where(ended, config.end_of_text, best[:, position - 1])
        np.testing.assert_array_equal(ids[:, position], expected)
        ended |= ids[:, position] == config.end_of_text
    assert ended.any(), "the sample has a text that ends"
    assert not ended.all(), "and one that does not"


def test_the_table_has_every_model():
    for name, frameworks in REQUIRED.items():
        assert set(frameworks.split()) <= MODELS[name].keys(), name
    assert MODELS.keys() == REQUIRED.keys()
    assert all(set(frameworks) <= set(FRAMEWORKS) and frameworks for frameworks in MODELS.values())


def test_the_readme_shows_the_table():
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", README.read_text(), flags=re.MULTILINE)
    shown = {
        (name, framework)
        for name, row in rows
        for framework, mark in zip(FRAMEWORKS, row.split("|")[:4], strict=True)
        if mark.strip()
    }
    assert shown == set(cells())
    assert [name for name, _ in rows] == list(MODELS)


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet50", 25_557_032),
        ("mobilenet_v2", 3_504_872),
        ("vit_b16", 86_567_656),
        ("bert_base", 109_482_240),
        ("gpt2", 124_439_808),
        ("llama", 134_515_008),
    ],
)
def test_the_sizes_are_the_published_ones(name, parameters):
    for framework in MODELS[name]:
        assert build(name, framework, "real").parameters == parameters, framework
