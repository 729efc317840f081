"""Every primitive that JAX itself can lower has a rule, an implementation, or a reason why it has neither."""

from __future__ import annotations

import re
from pathlib import Path

import equinox  # whose primitives are in JAX's table from then on
import pytest
from jax._src.dispatch import apply_primitive  # what a primitive without an implementation has in its place

# The tables of what JAX can lower have no public name.
from jax._src.interpreters import mlir
from jax._src.pallas import primitives as pallas  # as well

from jaxport.export.prepare.complex import OF_COMPLEX
from jaxport.export.prepare.pairs import FORMULAS
from jaxport.export.rules import RULES
from jaxport.export.rules.refused import REASONS
from jaxport.jaxprs.releases import implementations

#: Primitives that no traced program holds, and why.
UNREACHABLE = {
    "mark the boundaries of blocks, and are removed by grouping before the export": "block_enter block_exit",
    "inside a primitive that is refused, and occurs only when that primitive is lowered": """
        dot_product_attention_bwd dot_product_attention_fp8_bwd dot_product_attention_fp8_fwd dot_product_attention_fwd
        scaled_matmul
    """,
    "check and measure the arguments of programs exported by `jax.export`": "dimension_size shape_assertion",
    "replaced by plain values before the export, like all mutable arrays": "run_state create_linear pin unpin",
    "used by no JAX function": "from_edtype to_edtype",
    f"used only in kernels (`{pallas.__name__}`)": "run_scoped",
    f"of `{equinox.internal.__name__}`, which asks for the value of a number": "noinline",
}

#: Rules for primitives of other releases of JAX than the installed one, whose names no test needs.
OF_OTHER_RELEASES = """
    copy_p core_call reduced_vary_cast reduced_vary_cast_p relayout shard_alike unreduced_pmax unreduced_pmin
    vary_unreduced_cast vary_unreduced_cast_p
""".split()


def lowered():
    """The names of the primitives that JAX can lower, on any platform."""
    tables = [mlir._lowerings, *mlir._platform_specific_lowerings.values()]
    return sorted({primitive.name for table in tables for primitive in table})


def is_defined(name):
    """Whether a primitive has an implementation of its own: most only hand themselves to the compiler."""
    if name in {name for names in UNREACHABLE.values() for name in names.split()}:
        return False
    tables = [mlir._lowerings, *mlir._platform_specific_lowerings.values()]
    (primitive, *_) = (p for table in tables for p in table if p.name == name)
    return any(
        getattr(function, "func", None) is not apply_primitive and function.__qualname__ != "Primitive.impl"
        for function in implementations(primitive)
        if hasattr(function, "__qualname__")
    )


@pytest.mark.parametrize("name", lowered())
def test_has_a_rule_or_a_reason(name):
    has_rule = name in RULES or name in FORMULAS or OF_COMPLEX % name in RULES or is_defined(name)
    why = [reason for reason, names in UNREACHABLE.items() if name in names.split()]
    assert has_rule or why, f"`{name}` has no rule"
    assert not (has_rule and why), f"`{name}` has a rule, and is listed as unreachable: {why}"


def test_what_is_listed_as_unreachable_exists():
    assert {name for names in UNREACHABLE.values() for name in names.split()} <= set(lowered())


def test_a_rule_has_a_case():
    """What JAX can lower has public functions, which the sweeps ask for; a test has to name any other primitive."""
    tests = "\n".join(path.read_text() for path in Path(__file__).parents[1].rglob("*.py") if path != Path(__file__))
    named = {*lowered(), *REASONS, *OF_OTHER_RELEASES, *map(OF_COMPLEX.__mod__, lowered()), *re.findall(r"\w+", tests)}
    missing = sorted(RULES.keys() - named)
    assert not missing, "; ".join(
        f"no test names `{name}`: add a case to tests/export/rules/{_tests_of(name)}" for name in missing
    )


def _tests_of(name):
    """The file of tests for the rules of a primitive's file."""
    family = getattr(RULES[name].function, "__module__", "").removeprefix("jaxport.export.rules.").partition(".")[0]
    own = f"test_{family}.py"
    return own if Path(__file__).with_name(own).exists() else "test_array_functions.py"


def test_the_file_that_is_named_exists():
    assert _tests_of("cumsum") == "test_cumulative.py"
    assert _tests_of("floor").startswith("test_")
