"""A sample of `make test-runtimes` in the runtime at hand."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from examples.web import digits, text
from tests.runtimes import __main__ as runs, faults, javascript, page, running
from tests.runtimes.faults import FAULTS, Fault
from tests.runtimes.programs import FUNCTIONS
from tests.runtimes.writing import write

RUNNING = Path(__file__).parents[2] / "docs" / "running.md"
SAMPLE = ("rfft", "while", "uint8", "random")


def test_a_sample_runs_for_each_target(tmp_path):
    programs = [program for program in FUNCTIONS if program.name in SAMPLE]
    refused = write(tmp_path, programs, ["portable", "openvino"])
    assert not refused
    results = running.results(tmp_path, "onnxruntime")
    assert len(results) == 2 * len(SAMPLE)
    assert not any(results.values()), results


def test_a_target_without_names_of_sizes_has_the_first_ones(tmp_path):
    programs = [program for program in FUNCTIONS if program.name in ("gelu", "argmax", "random")]
    refused = write(tmp_path, programs, ["edge"])
    assert list(refused) == ["random-edge"]
    models = json.loads((tmp_path / "models.json").read_text())
    assert {name: model["cases"] for name, model in models.items()} == {
        "gelu-edge": ["gelu-0"],
        "argmax-edge": ["argmax-0"],
    }
    assert not any(running.results(tmp_path, "onnxruntime").values())


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


def test_what_node_and_the_browser_answer_is_compared(tmp_path):
    np.savez(tmp_path / "case-outputs.npz", np.arange(3, dtype=np.int64))
    np.savez(tmp_path / "case-inputs.npz", x=np.ones(2, np.float32))
    names = ("right", "wrong", "fails", "silent", "float16")
    models = {name: {"cases": ["case"], "limit": 1e-4} for name in names}
    right, wrong = (
        {"outputs": [javascript.encoded("", np.arange(start, start + 3))], "case": "case"} for start in (0, 1)
    )
    answers = [{"model": "right", **right}, {"model": "wrong", **wrong}, {"model": "fails", "error": "no kernel"}]
    answers.append({"model": "float16", "error": "Program Cast requires f16 but the device does not support it."})
    assert javascript.compared(tmp_path, models, answers) == {
        "right": "",
        "wrong": "an element is off by 1, where the largest is 2",
        "fails": "no kernel",
        "silent": "nothing was answered for case",
    }


@pytest.mark.parametrize(
    ("target", "needed", "runtime", "own"),
    [
        ("onnx", "1.19", "1.19", True),
        ("onnx", "1.23", "1.20", False),
        ("onnx", None, "1.20", False),
        ("onnx", "1.23", "newest", True),
        ("onnx", "1.19", "web", False),
        ("portable", "1.19", "node", True),
        ("edge", "1.19", "1.19", True),
        ("edge", "1.19", "web", False),
        ("portable", "1.19", "web", False),
        ("portable", "1.19", "openvino", False),
    ],
)
def test_a_runtime_has_models_of_its_own(target, needed, runtime, own):
    assert runs.is_own({"target": target, "runtime": needed}, runtime) == own


def test_what_is_told_is_counted(capsys):
    found = page.Found("a runtime", {"one": "", "two": "no kernel"})
    assert runs.told(found) is found
    assert capsys.readouterr().out == "a runtime: 1 of 2\n  two: no kernel\n"


def test_the_page_of_a_run():
    text = page.page(
        [page.Found("ONNX Runtime 1.19.2", {"int8-dynamic-portable": "", "fft-portable": "", "fft-onnx": ""})],
        page.Found("onnxruntime-genai 0.18.0", {"a Llama": ""}),
        page.Found("Chromium 1", {"a drawn 3": "", "a drawn 7": ""}),
        {"int4-portable": "it has no 4 | bits\n  where: here"},
        ["portable", "web", "onnx"],
        2,
        [page.Found("OpenVINO 1, its faults", {"one": "", "another": ""})],
    )
    assert '| runtime | `"portable"` | `"web"` | `"onnx"` |' in text
    assert "| ONNX Runtime 1.19.2 | 2 of 2 | – | 1 of 1 |" in text
    assert '| int4 | `"portable"` | it has no 4 \\| bits |' in text
    assert "onnxruntime-genai 0.18.0 chooses the same 32 tokens as JAX in greedy decoding, for:\n\n- a Llama" in text
    assert "OpenVINO 1, its faults: one, another.\n" in text
    assert "In Chromium 1, the [page]" in text
    assert "drawn on its canvas, by the CPU and by WebGPU: 3, 7." in text


def test_faults_are_right_elsewhere_and_each_has_a_row(tmp_path):
    """ONNX Runtime gives what the reference gives: the files are valid, and it is the other runtime that is wrong."""
    faults.write(tmp_path, FAULTS)
    results = running.results(tmp_path, "onnxruntime")
    assert results.keys() == {fault.name for fault in FAULTS}
    assert not any(results.values()), results
    rows = [line for line in RUNNING.read_text().splitlines() if line.startswith("| ")]
    for fault in FAULTS:
        assert sum(row.startswith(f"| {fault.effect} | ") for row in rows) == 1, fault.name


def test_a_step_of_the_decoder_of_the_page_is_written_for_the_gpu(tmp_path):
    text.write(tmp_path, steps=0)
    assert {path.name for path in tmp_path.iterdir()} == {"text.html", "text.onnx", "letters.json"}
    assert json.loads((tmp_path / "letters.json").read_text())["letters"] == text.LETTERS


def test_a_fault_that_is_mended_is_told(tmp_path):
    """The runtime at hand stands for the one that was mended."""
    fault = replace(FAULTS[0], runtime="newest")
    kept = Fault("wrong", "newest", "", "wrong (float[1] x) => (float[1] y) { y = Sin(x) }", {"x": np.float32([1])})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "FAULTS", (fault, kept, FAULTS[1]))
        patch.setattr(
            Fault, "expected", property(lambda own: [np.float32([[-6, -14]]) if own is fault else np.zeros(1)])
        )
        (found,) = runs.with_faults(tmp_path / "faults", {"newest": sys.executable, "1.19": "none"})
    assert found.results == {fault.name: "it is computed rightly", "wrong": ""}


def test_the_page_and_its_model_are_written(tmp_path):
    digits.write(tmp_path, steps=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits.onnx", "index.html"]
    model = onnx.load(tmp_path / "digits.onnx")
    page = (tmp_path / "index.html").read_text()
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ["image", "digits"]
    assert "session.run({ image:" in page
    assert "const { digits } =" in page
