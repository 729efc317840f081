"""The example of greedy generation in the docstring of a printed decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from jaxport.importer.values.host import RuntimeValue
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


def generation(
    inputs: Mapping[str, RuntimeValue], outputs: Sequence[str], declared: Mapping[str, ir.Shape | None]
) -> list[str]:
    """Return the lines of an example that generates tokens with a decoder and its cache; none for any other model.

    The decoder has the inputs and outputs that `jaxport.decoder_inputs` describes, in that order, and no others. Its cache is one
    argument, and one result.

    Args:
      inputs: the inputs by name.
      outputs: the names of the outputs.
      declared: the shapes of inputs and outputs in the file.
    """
    cached = [(match[1], tree) for name, tree in inputs.items() if (match := _PAST.fullmatch(name))]
    names = [name for name in inputs if not _PAST.fullmatch(name)]
    if names[:1] != [TOKENS] or not {*names[1:]} <= {*_BESIDE} or list(inputs)[: len(names)] != names or not cached:
        return []
    if list(outputs) != [LOGITS, *(f"present.{part}" for part, _ in cached)]:
        return []
    caches = [
        _zeros(tree, declared.get(f"past_key_values.{part}"), declared.get(f"present.{part}")) for part, tree in cached
    ]
    tokens = inputs[TOKENS]
    if None in caches or not isinstance(tokens, Variable) or len(tokens.shape) != 2 or isinstance(tokens.shape[1], int):
        return []
    pairs = [f"({key}, {value})" for key, value in zip(caches[::2], caches[1::2], strict=True)]
    past = f"[{pairs[0]}] * {len(pairs)}" if len({*pairs}) == 1 else f"[{', '.join(pairs)}]"
    arguments = ", ".join(["new", *(_NAMES[name] for name in names[1:]), "past"])
    return [
        "",
        "Greedy generation with the cache, one token after the other:",
        "",
        ">>> model = load()",
        f">>> tokens = new = jnp.array([{PROMPT}])",
        f">>> past = {past}",
        f">>> for _ in range({ADDED}):",
        "...     count = tokens.shape[1]",
        *(f"...     {_NAMES[name]} = {_BESIDE[name]}" for name in names[1:]),
        f"...     logits, past = model({arguments})",
        "...     new = logits[:, -1:].argmax(-1)",
        "...     tokens = jnp.concatenate([tokens, new], axis=1)",
    ]


def _zeros(cache: RuntimeValue, past: ir.Shape | None, present: ir.Shape | None) -> str | None:
    """Return an empty cache for one sequence; None for a cache of another form."""
    if not isinstance(cache, Variable) or len(cache.shape) != 4 or past is None or present is None:
        return None
    batch, heads, rows, size = cache.shape
    if isinstance(rows, int) or not isinstance(heads, int) or not isinstance(size, int):
        return None
    if isinstance(batch, int) and batch != 1:
        return None
    is_static = past == present and past[2] is not None
    return f"jnp.zeros((1, {heads}, {ROWS if is_static else 0}, {size}), jnp.{cache.dtype.name})"
