"""A printed model has the weights that it has now, however it is called: nothing traced keeps those of an earlier call."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnx.parser
import pytest
from flax import nnx

import jaxport
from examples.models import build, cells
from tests.codegen.structured import load
from tests.codegen.test_layers import LAYERS, SIZES
from tests.codegen.test_structured import FRAMEWORKS, sampled

FACTOR = 0.75


def parsed(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 22]>
    agraph (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {{0.5, 1.5, -1, 2}}> {{ {body} }}""")


WITH_BODIES = {
    "both branches of If": parsed(
        "s = ReduceSum<keepdims = 0>(x) l = Constant<value_float = 0.5>() c = Less(s, l) "
        "y = If(c)<then_branch = t () => (float[n, 2] a) { a = MatMul(x, w) },"
        " else_branch = e () => (float[n, 2] b) { m = MatMul(x, w) b = Tanh(m) }>"
    ),
    "a loop that ends by its condition": parsed(
        "l = Constant<value_float = 90.0>() go = Constant<value = bool {1}>() "
        "y = Loop(, go, x)<body = b (int64 i, bool c, float[n, 2] h) => (bool d, float[n, 2] k)"
        " { k = MatMul(h, w) a = Abs(k) s = ReduceSum<keepdims = 0>(a) d = Less(s, l) }>"
    ),
    "a loop of many rounds": parsed(
        "m = Constant<value_int = 9>() "
        "y = Loop(m, , x)<body = b (int64 i, bool c, float[n, 2] h) => (bool d, float[n, 2] k)"
        " { d = Identity(c) p = MatMul(h, w) k = Tanh(p) }>"
    ),
    "a scan over rows": parsed(
        "z = Constant<value_floats = [0.0, 0.0]>() _, y = Scan<num_scan_inputs = 1, body = b (float[2] h, float[2] r) => "
        "(float[2] k, float[2] o) { s = Add(h, r) p = MatMul(s, w) k = Tanh(p) o = Identity(k) }>(z, x)"
    ),
}  # fmt: skip


def outputs(function: Callable[..., Any], *arguments: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(function(*arguments))]


def changed(array: Any) -> Any:
    return array * FACTOR if jnp.issubdtype(array.dtype, jnp.floating) else array


def imported_again(function: Callable[..., Any], arrays: Mapping[str, jax.Array]) -> list[np.ndarray]:
    specs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays.values()]
    return outputs(jaxport.from_onnx(jaxport.to_onnx(function, specs)), *arrays.values())


def of_classes(
    module: ModuleType, arrays: Mapping[str, jax.Array], framework: str, path: Path
) -> tuple[list, dict[str, list]]:
    """What a printed model returns before its weights change, and after that, called in five ways."""
    model, given = module.load(), [*arrays.values()]
    before = outputs(model, *given)
    jitted = nnx.jit if framework == "nnx" else eqx.filter_jit
    outputs(jitted(lambda model, *given: model(*given)), model, *given)
    outputs(jax.jit(lambda *given: model(*given)), *given)
    if framework == "nnx":
        for variable in module.named(model).values():
            variable.set_value(changed(variable[...]))
    else:
        arrays_of, rest = eqx.partition(model, eqx.is_array)
        model = eqx.combine(jax.tree.map(changed, arrays_of), rest)
    module.save(model, path)
    return before, {
        "eager": outputs(model, *given),
        "jax.jit": outputs(jax.jit(lambda *given: model(*given)), *given),
        "the framework's jit": outputs(jitted(lambda model, *given: model(*given)), model, *given),
        "loaded": outputs(module.load(path), *given),
        "exported": imported_again(model, arrays),
    }


def of_a_function(module: ModuleType, arrays: Mapping[str, jax.Array]) -> tuple[list, dict[str, list]]:
    """The same of a printed function, whose weights are an argument."""
    params, given = module.load_params(), [*arrays.values()]
    before = outputs(module.model, params, *given)
    outputs(jax.jit(module.model), params, *given)
    for name, array in params.items():
        params[name] = changed(array)
    copied = {name: jnp.array(array) for name, array in params.items()}
    return before, {
        "eager": outputs(module.model, params, *given),
        "jax.jit": outputs(jax.jit(lambda *given: module.model(params, *given)), *given),
        "jax.jit of all arguments": outputs(jax.jit(module.model), params, *given),
        "copied": outputs(module.model, copied, *given),
        "exported": imported_again(lambda *given: module.model(params, *given), arrays),
    }


def check_after_a_change(model: Any, given: Mapping[str, Any], folder: Path, framework: str) -> None:
    program = jaxport.from_onnx(model)
    arrays = {name: jnp.asarray(given[name]) for name in program.input_names}
    source = program.to_source(folder, framework=framework)
    expect_made_anew(source.code)
    module = load(folder)
    if framework == "jax":
        before, after = of_a_function(module, arrays)
    else:
        before, after = of_classes(module, arrays, framework, folder / "changed.safetensors")
    expected = after["eager"]
    scale = max((float(np.abs(one).max(initial=0)) for one in expected if one.dtype.kind == "f"), default=0.0)
    for way, found in after.items():
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * scale, err_msg=way)
    if program.params and scale:
        pairs = zip(before, expected, strict=True)
        assert any(np.abs(one - other).max() > 1e-4 * scale for one, other in pairs if one.dtype.kind == "f")


KEEPING = {
    "scan",
    "cond",
    "switch",
    "while_loop",
    "fori_loop",
    "map",
    "associative_scan",
    "vmap",
    "checkpoint",
    "remat",
}
"""Functions of JAX that may keep what they traced of a callable, by the callable."""


def expect_made_anew(code: str) -> None:
    """Assert that no attribute, such as a module of the model, is handed to JAX as a callable."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KEEPING:
            callables = {"cond": node.args[1:3], "switch": node.args[1:2], "while_loop": node.args[:2]}
            for argument in callables.get(node.func.attr, node.args[:1]):
                assert not isinstance(argument, ast.Attribute), ast.unparse(node)


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "jax"])
@pytest.mark.parametrize("name", ["lstm in both directions", "gru", *WITH_BODIES])
def test_changed_weights_are_used(name: str, framework: str, tmp_path: Path) -> None:
    model = WITH_BODIES[name] if name in WITH_BODIES else LAYERS[name][0]
    check_after_a_change(model, sampled(jaxport.from_onnx(model), SIZES), tmp_path, framework)


QUICK = {("lstm", "nnx"), ("bidirectional_gru", "linen")}


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "jax"])
@pytest.mark.parametrize(
    ("name", "origin"), [pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.slow) for cell in cells()]
)
def test_changed_weights_of_examples_are_used(name: str, origin: Any, framework: str, tmp_path: Path) -> None:
    example = build(name, origin, "small")
    exported = jaxport.to_onnx(example.fn, example.inputs, **example.options)
    arguments = example.sample(np.random.default_rng(0), example.sizes[0])
    check_after_a_change(exported.model, exported.flatten(arguments, {}), tmp_path, framework)


def test_a_callable_of_the_model_is_found() -> None:
    with pytest.raises(AssertionError, match=r"lax\.scan\(self\.cell"):
        expect_made_anew("lax.scan(self.cell, carry, x)")
    expect_made_anew("lax.scan(lambda carry, row: self.cell(carry, row), carry, x)")
