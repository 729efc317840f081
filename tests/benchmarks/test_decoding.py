"""The graph that decoding is measured against computes the same logits as ours."""

from __future__ import annotations

import pytest

from benchmarks.bench_decoding import differ, ratio, sides
from examples.language_model import Llama
from examples.models.llama import Config
from examples.models.weights import nnx_model

CONFIG = Config(vocabulary=40, hidden=64, layers=2, heads=4, groups=2, mlp=48, new_tokens=4)


@pytest.mark.parametrize(("cache", "rows"), [("growing", None), ("static", 16)])
@pytest.mark.parametrize(("precision", "most"), [("float32", 1e-5), ("float16", 1e-2)])
def test_both_graphs_return_the_same_logits(cache, rows, precision, most):
    pair = sides(nnx_model(Llama, CONFIG, None), CONFIG, cache, precision)
    for new, past in ((1, 5), (3, 0)):
        ours, theirs, *_ = (side.bound(new, past, rows)() for side in pair)
        assert ours.shape == (1, new, 40)
        assert differ(ours, theirs) < most
    with pytest.raises(SystemExit, match="the two graphs differ by"):
        ratio(pair, 1, 5, rows, 1, most=-1.0)
