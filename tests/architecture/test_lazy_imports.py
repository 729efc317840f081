"""What a fresh process has loaded after `import jaxport`."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Loaded only when they are needed: the user pays for them, or has not installed them.
LAZY = ("equinox", "flax", "lxml", "onnxruntime", "openvino", "rich", "safetensors", "torch", "typer")


def loaded_by(statement: str) -> list[str]:
    """The modules of `LAZY` that a fresh process has loaded after `statement`."""
    program = f"{statement}\nimport sys\nprint(*(name for name in {LAZY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_the_package_loads_nothing_slow():
    assert loaded_by("import jaxport") == []


@pytest.mark.parametrize("name", ["flax", "lxml", "onnxruntime", "typer"])
def test_the_import_test_sees_what_is_loaded(name: str):
    assert name in loaded_by(f"import jaxport, {name}")


FIRST_EXPORT = """
import sys
before = set(sys.modules)
import jaxport, jax.numpy as jnp

def halves(x):
    return jnp.concatenate([x, x]).reshape(-1, 2).sum(1)

program = jaxport.from_onnx(jaxport.to_onnx(halves, [("B", 4)]).model)
program(jnp.zeros((3, 4)))
program.to_source(framework="jax")
print(*sorted({"sympy", "rich", "typer", "lxml"} & set(sys.modules)))
"""


def test_an_export_and_an_import_need_no_sympy_which_onnx_ir_imports():
    done = subprocess.run([sys.executable, "-c", FIRST_EXPORT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("first", ["jaxport.to_onnx", "jaxport.Limits", "0"])
def test_whoever_needs_sympy_gets_it(first: str):
    program = f"""
import jaxport; {first}
import onnx_ir as ir
from onnx_ir._symbolic_shapes import parse_symbolic_expression
assert str(ir.SymbolicDim("N") * 2 + 1) == "2*N + 1" == str(parse_symbolic_expression("2*N + 1"))
import sympy
from sympy import Expr, Max
print(sympy.Symbol("x") + 1, type(sympy).__name__, issubclass(Max, Expr), parse_symbolic_expression("max(N, 3)"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "x + 1 module True Max(3, N)\n"


def test_a_rule_may_be_replaced_before_the_first_export():
    """Names of the package are loaded late: whoever registers a rule finds ours there already."""
    program = """
import jaxport, jax.numpy as jnp

@jaxport.rule("tanh", replace=True)
def tanh(op, x):
    return op.Sin(x)

print([node.op_type for node in jaxport.to_onnx(jnp.tanh, [("B",)]).model.graph])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['Sin']\n"
