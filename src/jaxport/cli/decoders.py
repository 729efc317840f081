"""What a user types for a language model: `--decoder "layers=2,kv_heads=2,head_size=8,context_length=64,eos_token_id=0"`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxport.cli import specs
from jaxport.errors import InvalidArgument

if TYPE_CHECKING:
    from jaxport.export.exported import Exported
    from jaxport.jaxprs import PyTree

__all__ = ["DecoderOption", "parse_decoder"]

_INPUTS = {"layers": True, "kv_heads": True, "head_size": True, "cache": False, "position_ids": False, "dtype": False}
_SAVING = {"context_length": True, "eos_token_id": True, "bos_token_id": False, "pad_token_id": False}
"""The names, and whether each has to be given."""


@dataclass(frozen=True)
class DecoderOption:
    """What was typed: arguments of `jaxport.decoder_inputs`, and of `exported.save_genai`."""

    arguments: dict[str, Any] = field(default_factory=dict)
    saving: dict[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> list[PyTree]:
        """The specifications of the inputs."""
        import jaxport

        return jaxport.decoder_inputs(**self.arguments)

    def save(self, exported: Exported, folder: Path, external_data: bool | None) -> Path:
        """Write the folder, and return the file of the model in it."""
        exported.save_genai(folder, **self.saving, external_data=external_data)
        return folder / "model.onnx"


def parse_decoder(text: str | None) -> DecoderOption | None:
    """Read the option `--decoder`.

    Raises:
      InvalidArgument: a name is unknown, missing or given twice.

    >>> parse_decoder("layers=2,kv_heads=2,head_size=8,context_length=64,eos_token_id=0").saving
    {'context_length': 64, 'eos_token_id': 0}
    """
    if text is None:
        return None
    values = specs.parse_keyword(text.replace(" ", "").split(","), "--decoder")
    known = {**_INPUTS, **_SAVING}
    wrong = [f"`{name}` is unknown" for name in values if name not in known]
    wrong += [f"`{name}` is missing" for name, needed in known.items() if needed and name not in values]
    if wrong:
        raise InvalidArgument(
            "; ".join(wrong), where="`--decoder`", instead=f"give {', '.join(n for n in known if known[n])}"
        )
    arguments, saving = ({name: values[name] for name in names if name in values} for names in (_INPUTS, _SAVING))
    return DecoderOption(arguments, saving)
