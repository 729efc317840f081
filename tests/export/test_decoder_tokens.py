"""Tokens of decoders in few bits against JAX's: 64 in a row, read again by JAX in one call.

Where a token is another one than JAX's, two were nearly as likely: JAX's logit of the chosen one is less than the largest by at
most what the precision rounds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest
from flax import nnx

import jaxport
from examples.language_model import CONFIGS, PROMPT, build, export, greedy
from jaxport.graph.editing import constant_of, source

CONFIG, NEW = CONFIGS["small"], 64
LENGTHS = {"growing": 0, "static": len(PROMPT) + NEW}


def dequantized(node: ir.Node) -> np.ndarray:
    """The matrix that a MatMulNBits of 4 bits with zero points multiplies by."""
    packed, scales, points = (constant_of(value) for value in node.inputs[1:4])
    assert packed is not None
    assert scales is not None
    assert points is not None
    columns = len(packed)
    levels = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1).astype(np.float32)
    points = points.reshape(columns, -1)
    zeros = np.stack([points & 15, points >> 4], axis=-1).reshape(columns, -1)[:, : packed.shape[1]]
    groups = (levels - zeros[..., None]) * scales.reshape(columns, -1, 1)
    return groups.reshape(columns, -1)[:, : node.attributes["K"].as_int()].T


def chosen_logits(model, tokens, past):
    """JAX's logits where the new tokens were chosen, and those of the tokens that were, in units of the largest."""
    ids = np.array([tokens[:-1]])
    result = jax.jit(lambda ids, past: model(ids, jnp.ones_like(ids), jnp.arange(ids.shape[1])[None], past))(ids, past)
    logits = np.asarray(result["logits"], np.float32)[0, len(PROMPT) - 1 :]
    logits = logits / np.abs(logits).max()
    return logits, np.take_along_axis(logits, np.array(tokens[len(PROMPT) :])[:, None], axis=1)[:, 0]


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_four_bits(cache):
    """Products round their operand to 8 bits."""
    exported = export(build(), cache, precision=jaxport.Int4(group=16))
    products = [node for node in exported.model.graph if node.op_type == "MatMulNBits"]
    assert len(products) == 7 * CONFIG.layers + 1
    model, names = build(), [str(source(node, 1).name).removesuffix(".int4") for node in products]
    graph, state = nnx.split(model)
    parameters = {".".join(map(str, path)): each for path, each in nnx.to_flat_state(state)}
    for name, node in zip(names, products, strict=True):
        matrix = dequantized(node)
        assert np.abs(parameters[name][...] - matrix).max() < 0.2 * np.abs(matrix).max()
        parameters[name][...] = jnp.asarray(matrix)
    tokens = greedy(exported, PROMPT, NEW, LENGTHS[cache])
    empty = np.zeros((1, CONFIG.groups, LENGTHS[cache], CONFIG.head), np.float32)
    past = [{"key": empty, "value": empty} for _ in range(CONFIG.layers)]
    logits, chosen = chosen_logits(nnx.merge(graph, state), tokens, past)
    assert (chosen > logits.max(1) - 0.03).all()
    assert (chosen == logits.max(1)).sum() >= NEW - 6
    assert len({*tokens}) > 5


HEADS, GROUPS, SIZE, HIDDEN, WORDS, DTYPE = 4, 2, 16, 64, 40, jnp.bfloat16


def step_in_bfloat16(kind):
    """A step of one layer as Hugging Face's Llama, or Nemotron: scales beside 1, squared ReLU, half of the vectors rotated."""
    rng = np.random.default_rng(0)
    shapes = {
        "words": (WORDS, HIDDEN),
        "query": (HIDDEN, HEADS * SIZE),
        "output": (HEADS * SIZE, HIDDEN),
        "head": (HIDDEN, WORDS),
    }
    shapes |= (
        dict.fromkeys(("key", "value"), (HIDDEN, GROUPS * SIZE))
        | dict.fromkeys(("gate", "up"), (HIDDEN, 96))
        | {"down": (96, HIDDEN)}
    )
    w = {name: jnp.asarray(rng.normal(size=shape) * shape[0] ** -0.5, DTYPE) for name, shape in shapes.items()}
    scale, turned = jnp.asarray(rng.normal(size=HIDDEN) * 0.1, DTYPE), SIZE if kind == "llama" else SIZE // 2

    def norm(x):
        wide = x.astype(jnp.float32)
        if kind == "llama":
            return (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * (scale + 1)
        wide -= wide.mean(-1, keepdims=True)
        wide *= jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5)
        return (wide * (scale.astype(jnp.float32) + 1)).astype(x.dtype)

    def rotated(x, cos, sin):
        first, rest = x[..., :turned], x[..., turned:]
        a, b = jnp.split(first, 2, axis=-1)
        return jnp.concatenate([first * cos + jnp.concatenate([-b, a], -1) * sin, rest], axis=-1)

    def decode(input_ids, attention_mask, position_ids, past_key_values):
        (past,), (batch, length), total = past_key_values, input_ids.shape, attention_mask.shape[1]
        at = None if past["key"].shape[2] == total - length else total - length
        angles = position_ids[:, None, :, None] * 10000.0 ** -(jnp.arange(turned // 2) * 2.0 / turned)
        tables = [table(jnp.concatenate([angles, angles], -1)).astype(DTYPE) for table in (jnp.cos, jnp.sin)]
        x = w["words"][input_ids] * 8
        y = norm(x)
        heads = {
            name: (y @ w[name]).reshape(batch, length, -1, SIZE).swapaxes(1, 2) for name in ("query", "key", "value")
        }
        heads |= {name: rotated(heads[name], *tables) for name in ("query", "key")}
        present = {
            name: jnp.concatenate([past[name], heads[name]], 2)
            if at is None
            else jax.lax.dynamic_update_slice(past[name], heads[name], (0, 0, at, 0))
            for name in ("key", "value")
        }
        keys, values = (jnp.repeat(present[name], HEADS // GROUPS, axis=1) for name in ("key", "value"))
        seen = jnp.arange(keys.shape[2]) <= jnp.arange(total - length, total)[:, None]
        scores = heads["query"] @ keys.swapaxes(2, 3) * jnp.asarray(SIZE**-0.5, DTYPE)
        scores = scores + jnp.where(seen, 0, jnp.finfo(DTYPE).min).astype(DTYPE)
        mixed = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(DTYPE) @ values
        x = x + mixed.swapaxes(1, 2).reshape(batch, length, -1) @ w["output"]
        y = norm(x)
        inner = jax.nn.silu(y @ w["gate"]) * (y @ w["up"]) if kind == "llama" else jnp.square(jax.nn.relu(y @ w["up"]))
        return {"logits": norm(x + inner @ w["down"]) @ w["head"], "present": [present]}

    return decode


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize("kind", ["llama", "nemotron"])
def test_bfloat16(kind, cache):
    """Each operator rounds, as in JAX: where bits differ, the order of sums does."""
    step, rows = step_in_bfloat16(kind), LENGTHS[cache]
    exported = jaxport.to_onnx(step, jaxport.decoder_inputs(1, GROUPS, SIZE, cache=cache, dtype=DTYPE), target="genai")
    past = [dict.fromkeys(("key", "value"), np.zeros((1, GROUPS, rows, SIZE), DTYPE))]
    tokens, new = list(PROMPT), list(PROMPT)
    for _ in range(NEW):
        positions = np.arange(len(tokens) - len(new), len(tokens))[None]
        result = exported(np.array([new]), np.ones((1, len(tokens)), np.int64), positions, past)
        past, new = result["present"], [int(np.asarray(result["logits"], np.float32)[0, -1].argmax())]
        tokens += new
    logits, chosen = chosen_logits(
        step, tokens, [dict.fromkeys(("key", "value"), np.zeros((1, GROUPS, rows, SIZE), DTYPE))]
    )
    assert (chosen > logits.max(1) - 0.02).all()
    assert (chosen == logits.max(1)).sum() >= NEW - 6
    assert len({*tokens}) > 5
