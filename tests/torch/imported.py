"""Models of PyTorch, imported and compared with ONNX Runtime: `python -m tests.torch.imported FOLDER [NAME …]` prints a table.

This file needs no PyTorch: the folder holds what `tests.torch.exporting` wrote.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxport
from jaxport.errors import RunError
from jaxport.importer.traced.assumptions import with_assumptions
from jaxport.importer.traced.input_specs import input_specs
from jaxport.jaxprs.releases import QUICKLY
from jaxport.verify import difference
from jaxport.verify.importing import Comparison, caller
from tests.importer import printed
from tests.torch.page import QUESTIONS, ROWS

IMAGE_SIZES = ("height", "width")
RESULT = "result of PyTorch "
"""How the names of PyTorch's own results begin, in the files with inputs."""


def multiples(specs: Mapping[str, Any], sets: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The same with images of `32*height` rows and `32*width` columns, where 32 divides all sizes that are compared.

    Models that halve images and put them together again fit such sizes alone. None where there are no images of open sizes.
    """
    scope, found = jax.export.SymbolicScope(), {}
    for key, spec in specs.items():
        sizes = [str(size) for size in spec.shape]
        for axis, size in enumerate(sizes):
            if size in IMAGE_SIZES:
                sizes[axis] = f"{math.gcd(*(given[key].shape[axis] for given in sets))}*{size}"
        found[key] = jax.ShapeDtypeStruct(jax.export.symbolic_shape(", ".join(sizes), scope=scope), spec.dtype)
    return None if [spec.shape for spec in found.values()] == [spec.shape for spec in specs.values()] else found


class Checks:
    """The checks of one file, with the two sets of inputs that lie beside it."""

    def __init__(self, path: Path):
        self.program = jaxport.from_onnx(path)
        self.comparison = Comparison(self.program, threads=1)
        self.loaded = [dict(np.load(path.with_suffix(f".{number}.npz"))) for number in range(2)]
        self.sets = [{key: found[key] for key in self.program.input_names} for found in self.loaded]
        # A value at the border of a quantization step falls on either side of it, and takes others along in the layers behind.
        # In the narrow types both sides round after each operation, and ONNX Runtime not after those that it fused.
        halves = any(value.dtype == np.float16 for given in self.sets for value in given.values()) or any(
            spec.dtype == np.float16 for spec in self.program.param_specs.values()
        )
        self.oracle = "ONNX Runtime"
        share = 0.05 if self.comparison.quantized else 0.02 if halves else 0.0
        self.limits = {"rtol": share, "atol": share} if share else {}

    @cached_property
    def expected(self) -> list[list[np.ndarray]]:
        """What ONNX Runtime computes for each set of inputs; where it refuses the file, what PyTorch did."""
        try:
            return [self.comparison.session.run(given) for given in self.sets]
        except RunError:
            self.oracle = "PyTorch"
            return [[found[f"{RESULT}{i}"] for i in range(len(self.program.output_names))] for found in self.loaded]

    @cached_property
    def results(self) -> list[list[np.ndarray]]:
        """What the program computes under `jax.jit`."""
        return [caller(self.program, given, QUICKLY)() for given in self.sets]

    def run(self) -> dict[str, str]:
        """The answer to each question: nothing where it is yes, else why not."""
        return {question: attempt(getattr(self, question)) for question in QUESTIONS}

    def facts(self) -> dict[str, Any]:
        """What a row says beside the answers."""
        return {"opset": self.program.model.opset_imports[""], "oracle": self.oracle}

    def equal(self) -> str:
        return self._differing(self.expected, self.results)

    def symbolic(self) -> str:
        """Whether the program can be traced with the model's own names for the sizes."""
        with jax.enable_x64(True):
            try:
                with_assumptions(lambda known: self._trace(input_specs(self.program, known)))
            except jaxport.JaxportError:
                specs = multiples(input_specs(self.program), self.sets)
                if specs is None:
                    raise
                self._trace(specs)
        return ""

    def _trace(self, specs: dict[str, Any]) -> None:
        jax.eval_shape(self.program, *specs.values())
        self.specs = specs

    def source(self) -> str:
        """Whether the printed source computes the same, at the second set of sizes, where jaxport cannot be imported."""
        with jax.enable_x64(True):
            module = printed.load(self.program.to_source(inputs=self.recorded_with(), framework="jax"))
            call = jax.jit(module.model, compiler_options=QUICKLY)
            found = call(module.params, *(jnp.asarray(value) for value in self.sets[1].values()))
        found = [np.asarray(leaf) for leaf in (found if isinstance(found, tuple) else (found,))]
        return self._differing(self.results[1:], [found])

    def gradient(self) -> str:
        """Whether the gradient with respect to every parameter is finite, and not zero everywhere."""

        def loss(params: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
            leaves = jax.tree.leaves(self.program.apply(params, **given))
            return sum(
                jnp.sum(x.astype(np.float32) ** 2) for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)
            ) / sum(x.size for x in leaves)

        with jax.enable_x64(True):
            if not self.program.params:
                return ""
            gradients = jax.jit(jax.grad(loss), compiler_options=QUICKLY)(self.program.params, self.sets[0])
        wrong = [
            name for name, gradient in gradients.items() if not np.all(np.isfinite(np.asarray(gradient, np.float64)))
        ]
        if wrong:
            return f"not finite for {len(wrong)} of {len(gradients)}, `{wrong[0]}` first"
        rounded = self.comparison.quantized  # what is rounded has no slope
        return "" if rounded or any(np.any(gradient) for gradient in gradients.values()) else "zero everywhere"

    def round_trip(self) -> str:
        """Whether the program, exported again, computes the same in ONNX Runtime, at the second set of sizes."""
        specs = self.recorded_with() or self.specs
        exported = jaxport.to_onnx(self.program, list(specs.values()), double_precision=True)
        given = dict(zip(exported.input_names, self.sets[1].values(), strict=True))
        return self._differing(self.expected[1:], [exported.run(given)])

    def recorded_with(self) -> dict[str, Any] | None:
        """What the program is traced with if not with the model's own names; the second set of sizes if need be."""
        if attempt(self.symbolic):
            return {key: jax.ShapeDtypeStruct(value.shape, value.dtype) for key, value in self.sets[1].items()}
        own = all(
            size not in str(spec.shape) or f"*{size}" not in str(spec.shape)
            for size in IMAGE_SIZES
            for spec in self.specs.values()
        )
        return None if own else self.specs

    def _differing(self, expected: list[list[np.ndarray]], found: list[list[np.ndarray]]) -> str:
        for wanted, results in zip(expected, found, strict=True):
            for name, one, other in zip(self.program.output_names, wanted, results, strict=True):
                limits = {}
                if self.limits and np.issubdtype(one.dtype, np.floating):
                    limits = {
                        "rtol": self.limits["rtol"],
                        "atol": self.limits["atol"] * float(np.max(np.abs(one), initial=0)),
                    }
                problem = difference(one, other, **limits).problem
                if problem:
                    return f"{name}: {problem}"
        return ""


def attempt(check: Callable[[], str]) -> str:
    """What a check answers; where it is refused, with which words."""
    try:
        return check()
    except jaxport.JaxportError as error:
        return " | ".join(line.strip() for line in str(error).splitlines()[:4])


def main(folder: str, *names: str) -> None:
    """Prints one line for each model, and writes a row for `tests.torch.page`."""
    for path in sorted(Path(folder).glob("*.onnx")):
        if names and path.name.partition(".")[0] not in names and path.stem not in names:
            continue
        model, exporter, *variant = path.stem.split(".")
        row = {"model": model.replace("_", " "), "exporter": exporter, "variant": "".join(variant)}
        try:
            checks = Checks(path)
            answers = checks.run()
        except jaxport.JaxportError as error:
            print(f"{path.name:34} {error}", flush=True)
            continue
        with (Path(folder) / ROWS).open("a") as file:
            file.write(json.dumps(row | checks.facts() | answers) + "\n")
        print(f"{path.name:34} {({key: answer for key, answer in answers.items() if answer}) or 'ok'}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
