"""What the user says of the inputs."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import export

import jaxport
from jaxport.export.specs import SpecReader, sizes_of
from jaxport.verify import verify_file
from tests.exports import operators


def read(spec):
    return SpecReader(np.float32).read(spec, "`inputs[0]`")


def test_a_tuple_of_sizes_and_names_is_a_shape():
    aval = read(("B", "2*B + 1", 3, np.int64(4)))
    assert [str(d) for d in aval.shape] == ["B", "2*B + 1", "3", "4"]
    assert aval.dtype == np.float32


def test_an_empty_tuple_is_a_scalar():
    assert read(()).shape == ()


def test_anything_else_is_a_pytree():
    tree = read({"ids": jax.ShapeDtypeStruct(("B", "T"), np.int32), "both": [("B",), np.ones((2, 3), np.float32), 1.0]})
    assert str(tree["ids"].shape) == "(B, T)"
    assert [leaf.shape for leaf in tree["both"]][1:] == [(2, 3), ()]


def test_names_are_one_symbol_everywhere():
    reader = SpecReader(np.float32)
    first, second = reader.read(("B", 3), "a"), reader.read(("B", 3), "b")
    assert first.shape[0] == second.shape[0]


def test_the_users_own_symbols_are_taken():
    (t,) = export.symbolic_shape("T", constraints=["T >= 4"])
    exported = jaxport.to_onnx(lambda x, y: x[:, :4] + y, [jax.ShapeDtypeStruct((2, t), np.float32), (2, 4)])
    assert exported.inputs[0].shape[1] == t


def test_constraints_are_passed_on():
    with pytest.raises(jaxport.ExportError, match="cannot be traced"):
        jaxport.to_onnx(lambda x: x if x.shape[0] >= 4 else -x, [("T",)])
    exported = jaxport.to_onnx(lambda x: x if x.shape[0] >= 4 else -x, [("T",)], constraints=["T >= 4"])
    np.testing.assert_array_equal(exported(np.arange(5, dtype=np.float32)), np.arange(5))


def test_no_constraints_are_none():
    exported = jaxport.to_onnx(jnp.sin, [("T",)], constraints=None)
    assert [str(dim) for dim in exported.inputs[0].shape] == ["T"]


@pytest.mark.parametrize("constraints", ["T >= 4", 4])
def test_constraints_that_are_no_sequence_are_refused(constraints):
    with pytest.raises(jaxport.InvalidArgument, match="are no sequence of texts") as caught:
        jaxport.to_onnx(jnp.sin, [("T",)], constraints=constraints)
    assert 'constraints=["T >= 2"]' in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (("B -",), "'B -' is not a dimension"),
        ((-1, 3), "the size -1 is negative"),
        ("B", "'B' is not a shape specification"),
        (({"a": "B"},), "'B' is not a shape specification"),
        ([None], "inputs"),
    ],
)
def test_malformed_specs_are_refused(spec, text):
    with pytest.raises(jaxport.InvalidArgument, match=text) as caught:
        jaxport.to_onnx(jnp.sin, [spec] if spec != [None] else "B")
    assert "instead:" in str(caught.value)


def test_symbols_of_two_scopes_are_refused():
    (a,), (b,) = export.symbolic_shape("A"), export.symbolic_shape("B")
    specs = [jax.ShapeDtypeStruct((a,), np.float32), jax.ShapeDtypeStruct((b,), np.float32)]
    with pytest.raises(jaxport.InvalidArgument, match="belongs to a different symbolic scope"):
        jaxport.to_onnx(lambda x, y: (x, y), specs)


def test_two_sizes_for_one_name_are_refused():
    exported = jaxport.to_onnx(lambda x, y: (x * 2, y * 2), [("B", 3), ("B", 4)])
    with pytest.raises(jaxport.InvalidArgument, match="the dimension `B` is 2 in axis 0 of `x` and 5 in axis 0 of `y`"):
        exported(np.ones((2, 3), np.float32), np.ones((5, 4), np.float32))


@pytest.mark.parametrize("shape", [(2, 5), (2, 3, 1), (2, 4)])
def test_a_shape_that_does_not_fit_is_refused(shape):
    exported = jaxport.to_onnx(jnp.sin, [("B", 3)])
    with pytest.raises(jaxport.InvalidArgument, match="the input `x` has shape"):
        exported(np.ones(shape, np.float32))


def test_sizes_are_solved_from_linear_expressions():
    aval = read(("2*B + 1", 3))
    assert sizes_of({"x": aval.shape}, {"x": np.ones((7, 3))}) == {"B": 3}
    with pytest.raises(jaxport.InvalidArgument, match=r"was exported as \(2\*B \+ 1, 3\)"):
        sizes_of({"x": aval.shape}, {"x": np.ones((6, 3))})


class Moments(NamedTuple):
    mean: object
    empty: object


def test_tuples_in_a_pytree_of_arrays_are_parts_of_it():
    state = {"moments": Moments(np.ones(3, np.float32), ()), "sizes": (2, 3), "nothing": ()}
    tree = read(state)
    assert (tree["moments"].empty, tree["nothing"]) == ((), ())
    assert [leaf.shape for leaf in tree["sizes"]] == [(), ()]
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.float32), state)
    assert jax.tree.structure(read(abstract)) == jax.tree.structure(state)


def test_tuples_beside_a_named_dim_are_shapes():
    tree = read({"x": ("B", 3), "scale": (), "y": (2, 3), "ids": jax.ShapeDtypeStruct(("B",), np.int32)})
    assert [tree[name].shape for name in ("scale", "y")] == [(), (2, 3)]


def test_a_pytree_of_nothing_but_empty_tuples_has_no_inputs():
    assert jax.tree.leaves(read(((), ()))) == []


def test_the_state_of_an_optimizer_is_an_argument():
    optimizer = optax.MultiSteps(optax.adam(1e-2), 2)
    params = {"w": jnp.ones(3)}

    def step(params, state, x):
        gradient = jax.grad(lambda p: jnp.sum((p["w"] * x) ** 2))(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    for state in (optimizer.init(params), jax.eval_shape(optimizer.init, params)):
        exported = jaxport.to_onnx(step, [params, state, ("B", 3)])
        assert len(exported.input_names) == len(jax.tree.leaves((params, state))) + 1
        assert exported.verify().ok


@pytest.mark.parametrize(
    ("spec", "dtype", "shape"),
    [
        (bool, np.bool_, ()),
        (int, np.int32, ()),
        (float, np.float32, ()),
        (np.int8, np.int8, ()),
        (jnp.bfloat16, jnp.bfloat16, ()),
        (np.dtype("uint32"), np.uint32, ()),
        (True, np.bool_, ()),
    ],
)
def test_a_type_of_numbers_is_a_scalar(spec, dtype, shape):
    assert (read(spec).dtype, read(spec).shape) == (np.dtype(dtype), shape)


TABLE = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint32])
@pytest.mark.parametrize(
    "make", [lambda dtype: jax.ShapeDtypeStruct(("B", 3), dtype), lambda dtype: np.ones((2, 3), dtype)]
)
def test_declared_integers_stay_at_the_border(make, dtype):
    exported = jaxport.to_onnx(lambda ids: jnp.asarray(TABLE)[ids], [make(dtype)], input_names=["ids"])
    assert exported.model.graph.inputs[0].dtype.numpy() == dtype
    assert exported.verify().ok
    ids = np.asarray([[1, 2, 3], [4, 5, 6]])
    for given in (ids.astype(dtype), jnp.asarray(ids.astype(dtype))):
        np.testing.assert_array_equal(exported(given), TABLE[ids])
    np.testing.assert_array_equal(exported.run({"ids": ids.astype(dtype)})[0], TABLE[ids])


def test_declared_floats_stay_at_the_border(tmp_path):
    specs = [jax.ShapeDtypeStruct(("B", 2, 2, 3), np.float64), np.complex128(2)]
    fn = lambda x, s: x * 2 * s
    exported = jaxport.to_onnx(fn, specs, inputs_as_nchw=[0])
    assert [value.dtype.name for value in exported.model.graph.inputs] == ["DOUBLE", "DOUBLE"]
    assert "x: float64[B, 2, 2, 3]" in repr(exported)
    assert exported.verify().ok
    exported.save(tmp_path / "model.onnx")
    assert verify_file(tmp_path / "model.onnx", fn, specs, inputs_as_nchw=[0]).ok


def test_another_dtype_than_the_declared_one_is_refused():
    exported = jaxport.to_onnx(lambda x: x * 2, [jax.ShapeDtypeStruct((3,), np.int64)], input_names=["x"])
    with pytest.raises(jaxport.InvalidArgument, match="it was exported as int64"):
        exported(np.ones(3, np.float32))
    with pytest.raises(jaxport.InvalidArgument, match="it was exported as int64"):
        exported.run({"x": np.ones(3, np.int32)})


def test_nothing_is_narrowed_under_double_precision():
    exported = jaxport.to_onnx(lambda x: x + 1, [jax.ShapeDtypeStruct((3,), np.int64)], double_precision=True)
    assert operators(exported) == ["Add"]


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ((None, 30), "(batch, 30)"),
        ((None, None), "(batch, size_1)"),
        ((None, 4, None, 3), "(batch, 4, size_1, 3)"),
        ((3, None), "(3, size_1)"),
    ],
)
def test_none_is_an_open_size(spec, shape):
    assert str(read(spec).shape) == shape


def test_none_in_a_struct_is_an_open_size():
    try:
        spec = jax.ShapeDtypeStruct((None, 3), np.float32)
    except ValueError:
        pytest.skip("newer releases of JAX refuse None in a ShapeDtypeStruct")
    assert str(read(spec).shape) == "(batch, 3)"


def test_open_sizes_are_told_and_verified():
    exported = jaxport.to_onnx(lambda x, y: jnp.concatenate([x, y], 1), [(None, 3), (None, None)])
    assert "x: float32[batch, 3], y: float32[batch, size_1]" in repr(exported)
    exported.verify()
    assert exported(np.ones((2, 3), np.float32), np.ones((2, 5), np.float32)).shape == (2, 8)


def test_names_of_open_sizes_are_new():
    tree = SpecReader(np.float32)
    specs = [(2, None), ("size_1", "batch")]
    tree.adopt_scope(specs)
    assert [str(tree.read(spec, "x").shape) for spec in specs] == ["(2, size_2)", "(size_1, batch)"]


def test_a_tuple_of_nothing_inside_a_pytree_is_a_part_of_it():
    tree = read({"x": np.ones(3, np.float32), "caches": (None, None)})
    assert tree["caches"] == (None, None)


@pytest.mark.parametrize(
    ("spec", "notation"),
    [
        (("B", "float32"), "jax.ShapeDtypeStruct(('B',), \"float32\")"),
        ((("B", 3), "int8"), "jax.ShapeDtypeStruct(('B', 3), \"int8\")"),
        ((("B", 3), jnp.float32), "jax.ShapeDtypeStruct(('B', 3), \"float32\")"),
        (((None, 3), jnp.bfloat16), "jax.ShapeDtypeStruct(('batch', 3), \"bfloat16\")"),
        ([3], "(3,)"),
    ],
)
def test_what_is_no_array_is_told_how_to_be_one(spec, notation):
    with pytest.raises(jaxport.JaxportError) as caught:
        jaxport.to_onnx(jnp.tanh, [spec])
    assert f"write `{notation}`" in str(caught.value)


def test_a_bare_shape_of_an_imported_input_has_the_declared_dtype():
    double = jax.ShapeDtypeStruct(("n", 4), np.float16)
    indices = jax.ShapeDtypeStruct(("k",), np.int64)
    program = jaxport.from_onnx(jaxport.to_onnx(lambda x, i: x[i], [double, indices]))
    for exported in (
        jaxport.to_onnx(program, [("n", 4), ("k",)]),
        jaxport.to_onnx(functools.partial(program, i=np.zeros(2, np.int64)), [("n", 4)]),
        jaxport.to_onnx(program, input_params={"i": ("k",), "x": ("n", 4)}),
    ):
        dtypes = {port.name: port.model_dtype for port in exported.inputs}
        assert dtypes == {name: np.dtype({"x": "float16", "i": "int64"}[name]) for name in dtypes}


def test_a_shape_for_printing_may_leave_sizes_to_the_model():
    program = jaxport.from_onnx(jaxport.to_onnx(jnp.tanh, [("rows", 3)]))
    assert "x: float32[rows, 3]" in program.to_source(inputs={"x": (None, 3)}, framework="jax").code
