"""Host values: ONNX's integers, and sizes that only have names."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport.importer.ops  # noqa: F401  registers the helpers
from jaxport.errors import ModelError
from jaxport.importer.values.folding import _ROWS, fold
from jaxport.importer.values.host import HostValue, as_array, dims_compare, host
from jaxport.importer.values.namespaces import HELPERS, cast, jnp as shared, known
from jaxport.jaxprs import InconclusiveDimensionOperation

BATCH, SEQ = jax.export.symbolic_shape("batch, seq")
SHAPE = host([BATCH, SEQ, 8])


def test_integers_wrap_as_int64_does() -> None:
    assert (host(2**63 - 1) + 1).item() == -(2**63)
    assert (host(np.array(200, np.uint8)) + 100).item() == 44


def test_python_numbers_take_the_dtype_of_the_value() -> None:
    assert (host([1]) * 2).dtype == np.int64
    assert (host(1.5) * 2).dtype == np.float32


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (SHAPE[0] * 2, "host(2*batch, int64)"),
        (SHAPE[1:] + 1, "host([seq + 1, 9], int64)"),
        (3 - SHAPE[2], "host(-5, int64)"),
        (shared.concatenate([SHAPE[:1], host([-1])], axis=0), "host([batch, -1], int64)"),
        (shared.prod(SHAPE), "host(8*batch*seq, int64)"),
        (shared.where(host([True, False]), SHAPE[:2], host([1, 1])), "host([batch, 1], int64)"),
        (shared.take(SHAPE, host(1), axis=0), "host(seq, int64)"),
        (shared.not_equal(SHAPE, -1), "host([True, True, True], bool)"),
    ],
)
def test_shape_arithmetic_keeps_names(value: HostValue, text: str) -> None:
    assert repr(value) == text


def test_what_depends_on_the_sizes_is_refused() -> None:
    assert not dims_compare("==", BATCH, 0)
    assert dims_compare("!=", BATCH, BATCH + 1)
    with pytest.raises(InconclusiveDimensionOperation, match="whether batch == 1 depends on the sizes"):
        dims_compare("==", BATCH, 1)


def test_a_symbolic_value_becomes_an_array_under_a_trace() -> None:
    traced = jax.make_jaxpr(lambda x: shared.add(host(list(x.shape)), jnp.arange(2)))(
        jax.ShapeDtypeStruct((BATCH, SEQ), np.float32)
    )
    assert "dim_as_value" in str(traced)
    mean = jax.eval_shape(lambda x: x / cast(host(x.shape[0]), np.float32), jax.ShapeDtypeStruct((BATCH,), np.float32))
    assert mean.dtype == np.float32


def test_a_wide_integer_is_refused_where_it_would_be_cut_off() -> None:
    with pytest.raises(ModelError, match="4294967296 does not fit into int32"):
        host(2**32).to_jax()
    with jax.enable_x64(True):
        assert host(2**32).to_jax() == 2**32


def test_values_under_a_trace_are_not_known() -> None:
    assert known(jnp.ones(1)).tolist() == [1.0]
    seen = []
    jax.make_jaxpr(lambda x: seen.append(known(x)) or x)(1.0)
    assert seen == [None]


INTEGERS = np.array([[3, -7, 2], [1, 9, -4]])
FLOATS = np.array([[1.5, -2.5, 3.0], [0.25, -1.0, 2.0]], np.float32)
BINARY = "add subtract multiply equal not_equal less less_equal greater greater_equal maximum minimum"
ARGUMENTS = {
    **{f"jnp.{name}": lambda x: (x, x[::-1]) for name in BINARY.split()},
    **{name: lambda x: (x, x[::-1]) for name in ("lax.div", "helper.quotient")},
    "helper.integer_power": lambda x: (abs(x), np.array(2, x.dtype)),
    **{f"jnp.{name}": lambda x: (x, x[::-1]) for name in ("fmod", "mod", "logical_and", "logical_or", "logical_xor")},
    **{
        f"jnp.{name}": lambda x: (x, x[::-1])
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "broadcast_arrays")
    },
    **{f"jnp.{name}": lambda x: ([x, x],) for name in ("concatenate", "stack", "hstack", "vstack")},
    **{f"jnp.{name}": lambda x: (abs(x), np.array(2, x.dtype)) for name in ("power", "left_shift", "right_shift")},
    "jnp.where": lambda x: (x > 0, x, x[::-1]),
    "jnp.clip": lambda x: (x, np.array(-2, x.dtype), np.array(2, x.dtype)),
    "jnp.take": lambda x: (x, np.array([1, -1]), 1),
    "jnp.arange": lambda x: (np.array(2), np.array(11), np.array(3)),
    "jnp.tile": lambda x: (x, (2, 1)),
    "jnp.broadcast_to": lambda x: (x, (2, 2, 3)),
    "jnp.reshape": lambda x: (x, (3, -1)),
    "jnp.repeat": lambda x: (x, 2, 1),
    "jnp.pad": lambda x: (x, ((1, 0), (0, 2))),
    "jnp.split": lambda x: (x, 3, 1),
    "jnp.roll": lambda x: (x, 1),
    "jnp.expand_dims": lambda x: (x, (0, 2)),
    "jnp.squeeze": lambda x: (x[:1], 0),
    "jnp.swapaxes": lambda x: (x, 0, 1),
    "jnp.moveaxis": lambda x: (x, 0, 1),
    "jnp.sqrt": lambda x: (abs(x),),
    "jnp.reciprocal": lambda x: (x,),
    "nn.one_hot": lambda x: (x, 4),
}
KEYWORDS = {"nn.one_hot": {"axis": 0, "dtype": np.dtype(bool)}}
FLOAT_ONLY = {"jnp.sqrt", "jnp.reciprocal"}
INTEGER_ONLY = {
    "jnp.bitwise_and", "jnp.bitwise_or", "jnp.bitwise_xor", "jnp.bitwise_not", "jnp.invert", "jnp.left_shift",
    "jnp.right_shift", "jnp.take", "jnp.arange", "nn.one_hot", "helper.quotient", "helper.integer_power",
}  # fmt: skip


def test_a_choice_between_numbers_of_python_is_array_code():
    assert fold("jnp.where", (host(True), 0.5, 1.0), {}) is NotImplemented


def test_a_type_that_is_asked_for_is_that_of_the_sum() -> None:
    total = shared.sum(host(np.full(300, 100, np.int8)), dtype=np.int32)
    assert (total.item(), total.dtype) == (30000, np.int32)


@pytest.mark.parametrize("name", sorted(_ROWS))
@pytest.mark.parametrize("data", [INTEGERS, FLOATS], ids=["int64", "float32"])
def test_folding_is_what_jax_computes(name: str, data: np.ndarray) -> None:
    if name in (INTEGER_ONLY if data.dtype.kind == "f" else FLOAT_ONLY):
        pytest.skip("not defined for this type")
    args = ARGUMENTS.get(name, lambda x: (x,))(data)
    keywords = KEYWORDS.get(name, {})
    folded = fold(name, jax.tree.map(lambda leaf: host(leaf) if isinstance(leaf, np.ndarray) else leaf, args), keywords)
    with jax.enable_x64(True):
        namespace, _, function = name.partition(".")
        module = {"jnp": jnp, "lax": jax.lax, "nn": jax.nn}.get(namespace)
        expected = (getattr(module, function) if module else HELPERS[function].function)(*args, **keywords)
    for mine, theirs in zip(
        folded if isinstance(folded, list) else [folded],
        expected if isinstance(expected, list | tuple) else [expected],
        strict=True,
    ):
        assert mine.dtype == theirs.dtype, name
        np.testing.assert_array_equal(mine.data, theirs)


@pytest.mark.parametrize(("value", "said"), [(None, "not nothing"), ([host(1)], "not a list")])
def test_what_is_no_tensor_is_refused(value: list[HostValue] | None, said: str) -> None:
    with pytest.raises(TypeError, match=f"a tensor is needed, {said}"):
        as_array(value)
