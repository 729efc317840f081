"""The language model of the examples in onnxruntime-genai: its tokens are those of JAX."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Literal

from examples.language_model import CONFIGS, CONTEXT, NEW_TOKENS, PROMPT, build, export, greedy

SCRIPT = Path(__file__).with_name("generating.py")
CACHES: tuple[Literal["growing", "static"], ...] = ("growing", "static")


def results(folder: Path, python: str) -> dict[str, str]:
    """What is wrong with the tokens of each kind of cache."""
    model = build()
    expected = greedy(model, PROMPT, NEW_TOKENS)
    found = {}
    for cache in CACHES:
        place = folder / cache
        end = CONFIGS["small"].vocabulary - 1
        assert end not in expected
        export(model, cache).save_genai(place, context_length=CONTEXT, eos_token_id=end)
        command = [python, str(SCRIPT), str(place), str(len(expected)), *map(str, PROMPT)]
        answer = subprocess.run(command, check=False, capture_output=True, text=True, env={"PATH": ""})
        tokens = [int(word) for word in answer.stdout.split()]
        why = "" if answer.returncode == 0 else (answer.stderr.strip().splitlines() or ["no message"])[-1]
        found[f"llama, {cache} cache"] = why or ("" if tokens == expected else f"{tokens}, not {expected}")
    return found
