"""DoRA and IA³: the same values at first, training, merge, names, files, stacks, quantized layers."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport.mox import dora, ia3, load_adapter, lora, merge_lora, quantize, save_adapter, set_adapter, write_back
from tests.mox.models import eqx_case, nnx_case
from tests.mox.test_modules import STACKS

pytestmark = pytest.mark.sampled(2)

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)
EDITS = {
    "lora": lora,
    "dora": dora,
    "ia3": lambda rank, **rest: ia3(**rest),
    "ia3 of inputs": lambda rank, **rest: ia3(inputs=True, **rest),
}
EDIT = pytest.mark.parametrize("name", EDITS)


def moved(mox, base):
    """The parameters with those of the adapters changed."""
    numbers = np.random.default_rng(1)
    return {
        path: value if path in base.params else value + jnp.asarray(0.3 * numbers.normal(size=value.shape), value.dtype)
        for path, value in mox.params.items()
    }


@EDIT
@pytest.mark.parametrize("case", [nnx_case, eqx_case])
def test_it_begins_as_the_model_learns_and_merges(name, case):
    case = case()
    mox = jaxport.make_mox(case.fn)(*case.args)
    adapted = mox.sub(case.dense, EDITS[name](2), expect=case.count)
    np.testing.assert_allclose(adapted(*case.args), mox(*case.args), rtol=1e-4, atol=1e-5)
    gradient = jax.grad(lambda p: jnp.square(adapted.apply(p, *case.args)).sum())(adapted.params)
    assert all(jnp.isfinite(value).all() for value in gradient.values())
    new = {path for path in adapted.params if path not in mox.params and not path.endswith("lora_a")}
    assert all(jnp.abs(gradient[path]).max() > 0 for path in new if "key" not in path)
    params = moved(adapted, mox)
    merged = mox.with_params(merge_lora(adapted, params))
    wanted = adapted.apply(params, *case.args)
    np.testing.assert_allclose(merged(*case.args), wanted, rtol=1e-3, atol=1e-4)
    assert np.abs(np.asarray(wanted - mox(*case.args))).max() > 1e-2


def test_dora_is_what_the_paper_says():
    linear = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    adapted = jaxport.make_mox(linear)(X).sub("//Linear", dora(2, alpha=4))
    params = moved(adapted, jaxport.make_mox(linear)(X))
    v = params["kernel"] + 2 * params["lora_a"] @ params["lora_b"]
    wanted = X @ (params["lora_m"] * v / jnp.linalg.norm(v, axis=0)) + params["bias"]
    np.testing.assert_allclose(adapted.apply(params, X), wanted, rtol=1e-5, atol=1e-6)


def test_a_column_of_zeros_stays_one():
    linear = eqx.nn.Linear(4, 3, key=jax.random.key(0))
    linear = eqx.tree_at(lambda module: module.weight, linear, linear.weight.at[1].set(0))
    mox = jaxport.make_mox(linear)(X[0])
    adapted = mox.sub("//Linear", dora(2))
    np.testing.assert_allclose(adapted(X[0]), mox(X[0]), rtol=1e-5)
    gradient = jax.grad(lambda p: adapted.apply(p, X[0]).sum())(adapted.params)
    assert all(jnp.isfinite(value).all() for value in gradient.values())


@EDIT
@pytest.mark.parametrize("stack", STACKS)
def test_stacked_layers_have_their_own_adapters(name, stack):
    make, query = STACKS[stack]
    mox = jaxport.make_mox(make())(X)
    adapted = mox.sub(query, EDITS[name](2))
    np.testing.assert_allclose(adapted(X), mox(X), rtol=1e-5, atol=1e-6)
    params = moved(adapted, mox)
    merged = mox.with_params(merge_lora(adapted, params))
    np.testing.assert_allclose(merged(X), adapted.apply(params, X), rtol=1e-3, atol=1e-4)


@EDIT
def test_named_ones_are_switched_and_kept_in_files(name, tmp_path):
    mox = jaxport.make_mox(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))(X)
    both = mox.sub("//Linear", EDITS[name](2, name="one")).sub("//Linear", EDITS[name](2, name="two"))
    both = both.with_params(moved(both, mox))
    np.testing.assert_allclose(set_adapter(both)(X), mox(X), rtol=1e-5, atol=1e-6)
    one = set_adapter(both, "one")
    assert np.abs(np.asarray(one(X) - mox(X))).max() > 1e-2
    save_adapter(both, "one", tmp_path / "one.safetensors")
    again = load_adapter(mox, tmp_path / "one.safetensors")
    np.testing.assert_allclose(again(X), one(X), rtol=1e-5, atol=1e-6)
    merged = mox.with_params(merge_lora(again))
    np.testing.assert_allclose(merged(X), again(X), rtol=1e-3, atol=1e-5)


@EDIT
def test_quantized_layers_are_adapted(name):
    mox = jaxport.make_mox(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))(X)
    small = mox.sub("//Linear", quantize())
    adapted = small.sub("//Linear", EDITS[name](2))
    np.testing.assert_allclose(adapted(X), small(X), rtol=1e-5, atol=1e-6)
    params = moved(adapted, small)
    merged = mox.with_params(merge_lora(adapted, params))
    np.testing.assert_allclose(merged(X), adapted.apply(params, X), rtol=1e-3, atol=1e-4)


@EDIT
def test_it_is_written_back_and_exported(name):
    model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    mox = jaxport.make_mox(model)(X)
    adapted = mox.sub("//Linear", EDITS[name](2))
    adapted = adapted.with_params(moved(adapted, mox))
    np.testing.assert_allclose(write_back(model, merge_lora(adapted))(X), adapted(X), rtol=1e-4, atol=1e-5)
    assert jaxport.to_onnx(adapted, [X]).verify().ok


def test_several_of_which_one_scales_are_not_merged():
    mox = jaxport.make_mox(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))(X)
    both = mox.sub("//Linear", dora(2, name="one")).sub("//Linear", lora(2, name="two"))
    with pytest.raises(jaxport.InvalidArgument, match="cannot be merged"):
        merge_lora(both)


def test_what_is_not_linear_in_its_weight_is_scaled_and_not_merged():
    class Activated(nnx.Module):
        def __init__(self):
            self.kernel = nnx.Param(jnp.ones((4, 3)))

        def __call__(self, x):
            return jnp.tanh(x @ self.kernel)

    mox = jaxport.make_mox(Activated())(X)
    adapted = mox.sub("//Activated", ia3())
    doubled = adapted.apply({**adapted.params, "ia3_scale": 2 * jnp.ones(3)}, X)
    np.testing.assert_allclose(doubled, 2 * mox(X), rtol=1e-6)
    with pytest.raises(jaxport.InvalidArgument, match="cannot be merged"):
        merge_lora(adapted)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda: dora(0), "rank=0 is not a valid rank"),
        (lambda: dora(2, name="a b"), "is not a valid name for an adapter"),
        (lambda: ia3(name="a b"), "is not a valid name for an adapter"),
        (lambda: jaxport.make_mox(jnp.tanh)(X).sub("//tanh", dora(2)), "has no weight to adapt"),
        (lambda: jaxport.make_mox(eqx.nn.Conv1d(4, 3, 2, key=jax.random.key(0)))(jnp.ones((4, 5))).sub("//Conv1d", ia3(inputs=True)), "the argument of .* cannot be multiplied"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(edit, message):
    with pytest.raises(jaxport.InvalidArgument, match=message):
        edit()
