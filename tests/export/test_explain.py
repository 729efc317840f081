"""`explain()` lists each equation with its line, block, rule and nodes, each function call, and each pass."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

import jaxport
from tests.exports import operators


def explanation(fn, *specs, **options):
    return jaxport.to_onnx(fn, list(specs), **options).explain()


class Model(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.sin(layer(x))
        return x


def test_each_equation_has_its_line_block_rule_and_nodes():
    model = Model(nnx.Rngs(0))
    rows = explanation(lambda x: jnp.exp(model(x)), ("B", 3)).rows
    found = [row for row in rows if row.nodes]
    assert [row.primitive for row in found] == ["dot_general", "add", "sin"] * 2 + ["exp"]
    assert found[0].path.endswith("layers.0")
    assert found[0].rule == "linear.dot_general"
    assert found[0].nodes == ("MatMul",)
    assert all(row.source.startswith("test_explain.py:") for row in found)
    assert found[-1].source.endswith("in <lambda>")


def test_every_node_is_claimed_by_one_equation():
    exported = jaxport.to_onnx(jax.jit(lambda x: jax.nn.softmax(jnp.sin(x))), [("B", 3)], passes=[])
    nodes = [name for row in exported.explain().rows for name in row.nodes]
    assert sorted(nodes) == sorted(operators(exported))


def test_what_a_pass_removed_is_in_brackets():
    rows = explanation(lambda x: jnp.sin(x) + jnp.sin(x), ("B",)).rows
    assert [node for row in rows for node in row.nodes] == ["Sin", "[Sin]", "Add"]


def test_functions_and_why_they_are_not_shared():
    layers = [nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.Linear(3, 3, use_bias=False, rngs=nnx.Rngs(0))]
    found = explanation(lambda x: layers[1](layers[0](layers[0](x))), ("B", 3), functions="flax.nnx.Linear")
    assert [call.note.partition(":")[0] for call in found.calls] == ["defined here", "shared", "not shared"]
    text = str(found)
    assert "functions\n" in text
    assert "flax.nnx.Linear_1" in text


def test_passes_report():
    def nothing_at_all(model):
        return "looked at it"

    found = explanation(jnp.sin, ("B",), passes=[nothing_at_all])
    assert [(report.name, report.text) for report in found.passes] == [("nothing_at_all", "looked at it")]
    assert "nothing_at_all   looked at it" in str(found)


def test_the_text_is_a_table():
    text = str(explanation(lambda x: x * 2 + 1, ("B", 3), passes=[]))
    lines = text.partition("\n\n")[0].splitlines()
    assert lines[0] == "equations"
    assert lines[1].split() == ["line", "block", "primitive", "rule", "nodes"]
    assert [line.split()[-1] for line in lines[2:]] == ["Mul", "Add"]
    assert not any(line.endswith(" ") for line in lines)
    starts = {line.index(word) for line, word in zip(lines[2:], ("mul", "add"), strict=True)}
    assert starts == {lines[1].index("primitive")}


def test_nodes_of_a_body_are_listed_where_they_are():
    rows = explanation(lambda xs: jax.lax.scan(lambda c, x: (jnp.sin(c + x), c), 0.0, xs), ("T",)).rows
    assert any(row.primitive == "sin" and row.nodes == ("Sin",) for row in rows)
    assert any(row.primitive == "scan" for row in rows)
