"""The extension API: rules of other packages, rules for functions and methods."""

from __future__ import annotations

import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

import jaxport
from jaxport.export.emit.registry import BLOCK_RULES, RULES
from jaxport.export.walk import plugins
from jaxport.testing import check, f32
from tests.exports import operators


@pytest.fixture(autouse=True)
def undone(monkeypatch):
    """Whatever a test registers or imports is gone after it."""
    registered = dict(RULES), dict(BLOCK_RULES)
    monkeypatch.setattr(plugins, "FAILED", {})
    monkeypatch.setattr(plugins, "_loaded", set())
    modules = set(sys.modules)
    yield
    for registry, before in zip((RULES, BLOCK_RULES), registered, strict=True):
        registry.clear()
        registry.update(before)
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package with an entry point, as `pip` does."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, code):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[jaxport.rules]\n{name} = {name}\n")

    return install


def my_primitive(name):
    primitive = jax.extend.core.Primitive(name)
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
    return primitive


# Entry points ------------------------------------------------------------------------------------------------------


def test_a_package_brings_rules(install):
    install("brings", 'import jaxport\njaxport.rule("brought")(lambda op, x: op.Softsign(x))\n')
    exported = jaxport.to_onnx(my_primitive("brought").bind, [("B",)])
    assert operators(exported) == ["Softsign"]


def test_a_plugin_that_fails_is_named_and_leaves_nothing_behind(install):
    install("broken", 'import jaxport\njaxport.rule("half_done")(lambda op, x: x)\nimport not_installed_anywhere\n')
    install("whole", 'import jaxport\njaxport.rule("done")(lambda op, x: op.Softsign(x))\n')
    with pytest.warns(
        UserWarning, match=r"the rules `broken` of broken 1\.0 \(`broken`\) are not loaded: ModuleNotFound"
    ):
        exported = jaxport.to_onnx(my_primitive("done").bind, [("B",)])
    assert operators(exported) == ["Softsign"]
    assert "half_done" not in RULES
    with pytest.raises(jaxport.Unsupported) as caught:
        jaxport.to_onnx(my_primitive("half_done").bind, [("B",)])
    assert "the plugin `broken` is not loaded (ModuleNotFoundError" in str(caught.value)


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "def (:", "from jaxport import no_such_name", "1 / 0"])
def test_whatever_a_plugin_raises(install, code):
    install("broken", code)
    with pytest.warns(UserWarning, match=r"the rules `broken` of broken 1\.0 \(`broken`\) are not loaded"):
        assert operators(jaxport.to_onnx(jnp.tanh, [("B",)])) == ["Tanh"]


def test_the_second_of_two_claims_is_refused(install):
    for name in ("first", "second"):
        install(name, 'import jaxport\njaxport.rule("contested")(lambda op, x: op.Softsign(x))\n')
    with pytest.warns(UserWarning, match=r"a rule for `contested` already exists") as caught:
        exported = jaxport.to_onnx(my_primitive("contested").bind, [("B",)])
    assert len(caught) == 1
    assert operators(exported) == ["Softsign"]


def test_a_plugin_may_take_the_place_of_a_rule(install):
    install("faster", 'import jaxport\njaxport.rule("tanh", replace=True)(lambda op, x: op.Softsign(x))\n')
    assert operators(jaxport.to_onnx(jnp.tanh, [("B",)])) == ["Softsign"]


def test_a_rule_for_one_export_alone():
    exported = jaxport.to_onnx(jnp.tanh, [("B",)], rules={"tanh": lambda op, x: op.Softsign(x)})
    assert operators(exported) == ["Softsign"]
    assert operators(jaxport.to_onnx(jnp.tanh, [("B",)])) == ["Tanh"]


def test_a_plugin_is_imported_once(install):
    install("counted", "import sys\nsys.counted = getattr(sys, 'counted', 0) + 1\n")
    for _ in range(2):
        jaxport.to_onnx(jnp.tanh, [("B",)])
    assert sys.counted == 1
    del sys.counted


# Functions and methods ---------------------------------------------------------------------------------------------


@pytest.fixture
def library(install, monkeypatch):
    """A library that knows nothing of this package, with rules for a function and for a method."""
    install(
        "gates",
        """
        import jax.numpy as jnp

        def gate(x, y, *, scale=1.0):
            return jnp.tanh(x) * y * scale

        class Filter:
            def __init__(self, weight):
                self.weight = weight

            def smooth(self, x):
                return x * self.weight + 1

            @classmethod
            def doubled(cls, x):
                return x * 2

            @staticmethod
            def halved(x):
                return x / 2
        """,
    )
    import gates  # pyright: ignore[reportMissingImports]

    @jaxport.rule(block="gates.gate")
    def gate(op, x, y, *, block, jaxpr):
        return op.Mul(op.Mul(y, op.Tanh(x)), float(block.config.get("scale", 1.0)))

    @jaxport.rule(block="gates.Filter.smooth")
    def smooth(op, x, *weights, block, jaxpr):
        (result,) = op.inline(jaxpr, x, *weights)
        return op.Identity(result)

    for name in ("doubled", "halved"):
        jaxport.rule(block=f"gates.Filter.{name}")(lambda op, x, *, block, jaxpr: op.inline(jaxpr, x))
    return gates


CALLS = {
    "alone": lambda g, x: g.gate(x, x),
    "with a static argument": lambda g, x: g.gate(x, x + 1, scale=2.0),
    "under vmap": lambda g, x: jax.vmap(lambda v: g.gate(v, v))(x),
    "in a jitted function": lambda g, x: jax.jit(lambda v: g.gate(v, v))(x),
    "in a scan": lambda g, x: jax.lax.scan(lambda c, _: (g.gate(c, c), None), x, None, length=2)[0],
    "under remat": lambda g, x: jax.checkpoint(lambda v: g.gate(v, v))(x),
    "a method of a class": lambda g, x: g.Filter.doubled(x),
    "a method of no instance": lambda g, x: g.Filter(1.0).halved(x),
    "a method": lambda g, x: g.Filter(3.0).smooth(x),
    "a method with an array": lambda g, x: jax.vmap(g.Filter(jnp.float32(2)).smooth)(x),
}


def rules_of(exported):
    return [record for record in exported.records if "test_extending" in record.rule]


@pytest.mark.parametrize("name", CALLS)
def test_a_rule_for_a_function(library, name):
    exported = check(lambda x: CALLS[name](library, x), f32("B", 3), without=WITHOUT.get(name))
    assert rules_of(exported)


def test_a_rule_for_the_function_that_is_exported(library):
    assert rules_of(check(library.gate, f32("B", 3), f32("B", 3)))


WITHOUT = {"a method with an array": {"float64": "the filter holds a float32"}}


def test_its_gradient_is_that_of_its_body(library):
    """The rule is for the forward pass; what the backward pass needs from inside, only the body has."""
    exported = check(lambda x: jax.grad(lambda v: library.gate(v, v).sum())(x), f32("B", 3))
    (record,) = rules_of(exported)
    assert record.note == "declined: values from inside are used outside, as a gradient does"


def test_a_rule_for_a_function_of_a_package_that_is_not_imported():
    jaxport.rule(block="not_installed_anywhere.function")(lambda op, x, **_: x)
    assert operators(jaxport.to_onnx(jnp.tanh, [("B",)])) == ["Tanh"]
