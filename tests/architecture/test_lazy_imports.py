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
