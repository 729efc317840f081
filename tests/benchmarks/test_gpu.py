"""The models in Flax of `benchmarks.gpu` take the names of a state dict, and the page is made of what was measured."""

from __future__ import annotations

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks.gpu.flax_models import loaded
from benchmarks.gpu.page import page

CONFIG = SimpleNamespace(
    hidden_size=8, num_hidden_layers=1, num_attention_heads=2, n_positions=6, vocab_size=5, layer_norm_epsilon=1e-5
)
SHAPES = {
    "wte.weight": (5, 8), "wpe.weight": (6, 8), "ln_f.weight": (8,), "ln_f.bias": (8,), "h.0.ln_1.weight": (8,),
    "h.0.ln_1.bias": (8,), "h.0.ln_2.weight": (8,), "h.0.ln_2.bias": (8,), "h.0.attn.c_attn.weight": (8, 24),
    "h.0.attn.c_attn.bias": (24,), "h.0.attn.c_proj.weight": (8, 8), "h.0.attn.c_proj.bias": (8,),
    "h.0.mlp.c_fc.weight": (8, 32), "h.0.mlp.c_fc.bias": (32,), "h.0.mlp.c_proj.weight": (32, 8), "h.0.mlp.c_proj.bias": (8,),
}  # fmt: skip


def test_a_model_takes_a_state_dict():
    generator = np.random.default_rng(0)
    state = {f"transformer.{name}": generator.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    model = loaded("gpt2", CONFIG, state, jnp.float32)
    assert len(nnx.to_flat_state(nnx.state(model))) == len(state)
    assert model(jnp.array([[1, 2, 3]])).shape == (1, 3, 5)
    state["transformer.wte.weight"] = np.zeros((4, 8), np.float32)
    with pytest.raises(ValueError, match="is of shape"):
        loaded("gpt2", CONFIG, state, jnp.float32)


def test_what_was_not_measured_is_a_dash():
    found = {
        "model": "Small", "dtype": "float32", "device": "one GPU", "versions": {"jax": "1"}, "inputs": [[2, 3]],
        "parameters": 2e6, "problems": {}, "ways": {"Flax": {"ms": 2.0}, "imported": {"ms": 1.0, "error": 1e-3}},
    }  # fmt: skip
    text = page([found])
    assert "| Small | float32 | – | – | 2.00 | 1.00 | – | – | 0.50 | – | – | – |" in text
    assert "| Small | float32 | – | – | – | 1.0e-03 | – | – |" in text
    assert "its gradient" not in text
