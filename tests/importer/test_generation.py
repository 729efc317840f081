"""GreedySearch and BeamSearch: token by token what ONNX Runtime generates."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import onnxruntime
import pytest

from jaxport.errors import ModelError, Unsupported
from jaxport.importer import from_onnx
from tests.codegen.structured import load
from tests.importer.generation import PROMPTS, VOCABULARY, beams, decoder, greedy, one, searching

SOME = np.array([1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1], np.int32)
MASK = np.array([[1, 1, 1], [0, 1, 1], [0, 0, 1]], np.int32)


def generated(operator: str, inputs: dict[str, Any], attributes: dict[str, Any]) -> tuple[Any, list[Any], Any]:
    """The program of a file, what ONNX Runtime generates, and the file's decoder."""
    outputs = 2 if operator == "BeamSearch" else 1
    model = searching(operator, inputs, outputs=outputs, **attributes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected: Any = session.run(None, {"input_ids": PROMPTS})
    return from_onnx(model), expected, model


CASES: list[tuple[str, dict[str, Any], int, dict[str, Any]]] = [
    ("GreedySearch", greedy(), 1, {}),
    ("GreedySearch", greedy(min_length=one(7), repetition_penalty=one(1.3, np.float32)), 35, {"pad_token_id": 2}),
    ("GreedySearch", greedy(vocab_mask=SOME, attention_mask=MASK), 2, {"no_repeat_ngram_size": 3}),
    ("GreedySearch", greedy(most=4), 3, {"init_decoder": decoder(3, "first_")}),
    ("BeamSearch", beams(3, 2), 3, {}),
    ("BeamSearch", beams(4, 4, penalty=0.5), 5, {"early_stopping": 1, "eos_token_id": 3, "pad_token_id": 6}),
    ("BeamSearch", beams(2, 1, penalty=2.0, min_length=one(6)), 6, {"eos_token_id": 10, "no_repeat_ngram_size": 2}),
    ("BeamSearch", beams(3, 3, repetition_penalty=one(0.7, np.float32), prefix_vocab_mask=SOME * np.ones((3, 1), np.int32)), 7, {}),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "inputs", "seed", "attributes"), CASES)
def test_tokens_are_those_of_onnx_runtime(
    operator: str, inputs: dict[str, Any], seed: int, attributes: dict[str, Any]
) -> None:
    program, expected, _ = generated(operator, inputs, {"decoder": decoder(seed)} | attributes)
    results = jax.jit(program)(PROMPTS)
    results = results if isinstance(results, tuple) else (results,)
    np.testing.assert_array_equal(results[0], expected[0])
    for scores, others in zip(results[1:], expected[1:], strict=True):
        np.testing.assert_allclose(scores, others, rtol=1e-5, atol=1e-5)


def test_sequences_that_have_ended_are_padded() -> None:
    """Where all have ended, ONNX Runtime leaves memory as it was."""
    model = searching("GreedySearch", greedy(most=12), decoder=decoder(3), eos_token_id=1, pad_token_id=6)
    sequences = np.asarray(from_onnx(model)(PROMPTS))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected: Any = session.run(None, {"input_ids": PROMPTS})[0]
    ended = 1 + max(int(np.argmax(row == 6)) if 6 in row else 11 for row in sequences)
    np.testing.assert_array_equal(sequences[:, :ended], expected[:, :ended])
    assert (sequences[:, ended:] == 6).all()


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("case", [1, 5])
def test_a_search_is_printed(framework: str, case: int, tmp_path: Any) -> None:
    operator, inputs, seed, attributes = CASES[case]
    program, expected, _ = generated(operator, inputs, {"decoder": decoder(seed)} | attributes)
    source = program.to_source(tmp_path, framework=framework)
    assert "`length <= 7` has to hold" in source.code
    result = load(tmp_path).load()(PROMPTS)
    np.testing.assert_array_equal(result[0] if operator == "BeamSearch" else result, expected[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": 1}, "model_type 1, a decoder with an encoder"),
        ({"decoder": decoder(0, shared=True)}, "one past for each present"),
        ({"decoder": decoder(0, masked=False)}, "does not use its attention_mask"),
        ({"outputs": 3}, "the output `scores`"),
        ({"inputs": {"decoder_input_ids": np.zeros((3, 1), np.int32)}}, "`decoder_input_ids`"),
        ({"inputs": {"decoder_input_ids": None, "logits_processor": one(1)}}, "`logits_processor`"),
    ],
)
def test_what_is_not_built_is_refused(change: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"decoder": decoder(0)} | change
    inputs = beams(2, 1) | options.pop("inputs", {})
    model = searching("BeamSearch", inputs, **options)
    with pytest.raises(Unsupported, match=message):
        from_onnx(model)(PROMPTS)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (beams(2, 1, most=3), "`max_length` is 3, the prompt has 3 tokens"),
        (beams(2, 1, most=5000), "at most 4096"),
        (beams(2, 3), "`num_return_sequences` is 3, `num_beams` 2"),
    ],
)
def test_impossible_numbers_are_refused(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_onnx(searching("BeamSearch", inputs, decoder=decoder(0)))(PROMPTS)


def test_no_token_is_beyond_the_vocabulary() -> None:
    model = searching("GreedySearch", greedy(), decoder=decoder(4), vocab_size=VOCABULARY - 4)
    assert np.asarray(from_onnx(model)(PROMPTS))[:, 3:].max() < VOCABULARY - 4
