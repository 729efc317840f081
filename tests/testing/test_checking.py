"""The generic checker finds what it must: every kind of mistake, in every variant."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.export.emit.registry import Rule
from jaxport.testing import SIZES, check, check_declared, check_model, checking, f32, f64, i32, sample, seeded, spec


def only(condition, right="Sin", wrong="Neg"):
    """A rule for `sin` that is wrong where a condition on the operand holds."""
    return {"sin": lambda op, x: op.emit(wrong if condition(op, x) else right, x)}


def symbolic(x):
    return not all(isinstance(d, int) for d in x.shape)


@pytest.mark.parametrize(
    ("condition", "variant"),
    [
        (lambda op, x: symbolic(x), "as given, opset 23; B=2"),
        (lambda op, x: not symbolic(x) and x.shape[0] > 0 and x.dtype == np.float32, "static, opset "),
        (lambda op, x: x.dtype == np.float64, "float64, opset 23"),
    ],
)
def test_a_mistake_in_one_variant_is_found(condition, variant, monkeypatch):
    monkeypatch.setattr(checking, "LEFT_OUT", {})  # whichever half of the variants is run
    with pytest.raises(AssertionError) as caught:
        check(lambda x: jnp.sin(x) + 3, f32("B", 3), rules=only(condition))
    assert f"`output` ({variant}" in str(caught.value)
    assert "elements differ" in str(caught.value)


def test_a_mistake_of_the_import_is_found(monkeypatch):
    from jaxport.importer.resolving import registry

    wrong = registry.Operator("", "Sin", 7, lambda x: x)
    monkeypatch.setitem(registry._registry, ("", "Sin"), [wrong])
    with pytest.raises(AssertionError, match="`output` \\(imported back\\): 6 of 6 elements differ"):
        check(lambda x: jnp.sin(x) + 3, f32("B", 3))
    check(lambda x: jnp.sin(x) + 3, f32("B", 3), without={"imported": "the test says so"})


def test_a_mistake_with_empty_arrays_is_found():
    def half(op, x):
        return op.ReduceMax(x, keepdims=0) if 0 in x.shape else op.ReduceSum(x, keepdims=0)

    rules = {"reduce_sum": Rule("reduce_sum", half, irrelevant=frozenset({"axes"}))}
    with pytest.raises((AssertionError, jaxport.RunError)):
        check(lambda x: x.sum(), f32("B"), rules=rules)


@pytest.mark.parametrize("variant", ["static", "float64"])
def test_a_variant_may_be_left_out_with_a_reason(variant):
    rules = only(lambda op, x: x.dtype == np.float64 if variant == "float64" else not symbolic(x))
    without = (
        {variant: "the test says so"}
        if variant == "float64"
        else dict.fromkeys(("static", "float64", "empty"), "the test says so")
    )
    check(lambda x: jnp.sin(x), f32("B", 3), rules=rules, without=without)


@pytest.mark.parametrize(
    ("without", "text"),
    [
        ({"static": " "}, "the variant `static` is left out without a reason"),
        ({"stattic": "x"}, "the variant `stattic` is unknown"),
    ],
)
def test_a_reason_is_needed(without, text):
    with pytest.raises(jaxport.InvalidArgument) as caught:
        check(jnp.sin, f32("B"), without=without)
    assert text in str(caught.value)


def exported_specs(monkeypatch):
    """What the checker exports: shapes, dtypes, opsets."""
    from jaxport.testing import checking

    seen, original = [], checking.to_onnx
    monkeypatch.setattr(checking, "LEFT_OUT", {**checking.LEFT_OUT, "oldest": "it has a test of its own"})

    def recording(fn, specs, **options):
        exported = original(fn, specs, **options)
        shapes = [tuple(str(d) for d in port.shape) for port in exported.inputs]
        seen.append((shapes, str(exported.inputs[0].dtype), exported.model.opset_imports[""]))
        return exported

    monkeypatch.setattr(checking, "to_onnx", recording)
    return seen


def test_the_variants_of_a_symbolic_case(monkeypatch):
    seen = exported_specs(monkeypatch)
    check(lambda x, y: x @ y, f32("B", "T"), ("T", "2*B"))
    assert [shapes for shapes, _, _ in seen] == [
        [("B", "T"), ("T", "2*B")], [("2", "5"), ("5", "4")], [("2", "5"), ("5", "4")], [("0", "0"), ("0", "0")],
    ]  # fmt: skip
    assert [dtype for _, dtype, _ in seen] == ["float32", "float32", "float64", "float32"]
    assert [opset for *_, opset in seen][::2] == [23, 23]


def test_every_case_is_tried_at_the_oldest_opset(monkeypatch):
    monkeypatch.setattr(checking, "LEFT_OUT", {})
    with pytest.raises(AssertionError, match="oldest, opset 13"):
        check(jnp.sin, f32("B"), rules={"sin": lambda op, x: op.Sin(x) if op.opset > 13 else op.Neg(x)})
    check(lambda i: i ^ 5, i32(3))  # no operator of opset 13 does that
    with pytest.raises(jaxport.Unsupported, match="for another reason"):
        check(
            jnp.sin,
            f32("B"),
            rules={"sin": lambda op, x: op.Sin(x) if op.opset > 13 else op.refuse("for another reason")},
        )


def test_the_variants_of_a_static_case(monkeypatch):
    seen = exported_specs(monkeypatch)
    check(lambda i: i + 1, i32(3))
    check(lambda x: x + 1, f32(3))
    check(lambda x: x + 1, f64(3), double_precision=True)
    assert [dtype for _, dtype, _ in seen] == ["int32", "float32", "float64", "float64"]


def test_opsets_may_be_asked_for(monkeypatch):
    seen = exported_specs(monkeypatch)
    check(lambda i: i + 1, i32("B"), opsets=[17, 26])
    check(lambda i: i + 2, i32(3), opsets=[17, 26])
    assert [opset for *_, opset in seen] == [23, 17, 26, 23, 23, 17, 26]


def test_the_seeded_opset_is_stable_and_differs_between_cases(monkeypatch):
    seen = exported_specs(monkeypatch)
    for _ in range(2):
        for number in range(8):
            check(lambda i, number=number: i + number, i32("B"), without={"empty": "one thing at a time"})
    chosen = [opset for *_, opset in seen][1::2]
    assert chosen[:8] == chosen[8:]
    assert len(set(chosen)) > 2


def test_values_may_be_given():
    table = jnp.arange(6, dtype=jnp.float32)
    check(lambda x: x[0], f32(3), values=[np.float32([7, 8, 9])])
    check(lambda i: table[i], i32("B"), values=[np.int32([5, 0])])
    with pytest.raises(AssertionError, match="elements differ"):
        check(lambda x: jnp.sin(x), f32(2), values=[np.float32([2, 2])], rules=only(lambda op, x: True))


def test_keyword_inputs_are_passed_and_varied():
    def fn(x, *, scale, power):
        return (x * scale) ** power

    check(fn, f32("B", 3), input_params={"scale": ("B", 1)}, static_params={"power": 2})
    check(fn, f32("B", 3), input_params={"scale": 2.0}, static_params={"power": 2})


def test_borders_in_nchw():
    exported = check(lambda x: x * 2, f32("B", "H", "W", 3), inputs_as_nchw=[0], outputs_as_nchw=[0])
    assert [str(d) for d in exported.model.graph.inputs[0].shape] == ["B", "3", "H", "W"]


def test_weights_and_state_and_random_streams():
    check(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), f32("B", 3), weights="inputs")
    check(
        nnx.BatchNorm(3, rngs=nnx.Rngs(0)),
        f32("B", 3),
        state="outputs",
        without={"float64": "the statistics are float32, and Flax warns where they meet float64"},
    )
    check(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), f32(2, 3), state="discard")


def test_what_is_expected_of_the_outputs():
    check(lambda x: (x, x > 0), f32("B", 3), shapes=[("B", 3), ("B", 3)], dtypes=["float32", "bool"])
    with pytest.raises(AssertionError, match=r"the outputs have the shapes \[\('B', 3\)\]"):
        check(lambda x: x * 2, f32("B", 3), shapes=[("B", 4)])
    with pytest.raises(AssertionError, match="the outputs have the dtypes"):
        check(lambda x: x * 2, f32("B", 3), dtypes=["float64"])


def test_the_number_of_functions():
    layer = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    check(lambda x: layer(layer(x)), f32("B", 3), functions="flax.nnx.Linear", function_count=1)
    with pytest.raises(AssertionError, match="there are 0 functions"):
        check(layer, f32("B", 3), function_count=1)


def test_a_symbol_without_a_size_is_refused():
    with pytest.raises(jaxport.InvalidArgument, match="the symbol `N` has no size") as caught:
        check(jnp.sin, f32("N"))
    assert "`sizes=[{" in caught.value.instead
    check(jnp.sin, f32("N"), sizes=[{"N": 4}, {"N": 1}])


def test_shapes_that_jax_refuses_when_empty_are_left_out():
    check(lambda x: x.max(axis=0), f32("B", 3))
    check(lambda x: lax.top_k(x, 3)[0], f32("B", "T"), constraints=["T >= 3"])


def test_the_default_sizes_tell_symbols_apart():
    assert all(len(set(sizes.values())) == len(sizes) for sizes in SIZES)
    assert all(SIZES[0][name] != SIZES[1][name] for name in SIZES[0])


def test_stale_shapes_are_found():
    exported = jaxport.to_onnx(lambda x: jnp.sin(x) + 1, [("B", 3)])
    check_model(exported)
    value = exported.model.graph[0].outputs[0]
    value.shape = type(value.shape)(["B", 4])
    with pytest.raises(AssertionError, match="ONNX's checker refuses the model"):
        check_model(exported)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "bfloat16", "complex64", "int4"])
def test_samples_have_the_dtype_and_vary(dtype):
    values = sample(np.random.default_rng(0), (50,), np.dtype(spec(1, dtype=dtype).dtype))
    assert values.dtype == spec(1, dtype=dtype).dtype
    assert len(set(values.tolist())) > 1


# Seeded modules


def leaves_of(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_modules_of_each_framework_are_seeded():
    import equinox
    from flax import linen

    x = np.ones((2, 4), np.float32)
    assert seeded(nnx.Linear, 4, 3)(x).shape == (2, 3)
    assert jax.vmap(seeded(equinox.nn.Linear, 4, 3))(x).shape == (2, 3)
    assert seeded(linen.Dense, 3, inputs=[x])(x).shape == (2, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_dtype_and_the_seed_are_what_was_asked_for(dtype):
    one, again, other = (leaves_of(seeded(nnx.LayerNorm, 5, dtype=dtype, seed=seed)) for seed in (0, 0, 1))
    assert all(leaf.dtype == dtype for leaf in one)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_no_parameter_is_left_at_zero_or_one():
    for leaf in leaves_of(seeded(nnx.BatchNorm, 6)):
        assert np.all((leaf != 0) & (leaf != 1))
        assert np.all(leaf > 0)


@pytest.mark.parametrize("stale", [("B", 4), ("T", 3), (2, 3), ("B", 3, 1), (7, 3)])
def test_shapes_that_are_stale_at_run_time_are_found(stale):
    exported = jaxport.to_onnx(lambda x: jnp.sin(x) + 1, [("B", 3)])
    value, inputs, sizes = exported.model.graph[0].outputs[0], {"x": np.ones((5, 3), np.float32)}, {"B": 5, "T": 6}
    check_declared(exported, inputs, sizes)
    for honest in (("B", 3), ("B", None), (None, None)):
        value.shape = type(value.shape)(honest)
        check_declared(exported, inputs, sizes)
    value.shape = type(value.shape)(stale)
    with pytest.raises((AssertionError, jaxport.RunError)):
        check_declared(exported, inputs, sizes)
