"""Mutated compiled artifacts: text by what is in it, bytecode and serialized ones by the byte."""

from __future__ import annotations

import io
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxport
from jaxport.jaxprs.releases import mlir_module
from tests.fuzzing.onnx_files import LARGEST_INPUT, mutated

NUMBERS = (b"0", b"1", b"-1", b"7", b"?", b"4294967296", b"9223372036854775807")
"""What a number in a text may become."""


def seeds() -> list[bytes]:
    """Artifacts with constants, scopes, calls, loops, regions, sorts and open sizes, in each form."""
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)

    def function(x):
        with jax.named_scope("Dense_0"):
            y = jnp.tanh(x @ weights)
        y, _ = jax.lax.scan(lambda carry, row: (carry * row[0], carry.sum()), y, jnp.sin(y))
        z = jnp.sort(y, 0) + jax.nn.softmax(y) + jnp.cumsum(y, 0) + jnp.linalg.qr(weights)[1][0]
        return {"a": z, "b": jnp.take(z, jnp.array([0, 1]), axis=0).astype(jnp.bfloat16)}

    made: list[bytes] = []
    for shape in ("3, 4", "b, 4"):
        struct = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), np.float32)
        artifact = jax.export.export(jax.jit(function))(struct)
        bytecode = io.BytesIO()
        mlir_module(artifact.mlir_module()).operation.write_bytecode(bytecode)
        portable, serialized = artifact.mlir_module_serialized, artifact.serialize()
        made += [artifact.mlir_module().encode(), bytecode.getvalue(), bytes(portable), bytes(serialized)]
    return made


def rewritten(text: bytes, generator: random.Random) -> bytes:
    """A text in which numbers, words or lines are others, and which MLIR often still reads."""
    changed = text
    for _ in range(generator.choice([1, 1, 2, 4])):
        tokens = list(re.finditer(rb"\d+|[\w.]+|[^\n]*\n", changed))
        token, other = generator.choice(tokens), generator.choice(tokens)
        new = generator.choice(NUMBERS) if token[0].isdigit() else generator.choice([b"", other[0], 2 * token[0]])
        changed = changed[: token.start()] + new + changed[token.end() :]
    return changed


def files(seed: int, count: int) -> Iterator[bytes]:
    """Mutated artifacts, the same for the same seed."""
    generator, originals = random.Random(seed), seeds()
    for _ in range(count):
        data = generator.choice(originals)
        is_text = b"func.func" in data
        yield rewritten(data, generator) if is_text and generator.random() < 0.8 else mutated(data, generator)


def attempt(data: bytes, folder: Path) -> str:
    """Reads an artifact, shows it, and runs it if it is small: says how far that was."""
    path = folder / "model.mlirbc"
    path.write_bytes(data)
    try:
        program = jaxport.from_stablehlo(path)
        str(program), str(program.modules)
        specs = [kind for kind in program.input_types if hasattr(kind, "shape")]
        shapes = [[size if isinstance(size, int) else 3 for size in kind.shape] for kind in specs]
        if sum(map(math.prod, shapes)) < LARGEST_INPUT:
            program.flat(*(np.ones(shape, kind.dtype) for shape, kind in zip(shapes, specs, strict=True)))
    except jaxport.JaxportError as error:
        str(error)
        return type(error).__name__
    return "ran"
