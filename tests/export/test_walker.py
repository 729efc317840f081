"""What the walker does for all rules: parameters, checks, records, refusals, names, metadata."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from jaxport.export.emit.registry import RULES, Rule
from jaxport.testing import check, f32
from tests.exports import export, operators


def user_function(x):
    return jnp.sin(x) + 1


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda op, x: (x, x), "the rule for `sin` returned 2 values, but its equation has 1"),
        (lambda op, x: None, "returned 0 values"),
        (lambda op, x: op.cast(x, np.float64), "returned dtype float64, not float32 as result 0"),
        (lambda op, x: op.unsqueeze(x, (0,)), r"returned shape \(1, 3\), not \(3,\)"),
        (lambda op, x: 3.0, "returned 3.0, which is not a value of a graph"),
        (lambda op, x: x.nothing, "failed: AttributeError"),
        (lambda op, x: op.Sine(x), "has no operator Sine at opset"),
        (lambda op, x: op.Sin(x, x), "Sin takes 1 inputs, 2 were given"),
        (lambda op, x: op.Softmax(x, axes=1), "Softmax has no attribute `axes`"),
        (
            lambda op, x: op.Add(x, op.const(1, np.int32)),
            "Add got float32 and int32 where its schema asks for one dtype",
        ),
    ],
)
def test_a_rule_that_breaks_its_contract_fails_with_its_name_and_the_users_line(rule, text):
    with pytest.raises(jaxport.RuleError, match=text) as caught:
        export(user_function, (3,), rules={"sin": rule})
    assert "test_walker.py" in str(caught.value)
    assert "in user_function" in str(caught.value)


def test_a_value_of_another_graph_is_refused():
    stolen = []

    def steal(op, x):
        op.graph(lambda inner: stolen.append(inner.Sin(x)) or [inner.Cos(x)])
        return stolen[0]

    with pytest.raises(jaxport.RuleError, match="a value of another graph"):
        export(user_function, (3,), rules={"sin": steal})


def test_parameters_that_a_rule_does_not_name_are_refused():
    with pytest.raises(jaxport.Unsupported, match="its rule does not support the parameter `axes=") as caught:
        export(lambda x: x.sum(axis=0), (3, 4), rules={"reduce_sum": lambda op, x: x})
    assert "test_walker.py" in str(caught.value)


def test_parameters_that_equal_a_declared_default_are_not():
    rule = Rule("reduce_sum", lambda op, x: op.ReduceSum(x, (0,), keepdims=0), defaults={"axes": (0,)})
    export(lambda x: x.sum(axis=0), (3, 4), rules={"reduce_sum": rule})
    with pytest.raises(jaxport.Unsupported):
        export(lambda x: x.sum(axis=1), (3, 4), rules={"reduce_sum": rule})


def test_all_unsupported_primitives_are_reported_together_with_their_lines():
    def refused(op, *operands, **parameters):
        op.refuse("no such thing")

    def program(x):
        y = jnp.sin(x)
        z = jnp.cos(y)
        return y + z

    with pytest.raises(jaxport.Unsupported) as caught:
        export(program, (3,), rules={"sin": refused, "cos": refused})
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 operations of `program` cannot be exported"
    assert [line.split()[0] for line in lines[1:]] == ["sin", "cos"]
    assert all("test_walker.py" in line and "in program" in line and "no such thing" in line for line in lines[1:])


def test_what_no_output_needs_is_not_exported():
    def program(x):
        jnp.sin(x)
        return x + 1

    export(program, (3,), rules={"sin": lambda op, x: op.refuse("never asked")})


def test_a_jax_function_may_serve_as_the_rule():
    exported = export(user_function, (3,), rules={"sin": Rule("sin", lambda x: jnp.cos(x - np.pi / 2), via=True)})
    assert operators(exported) == ["Sub", "Cos", "Add"]


def test_two_claims_on_one_primitive_are_an_error():
    with pytest.raises(jaxport.InvalidArgument, match="a rule for `sin` already exists") as caught:
        jaxport.rule("sin")(lambda op, x: x)
    assert "replace=True" in str(caught.value)


def test_replace_takes_the_place_of_a_rule():
    before = RULES["sin"]
    try:
        jaxport.rule("sin", replace=True)(lambda op, x: op.Cos(x))
        assert operators(export(user_function, (3,))) == ["Cos", "Add"]
    finally:
        RULES["sin"] = before


def test_a_rule_names_a_primitive_or_a_block():
    with pytest.raises(jaxport.InvalidArgument, match="a rule needs the name of a primitive or a block"):
        jaxport.rule()


def test_nodes_say_where_they_come_from():
    node = export(user_function, (3,)).model.graph[0]
    assert node.op_type == "Sin"
    assert node.metadata_props["jaxport.source"].startswith("test_walker.py:")
    assert node.metadata_props["jaxport.source"].endswith(" in user_function")
    assert node.metadata_props["jaxport.primitive"] == "sin"


def test_names_are_the_users():
    def program(tokens, *, scale):
        return {"doubled": tokens["ids"] * 2.0, "scaled": tokens["ids"] * scale}

    exported = export(program, {"ids": f32("B", 3)}, input_params={"scale": ()})
    assert exported.input_names == ["tokens.ids", "scale"]
    assert exported.output_names == ["doubled", "scaled"]


def test_declared_shapes_are_exact():
    exported = export(lambda x: jnp.concatenate([x, x]), ("B", 3))
    assert str(exported.model.graph.outputs[0].shape) == "[2*B,3]"


def test_constants_are_shared():
    exported = export(lambda x: jnp.sin(x * 3.0) * 3.0, (4,))
    assert len(exported.model.graph.initializers) == 1


def test_an_operator_newer_than_the_opset_is_refused_politely():
    with pytest.raises(jaxport.Unsupported, match="needs BitCast, which is new in opset 26"):
        export(user_function, (3,), opset=20, rules={"sin": lambda op, x: op.BitCast(x, to=np.int32)})


@pytest.mark.parametrize("opset", range(17, 27))
def test_axes_are_an_input_or_an_attribute_as_the_opset_has_it(opset):
    check(lambda x: (x.max(axis=1), x.sum(axis=(0, 1)), x.min()), ("B", 4), opset=opset)


def test_broadcasts_wait_until_something_needs_them():
    exported = check(lambda x, b: x + jnp.broadcast_to(b, x.shape), f32("B", 4), f32(4))
    assert operators(exported) == ["Add"]
    check(lambda b: jnp.broadcast_to(b, (3, 4)), f32(4))
    check(lambda b: jnp.broadcast_to(b[None], (3, 4)).sum(axis=0), f32(4))


def test_unused_inputs_stay():
    assert export(lambda x, y: x * 2, (3,), (4,)).input_names == ["x", "y"]


def test_an_input_may_be_an_output():
    check(lambda x: (x, x, x + 1), f32("B", 2))
    check(lambda x: jnp.ones(3), f32("B", 2))


def test_jit_in_the_program_leaves_no_trace():
    inner = jax.jit(lambda x: jnp.tanh(x))
    exported = check(lambda x: inner(inner(x)), f32("B", 2))
    assert operators(exported) == ["Tanh", "Tanh"]


def ulps_below(x):
    """What a solver does to stay below a bound: a chain of small steps."""
    bound = jnp.float32(1) * jnp.where(jnp.float32(0) < 1, 1, -1)
    for _ in range(20):
        bound = jnp.nextafter(bound, -jnp.inf)
    return jnp.minimum(x, bound)


def test_what_is_computed_from_small_constants_is_computed_while_exporting():
    exported = check(ulps_below, f32("B"))
    assert operators(exported) == ["Min"]
    used = {value.name for node in exported.model.graph for value in node.inputs}
    assert set(exported.model.graph.initializers) <= used  # nothing is left of what was taken back
    assert any("computed here" in record.note for record in exported.records)


def test_what_is_computed_in_a_function_is_taken_back_too():
    exported = jaxport.to_onnx(jaxport.onnx_function(ulps_below), [f32("B")])
    (function,) = exported.model.functions.values()
    assert sorted(node.op_type for node in function) == ["Constant", "Min"]
    exported.verify()


def test_a_rule_of_the_user_serves_constants_too():
    exported = export(lambda x: x * jax.lax.sin(1.0), (3,), rules={"sin": lambda op, x: op.Cos(x)})
    np.testing.assert_allclose(exported(np.ones(3, np.float32)), np.cos(1), rtol=1e-6)
