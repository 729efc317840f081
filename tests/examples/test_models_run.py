"""The examples themselves: each traces with symbolic sizes, and its symbolic program computes what the model computes."""

from __future__ import annotations

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


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def functional(example):
    """The function of an example without side effects: an NNX module's new state is one more result."""
    if not isinstance(example.fn, nnx.Module):
        return example.fn
    graphdef, state = nnx.split(example.fn)

    def call(*arguments):
        module = nnx.merge(graphdef, state, copy=True)
        return module(*arguments), nnx.state(module, nnx.Not(nnx.RngState))

    return call


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


@pytest.mark.parametrize(("name", "framework"), cells())
def test_the_symbolic_program_computes_what_the_model_computes(name, framework):
    example = build(name, framework)
    assert (example.name, example.framework) == (name, framework)
    names = {dim for leaf in jax.tree.leaves(as_specs(example.inputs)) for dim in leaf.shape if isinstance(dim, str)}
    assert len(example.sizes) >= 2
    assert names, "every example has a named dimension"

    fn = functional(example)
    program = export.export(jax.jit(fn))(*symbolic(example.inputs))
    for sizes in example.sizes:
        assert sizes.keys() == names
        arguments = example.sample(np.random.default_rng(0), sizes)
        expected_specs = jax.tree.map(
            lambda leaf, s=sizes: (sized(leaf.shape, s), leaf.dtype), as_specs(example.inputs)
        )
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), arguments) == expected_specs
        assert_close(jax.jit(program.call)(*arguments), jax.jit(fn)(*arguments))


@pytest.mark.parametrize(("name", "framework"), cells())
def test_no_weight_is_at_its_initial_value(name, framework):
    for path, leaf in jax.tree_util.tree_leaves_with_path(build(name, framework).weights):
        assert np.ptp(leaf) > 0, jax.tree_util.keystr(path)


@pytest.mark.parametrize("name", [name for name, framework in cells() if framework == "nnx"])
def test_modules_change_their_state_only_in_train_mode(name):
    example = build(name, "nnx")
    if not isinstance(example.fn, nnx.Module):
        pytest.skip("the function calls the module in eval mode itself")
    before = nnx.state(example.fn, nnx.Not(nnx.RngState))
    _, after = jax.jit(functional(example))(*sample(example))
    changed = [np.any(a != b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)]
    assert any(changed) == (example.options == {"state": "outputs"})


@pytest.mark.parametrize("framework", ["nnx", "linen", "equinox"])
def test_padding_does_not_matter_to_bert(framework):
    example = build("bert_base", framework)
    fn = jax.jit(functional(example))
    ids, mask, segments = sample(example)
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
    example = build(name, framework)
    fn = jax.jit(functional(example))
    (ids,) = sample(example)
    changed = ids.copy()
    changed[:, -1] = (ids[:, -1] + 1) % 40
    logits, other = (jax.tree.leaves(fn(i))[0] for i in (ids, changed))
    np.testing.assert_allclose(logits[:, :-1], other[:, :-1], rtol=1e-5, atol=1e-5)
    assert not np.allclose(logits[:, -1], other[:, -1])


def test_layers_scanned_and_unrolled_are_equal():
    unrolled, scanned = build("llama", "jax"), build("llama_scan", "jax")
    (ids,) = sample(unrolled)
    assert_close(jax.jit(scanned.fn)(ids), jax.jit(unrolled.fn)(ids))


def test_a_llama_decodes_what_it_computes_at_once():
    config = llama.CONFIGS["small"]
    ids = sample(build("llama", "jax"))[0]
    batch, length = ids.shape
    rows = jnp.zeros((config.layers, batch, length, config.groups, config.head))
    cache = {"key": rows, "value": rows}
    step = jax.jit(build("llama_decode", "jax").fn)
    logits = []
    for i in range(length):
        last, cache = step(ids[:, i], np.full(batch, i, np.int32), cache)
        logits.append(last)
    assert_close(jnp.stack(logits, axis=1), jax.jit(build("llama", "jax").fn)(ids))


@pytest.mark.parametrize("framework", ["nnx", "linen"])
def test_a_gpt2_decodes_what_it_computes_at_once(framework):
    config = gpt2.CONFIGS["small"]
    example = build("gpt2_decode", framework)
    if framework == "nnx":
        at_once = functional(build("gpt2", "nnx"))
    else:
        at_once = lambda ids: (gpt2.LinenGpt2(config).apply({"params": example.weights}, ids),)
    ids = sample(build("gpt2", framework))[0]
    cache = jax.tree.map(jnp.zeros_like, sample(example)[0])
    step = jax.jit(example.fn)
    logits = []
    for i in range(ids.shape[1]):
        last, cache = step(cache, ids[:, i : i + 1], np.full(1, i, np.int32))
        logits.append(last)
    assert_close(jnp.stack(logits, axis=1), jax.jit(at_once)(ids)[0])


@pytest.mark.parametrize(
    ("greedy", "model", "framework", "config"),
    [
        ("gpt2_greedy", "gpt2", "nnx", gpt2.CONFIGS["small"]),
        ("llama_greedy", "llama", "jax", llama.CONFIGS["small"]),
    ],
)
def test_greedy_decoding_takes_the_best_token_until_a_text_ends(greedy, model, framework, config):
    example = build(greedy, framework)
    (prompt,) = sample(example)
    ids = np.asarray(jax.jit(example.fn)(prompt))
    length = prompt.shape[1]
    assert ids.shape[1] == length + config.new_tokens
    np.testing.assert_array_equal(ids[:, :length], prompt)
    best = np.argmax(jax.tree.leaves(jax.jit(functional(build(model, framework)))(ids))[0], axis=-1)
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
        for framework, mark in zip(FRAMEWORKS, row.split("|")[1:5], strict=True)
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
