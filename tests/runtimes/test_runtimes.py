"""A sample of `make test-runtimes` in the runtime at hand."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.runtimes import running
from tests.runtimes.programs import FUNCTIONS
from tests.runtimes.writing import write

SAMPLE = ("rfft", "while", "uint8", "random")


def test_a_sample_runs_for_each_target(tmp_path):
    programs = [program for program in FUNCTIONS if program.name in SAMPLE]
    refused = write(tmp_path, programs, ["portable", "openvino"])
    assert sorted(refused) == ["random-openvino", "rfft-openvino"]
    results = running.results(tmp_path, "onnxruntime")
    assert len(results) == 2 * len(SAMPLE) - len(refused)
    assert not any(results.values()), results


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ([np.zeros(2, np.float32)], "an element is off by 1"),
        ([np.ones(3, np.float32)], r"float32\[2\], not float32\[3\]"),
        ([], "1 outputs, not 0"),
    ],
)
def test_what_differs_is_seen(tmp_path, outputs, text):
    np.savez(tmp_path / "case-inputs.npz", x=np.ones(2, np.float32))
    np.savez(tmp_path / "case-outputs.npz", *outputs)
    assert re.match(text, running.problem(lambda inputs: [inputs["x"]], tmp_path, "case", 1e-4))


def test_a_model_that_does_not_load_is_no_end(tmp_path):
    (tmp_path / "models.json").write_text(json.dumps({"none": {"cases": [], "limit": 1e-4}}))
    assert running.results(tmp_path, "onnxruntime")["none"]
