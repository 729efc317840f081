"""What the user says of the inputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxport
from jaxport.export.specs import SpecReader, sizes_of


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


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (("B -",), "'B -' is no dimension"),
        ((-1, 3), "the size -1 is negative"),
        ("B", "'B' does not say a shape"),
        (({"a": "B"},), "'B' does not say a shape"),
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
    with pytest.raises(jaxport.InvalidArgument, match="belongs to another symbolic scope"):
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
