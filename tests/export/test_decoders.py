"""Language models: the border of a decoder's step, its folder, and the tokens that come of it."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from examples import speech_model
from examples.language_model import CONFIGS, PROMPT, Llama, build, export, greedy
from examples.models.weights import nnx_model
from jaxport.export.generation.decoders import Decoder

SIZES = [
    {"batch_size": 2, "sequence_length": 4, "total_sequence_length": 4},  # nothing before: the cache is empty
    {"batch_size": 1, "sequence_length": 1, "total_sequence_length": 5},
    {"batch_size": 3, "sequence_length": 1, "total_sequence_length": 7},
    {"batch_size": 1, "sequence_length": 2, "total_sequence_length": 7},  # ONNX Runtime takes no batch of several here
]


def labels(value):
    return [dim if isinstance(dim, int) else dim.value for dim in value.shape]


def step(input_ids, attention_mask, position_ids, past_key_values):
    """The least that is a decoder: keys and values are made of the ids."""
    rows = jnp.broadcast_to(
        input_ids[:, None, :, None].astype(jnp.float32), (input_ids.shape[0], 2, input_ids.shape[1], 4)
    )
    present = [{name: jnp.concatenate([past[name], rows], axis=2) for name in past} for past in past_key_values]
    seen = sum(layer["key"].sum() for layer in present) + attention_mask.sum() + position_ids.sum()
    return {"logits": jax.nn.one_hot(input_ids, 5) * seen, "present": present}


def refusal(fn, inputs, **options):
    with pytest.raises(jaxport.InvalidArgument) as caught:
        jaxport.to_onnx(fn, inputs, target="genai", **options)
    return str(caught.value)


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_greedy_tokens_are_those_of_jax(cache):
    model, rows = build(), 64 if cache == "static" else 0
    expected = greedy(model, PROMPT, 7)
    assert len(set(expected)) > 2  # a text of one token would prove little
    exported = export(model, cache)
    assert greedy(exported, PROMPT, 7, rows) == expected
    more = {"max_sequence_length": 9} if cache == "static" else {}
    assert exported.verify(sizes=[{**sizes, **more} for sizes in SIZES]).ok


@pytest.mark.parametrize(("opset", "window"), [(21, None), (23, 3)])
def test_older_opsets_and_a_sliding_window(opset, window):
    model = build(window)
    expected = greedy(model, PROMPT, 8)
    assert greedy(export(model, opset=opset), PROMPT, 8) == expected
    assert (expected == greedy(build(), PROMPT, 8)) == (window is None)


def test_prompts_of_different_lengths_are_padded_on_the_left():
    exported, config = export(build()), CONFIGS["small"]
    empty = [
        {name: np.zeros((2, config.groups, 0, config.head), np.float32) for name in ("key", "value")}
    ] * config.layers
    ids = np.array([[0, 0, 3, 17], [3, 17, 22, 5]])
    mask = np.array([[0, 0, 1, 1], [1, 1, 1, 1]])
    both = exported(ids, mask, np.maximum(mask.cumsum(1) - 1, 0), empty)["logits"]
    one = [{name: rows[:1] for name, rows in layer.items()} for layer in empty]
    alone = exported(np.array([[3, 17]]), np.ones((1, 2), int), np.array([[0, 1]]), one)["logits"]
    np.testing.assert_allclose(both[0, 2:], alone[0], rtol=1e-4, atol=1e-5)


def test_names_and_dims_are_those_that_callers_know():
    exported = export(build())
    graph = exported.model.graph
    assert [(value.name, labels(value)) for value in graph.inputs][:4] == [
        ("input_ids", ["batch_size", "sequence_length"]),
        ("attention_mask", ["batch_size", "total_sequence_length"]),
        ("position_ids", ["batch_size", "sequence_length"]),
        ("past_key_values.0.key", ["batch_size", 2, "past_sequence_length", 8]),
    ]
    assert [(value.name, labels(value)) for value in graph.outputs][::4] == [
        ("logits", ["batch_size", "sequence_length", 40]),
        ("present.1.value", ["batch_size", 2, "total_sequence_length", 8]),
    ]
    assert "GroupQueryAttention" in {node.op_type for node in graph}


def test_the_folder_is_what_genai_loads(tmp_path):
    exported = export(build(), "static")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    exported.save_genai(tmp_path / "m", context_length=64, eos_token_id=[0, 7], search={"top_k": 3})
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "genai_config.json",
        "model.onnx",
        "tokenizer.json",
    ]
    config = json.loads((tmp_path / "m" / "genai_config.json").read_text())
    model = config["model"]
    assert (model["eos_token_id"], model["pad_token_id"], model["vocab_size"]) == ([0, 7], 0, 40)
    assert [model["decoder"][name] for name in ("num_hidden_layers", "num_key_value_heads", "head_size")] == [2, 2, 8]
    assert config["search"] == {"max_length": 64, "past_present_share_buffer": True, "top_k": 3}
    with pytest.raises(jaxport.SaveError, match="cannot be created"):
        exported.save_genai(tmp_path / "none" / "m", context_length=64, eos_token_id=0)


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"precision": "float16"}, "float32"),
        ({"precision": "float16", "io": "float16"}, "float16"),
        ({"precision": "int8-dynamic"}, "float32"),
        ({"precision": jaxport.Int4(group=16, symmetric=True)}, "float32"),
    ],
)
def test_precisions(options, dtype, cache):
    exported = export(build(), cache, **options)
    assert Decoder.of(exported.model, exported.inputs, exported.outputs).layers == 2
    assert exported.inputs[3].model_dtype == dtype
    assert [value.name for value in exported.model.graph.outputs] == exported.output_names
    assert exported.verify(sizes=[sizes | LENGTHS[cache] for sizes in SIZES[:2]]).ok


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize(("precision", "most"), [(None, 19), (jaxport.Int4(group=16), 22)])
def test_a_step_has_few_nodes(cache, precision, most):
    """17 for each layer: 7 products, 2 norms and sums, 3 of the gate, 2 rotations, and attention. What more there is, is there once."""
    counts = []
    for layers in (1, 2):
        config = dataclasses.replace(CONFIGS["small"], layers=layers)
        inputs = jaxport.decoder_inputs(layers, config.groups, config.head, cache=cache)
        exported = jaxport.to_onnx(nnx_model(Llama, config, None), inputs, target="genai", precision=precision)
        counts.append(len(list(exported.model.graph)))
    assert counts[1] - counts[0] == 17
    assert counts[0] - 17 <= most


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_queries_and_keys_that_are_normalized_stay_behind_positions(cache):
    """As in Qwen 3 and Gemma 3: 4 nodes more, a norm and a view before it for each, and no Transpose."""
    config = CONFIGS["small"]
    scale = np.linspace(0.5, 1.5, config.head, dtype=np.float32)

    def normalized(x):
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * scale

    def attended(query, key, value, mask):
        """The attention of a model whose heads come first."""
        query, key, value = (jnp.repeat(x, config.heads // x.shape[1], axis=1) for x in (query, key, value))
        scores = jnp.where(mask, query @ key.swapaxes(2, 3) / np.sqrt(config.head).astype(np.float32), -1e30)
        return jax.nn.softmax(scores, axis=-1) @ value

    def decode(input_ids, attention_mask, position_ids, past_key_values):
        (past,), (layer, *_) = past_key_values, model.layers
        x, (batch, length) = model.words(input_ids), input_ids.shape
        attention, total, rows = layer.attention, attention_mask.shape[1], past["key"].shape[2]
        angles = position_ids[:, None, :, None] * np.float32(config.theta) ** -np.linspace(
            0, 1, config.head // 2, endpoint=False, dtype=np.float32
        )
        cos, sin = jnp.cos(angles), jnp.sin(angles)

        def heads(projection, count):
            return projection(x).reshape(batch, length, count, config.head).swapaxes(1, 2)

        def turned(x):
            a, b = jnp.split(normalized(x), 2, axis=-1)
            return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

        new = {"key": turned(heads(attention.key, config.groups)), "value": heads(attention.value, config.groups)}
        at = None if rows == total - length else total - length
        present = {
            name: jnp.concatenate([past[name], x], 2)
            if at is None
            else lax.dynamic_update_slice(past[name], x, (0, 0, at, 0))
            for name, x in new.items()
        }
        seen = jnp.arange(present["key"].shape[2]) <= jnp.arange(total - length, total)[:, None]
        mixed = attended(turned(heads(attention.query, config.heads)), *present.values(), seen)
        return {"logits": attention.output(mixed.swapaxes(1, 2).reshape(x.shape)), "present": [present]}

    model = build()
    exported = jaxport.to_onnx(
        decode, jaxport.decoder_inputs(1, config.groups, config.head, cache=cache), target="genai"
    )
    names = [node.op_type for node in exported.model.graph]
    assert [names.count(name) for name in ("GroupQueryAttention", "RotaryEmbedding", "RMSNormalization")] == [1, 2, 2]
    assert "Transpose" not in names
    assert exported.verify(sizes=[sizes | LENGTHS[cache] for sizes in SIZES]).ok


def continued(step, width, new_tokens, rows=0):
    """The most likely texts by beam search, and from which beam each of the last came: the caller reorders the caches."""
    config = CONFIGS["small"]
    empty = np.zeros((1, config.groups, rows, config.head), np.float32)
    past, scores, origins = [{"key": empty, "value": empty}] * config.layers, np.zeros(1), []
    texts = new = np.array([PROMPT])
    for _ in range(new_tokens):
        count = texts.shape[1]
        positions = np.broadcast_to(np.arange(count - new.shape[1], count), new.shape)
        result = step(new, np.ones(texts.shape, np.int64), positions, past)
        totals = scores[:, None] + np.asarray(jax.nn.log_softmax(result["logits"][:, -1]))
        best = np.argsort(-totals, axis=None, kind="stable")[:width]
        origin, token = np.divmod(best, totals.shape[1])
        scores, texts, new = (
            totals.ravel()[best],
            np.concatenate([texts[origin], token[:, None]], axis=1),
            token[:, None],
        )
        past = jax.tree.map(lambda cache, origin=origin: np.asarray(cache)[origin], result["present"])
        origins.append(origin.tolist())
    return texts.tolist(), origins


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_beams_are_those_of_jax(cache):
    rows = 16 if cache == "static" else 0
    expected = continued(build(), 3, 5, rows)
    assert any(origin != sorted(origin) for origin in expected[1][1:])  # otherwise no cache changes its place
    assert continued(export(build(), cache), 3, 5, rows) == expected


def test_beams_in_genai_need_caches_that_grow(tmp_path):
    with pytest.raises(jaxport.InvalidArgument, match="`num_beams` is 4, and the cache is static"):
        export(build(), "static").save_genai(tmp_path / "m", context_length=64, eos_token_id=0, search={"num_beams": 4})
    export(build()).save_genai(tmp_path / "n", context_length=64, eos_token_id=0, search={"num_beams": 4})
    config = json.loads((tmp_path / "n" / "genai_config.json").read_text())
    assert config["search"] == {"max_length": 64, "past_present_share_buffer": False, "num_beams": 4}


LENGTHS = {"growing": {}, "static": {"max_sequence_length": 9}}


def test_the_imported_file_computes_the_same(tmp_path):
    exported = export(build())
    exported.save(tmp_path / "m.onnx")
    program = jaxport.from_onnx(tmp_path / "m.onnx")
    assert program.verify(
        sizes=[{"batch_size": 2, "sequence_length": 1, "past_sequence_length": 4, "total_sequence_length": 5}]
    ).ok


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_the_imported_file_is_verified_at_sizes_that_a_step_has(cache):
    program = jaxport.from_onnx(export(build(), cache).model)
    assert any(node.op_type == "GroupQueryAttention" for node in program.model.graph)
    assert program.verify().ok


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_the_imported_file_is_exported_again_as_it_was(cache):
    """Under its own names, with the operator that attends to caches."""
    config, rows = CONFIGS["small"], 64 if cache == "static" else 0
    first = export(build(), cache)
    program = jaxport.from_onnx(first.model)
    inputs = jax.tree.leaves(jaxport.decoder_inputs(config.layers, config.groups, config.head, cache=cache))
    again = jaxport.to_onnx(
        program, inputs, target="genai", input_names=program.input_names, output_names=program.output_names
    )
    assert (again.input_names, again.output_names) == (first.input_names, first.output_names)
    operators = [sorted(node.op_type for node in exported.model.graph) for exported in (first, again)]
    assert [one.count("GroupQueryAttention") for one in operators] == [config.layers] * 2
    # With JAX 0.9, a difference of positions is taken before and after it is a number: three nodes.
    assert len(operators[1]) <= len(operators[0]) + 3

    def step(input_ids, attention_mask, position_ids, past):
        flat = again.run(
            dict(zip(again.input_names, [input_ids, attention_mask, position_ids, *jax.tree.leaves(past)], strict=True))
        )
        pairs = zip(flat[1::2], flat[2::2], strict=True)
        return {"logits": flat[0], "present": [{"key": key, "value": value} for key, value in pairs]}

    assert greedy(step, PROMPT, 5, rows) == greedy(first, PROMPT, 5, rows)
    # The first step of a static cache, too: the rows behind the new ones stay.
    assert again.verify(sizes=[SIZES[index] | LENGTHS[cache] for index in (0, 1, 3)]).ok


def test_a_model_that_is_no_decoder_is_refused_with_all_that_is_wrong():
    text = refusal(lambda x: x * 2, [("B", 3)])
    assert "the input `input_ids` is missing" in text
    assert "the input `x` is unknown to callers" in text
    assert "the output `present.0.value` is missing" in text
    assert "jaxport.decoder_inputs" in text


def test_what_is_not_as_declared_is_refused():
    inputs = jaxport.decoder_inputs(1, 2, 4)
    narrow = [jax.ShapeDtypeStruct(spec.shape, np.int32) for spec in inputs[:3]]
    assert "not int64 of rank 2" in refusal(step, [*narrow, inputs[3]])

    def untouched(input_ids, attention_mask, position_ids, past_key_values):
        result = step(input_ids, attention_mask, position_ids, past_key_values)
        return {
            **result,
            "present": [{name: rows[:, :, 1:] for name, rows in layer.items()} for layer in result["present"]],
        }

    assert "it neither grows by what goes in, nor keeps its length" in refusal(untouched, inputs)


def test_position_ids_are_optional():
    def without(input_ids, attention_mask, past_key_values):
        return step(input_ids, attention_mask, jnp.zeros(1), past_key_values)

    exported = jaxport.to_onnx(without, jaxport.decoder_inputs(1, 2, 4, position_ids=False), target="genai")
    assert not Decoder.of(exported.model, exported.inputs, exported.outputs).position_ids


@pytest.mark.parametrize(("late", "ok"), [(False, True), (True, False)])
def test_a_static_cache_is_not_read_after_it_was_written(late, ok):
    """Its buffer is that of the result, too."""

    def static(input_ids, attention_mask, position_ids, past_key_values):
        at = attention_mask.shape[1] - input_ids.shape[1]
        rows = jnp.broadcast_to(
            input_ids[:, None, :, None].astype(jnp.float32), (input_ids.shape[0], 2, input_ids.shape[1], 4)
        )
        present = [
            {name: lax.dynamic_update_slice(past[name], rows, (0, 0, at, 0)) for name in past}
            for past in past_key_values
        ]
        seen = (past_key_values if late else present)[0]["key"].sum() + attention_mask.sum() + position_ids.sum()
        return {"logits": jax.nn.one_hot(input_ids, 5) * seen, "present": present}

    inputs = jaxport.decoder_inputs(1, 2, 4, cache="static")
    if ok:
        exported = jaxport.to_onnx(static, inputs, target="genai")
        assert Decoder.of(exported.model, exported.inputs, exported.outputs).static
    else:
        assert "`past_key_values.0.key` is read by ReduceSum besides being updated to `present.0.key`" in refusal(
            static, inputs
        )


# An encoder, and the decoder that attends to it


@pytest.fixture(scope="module")
def speech():
    return speech_model.export(speech_model.build())


def test_an_encoder_and_its_decoder_continue_as_in_jax(speech):
    """`make test-runtimes` compares 32 tokens; most of the time goes into JAX's compilation for each length."""
    model, tokens = speech_model.build(), 2
    expected = speech_model.greedy(model.encode, model.decode, speech_model.audio(), PROMPT, tokens)
    assert speech_model.greedy(*speech, speech_model.audio(), PROMPT, tokens) == expected


@pytest.mark.parametrize(("batch", "following"), [(2, 1), (1, 5)])  # nothing before: the cache is empty
def test_a_step_with_an_encoder_is_that_of_jax(speech, batch, following):
    sizes = {"batch_size": batch, "sequence_length": 3, "next_length": following}
    assert speech[1].verify(sizes=[sizes]).ok


def test_names_and_dims_of_an_encoder_and_its_decoder(speech):
    encoder, decoder = (exported.model.graph for exported in speech)
    assert [value.name for value in encoder.inputs] == ["audio_features"]
    assert [(value.name, labels(value)) for value in encoder.outputs][:2] == [
        ("encoder_hidden_states", ["batch_size", 1500, 32]),
        ("present.0.encoder.key", ["batch_size", 4, 1500, 8]),
    ]
    assert [(value.name, labels(value)) for value in decoder.inputs][:4] == [
        ("input_ids", ["batch_size", "sequence_length"]),
        ("past_key_values.0.decoder.key", ["batch_size", 4, "past_sequence_length", 8]),
        ("past_key_values.0.decoder.value", ["batch_size", 4, "past_sequence_length", 8]),
        ("past_key_values.0.encoder.key", ["batch_size", 4, 1500, 8]),
    ]
    assert [(value.name, labels(value)) for value in decoder.outputs][:2] == [
        ("logits", ["batch_size", "sequence_length", 40]),
        ("present.0.decoder.key", ["batch_size", 4, "total_sequence_length", 8]),
    ]


def test_the_folder_of_an_encoder_and_its_decoder(speech, tmp_path):
    encoder, decoder = speech
    decoder.save_genai(tmp_path / "m", encoder=encoder, context_length=64, eos_token_id=0)
    files = ["decoder_model.onnx", "encoder_model.onnx", "genai_config.json"]
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == files
    model = json.loads((tmp_path / "m" / "genai_config.json").read_text())["model"]
    assert model["type"] == "whisper"
    assert model["decoder"]["inputs"] == {
        "input_ids": "input_ids",
        "past_key_names": "past_key_values.%d.decoder.key",
        "past_value_names": "past_key_values.%d.decoder.value",
        "cross_past_key_names": "past_key_values.%d.encoder.key",
        "cross_past_value_names": "past_key_values.%d.encoder.value",
    }
    assert [model["encoder"][name] for name in ("hidden_size", "num_hidden_layers", "head_size")] == [32, 2, 8]


def heard(frames=3000, heads=4, layers=2, size=8):
    """An encoder whose states are its features."""

    def encode(audio_features):
        states = audio_features[:, :, ::2].swapaxes(1, 2)
        rows = jnp.broadcast_to(states[:, None, :, :1], (states.shape[0], heads, states.shape[1], size))
        return {"encoder_hidden_states": states, "present": [{"encoder": {"key": rows, "value": rows}}] * layers}

    return jaxport.to_onnx(encode, [("batch_size", 16, frames)], target="genai")


@pytest.mark.parametrize(
    ("encoder", "text"),
    [
        (lambda: heard(layers=1), "keys and values for 1 layers, the decoder has 2"),
        (lambda: heard(heads=2), "the encoder's keys have 2 heads of size 8, those of the decoder 4 of size 8"),
        (lambda: heard(frames=100), "there are 100 frames; onnxruntime-genai gives every encoder 3000 frames"),
        (lambda: None, "attends to the result of an encoder, but no encoder is given"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(speech, encoder, text, tmp_path):
    with pytest.raises(jaxport.InvalidArgument) as caught:
        speech[1].save_genai(tmp_path / "m", encoder=encoder(), context_length=64, eos_token_id=0)
    assert text in str(caught.value)
    assert not (tmp_path / "m").exists()


def test_an_encoder_without_a_decoder_that_attends_to_it_is_refused(speech, tmp_path):
    with pytest.raises(jaxport.InvalidArgument, match="the decoder does not attend to an encoder"):
        export(build()).save_genai(tmp_path / "m", encoder=speech[0], context_length=64, eos_token_id=0)


def test_a_model_that_is_no_encoder_is_refused_with_all_that_is_wrong():
    text = refusal(lambda x: {"encoder_hidden_states": x}, [("B", 4, 3)])
    assert "is not an encoder" in text
    assert "the input `audio_features` is missing" in text
    assert "the output `present.0.encoder.key` is missing" in text
    flat = refusal(
        lambda audio_features: {
            "encoder_hidden_states": audio_features[0],
            "present": [{"encoder": {"key": audio_features, "value": audio_features}}],
        },
        [("B", 4, 3)],
    )
    assert "the output `encoder_hidden_states` is float32[4, 3], not of rank 3" in flat
    assert "the output `present.0.encoder.key` is float32[B, 4, 3], not (batch_size, heads, length, size)" in flat


def test_a_decoder_with_an_encoder_takes_no_mask():
    def masked(input_ids, attention_mask, past_key_values):
        rows = past_key_values[0]["decoder"]
        return {"logits": jax.nn.one_hot(input_ids, 5), "present": [{"decoder": rows}]}

    ids, past = jaxport.encoder_decoder_inputs(1, 2, 4, "heard")
    assert str(past[0]["encoder"]["key"].shape[2]) == "heard"
    assert "the input `attention_mask` is unknown to callers" in refusal(masked, [ids, ids, past])


@pytest.mark.parametrize("numbers", [(0, 1, 1, 1), (1, 1, 1, 0)])
def test_malformed_declarations_of_an_encoder_decoder_are_refused(numbers):
    with pytest.raises(jaxport.InvalidArgument):
        jaxport.encoder_decoder_inputs(*numbers)


@pytest.mark.parametrize(("numbers", "options"), [((0, 1, 1), {}), ((1, 1, 1), {"cache": "paged"})])
def test_malformed_declarations_are_refused(numbers, options):
    with pytest.raises(jaxport.InvalidArgument):
        jaxport.decoder_inputs(*numbers, **options)
