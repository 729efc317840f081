"""Products over groups of rows (mixtures of experts), by JAX's own definition in terms of masks and `dot_general`."""

from __future__ import annotations

from jaxport.export.registry import rule
from jaxport.jaxprs import definitions


def _ragged_dot(x, y, group_sizes, *, ragged_dot_dimension_numbers, preferred_element_type):
    return definitions.ragged_dot_general_impl(
        x, y, group_sizes, ragged_dot_dimension_numbers, preferred_element_type=preferred_element_type
    )


rule("ragged_dot_general", via=_ragged_dot, irrelevant=("precision",))
