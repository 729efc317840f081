"""Test helpers, for this package and for authors of plugins."""

from jaxport.testing.checking import SIZES, VARIANTS, check, check_model
from jaxport.testing.modules import seeded
from jaxport.testing.specs import boolean, f32, f64, i32, sample, spec
from jaxport.testing.structure import check_declared, expect_graph, expectation

__all__ = [
    "SIZES",
    "VARIANTS",
    "boolean",
    "check",
    "check_declared",
    "check_model",
    "expect_graph",
    "expectation",
    "f32",
    "f64",
    "i32",
    "sample",
    "seeded",
    "spec",
]
