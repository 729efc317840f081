"""What `from_torch` refuses, and what helps then: the advice is for the failure at hand."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from jaxport.errors import InvalidArgument
from jaxport.pytorch.modules import pytorch, pytree

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports]

WITHOUT_CHECK = (
    "if such an error is expected here, import with `verify=False`, and compare with a tolerance of your own"
)
QUANTIZED = re.compile(r"torch\.ao\.nn\.(intrinsic\.)?quantized|torch\.nn\.(intrinsic\.)?quantized")
ADVICE = {
    r"No ONNX function found for <OpOverload\(op='(?P<space>\w+)\.(?P<name>\w+)', overload='(?P<kind>\w+)'": (
        "say what it is by a function of onnxscript: `from_torch(..., "
        "custom_translation_table={{torch.ops.{space}.{name}.{kind}: "
        'function}})`; it may make an operator of a domain of yours, which `@jaxport.op("my.domain", "{name}")` '
        "computes in JAX. "
        "Or write the module without it"
    ),
    r"data-dependent|DataDependent": (
        "what is computed must not depend on the numbers in tensors: write `torch.where(condition, x, y)` or "
        "`torch.cond` for an "
        "`if`, and give what decides shapes or counts steps as a Python number, which is then fixed"
    ),
    r"specialized it to be a constant|Constraints violated|inferred to be a constant|unbacked|marked .* as dynamic": (
        "leave the size that the reason names fixed: the module makes a number of it, such as the steps of an LSTM "
        "or the rows "
        "of a window; `torch.onnx.export(..., dynamo=False)` and `jaxport.from_onnx` keep the steps of an LSTM open"
    ),
    r"numpy": "compute with functions of `torch`: NumPy is not traced",
    r"mutat|in-place": "return new tensors instead of changing arguments or attributes in `forward`",
}
ELSE = (
    "change the module so that `torch.export.export(module, args, kwargs, strict=False)` traces it; what is for one "
    "backend "
    "only, such as compiled kernels, is switched off where the model is made"
)


def advice(reason: str) -> str:
    """Return what helps where PyTorch cannot trace or write a module, for the reason that it gives."""
    for pattern, text in ADVICE.items():
        if found := re.search(pattern, reason):
            return text.format(**found.groupdict())
    return ELSE


def users_line(error: BaseException) -> str:
    """Return the last line that an error passed through which is neither PyTorch's nor ours; nothing if there is
    none.
    """
    own = [str(Path(__file__).parents[1]), str(Path(pytorch().__file__).parent), sysconfig.get_path("stdlib")]
    installed = sysconfig.get_path("purelib")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_file()
        and (frame.filename.startswith(installed) or not frame.filename.startswith(own[2]))
        and not frame.filename.startswith((own[0], own[1]))
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}: `{frames[-1].line}`" if frames else ""


def check_module(module: torch.nn.Module) -> None:
    """Refuse what PyTorch cannot trace, or has no numbers.

    Raises:
      InvalidArgument: it is not a module, a script, quantized by PyTorch, or has weights that are not dense arrays.
    """
    torch = pytorch()

    def refused(problem: str, instead: str) -> InvalidArgument:
        return InvalidArgument(problem, where="`from_torch`", instead=instead)

    name = type(module).__name__
    if not isinstance(module, torch.nn.Module):
        raise refused(
            f"`{name}` is not a `torch.nn.Module`", "give a module and example arguments: `from_torch(module, (x,))`"
        )
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            place = f"`{path}` of `{name}`" if path else f"`{name}`"
            raise refused(
                f"{place} is a script, which PyTorch cannot trace", "give the module that the script was made of"
            )
        if QUANTIZED.match(type(part).__module__):
            raise refused(
                f"`{path}` of `{name}` is quantized by PyTorch ({type(part).__name__}), whose operators ONNX has not",
                "give the module as it was before `convert` or `quantize_dynamic`; exports quantize: "
                '`jaxport.to_onnx(program, ..., precision="int8")`',
            )
    for path, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise refused(f"`{path}` of `{name}` is on the device `meta`, without numbers", "load its weights first")
        if tensor.layout != torch.strided:
            raise refused(f"`{path}` of `{name}` is sparse", f"make it dense: `module.{path}.to_dense()`")


def check_values(what: str, values: object) -> None:
    """Refuse arguments or results that no graph has: what is not a tensor, and complex numbers.

    Raises:
      InvalidArgument: there are some.
    """
    torch = pytorch()
    for path, leaf in _leaves(values):
        place = f"the {what}{path}"
        if isinstance(leaf, torch.Tensor) and torch.is_complex(leaf):
            raise InvalidArgument(
                f"{place} is complex",
                where="`from_torch`",
                why="ONNX has no operators on complex numbers: PyTorch writes real and imaginary parts",
                instead="pass pairs of numbers: `torch.view_as_real(y)` in the module for results, "
                "`torch.view_as_complex(x)` for arguments",
            )
        if not isinstance(leaf, torch.Tensor | int | float | bool | None) and what == "result":
            raise InvalidArgument(
                f"{place} is not a tensor, but of type `{type(leaf).__name__}`",
                where="`from_torch`",
                instead="leave it out by an argument of the module, such as `use_cache=False`, or wrap the module "
                "in one that "
                "returns tensors",
            )


def _leaves(values: object) -> list[tuple[str, object]]:
    """Return the leaves of a tree with their paths, as far as the types of its nodes say how their parts are called."""
    try:
        return [(pytree().keystr(path), leaf) for path, leaf in pytree().tree_flatten_with_path(values)[0]]
    except ValueError:  # some types of diffusers do not
        return [("", leaf) for leaf in pytree().tree_leaves(values)]
