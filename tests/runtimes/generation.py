"""The language models of the examples in onnxruntime-genai: their tokens are those of JAX."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from examples import language_model, speech_model
from tests.runtimes.page import Found

SCRIPT = Path(__file__).with_name("generating.py")
CACHES: tuple[Literal["growing", "static"], ...] = ("growing", "static")
Case = tuple[str, Path, Sequence[int], Sequence[int], list[str]]
"""What a model is called, its folder, the prompt, the expected tokens, and further arguments of the script."""


def results(folder: Path, python: str) -> Found:
    """What is wrong with the tokens of each model."""
    command = [python, "-c", "import onnxruntime_genai; print(onnxruntime_genai.__version__)"]
    version = subprocess.run(command, check=True, capture_output=True, text=True, env={"PATH": ""}).stdout.strip()
    cases = [*_llamas(folder), *_whisper(folder)]
    return Found(f"onnxruntime-genai {version}", {case[0]: _problem(python, case) for case in cases})


def _llamas(folder: Path) -> Iterator[Case]:
    """A decoder, with each kind of cache."""
    model, prompt = language_model.build(), language_model.PROMPT
    expected = language_model.greedy(model, prompt, language_model.NEW_TOKENS)
    end = _unused(expected, language_model.CONFIGS["small"].vocabulary)
    for cache in CACHES:
        place = folder / cache
        decoder = language_model.export(model, cache)
        decoder.save_genai(place, context_length=language_model.CONTEXT, eos_token_id=end)
        yield f"a Llama with a {cache} cache", place, prompt, expected, []


def _whisper(folder: Path) -> Iterator[Case]:
    """An encoder and a decoder."""
    model, prompt, place = speech_model.build(), speech_model.PROMPT, folder / "whisper"
    expected = speech_model.greedy(model.encode, model.decode, speech_model.audio(), prompt, speech_model.NEW_TOKENS)
    encoder, decoder = speech_model.export(model)
    end, length = _unused(expected, speech_model.CONFIG.vocabulary), speech_model.CONFIG.positions
    decoder.save_genai(place, encoder=encoder, context_length=length, eos_token_id=end)
    np.save(place / "audio.npy", speech_model.audio())
    yield "a Whisper-like encoder and decoder", place, prompt, expected, [str(place / "audio.npy")]


def _unused(tokens: Sequence[int], vocabulary: int) -> int:
    """A token that does not end the text too early."""
    return max({*range(vocabulary)} - {*tokens})


def _problem(python: str, case: Case) -> str:
    _, place, prompt, expected, more = case
    command = [python, str(SCRIPT), str(place), str(len(expected)), ",".join(map(str, prompt)), *more]
    answer = subprocess.run(command, check=False, capture_output=True, text=True, env={"PATH": ""})
    if answer.returncode:
        return (answer.stderr.strip().splitlines() or ["no message"])[-1]
    tokens = [int(word) for word in answer.stdout.split()]
    return "" if tokens == list(expected) else f"{tokens}, not {expected}"
