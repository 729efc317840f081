"""If, Loop and Scan: known on the host, traced, with values of the graph around them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxport
from jaxport.errors import ValueNotKnown
from jaxport.importer import from_onnx
from tests.codegen.structured import load
from tests.importer import printed
from tests.importer.models import program

X = np.array([1.0, 2.0], np.float32)
IF = """g (bool c, float[2] x) => (float[2] y) { k = Neg(x) y = If(c)
    <then_branch = t () => (float[2] a) { a = Add(k, x) }, else_branch = e () => (float[2] b) { b = Mul(k, x) }> }"""


@pytest.mark.parametrize("condition", [True, False])
def test_if_takes_a_branch(condition: bool) -> None:
    branches = program(IF)
    expected = 0 * X if condition else -X * X
    np.testing.assert_array_equal(branches(np.array(condition), X), expected)
    np.testing.assert_array_equal(jax.jit(branches)(condition, X), expected)


def test_if_differentiates_through_the_branch_taken() -> None:
    gradient = jax.grad(lambda x: program(IF)(np.array(False), x).sum())(X)
    np.testing.assert_array_equal(gradient, -2 * X)


def test_a_known_condition_leaves_no_branch() -> None:
    traced = jax.make_jaxpr(lambda x: program(IF)(np.array(True), x))(X)
    assert "cond" not in str(traced)


UNEVEN = """g (bool c, float[2] x) => (float[N] y) { y = If(c)
    <then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = e () => (float[4] b) { b = Concat<axis = 0>(x, x) }> }"""


def test_branches_of_different_shapes_need_a_known_condition() -> None:
    assert program(UNEVEN)(np.array(False), X).shape == (4,)
    with pytest.raises(
        ValueNotKnown, match="which branch of an `If` runs has to be known before the program is traced"
    ) as caught:
        jax.jit(program(UNEVEN))(False, X)
    assert "the If that makes `y`" in str(caught.value)


def loop(carry: str, more: str = "", cond: str = "Identity(go)") -> str:
    """`x` is updated by `carry` at most `n` times; each value is collected."""
    return f"""g (int64 n, bool c, float[2] x) => (float[2] y, float[A, 2] ys) {{ k = Neg(x) y, ys = Loop(n, c, x)
        <body = b (int64 i, bool go, float[2] v) => (bool next, float[2] w, float[2] row)
            {{ {more} w = {carry} next = {cond} row = Identity(w) }}> }}"""


@pytest.mark.parametrize("trips", [0, 1, 3, 9])
def test_loop_of_known_length(trips: int) -> None:
    counted = program(loop("Sub(v, k)"))
    n, go = np.array(trips), np.array(True)
    outputs = counted(n, go, X)
    np.testing.assert_array_equal(outputs.y, X * (trips + 1))
    np.testing.assert_array_equal(outputs.ys, X * np.arange(2, trips + 2)[:, None])
    np.testing.assert_array_equal(jax.jit(lambda x: counted(n, go, x).ys)(X), outputs.ys)


def test_a_long_loop_is_a_scan_and_a_short_one_unrolled() -> None:
    counted = program(loop("Sub(v, k)"))
    for trips, scans in ((3, 0), (50, 1)):
        traced = jax.make_jaxpr(lambda x, trips=trips: counted(np.array(trips), np.array(True), x))(X)
        assert str(traced).count("scan[") == scans


def test_a_loop_that_stops_early() -> None:
    below = "t = Constant<value_float = 7.0>() s = ReduceSum<keepdims = 0>(v)"
    stopping = program(loop("Add(v, v)", below, "Less(s, t)"))
    outputs = stopping(np.array(100), np.array(True), X)
    np.testing.assert_array_equal(outputs.ys, [X * 2, X * 4, X * 8])
    assert stopping(np.array(100), np.array(False), X).ys.shape == (0, 2)
    with pytest.raises(ValueNotKnown, match="a loop whose length depends on the data cannot be traced"):
        jax.jit(lambda x: stopping(np.array(100), np.array(True), x))(X)


ENDED = """g (int64 n, float[2] x) => (float[2] y) <float[2] w = {1.5, 2}> { t = Constant<value = bool {1}>() y = Loop(n, t, x)
    <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] o) { l = Constant<value_float = 10.0>()
        o = Mul(s, w) m = ReduceMax<keepdims = 0>(o) d = Less(m, l) }> }"""


@pytest.mark.parametrize("trips", [2, 10])
@pytest.mark.parametrize("sizes", [None, {"y": 20}], ids=["closed over", "bounded"])
def test_a_loop_that_data_ends_has_a_gradient_where_its_length_is_bounded(trips: int, sizes) -> None:
    ended = program(ENDED, sizes=sizes)
    n = np.array(trips)
    times = min(trips, 3)  # the fourth value would exceed 10
    passed = jax.jit(ended.apply)
    closed = jax.jit(lambda params, x: ended.apply(params, n, x))
    call = closed if sizes is None else lambda params, x: passed(params, trips, x)
    np.testing.assert_allclose(call(ended.params, X), X * ended.params["w"] ** times)
    gradient = jax.grad(lambda params: call(params, X).sum())(ended.params)["w"]
    np.testing.assert_allclose(gradient, times * X * ended.params["w"] ** (times - 1), rtol=1e-6)


def test_a_loop_up_to_a_size_with_a_name_is_printed_as_a_loop() -> None:
    def total(x):
        return lax.fori_loop(0, x.shape[0], lambda row, y: y * 0.5 + jnp.asarray(x)[row], jnp.zeros(2))

    looping = from_onnx(jaxport.to_onnx(total, [("n", 2)]).model)
    source = looping.to_source(framework="jax")
    assert "lax.while_loop" in source.code
    module = printed.load(source)
    for count in (1, 5):
        x = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
        np.testing.assert_allclose(module.model(module.params, x), total(x), rtol=1e-6)
        np.testing.assert_allclose(jax.jit(looping)(x), total(x), rtol=1e-6)


WHILE = """g (float[2] x, int64 n) => (float[2] y) { t = Constant<value_float = 7.0>() yes = Constant<value = bool {1}>() y = Loop(n, yes, x)
    <body = b (int64 i, bool go, float[2] v) => (bool next, float[2] w) {
        w = Add(v, x) s = ReduceSum<keepdims = 0>(w) next = Less(s, t) }> }"""


def test_a_loop_without_collected_values_becomes_a_while_loop() -> None:
    looping = program(WHILE)
    np.testing.assert_array_equal(jax.jit(looping)(X, 100), X * 3)
    np.testing.assert_array_equal(jax.jit(looping)(X, 1), X * 2)
    np.testing.assert_array_equal(looping(X, np.array(100)), X * 3)


GROWING = """g (float[N] x) => (float[M] y) { three = Constant<value_int = 9>() y = Loop(three, , x)
    <body = b (int64 i, bool go, float[K] v) => (bool next, float[L] w) { next = Identity(go) w = Concat<axis = 0>(v, x) }> }"""


def test_a_loop_whose_values_grow_is_unrolled() -> None:
    np.testing.assert_array_equal(jax.jit(program(GROWING))(X), np.tile(X, 10))


SCAN = """g (float[2] s, float[3, 2] a, float[2, 3] b) => (float[2] t, float[2, 3] y) { t, y = Scan
    <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1], scan_output_axes = [1],
     body = f (float[2] c, float[2] p, float[2] q) => (float[2] d, float[2] r) { d = Add(c, p) r = Mul(d, q) }>(s, a, b) }"""


def test_scan_with_axes_and_directions() -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(6, dtype=np.float32).reshape(2, 3)
    states = X + np.cumsum(a, 0)
    outputs = jax.jit(program(SCAN))(X, a, b)
    np.testing.assert_array_equal(outputs.t, states[-1])
    np.testing.assert_array_equal(outputs.y, (states * b.T[::-1]).T)


LENGTHS = """g (int64[3] l, float[3, 2] s, float[3, 4, 2] a, float[3, 4, 2] b) => (float[3, 2] t, float[3, 4, 2] y) {{ t, y = Scan
    <num_scan_inputs = 2, directions = [{0}, {1}],
     body = f (float[2] c, float[2] p, float[2] q) => (float[2] d, float[2] r) {{ d = Add(c, p) r = Mul(d, q) }}>(l, s, a, b) }}"""


@pytest.mark.parametrize("directions", [(0, 0), (0, 1), (1, 1)])
def test_scan_of_sequences_of_different_lengths(directions: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    inputs = {"l": np.array([4, 1, 2])}
    inputs |= {
        key: generator.standard_normal((3, *rows, 2)).astype(np.float32)
        for key, rows in {"s": (), "a": (4,), "b": (4,)}.items()
    }
    with jax.enable_x64(True):
        assert program(LENGTHS.format(*directions), 8).verify(inputs).ok


SEQUENCES = """g (float[N] x) => (float[M] y, int64 n) { s = SequenceConstruct(x, x) p = Constant<value_int = 0>() z = Neg(x)
    t = SequenceInsert(s, z, p) y = ConcatFromSequence<axis = 0>(t) n = SequenceLength(t) }"""


def test_sequences_are_known_in_length() -> None:
    with jax.enable_x64(True):
        outputs = jax.jit(program(SEQUENCES))(X)
    np.testing.assert_array_equal(outputs.y, [-1, -2, 1, 2, 1, 2])
    assert int(outputs.n) == 3


def test_a_loop_whose_first_condition_alone_is_known_is_written_once():
    body = "b (int64 i, bool go, float[n] h) => (bool again, float[n] d) <float two = {2}, float large = {100}>"
    looped = program(
        f"""g (float[n] x) => (float[n] y) <bool always = {{1}}> {{
            y = Loop<body = {body} {{ d = Mul(h, two) m = ReduceMax<keepdims = 0>(d) again = Less(m, large) }}>(, always, x) }}"""
    )
    code = looped.to_source(framework="jax").code
    assert code.count("lax.while_loop(") == code.count("* 2.0") == 1
    np.testing.assert_array_equal(looped(np.array([1, 2], np.float32)), [64, 128])


@pytest.mark.parametrize("framework", ["nnx", "equinox", "jax"])
def test_a_counter_that_begins_at_a_size_is_counted(framework, tmp_path):
    def counted(x):
        def goes_on(carry):
            position, _, is_done = carry
            return (position < x.shape[0] + 5) & ~is_done

        def step(carry):
            position, y, is_done = carry
            return position + 1, y * 1.5 + 1, is_done | (y.sum() > 1e6)

        return lax.while_loop(goes_on, step, (jnp.int32(x.shape[0]), x, jnp.bool_(False)))

    exported = jaxport.to_onnx(counted, [("T",)])
    from_onnx(exported.model).to_source(tmp_path, framework=framework)
    module = load(tmp_path)
    x = np.arange(3, dtype=np.float32)
    results = module.model(module.load_params(), x) if framework == "jax" else module.load()(x)
    for result, expected in zip(results, counted(x), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_a_loop_whose_condition_becomes_a_constant_is_printed() -> None:
    text = """g (int64 n, bool c, float[2] x) => (float[2] y) <bool yes = {1}> { y = Loop(n, c, x)
        <body = b (int64 i, bool go, float[2] v) => (bool next, float[2] w) { next = Identity(yes) w = Add(v, x) }> }"""
    arguments = (np.array(3), np.array(True), X)
    structs = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in arguments]
    source = program(text).to_source(inputs=dict(zip("ncx", structs, strict=True)), framework="jax")
    module = printed.load(source)
    np.testing.assert_array_equal(jax.tree.leaves(module.model(module.params, *arguments))[0], 4 * X)
