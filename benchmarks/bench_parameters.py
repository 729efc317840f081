"""Parameters of files, imported, exported again, and printed: `python -m benchmarks.bench_parameters FOLDER [NAME …]`.

For each ONNX file of the folder: how many parameters and statistics it has, whether the same parameters come back after
`to_onnx(program)` and `from_onnx`, and whether the source for Flax NNX trains each of them, once, and nothing else: True, or
how many it lacks (copies of one weight, which its module has once) and how many it has in addition (quantized weights,
which it trains as floats). With `--train` also by how much the losses of some steps of gradient descent on the inputs beside
the file (`NAME.0.npz`) differ, relative to the first; and if that is more than 1e-5, by how much the losses of the file differ
from its own if each of its parameters is one unit in the last place larger or smaller.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxport
from jaxport.importer import Program, from_onnx

STEPS, RATES = 20, (1e-3, 1e-5, 1e-7)
"""The steps, and the rates of which the first that does not diverge is taken."""


def exported_again(program: Program, inputs: Mapping[str, np.ndarray]) -> Program:
    """The program of the model that the program is exported as, for the sizes of these inputs."""
    static = {name: inputs[name] for name in program.static_inputs}
    names = [name for name in inputs if name not in static]
    specs = [jax.ShapeDtypeStruct(inputs[name].shape, inputs[name].dtype) for name in names]

    def call(*arrays: jax.Array) -> Any:
        return program(**dict(zip(names, arrays, strict=True)), **static)

    return from_onnx(jaxport.to_onnx(call, specs, input_names=names).model) if static else from_onnx(
        jaxport.to_onnx(program, specs, input_names=names).model
    )  # fmt: skip


def printed(program: Program, inputs: Mapping[str, np.ndarray]) -> tuple[Any, dict[str, str]]:
    """The model of the printed source, and the tensors of the file that its parameters are, by path."""
    specs: dict[str, Any] = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in inputs.items()}
    source = program.to_source(framework="nnx", inputs={**specs, **{n: inputs[n] for n in program.static_inputs}})
    namespace: dict[str, Any] = {"__name__": "printed"}
    exec(compile(source.code, "printed", "exec"), namespace)  # what the project itself has printed
    model = namespace["filled"](source.tensors)
    paths = [".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))]
    return model, {path: source.origins.get(path, "") for path in paths}


def curve(
    loss: Callable[[Any], jax.Array], params: Any, rate: float, tied: Callable[[Any], Any] = lambda gradients: gradients
) -> list[float]:
    """The losses of some steps of gradient descent; `tied` adds the gradients of weights that are one."""
    step, losses = jax.jit(jax.value_and_grad(loss, allow_int=True)), []
    for _ in range(STEPS):
        value, gradients = step(params)
        gradients = tied(gradients)
        losses.append(float(value))
        params = jax.tree.map(lambda p, g: p - (rate * g).astype(p.dtype), params, gradients)
    return losses


def loss_of(outputs: Any) -> jax.Array:
    """The mean of the squares of the results that are numbers."""
    return sum(
        jnp.mean(leaf.astype(jnp.float32) ** 2)
        for leaf in jax.tree.leaves(outputs)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    )  # type: ignore[return-value]


def trains_alike(
    program: Program, model: Any, origins: Mapping[str, str], inputs: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """The rate, and the largest difference of the losses, relative to the first.

    Exporters store equal tensors once, such as all fresh biases, which are weights of their own in the source again. They
    are trained as the one tensor of the file here. Pieces of a tensor, such as the biases of a recurrent layer, are not
    tied: together they are as large as it.
    """
    whole = sizes(program.param_specs)

    def tied(gradients: Any) -> Any:
        flat = {path: variable[...] for path, variable in nnx.to_flat_state(gradients)}
        origin = {path: origins[".".join(map(str, path))] for path in flat}
        total = Counter[str]()
        for path, array in flat.items():
            total[origin[path]] += array.size
        sums = {
            path: sum(
                flat[other]
                for other in flat
                if other == path
                or (
                    (origin[other], flat[other].shape) == (origin[path], array.shape)
                    and total[origin[path]] > whole[origin[path]]
                )
            )
            for path, array in flat.items()
        }
        return jax.tree.map_with_path(
            lambda path, _: sums[tuple(getattr(key, "key", getattr(key, "name", key)) for key in path[:-1])], gradients
        )

    of_file = lambda params: loss_of(program.apply(params, **inputs))
    curves = ((rate, curve(of_file, program.params, rate)) for rate in RATES)
    rate, imported = next((at, losses) for at, losses in curves if all(loss <= 2 * losses[0] for loss in losses))
    graph, params, others = nnx.split(model, nnx.Param, ...)
    names = [name for name in inputs if name not in program.static_inputs]
    arrays = [inputs[name] for name in names]
    source = curve(lambda params: loss_of(nnx.merge(graph, params, others)(*arrays)), params, rate, tied)
    found = {"rate": rate, "trained": _difference(source, imported)}
    if not found["trained"] <= 1e-5:
        rng = np.random.default_rng(0)
        signs = {name: rng.choice((-1, 1), p.shape) for name, p in program.params.items()}
        moved = {
            name: p * (1 + signs[name] * jnp.finfo(p.dtype).eps).astype(p.dtype) for name, p in program.params.items()
        }
        found["rounding"] = _difference(curve(of_file, moved, rate), imported)
    return found


def _difference(losses: list[float], others: list[float]) -> float:
    return float(np.abs(np.subtract(losses, others)).max() / max(abs(others[0]), 1e-30))


def _missing(found: set[str], expected: set[str]) -> bool | str:
    return found == expected or f"-{len(expected - found)} +{len(found - expected)}"


def sizes(specs: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, int]:
    """The number of elements of each parameter; a model may keep one in another order of axes."""
    return {name: int(np.prod(spec.shape)) for name, spec in specs.items()}


def row(path: Path, train: bool) -> dict[str, Any]:
    """What is found about one file."""
    program = from_onnx(path)
    specs = program.param_specs
    found: dict[str, Any] = {
        "parameters": len(specs),
        "elements": sum(sizes(specs).values()),
        "statistics": sum(role == "statistic" for role in program.roles.values()),
    }
    stored = path.with_suffix(".0.npz")
    data = np.load(stored) if stored.exists() else {}
    inputs = {name: data[name] for name in program.input_names if name in data}
    if set(inputs) != set(program.input_names):
        return found | {"note": "no inputs"}
    steps: dict[str, Callable[[], Mapping[str, object]]] = {
        "again": lambda: {"again": sizes(exported_again(program, inputs).param_specs) == sizes(specs)},
        "printed": lambda: {"printed": _missing({*printed(program, inputs)[1].values()}, {*specs})},
    }
    if train:
        steps["trained"] = lambda: trains_alike(program, *printed(program, inputs), inputs)
    for name, step in steps.items():
        try:
            found |= step()
        except jaxport.JaxportError as error:
            found[name] = f"refused: {str(error).splitlines()[0][:70]}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--train", action="store_true")
    arguments = parser.parse_args()
    for path in sorted(arguments.folder.glob("*.onnx")):
        if not arguments.names or path.stem in arguments.names:
            try:
                print(path.stem, row(path, arguments.train), flush=True)
            except Exception as error:  # noqa: BLE001 - a table of all files
                print(path.stem, f"failed: {type(error).__name__}: {str(error)[:100]}", flush=True)
            jax.clear_caches()


if __name__ == "__main__":
    main()
