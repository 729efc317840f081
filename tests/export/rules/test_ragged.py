"""Products over groups of rows."""

from __future__ import annotations

import numpy as np
import pytest
from jax import lax

from jaxport.testing import check, f32, i32

X, Y, WIDE = (np.random.default_rng(0).normal(size=s).astype(np.float32) for s in [(6, 4), (3, 4, 5), (6, 5)])


@pytest.mark.parametrize("sizes", [[2, 3, 1], [0, 6, 0], [1, 1, 1]])
def test_groups_of_rows(sizes):
    check(lax.ragged_dot, f32(6, 4), f32(3, 4, 5), i32(3), values=(X, Y, np.array(sizes, np.int32)))


def test_groups_of_the_contracted_axis():
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(([0], [0]), ([], [])), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )
    check(
        lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, numbers),
        *(f32(6, 4), f32(6, 5), i32(3)),
        values=(X, WIDE, np.array([2, 3, 1], np.int32)),
    )
