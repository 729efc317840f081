"""Printed source: what it looks like, that it equals the program, and that a model's names cannot harm it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import onnx
import pytest

from jaxport.errors import RuleError, ValueNotKnown
from jaxport.importer import from_onnx, op
from tests.importer import printed
from tests.importer.models import model, program
from tests.importer.test_control_flow import IF, SCAN, WHILE, loop

X = np.array([1.0, 2.0], np.float32)


def body(source: str) -> str:
    """The statements of `model`, without its docstring."""
    tree = ast.parse(source)
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "model")
    return "\n".join(ast.unparse(statement) for statement in function.body[1:])


SMALL = "bfloat16 float16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn int4 uint2 complex128"


@pytest.mark.parametrize("dtype", SMALL.split())
def test_constants_of_every_type_are_stored_exactly(dtype: str) -> None:
    bits = np.arange(256).astype(np.uint8)
    sixteen = np.tile(bits, 8).view(np.uint16)
    values = {
        "bfloat16": sixteen, "float16": sixteen, "complex128": np.arange(64) * (1 + 0.1j),
        "float4_e2m1fn": bits % 16, "int4": bits.astype(np.int8) % 8, "uint2": bits % 4,
    }.get(dtype, bits)  # fmt: skip
    array = values.view(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    node = onnx.helper.make_node("Constant", [], ["y"], value=onnx.numpy_helper.from_array(array, "w"))
    output = onnx.helper.make_empty_tensor_value_info("y")
    graph = onnx.helper.make_graph([node], "g", [], [output])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)])
    with jax.enable_x64(True):
        program = from_onnx(made)
        (printed_array,) = printed.run(printed.load(program.to_source(framework="jax")), {})
        assert np.asarray(program()).tobytes() == np.asarray(printed_array).tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("g (float[2] x) => (float[2] y) { h = Neg(x) y = Tanh(h) }", "h = jnp.negative(x)\nreturn jnp.tanh(h)"),
        (
            """g (float[n, 2] x) => (float[n, 3] y) <float[3, 2] w = {1,2,3,4,5,6}, float[3] b = {1,2,3}>
            { y = Gemm<transB = 1, alpha = 0.1>(x, w, b) }""",
            "return x @ params['w'].T * 0.1 + params['b']",
        ),
        (
            """g (float[n, 4] x) => (float[a, b] y) { s = Shape(x) p = Constant<value_ints = [0]>() n = Gather(s, p)
            r = Constant<value_ints = [-1]>() two = Constant<value_ints = [2]>() t = Concat<axis = 0>(n, two, r) y = Reshape(x, t) }""",
            "n, _ = x.shape\nreturn jnp.reshape(x, [n, 2, -1])",
        ),
        (
            """g (float[n] x) => (float[m] y) { s = Constant<value_ints = [1]>() e = Constant<value_ints = [9223372036854775807]>()
            y = Slice(x, s, e) }""",
            "return x[1:]",
        ),
        (
            """g (float[2] x) => (float[2] y) { big = Constant<value_float = inf>() c = Less(x, big) z = Constant<value_float = 0.1>()
            y = Where(c, x, z) }""",
            "c = x < jnp.inf\nreturn jnp.where(c, x, 0.1)",
        ),
        ("g (float[2] x) => (int64[2] y) { y = Cast<to = 7>(x) }", "return x.astype(int)"),
    ],
)
def test_snapshots(graph: str, expected: str) -> None:
    graph = graph.replace("value_float = inf", "value = float {inf}")
    assert body(program(graph).to_source(framework="jax").code) == expected


def test_a_branch_is_a_nested_function() -> None:
    assert body(program(IF).to_source(framework="jax").code) == (
        "k = jnp.negative(x)\ndef t():\n    return (k + x,)\ndef e():\n    return (k * x,)\n"
        "y, = lax.cond(c, t, e)\nreturn y"
    )


X3 = {
    "if": (IF, {"c": np.array(True), "x": X}),
    "while": (WHILE, {"x": X, "n": np.array(100)}),
    "scan": (SCAN, {"s": X, "a": np.ones((3, 2), np.float32), "b": np.ones((2, 3), np.float32)}),
}


@pytest.mark.parametrize("name", X3)
def test_control_flow_equals_the_program(name: str) -> None:
    graph, inputs = X3[name]
    original = program(graph)
    module = printed.load(original.to_source(framework="jax"))
    with jax.enable_x64(True):
        outputs = original(**inputs)
        for mine, theirs in zip(
            printed.run(module, inputs), outputs if isinstance(outputs, tuple) else (outputs,), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("size", "read"),
    [
        ("32*n", "n = x.shape[0] // 32"),
        ("2*n + 3", "n = (x.shape[0] - 3) // 2"),
        ("n - 1", "n = x.shape[0] + 1"),
    ],
)
def test_a_size_is_solved_for_its_name(size: str, read: str) -> None:
    turned = program("""g (float[m, 3] x) => (float[k, l, o] y) { s = Shape<start = 0, end = 1>(x)
        two = Constant<value_ints = [2]>() u = Unsqueeze(x, two)
        three = Constant<value_ints = [3]>() t = Concat<axis = 0>(s, three, s) y = Expand(u, t) }""")
    dims = jax.export.symbolic_shape(f"{size}, 3", constraints=["n >= 2"])
    source = turned.to_source(inputs={"x": jax.ShapeDtypeStruct(dims, np.float32)}, framework="jax")
    assert body(source.code).count(f"{read}\n") == 1
    x = np.arange(64 * 3, dtype=np.float32).reshape(64, 3) if size == "32*n" else np.ones((7, 3), np.float32)
    module = printed.load(source)
    np.testing.assert_array_equal(module.model(module.params, x), turned(x))
    if "*" in size:  # a name that has no value is not rounded
        with pytest.raises(ValueError, match=re.escape(f"x.shape[0] has to be {size}")):
            module.model(module.params, x[1:])


def test_what_was_known_is_no_argument() -> None:
    counted = program(loop("Sub(v, k)"))
    source = counted.to_source(inputs={"n": np.array(50), "c": np.array(True)}, framework="jax")
    module = printed.load(source)
    outputs = module.model(module.params, X)
    np.testing.assert_array_equal(outputs.y, X * 51)
    assert outputs.ys.shape == (50, 2)
    with pytest.raises(ValueNotKnown, match="a loop whose length depends on the data"):
        counted.to_source(framework="jax")


LARGE = np.arange(40, dtype=np.int64)
MIXED = f"""g (float[batch, 40] x) => (float[batch, 40] y, int64[40] t) <float[40] w = {{{",".join("1.5" for _ in LARGE)}}},
    int64[40] table = {{{",".join(map(str, LARGE))}}}> {{ y = Mul(x, w) t = Add(table, table) z = Identity(table) }}"""


def test_weights_constants_and_gradients(tmp_path: Path) -> None:
    """In a process of its own, in which jaxport cannot be imported."""
    original = program(MIXED)
    original.to_source(tmp_path, framework="jax")
    x = np.ones((2, 40), np.float32)
    with pytest.warns(UserWarning, match="the outputs `t` are 32-bit"):
        original(x)
    expected = jax.grad(lambda params: (original.apply(params, x).y ** 2).sum())(original.params)
    np.save(tmp_path / "expected.npy", expected["w"])
    script = """
import sys
sys.modules["jaxport"] = None
import jax, numpy as np, model
x = np.ones((2, 40), np.float32)
params = model.load_params()
gradient = jax.jit(jax.grad(lambda params: (model.model(params, x).y ** 2).sum()))(params)
np.testing.assert_array_equal(gradient["w"], np.load("expected.npy"))
np.testing.assert_array_equal(model.model(params, x).t, 2 * np.arange(40))
"""
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True)


HOSTILE = [
    "Not",
    "And",
    "Print",
    "__import__('os').system('false')",
    "x'\"\n\\",
    '"""\nimport os\n"""',
    "class",
    "jnp",
    "params",
    "print",
    "é漢",
    "",
    "a" * 500,
    "../../etc/passwd",
    "{x}",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_a_model_are_harmless(name: str) -> None:
    made = model(
        "g (float[n, 2] x, float[n, 2] z) => (float[n, 2] y, float[n, 2] v) <float[2] w = {1, 2}> { h = Mul(x, w) y = Add(h, z) v = Neg(h) }"
    )
    graph = made.graph
    graph.name = name
    if name:
        graph.input[0].name = graph.node[0].input[0] = name
        graph.output[1].name = graph.node[2].output[0] = name + "/out"
        graph.initializer[0].name = graph.node[0].input[1] = name + ".w"
        graph.node[0].output[0] = graph.node[1].input[0] = graph.node[2].input[0] = name + ":0"
        for value in (graph.input[0], graph.input[1]):
            value.type.tensor_type.shape.dim[0].dim_param = name
    for node in graph.node:
        node.name = f"/{name}/{node.op_type}"
    original = from_onnx(made)
    x = np.ones((3, 2), np.float32)
    module = printed.load(original.to_source(framework="jax"))
    public = {key for key in vars(module) if not key.startswith("__")}
    assert public <= {
        "annotations",
        "Path",
        "NamedTuple",
        "jnp",
        "Array",
        "load_file",
        "_load",
        "load_params",
        "Outputs",
        "model",
        "params",
    }
    np.testing.assert_array_equal(module.model(module.params, x, x)[0], original(x, x)[0])


def test_what_cannot_be_printed_is_refused() -> None:
    @op("test.source", "Raw", since=1)
    def raw(x):
        return x + jax.numpy.ones(2) if not hasattr(x, "variable") else x + object()

    graph = "g (float[2] x) => (float[2] y) { y = test.source.Raw(x) }"
    with pytest.raises(Exception, match="cannot be computed"):
        program(graph, domains=', "test.source": 1').to_source(framework="jax")


def test_a_recorded_value_does_not_outlive_its_recording() -> None:
    kept = []

    @op("test.source", "Keep", since=1)
    def keep(x):
        kept.append(x)
        return x + x

    program("g (float[2] x) => (float[2] y) { y = test.source.Keep(x) }", domains=', "test.source": 1').to_source(
        framework="jax"
    )
    with pytest.raises(RuleError, match="a recorded value was used after its recording ended"):
        kept[0] + kept[0]


@pytest.mark.parametrize("node", ["y = Identity(x)", "y = Shape(x)", "y = StringConcat(x, x)", "y = Equal(x, x)"])
def test_strings_cannot_be_arguments_of_source(node: str):
    made = program(f"g (string[n] x) => (string[n] y) {{ {node} }}", 20)
    with pytest.raises(ValueNotKnown, match="strings cannot be arguments") as caught:
        made.to_source(framework="jax")
    assert "the input `x`" in str(caught.value)
    assert "then it stops" in str(made.explain())
    made.to_source(inputs={"x": np.array(["a", "b"])}, framework="jax")
