"""Language models: the border of a decoder's step, its folder, and the tokens that come of it."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from examples.language_model import CONFIGS, NEW_TOKENS, PROMPT, build, export, greedy
from jaxport.export.decoders import Decoder

SIZES = [
    {"batch_size": 2, "sequence_length": 4, "total_sequence_length": 4},  # nothing before: the cache is empty
    {"batch_size": 1, "sequence_length": 1, "total_sequence_length": 5},
    {"batch_size": 3, "sequence_length": 2, "total_sequence_length": 7},
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
    expected = greedy(model, PROMPT, NEW_TOKENS)
    assert len(set(expected)) > 5  # a text of one token would prove little
    exported = export(model, cache)
    assert greedy(exported, PROMPT, NEW_TOKENS, rows) == expected
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
    assert "Attention" in {node.op_type for node in graph}


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
    with pytest.raises(jaxport.SaveError, match="cannot be made"):
        exported.save_genai(tmp_path / "none" / "m", context_length=64, eos_token_id=0)


@pytest.mark.parametrize(
    ("options", "dtype"), [({"precision": "float16", "io": "float16"}, "float16"), ({"precision": "int4"}, "float32")]
)
def test_precisions(options, dtype):
    exported = export(build(), **options)
    assert Decoder.of(exported.model, exported.inputs, exported.outputs).layers == 2
    assert exported.inputs[3].model_dtype == dtype


def test_the_imported_file_computes_the_same(tmp_path):
    exported = export(build())
    exported.save(tmp_path / "m.onnx")
    program = jaxport.from_onnx(tmp_path / "m.onnx")
    assert program.verify(
        sizes=[{"batch_size": 2, "sequence_length": 1, "past_sequence_length": 4, "total_sequence_length": 5}]
    ).ok


def test_a_model_that_is_no_decoder_is_refused_with_all_that_is_wrong():
    text = refusal(lambda x: x * 2, [("B", 3)])
    assert "there is no input `input_ids`" in text
    assert "the input `x` is none that a caller knows" in text
    assert "there is no output `present.0.value`" in text
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
        assert "`past_key_values.0.key` is read by ReduceSum beside the writing of `present.0.key`" in refusal(
            static, inputs
        )


@pytest.mark.parametrize(("numbers", "options"), [((0, 1, 1), {}), ((1, 1, 1), {"cache": "paged"})])
def test_malformed_declarations_are_refused(numbers, options):
    with pytest.raises(jaxport.InvalidArgument):
        jaxport.decoder_inputs(*numbers, **options)
