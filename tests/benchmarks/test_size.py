"""Printing takes time in proportion to the nodes of a file."""

from __future__ import annotations

import time

import pytest

import jaxport
from benchmarks.bench_size import GRAPHS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("graph", ["chain", "wide"])
def test_time_of_printing_is_linear(graph: str) -> None:
    """Five times the nodes take about five times the CPU time; what is quadratic takes up to 25 times."""
    seconds = []
    for count in (200, 2000, 10_000):  # the first warms up
        program = jaxport.from_onnx(GRAPHS[graph](count))
        start = time.process_time()
        program.to_source(framework="nnx")
        seconds.append(time.process_time() - start)
    assert seconds[2] < 9 * seconds[1]
