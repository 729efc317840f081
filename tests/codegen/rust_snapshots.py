"""Write `tests/codegen/rust/`: the models of a dozen examples for Burn, as printed without rustfmt.

python -m tests.codegen.rust_snapshots
"""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import jaxport
from examples.models import build
from jaxport.codegen.burn import crate
from jaxport.codegen.recorded.fused import record_fused
from jaxport.importer.interface import in_model_order

FOLDER = Path(__file__).with_name("rust")
MODELS = (
    "bert_base/nnx", "bidirectional_gru/nnx", "cnn/nnx", "cross_attention/equinox", "gpt2/nnx", "gpt2_greedy/nnx", "llama/nnx",
    "llama_decode/jax", "lstm/linen", "mlp/equinox", "moe/nnx", "vit_b16/nnx",
)  # fmt: skip


def path_of(name: str) -> Path:
    """Where the text of a model is kept."""
    return FOLDER / f"{name.replace('/', '_')}.rs"


def text_of(name: str) -> str:
    """Print a model; the layout does not depend on a toolchain that may be there."""
    example = build(*name.split("/"), "small")  # type: ignore[arg-type]
    exported = jaxport.to_onnx(example.fn, list(example.inputs), **example.options)
    program = in_model_order(jaxport.from_onnx(exported.model))
    with mock.patch.object(crate, "formatted", lambda text: text):
        made = crate.to_crate(record_fused(program))
    tensors = "".join(f"// {key}: {list(value.shape)}\n" for key, value in made.tensors.items())
    return f"{made.model}\n{tensors}"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for one in MODELS:
        path_of(one).write_text(text_of(one), encoding="utf-8")
