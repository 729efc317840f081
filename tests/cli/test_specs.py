from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, strategies as st

import jaxport
from jaxport.cli.specs import (
    InputSpec,
    input_names,
    parse_input,
    parse_input_params,
    parse_inputs,
    parse_keyword,
    parse_precision,
    parse_sizes,
)
from jaxport.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "name", "dtype", "dims"),
    [
        ("B,224,224,3", None, None, ("B", 224, 224, 3)),
        ("7", None, None, (7,)),
        ("B", None, None, ("B",)),
        ("B,", None, None, ("B",)),
        (" B , 3 ", None, None, ("B", 3)),
        ("x:B,3", "x", None, ("B", 3)),
        ("ids:int32[B,T]", "ids", "int32", ("B", "T")),
        ("batch.ids:int32[B,T]", "batch.ids", "int32", ("B", "T")),
        ("bfloat16[4]", None, "bfloat16", (4,)),
        ("[B,4]", None, None, ("B", 4)),
        ("x:[B,4]", "x", None, ("B", 4)),
        ("float32[]", None, "float32", ()),
        ("[]", None, None, ()),
        ("key[]", None, "key", ()),
        ("x:float32[2*B,T+1]", "x", "float32", ("2*B", "T+1")),
        ("B,max(T, 4),3", None, None, ("B", "max(T, 4)", 3)),
        ("mod(T,2),floordiv(T,(2+1))", None, None, ("mod(T,2)", "floordiv(T,(2+1))")),
        ("T//2,0", None, None, ("T//2", 0)),
        ("x:int32[None,?]", "x", "int32", (None, None)),
    ],
)
def test_an_input_is_read(text: str, name: str | None, dtype: str | None, dims: tuple):
    assert parse_input(text) == InputSpec(name, dtype, dims)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it has no dims; a scalar is written with empty brackets"),
        ("x:", "it has no dims"),
        ("int32", "`int32` is a dtype, and its dims are missing"),
        ("ids:int32", "`int32` is a dtype, and its dims are missing"),
        ("B,,3", "one of its dims is empty"),
        (",B", "one of its dims is empty"),
        ("B,-1", "`-1` is neither a size nor an expression of dims"),
        ("B,1.5", "`1.5` is neither"),
        ("B,T=3", "`T=3` is neither"),
        ("B,max(T,4", "`max(T,4` is neither"),
        ("1x:B", "`1x` is not a name"),
        ("a b:B", "`a b` is not a name"),
        (":B", "`` is not a name"),
        ("x:int32[B", "its brackets or colons do not pair up"),
        ("int32[B]]", "`B]` is neither"),
        ("a:b:int32[B]", "its brackets or colons do not pair up"),
        ("B,3;import os", "`3;import os` is neither"),
    ],
)
def test_a_malformed_input_is_refused(text: str, why: str):
    with pytest.raises(InvalidArgument) as refusal:
        parse_input(text)
    assert refusal.value.refused == f'"{text}" is not a valid input specification'
    assert refusal.value.where == "`--input`"
    assert why in refusal.value.why
    assert "ids:int32[B,T]" in refusal.value.instead


names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True)
dtypes = st.sampled_from(["float32", "float64", "bfloat16", "int8", "uint32", "bool", "complex64", "float8_e4m3fn"])
dims = st.lists(st.one_of(st.integers(0, 10**6), names), max_size=5)


@given(name=st.none() | names, dtype=dtypes, dims=dims)
def test_what_is_written_is_read_back(name: str | None, dtype: str, dims: list[int | str]):
    text = f"{name}:" * (name is not None) + f"{dtype}[{','.join(map(str, dims))}]"
    spec = parse_input(text)
    assert spec == InputSpec(name, dtype, tuple(dims))
    assert spec.value == jax.ShapeDtypeStruct(dims, jnp.dtype(dtype))


@given(st.text(alphabet="B,T:[]()+*/ 12int3", max_size=12))
def test_any_text_is_read_or_refused(text: str):
    try:
        spec = parse_input(text)
    except InvalidArgument:
        return
    assert all(isinstance(dim, int) or dim.strip() for dim in spec.dims)


def test_a_spec_without_dtype_is_a_shape():
    assert parse_input("B,3").value == ("B", 3)


def test_the_dtype_of_a_key():
    assert parse_input("key[]").value.dtype == jax.random.key(0).dtype


@pytest.mark.parametrize("dtype", ["f4", "float", "int", "floaty", "int32 x"])
def test_an_unknown_dtype_is_refused(dtype: str):
    with pytest.raises(InvalidArgument, match=f"`{dtype}` is not a dtype"):
        _ = parse_input(f"{dtype}[B]").value


@pytest.mark.parametrize(
    ("texts", "sizes"),
    [
        ([], None),
        (["B=1"], [{"B": 1}]),
        (["B=1,T=8", "B=3, T=5"], [{"B": 1, "T": 8}, {"B": 3, "T": 5}]),
    ],
)
def test_sizes_are_read(texts: list[str], sizes: list[dict[str, int]] | None):
    assert parse_sizes(texts) == sizes


@pytest.mark.parametrize("text", ["", "B", "B=", "B=x", "=3", "B=1;T=2", "B=-1", "2B=1"])
def test_malformed_sizes_are_refused(text: str):
    with pytest.raises(InvalidArgument, match=f'"{text}" is not a set of sizes'):
        parse_sizes([text])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1),
        ("a=-1.5", -1.5),
        ("a=True", True),
        ("a=None", None),
        ("a=(1, 2)", (1, 2)),
        ("a={'k': [1]}", {"k": [1]}),
        ("a=same", "same"),
        ("a='1'", "1"),
        ("a=x=y", "x=y"),
        ("a=", ""),
        ("a=__import__('os')", "__import__('os')"),
    ],
)
def test_a_keyword_is_a_literal_or_a_text(text: str, value: object):
    assert parse_keyword([text], "--static") == {"a": value}


@pytest.mark.parametrize(
    ("texts", "refused"),
    [
        (["a"], '"a" is not a keyword argument'),
        (["=1"], '"=1" is not a keyword argument'),
        (["a.b=1"], '"a.b=1" is not a keyword argument'),
        (["a=1", "a=2"], "`a` is given twice"),
    ],
)
def test_a_malformed_keyword_is_refused(texts: list[str], refused: str):
    with pytest.raises(InvalidArgument) as refusal:
        parse_keyword(texts, "--static")
    assert (refusal.value.refused, refusal.value.where) == (refused, "`--static`")


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        (None, None),
        ("int4", "int4"),
        ("int4,group=128", jaxport.Int4(group=128)),
        ("int4, symmetric=True, group=16", jaxport.Int4(group=16, symmetric=True)),
        ("int8-dynamic,full_range=True", jaxport.Int8(dynamic=True, full_range=True)),
    ],
)
def test_a_precision_may_have_options(text: str | None, precision: object):
    assert parse_precision(text) == precision


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("float16,group=64", 'the precision "float16" has no options'),
        ("int8,group=64", 'the precision "int8" needs batches of data'),
        ("int8-dynamic,group=64", "`group` is unknown"),
        ("int8-dynamic,full_range=1", "`full_range` is 1"),
        ("int4,block=64", "`block` is unknown"),
        ("int4,64", '"64" is not a keyword argument'),
        ("int4,", '"" is not a keyword argument'),
        ("int4,group=48", "groups of 48 weights have no kernels in any runtime"),
        ("int4,group=many", "groups of 'many' weights have no kernels in any runtime"),
        ("int4,symmetric=yes", "`symmetric` is 'yes'"),
    ],
)
def test_a_malformed_precision_is_refused(text: str, refused: str):
    with pytest.raises(InvalidArgument) as refusal:
        parse_precision(text)
    assert refusal.value.refused == refused


def test_names_of_inputs():
    assert input_names(parse_inputs(["B,3", "B"]), ["mask"]) is None
    assert input_names(parse_inputs(["x:B,3", "a:B"]), []) == ["x", "a"]
    assert input_names(parse_inputs(["x:B,3"]), ["mask", "bias"]) == ["x", "bias", "mask"]
    with pytest.raises(InvalidArgument, match="1 of 2 inputs have no name"):
        parse_inputs(["x:B,3", "B"])


def test_keyword_inputs_need_a_name_each():
    assert parse_input_params(["mask:bool[B]"]) == {"mask": InputSpec("mask", "bool", ("B",))}
    with pytest.raises(InvalidArgument, match=r'"bool\[B\]" has no name'):
        parse_input_params(["bool[B]"])
    with pytest.raises(InvalidArgument, match="`m` is given twice"):
        parse_input_params(["m:B", "m:T"])
