"""`to_source`: a model of JAX or of a file as source for a framework."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from jaxport.errors import InvalidArgument
from jaxport.export.api import to_onnx
from jaxport.importer.loading.load import is_source
from jaxport.importer.names import Classes, Folder, Framework
from jaxport.importer.program import Program, from_onnx
from jaxport.stablehlo.program import HloProgram, from_stablehlo, is_stablehlo

if TYPE_CHECKING:
    from jaxport.codegen.printing import AnySource, CrateSource, ModuleSource, Source


@overload
def to_source(
    model: object,
    *places: object,
    folder: Folder = None,
    inputs: object = None,
    framework: Classes = "nnx",
    strict: bool = False,
    **options: Any,
) -> ModuleSource: ...
@overload
def to_source(
    model: object,
    *places: object,
    folder: Folder = None,
    inputs: object = None,
    framework: Literal["jax"],
    strict: bool = False,
    **options: Any,
) -> Source: ...
@overload
def to_source(
    model: object,
    *places: object,
    folder: Folder = None,
    inputs: object = None,
    framework: Literal["burn"],
    strict: bool = False,
    **options: Any,
) -> CrateSource: ...
def to_source(
    model: Any,
    *places: Any,
    folder: Folder = None,
    inputs: Any = None,
    framework: Framework = "nnx",
    strict: bool = False,
    **options: Any,
) -> AnySource:
    """Print a model as source and a weights file, which need only the framework and safetensors.

    A JAX model is exported to ONNX, and the exported model is printed: a Linen model can become an NNX model, an edited
    Mox an Equinox model.

    Args:
      model: a `Program`, or a model in any form that `from_onnx` takes; a compiled artifact, as `from_stablehlo` takes
        it; or anything that `to_onnx` takes.
      places: `inputs` and `folder` without their names, as in `to_source(model, [("batch", 3)], "printed/")`: a path is
        the folder.
      folder: where to write `model.py` and its weights; nothing is written if None.
      inputs: for a JAX model, the specifications of its arguments, as for `to_onnx`; for a program or file, as for
        `Program.to_source`.
      framework: `"nnx"`, `"equinox"`, `"jax"` for one function, or `"burn"` for a Rust crate.
      strict: keep guards that act on NaN alone, as for `Program.to_source`.
      options: for a JAX model, further options of `to_onnx`.

    Returns:
      The source, with the text in `code` and the weights in `tensors`.

    Raises:
      Unsupported: the model has parts that cannot be exported or imported.
      InvalidArgument: a JAX model has no `inputs`, there are two of them or two folders, or the framework is unknown.
      SaveError: a file cannot be written, or there is a `model.py` that was not generated.

    >>> from jaxport import to_source
    >>> import jax.numpy as jnp
    >>> "jnp.tanh(x)" in to_source(jnp.tanh, inputs=[("batch", 3)]).code
    True
    """
    given = {"folder": folder, "inputs": inputs}
    for value in places:
        key = "folder" if isinstance(value, str | os.PathLike) else "inputs"
        if value is not None and given[key] is not None:
            raise InvalidArgument(
                f"there are two values for `{key}`",
                where="`to_source`",
                instead="say `to_source(model, inputs, folder)`, or give each by its name",
            )
        given[key] = given[key] if value is None else value
    folder, inputs = given["folder"], given["inputs"]
    if is_stablehlo(model):
        model = cast("Any", from_stablehlo(model))
    if isinstance(model, HloProgram) and inputs is None:
        inputs = model.inputs
    if not isinstance(model, HloProgram) and is_source(model):
        model = from_onnx(model)
    if isinstance(model, Program):
        if options or not isinstance(inputs, Mapping | None):
            raise InvalidArgument(
                "a program already has its inputs and options",
                where="`to_source`",
                instead="give `inputs` by name, only for those whose values or sizes you want to fix, and no options",
            )
        return model.to_source(folder, inputs=inputs, framework=framework, strict=strict)
    if inputs is None:
        raise InvalidArgument(
            "the inputs of the model are not known",
            where="`to_source`",
            instead='give a spec for each argument: `inputs=[("batch", 3)]`',
        )
    return from_onnx(to_onnx(model, inputs, **options).model).to_source(folder, framework=framework, strict=strict)
