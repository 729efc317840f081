"""A Mox written down and read again is the same program; what is damaged or hostile is refused."""

from __future__ import annotations

import json
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxport
from jaxport.mox import dumps, load, load_params, loads, lora, save, save_params
from jaxport.mox.serialize.parameter_types import known_types
from tests.blocks.checks import assert_same
from tests.mox.models import CASES
from tests.mox.test_bodies import PROGRAMS, WRAPPERS, X

pytestmark = pytest.mark.sampled(2)

FORMATS = ("json", "yson", "xml")


def weights(mox):
    return {**mox.params, **mox.state}


def check(mox, *args, form="json", gradient=True):
    text = dumps(mox, form)
    again = loads(text, weights(mox))
    assert dumps(again, form) == text
    assert str(again) == str(mox)
    assert_same(jax.jit(again)(*args), jax.jit(mox)(*args))
    if gradient:
        found, wanted = (
            jax.jit(jax.grad(lambda x, f=f: sum(v.sum() for v in jax.tree.leaves(f(*args[:-1], x)))))(args[-1])
            for f in (again, mox)
        )
        assert_same(found, wanted)
    return again


@pytest.mark.parametrize(("name", "form"), list(zip(PROGRAMS, FORMATS * 6, strict=False)))
def test_a_program_is_read_again(name, form):
    check(jaxport.make_mox(PROGRAMS[name](jnp.sin))(X), X, form=form, gradient="while" not in name)


@pytest.mark.parametrize(("name", "form"), list(zip(CASES, FORMATS, strict=True)))
def test_a_model_is_read_again_and_edited(name, form):
    case = CASES[name]()
    mox = jaxport.make_mox(case.fn)(*case.args)
    again = check(mox, *case.args, form=form)
    assert again.select(case.dense).paths() == mox.select(case.dense).paths()
    adapted = again.sub(case.dense, lora(2), expect=case.count)
    assert_same(jax.jit(adapted)(*case.args), jax.jit(mox)(*case.args))


FUNCTIONS = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "logsumexp": jax.nn.logsumexp,
    "softmax": jax.nn.softmax,
    "sort": jnp.sort,
    "cumsum": jnp.cumsum,
    "gather": lambda x: x[jnp.asarray([0, 2])],
    "scatter": lambda x: x.at[1].add(x[0]),
    "conv": lambda x: jnp.convolve(x, jnp.asarray([1.0, 2.0])),
    "einsum": lambda x: jnp.einsum("i,j->ij", x, x),
    "where": lambda x: jnp.where(x > 0, x, jnp.inf * 0 + 1),
    "matrix": lambda x: jnp.linalg.cholesky(jnp.outer(x, x) + 9 * jnp.eye(3)),
    "complex": lambda x: jnp.abs(jnp.fft.fft(x)),
    "random": lambda x: x * jax.random.normal(jax.random.key(0), (3,)),
    "policy": lambda x: jax.checkpoint(jnp.sin, policy=jax.checkpoint_policies.dots_saveable)(x),
    "bfloat16": lambda x: x.astype(jnp.bfloat16) * 2,
    "solve": lambda x: jnp.linalg.solve(jnp.outer(x, x) + 9 * jnp.eye(3), x),
    "composite": lax.composite(lambda x: jnp.sin(x), "a.sine"),
    "platform": lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
    "ragged": lambda x: lax.ragged_dot(x[None], jnp.outer(x, x)[None], jnp.asarray([1])),
    **{f"{name} of sin": wrapper(jnp.sin) for name, wrapper in WRAPPERS.items()},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operation_is_read_again(name):
    check(jaxport.make_mox(FUNCTIONS[name])(X), X, form="xml")


def test_where_values_lie_is_not_written():
    mox = jaxport.make_mox(lambda x: jax.device_put(x) * 2)(X)
    np.testing.assert_array_equal(loads(dumps(mox))(X), 2 * X)


@pytest.mark.parametrize("form", ["json", "xml"])
@pytest.mark.parametrize("function", [lambda x: jax.scipy.special.zeta(x, 1.5), jax.scipy.special.expi])
def test_a_rule_with_constants_is_read_again(function, form):
    again = loads(dumps(jaxport.make_mox(function)(X + 3), form))
    assert_same(again(X + 3), function(X + 3))
    assert_same(jax.grad(lambda x: again(x).sum())(X + 3), jax.grad(lambda x: function(x).sum())(X + 3))


def sine(order):
    """The derivative of that order, each with a rule of its own."""

    @jax.custom_jvp
    def derivative(x):
        return jnp.sin(x + order * jnp.pi / 2)

    derivative.defjvp(lambda primals, tangents: (derivative(*primals), sine(order + 1)(*primals) * tangents[0]))
    return derivative


def test_a_function_with_a_rule_for_each_derivative_is_written_up_to_an_order():
    again = loads(dumps(jaxport.make_mox(sine(0))(jnp.ones(()))))
    derivative = again
    for order in range(1, 7):
        derivative = jax.grad(derivative)
        np.testing.assert_allclose(derivative(1.0), np.sin(1 + order * np.pi / 2), rtol=1e-5, atol=1e-6)
    with pytest.raises(jaxport.Unsupported, match="a derivative is not in the file of this Mox"):
        jax.grad(derivative)(1.0)


def test_a_second_derivative_is_read_again():
    twice = lambda f: jax.jit(jax.grad(lambda x: jax.grad(lambda y: f(y).sum())(x).sum()))(X)
    mox = jaxport.make_mox(jax.nn.softplus)(X)
    np.testing.assert_array_equal(twice(loads(dumps(mox), weights(mox))), twice(mox))


def test_symbolic_dims_are_read_again():
    (batch,) = jax.export.symbolic_shape("B")
    mox = jaxport.make_mox(lambda x: x.reshape(-1).cumsum() / x.shape[0])(jax.ShapeDtypeStruct((batch, 3), jnp.float32))
    again = loads(dumps(mox))
    assert str(again) == str(mox)
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(again(x), jnp.cumsum(x) / 2)


@pytest.mark.parametrize("form", FORMATS)
def test_files_hold_program_and_weights(tmp_path, form):
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    mox = jaxport.make_mox(model)(X)
    save(mox, tmp_path / f"model.{form}")
    again = load(tmp_path / f"model.{form}")
    assert_same(again.params, mox.params)
    assert_same(again.state, mox.state)
    assert_same(again.apply(mox.params, X, state=True), mox.apply(mox.params, X, state=True))


def test_new_parameters_are_a_checkpoint(tmp_path):
    mox = jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(X)
    adapted = mox.sub("//Linear", lora(2))
    new = {path: value + 1 for path, value in adapted.params.items() if path not in mox.params}
    save_params(new, tmp_path / "adapters.safetensors")
    assert_same(load_params(tmp_path / "adapters.safetensors"), new)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int8", "bool", "complex64", "uint32", "float16"])
def test_a_dtype_survives_in_a_checkpoint(tmp_path, dtype):
    value = jnp.asarray([[0, 1], [1, 1]]).astype(dtype)
    save_params({"a": value, "scalar": value[0, 1]}, tmp_path / "a.safetensors")
    assert_same(load_params(tmp_path / "a.safetensors"), {"a": value, "scalar": value[0, 1]})


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_callback_is_refused_by_name():
    callback = lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), jnp.float32), x)
    mox = jaxport.make_mox(callback)(X)
    with pytest.raises(jaxport.Unsupported, match=r"pure_callback .* runs something that a file cannot contain"):
        dumps(mox)


def test_a_container_that_cannot_be_made_again_is_refused_by_name():
    mox = jaxport.make_mox(lambda x: nnx.State({"a": x}))(X)
    with pytest.raises(jaxport.Unsupported, match=r"a container of type `flax.nnx.*State`"):
        dumps(mox)


@pytest.fixture(scope="module")
def texts():
    mox = jaxport.make_mox(jax.nn.relu)(X)
    return {form: dumps(mox, form) for form in FORMATS}


@pytest.mark.parametrize("form", FORMATS)
def test_every_truncation_is_refused(texts, form):
    text = texts[form].rstrip()
    for length in {*range(0, len(text), max(1, len(text) // 40)), len(text) - 1}:
        with pytest.raises(jaxport.ModelError):
            loads(text[:length], format=form)


BOMB = '<!DOCTYPE mox [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><mox name="&b;"/>'
DEEP = {"json": "[" * 10_000, "yson": "[" * 10_000, "xml": "<a>" * 10_000}
HOSTILE = {
    "entities": (BOMB, "xml", "document type"),
    "a file": ('<!DOCTYPE mox [<!ENTITY f SYSTEM "file:///etc/hostname">]><mox>&f;</mox>', "xml", "document type"),
    "deep json": (DEEP["json"], "json", "nested more than 400 deep"),
    "deep yson": (DEEP["yson"], "yson", "nested more than 400 deep"),
    "deep xml": (DEEP["xml"], "xml", "the text is not XML"),
    "another document": ('{"format": "else"}', "json", "this is not a Mox"),
    "no document": ("[1, 2]", "json", "this is not a Mox"),
    "another root": ("<html/>", "xml", "this is not a Mox"),
    "a key twice": ('{"a": 1, "a": 2}', "json", "has duplicate keys"),
    "nan": ('{"a": NaN}', "json", "`NaN` is not JSON"),
    "unknown format": ("{}", "pickle", "`pickle` is not a format"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_refused(name):
    text, form, message = HOSTILE[name]
    with pytest.raises(jaxport.JaxportError, match=message):
        loads(text, format=form)


def damaged(document, *path, value):
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


DAMAGES = {
    "a later version": (("version",), 99, "has version 99"),
    "a host operation": (
        ("program", "equations", 0, "primitive"),
        "pure_callback",
        "`pure_callback` is not an operation",
    ),
    "a dangling value": (("program", "outputs", 0), "v77", "`v77` is used before it is defined"),
    "another type": (("program", "inputs", 0, 1), ["int32", [3]], "the program is inconsistent"),
    "no dtype": (("program", "inputs", 0, 1), ["floaty", [3]], "`floaty` is not a dtype"),
    "a negative size": (("program", "inputs", 0, 1), ["float32", [-3]], "-3 is not a valid array size"),
    "a missing rule": (("program", "equations", 0, "rule"), 7, "unknown rule number 7"),
    "more arguments": (("in_tree",), ["tuple", [["tuple", ["*", "*"]], ["dict", [], []]]], "not 2 and 1"),
    "arguments of no call": (("in_tree",), "*", "not that of a call"),
    "an unknown value": (("static_inputs",), [[0, {"$eval": "1"}]], "has the unknown form"),
    "a path that is no text": (("input_paths",), [3], "3 is not a string"),
    "a program that is none": (("program",), [1], r"\[1\] is not an object"),
    "results that are not list": (("program", "outputs"), "v1", "'v1' is not a list"),
    "a position of no pair": (("static_inputs",), [[0, 1, 2]], "is not a pair"),
    "a position before the first": (("static_inputs",), [[-1, 1]], "-1 is not a valid array size"),
    "a structure without content": (("in_tree",), ["tuple", 3], "3 is not a list"),
    "a weight": (("weights",), [{"path": "w", "aval": ["float32", [3]], "trainable": True}], "`w` is missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_document_is_refused(texts, name):
    path, value, message = DAMAGES[name]
    document = json.loads(texts["json"])
    damaged(document, *path, value=value)
    with pytest.raises(jaxport.ModelError, match=message):
        loads(json.dumps(document))


HIGH = {"$enum": ["Precision", "HIGH"]}
PARAMETERS = {
    "no precision": ("precision", {"$map": []}, "not map"),
    "precisions of no operand": ("precision", {"$tuple": []}, "not ints"),
    "a precision of one operand": ("precision", {"$tuple": [HIGH]}, r"not \(Precision\)"),
    "a precision as a number": ("precision", 1, "not int"),
    "a precision as a text": ("precision", "HIGH", "not str"),
    "another option": ("precision", {"$enum": ["FftType", "FFT"]}, "not FftType"),
    "a parameter of none": ("speed", {"$map": []}, "not map"),
    "an axis from the end": ("axis", -1, "JAX gives it int, not negative"),
    "a truth value as an axis": ("axis", True, "JAX gives it int, not bool"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_of_a_type_that_jax_does_not_give_it_is_refused(name):
    """The compiler would end the process."""
    parameter, value, message = PARAMETERS[name]
    document = json.loads(dumps(jaxport.make_mox(lambda x: lax.cumsum(x @ x, 1))(jnp.ones((3, 3)))))
    equations = {equation["primitive"]: equation["params"] for equation in document["program"]["equations"]}
    equations["cumsum" if parameter == "axis" else "dot_general"][parameter] = value
    with pytest.raises(jaxport.ModelError, match=f"the parameter `{parameter}` is malformed(?s:.)*{message}"):
        loads(json.dumps(document))


def test_a_parameter_that_could_not_be_read_back_is_not_written():
    with mock.patch.dict(known_types()["dot_general"], {"precision": frozenset({"None"})}):
        dumps(jaxport.make_mox(lambda x: jnp.outer(x, x) @ x)(X))
        with pytest.raises(jaxport.Unsupported, match=r"dot_general\[precision\] .* the type \(Precision, Precision\)"):
            dumps(jaxport.make_mox(lambda x: jnp.matmul(jnp.outer(x, x), x, precision="high"))(X))


def test_missing_and_truncated_files_are_refused(tmp_path):
    mox = jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(X)
    with pytest.raises(jaxport.InvalidArgument, match="has no suffix of a known format"):
        save(mox, tmp_path / "model.pickle")
    with pytest.raises(jaxport.InvalidArgument, match="there is no file"):
        load(tmp_path / "model.json")
    save(mox, tmp_path / "model.json")
    (weights_file,) = tmp_path.glob("model.json.*.safetensors")
    weights_file.write_bytes(weights_file.read_bytes()[:-8])
    with pytest.raises(jaxport.ModelError, match="cannot be read"):
        load(tmp_path / "model.json")
    weights_file.unlink()
    with pytest.raises(jaxport.InvalidArgument, match="does not exist"):
        load(tmp_path / "model.json")
