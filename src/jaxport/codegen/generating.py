"""What a decoder's step takes, and the example of greedy generation in the docstring of a printed one.

input_ids, attention_mask, past_key_values.0.key, …   →   for token in …: logits, cache = model(token, mask, cache)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from jaxport.importer.values.recording import Variable

_PAST = re.compile(r"past_key_values\.(\d+\.(?:key|value))")
#: What a step of a decoder is called with, besides the tokens and the cache, as an expression of the example.
_BESIDE = {
    "attention_mask": "jnp.ones((1, count), int)",
    "position_ids": "jnp.arange(count - new.shape[1], count)[None]",
}
_NAMES = {"attention_mask": "mask", "position_ids": "positions"}
TOKENS, LOGITS = "input_ids", "logits"
#: The tokens that the example begins with, how many it adds, and the rows of a static cache.
PROMPT, ADDED, ROWS = [1, 2, 3], 5, 64


@dataclass(frozen=True)
class Decoding:
    """A step of a decoder that has the inputs and outputs which `jaxport.decoder_inputs` describes, in that order, and
    no others.

    A printed model takes the cache as one argument and returns it as one result.

    Attributes:
      tokens: the variable of the tokens.
      beside: the inputs between the tokens and the cache.
      caches: the variables of the cache.
      is_static: whether the cache has its rows from the beginning.
    """

    tokens: Variable
    beside: tuple[str, ...]
    caches: tuple[Variable, ...]
    is_static: bool


def decoding(
    inputs: Mapping[str, Any], outputs: Sequence[str], declared: Mapping[str, ir.Shape | None]
) -> Decoding | None:
    """Return what a decoder's step takes; None for any other model.

    Args:
      inputs: the inputs by name.
      outputs: the names of the outputs.
      declared: the shapes of inputs and outputs in the file.
    """
    cached = [(match[1], tree) for name, tree in inputs.items() if (match := _PAST.fullmatch(name))]
    names = [name for name in inputs if not _PAST.fullmatch(name)]
    if names[:1] != [TOKENS] or not {*names[1:]} <= {*_BESIDE} or list(inputs)[: len(names)] != names or not cached:
        return None
    if list(outputs) != [LOGITS, *(f"present.{part}" for part, _ in cached)]:
        return None
    past = [(declared.get(f"past_key_values.{part}"), declared.get(f"present.{part}")) for part, _ in cached]
    tokens = inputs[TOKENS]
    if not isinstance(tokens, Variable) or len(tokens.shape) != 2 or isinstance(tokens.shape[1], int):
        return None
    if not all(_is_cache(tree) and None not in shapes for (_, tree), shapes in zip(cached, past, strict=True)):
        return None
    static = {before == after and before is not None and before[2] is not None for before, after in past}
    if len(static) > 1:
        return None
    return Decoding(tokens, tuple(names[1:]), tuple(tree for _, tree in cached), static.pop())


def generation(
    inputs: Mapping[str, object], outputs: Sequence[str], declared: Mapping[str, ir.Shape | None]
) -> list[str]:
    """Return the lines of an example that generates tokens with a decoder and its cache; none for any other model.

    Args:
      inputs: the inputs by name.
      outputs: the names of the outputs.
      declared: the shapes of inputs and outputs in the file.
    """
    step = decoding(inputs, outputs, declared)
    if step is None:
        return []
    rows = ROWS if step.is_static else 0
    caches = [
        f"jnp.zeros((1, {one.shape[1]}, {rows}, {one.shape[3]}), jnp.{np.dtype(one.dtype).name})" for one in step.caches
    ]
    pairs = [f"({key}, {value})" for key, value in zip(caches[::2], caches[1::2], strict=True)]
    past = f"[{pairs[0]}] * {len(pairs)}" if len({*pairs}) == 1 else f"[{', '.join(pairs)}]"
    arguments = ", ".join(["new", *(_NAMES[name] for name in step.beside), "past"])
    return [
        "",
        "Greedy generation with the cache, one token after the other:",
        "",
        ">>> model = load()",
        f">>> tokens = new = jnp.array([{PROMPT}])",
        f">>> past = {past}",
        f">>> for _ in range({ADDED}):",
        "...     count = tokens.shape[1]",
        *(f"...     {_NAMES[name]} = {_BESIDE[name]}" for name in step.beside),
        f"...     logits, past = model({arguments})",
        "...     new = logits[:, -1:].argmax(-1)",
        "...     tokens = jnp.concatenate([tokens, new], axis=1)",
    ]


def _is_cache(tree: object) -> bool:
    """Whether an input is the cache of a layer, for one sequence at least."""
    if not isinstance(tree, Variable) or len(tree.shape) != 4:
        return False
    batch, heads, rows, size = tree.shape
    is_one = not isinstance(batch, int) or batch == 1
    return is_one and not isinstance(rows, int) and isinstance(heads, int) and isinstance(size, int)
