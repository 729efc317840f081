"""The backend suite of an older release of onnx, which has its cases as files: `make test-older-onnx` puts them there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.importer import backend

RELEASE = "1.16.2"
FOLDER = Path(__file__).parents[2] / f".onnx-{RELEASE}"
EXCLUDED: dict[str, tuple[str, ...]] = {
    "onnx 1.23 corrected the expected values: of the same model, inputs and tolerances": (
        "test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
        "test_cast_FLOAT16_to_INT4",
        "test_cast_FLOAT16_to_UINT4",
        "test_cast_FLOAT_to_INT4",
        "test_cast_FLOAT_to_UINT4",
        "test_dft_inverse",
        "test_dft_inverse_opset19",
        "test_qlinearmatmul_2D_int8_float16",
        "test_qlinearmatmul_2D_int8_float32",
        "test_qlinearmatmul_3D_int8_float16",
        "test_qlinearmatmul_3D_int8_float32",
    ),
    "onnx 1.23 corrected the model: it lacks the attribute `epsilon` that the expected values were made with": (
        "test_adam_multiple",
    ),
}
"""Cases that are not run, grouped by the reason."""

CASES = backend.shipped(FOLDER) if FOLDER.is_dir() else {}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CASES, reason=f"onnx {RELEASE} is not there: `make test-older-onnx` fetches it"),
]


@pytest.mark.parametrize("name", CASES or ["test_add"])
def test_program(name: str) -> None:
    for reason, names in EXCLUDED.items():
        if name in names:
            pytest.skip(reason)
    backend.run(CASES[name])


def test_exclusions_are_few_and_name_cases() -> None:
    excluded = [name for names in EXCLUDED.values() for name in names]
    assert set(excluded) <= set(CASES)
    assert len(excluded) <= len(CASES) // 100
