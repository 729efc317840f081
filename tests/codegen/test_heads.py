"""Multi-head attention comes back as the layer of Flax that it was, with the parameters under the same paths."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from flax import linen, nnx

import jaxport
from tests.codegen.structured import check, load
from tests.codegen.test_structured import sampled

SIZES = {"B": 3, "T": 5, "S": 7}


class SelfAttention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs) for _ in range(3)])

    def __call__(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Causal(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return x + self.attention(x, mask=nnx.make_causal_mask(x[..., 0]))


class Cross(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        sizes = {"qkv_features": 16, "out_features": 12, "in_kv_features": 6}
        self.attention = nnx.MultiHeadAttention(2, 8, **sizes, decode=False, rngs=rngs)

    def __call__(self, x, memory):
        return self.attention(x, memory)


class Masked(SelfAttention):
    def __call__(self, x, kept):
        for layer in self.layers:
            x = x + layer(x, mask=nnx.make_attention_mask(kept, kept))
        return x


class MaskedAndCausal(SelfAttention):
    def __call__(self, x, kept):
        mask = nnx.combine_masks(nnx.make_attention_mask(kept, kept), nnx.make_causal_mask(kept))
        for layer in self.layers:
            x = x + layer(x, mask=mask)
        return x


X, MEMORY = ("B", "T", 8), ("B", "S", 6)
MODELS = {
    "in a loop": (SelfAttention, [X], "nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs) for _ in range(3)"),
    "causal": (Causal, [X], "self.attention(x, mask=jnp.tri(T, dtype=bool))"),
    "masked": (Masked, [X, ("B", "T")], "layer(x, mask=mask)"),
    "masked and causal": (
        MaskedAndCausal,
        [X, ("B", "T")],
        "layer(x, mask=jnp.logical_and(mask, jnp.tri(T, dtype=bool)))",
    ),
    "to another sequence": (Cross, [X, MEMORY], "qkv_features=16, out_features=12, in_kv_features=6"),
}


def parameters(model: nnx.Module) -> dict[str, tuple[int, ...]]:
    return {".".join(map(str, path)): leaf.shape for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_flax_has_its_layer_again(name: str, tmp_path: Path) -> None:
    kind, inputs, text = MODELS[name]
    model = kind(nnx.Rngs(0))
    file = jaxport.to_onnx(model, inputs).model
    code = check(file, sampled(jaxport.from_onnx(file), SIZES), tmp_path, "nnx")
    assert text in code
    assert parameters(load(tmp_path).load()) == parameters(model)


def test_a_model_of_linen_is_one_of_nnx(tmp_path: Path) -> None:
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(3)(linen.MultiHeadDotProductAttention(2, name="attention")(x))

    x = np.random.default_rng(0).standard_normal((3, 5, 8)).astype(np.float32)
    variables = Model().init(jax.random.key(0), x)
    file = jaxport.to_onnx(lambda x: Model().apply(variables, x), [X]).model
    assert "self.attention = nnx.MultiHeadAttention(2, 8, decode=False" in check(file, {"x": x}, tmp_path, "nnx")
    kernels = load(tmp_path).load().attention
    expected = variables["params"]["attention"]
    np.testing.assert_array_equal(kernels.query.kernel[...], expected["query"]["kernel"])
    np.testing.assert_array_equal(kernels.out.kernel[...], expected["out"]["kernel"])


class Sharper(nnx.MultiHeadAttention):
    """Queries that are multiplied before: no layer of Flax does that."""

    def __call__(self, x):
        query, key, value = 2 * self.query(x), self.key(x), self.value(x)
        return self.out(jax.nn.dot_product_attention(query, key, value))


def test_an_attention_of_another_scale_is_a_module(tmp_path: Path) -> None:
    file = jaxport.to_onnx(Sharper(2, 8, decode=False, rngs=nnx.Rngs(0)), [X]).model
    code = check(file, sampled(jaxport.from_onnx(file), SIZES), tmp_path, "nnx")
    assert "nnx.MultiHeadAttention(" not in code
    assert "nn.dot_product_attention(" in code


class Windowed(nnx.Module):
    """Queries attend within windows of four positions, which go to the batch: no layer of Flax does that."""

    def __init__(self, rngs: nnx.Rngs):
        self.query, self.key, self.value, self.out = (nnx.Linear(8, 8, rngs=rngs) for _ in range(4))

    def __call__(self, x):
        query, key, value = (part(x).reshape(-1, 4, 2, 4) for part in (self.query, self.key, self.value))
        return self.out(jax.nn.dot_product_attention(query, key, value).reshape(-1, 4, 8))


class WindowedBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.attention = Windowed(rngs)

    def __call__(self, x):
        return jnp.tanh(self.attention(x))


def test_an_attention_within_windows_is_a_module(tmp_path: Path) -> None:
    file = jaxport.to_onnx(WindowedBlock(nnx.Rngs(0)), [("B", 16, 8)]).model
    code = check(file, sampled(jaxport.from_onnx(file), SIZES), tmp_path, "nnx")
    assert "nnx.MultiHeadAttention(" not in code
    assert "nn.dot_product_attention(" in code


def test_files_of_pytorch_keep_the_projections_that_a_state_dict_has(tmp_path: Path) -> None:
    file: onnx.ModelProto = jaxport.to_onnx(Causal(nnx.Rngs(0)), [X]).model
    file.producer_name = "pytorch"
    code = check(file, sampled(jaxport.from_onnx(file), SIZES), tmp_path, "nnx")
    assert "self.query = nnx.Linear(8, 8" in code
    assert "def load_pytorch(" in code


def test_frameworks_without_the_layer_have_its_projections(tmp_path: Path) -> None:
    file = jaxport.to_onnx(Causal(nnx.Rngs(0)), [X]).model
    code = check(file, sampled(jaxport.from_onnx(file), SIZES), tmp_path, "equinox")
    assert "self.query = Linear(8, 8" in code


class Capped(nnx.Module):
    """Scores with a soft cap: products with the heads in front, whose transposes an export moves around the reshapes."""

    def __init__(self, rngs: nnx.Rngs):
        self.query, self.key, self.value, self.out = (nnx.Linear(8, 8, rngs=rngs) for _ in range(4))

    def __call__(self, x):
        query, key, value = (part(x).reshape(*x.shape[:2], 2, 4) for part in (self.query, self.key, self.value))
        scores = 20 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", query, key) / 40)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)
        return x + self.out(mixed.reshape(x.shape))


class CappedModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([Capped(rngs) for _ in range(2)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
def test_axes_that_are_moved_there_and_back_stay(framework: str, tmp_path: Path) -> None:
    file = jaxport.to_onnx(CappedModel(nnx.Rngs(0)), [X]).model
    code = check(file, sampled(jaxport.from_onnx(file), SIZES), tmp_path, framework)
    assert "self.query(x).reshape(B, T, 2, 4)" in code
    assert "transpose" not in code.partition("class Capped")[2].partition("def load")[0]
    assert code.count("class Capped(") == 1
    assert "Capped_2" not in code
