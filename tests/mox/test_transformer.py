"""What a user does with a model, in each framework: trace, look, select, replace, adapt, train, capture, export."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from jaxport.mox import lora, merge_lora
from tests.blocks.checks import assert_same
from tests.mox.models import CASES, TOKENS, WIDTH


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return CASES[request.param]()


@pytest.fixture(scope="module")
def mox(case):
    return jaxport.make_mox(case.fn)(*case.args)


@pytest.fixture(scope="module")
def adapted(case, mox):
    return mox.sub(case.dense, lora(rank=2), expect=case.count)


def trained(mox):
    """Other values for the adapters."""
    numbers = np.random.default_rng(1)
    noise = lambda value: jnp.asarray(numbers.normal(size=value.shape), value.dtype)
    return {path: noise(v) / 4 if "lora" in path else v for path, v in mox.params.items()}


def test_it_computes_what_the_model_computes(case, mox):
    assert_same(mox(*case.args), case.fn(*case.args))
    assert_same(jax.jit(mox)(*case.args), jax.jit(case.fn)(*case.args))


def test_its_tree_shows_modules_and_equations(case, mox):
    text = str(mox)
    assert "├─ jit[relu]" in text or "└─ jit[relu]" in text
    assert "head: " in text
    assert "dot_general" in text


def test_each_dense_layer_is_found_once(case, mox):
    found = mox.select(case.dense)
    assert found.count() == len(set(found.paths())) == case.count


def test_the_activation_is_replaced_in_value_and_gradient(case, mox):
    edited = mox.sub('//pjit[@name="relu"]', jax.nn.gelu, expect=2)
    loss = lambda call: lambda *args: (call(*args[:-1], args[-1]) ** 2).sum()
    original = jax.nn.relu
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.nn, "relu", jax.nn.gelu)
        patch.setattr("flax.linen.relu", jax.nn.gelu)
        wanted, gradient = jax.jit(jax.value_and_grad(loss(case.fn), argnums=len(case.args) - 1))(*case.args)
    assert jax.nn.relu is original
    value, found = jax.jit(jax.value_and_grad(loss(edited), argnums=len(case.args) - 1))(*case.args)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=1e-5)


def test_fresh_adapters_change_nothing(case, mox, adapted):
    assert_same(adapted(*case.args), mox(*case.args))
    new = set(adapted.params) - set(mox.params)
    assert len(new) == 2 * case.count
    assert {path.rpartition(".")[2] for path in new} == {"lora_a", "lora_b"}
    assert all(path.rpartition(".")[0] in mox.select(case.dense).paths() for path in new)


def test_trained_adapters_are_an_update_of_the_weights(case, mox, adapted):
    params = trained(adapted)
    if mox.params:
        merged = mox.with_params(merge_lora(adapted, params))
        wanted = merged(*case.args)
    else:
        variables, x = case.args
        merged = merge_lora(adapted, params, {"variables": variables})
        leaves = {
            f"variables.{'.'.join(k.key for k in keys)}": keys for keys, _ in jax.tree.leaves_with_path(variables)
        }
        wanted = case.fn(
            jax.tree_util.tree_map_with_path(
                lambda keys, v: merged.get(f"variables.{'.'.join(k.key for k in keys)}", v), variables
            ),
            x,
        )
        assert set(merged) <= set(leaves)
    result = adapted.apply(params, *case.args)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(np.asarray(result - mox(*case.args))).max() > 1e-2


def test_adapters_are_trained_under_every_transformation(case, adapted):
    params = trained(adapted)
    loss = lambda p: (adapted.apply(p, *case.args) ** 2).mean()
    plain = jax.jit(jax.grad(loss))(params)
    assert all(np.abs(np.asarray(g)).max() > 0 for path, g in plain.items() if "lora" in path and "key" not in path)
    mapped = jax.jit(jax.vmap(jax.grad(loss)))(jax.tree.map(lambda v: jnp.stack([v, v]), params))
    for path, gradient in plain.items():
        np.testing.assert_allclose(mapped[path][1], gradient, rtol=1e-3, atol=1e-4)


def test_activations_are_captured_by_path(case, mox):
    query = "//*[contains(name(), 'ttention')]"
    captured = mox.capture(query)(*case.args)
    assert list(captured) == mox.select(query).paths()
    assert {value.shape for value in captured.values()} == {(2, TOKENS, WIDTH)}
    assert not np.array_equal(*captured.values())


def test_an_edited_model_exports(case, adapted):
    model = adapted.with_params(trained(adapted) if adapted.params else {})
    exported = jaxport.to_onnx(model, [jax.tree.map(jnp.asarray, arg) for arg in case.args])
    assert exported.verify().ok
    assert any("lora_a" in name for name in exported.model.graph.initializers)
