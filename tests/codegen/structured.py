"""Running structured source where jaxport cannot be imported, and what is asked of all of it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

import jaxport
from jaxport.codegen.modules import ModuleSource
from jaxport.jaxprs.releases import QUICKLY
from tests.importer.printed import without_jaxport

NEEDED = set("__future__ collections equinox flax jax json numpy pathlib re safetensors typing".split())


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
    given = arguments(module, arrays)
    expected = jax.tree.leaves(jax.jit(lambda *given: program(*given), compiler_options=QUICKLY)(*arrays))
    found = jax.tree.leaves(jax.jit(lambda *given: made(*given), compiler_options=QUICKLY)(*given))
    compare(found, expected)
    compare_gradients(program, made, arrays, framework, source, given)
    step = gradient_step(made, given, framework)
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
    program: jaxport.Program,
    model: Any,
    arrays: list[Any],
    framework: str,
    source: ModuleSource,
    given: list[Any] | None = None,
) -> None:
    """Compares the gradient of each tensor with the program's, to 1e-4 of the largest.

    A tensor is matched by the path of its weight. Its axes and gates may be in another order: its elements are matched by
    their values, so that they have to be distinct, or all the same. `given` are the arguments of the model, where those are lists.
    """
    params = {
        name: value for name, value in program.params.items() if jnp.issubdtype(value.dtype, jnp.floating)
    }  # fmt: skip
    fixed = {key: value for key, value in program.params.items() if key not in params}
    differentiate = jax.grad(lambda weights: loss_of(program.apply(weights | fixed, *arrays)))
    expected = _with_copies(
        jax.jit(differentiate, compiler_options=QUICKLY)(params), params, {*source.origins.values()}
    )
    trained, loss = loss_function(model, given or arrays, framework)
    slopes = jax.jit(jax.grad(loss), compiler_options=QUICKLY)(trained)
    by_origin: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for keys, slope in jax.tree_util.tree_leaves_with_path(slopes):
        parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in keys]
        path = ".".join(part for part in parts if part != "value")
        if source.origins.get(path) in params:
            by_origin.setdefault(source.origins[path], []).append((source.tensors[path], np.asarray(slope)))
    scale = max((float(np.abs(slope).max(initial=0)) for slope in expected.values()), default=0)
    for name, pairs in by_origin.items():
        value, slope = np.asarray(params[name]), np.asarray(expected[name])
        if value.ndim == 1 and [one.shape for one, _ in pairs] == [value.shape]:
            found, wanted = pairs[0][1], slope
        else:
            elements, found = gradient_by_element(pairs)
            kept, wanted = gradient_by_element([(value, slope)])
            assert np.array_equal(kept, elements), f"`{name}` has other elements than the tensors made of it"
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * scale, err_msg=name)
    assert not params or by_origin or not source.origins, "no gradient was compared"


def _with_copies(
    slopes: Mapping[str, jax.Array], params: Mapping[str, jax.Array], kept: set[str]
) -> dict[str, jax.Array]:
    """The gradients of the tensors that are kept, with those of copies of them that are not."""
    sums = dict(slopes)
    for name, value in params.items():
        same = [other for other in kept & params.keys() if np.array_equal(params[other], value)]
        if name not in kept and len(same) == 1:
            sums[same[0]] = sums[same[0]] + slopes[name]
    return sums


def gradient_by_element(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The distinct elements of tensors, in order, and the sum of the gradients of each.

    >>> values, slopes = gradient_by_element([(np.array([3, 1, 3]), np.array([1.0, 10.0, 100.0]))])
    >>> values.tolist(), slopes.tolist()
    ([1, 3], [10.0, 101.0])
    """
    values = np.concatenate([np.ravel(value) for value, _ in pairs])
    distinct, places = np.unique(values, return_inverse=True)
    slopes = np.concatenate([np.ravel(slope) for _, slope in pairs]).astype(np.float64)
    return distinct, np.bincount(np.ravel(places), slopes, len(distinct))


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


def arguments(module: ModuleType, arrays: Sequence[Any]) -> list[Any]:
    """The arguments of a printed model that inputs of the file are, in its order: caches are lists of tuples."""
    taken = [*arrays]
    if hasattr(module, "flat"):
        module.flat(lambda *given: taken.__setitem__(slice(None), given))(*arrays)
    return taken


def imported(code: str) -> set[str]:
    """The packages that a source imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found
