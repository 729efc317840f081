"""`to_source`: a model of JAX or of a file as source for a framework."""

from __future__ import annotations

import os
from collections.abc import Mapping

import onnx_ir as ir

from jaxport.errors import InvalidArgument
from jaxport.export.api import to_onnx
from jaxport.importer.program import Program, from_onnx
from jaxport.jaxprs import PyTree

__all__ = ["to_source"]


def to_source(
    model: PyTree,
    folder: str | os.PathLike[str] | None = None,
    *,
    inputs: PyTree = None,
    framework: str = "nnx",
    **options: PyTree,
) -> PyTree:
    """Print a model as source and a weights file, which need the framework and safetensors only.

    A model of JAX is exported to ONNX, and what was exported is printed: a Linen model becomes one of NNX, an edited Mox
    one of Equinox.

    Args:
      model: a `Program`, an ONNX file, its bytes or an `onnx_ir.Model`; or anything that `to_onnx` takes.
      folder: where to write `model.py` and its weights; nothing is written if None.
      inputs: of a model of JAX, the specs of its arguments, as `to_onnx` takes them; of a program or file, what
        `Program.to_source` takes.
      framework: `"nnx"`, `"equinox"`, `"jax"` for one function, or `"burn"` for a crate of Rust.
      options: of a model of JAX, further options of `to_onnx`.

    Returns:
      The source, with the text in `code` and the weights in `tensors`.

    Raises:
      Unsupported: the model has parts that cannot be exported or imported.
      InvalidArgument: a model of JAX has no `inputs`, or there is no such framework.
      SaveError: a file cannot be written, or there is a `model.py` that was not generated.

    >>> import jax.numpy as jnp
    >>> "jnp.tanh(x)" in to_source(jnp.tanh, inputs=[("batch", 3)]).code
    True
    """
    if isinstance(model, str | os.PathLike | bytes | ir.Model):
        model = from_onnx(model)
    if isinstance(model, Program):
        if options or not isinstance(inputs, Mapping | None):
            raise InvalidArgument(
                "a program has its inputs and options already",
                where="`to_source`",
                instead="give `inputs` by name, for those whose values or sizes shall be known, and no options",
            )
        return model.to_source(folder, inputs=inputs, framework=framework)
    if inputs is None:
        raise InvalidArgument(
            "the inputs of the model are not known",
            where="`to_source`",
            instead='give a spec for each argument: `inputs=[("batch", 3)]`',
        )
    return from_onnx(to_onnx(model, inputs, **options).model).to_source(folder, framework=framework)
