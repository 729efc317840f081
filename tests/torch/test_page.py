"""The page of what was imported says what was found; it needs no PyTorch."""

from __future__ import annotations

from tests.torch.page import QUESTIONS, page

FOUND = dict.fromkeys(QUESTIONS, "")
ROWS = [
    {"model": "vit", "exporter": "dynamo", "variant": "", "opset": 20, "oracle": "ONNX Runtime", **FOUND},
    {"model": "bert", "exporter": "legacy", "variant": "int8", "opset": 14, "oracle": "PyTorch", **FOUND, "symbolic": "a `b` c"},
    {"model": "mamba", "exporter": "dynamo", "variant": "", "refused": "cannot"},
]  # fmt: skip


def test_what_holds_is_counted_and_what_does_not_is_listed():
    text = page(ROWS)
    assert "2 files of 2 architectures" in text
    assert "*equal* (2 of 2)" in text
    assert "*symbolic* (1 of 2)" in text
    assert "14 to 20. PyTorch itself cannot export 1 further files with dynamic shapes" in text
    assert "| vit | dynamo |  | 20 | yes | yes | yes | yes | yes |" in text
    assert "| bert | legacy | int8 | 14 | yes° | no | yes | yes | yes |" in text
    assert "- bert, legacy, int8, symbolic: `a b c`" in text
    assert text.endswith("## What PyTorch cannot export with dynamic shapes\n\n- mamba, dynamo: `cannot`\n")
