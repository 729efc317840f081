"""Each row of the page of limitations, and each figure of the questions and answers, is run."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx.parser
import pytest

import jaxport

DOCS = Path(__file__).parents[2] / "docs"
X = [("B", 3)]
FRAMEWORKS = ("jax", "nnx", "equinox", "burn")
STRINGS = "g (string[N] x, string[N] y) => (string[N] z) { z = StringConcat(x, y) }"
ROWS = re.findall(r"^\| (?!limit|---)(.+?) \|", (DOCS / "limitations.md").read_text(), re.MULTILINE)


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20, "their": 1]>\n{text}')


def operators(exported: jaxport.Exported) -> list[str]:
    return [node.op_type for node in exported.model.graph]


def refuses(
    call: Callable[[], object], text: str = ".", error: type[Exception] = jaxport.JaxportError
) -> Callable[[], None]:
    def run() -> None:
        with pytest.raises(error, match=text):
            call()

    return run


def called_back(x):
    return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def checks_are_left_out() -> None:
    import equinox

    checked = lambda x: equinox.error_if(x, jnp.any(x < 0), "negative")
    assert jaxport.to_onnx(checked, X).requirements.checks == 1
    refuses(lambda: jaxport.to_onnx(checked, X, checks="refuse"), "check")()


def several_devices() -> None:
    gathered = lambda x: jax.vmap(lambda row: jax.lax.psum(row, "devices"), axis_name="devices")(x)
    assert "ReduceSum" in operators(jaxport.to_onnx(gathered, X))  # an axis of `vmap` is not an axis of devices
    mesh = jax.sharding.AbstractMesh((2,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("devices")
    shared = jax.shard_map(lambda x: jax.lax.all_gather(x, "devices"), mesh=mesh, in_specs=spec, out_specs=spec)
    refuses(lambda: jaxport.to_onnx(shared, [(4, 3)]), "device")()


def keys_are_inputs_or_constants() -> None:
    baked = jaxport.to_onnx(lambda x: x + jax.random.normal(jax.random.key(0), (3,)), X)
    x = np.zeros((1, 3), np.float32)
    assert np.array_equal(baked(x), baked(x))
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    drawn = jaxport.to_onnx(lambda key: jax.random.normal(key, (3,)), [key])
    assert not np.array_equal(drawn(jax.random.key(0)), drawn(jax.random.key(1)))


def shapes_of_values_need_a_call_without_jit() -> None:
    program = jaxport.from_onnx(parsed("g (float[N] x) => (int64[1, M] y) { y = NonZero(x) }"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the outputs are 32-bit
        assert program(jnp.array([0.0, 2.0, 3.0])).tolist() == [[1, 2]]
        refuses(lambda: jax.jit(program)(jnp.ones(3)))()


def values_that_decide_shapes_are_closed_over() -> None:
    program = jaxport.from_onnx(parsed("g (float[N] x, int64[2] s) => (float[A, B] y) { y = Reshape(x, s) }"))
    x, shape = jnp.arange(6.0), np.array([2, 3])
    assert jax.jit(lambda x: program(x, shape))(x).shape == (2, 3)
    refuses(lambda: jax.jit(program)(x, shape))()


def integers_are_narrowed_with_a_warning() -> None:
    program = jaxport.from_onnx(parsed("g (int64[N] x) => (int64[N] y) { y = Add(x, x) }"))
    with pytest.warns(UserWarning, match="the outputs `y` are 32-bit"):
        assert program(np.array([1, 2])).dtype == np.int32
    refuses(lambda: program(np.array([2**40, 2])), "does not fit", jaxport.NeedsWideTypes)()


def artifacts_of_one_device() -> None:
    def unary(operation: str, type: str = "tensor<2xf32>") -> str:
        return f"func.func @main(%a: {type}) -> {type} {{\n  %r = {operation} : ({type}) -> {type}\n  return %r : {type}\n}}"

    permuted = '"stablehlo.collective_permute"(%a) {source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}'
    texts = {
        "runs Python on the host": jax.jit(called_back).lower(jnp.ones(3)).as_text(),
        "collective_permute": unary(permuted),
        "quantized": unary("stablehlo.abs %a", "tensor<2x!quant.uniform<i8:f32, 0.1:5>>"),
        "stablehlo_op": unary("stablehlo.custom_call @theirs(%a)"),
    }
    for message, text in texts.items():
        refuses(lambda text=text: jaxport.from_stablehlo(text), message, jaxport.Unsupported)()


def one_program_for_each_value() -> None:
    program = jaxport.from_onnx(parsed("g (float[N] x, int64[2] s) => (float[A, B] y) { y = Reshape(x, s) }"))
    codes = {program.to_source(framework="jax", inputs={"s": np.array(shape)}).code for shape in ([2, 3], [3, 2])}
    assert len(codes) == 2


RUNS: dict[str, Callable[[], None]] = {
    "`pure_callback`, `io_callback`, FFI calls": refuses(lambda: jaxport.to_onnx(called_back, X), "pure_callback"),
    "Python `if` and `while` on traced values": refuses(
        lambda: jaxport.to_onnx(lambda x: x if x.sum() > 0 else -x, X), "jax.lax.cond"
    ),
    "checks that raise errors (`equinox.error_if`)": checks_are_left_out,
    "collectives over several devices": several_devices,
    "shapes that depend on values (`jnp.nonzero` without `size`)": refuses(
        lambda: jaxport.to_onnx(lambda x: jnp.nonzero(x), X), "cannot be traced"
    ),
    "opsets before 13": refuses(lambda: jaxport.to_onnx(jnp.tanh, X, opset=12), "opset 12 is out of range"),
    "operators that an opset lacks, without a function body in ONNX": refuses(
        lambda: jaxport.to_onnx(lambda i: i ^ 5, [jax.ShapeDtypeStruct((3,), np.int32)], opset=13),
        "needs BitwiseXor, which is new in opset 18",
    ),
    "4- and 8-bit floats as a precision of the whole model": refuses(
        lambda: jaxport.to_onnx(jnp.tanh, X, precision="float8_e4m3fn"),  # type: ignore[arg-type]
        "unknown precision",
    ),
    "random numbers that differ from run to run": keys_are_inputs_or_constants,
    "models whose shapes depend on values, under `jax.jit`": shapes_of_values_need_a_call_without_jit,
    "inputs whose values decide shapes": values_that_decide_shapes_are_closed_over,
    "64-bit integers without `jax_enable_x64`": integers_are_narrowed_with_a_warning,
    "custom operators of others": refuses(
        lambda: jaxport.from_onnx(parsed("g (float[N] x) => (float[N] y) { y = their.Unknown(x) }")), "Unknown"
    ),
    "callbacks, collectives of several devices and quantized types in compiled artifacts": artifacts_of_one_device,
    "one program for each set of known values": one_program_for_each_value,
    "strings as inputs of printed source": lambda: [
        refuses(lambda f=f: jaxport.from_onnx(parsed(STRINGS)).to_source(framework=f), "strings cannot be arguments")()
        for f in FRAMEWORKS
    ],
}


def test_each_row_is_run():
    assert set(ROWS) == set(RUNS)


@pytest.mark.parametrize("row", RUNS)
def test_a_row_is_true(row: str):
    RUNS[row]()


def chosen_at_run_time() -> None:
    for fn in (
        lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
        lambda x: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x + 1, x),
        lambda x: jnp.where(x > 0, x, -x),
    ):
        assert jaxport.to_onnx(fn, [(2, 3)]).verify().ok
    flagged = jaxport.to_onnx(lambda x, train: x * 2 if train else x, [*X, bool])
    x = np.ones((1, 3), np.float32)
    assert [flagged(x, np.array(flag)).sum() for flag in (True, False)] == [6, 3]


def with_a_size_or_a_mask() -> None:
    for fn in (lambda x: jnp.nonzero(x, size=3)[0], lambda x: jnp.sum(x, where=x > 0)):
        assert jaxport.to_onnx(fn, [(3,)]).verify().ok


def older_opsets_and_small_devices() -> None:
    assert jaxport.to_onnx(jnp.tanh, X, opset=13).model.opset_imports[""] == 13
    assert jaxport.to_onnx(jnp.tanh, [(2, 3)], target="edge").model.opset_imports[""] == 13


def bounds_of_sizes() -> None:
    text = "g (float[N] x) => (int64[1, M] y) { y = NonZero(x) }"
    program = jaxport.from_onnx(parsed(text), sizes={"y": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the outputs are 32-bit
        assert jax.jit(program)(jnp.array([0.0, 2.0, 3.0])).shape == (1, 3)


def wide_integers() -> None:
    program = jaxport.from_onnx(parsed("g (int64[N] x) => (int64[N] y) { y = Add(x, x) }"))
    with jax.enable_x64(True):
        assert program(np.array([2**40])).tolist() == [2**41]


def operators_of_ones_own() -> None:
    @jaxport.op("limitations", "Doubled")
    def doubled(x):
        return x + x

    text = "g (float[N] x) => (float[N] y) { y = limitations.Doubled(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20, "limitations": 1]>\n{text}')
    assert jaxport.from_onnx(model)(jnp.ones(2)).tolist() == [2, 2]

    @jaxport.stablehlo_op("@limitations_doubled")
    def call(x):
        return x + x

    body = "%r = stablehlo.custom_call @limitations_doubled(%a) : (tensor<2xf32>) -> tensor<2xf32>"
    artifact = f"func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{\n  {body}\n  return %r : tensor<2xf32>\n}}"
    assert jaxport.from_stablehlo(artifact)(jnp.ones(2)).tolist() == [2, 2]


def strings_as_constants() -> None:
    text = 'g (string[N] x, float[N] v) => (float[N] y) <string[1] s = {"a"}> { e = Equal(x, s) c = Cast<to=1>(e) y = Mul(c, v) }'
    program, x = jaxport.from_onnx(parsed(text)), np.array(["a", "b"], object)
    assert program(x, np.ones(2, np.float32)).tolist() == [1, 0]
    for framework in FRAMEWORKS:
        assert program.to_source(framework=framework, inputs={"x": x, "v": (2,)}).code


#: What the pages say to do instead, where the row itself does not run it.
INSTEAD: dict[str, Callable[[], None]] = {
    "Python `if` and `while` on traced values": chosen_at_run_time,
    "collectives over several devices": lambda: jaxport.to_onnx(jnp.tanh, X).verify(),
    "shapes that depend on values (`jnp.nonzero` without `size`)": with_a_size_or_a_mask,
    "opsets before 13": older_opsets_and_small_devices,
    "operators that an opset lacks, without a function body in ONNX": lambda: jaxport.to_onnx(
        lambda i: i ^ 5, [jax.ShapeDtypeStruct((3,), np.int32)], opset=18
    ).verify(),
    "4- and 8-bit floats as a precision of the whole model": lambda: [
        jaxport.to_onnx(lambda x: x @ np.ones((64, 64), np.float32), [("B", 64)], precision=precision)
        for precision in ("int8-dynamic", "int4")
    ],
    "models whose shapes depend on values, under `jax.jit`": bounds_of_sizes,
    "64-bit integers without `jax_enable_x64`": wide_integers,
    "custom operators of others": operators_of_ones_own,
    "strings as inputs of printed source": strings_as_constants,
}


@pytest.mark.parametrize("row", INSTEAD)
def test_what_to_do_instead_works(row: str):
    INSTEAD[row]()


def test_what_is_not_refused_is_what_the_page_says():
    """Three rows are exceptions; of a result that rounding decides, `verify` says so."""
    assert "with three exceptions" in (DOCS / "limitations.md").read_text()
    many = np.random.default_rng(0).normal(size=(4096, 8)).astype(np.float32)
    report = jaxport.to_onnx(lambda x: jnp.sin(1e6 * (x @ many)), [(4, 4096)]).verify()
    assert "ill-conditioned: JAX itself changes them" in str(report)


def test_the_nodes_of_an_argmax_are_as_many_as_the_page_says():
    counts = {"two": 2, "seven": 7, "eight": 8}
    text = (DOCS / "faq.md").read_text()
    exactly, ignored = re.search(r"an `argmax` (\w+) nodes.*?exports (\w+):", text, re.DOTALL).groups()  # type: ignore[union-attr]
    argmax = lambda x: jnp.argmax(x, axis=-1)
    assert len(operators(jaxport.to_onnx(argmax, X))) == counts[exactly]
    assert operators(jaxport.to_onnx(argmax, X, nonfinite="ignore")) == ["ArgMax", "Cast"]
    assert counts[ignored] == 2


@pytest.mark.parametrize("function", [lambda x: jax.lax.top_k(x, 3)[1], jnp.signbit, lambda x: jnp.copysign(1, x)])
def test_a_nan_of_an_input_counts_as_positive(function: Callable[..., jax.Array]):
    exported = jaxport.to_onnx(function, [(3,)])
    negative, positive = (np.array([1, np.copysign(np.nan, sign), 2], np.float32) for sign in (-1, 1))
    np.testing.assert_array_equal(exported(negative), jax.jit(function)(positive))


def every_kind_of_callable() -> None:
    import equinox
    from flax import linen, nnx

    dense = linen.Dense(2)
    weights = dense.init(jax.random.key(0), jnp.ones((1, 3)))
    kinds = [
        nnx.Linear(3, 2, rngs=nnx.Rngs(0)),
        lambda x: dense.apply(weights, x),
        jax.vmap(equinox.nn.Linear(3, 2, key=jax.random.key(0))),
        jax.grad(lambda x: jnp.tanh(x).sum()),
    ]
    assert all(jaxport.to_onnx(kind, X).verify().ok for kind in kinds)


def without(blocked: str, code: str, folder: Path) -> None:
    """Run code in a process that cannot import a package."""
    blocking = f"import sys\nsys.modules[{blocked!r}] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", blocking + code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def no_jax_to_run(folder: Path) -> None:
    jaxport.to_onnx(jnp.tanh, X).save(folder / "model.onnx")
    run = "import numpy, onnxruntime\nonnxruntime.InferenceSession('model.onnx').run(None, {'x': numpy.ones((2, 3), 'f')})"
    without("jax", run, folder)


def no_runtime_to_export(folder: Path) -> None:
    exports = "import jax.numpy, jaxport\njaxport.to_onnx(jax.numpy.tanh, [('B', 3)]).save('model.onnx')"
    without("onnxruntime", exports, folder)


def sizes_with_names() -> None:
    assert jaxport.to_onnx(lambda x, y: jnp.concatenate([x, y]), [("B", 3), ("2*B + 1", 3)]).verify().ok


def trained_as_a_program() -> None:
    from flax import nnx

    layer = nnx.Linear(32, 8, use_bias=False, rngs=nnx.Rngs(0))
    program = jaxport.from_onnx(jaxport.to_onnx(layer, [("B", 32)]).proto)
    slopes = jax.grad(lambda params: program.apply(params, np.ones((1, 32), np.float32)).sum())(program.params)
    assert [np.shape(slope) for slope in jax.tree.leaves(slopes)] == [(32, 8)]


def weights_keep_paths_and_nodes_lines() -> None:
    from flax import nnx

    exported = jaxport.to_onnx(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), X)
    assert any(name.endswith("kernel") for name in exported.model.graph.initializers)
    assert any(".py" in str(dict(node.metadata_props)) for node in exported.model.graph)


def files_of_others_run_nothing(folder: Path) -> None:
    model = parsed("g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }")
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../outside")
    path = folder / "inside" / "model.onnx"
    path.parent.mkdir()
    (folder / "outside").write_bytes(bytes(12))
    path.write_bytes(model.SerializeToString())
    refuses(lambda: jaxport.from_onnx(path))()


def weights_that_are_memory_maps(folder: Path) -> None:
    weights = np.memmap(folder / "weights", np.float32, "w+", shape=(3, 2))
    exported = jaxport.to_onnx(lambda x: x @ weights, X)
    weights[:] = 2  # read when the model is saved
    exported.save(folder / "model.onnx")
    found = jaxport.from_onnx(folder / "model.onnx")(np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(found, [[6, 6]])


def no_upper_bounds() -> None:
    needed = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["dependencies"]
    assert needed
    assert not [each for each in needed if "<" in each or "==" in each or "~" in each]


def says(page: str, text: str) -> Callable[[], None]:
    def run() -> None:
        assert text in (DOCS / page).read_text()

    return run


ANSWERS: dict[str, Callable[..., None]] = {
    "Which models can be exported?": every_kind_of_callable,
    "Do I need JAX to run an exported model?": no_jax_to_run,
    "Do I need ONNX Runtime to export?": no_runtime_to_export,
    "Can the batch have any size?": sizes_with_names,
    "Is the exported model trainable?": trained_as_a_program,
    "How does it differ from `jax2tf` and `tf2onnx`?": weights_keep_paths_and_nodes_lines,
    "How does it differ from jax2onnx?": says("migrating.md", "## From jax2onnx"),
    "Can I import a PyTorch model?": lambda: callable(jaxport.from_torch) or pytest.fail("there is no `from_torch`"),
    "Is it safe to load a file from somebody else?": files_of_others_run_nothing,
    "Why is an `argmax` eight nodes?": lambda: test_the_nodes_of_an_argmax_are_as_many_as_the_page_says(),
    "How large may a model be?": weights_that_are_memory_maps,
    "Which versions work together?": no_upper_bounds,
    "What will change in the next release?": says("stability.md", "deprecat"),
    "How do I cite it?": lambda: says("../CITATION.cff", "title:")(),
}


def test_each_answer_is_run():
    questions = re.findall(r"^\*\*(.+?)\*\*", (DOCS / "faq.md").read_text(), re.MULTILINE)
    assert questions == list(ANSWERS)


@pytest.mark.parametrize("question", ANSWERS)
def test_an_answer_is_true(question: str, tmp_path: Path):
    run = ANSWERS[question]
    run(tmp_path) if inspect.signature(run).parameters else run()


def test_the_version_converter_has_no_way_back_from_a_normalization():
    from onnx import version_converter

    exported = jaxport.to_onnx(lambda x: jax.nn.standardize(x) * 2 + 1, [(2, 8)])
    model = exported.proto
    assert "LayerNormalization" in operators(exported)
    with pytest.raises(Exception):  # noqa: B017  the converter raises errors of C++
        version_converter.convert_version(model, 13)
