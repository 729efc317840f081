"""Calls are compiled as a whole, once per set of shapes; what cannot be runs operator by operator and says so."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxport
from jaxport.errors import InvalidArgument, ModelError, ValueNotKnown
from jaxport.importer import Program
from jaxport.importer.running import compiling
from tests.importer.models import program

pytestmark = pytest.mark.filterwarnings("ignore:64-bit types are off")
SCALED = "g (float[N] x) => (float[N] y) <float[2] w = {2, 3}> { a = Mul(x, w) y = Tanh(a) }"
RESHAPED = "g (float[N] x, int64[r] s) => (float[M] y) { a = Neg(x) y = Reshape(a, s) }"
FOUND = "g (float[N] x) => (int64[1, M] y) { y = NonZero(x) }"
X = np.array([1, 0], np.float32)


def runs(model: Program) -> list[int]:
    """How often the program is evaluated from now on, as a list that grows."""
    seen: list[int] = []
    evaluate = model._calls.evaluate

    def counted(*args: Any) -> Any:
        seen.append(1)
        return evaluate(*args)

    model._calls.evaluate = counted
    return seen


def test_a_program_is_traced_once_per_shape_and_dtype() -> None:
    model = program(SCALED)
    seen = runs(model)
    for _ in range(3):
        np.testing.assert_allclose(model(X), np.tanh(X * [2, 3]), rtol=1e-6)
    assert len(seen) == 1
    model(np.ones(2, np.float32))
    model.apply({"w": jnp.zeros(2)}, X)
    assert len(seen) == 1
    model(np.ones((2, 2), np.float32)[0])
    assert len(seen) == 1
    model.apply({"w": jnp.zeros(2)}, x=jnp.ones(2))
    assert len(seen) == 1
    assert str(model).splitlines()[-1] == "  calls   compiled for 1 set of shapes"
    with jax.enable_x64(True):
        model(X)
    assert len(seen) == 2


def test_values_that_decide_shapes_are_part_of_what_is_compiled() -> None:
    model = program(RESHAPED)
    seen = runs(model)
    x = np.arange(4, dtype=np.float32)
    for shape in ([2, 2], [4, 1], [2, 2], [4, 1]):
        np.testing.assert_array_equal(model(x, np.array(shape)), -x.reshape(shape))
    assert len(seen) == 2
    np.testing.assert_array_equal(model(x, jnp.array([1, 4])), -x.reshape(1, 4))


def test_values_that_change_each_time_are_not_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MOST_VALUES", 2)
    model = program(RESHAPED)
    x = np.arange(12, dtype=np.float32)
    for rows in (1, 2, 3, 4, 6):
        np.testing.assert_array_equal(model(x, np.array([rows, -1])), -x.reshape(rows, -1))
    assert "operator by operator: shapes or branches depend on the values of `s`, which are others each time" in str(
        model
    )


def test_what_was_used_least_recently_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MOST_KEPT", 2)
    model = program("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    seen = runs(model)
    for size in (1, 2, 1, 3, 1, 2):
        model(np.ones(size, np.float32))
    assert len(seen) == 4


def test_sizes_that_depend_on_data_run_operator_by_operator() -> None:
    model = program(FOUND)
    assert model(X).tolist() == [[0]]
    assert model(np.ones(2, np.float32)).tolist() == [[0, 1]]
    assert "calls   operator by operator: `X` of an operation has to be known" in str(model)
    assert "it stops, and calls run operator by operator" in str(model.explain())


def test_a_branch_of_another_shape_is_taken_by_value() -> None:
    graph = """g (float[N] x, bool c) => (float[M] y) { y = If(c) <
        then_branch = t () => (float[M] a) { a = Neg(x) },
        else_branch = e () => (float[M] b) { b = Concat<axis = 0>(x, x) }> }"""
    model = program(graph)
    for _ in range(2):
        assert model(X, np.array(True)).tolist() == [-1, 0]
        assert model(X, np.array(False)).tolist() == [1, 0, 1, 0]
    assert str(model).endswith("compiled for 2 sets of shapes")
    computed = program(
        graph.replace("bool c", "float t").replace("{ y = If", "{ z = CastLike(t, t) c = Cast<to = 9>(z) y = If")
    )
    assert computed(X, np.array(1, np.float32)).tolist() == [-1, 0]
    assert "a branch that decides a shape or a type cannot be traced" in str(computed)


RATES = """g (float[N] x, int64 rate, int64 rank) => (float[M] y)
    <float[2, 2] v = {1, 2, 3, 4}, float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, int64 wide = {16000}> {
    c = Equal(rate, wide)
    y = If(c) < then_branch = t () => (float[M] a) { a = MatMul(x, v) },
                else_branch = e () => (float[M] b) { b = MatMul(x, w) } > }"""
WIDE, NARROW = np.int64(16000), np.int64(8000)
TWO, THREE = np.ones(2, np.float32), np.ones(3, np.float32)


def test_an_integer_that_decides_a_branch_is_static() -> None:
    """There is one compiled program per value; an input that decides nothing is none of its business."""
    model = program(RATES)
    seen = runs(model)
    for rank in range(3):
        np.testing.assert_array_equal(model(TWO, WIDE, np.int64(rank)), [4, 6])
        np.testing.assert_array_equal(model(THREE, NARROW, np.int64(rank)), [12, 15, 18])
    assert len(seen) == 3  # once for all values, then once for each
    assert str(model).endswith("compiled for 2 sets of shapes")


def test_under_jit_the_error_names_the_branch_and_the_way_out() -> None:
    model = program(RATES)
    told = r"(?s)which branch of an `If` runs.*If that makes `y`.*`rate` decides.*static_params=\{'rate': value\}.*dot_general"
    with pytest.raises(ValueNotKnown, match=told):
        jax.jit(model)(TWO, WIDE, WIDE)
    with pytest.raises(ValueNotKnown, match=told):
        jaxport.to_onnx(model, [(2,), WIDE, WIDE])
    with pytest.raises(ValueNotKnown, match="`rate` decides which branch runs"):
        model.to_source(framework="jax")
    np.testing.assert_array_equal(jax.jit(lambda x: model(x, WIDE, WIDE))(TWO), [4, 6])
    exported = jaxport.to_onnx(model, [(2,)], static_params={"rate": WIDE, "rank": WIDE})
    np.testing.assert_array_equal(exported.run({"x": TWO})[0], [4, 6])
    source = model.to_source(
        inputs={"x": jax.ShapeDtypeStruct((3,), np.float32), "rate": NARROW, "rank": NARROW}, framework="jax"
    )
    assert 'params["w"]' in source.code


def test_branches_that_can_all_be_traced_stay_in_one_program() -> None:
    model = program(RATES.replace("MatMul(x, w)", "MatMul(v, x)"))
    seen = runs(model)
    np.testing.assert_array_equal(model(TWO, WIDE, WIDE), [4, 6])
    np.testing.assert_array_equal(model(TWO, NARROW, WIDE), [3, 7])
    np.testing.assert_array_equal(jax.jit(model)(TWO, WIDE, WIDE), [4, 6])
    assert len(seen) == 2


def test_an_error_of_the_branch_that_runs_is_its_own() -> None:
    with pytest.raises(ModelError, match="MatMul"):
        program(RATES)(TWO, NARROW, WIDE)


def test_strings_and_maps_and_sequences() -> None:
    words = program('g (string[N] x) => (string[N] y) { y = StringNormalizer<case_change_action = "UPPER">(x) }')
    assert words(np.array(["a", "b"], object)).tolist() == ["A", "B"]
    assert str(words).splitlines()[-1] == "  calls   none yet"
    rows = program("g (seq(float[N]) x) => (float[M] y) { y = ConcatFromSequence<axis = 0>(x) }")
    assert rows([X, X]).tolist() == [1, 0, 1, 0]
    assert rows([X, X, X]).size == 6
    assert "compiled for 2 sets of shapes" in str(rows)


def test_outputs_that_are_known_and_such_that_are_not() -> None:
    graph = """g (float[N] x) => (int64[1] n, float[N] y, seq(float[N]) z, string[1] t) {
        n = Shape(x) y = Neg(x) z = SequenceConstruct(x, y) t = Cast<to = 8>(n) }"""
    for _ in range(2):
        n, y, z, t = program(graph)(X)
        assert (n.tolist(), y.tolist(), [part.tolist() for part in z]) == ([2], [-1, 0], [[1, 0], [-1, 0]])
        assert t.tolist() == ["2"]


def test_under_transformations_it_is_part_of_the_outer_program() -> None:
    model = program(RESHAPED)
    seen = runs(model)
    x, shape = np.arange(4, dtype=np.float32), np.array([2, 2])
    np.testing.assert_array_equal(jax.jit(lambda x: model(x, shape))(x), -x.reshape(2, 2))
    np.testing.assert_array_equal(jax.jit(lambda: model(x, shape))(), -x.reshape(2, 2))
    np.testing.assert_array_equal(jax.grad(lambda x: model(x, shape).sum())(x), -np.ones(4))
    np.testing.assert_array_equal(jax.vmap(lambda x: model(x, shape))(x[None]), -x.reshape(1, 2, 2))
    with jax.disable_jit():
        model(x, shape)
    assert len(seen) == 5
    assert str(model).splitlines()[-1] == "  calls   none yet"


def test_a_random_key_and_one_that_is_left_out() -> None:
    model = program("g (float[3] x) => (float[3] y) { r = RandomNormalLike(x) y = Add(x, r) }")
    x = np.zeros(3, np.float32)
    np.testing.assert_array_equal(model(x), model(x))
    first, second = (model.apply(model.params, x, rng=jax.random.key(seed)) for seed in (1, 2))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, model.apply(model.params, x, rng=jax.random.key(1)))


def test_errors_are_those_of_the_operator() -> None:
    model = program("g (float[N] x, float[M] z) => (float[N] y) { y = Add(x, z) }")
    with pytest.raises(ModelError, match="`Add` cannot be computed"):
        model(X, np.ones(3, np.float32))
    with pytest.raises(InvalidArgument, match="has shape"):
        model(X[None], X)
    with pytest.raises(InvalidArgument, match="`w` is not a parameter"):
        model.apply({"w": X}, X, X)
    assert model(X, X).tolist() == [2, 0]


def test_what_unrolls_to_very_much_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MOST_EQUATIONS", 10)
    model = program(
        "g (float[N] x) => (float[N] y) {"
        + " ".join(f"{'y' if k == 19 else f'a{k}'} = Neg({f'a{k - 1}' if k else 'x'})" for k in range(20))
        + "}"
    )
    assert model(X).tolist() == [1, 0]
    assert "unrolled it has more than 10 steps" in str(model)


def test_long_chains_without_a_product_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA would make one function of a chain, in time that grows with the square of its length."""
    monkeypatch.setattr(compiling, "MOST_IN_A_ROW", 10)
    nodes = [f"a{k + 1} = {'Neg' if k % 8 else 'MatMul'} (a{k}{'' if k % 8 else ', w'})" for k in range(32)]
    weights = "float[2, 2] w = {1, 0, 0, 1}"
    fenced = program(f"g (float[N, 2] a0) => (float[N, 2] a32) <{weights}> {{ {' '.join(nodes)} }}")
    chain = program(
        f"g (float[N, 2] a0) => (float[N, 2] a32) {{ {' '.join(nodes).replace('MatMul (', 'Neg (').replace(', w', '')} }}"
    )
    x = np.ones((3, 2), np.float32)
    assert np.array_equal(chain(x), x)
    assert "more than 10 steps without a product" in str(chain)
    assert np.array_equal(fenced(x), x)
    assert "compiled for 1 set of shapes" in str(fenced)


def test_arrays_that_may_not_fit_are_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "LARGE", 3)
    model = program(
        "g (float[N] x) => (float[N] y) { a = Concat<axis = 0>(x, x) b = ReduceSum<keepdims = 0>(a) y = Add(b, x) }"
    )
    assert model(X).tolist() == [3, 2]
    assert "it has arrays of more than 3 elements" in str(model)


def test_large_weights_that_become_constants_of_a_jitted_program_are_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "MOST_CONSTANT", 7)
    model, weights = program(SCALED), {"w": jnp.asarray([2.0, 3.0])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = model(X)
        jax.jit(model.apply)(weights, X)
        jax.grad(lambda x: model(x).sum())(X)
        jaxport.to_onnx(model, [X])
    with pytest.warns(UserWarning, match=r"become constants of a jitted program.*`jax.jit\(program.apply\)"):
        result = jax.jit(model)(X)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_calls_with_arguments_of_known_types_go_straight_to_the_compiled_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = program(
        "g (float[N] b, float[N] a, int64[N] k) => (float[N] y) { d = Sub(b, a) c = Cast<to=1>(k) y = Mul(d, c) }"
    )
    b, a, k = np.array([5, 7], np.float32), np.ones(2, np.float32), jnp.array([2, 3])
    calls = [((b, a, k), {}), ((b,), {"k": k, "a": a}), ((jnp.array(b), jnp.array(a), k), {})]
    for inputs, named in calls * 2:
        np.testing.assert_array_equal(model(*inputs, **named), [8, 18])
    slow: list[int] = []
    monkeypatch.setattr(type(model), "_taken", lambda *_: slow.append(1))
    for inputs, named in calls:
        np.testing.assert_array_equal(model(*inputs, **named), [8, 18])
    assert not slow
    monkeypatch.undo()
    np.testing.assert_array_equal(
        jax.vmap(model, (0, 0, None))(np.stack([b, a]), np.stack([a, b]), k), [[8, 18], [-8, -18]]
    )
    np.testing.assert_array_equal(jax.grad(lambda b: model(b, a, k).sum())(b), [2, 3])
    with pytest.raises(InvalidArgument, match="the input `b` is float64, the model declares float32"):
        model(b.astype(np.float64), a, k)
    with pytest.raises(ModelError, match="2147483648 does not fit into int32"):
        model(b, a, np.array([2**31, 3]))


def test_a_random_key_is_an_argument_of_its_call_alone() -> None:
    model = program("g (float[2] x) => (float[2] y) { n = RandomNormalLike(x) z = Sub(n, n) y = Add(x, z) }")
    plain = program("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    key, other = jax.random.key(1), np.array([5, 6], np.float32)
    for x in (X, other, X):
        np.testing.assert_array_equal(model(x, rng=key), x)
        np.testing.assert_array_equal(model(x), x)
        np.testing.assert_array_equal(plain(x, rng=key), -x)
        np.testing.assert_array_equal(plain(x), -x)


def test_an_error_of_a_call_that_goes_straight_to_the_compiled_function_is_told_as_one_of_the_program() -> None:
    model, x = program(SCALED), jnp.asarray(X)
    for _ in range(3):
        model(x)
    x.delete()
    with pytest.raises(ModelError, match=r"cannot be called with these inputs(?s:.)*deleted"):
        model(x)
    np.testing.assert_allclose(model(jnp.asarray(X)), np.tanh([2, 0]), rtol=1e-6)


class Foreign:
    """An array of another library, which has DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("array", [X, np.array([[1, 0], [3, 4]], np.float32)[:, 0], np.ones(1, np.float32)])
def test_arrays_of_other_libraries_are_taken(array: np.ndarray) -> None:
    model = program("g (float[N] x) => (float[N] y) { y = Tanh(x) }")
    for _ in range(3):  # the third call goes straight to the compiled function
        np.testing.assert_array_equal(model(Foreign(array)), model(array))


def test_sizes_in_arrays_of_other_libraries_are_known() -> None:
    np.testing.assert_array_equal(program(RESHAPED)(X, Foreign(np.array([2, 1]))), -X[:, None])
