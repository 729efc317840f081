"""Private and semi-private names of JAX are imported in one place, and each of them is listed here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.imports import part_of
from tests.architecture.sources import SOURCE, nodes_of

PACKAGE = SOURCE / "jaxport"
# Private, or public with the reservation that it may change in any release.
MODULES = ("jax._src", "jax.extend", "jax.interpreters")
# What the package needs of them; a new name is added here, with a look at the other releases.
NEEDED = """
    jax._src.api.Inline
    jax._src.core
    jax._src.export.shape_poly
    jax._src.export.shape_poly._DimExpr
    jax._src.flattree
    jax._src.interpreters.batching
    jax._src.interpreters.mlir._lowerings
    jax._src.lax.lax._ragged_dot_general_impl
    jax._src.lax.linalg.geqp3
    jax._src.lax.linalg.geqrf
    jax._src.lax.special.bessel_i0e_impl
    jax._src.lax.special.igamma_grad_a_impl
    jax._src.lax.special.igamma_impl
    jax._src.lax.special.igammac_impl
    jax._src.lax.special.random_gamma_grad_impl
    jax._src.lax.special.regularized_incomplete_beta_impl
    jax._src.lib.mlir.dialects.hlo
    jax._src.lib.mlir.ir
    jax._src.state.discharge
    jax.extend.core.ClosedJaxpr
    jax.extend.core.Effect
    jax.extend.core.Jaxpr
    jax.extend.core.JaxprEqn
    jax.extend.core.Literal
    jax.extend.core.Primitive
    jax.extend.core.Var
    jax.extend.core.jaxpr_as_fun
    jax.extend.core.primitives
    jax.extend.core.primitives.closed_call_p
    jax.extend.core.primitives.div_p
    jax.extend.core.primitives.mul_p
    jax.extend.core.primitives.random_gamma_p
    jax.extend.core.primitives.threefry2x32_p
    jax.extend.source_info_util
    jax.interpreters.ad
    jax.interpreters.batching
    jax.interpreters.mlir
    jax.interpreters.partial_eval
""".split()
# Of `jax._src.core`, whose names moved to a public place in a later release.
OF_CORE = """
    ClosedJaxpr DebugInfo DropVar InconclusiveDimensionOperation ManualAxisType check_jaxpr get_opaque_trace_state
    internal_mutable_array_effect new_jaxpr_eqn trace_state_clean unsafe_am_i_under_a_jit valid_jaxtype
""".split()


def touched(package: Path) -> Iterator[tuple[str, str]]:
    """Each file below `package` with each name of `MODULES` that it imports or reaches by its full name."""
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        for node in nodes_of(path):
            for name in _names(node):
                if name.startswith(tuple(f"{module}." for module in MODULES)) or name in MODULES:
                    yield file, name


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [ast.unparse(node)] if isinstance(node, ast.Attribute) and _root(node) == "jax" else []


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_private_names_are_touched_in_one_place():
    assert [found for found in touched(PACKAGE) if part_of(found[0]) != "jaxprs"] == []


def test_each_private_name_is_listed():
    assert sorted({name for _, name in touched(PACKAGE)}) == NEEDED


def test_each_name_of_the_core_is_listed():
    nodes = nodes_of(PACKAGE / "jaxprs" / "releases.py")
    direct = {n.attr for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "_core"}
    looked_up = {
        call.args[1].value
        for call in nodes
        if isinstance(call, ast.Call) and ast.unparse(call).startswith("getattr(_core, ")
        if isinstance(call.args[1], ast.Constant)
    }
    assert sorted(direct | looked_up) == OF_CORE


@pytest.mark.parametrize(
    "source",
    [
        "from jax._src.core import Trace",
        "import jax.extend.core",
        "from jax.extend import core",
        "from jax.interpreters import ad",
        "import jax\n\ndef f():\n    return jax.extend.core.Primitive('p')",
        "import jax\nx = jax._src.core.Trace",
    ],
)
def test_the_test_sees_what_it_must(tmp_path: Path, source: str):
    (tmp_path / "rule.py").write_text(source)
    assert list(touched(tmp_path)) != []


def test_public_names_are_left_alone(tmp_path: Path):
    (tmp_path / "rule.py").write_text("import jax\nfrom jax import lax\nfrom jax.core import ShapedArray\njax.jit")
    assert list(touched(tmp_path)) == []
