"""Running structured source where jaxport cannot be imported, and what is asked of all of it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

import jaxport
from jaxport.jaxprs.compiling import QUICKLY
from tests.importer.printed import without_jaxport

NEEDED = {"__future__", "collections", "equinox", "flax", "jax", "numpy", "pathlib", "safetensors", "typing"}


def check(
    model: Any, inputs: Mapping[str, Any], folder: Path, framework: str = "nnx", lines: int = 10**6, loops: int = 0
) -> str:
    """Prints a model, imports that, and compares its values and its gradients with the program's; returns the source.

    Args:
      model: an ONNX model.
      inputs: arrays for the inputs, by name.
      folder: where to write.
      framework: for which framework.
      lines: how many lines of code it has at most.
      loops: how many loops over layers it has.
    """
    program = jaxport.from_onnx(model)
    source = program.to_source(folder, framework=framework)
    assert imported(source.code) <= NEEDED
    module = load(folder)
    made = module.load()
    arrays = [jnp.asarray(inputs[name]) for name in program.input_names]
    expected = jax.tree.leaves(jax.jit(lambda *given: program(*given), compiler_options=QUICKLY)(*arrays))
    found = jax.tree.leaves(jax.jit(lambda *given: made(*given), compiler_options=QUICKLY)(*arrays))
    compare(found, expected)
    compare_gradients(program, made, arrays, framework, source.origins)
    step = gradient_step(made, arrays, framework)
    assert step is None or step[1] < step[0], f"the loss is {step}"
    module.save(made, folder / "again.safetensors")
    again = jax.tree.leaves(module.load(folder / "again.safetensors"))
    assert all(map(np.array_equal, again, jax.tree.leaves(made)))
    if loops:
        assert source.code.count(" in self.") == loops
    classes = source.code.partition("\ndef ")[0]
    assert sum(bool(line.strip()) for line in classes.splitlines()) <= lines
    return source.code


def compare(found: list[Any], expected: list[Any]) -> None:
    """Compares outputs: to 1e-5 of the largest."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        scale = max(float(np.nanmax(np.abs(np.asarray(other, np.float64)), initial=0)), 1e-6)
        np.testing.assert_allclose(
            np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=0, atol=1e-5 * scale
        )


def compare_gradients(
    program: jaxport.Program, model: Any, arrays: list[Any], framework: str, origins: Mapping[str, str]
) -> None:
    """Compares the gradient of each tensor with the program's, to 1e-4 of the largest.

    The axes and gates of a tensor may be in another order: the elements are compared in the order of their sizes.
    """
    keys = [name for name, value in program.params.items() if jnp.issubdtype(value.dtype, jnp.floating)]
    params = {key: program.params[key] for key in keys}
    fixed = {key: value for key, value in program.params.items() if key not in params}
    wanted = jax.jit(jax.grad(lambda given: loss_of(program.apply(given | fixed, *arrays))), compiler_options=QUICKLY)(
        params
    )
    trained, loss = loss_function(model, arrays, framework)
    found = jax.jit(jax.grad(loss), compiler_options=QUICKLY)(trained)
    by_origin: dict[str, list[np.ndarray]] = {}
    for path, slope in jax.tree_util.tree_leaves_with_path(found):
        parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
        key = ".".join(part for part in parts if part != "value")
        if key in origins:
            by_origin.setdefault(origins[key], []).append(np.asarray(slope))
    scale = max((float(np.abs(slope).max(initial=0)) for slope in wanted.values()), default=0)
    compared = 0
    for name, slopes in by_origin.items():
        every = np.concatenate([np.ravel(slope) for slope in slopes])
        if name in wanted and every.size == wanted[name].size:
            ordered = [np.sort(np.ravel(slope)) for slope in (every, wanted[name])]
            np.testing.assert_allclose(*ordered, rtol=0, atol=1e-4 * scale, err_msg=name)
            compared += 1
    assert compared or not by_origin or len(by_origin) < 3, "no gradient was compared"


def loss_of(outputs: Any) -> jax.Array:
    """A number that all floating-point outputs have a part in."""
    floats = [leaf for leaf in jax.tree.leaves(outputs) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return sum(jnp.mean(jnp.sin(leaf) ** 2) for leaf in floats)  # type: ignore[return-value]


def loss_function(model: Any, arrays: list[Any], framework: str) -> tuple[Any, Any]:
    """The parameters of a model, and the loss of a model with such."""
    if framework == "nnx":
        from flax import nnx

        graph, params, rest = nnx.split(model, nnx.Param, ...)
        return nnx.to_pure_dict(params), lambda weights: loss_of(
            nnx.merge(graph, _filled(params, weights), rest)(*arrays)
        )
    import equinox as eqx

    params, rest = eqx.partition(model, eqx.is_inexact_array)
    return params, lambda weights: loss_of(eqx.combine(weights, rest)(*arrays))


def _filled(state: Any, weights: Any) -> Any:
    from flax import nnx

    filled = jax.tree.map(lambda leaf: leaf, state)
    nnx.replace_by_pure_dict(filled, weights)
    return filled


def gradient_step(model: Any, arrays: list[Any], framework: str) -> tuple[float, float] | None:
    """The loss before and after a step against the gradient; None without parameters."""

    params, loss = loss_function(model, arrays, framework)
    if not jax.tree.leaves(params):
        return None
    before, slopes = jax.jit(jax.value_and_grad(loss), compiler_options=QUICKLY)(params)
    size = sum(float(jnp.sum(slope**2)) for slope in jax.tree.leaves(slopes))
    assert np.isfinite(size)
    assert size > 0
    rate = 1e-2 * float(before) / size
    moved = jax.tree.map(lambda weight, slope: weight - rate * slope, params, slopes)
    after = jax.jit(loss, compiler_options=QUICKLY)(moved)
    return float(before), float(after)


def nameless(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without names, but for its inputs and outputs, and without metadata."""
    stripped = onnx.ModelProto.FromString(model.SerializeToString())
    graph = stripped.graph
    names = {value.name: value.name for value in [*graph.input, *graph.output]} | {"": ""}
    for tensor in graph.initializer:
        tensor.name = names.setdefault(tensor.name, f"w{len(names)}")
    for node in graph.node:
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        for values in (node.input, node.output):
            values[:] = [names.setdefault(value, f"v{len(names)}") for value in values]
    for stale in (graph.value_info, graph.metadata_props, stripped.metadata_props):
        del stale[:]
    graph.name = "graph"
    return stripped


def load(folder: Path) -> ModuleType:
    """The printed module of a folder."""
    spec = importlib.util.spec_from_file_location("structured_model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["structured_model"] = module
    with without_jaxport():
        spec.loader.exec_module(module)
    return module


def imported(code: str) -> set[str]:
    """The packages that a source imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found
