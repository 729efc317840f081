"""Language models: a step of a decoder with a key-value cache, whose inputs and outputs have the names that callers
use.

The names are those of Hugging Face, which `onnxruntime-genai`, Optimum and Transformers.js share. The inputs are
`input_ids`, `attention_mask`, `position_ids`, `past_key_values.N.key` and `.value`; the outputs are `logits`,
`present.N.key` and `.value`. A growing cache is returned longer than it was passed; a static one keeps its length, and
`onnxruntime-genai` passes the same buffer as its input and its output
(https://onnxruntime.ai/docs/genai/reference/config.html). A decoder behind a model of images takes `inputs_embeds` in
place of `input_ids`. Further inputs and outputs have any names: callers set and read them by these.

The decoder of an encoder-decoder also takes the keys and values of the encoder's result, which the encoder computes
once. Its own keys are `past_key_values.N.decoder.key`, those of the encoder `past_key_values.N.encoder.key` (see
`encoders`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
import onnx_ir as ir
from jax.typing import DTypeLike

from jaxport.errors import InvalidArgument
from jaxport.export.ports import Port
from jaxport.graph.fusions.caches import is_cached_attention
from jaxport.jaxprs import Dim, Parameters, dims
from jaxport.onnx_facts import SCATTERS

Cache = Literal["growing", "static"]

BATCH, SEQUENCE, TOTAL, PAST, LONGEST = (
    "batch_size",
    "sequence_length",
    "total_sequence_length",
    "past_sequence_length",
    "max_sequence_length",
)
"""The dims: the batch, the new tokens, all tokens so far, the tokens in the cache, and the length of a static cache."""

BOUNDS = ((TOTAL, SEQUENCE), (LONGEST, TOTAL))
"""Pairs of dims: the first one is at least as large as the second one."""

TOKENS, EMBEDDINGS = "input_ids", "inputs_embeds"
"""The new tokens: their ids, or in place of these their embeddings."""
LOGITS, HIDDEN_STATES = "logits", "hidden_states"
"""The results of which a step has at least one."""

_IDS = {TOKENS: SEQUENCE, "attention_mask": TOTAL, "position_ids": SEQUENCE}
COUNTED = ("attention_mask", "position_ids")
"""The inputs that are truth values or positions."""
_OPTIONAL = frozenset({"position_ids"})
NEXT = "next_length"
"""The length of the cache plus one, for a decoder without an attention mask: unlike that length, it is never 0."""
PAST_NAMES, PRESENT_NAMES = "past_key_values.%d.", "present.%d."
OWN, CROSS = "decoder.", "encoder."
"""The parts of the names of a cache before `key` and `value`, in a decoder with an encoder."""

_PAST = re.compile(r"past_key_values\.\d+\.(decoder\.)?(key|value)")
_CROSS = re.compile(r"past_key_values\.\d+\.encoder\.(key|value)")
_PREFIXES = ("past_key_values.", "present.")
SIDES = ("key", "value")


def decoder_inputs(
    layers: int,
    kv_heads: int,
    head_size: int,
    *,
    cache: Cache = "growing",
    position_ids: bool = True,
    dtype: DTypeLike = np.float32,
    embeddings: int | None = None,
) -> list[Any]:
    """Return the specifications of a decoder step's arguments, for `to_onnx`.

    The function is called as `step(input_ids, attention_mask, position_ids, past_key_values)`, with these names. The
    ids are int64 of shape (batch_size, sequence_length). The mask is int64 of shape (batch_size,
    total_sequence_length), 0 for padding and 1 for a token, with the cached tokens before the new ones.
    `past_key_values` has one `{"key", "value"}` for each layer, of shape (batch_size, kv_heads, length, head_size). The
    function returns `{"logits", "present"}`: `present` has the structure of `past_key_values`, with the new rows added.
    `{"hidden_states"}`, of shape (batch_size, sequence_length, any size), may be returned beside the logits, or in
    their place. Further arguments and results may have any names and shapes: in onnxruntime-genai,
    `generator.set_model_input` sets the former, and `get_output` returns the latter.

    The symbols are `batch_size`, `sequence_length` and `total_sequence_length`. The length of a growing cache is
    `total_sequence_length - sequence_length`, which may be 0; that of a static cache is `max_sequence_length`.

    Args:
      layers, kv_heads, head_size: the sizes of the model.
      cache: "growing" or "static".
      position_ids: whether the function has the argument `position_ids`.
      dtype: the dtype of the cache and of embeddings.
      embeddings: the size of the vectors that the function takes as `inputs_embeds`, of shape (batch_size,
        sequence_length, size), in place of `input_ids`; None if it takes ids.

    Raises:
      InvalidArgument: a number is not positive, or `cache` is unknown.

    >>> from jaxport import decoder_inputs
    >>> decoder_inputs(1, 2, 8)[3][0]["key"]
    ShapeDtypeStruct(shape=(batch_size, 2, total_sequence_length - sequence_length, 8), dtype=float32)
    """
    numbers = {"layers": layers, "kv_heads": kv_heads, "head_size": head_size}
    for name, number in (numbers if embeddings is None else {**numbers, "embeddings": embeddings}).items():
        if number < 1:
            _refuse(f"{name} is {number}", "decoder_inputs", "give the number that the model has")
    if cache not in ("growing", "static"):
        _refuse(f"unknown cache {cache!r}", "decoder_inputs(cache=...)", '"growing" or "static"')
    names, constraints = [BATCH, SEQUENCE, TOTAL], [f"{TOTAL} >= {SEQUENCE}"]
    if cache == "static":
        names.append(LONGEST)
        constraints.append(f"{LONGEST} >= {TOTAL}")
    symbols = dict(zip(names, jax.export.symbolic_shape(", ".join(names), constraints=constraints), strict=True))
    length = symbols[LONGEST] if cache == "static" else symbols[TOTAL] - symbols[SEQUENCE]
    rows = jax.ShapeDtypeStruct((symbols[BATCH], kv_heads, length, head_size), dtype)
    ids = [
        jax.ShapeDtypeStruct((symbols[BATCH], symbols[dim]), np.int64)
        for name, dim in _IDS.items()
        if position_ids or name != "position_ids"
    ]
    if embeddings is not None:
        ids[0] = jax.ShapeDtypeStruct((symbols[BATCH], symbols[SEQUENCE], embeddings), dtype)
    return [*ids, [dict.fromkeys(SIDES, rows) for _ in range(layers)]]


def encoder_decoder_inputs(
    layers: int, heads: int, head_size: int, encoder_length: int | str, *, dtype: DTypeLike = np.float32
) -> list[Any]:
    """Return the specifications of the arguments of a decoder step that attends to an encoder's result, for `to_onnx`.

    The function is called as `step(input_ids, past_key_values)`, with these names. The ids are int64 of shape
    (batch_size, sequence_length). `past_key_values` has one `{"decoder": rows, "encoder": rows}` for each layer, and
    rows are `{"key", "value"}` of shape (batch_size, heads, length, head_size). The decoder's rows belong to the
    previous tokens; there may be none. The function returns `{"logits", "present"}`: `present` has one
    `{"decoder": rows}` for each layer, with the new rows added. The encoder returns
    `{"encoder_hidden_states", "present": [{"encoder": rows}, ...]}`.

    The symbols are `batch_size`, `sequence_length` and `next_length`: the length of the cache is `next_length - 1`.

    Args:
      layers, heads, head_size: the sizes of the decoder.
      encoder_length: the length of the encoder's result, or a name for it.
      dtype: the dtype of both caches.

    Raises:
      InvalidArgument: a number is not positive.

    >>> from jaxport import encoder_decoder_inputs
    >>> encoder_decoder_inputs(1, 2, 8, 1500)[1][0]["decoder"]["key"]
    ShapeDtypeStruct(shape=(batch_size, 2, next_length - 1, 8), dtype=float32)
    """
    numbers = {"layers": layers, "heads": heads, "head_size": head_size}
    if not isinstance(encoder_length, str):
        numbers["encoder_length"] = encoder_length
    for name, number in numbers.items():
        if number < 1:
            _refuse(f"{name} is {number}", "encoder_decoder_inputs", "give the number that the model has")
    batch, sequence, following, *more = jax.export.symbolic_shape(
        ", ".join([BATCH, SEQUENCE, NEXT, *([encoder_length] if isinstance(encoder_length, str) else [])])
    )
    (length,) = more or (encoder_length,)
    own, cross = (jax.ShapeDtypeStruct((batch, heads, rows, head_size), dtype) for rows in (following - 1, length))
    layer = {"decoder": dict.fromkeys(SIDES, own), "encoder": dict.fromkeys(SIDES, cross)}
    return [jax.ShapeDtypeStruct((batch, sequence), np.int64), [layer for _ in range(layers)]]


@dataclass(frozen=True)
class Decoder:
    """The properties of a decoder that the inputs and outputs of its step determine.

    Attributes:
      layers, kv_heads, head_size: the sizes of the model.
      vocabulary: the number of logits; None if it returns only hidden states.
      static: whether the cache keeps its length.
      position_ids: whether the model has that input.
      embeddings: whether it takes embeddings in place of ids.
      cross: the shape of an encoder's keys that the decoder attends to; None if it attends to no encoder.
    """

    layers: int
    kv_heads: int
    head_size: int
    vocabulary: int | None
    static: bool
    position_ids: bool
    embeddings: bool
    cross: tuple[Dim, ...] | None = None

    @classmethod
    def of(cls, model: ir.Model, inputs: Sequence[Port], outputs: Sequence[Port]) -> Decoder:
        """Return the properties of a model from its inputs and outputs.

        Raises:
          InvalidArgument: the model is not a decoder's step; the message lists all problems.
        """
        input_ports = {port.name: port for port in inputs if not port.weight}
        output_ports = {port.name: port for port in outputs}
        problems = [*_problems_of_names(input_ports, output_ports)]
        if not problems:
            problems = [*_problems_of_types(input_ports, output_ports)]
        static = not problems and _cache_kind(input_ports, output_ports) == "static"
        if static:
            problems = [*_problems_of_sharing(model)]
        if problems:
            raise InvalidArgument(
                f"`{model.graph.name}` is not a step of a decoder",
                where='`to_onnx(target="genai")`',
                why="\n".join(problems),
                instead="declare the inputs by `jaxport.decoder_inputs(layers, kv_heads, head_size)` or "
                "`jaxport.encoder_decoder_inputs`, keep their argument names, and return "
                '{"logits": ..., "present": [{"key": ..., "value": ...}, ...]}',
            )
        past, cross = (ports_named(pattern, input_ports) for pattern in (_PAST, _CROSS))
        _, heads, _, size = past[0].shape
        vocabulary = output_ports[LOGITS].shape[2] if LOGITS in output_ports else None
        count = len(past) // len(SIDES)
        return cls(
            count,
            int(heads),
            int(size),
            None if vocabulary is None else int(vocabulary),
            static,
            "position_ids" in input_ports,
            EMBEDDINGS in input_ports,
            tuple(cross[0].shape) if cross else None,
        )

    @property
    def filename(self) -> str:
        """The name of the model's file in the folder of onnxruntime-genai."""
        return "model.onnx" if self.cross is None else "decoder_model.onnx"

    def config(
        self,
        context_length: int,
        eos_token_id: int | Sequence[int],
        bos_token_id: int | None,
        pad_token_id: int | None,
        search: Parameters,
    ) -> dict[str, Any]:
        """Return the contents of `genai_config.json`: https://onnxruntime.ai/docs/genai/reference/config.html.

        `Encoder.config` returns the part about an encoder.

        Raises:
          InvalidArgument: the step takes embeddings, or returns no logits, or there are beams and the cache is static.
        """
        if self.embeddings or self.vocabulary is None:
            has = f"takes `{EMBEDDINGS}`" if self.embeddings else f"returns no `{LOGITS}`"
            raise InvalidArgument(
                f"the step {has}",
                where="`save_genai`",
                why="onnxruntime-genai generates tokens from ids and logits; such a step is a part of a larger model",
                instead="write the step by `exported.save`, and the configuration of the whole model by hand",
            )
        beams = search.get("num_beams", 1)
        if self.static and beams != 1:
            raise InvalidArgument(
                f"`num_beams` is {beams}, and the cache is static",
                where="`save_genai(search=...)`",
                why="onnxruntime-genai reorders the caches of beams, which it does not do in a buffer for past and "
                "present",
                instead='export with `jaxport.decoder_inputs(cache="growing")`',
            )
        ends = eos_token_id if isinstance(eos_token_id, int) else list(eos_token_id)
        first_end = ends if isinstance(ends, int) else ends[0]
        ids = [name for name in _ids(self.cross is not None) if name not in _OPTIONAL or self.position_ids]
        own = OWN if self.cross is not None else ""
        cross = {f"cross_past_{side}_names": f"{PAST_NAMES}{CROSS}{side}" for side in SIDES}
        return {
            "model": {
                "type": "decoder" if self.cross is None else "whisper",
                "bos_token_id": first_end if bos_token_id is None else bos_token_id,
                "eos_token_id": ends,
                "pad_token_id": first_end if pad_token_id is None else pad_token_id,
                "context_length": context_length,
                "vocab_size": self.vocabulary,
                "decoder": {
                    "session_options": {"provider_options": []},
                    "filename": self.filename,
                    "head_size": self.head_size,
                    "num_hidden_layers": self.layers,
                    "num_key_value_heads": self.kv_heads,
                    **({} if self.cross is None else {"num_attention_heads": self.kv_heads}),
                    "inputs": {
                        **{name: name for name in ids},
                        **{f"past_{side}_names": f"{PAST_NAMES}{own}{side}" for side in SIDES},
                        **({} if self.cross is None else cross),
                    },
                    "outputs": {
                        "logits": "logits",
                        **{f"present_{side}_names": f"{PRESENT_NAMES}{own}{side}" for side in SIDES},
                    },
                },
            },
            "search": {"max_length": context_length, "past_present_share_buffer": self.static, **search},
        }


def name_dims(model: ir.Model) -> None:
    """Replace the expressions for the length of a growing cache by the name that callers use."""
    known = {
        f"{TOTAL} - {SEQUENCE}": PAST,
        f"{NEXT} - 1": PAST,
        f"{NEXT} + {SEQUENCE} - 1": TOTAL,
        f"{SEQUENCE} + {NEXT} - 1": TOTAL,
    }
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None:
            sizes = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
            if any(size in known for size in sizes):
                value.shape = ir.Shape([known.get(size, size) if isinstance(size, str) else size for size in sizes])


def attach_defaults(model: ir.Model, defaults: Mapping[str, np.ndarray]) -> None:
    """Store the values of weights that are inputs: callers replace all weights of an adapter, or none.

    Args:
      model: changed in place.
      defaults: the values, by name.
    """
    for value in model.graph.inputs:
        array = defaults.get(value.name or "")
        if array is not None and value.dtype is not None:
            value.const_value = ir.Tensor(array.astype(value.dtype.numpy(), copy=False), name=value.name)
            model.graph.register_initializer(value)


def is_step(names: Iterable[str | None]) -> bool:
    """Whether inputs of these names are those of a decoder's step, with their own cache."""
    known = {name for name in names if name is not None}
    return not known.isdisjoint({TOKENS, EMBEDDINGS}) and any(_PAST.fullmatch(name) for name in known)


def ports_named(pattern: re.Pattern[str], ports: Mapping[str, Port]) -> list[Port]:
    """Return the ports whose whole names match a pattern."""
    return [port for name, port in ports.items() if pattern.fullmatch(name)]


def _ids(crosses: bool) -> list[str]:
    """Return the names of the integer inputs; a decoder with an encoder has only the ids of the tokens."""
    return [TOKENS] if crosses else list(_IDS)


def _problems_of_names(input_ports: Mapping[str, Port], output_ports: Mapping[str, Port]) -> Iterator[str]:
    layers = max(1, len(ports_named(_PAST, input_ports)) // len(SIDES))
    crosses = bool(ports_named(_CROSS, input_ports))
    own = OWN if crosses else ""
    numbered = [(number, side) for number in range(layers) for side in SIDES]
    tokens = [EMBEDDINGS if EMBEDDINGS in input_ports and not crosses else TOKENS, *_ids(crosses)[1:]]
    result = HIDDEN_STATES if HIDDEN_STATES in output_ports and LOGITS not in output_ports else LOGITS
    wanted = {
        "input": (
            [
                *tokens,
                *(f"{PAST_NAMES % number}{own}{side}" for number, side in numbered),
                *(f"{PAST_NAMES % number}{CROSS}{side}" for number, side in numbered if crosses),
            ],
            input_ports,
        ),
        "output": ([result, *(f"{PRESENT_NAMES % number}{own}{side}" for number, side in numbered)], output_ports),
    }
    problems = [*problems_of_names(wanted, _OPTIONAL)]
    has_all = all(name in ports or name in _OPTIONAL for names, ports in wanted.values() for name in names)
    if crosses or not has_all:
        yield from problems
        return
    reserved = {name: port for name, port in input_ports.items() if _is_reserved(name, wanted["input"][0])}
    for name, port in input_ports.items():
        if name in reserved or ("position_ids" not in input_ports and name not in wanted["input"][0] and _counts(port)):
            yield f"the input `{name}` is unknown to callers" + ("" if name in reserved else "; is it `position_ids`?")
    for name in output_ports:
        if _is_reserved(name, wanted["output"][0]):
            yield f"the output `{name}` is unknown to callers"


def _is_reserved(name: str, known: Collection[str]) -> bool:
    """Whether a name is one that callers give a meaning, but not to this model."""
    return name not in known and (name in (TOKENS, EMBEDDINGS) or name.startswith(_PREFIXES))


def _counts(port: Port) -> bool:
    """Whether an input has the type and the shape of positions."""
    return port.model_dtype == np.int64 and [str(dim) for dim in port.shape] == [BATCH, SEQUENCE]


def problems_of_names(
    wanted: Mapping[str, tuple[Sequence[str], Mapping[str, Port]]], optional: Collection[str] = ()
) -> Iterator[str]:
    """Yield the wanted names that are missing, and the names that are not wanted, by kind of port."""
    for kind, (names, ports) in wanted.items():
        for name in names:
            if name not in ports and name not in optional:
                yield f"the {kind} `{name}` is missing"
        for name in ports:
            if name not in names:
                yield f"the {kind} `{name}` is unknown to callers"


def _problems_of_types(input_ports: Mapping[str, Port], output_ports: Mapping[str, Port]) -> Iterator[str]:
    for name in _IDS:
        port = input_ports.get(name)
        if port is not None and (port.model_dtype != np.int64 or len(port.shape) != 2):
            yield f"the input `{name}` is {shown(port)}, not int64 of rank 2"
    for name, width in ((LOGITS, "vocabulary"), (HIDDEN_STATES, "size")):
        port = output_ports.get(name)
        if port is not None and (len(port.shape) != 3 or not dims.is_static(port.shape[2])):
            yield f"the output `{name}` is {shown(port)}, not ({BATCH}, {SEQUENCE}, {width})"
    port = input_ports.get(EMBEDDINGS)
    if port is not None and (len(port.shape) != 3 or not dims.is_static(port.shape[2])):
        yield f"the input `{EMBEDDINGS}` is {shown(port)}, not ({BATCH}, {SEQUENCE}, size)"
    past = ports_named(_PAST, input_ports)
    first = past[0]
    yield from problems_of_rows("input", past)
    yield from problems_of_rows("input", ports_named(_CROSS, input_ports))
    for port in past:
        result = output_ports[port.name.replace("past_key_values", "present")]
        if result.model_dtype != port.model_dtype or _other_axes(result) != _other_axes(port):
            yield f"the output `{result.name}` is {shown(result)}, where `{port.name}` is {shown(port)}"
    if not _cache_kind(input_ports, output_ports):
        yield (
            f"the cache is of length {dims.label(first.shape[2])} and comes out of length "
            f"{dims.label(output_ports[first.name.replace('past_key_values', 'present')].shape[2])}: it neither grows "
            "by what goes in, nor keeps its length"
        )


def problems_of_rows(kind: str, ports: Sequence[Port]) -> Iterator[str]:
    """Yield the keys and values that have another rank than 4, or another shape or dtype than the first."""
    for port in ports:
        if len(port.shape) != 4 or not (dims.is_static(port.shape[1]) and dims.is_static(port.shape[3])):
            yield f"the {kind} `{port.name}` is {shown(port)}, not ({BATCH}, heads, length, size)"
        elif shown(port) != shown(ports[0]):
            yield f"the {kind} `{port.name}` is {shown(port)}, where `{ports[0].name}` is {shown(ports[0])}"


def _cache_kind(input_ports: Mapping[str, Port], output_ports: Mapping[str, Port]) -> Cache | None:
    """Return whether the cache of every layer grows by the new tokens or keeps its length; None if neither is the
    case.
    """
    new = input_ports[EMBEDDINGS if EMBEDDINGS in input_ports else TOKENS].shape[1]
    kinds: set[Cache | None] = set()
    for port in ports_named(_PAST, input_ports):
        result = output_ports[port.name.replace("past_key_values", "present")]
        grown = dims.same(result.shape[2], port.shape[2] + new)
        kept = dims.same(result.shape[2], port.shape[2])
        kinds.add("growing" if grown else "static" if kept else None)
    return kinds.pop() if len(kinds) == 1 else None


def _problems_of_sharing(model: ir.Model) -> Iterator[str]:
    """Yield the reads of a static cache that may follow a write to it, since input and output are one buffer."""
    results = {value.name: value for value in model.graph.outputs}
    for value in model.graph.inputs:
        if not _PAST.fullmatch(value.name or ""):
            continue
        result = results[(value.name or "").replace("past_key_values", "present")]
        writer = result.producer()
        # Further attention to the cache reads rows before the new ones, as the writer does.
        others = {*value.consumers()} - {*_measuring(value)}
        if is_cached_attention(writer) and all(map(is_cached_attention, others)) and writer in others:
            continue
        if writer is None or writer.op_type not in (*SCATTERS, "Concat"):
            yield (
                f"`{result.name}` is not `{value.name}` with rows written into it (dynamic_update_slice, "
                ".at[].set), in one block for each sequence"
            )
            continue
        for user in value.consumers():
            copied = user.op_type == "Slice" and all(reader is writer for reader in user.outputs[0].consumers())
            in_place = user is writer and writer.op_type in SCATTERS and _places(value, writer) == [0]
            if not (copied or in_place or user.op_type == "Shape"):
                yield f"`{value.name}` is read by {user.op_type} besides being updated to `{result.name}`"


def _measuring(value: ir.Value) -> list[ir.Node]:
    return [user for user in value.consumers() if user.op_type == "Shape"]


def _places(value: ir.Value, node: ir.Node) -> list[int]:
    return [index for index, operand in enumerate(node.inputs) if operand is value]


def _other_axes(port: Port) -> list[str]:
    return [str(dim) for axis, dim in enumerate(port.shape) if axis != 2]


def shown(port: Port) -> str:
    """Return a port's dtype and shape as messages show them."""
    return f"{port.model_dtype}[{', '.join(str(dims.label(dim)) for dim in port.shape)}]"


def _refuse(problem: str, where: str, instead: str) -> None:
    raise InvalidArgument(problem, where=f"`{where}`", instead=instead)
