"""Language models with other inputs and outputs than ids and logits: embeddings, hidden states, further ones, and adapters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from flax import nnx

import jaxport
from examples.language_model import CONFIGS, PROMPT, build, export, greedy
from jaxport.export.generation.decoders import Decoder

CONFIG = CONFIGS["small"]
SIZES = [
    {"batch_size": 2, "sequence_length": 4, "total_sequence_length": 4},
    {"batch_size": 1, "sequence_length": 2, "total_sequence_length": 7},
]
LENGTHS = {"growing": {}, "static": {"max_sequence_length": 9}}


def inputs(**options):
    return jaxport.decoder_inputs(CONFIG.layers, CONFIG.groups, CONFIG.head, **options)


def from_embeddings(model):
    """The step behind the embedding of its tokens."""

    def step(inputs_embeds, attention_mask, position_ids, past_key_values):
        other = nnx.clone(model)
        other.words = lambda _: inputs_embeds
        return other(jnp.zeros(inputs_embeds.shape[:2], np.int32), attention_mask, position_ids, past_key_values)

    return step


def refusal(fn, declared, **options):
    with pytest.raises(jaxport.InvalidArgument) as caught:
        jaxport.to_onnx(fn, declared, target="genai", **options)
    return str(caught.value)


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_embeddings_in_place_of_ids(cache):
    model = build()
    exported = jaxport.to_onnx(from_embeddings(model), inputs(cache=cache, embeddings=CONFIG.hidden), target="genai")
    assert exported.input_names[0] == "inputs_embeds"
    assert Decoder.of(exported.model, exported.inputs, exported.outputs).static == (cache == "static")
    assert "GroupQueryAttention" in {node.op_type for node in exported.model.graph}
    assert exported.verify(sizes=[sizes | LENGTHS[cache] for sizes in SIZES]).ok
    words = np.asarray(model.words.embedding[...])
    rows = 64 if cache == "static" else 0
    expected = greedy(export(model, cache), PROMPT, 6, rows)
    assert greedy(lambda ids, *more: exported(words[ids], *more), PROMPT, 6, rows) == expected


def test_embeddings_of_another_shape_are_refused():
    declared = inputs(embeddings=4)
    flat = jax.ShapeDtypeStruct(declared[1].shape, np.float32)

    def step(inputs_embeds, attention_mask, position_ids, past_key_values):
        return {"logits": inputs_embeds[..., None], "present": past_key_values}

    assert "the input `inputs_embeds` is float32" in refusal(step, [flat, *declared[1:]])


def with_hidden_states(model, *, logits):
    def step(input_ids, attention_mask, position_ids, past_key_values):
        other, seen = nnx.clone(model), []
        head, other.head = other.head, lambda x: (seen.append(x), x)[1]
        result = other(input_ids, attention_mask, position_ids, past_key_values)
        more = {"logits": head(seen[0])} if logits else {}
        return {**more, "hidden_states": seen[0], "present": result["present"]}

    return step


@pytest.mark.parametrize("logits", [True, False])
def test_hidden_states(logits):
    exported = jaxport.to_onnx(with_hidden_states(build(), logits=logits), inputs(), target="genai")
    assert set(exported.output_names) >= {*["logits"] * logits, "hidden_states"}
    assert exported.verify(sizes=SIZES).ok


@pytest.mark.parametrize("kind", ["embeddings", "hidden states"])
def test_a_part_of_a_larger_model_is_no_folder(kind, tmp_path):
    if kind == "embeddings":
        exported = jaxport.to_onnx(from_embeddings(build()), inputs(embeddings=CONFIG.hidden), target="genai")
    else:
        exported = jaxport.to_onnx(with_hidden_states(build(), logits=False), inputs(), target="genai")
    with pytest.raises(jaxport.InvalidArgument, match=r"the step (takes `inputs_embeds`|returns no `logits`)"):
        exported.save_genai(tmp_path / "m", context_length=64, eos_token_id=0)
    assert not (tmp_path / "m").exists()


def test_further_inputs_and_outputs():
    model = build()

    def step(input_ids, attention_mask, position_ids, past_key_values, temperature):
        result = model(input_ids, attention_mask, position_ids, past_key_values)
        return {**result, "logits": result["logits"] / temperature, "best": result["logits"].argmax(-1)}

    exported = jaxport.to_onnx(step, [*inputs(), ()], target="genai")
    assert exported.input_names[-1] == "temperature"
    assert "best" in exported.output_names
    assert exported.verify(sizes=SIZES).ok


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("positions", "the input `positions` is unknown to callers; is it `position_ids`?"),
        ("past_key_values", None),
    ],
)
def test_misspelled_names_are_refused(name, text):
    model, declared = build(), inputs()
    if text is not None:

        def step(input_ids, attention_mask, positions, past_key_values):
            return model(input_ids, attention_mask, positions, past_key_values)

        assert text in refusal(step, declared)
        return

    def returned(input_ids, attention_mask, position_ids, past_key_values):
        result = model(input_ids, attention_mask, position_ids, past_key_values)
        return {**result, "present": [*result["present"], {"key": result["logits"]}]}

    assert f"the output `present.{CONFIG.layers}.key` is unknown to callers" in refusal(returned, declared)


def test_adapters_are_swapped_without_a_new_file(tmp_path):
    """Their weights are inputs with defaults: a run without an adapter has those."""
    model = build()
    width = CONFIG.hidden
    model.layers[0].gate = nnx.LoRALinear(width, CONFIG.mlp, lora_rank=2, use_bias=False, rngs=nnx.Rngs(0))
    exported = export(model, weights="*lora_*")
    weights = [port.name for port in exported.inputs if port.weight]
    assert len(weights) == 2
    path = tmp_path / "m.onnx"
    exported.save(path)
    session = onnxruntime.InferenceSession(path)
    assert {value.name for value in session.get_overridable_initializers()} == {*weights}
    assert [value.name for value in session.get_inputs()] == exported.input_names

    rng = np.random.default_rng(0)
    changed = {name: rng.normal(size=exported.defaults[name].shape).astype(np.float32) for name in weights}
    adapter = onnxruntime.AdapterFormat()
    adapter.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in changed.items()})
    adapter.export_adapter(str(tmp_path / "m.onnx_adapter"))
    loaded = onnxruntime.LoraAdapter()
    loaded.Load(str(tmp_path / "m.onnx_adapter"))
    options = onnxruntime.RunOptions()
    options.add_active_adapter(loaded)

    empty = np.zeros((1, CONFIG.groups, 0, CONFIG.head), np.float32)
    past = [{"key": empty, "value": empty} for _ in range(CONFIG.layers)]
    arguments = (np.array([PROMPT]), np.ones((1, 4), np.int64), np.arange(4)[None], past)
    feeds = exported.flatten(arguments, {})
    plain, adapted = (session.run(["logits"], feeds, run_options=run)[0] for run in (None, options))
    np.testing.assert_allclose(plain, model(*arguments)["logits"], rtol=1e-3, atol=1e-4)
    lora = model.layers[0].gate.lora
    lora.lora_a[...], lora.lora_b[...] = (changed[name] for name in sorted(weights))
    np.testing.assert_allclose(adapted, model(*arguments)["logits"], rtol=1e-3, atol=1e-4)
    assert np.abs(plain - adapted).max() > 0.01
    assert exported.verify(sizes=SIZES[:1]).ok
    assert jaxport.from_onnx(path).verify().ok


class ChosenAdapters(nnx.Module):
    """A linear layer with an adapter of its own for each sequence, which the step chooses before."""

    def __init__(self, linear, count):
        rng = np.random.default_rng(0)
        shapes = {"down": (count, CONFIG.hidden, 2), "up": (count, 2, CONFIG.mlp)}
        self.linear = linear
        self.down, self.up = (nnx.Param(jnp.asarray(rng.normal(size=shape), jnp.float32)) for shape in shapes.values())

    def __call__(self, x, chosen):
        return self.linear(x) + jnp.einsum("bti,bir,bro->bto", x, self.down[chosen], self.up[chosen])


def test_sequences_of_a_batch_have_adapters_of_their_own():
    model = build()
    adapters = ChosenAdapters(model.layers[0].gate, 3)

    def step(input_ids, attention_mask, position_ids, past_key_values, adapter_ids):
        other = nnx.clone(model)
        other.layers[0].gate = lambda x: adapters(x, adapter_ids)
        return other(input_ids, attention_mask, position_ids, past_key_values)

    declared = inputs()
    ids = jax.ShapeDtypeStruct(declared[0].shape[:1], np.int32)
    exported = jaxport.to_onnx(step, [*declared, ids], target="genai")
    assert exported.input_names[-1] == "adapter_ids"
    assert "GroupQueryAttention" in {node.op_type for node in exported.model.graph}
    empty = np.zeros((3, CONFIG.groups, 0, CONFIG.head), np.float32)
    past = [{"key": empty, "value": empty} for _ in range(CONFIG.layers)]
    arguments = (np.array([PROMPT] * 3), np.ones((3, 4), np.int64), np.arange(4)[None].repeat(3, 0), past)
    found = exported(*arguments, np.array([2, 0, 1], np.int32))["logits"]
    np.testing.assert_allclose(found, step(*arguments, jnp.array([2, 0, 1]))["logits"], rtol=1e-3, atol=1e-4)
    assert np.abs(found[0] - found[1]).max() > 0.01


def test_heads_of_different_sizes_are_refused():
    """onnxruntime-genai allocates all caches by the sizes of one layer."""

    def step(input_ids, attention_mask, past_key_values):
        present = [
            {
                side: jnp.concatenate([rows, jnp.zeros((*rows.shape[:2], input_ids.shape[1], rows.shape[3]))], 2)
                for side, rows in past.items()
            }
            for past in past_key_values
        ]
        return {"logits": jax.nn.one_hot(input_ids, 5) * attention_mask.sum(), "present": present}

    ids, mask, caches = inputs(position_ids=False)
    wider = {
        side: jax.ShapeDtypeStruct((*rows.shape[:3], 2 * CONFIG.head), rows.dtype) for side, rows in caches[1].items()
    }
    text = refusal(step, [ids, mask, [caches[0], wider]])
    assert "`past_key_values.1.key` is float32" in text
    assert "where `past_key_values.0.key` is float32" in text
    assert jaxport.to_onnx(step, [ids, mask, [caches[0], wider]], target="onnxruntime").verify(sizes=SIZES).ok


def test_a_step_without_attention_is_refused():
    """As in Mamba: its states are no keys and values, which onnxruntime-genai allocates."""

    def step(input_ids, conv_states, ssm_states):
        x = jax.nn.one_hot(input_ids, 5)
        state = ssm_states * 0.5 + x.sum(1)[..., None]
        conv = jnp.concatenate([conv_states, x], 1)[:, -3:]
        return {"logits": x + state.sum((1, 2))[:, None, None], "conv_states": conv, "ssm_states": state}

    ids = inputs()[0]
    states = [jax.ShapeDtypeStruct((ids.shape[0], *shape), np.float32) for shape in ((3, 5), (5, 4))]
    text = refusal(step, [ids, *states])
    for name in ("attention_mask", "past_key_values.0.key", "past_key_values.0.value"):
        assert f"the input `{name}` is missing" in text
    assert "the output `present.0.key` is missing" in text
    assert "the input `ssm_states` is unknown to callers" in text


def changed(name, change):
    """A step, one result of which is another."""

    def step(input_ids, attention_mask, position_ids, past_key_values):
        x = jax.nn.one_hot(input_ids, 5) * attention_mask.sum() + position_ids[..., None]
        rows = jnp.zeros((x.shape[0], CONFIG.groups, x.shape[1], CONFIG.head))
        present = [{side: jnp.concatenate([past[side], rows], 2) for side in past} for past in past_key_values]
        result = {"logits": x, "hidden_states": x, "present": present}
        return {**result, name: change(result[name])}

    return step


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("logits", lambda x: x[:, -1], r"the output `logits` is float32\[batch_size, 5\], not \(batch_size, sequence_length, vocabulary\)"),
        ("hidden_states", lambda x: x[0], r"the output `hidden_states` is float32\[sequence_length, 5\], not \(batch_size, sequence_length, size\)"),
        ("present", lambda layers: [{side: x.astype(np.float16) for side, x in layer.items()} for layer in layers],
         r"the output `present\.0\.key` is float16.*, where `past_key_values\.0\.key` is float32"),
    ],
)  # fmt: skip
def test_results_of_another_shape_are_refused(name, change, text):
    with pytest.raises(jaxport.InvalidArgument, match=text):
        jaxport.to_onnx(changed(name, change), inputs(), target="genai")
    assert jaxport.to_onnx(changed(name, lambda x: x), inputs(), target="genai").verify(sizes=SIZES[:1]).ok


def test_caches_of_another_rank_are_refused():
    """Heads and their vectors as one axis."""

    def step(input_ids, attention_mask, past_key_values):
        x = jax.nn.one_hot(input_ids, 5) * attention_mask.sum()
        rows = jnp.zeros((*x.shape[:2], CONFIG.groups * CONFIG.head))
        return {
            "logits": x,
            "present": [{side: jnp.concatenate([past[side], rows], 1) for side in past} for past in past_key_values],
        }

    ids, mask, caches = inputs(position_ids=False)
    length = caches[0]["key"].shape[2]
    flat = jax.ShapeDtypeStruct((ids.shape[0], length, CONFIG.groups * CONFIG.head), np.float32)
    text = refusal(step, [ids, mask, [dict.fromkeys(("key", "value"), flat)]])
    assert "the input `past_key_values.0.key` is float32" in text
    assert "not (batch_size, heads, length, size)" in text


def test_features_of_another_rank_are_refused():
    def encode(audio_features):
        rows = jnp.zeros((audio_features.shape[0], 2, 1500, 8))
        states = jnp.zeros((audio_features.shape[0], 1500, 16)) + audio_features.sum()
        return {"encoder_hidden_states": states, "present": [{"encoder": {"key": rows, "value": rows}}]}

    text = refusal(encode, [("batch_size", 3000)])
    assert "the input `audio_features` is float32[batch_size, 3000], not of rank 3" in text
