"""Attributes that operators do not have: told and ignored where ONNX Runtime ignores them, refused elsewhere."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from jaxport.errors import Unsupported
from jaxport.importer import from_onnx
from jaxport.onnx_facts import WITHOUT_ATTRIBUTE_CHECK
from tests.cli.running import run
from tests.importer.models import model

MISSPELT = "g (float[n, 4] x, float[4] s) => (float[n, 4] y) { y = LayerNormalization<epsion = 0.5>(x, s) }"
OTHERS = [
    "y = Relu<bogus = 1>(x)",
    "y = Softmax<axes = 1>(x)",
    "y = MatMul<alpha = 1.0>(x, s)",
    "y = com.microsoft.Gelu<bogus = 1>(x)",
]


def test_what_the_runtime_ignores_is_told_and_ignored():
    made = model(MISSPELT)
    with pytest.warns(UserWarning, match="`epsion` of the LayerNormalization that makes `y`.*`epsilon` may be meant"):
        program = from_onnx(made)
    assert "`epsion`" in str(program.explain()["resolved"])
    x, s = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32), np.ones(4, np.float32)
    (expected,) = ort.InferenceSession(made.SerializeToString()).run(None, {"x": x, "s": s})
    np.testing.assert_allclose(program(x, s), np.asarray(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*epsion")
def test_it_is_refused_on_request(tmp_path, capsys):
    with pytest.raises(Unsupported, match="epsion"):
        from_onnx(model(MISSPELT), strict=True)
    onnx.save(model(MISSPELT), tmp_path / "m.onnx")
    assert run("import", tmp_path / "m.onnx", "-o", tmp_path / "out", "--strict") != 0
    assert "epsion" in capsys.readouterr().err
    assert run("import", tmp_path / "m.onnx", "-o", tmp_path / "out") == 0


@pytest.mark.parametrize("node", OTHERS)
def test_what_the_runtime_refuses_is_refused(node: str):
    made = model(f"g (float[4, 4] x, float[4, 4] s) => (float[4, 4] y) {{ {node} }}")
    if not made.opset_import or all(entry.domain != "com.microsoft" for entry in made.opset_import):
        made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(Exception, match="Unrecognized attribute"):
        ort.InferenceSession(made.SerializeToString())
    with pytest.raises(Unsupported, match="is not one of its attributes"):
        from_onnx(made)


@pytest.mark.parametrize("name", sorted(WITHOUT_ATTRIBUTE_CHECK))
def test_the_runtime_does_not_check_these(name: str):
    made = model(f"g (float[4, 4] x, float[4] s) => (float[4, 4] y) {{ y = {name}<bogus = 1>(x, s) }}")
    ort.InferenceSession(made.SerializeToString())
