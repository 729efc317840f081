"""What `verify` takes for an input: an array, or the shape of an array that it samples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx.parser
import pytest

import jaxport

EXPORTED = jaxport.to_onnx(lambda x, y: jnp.tanh(x @ y.T), [("n", 3), ("m", 3)])
PROGRAM = jaxport.from_onnx(EXPORTED.proto)
STRUCT = jax.ShapeDtypeStruct((2, 3), jnp.float32)


def sizes(report):
    return [output.sizes for output in report.outputs]


@pytest.mark.parametrize("subject", [EXPORTED, PROGRAM], ids=["exported", "imported"])
@pytest.mark.parametrize("shape", [("n", 3), ("rows", 3), (None, 3)], ids=str)
def test_open_sizes_are_chosen(subject, shape):
    for inputs in ({"x": shape}, [shape, ("m", 3)]):
        report = subject.verify(inputs=inputs, sizes=None)
        assert report.ok
        assert all(isinstance(at["n"], int) for at in sizes(report))


@pytest.mark.parametrize("subject", [EXPORTED, PROGRAM], ids=["exported", "imported"])
def test_fixed_sizes_are_kept(subject):
    assert {at["n"] for at in sizes(subject.verify(inputs={"x": STRUCT, "y": ("m", 3)}))} == {2}
    both = subject.verify(inputs={"x": STRUCT, "y": np.ones((5, 3), np.float32)})
    assert sizes(both) == [{"n": 2, "m": 5}]


WRONG = {
    "rank": ("n",),
    "size": ("n", 4),
    "the name of a fixed size": ("n", "k"),
    "an expression": ("2*n", 3),
    "negative": ("n", -3),
    "dtype": jax.ShapeDtypeStruct((2, 3), jnp.float16),
}


@pytest.mark.parametrize("subject", [EXPORTED, PROGRAM], ids=["exported", "imported"])
@pytest.mark.parametrize("name", WRONG)
def test_a_shape_that_does_not_fit_is_refused(subject, name):
    with pytest.raises(jaxport.InvalidArgument, match="does not fit the input `x`"):
        subject.verify(inputs={"x": WRONG[name]})


@pytest.mark.parametrize("subject", [EXPORTED, PROGRAM], ids=["exported", "imported"])
def test_names_that_make_sizes_equal_are_refused(subject):
    with pytest.raises(jaxport.InvalidArgument, match="does not fit the input `y`"):
        subject.verify(inputs={"x": ("k", 3), "y": ("k", 3)})


@pytest.mark.parametrize("value", ["float32", ("n", 3.5), {"a": 1}], ids=str)
def test_what_is_no_array_is_refused(value):
    with pytest.raises(jaxport.InvalidArgument, match="is not an array"):
        PROGRAM.verify(inputs={"x": value})


def test_texts_are_values():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (string[2] x) => (int64[2] y) { y = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [3, 4]> (x) }""")
    assert jaxport.from_onnx(model).verify(inputs={"x": ("a", "b")}).ok
