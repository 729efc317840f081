"""Encoder-decoders: an encoder, and the decoder that attends to its result, as two models.

The encoder takes `audio_features` and returns `encoder_hidden_states`, and the keys and values that each layer of the
decoder attends to: `present.N.encoder.key` and `.value`. The decoder takes these as `past_key_values.N.encoder.key` and
`.value` in each step (see `decoders`). The names are those of Hugging Face's decoders; onnxruntime-genai reads them
from `genai_config.json`, in which the type of such a model is "whisper".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.export.generation.decoders import (
    CROSS,
    PRESENT_NAMES,
    SIDES,
    Decoder,
    ports_named,
    problems_of_names,
    problems_of_rows,
    shown,
)
from jaxport.export.ports import Port
from jaxport.jaxprs import Dim, dims

FEATURES, STATES = "audio_features", "encoder_hidden_states"
FRAMES = 3000
"""The number of frames that onnxruntime-genai passes to an encoder; it allocates half as many states."""

_PRESENT = re.compile(r"present\.\d+\.encoder\.(key|value)")


@dataclass(frozen=True)
class Encoder:
    """The properties of an encoder that its inputs and outputs determine.

    Attributes:
      layers: the number of layers of the decoder.
      hidden: the size of a state.
      frames, states: the lengths of the input and of the result.
      rows: the shape of the keys that the decoder attends to.
    """

    layers: int
    hidden: int
    frames: Dim
    states: Dim
    rows: tuple[Dim, ...]

    filename = "encoder_model.onnx"

    @classmethod
    def of(cls, model: ir.Model, inputs: Sequence[Port], outputs: Sequence[Port]) -> Encoder:
        """Return the properties of a model from its inputs and outputs.

        Raises:
          InvalidArgument: the model is not an encoder; the message lists all problems.
        """
        input_ports = {port.name: port for port in inputs if not port.weight}
        output_ports = {port.name: port for port in outputs}
        rows = ports_named(_PRESENT, output_ports)
        problems = [*_problems(input_ports, output_ports, rows)]
        if problems:
            raise InvalidArgument(
                f"`{model.graph.name}` is not an encoder",
                where='`to_onnx(target="genai")`',
                why="\n".join(problems),
                instead=f"take `{FEATURES}` of shape (batch_size, features, frames), and return "
                f'{{"{STATES}": ..., "present": [{{"encoder": {{"key": ..., "value": ...}}}}, ...]}}',
            )
        _, states, hidden = output_ports[STATES].shape
        features = int(input_ports[FEATURES].shape[2])
        return cls(len(rows) // len(SIDES), int(hidden), features, states, tuple(rows[0].shape))

    def config(self) -> dict[str, Any]:
        """Return the part of `genai_config.json` about the encoder."""
        return {
            "session_options": {"provider_options": []},
            "filename": self.filename,
            "hidden_size": self.hidden,
            "num_attention_heads": self.rows[1],
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.rows[1],
            "head_size": self.rows[3],
            "inputs": {FEATURES: FEATURES},
            "outputs": {
                STATES: STATES,
                **{f"cross_present_{side}_names": f"{PRESENT_NAMES}{CROSS}{side}" for side in SIDES},
            },
        }


def is_encoder(outputs: Sequence[Port]) -> bool:
    """Whether the outputs of a model have the names of an encoder's."""
    return any(port.name == STATES for port in outputs)


def config_text(decoder: Decoder, encoder: Encoder | None, **options: Any) -> str:
    """Return `genai_config.json` as text.

    Raises:
      InvalidArgument: the decoder attends to an encoder and `encoder` is None or does not fit, or it attends to none
        and `encoder` is not None.
    """
    problems = [*_problems_of_a_pair(decoder, encoder)]
    if problems:
        raise InvalidArgument(
            "the decoder and its encoder do not match",
            where="`save_genai(encoder=...)`",
            why="\n".join(problems),
            instead="declare the decoder's inputs by `jaxport.encoder_decoder_inputs`, and give the encoder's export",
        )
    config = decoder.config(**options)
    if encoder is not None:
        config["model"] = {**config["model"], "encoder": encoder.config()}
    return json.dumps(config, indent=2) + "\n"


def _problems_of_a_pair(decoder: Decoder, encoder: Encoder | None) -> Iterator[str]:
    if decoder.cross is None or encoder is None:
        if decoder.cross is not None:
            yield "the decoder attends to the result of an encoder, but no encoder is given"
        elif encoder is not None:
            yield "the decoder does not attend to an encoder"
        return
    if encoder.layers != decoder.layers:
        yield f"the encoder has keys and values for {encoder.layers} layers, the decoder has {decoder.layers}"
    if (encoder.rows[1], encoder.rows[3]) != (decoder.cross[1], decoder.cross[3]):
        yield (
            f"the encoder's keys have {encoder.rows[1]} heads of size {encoder.rows[3]}, those of the decoder "
            f"{decoder.cross[1]} of size {decoder.cross[3]}"
        )
    wanted = {"frames": (encoder.frames, FRAMES), "states": (encoder.states, FRAMES // 2)}
    wanted["keys"], wanted["keys of the decoder"] = (encoder.rows[2], FRAMES // 2), (decoder.cross[2], FRAMES // 2)
    for name, (length, expected) in wanted.items():
        if dims.is_static(length) and length != expected:
            yield (
                f"there are {length} {name}; onnxruntime-genai gives every encoder {FRAMES} frames, and allots "
                f"{expected}"
            )


def _problems(input_ports: Mapping[str, Port], output_ports: Mapping[str, Port], rows: Sequence[Port]) -> Iterator[str]:
    layers = max(1, len(rows) // len(SIDES))
    names = [f"{PRESENT_NAMES % number}{CROSS}{side}" for number in range(layers) for side in SIDES]
    wrong = [*problems_of_names({"input": ([FEATURES], input_ports), "output": ([STATES, *names], output_ports)})]
    yield from wrong
    if wrong:
        return
    for kind, port in (("input", input_ports[FEATURES]), ("output", output_ports[STATES])):
        if len(port.shape) != 3 or not dims.is_static(port.shape[1 if kind == "input" else 2]):
            yield f"the {kind} `{port.name}` is {shown(port)}, not of rank 3 with a known number of features"
    yield from problems_of_rows("output", rows)
