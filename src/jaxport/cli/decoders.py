"""What a user types for a language model: `--decoder
"layers=2,kv_heads=2,head_size=8,context_length=64,eos_token_id=0"`.

For an encoder-decoder, `--encoder` is the encoder, as `MODULE:ATTRIBUTE`, and `--input` is that of the encoder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxport.cli import specs
from jaxport.errors import InvalidArgument

if TYPE_CHECKING:
    from jaxport.export.exported import Exported

_INPUTS = {"layers": True, "kv_heads": True, "head_size": True, "cache": False, "position_ids": False, "dtype": False}
_WITH_ENCODER = {"layers": True, "heads": True, "head_size": True, "encoder_length": True, "dtype": False}
_SAVING = {"context_length": True, "eos_token_id": True, "bos_token_id": False, "pad_token_id": False}
"""The names, and whether each has to be given."""


@dataclass(frozen=True)
class DecoderOption:
    """What was typed.

    Attributes:
      arguments: arguments of `jaxport.decoder_inputs`, or with an encoder of `jaxport.encoder_decoder_inputs`.
      saving: arguments of `exported.save_genai`.
      encoder: the encoder, as `MODULE:ATTRIBUTE`; None if there is none.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    saving: dict[str, Any] = field(default_factory=dict)
    encoder: str | None = None

    @property
    def inputs(self) -> list[Any]:
        """The specifications of the inputs."""
        import jaxport

        make = jaxport.encoder_decoder_inputs if self.encoder else jaxport.decoder_inputs
        return make(**self.arguments)

    def save(self, decoder: Exported, encoder: Exported | None, folder: Path, external_data: bool | None) -> Path:
        """Write the folder, and return the file of the decoder in it."""
        from jaxport.export.generation.decoders import Decoder

        decoder.save_genai(folder, **self.saving, encoder=encoder, external_data=external_data)
        return folder / Decoder.of(decoder.model, decoder.inputs, decoder.outputs).filename


def parse_decoder(text: str | None, encoder: str | None, destination: str, inputs: bool) -> DecoderOption | None:
    """Read the options `--decoder` and `--encoder`.

    Args:
      text: `--decoder`.
      encoder: `--encoder`.
      destination: `--target`.
      inputs: whether there is an `--input`.

    Raises:
      InvalidArgument: a name is unknown, missing or given twice, or options contradict each other.

    >>> parse_decoder("layers=2,kv_heads=2,head_size=8,context_length=64,eos_token_id=0", None, "genai", False).saving
    {'context_length': 64, 'eos_token_id': 0}
    """
    if text is None:
        if encoder is not None or destination == "genai":
            raise InvalidArgument(
                "`--encoder` needs `--decoder`" if encoder else 'the target "genai" needs `--decoder`',
                where="`--encoder`" if encoder else "`--target genai`",
                instead='say `--decoder "layers=...,kv_heads=...,head_size=...,context_length=...,eos_token_id=..."`',
            )
        return None
    apart = "leave one of the two out"
    if destination not in ("onnx", "genai"):
        _refuse(f"`--target {destination}` and `--decoder` are given", 'a decoder is for the target "genai"', apart)
    if inputs and encoder is None:
        _refuse("`--input` and `--decoder` are given", "`--decoder` declares the inputs", apart)
    if encoder is not None and not inputs:
        _refuse(
            "the input of the encoder is missing",
            "`--decoder` declares only the inputs of the decoder",
            "give `--input`",
        )
    values = specs.parse_keyword(text.replace(" ", "").split(","), "--decoder")
    declared = _INPUTS if encoder is None else _WITH_ENCODER
    known = {**declared, **_SAVING}
    wrong = [f"`{name}` is unknown" for name in values if name not in known]
    wrong += [f"`{name}` is missing" for name, needed in known.items() if needed and name not in values]
    if wrong:
        raise InvalidArgument(
            "; ".join(wrong), where="`--decoder`", instead=f"give {', '.join(n for n in known if known[n])}"
        )
    arguments, saving = ({name: values[name] for name in names if name in values} for names in (declared, _SAVING))
    return DecoderOption(arguments, saving, encoder)


def _refuse(problem: str, why: str, instead: str) -> None:
    raise InvalidArgument(problem, where="`--decoder`", why=why, instead=instead)
