"""Pools over open sizes that are rounded up: a crate has the windows of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

import jaxport
from jaxport.codegen.burn.crate import to_crate
from jaxport.codegen.recorded.fused import record_fused
from tests.burn.crates import RunError, build, case_of
from tests.importer.test_pools import LENGTHS, model, pools

pytestmark = pytest.mark.burn


def test_a_pool_that_is_rounded_up_has_the_windows_of_onnx_runtime() -> None:
    made = model(pools()[::3])
    session = ort.InferenceSession(made.SerializeToString())
    built = build(
        {"pools": case_of(to_crate(record_fused(jaxport.from_onnx(made), reads_sizes=True)), "pools")}, "pools"
    )
    assert not built.errors
    for length in LENGTHS:
        x = np.arange(length, dtype=np.float32).reshape(1, 1, length)
        outputs = built.run("pools", {"x": x})
        assert not isinstance(outputs, RunError), outputs
        for value, want in zip(session.get_outputs(), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(outputs[value.name], want, rtol=1e-5, err_msg=f"{value.name} of {length}")
