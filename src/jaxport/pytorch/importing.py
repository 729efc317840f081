"""`from_torch`: a module of PyTorch as a program, by way of PyTorch's own exporter."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from jaxport.arguments import takes
from jaxport.errors import InvalidArgument, JaxportError, VerificationFailed, boundary
from jaxport.importer.limits import Limits
from jaxport.importer.program import Program
from jaxport.importer.ties import Ties
from jaxport.jaxprs import PythonFunction
from jaxport.onnx_facts import RANDOM
from jaxport.phases import phase
from jaxport.pytorch.calls import ModuleCall, example
from jaxport.pytorch.modules import evaluating, pytorch, pytree, unwrapped
from jaxport.pytorch.refusals import WITHOUT_CHECK, check_module
from jaxport.pytorch.tracing import Trace, exported
from jaxport.verify.comparing import OF_DTYPES
from jaxport.verify.importing import Comparison
from jaxport.verify.report import Report
from jaxport.verify.running import Run

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports]


@takes("from_torch", kwargs="named", trainable="some names", ties="mode or names", limits=Limits, verify="flag")
def from_torch(
    module: torch.nn.Module,
    args: Sequence[object] | torch.Tensor = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    dynamic_shapes: Mapping[str, object] | Sequence[object] | None = None,
    trainable: Collection[str] | None = None,
    ties: Ties = "auto",
    limits: Limits | None = None,
    verify: bool = True,
    custom_translation_table: Mapping[PythonFunction, PythonFunction] | None = None,
) -> Program:
    """Import a module of PyTorch as a JAX function.

    PyTorch traces the module in evaluation mode (`torch.onnx.export(dynamo=True)`), and its graph is imported. Names,
    roles and ties are those of the module: the parameters are those that require gradients, under the names of
    `state_dict()`, and two weights are one if and only if they are one in the module. No file is written, and the
    module stays as it is.

    Args:
      module: the module.
      args: example arguments by position: tensors or pytrees of tensors, on any device. A tensor alone is one argument,
        and `dynamic_shapes` may be its sizes alone.
      kwargs: example arguments by name, such as those that a tokenizer returns. If the module returns a cache that is
        no tensor, and it or its configuration has `use_cache`, that is False unless this says otherwise.
      dynamic_shapes: the sizes that stay open, for each argument in order or by name: a tuple with a name for each open
        size, and a number or None for each fixed one, as in `{"input_ids": ("batch", "seq")}`; or what `torch.export`
        takes, such as `{0: torch.export.Dim("batch", max=64)}`. All sizes are fixed by default.
      trainable: the names of the parameters, in place of those that require gradients.
      ties: as for `from_onnx`.
      limits: as for `from_onnx`.
      verify: whether to compare the program with the module: on the example, and with larger open sizes.
      custom_translation_table: what operators are that PyTorch cannot write, as `torch.onnx.export` takes it: functions
        of onnxscript by operator. Those may make operators of a domain of yours, which `@jaxport.op` defines.

    Returns:
      The program, as `from_onnx` returns it; the source that it prints for modules has `load_pytorch(state_dict)`.

    Raises:
      NotInstalled: PyTorch or its exporter is not installed: `pip install "jaxport[torch]"`.
      InvalidArgument: `module` is not a module, or one that PyTorch cannot trace at all; the example does not fit it,
        or `dynamic_shapes` does not fit the example; a result is not a tensor, or complex.
      ExportError: PyTorch cannot export the module.
      Unsupported: an operator cannot be imported.
      VerificationFailed: the program and the module differ, or the module draws random numbers.

    >>> from jaxport import from_torch
    >>> import torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
    >>> program = from_torch(module, (torch.ones(1, 3),), dynamic_shapes=[("batch", 3)])
    >>> {name: array.shape for name, array in program.params.items()}
    {'0.weight': (4, 3), '0.bias': (4,)}
    >>> "load_pytorch" in program.to_source(framework="nnx").code
    True
    """
    torch = pytorch()
    check_module(module)
    module = unwrapped(module)
    if isinstance(args, torch.Tensor):
        args = (args,)
        if isinstance(dynamic_shapes, list | tuple) and not any(
            isinstance(e, list | tuple | dict) for e in dynamic_shapes
        ):
            dynamic_shapes = [dynamic_shapes]
    if not isinstance(args, list | tuple):
        raise InvalidArgument(
            f"`args` is of type `{type(args).__name__}`",
            where="`from_torch`",
            instead="give a tuple of example arguments, `from_torch(module, (x,))`, or `kwargs={...}` by name",
        )
    with evaluating(module), torch.no_grad():
        call = example(module, tuple(args), dict(kwargs or {}), dynamic_shapes)
        first: _Fault | None = None
        for attempt in itertools.chain([call], filter(_is_taken, call.others())):
            with phase("Exporting from PyTorch"):
                trace = exported(attempt, custom_translation_table)
            with (
                phase("Importing"),
                boundary(f"the graph of `{call.name}` cannot be imported", instead="file a report with the module"),
            ):
                program = Program(trace.model, trainable=trainable, ties=ties, limits=limits)
                if trainable is None and (trained := _trained(program, module)) is not None:
                    program = Program(trace.model, trainable=trained, ties=ties, limits=limits)
            fault = _fault(program, trace, [attempt, *([call] if attempt is not call else [])]) if verify else None
            if fault is None:
                return program
            first = first or fault
            if not fault.guard:
                break  # what the module decides by sizes is not why
    assert first is not None
    raise first.raised(call.name)


@dataclass(frozen=True)
class _Fault:
    """A call for which a program differs from its module.

    Attributes:
      error: how.
      sizes: the open sizes of the call.
      guard: what the module has decided by sizes, and holds no longer; nothing if all holds.
      drawn: the operators that draw random numbers.
    """

    error: JaxportError
    sizes: dict[str, int]
    guard: str
    drawn: list[str]

    def raised(self, name: str) -> NoReturn:
        """Raise the error.

        Raises:
          VerificationFailed: always.
        """
        if self.drawn:
            raise VerificationFailed(
                f"`{name}` draws random numbers in evaluation mode, so that its results cannot be compared",
                where=", ".join(f"`{one}`" for one in self.drawn),
                instead="make the numbers an argument of the module; or import it with `verify=False`, and call "
                "`program(..., rng=jax.random.key(0))`: without a key, it draws the same ones each time",
            ) from self.error
        if self.guard:
            sizes = ", ".join(f"{name} = {size}" for name, size in self.sizes.items())
            raise VerificationFailed(
                f"`{name}` decides by its sizes what to compute, and PyTorch has traced one case",
                where=f"`{self.guard}`, which does not hold for {sizes}",
                why=self.error.refused,
                instead="leave that size fixed; give sizes that are always equal one name; bound those that are "
                "always small by "
                '`torch.export.Dim("name", max=...)`; or decide by `torch.cond` in the module',
            ) from self.error
        raise VerificationFailed(
            self.error.refused, where=self.error.where, why=self.error.why, instead=WITHOUT_CHECK
        ) from self.error


def _is_taken(call: ModuleCall) -> bool:
    """Whether the module can be called so."""
    try:
        call.outputs()
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return False
    return True


def _fault(program: Program, trace: Trace, calls: Sequence[ModuleCall]) -> _Fault | None:
    """Return the first call for which a program differs from its module; None if there is none.

    They are compared for all calls that are given, for one with larger open sizes, and for those with others for which
    does not
    hold what PyTorch took for granted: one size apart from the rest, or larger than those for which the module decides
    alike.
    """
    call = calls[0]
    larger = next(filter(_is_taken, call.others()), None)
    beyond = (call.resized({name: most + 1}) for name, most in trace.most.items())
    doubted = (
        (one, trace.broken(one)) for one in itertools.chain(call.others(), call.apart(), beyond) if _is_taken(one)
    )
    compared = itertools.chain(
        ((one, "") for one in (*calls, *([larger] if larger else []))),
        ((one, guard) for one, guard in doubted if guard),
    )
    for one, guard in compared:
        try:
            _compared(program, one).raise_if_failed()
        except JaxportError as error:
            drawn = sorted({node.op_type for node in program.model.graph.all_nodes() if node.op_type in RANDOM})
            return _Fault(error, one.sizes, guard or trace.broken(one), drawn)
    return None


def _trained(program: Program, module: torch.nn.Module) -> list[str] | None:
    """Return the parameters of a program that require gradients in its module; None if all do."""
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    return [name for name in program.weights if name not in frozen] if frozen & {*program.weights} else None


class _Beside(Comparison):
    """A program beside the module that it comes from."""

    def __init__(self, program: Program, call: ModuleCall):
        super().__init__(program)
        self.call = call

    def run_of(self, call: ModuleCall) -> Run:
        """Return the inputs of the program that are the arguments of a call."""
        tensors = [leaf for leaf in call.leaves if isinstance(leaf, pytorch().Tensor)]
        arrays = dict(zip(self.program.input_names, map(_array, tensors), strict=True))
        run = next(self.runs(arrays))
        return replace(run, sizes=call.sizes)

    def expected(self, run: Run) -> list[np.ndarray]:  # noqa: ARG002  the call has the arguments of the run
        torch = pytorch()
        outputs = pytree().tree_leaves(self.call.outputs())
        return [_array(output) for output in outputs if isinstance(output, torch.Tensor)]


def _compared(program: Program, call: ModuleCall) -> Report:
    """Compare a program with its module."""
    sides = _Beside(program, call)
    ((_, compared),) = sides.comparisons([sides.run_of(call)], OF_DTYPES)
    return Report(call.name, tuple(compared), runtime="PyTorch")


def _array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array, also in types that NumPy lacks."""
    from onnx_ir import tensor_adapters

    return np.asarray(tensor_adapters.TorchTensor(tensor.detach().cpu()).numpy())


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor.

    Raises:
      NotInstalled: PyTorch is not installed.
    """
    return pytorch().from_numpy(np.ascontiguousarray(array))
