"""Models with other weights: what is printed of a model, its tree and its export must not depend on them.

    python -m tests.codegen.replaced [--views nnx,burn] [--kinds zeros,equal] FILE…

prints for each file what changes if all of its weights are replaced.
"""

from __future__ import annotations

import argparse
import difflib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

import jaxport
from jaxport.importer.loading.load import load
from jaxport.importer.names import given_name
from jaxport.importer.ties import tie_transposed

SIZE = 4
"""What open sizes are in a Mox and an export."""


def _drawn(seed: int, shape: Sequence[int]) -> np.ndarray:
    return np.abs(np.random.default_rng(seed).normal(size=shape))


KINDS: dict[str, Callable[[str, Sequence[int]], np.ndarray]] = {
    "zeros": lambda _, shape: np.zeros(shape),
    "ones": lambda _, shape: np.ones(shape),
    "number": lambda _, shape: np.full(shape, 0.375),
    "equal": lambda _, shape: _drawn(0, shape),
}
"""The arrays in place of weights of a name and a shape; the last are equal if their shapes are, and not all one number."""


def replaced(model: ir.Model, kind: str) -> ir.Model:
    """Return a model with other values of its parameters and statistics.

    Of `equal` ones, those stay different that values alone tell from copies: what exporters merge, and what they name
    themselves.
    """
    roles, copy = jaxport.from_onnx(model).roles, tie_transposed(model).clone()
    for name, value in copy.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or roles.get(name, "constant") == "constant":
            continue
        if kind == "equal" and len(value.uses()) > 1:
            continue
        shape, dtype = tensor.shape.numpy(), tensor.dtype.numpy()
        is_own = kind == "equal" and not given_name(name)
        array = _drawn(zlib.crc32(name.encode()), shape) if is_own else KINDS[kind](name, shape)
        value.const_value = ir.Tensor(array.astype(dtype), tensor.dtype, name=name)
    return copy


def _specs(program: jaxport.Program) -> list[jax.ShapeDtypeStruct]:
    shapes = [[size if isinstance(size, int) else SIZE for size in value.shape or ()] for value in program.inputs]
    dtypes = [np.dtype(value.dtype.numpy()) if value.dtype is not None else np.float32 for value in program.inputs]
    canonical = [jax.dtypes.canonicalize_dtype(dtype) for dtype in dtypes]
    return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, canonical, strict=True)]


def _tensors(arrays: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}: {array.dtype}{[*array.shape]}" for name, array in sorted(arrays.items()))


def _source(program: jaxport.Program, framework: Any) -> str:
    source = program.to_source(framework=framework)
    return f"{source.code}\n{_tensors(getattr(source, 'tensors', {}))}"


def _mox(program: jaxport.Program) -> str:
    mox = jaxport.make_mox(program)(*_specs(program))
    return f"{mox}\n{mox.select('//*').count()} nodes\n{_tensors(mox.params)}\n{_tensors(mox.state)}"


def _export(program: jaxport.Program) -> str:
    graph = jaxport.to_onnx(program, _specs(program)).model.graph
    nodes = [f"{node.op_type}({', '.join(str(value and value.name) for value in node.inputs)})" for node in graph]
    return "\n".join([*nodes, *(f"{name}: {value.shape}" for name, value in graph.initializers.items())])


VIEWS: dict[str, Callable[[jaxport.Program], str]] = {
    "roles": lambda program: str(program.roles),
    "nnx": lambda program: _source(program, "nnx"),
    "equinox": lambda program: _source(program, "equinox"),
    "burn": lambda program: _source(program, "burn"),
    "jax": lambda program: _source(program, "jax"),
    "mox": _mox,
    "export": _export,
}
"""What is made of a program, as text."""


def seen(model: ir.Model, view: str) -> str:
    """Return what is made of a model as text; an error is one, too."""
    try:
        return VIEWS[view](jaxport.from_onnx(model))
    except jaxport.JaxportError as error:
        return f"{type(error).__name__}: {error}"


def changes(model: ir.Model, kinds: Sequence[str], views: Sequence[str]) -> Iterator[str]:
    """Yield what changes with the weights of a model: for each kind of weights, and what is made of the model."""
    before = {view: seen(model, view) for view in views}
    for kind in kinds:
        other = replaced(model, kind)
        for view, text in before.items():
            after = seen(other, view)
            if after != text:
                lines = difflib.unified_diff(text.splitlines(), after.splitlines(), lineterm="", n=0)
                yield "\n".join([f"{kind} {view}", *(line[:160] for line in [*lines][2:12])])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--views", default="roles,nnx,equinox,burn")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    for file in options.files:
        found = [*changes(load(file), options.kinds.split(","), options.views.split(","))]
        print(f"{file}: {len(found)} differ", *found, sep="\n", flush=True)
