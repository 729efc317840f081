"""Artifacts as programs: arguments and results, parameters and modules, sizes, exports, source, damaged files."""

from __future__ import annotations

import inspect
import io
import random

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from typer.testing import CliRunner

import jaxport
from jaxport.cli.app import app
from jaxport.jaxprs.releases import mlir_module
from jaxport.jaxprs.walk import equations_within
from jaxport.stablehlo import ops, recognised  # noqa: F401  the first registers the definitions
from jaxport.stablehlo.registry import definitions

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
ROWS = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 4"), np.float32)


class Encoder(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(nn.Dense(8)(x))
        return nn.softmax(nn.Dense(3)(nn.gelu(nn.silu(x))))


MODEL = Encoder()
VARIABLES = MODEL.init(jax.random.key(0), X)


def function(x):
    return MODEL.apply(VARIABLES, x)


def exported(fn, *specs, **options):
    return jax.export.export(jax.jit(fn), **options)(*specs)


@pytest.fixture(scope="module")
def artifact():
    return exported(function, ROWS)


def bytecode(artifact) -> bytes:
    file = io.BytesIO()
    mlir_module(artifact.mlir_module()).operation.write_bytecode(file)
    return file.getvalue()


FORMS = {
    "the object": lambda a: a,
    "serialized": lambda a: bytes(a.serialize()),
    "text": lambda a: a.mlir_module(),
    "portable": lambda a: bytes(a.mlir_module_serialized),
    "bytecode": bytecode,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same_values(artifact, form, tmp_path):
    made = form(artifact)
    program = jaxport.from_stablehlo(made)
    np.testing.assert_allclose(program(X), function(X), rtol=1e-5)
    if isinstance(made, bytes):
        (tmp_path / "model.mlirbc").write_bytes(made)
        np.testing.assert_allclose(jaxport.from_stablehlo(tmp_path / "model.mlirbc")(X[:2]), function(X[:2]), rtol=1e-5)


def test_it_is_jax_again(artifact):
    program = jaxport.from_stablehlo(artifact)
    loss = lambda fn: lambda x: (fn(x) ** 2).sum()
    np.testing.assert_allclose(jax.grad(loss(program))(X), jax.grad(loss(function))(X), rtol=1e-4, atol=1e-6)
    stacked = np.stack([X, 2 * X])
    np.testing.assert_allclose(jax.vmap(program)(stacked), jax.vmap(function)(stacked), rtol=1e-5)
    np.testing.assert_allclose(jax.jvp(program, (X,), (X,))[1], jax.jvp(function, (X,), (X,))[1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(jax.grad(jax.checkpoint(loss(program)))(X), jax.grad(loss(program))(X), rtol=1e-5)


def test_parameters_are_named_by_their_scopes(artifact):
    program = jaxport.from_stablehlo(artifact)
    assert {name: array.shape for name, array in program.params.items()} == {
        "Encoder.Dense_0.kernel": (4, 8),
        "Encoder.Dense_0.bias": (8,),
        "Encoder.LayerNorm_0.scale": (8,),
        "Encoder.LayerNorm_0.bias": (8,),
        "Encoder.Dense_1.kernel": (8, 3),
        "Encoder.Dense_1.bias": (3,),
    }
    doubled = {name: 2 * array for name, array in program.params.items()}
    wanted = MODEL.apply(jax.tree.map(lambda leaf: 2 * leaf, VARIABLES), X)
    np.testing.assert_allclose(program.apply(doubled, X), wanted, rtol=1e-5)
    np.testing.assert_allclose(program(doubled, X), wanted, rtol=1e-5)
    gradients = jax.grad(lambda params, x: (program(params, x) ** 2).sum())(program.params, X)
    by_flax = jax.grad(lambda variables: (MODEL.apply(variables, X) ** 2).sum())(VARIABLES)["params"]
    np.testing.assert_allclose(gradients["Encoder.Dense_1.kernel"], by_flax["Dense_1"]["kernel"], rtol=1e-4, atol=1e-6)
    with pytest.raises(jaxport.InvalidArgument, match="is missing"):
        program.apply({}, X)


def test_modules_are_those_that_locations_name(artifact):
    program = jaxport.from_stablehlo(artifact)
    assert list(program.scopes) == ["", "Encoder", "Encoder.Dense_0", "Encoder.LayerNorm_0", "Encoder.Dense_1"]
    mox = jaxport.make_mox(program)(X)
    assert [match.path for match in mox.select("//Dense_0")] == ["Encoder.Dense_0"]
    edited = mox.sub("//Dense_0", lambda x, **_: jnp.zeros((*x.shape[:-1], 8), x.dtype))
    assert np.ptp(edited(X), 0).max() < 1e-6  # each row is the same now


def test_its_export_is_no_larger_than_the_functions(artifact):
    direct = jaxport.to_onnx(function, [("B", 4)])
    again = jaxport.to_onnx(jaxport.from_stablehlo(artifact), [("B", 4)])
    assert [node.op_type for node in again.model.graph] == [node.op_type for node in direct.model.graph]
    assert again.verify().ok


def test_a_function_that_calls_an_artifact_is_exported(artifact):
    inside = jaxport.to_onnx(lambda x: jnp.sin(artifact.call(x)), [("B", 4)])
    assert inside.verify().ok
    assert "Encoder.Dense_0.kernel" in inside.model.graph.initializers
    call = artifact.call  # bound before: the primitive itself is traced
    assert jaxport.to_onnx(lambda x: call(x) + 1, [("B", 4)]).verify().ok
    batched = jaxport.to_onnx(lambda x: jax.vmap(artifact.call)(x), [(2, "B", 4)])
    assert batched.verify().ok


def test_source_of_an_artifact(artifact, tmp_path):
    source = jaxport.to_source(jaxport.from_stablehlo(artifact), [("B", 4)], framework="nnx")
    assert "nnx.Linear(4, 8" in source.code
    assert "nn.gelu" in source.code
    (tmp_path / "model.jax").write_bytes(artifact.serialize())
    assert jaxport.to_source(tmp_path / "model.jax", framework="equinox").code


TREES = {"w": jax.ShapeDtypeStruct((4, 3), np.float32), "unused": jax.ShapeDtypeStruct((2,), np.float32)}


def test_trees_of_arguments_and_results():
    def fn(params, *, x):
        return {"y": x @ params["w"], "n": (x.sum(),)}

    program = jaxport.from_stablehlo(jax.export.export(jax.jit(fn))(TREES, x=ROWS))
    params = {"w": np.ones((4, 3), np.float32), "unused": np.zeros(2, np.float32)}
    made = program(params, x=X)
    np.testing.assert_allclose(made["y"], X @ params["w"], rtol=1e-5)
    assert made["n"][0].shape == ()
    gradients = jax.grad(lambda p: program(p, x=X)["y"].sum())(params)
    np.testing.assert_allclose(gradients["w"], np.broadcast_to(X.sum(0)[:, None], (4, 3)), rtol=1e-4)
    with pytest.raises(jaxport.InvalidArgument, match="structure"):
        program(params, X)
    with pytest.raises(jaxport.InvalidArgument, match="argument 2"):
        program(params, x=X.astype(np.int32))


def test_sizes_are_names_again():
    fn = lambda x, y: (jnp.concatenate([x, y])[::2], x.reshape(-1), jnp.arange(x.shape[0] // 2) * 2)
    scope = jax.export.SymbolicScope()
    shapes = [jax.export.symbolic_shape(text, scope=scope) for text in ("a, 4", "b, 4")]
    program = jaxport.from_stablehlo(exported(fn, *(jax.ShapeDtypeStruct(s, np.float32) for s in shapes)))
    for want, got in zip(fn(X, X[:3]), program(X, X[:3]), strict=True):
        np.testing.assert_array_equal(want, got)
    assert jaxport.to_onnx(program, [("M", 4), ("N", 4)]).verify().ok


def test_an_assertion_that_does_not_hold_is_told():
    scope = jax.export.SymbolicScope()
    both = [jax.ShapeDtypeStruct(jax.export.symbolic_shape("2*n", scope=scope), np.float32)]
    program = jaxport.from_stablehlo(exported(lambda x: x.reshape(2, -1), *both).mlir_module())
    assert program(np.ones(6, np.float32)).shape == (2, 3)
    with pytest.raises(jaxport.JaxportError, match="n"):
        program(np.ones(5, np.float32))


ASSERTED = {
    "a multiple": (lambda x: x.reshape(2, -1), ["2*n"], (), [("B",)]),
    "at least": (lambda x: x[:4] * 2, ["n, 3"], ["n >= 4"], [("B", 3)]),
    "at most": (lambda x, y: jnp.concatenate([x, y]), ["n, 3", "m, 3"], ["m >= n"], [("P", 3), ("Q", 3)]),
    "divided": (lambda x: x.reshape(x.shape[0] // 4, 4), ["n"], ["mod(n, 4) == 0"], [("B",)]),
    "equal": (lambda x, y: x + y, ["n, 3", "n, 3"], (), [("P", 3), ("Q", 3)]),
    "of another": (lambda x, y: jnp.concatenate([x, y[::2]]), ["n", "2*n"], (), [("P",), ("Q",)]),
}


@pytest.mark.parametrize("name", ASSERTED)
def test_assertions_are_constraints_on_other_names(name):
    fn, shapes, constraints, specs = ASSERTED[name]
    scope = jax.export.SymbolicScope(constraints)
    structs = [jax.ShapeDtypeStruct(jax.export.symbolic_shape(text, scope=scope), np.float32) for text in shapes]
    assert jaxport.to_onnx(jaxport.from_stablehlo(exported(fn, *structs)), specs).verify().ok


def test_constraints_on_shardings_are_kept_where_a_mesh_is_set():
    text = """
        sdy.mesh @mesh = <["x"=2]>
        func.func public @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
          %0 = sdy.sharding_constraint %a <@mesh, [{}, {"x"}]> : tensor<4x4xf32>
          return %0 : tensor<4x4xf32>
        }"""
    program, x = jaxport.from_stablehlo(text), np.ones((4, 4), np.float32)
    traced = lambda: str(jax.make_jaxpr(program)(x))
    assert "sharding_constraint" not in traced()
    automatic, explicit = (
        jax.sharding.AbstractMesh((2,), ("x",), axis_types=(kind,))
        for kind in (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)
    )
    with jax.sharding.use_abstract_mesh(explicit):
        assert "sharding_constraint" not in traced()  # which JAX refuses there
    with jax.sharding.use_abstract_mesh(automatic):
        assert "PartitionSpec(None, 'x')" in traced() or "P(None, 'x')" in traced()


def test_a_saved_model_is_refused_by_name(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    for path in (tmp_path, tmp_path / "saved_model.pb"):
        with pytest.raises(jaxport.InvalidArgument, match="XlaCallModule"):
            jaxport.from_stablehlo(path)


LOOPS = {
    "scan": lambda x: lax.scan(lambda c, r: (jnp.sin(c * r), c + r), x[0], x),
    "reverse": lambda x: lax.scan(lambda c, r: (jnp.sin(c * r), c + r), x[0], x, reverse=True),
    "fori": lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.cos(c) + i, x),
    "relu": jax.nn.relu,
    "pool": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME"),
    "sort": lambda x: jnp.sort(x, 0),
    "cond": lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
}


@pytest.mark.parametrize("fn", LOOPS.values(), ids=LOOPS)
def test_gradients_of_what_was_exported_without_them(fn):
    zeros = np.where(np.arange(5)[:, None] == 0, 0, X).astype(np.float32)
    program = jaxport.from_stablehlo(exported(fn, zeros))
    loss = lambda fn: lambda x: sum((y**2 + y).sum() for y in jax.tree.leaves(fn(x)))
    np.testing.assert_allclose(jax.grad(loss(program))(zeros), jax.grad(loss(fn))(zeros), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("specs", [X, ROWS], ids=["fixed", "open"])
@pytest.mark.parametrize("name", ["scan", "reverse"])
def test_a_scan_is_a_scan(name, specs):
    artifact = exported(LOOPS[name], specs)
    program = jaxport.from_stablehlo(artifact)
    if "@dynamic_index_in_dim" not in artifact.mlir_module():
        pytest.skip("older releases of JAX take rows without a function, and these are computed as they are")
    (scan,) = [e for e in jax.make_jaxpr(program)(specs).eqns if e.primitive.name == "scan"]
    names = {e.primitive.name for e in scan.params["jaxpr"].jaxpr.eqns}
    assert not names & {"dynamic_slice", "dynamic_update_slice", "add_any", "lt"}
    assert scan.params["reverse"] == (name == "reverse")
    for want, got in zip(LOOPS[name](X), program(X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def primitives(fn, *specs):
    return {each.primitive.name for each in equations_within(jax.make_jaxpr(fn)(*specs).jaxpr)}


@pytest.mark.parametrize("specs", [X, ROWS], ids=["fixed", "open"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", recognised._SPELLED)
def test_functions_of_numbers_are_themselves_again(name, dtype, specs):
    function = definitions()[name].function
    count = sum(p.default is p.empty for p in inspect.signature(function).parameters.values())
    between = lambda x: jnp.tanh(function(*[(x * 0.5).astype(dtype)] * count)) + 1
    wanted = primitives(between, specs)
    program = jaxport.from_stablehlo(exported(between, specs))
    if name == "chlo.lgamma" and jax.__version_info__ >= (0, 12):
        pytest.skip("from 0.12 on it is lowered to functions and tables, which are evaluated as they are")
    assert primitives(program, specs) <= wanted | {"broadcast_in_dim", "convert_element_type", "jit"}
    found, computed = (np.asarray(fn(X), np.float32) for fn in (program, jax.jit(between)))
    np.testing.assert_array_equal(found, computed)


TAKEN = {
    "fill": lambda x, i: jnp.take_along_axis(x, i[:, None] % 4, 1),
    "gradient": lambda x, i: jax.grad(lambda x: (jnp.take_along_axis(x, i[:, None] % 4, 1) ** 2).sum())(x),
    "clip": lambda x, i: jnp.asarray(x).at[i].set(2, mode="clip"),
    "rows": lambda x, i: x[i % 3],
    "extreme": lambda x, i: (jnp.argmax(x, 1) + jnp.argmin(x, 1), i),
    "remainder": lambda x, i: (x, i % x.shape[0]),
}


@pytest.mark.parametrize("sizes", ["3", "b"])
@pytest.mark.parametrize("fn", TAKEN.values(), ids=TAKEN)
def test_indexing_has_the_nodes_of_a_direct_export(fn, sizes):
    scope = jax.export.SymbolicScope()
    shapes = [jax.export.symbolic_shape(text, scope=scope) for text in (f"{sizes}, 4", f"{sizes},")]
    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, (np.float32, np.int32), strict=True)]
    program = jaxport.from_stablehlo(exported(fn, *specs))
    nodes = [len(list(jaxport.to_onnx(each, specs).model.graph.all_nodes())) for each in (fn, program)]
    assert nodes[1] <= 1.1 * nodes[0], nodes
    arguments = X[:3], np.array([1, -2, 7], np.int32)
    for want, got in zip(jax.tree.leaves(fn(*arguments)), jax.tree.leaves(program(*arguments)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_collectives_of_one_device():
    def own(z):
        z = lax.ppermute(lax.pcast(z, "i", to="varying"), "i", [(0, 0)]) + lax.axis_index("i")
        return lax.psum(z, "i") * lax.all_gather(z, "i").sum()

    fn = jax.shard_map(own, mesh=jax.make_mesh((1,), ("i",)), in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
    program = jaxport.from_stablehlo(exported(fn, X))
    np.testing.assert_allclose(program(X), X * X.sum(), rtol=1e-5)


def test_platforms():
    fn = lambda x: lax.platform_dependent(x, cpu=lambda x: x + 1, tpu=lambda x: x + 2)
    artifact = exported(fn, X, platforms=("tpu", "cpu"))
    np.testing.assert_allclose(jaxport.from_stablehlo(artifact)(X), X + 1)
    with pytest.raises(jaxport.InvalidArgument, match="several platforms"):
        jaxport.from_stablehlo(artifact.mlir_module())(X)
    program = jaxport.from_stablehlo(artifact.mlir_module(), platforms=("tpu", "cpu"))
    np.testing.assert_allclose(program(X), X + 1)


def test_64_bits():
    with jax.enable_x64(True):
        artifact = exported(lambda x: jnp.cumsum(x) + jnp.arange(4), jax.ShapeDtypeStruct((4,), np.float64))
    found = jaxport.from_stablehlo(artifact)(np.array([1, 2, 3, 1e-12]))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.cumsum([1, 2, 3, 1e-12]) + np.arange(4), rtol=1e-15)


def test_callbacks_are_refused_by_name():
    fn = lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    with pytest.raises(jaxport.Unsupported, match="runs Python on the host"):
        jaxport.from_stablehlo(jax.jit(fn).lower(X).as_text())


MALFORMED = {
    "text": ("func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n  %0 = stablehlo.abs %b : tensor<2xf32>\n  return %0 : tensor<2xf32>\n}", "line 2, column"),
    "brackets": ("func.func @main() {\n" + "(" * 100_000 + "\n}", "line 2, column"),
    "no function": ("module {\n}", "no function"),
    "recursion": ("func.func @main(%a: tensor<f32>) -> tensor<f32> {\n  %0 = call @main(%a) : (tensor<f32>) -> tensor<f32>\n  return %0 : tensor<f32>\n}", "calls itself"),
    "bytes": (b"\x00\x01\x02\x03", "no artifact"),
}  # fmt: skip


QUANT = "tensor<2x!quant.uniform<i8:f32, 0.1:5>>"
PLACED = {
    "a type": ("func.func @main(%a: tensor<2xf32>) {\n  %r = stablehlo.convert %a : (tensor<2xf32>) -> tensor<2xf80>\n  return\n}", "line 2, column 8"),
    "a type of an argument": ("\nfunc.func @main(%a: tensor<2xf80>) {\n  return\n}", "line 2, column 1"),
    "what is no tensor": ("\nfunc.func @main(%a: memref<2xf32>) {\n  return\n}", "line 2, column 1"),
    "a quantized type": (f"func.func @main(\n  %a: {QUANT}) {{\n  return\n}}", "line 2, column"),
    "an operation": ("func.func @main(%a: tensor<2xf32>) {\n  %r = stablehlo.custom_call @mine(%a) : (tensor<2xf32>) -> tensor<2xf32>\n  return\n}", "line 2, column 8"),
    "blocks": ("\nfunc.func @main(%a: tensor<2xf32>) {\n  cf.br ^bb1\n^bb1:\n  return\n}", "line 2, column 1"),
    "a call of itself": ("func.func @main() {\n  call @f() : () -> ()\n  return\n}\nfunc.func @f() {\n  call @main() : () -> ()\n  return\n}", "line 6, column 3"),
    "no body": ("\nfunc.func private @main(%a: tensor<f32>) -> tensor<f32>", "line 2, column 1"),
    "data": ("func.func @main() {\n  %0 = stablehlo.constant dense_resource<foo> : tensor<2xf32>\n  return\n}", "line 2, column 8"),
    "data of another size": ('func.func @main() {\n  %0 = stablehlo.constant dense_resource<foo> : tensor<2xf32>\n  return\n}\n{-#\n  dialect_resources: {builtin: {foo: "0x0400000001000000"}}\n#-}', "line 2, column 8"),
    "an operation that is no function": ("\nsdy.mesh @m = <[\"x\"=2]>\nmodule @inner {\n}", "line 3, column 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACED)
def test_refusals_have_line_and_column(name):
    text, place = PLACED[name]
    with pytest.raises((jaxport.ModelError, jaxport.Unsupported), match=place):
        jaxport.from_stablehlo(text)


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name):
    data, why = MALFORMED[name]
    with pytest.raises(jaxport.ModelError, match=why):
        jaxport.from_stablehlo(data)


def test_results_that_are_too_large_are_refused():
    text = "func.func @main() -> tensor<100000000000xf32> {\n  %0 = stablehlo.constant dense<1.0> : tensor<100000000000xf32>\n  %1 = stablehlo.abs %0 : tensor<100000000000xf32>\n  return %1 : tensor<100000000000xf32>\n}"
    with pytest.raises(jaxport.ModelError, match="limits allow"):
        jaxport.from_stablehlo(text)()


def mutants(data: bytes, count: int):
    """Bytes of an artifact with a few of them changed, left out or repeated."""
    for seed in range(count):
        generator, changed = random.Random(seed), bytearray(data)
        for _ in range(generator.choice([1, 2, 5])):
            at = generator.randrange(len(changed))
            match generator.randrange(4):
                case 0:
                    changed[at] = generator.randrange(256)
                case 1:
                    del changed[at : at + generator.randrange(1, 30)]
                case 2:
                    changed[at:at] = changed[at : at + generator.randrange(1, 60)]
                case _:
                    del changed[max(at, 1) :]
        yield bytes(changed)


@pytest.mark.parametrize("form", ["text", "portable", "bytecode", "serialized"])
def test_damaged_artifacts_are_refused(artifact, form):
    made = FORMS[form](artifact)
    for mutant in mutants(made if isinstance(made, bytes) else made.encode(), 6):
        try:
            jaxport.from_stablehlo(mutant)
        except jaxport.JaxportError:
            continue


def test_the_command_takes_artifacts(artifact, tmp_path):
    path, model = tmp_path / "model.mlir", tmp_path / "model.onnx"
    path.write_text(artifact.mlir_module())
    run = lambda *words: CliRunner().invoke(app, list(map(str, words)))
    assert run("export", path, "-o", model, "--verify").exit_code == 0
    assert run("verify", model, path).exit_code == 0
    assert "Dense_0" in run("tree", path).output
    assert "Dense_0" in run("inspect", path).output
    assert run("import", path, "-o", tmp_path / "printed").exit_code == 0
    assert (tmp_path / "printed" / "model.py").is_file()
    assert run("run", path, "--random").exit_code == 0


symmetric = lambda a: a + jnp.conj(jnp.swapaxes(a, -1, -2))
positive = lambda a: a @ jnp.conj(jnp.swapaxes(a, -1, -2)) + 4 * jnp.eye(a.shape[-1])
FACTORED = {
    "qr": (jnp.linalg.qr, (5, 3)),
    "qr of a wide matrix": (jnp.linalg.qr, (3, 5)),
    "qr of batches": (jnp.linalg.qr, ("b", 4, 3)),
    "complete qr": (lambda a: jnp.linalg.qr(a, mode="complete"), (5, 3)),
    "complete qr of a square matrix": (lambda a: jnp.linalg.qr(a, mode="complete"), (3, 3)),
    "r alone": (lambda a: jnp.linalg.qr(a, mode="r"), (5, 3)),
    "q alone": (lambda a: jnp.linalg.qr(a)[0], (5, 3)),
    "qr of a qr": (lambda a: jnp.linalg.qr(a + jnp.linalg.qr(a)[0]), (5, 3)),
    "two of one matrix": (
        lambda a: (jnp.linalg.qr(a, mode="r"), jnp.linalg.qr(a), jnp.linalg.qr(a, mode="complete")),
        (5, 3),
    ),
    "qr with pivots": (lambda a: jax.scipy.linalg.qr(a, pivoting=True, mode="economic"), (5, 3)),
    "qr in a loop": (lambda a: lax.fori_loop(0, 2, lambda _, x: sum(jnp.linalg.qr(x)), a), (3, 3)),
    "eigh": (lambda a: jnp.linalg.eigh(symmetric(a)), (4, 4)),
    "svd": (lambda a: [x**2 for x in jnp.linalg.svd(a, full_matrices=False)], (5, 3)),
    "singular values": (lambda a: jnp.linalg.svd(a, compute_uv=False), (3, 5)),
    "lu": (jax.scipy.linalg.lu, (4, 4)),
    "lu_factor": (jax.scipy.linalg.lu_factor, (4, 4)),
    "det": (jnp.linalg.det, (4, 4)),
    "inv": (jnp.linalg.inv, (4, 4)),
    "cholesky": (lambda a: jax.scipy.linalg.cholesky(positive(a)), (4, 4)),
    "triangular": (lambda a: jax.scipy.linalg.solve_triangular(positive(a), a[:, :2], trans=1), (4, 4)),
    "eigenvalues": (lambda a: jnp.abs(jnp.linalg.eigvals(a)), (4, 4)),
    "tridiagonal": (lambda a: lax.linalg.tridiagonal_solve(a[0], a[1] + 5, a[2], a[:, :2]), (4, 4)),
    "pinv": (jnp.linalg.pinv, (5, 3)),
    "expm": (lambda a: jax.scipy.linalg.expm(a / 3), (4, 4)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.complex64], ids=["real", "complex"])
@pytest.mark.parametrize("name", FACTORED)
def test_factorizations_have_their_own_derivatives(name, dtype):
    fn, shape = FACTORED[name]
    numbers = np.random.default_rng(1).normal(size=[2, *(size if isinstance(size, int) else 2 for size in shape)])
    a = jnp.asarray(numbers[0] + (1j * numbers[1] if dtype == np.complex64 else 0), dtype)
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape(", ".join(map(str, shape))), dtype)
    targets = ("ALL", "lapack_sgeqp3_ffi", "lapack_cgeqp3_ffi")
    unchecked = [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]
    program = jaxport.from_stablehlo(jax.export.export(jax.jit(fn), disabled_checks=unchecked)(spec))

    def loss(fn, a):
        results = [y for y in jax.tree.leaves(fn(a)) if jnp.issubdtype(y.dtype, jnp.inexact)]
        weights = [jnp.cos(jnp.arange(y.size)).reshape(y.shape) for y in results]
        return sum(jnp.sum((y.real - y.imag / 2) * w) for y, w in zip(results, weights, strict=True))

    for want, got in zip(jax.tree.leaves(fn(a)), jax.tree.leaves(program(a)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    if jax.__version_info__ < (0, 10) and name in (
        "qr of a wide matrix",
        "complete qr",
        "two of one matrix",
        "qr with pivots",
    ):
        pytest.skip("JAX 0.9 has no derivative of this factorization")
    wanted, found = (jax.grad(loss, 1)(each, a) for each in (fn, program))
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3 * float(np.abs(wanted).max()))


def test_a_factorization_that_is_read_as_it_is_stays():
    fn = lambda a: (jnp.linalg.qr(a, mode="raw"), jnp.linalg.qr(a))
    program = jaxport.from_stablehlo(exported(fn, jax.ShapeDtypeStruct((5, 3), np.float32)))
    a = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for want, got in zip(jax.tree.leaves(fn(a)), jax.tree.leaves(program(a)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_what_has_no_derivative_is_named():
    program = jaxport.from_stablehlo(exported(jax.scipy.linalg.hessenberg, np.ones((3, 3), np.float32)))
    with pytest.raises(jaxport.Unsupported, match="rule for 'hessenberg'"):
        jax.grad(lambda a: program(a).sum())(np.ones((3, 3), np.float32))


def test_a_qr_of_a_tpu_is_one():
    fn = lambda a: jnp.linalg.qr(a)
    artifact = exported(fn, jax.ShapeDtypeStruct((5, 3), np.float32), platforms=("tpu",))
    assert "qr" in primitives(jaxport.from_stablehlo(artifact), np.ones((5, 3), np.float32))
