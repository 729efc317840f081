"""Examples at their published sizes as crates for Burn, with random weights, against JAX: `make test-real`."""

from __future__ import annotations

import pytest

from tests.burn.crates import build
from tests.burn.test_models import compare, printed

pytestmark = pytest.mark.real


@pytest.mark.parametrize("cell", ["resnet50/nnx", "gpt2/nnx", "bert_base/nnx"])
def test_a_model_of_its_published_size_computes_the_same_in_rust(cell: str) -> None:
    model = printed(cell, "real")
    compare(build({cell: model.case}, "published"), cell, model)
