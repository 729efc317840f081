"""Writes what a runtime is asked to run: models, their inputs, and what is expected."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxport
from jaxport.export.delivery.targets import TARGETS
from jaxport.export.exported import Exported
from jaxport.jaxprs import dims
from jaxport.verify import sampling, size_choice
from tests.runtimes.programs import Program

#: What WGSL allows the sine and the cosine of numbers from -π to π.
GPU_LIMIT = 2**-11


def write(folder: Path, programs: Iterable[Program], targets: Iterable[str]) -> dict[str, str]:
    """Write each program for each target; returns why what could not be written was refused."""
    refused: dict[str, str] = {}
    names: dict[str, dict] = {}
    chosen = list(targets)
    for program in programs:
        plain = export(program, "onnx")
        cases = [inputs_of(program, plain, dict(sizes), seed) for seed, sizes in enumerate(program.sizes)]
        for number, inputs in enumerate(cases):
            np.savez(folder / f"{program.name}-{number}-inputs.npz", **inputs)
            expected = plain.run(inputs)
            np.savez(folder / f"{program.name}-{number}-outputs.npz", *expected)
        for target in chosen:
            name = f"{program.name}-{target}"
            is_static = TARGETS[target].static
            try:
                exported = export(at_first_sizes(program) if is_static else program, target)
            except (jaxport.Unsupported, jaxport.InvalidArgument) as error:
                refused[name] = str(error)
                continue
            exported.save(folder / f"{name}.onnx")
            numbered = [f"{program.name}-{number}" for number in range(1 if is_static else len(cases))]
            names[name] = {
                "cases": numbered,
                "limit": max(program.limit, GPU_LIMIT if TARGETS[target].gpu else 0.0),
                "target": target,
                "runtime": exported.requirements.runtime,
            }
    (folder / "models.json").write_text(json.dumps(names))
    return refused


def at_first_sizes(program: Program) -> Program:
    """A program for a target without names of sizes, such as that of small devices, where no element is NaN."""
    inputs = tuple(fixed(list(program.inputs), program.sizes[0]))
    options = {name: value for name, value in program.options.items() if name != "constraints"}
    return dataclasses.replace(program, inputs=inputs, options={**options, "nonfinite": "ignore"})


def fixed(specs: Any, sizes: Mapping[str, int]) -> Any:
    """Specifications of inputs with numbers for the names of sizes."""
    one = lambda size: size if isinstance(size, int) else int(dims.evaluate(str(size), sizes))
    is_shape = lambda x: isinstance(x, tuple) and all(isinstance(size, int | str) for size in x)
    is_spec = lambda x: isinstance(x, jax.ShapeDtypeStruct) or is_shape(x)
    with_numbers = lambda spec: (
        tuple(map(one, spec)) if is_shape(spec) else jax.ShapeDtypeStruct(tuple(map(one, spec.shape)), spec.dtype)
    )
    return jax.tree.map(with_numbers, specs, is_leaf=is_spec)


def export(program: Program, target: str) -> Exported:
    """A program for a target; what is expected of it is what JAX gives."""
    exported = jaxport.to_onnx(program.fn, list(program.inputs), target=target, **program.options)
    if target == "onnx":
        exported.verify(sizes=None if not any(program.sizes) else list(program.sizes))
    return exported


def inputs_of(program: Program, exported: Exported, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Inputs of a model, by name."""
    generator = np.random.default_rng(seed)
    if program.sample is not None:
        return exported.flatten(program.sample(generator, sizes), {})
    ports, count = [port for port in exported.inputs if not port.weight], len(exported.traced.weights)
    bounds = sampling.bounds(exported.traced.jaxpr)
    size_choice.checked(size_choice.Conditions(exported.traced.jaxpr), [sizes]) if sizes else None
    return {
        port.name: port.to_model(sampling.sample(port, sizes, generator, bounds.get(count + i, ()), ()), exported.x64)
        for i, port in enumerate(ports)
    }
