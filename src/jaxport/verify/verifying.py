"""`verify`: compare the two sides on the same inputs, at several sizes."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from jaxport.arguments import takes
from jaxport.blocks.tracing import Traced, trace
from jaxport.errors import InvalidArgument, check_inputs_exist
from jaxport.export import failures, specs
from jaxport.export.delivery.runtime import Session, as_written, is_quantized
from jaxport.export.flags.tracing_flags import traced_with_flags, with_bools
from jaxport.export.ports import Port, is_key, port_of, stored
from jaxport.export.precision.names import Precision, recorded
from jaxport.jaxprs import Array, Parameters, PythonFunction, dims
from jaxport.jaxprs.alike import misfit
from jaxport.verify import conditioning
from jaxport.verify.comparing import Changes, Tolerance
from jaxport.verify.decoding import is_counted
from jaxport.verify.given import arrays_and_sizes, is_shape
from jaxport.verify.per_block.blockwise import block_differences
from jaxport.verify.per_block.localizing import Localizer
from jaxport.verify.precision import narrowest
from jaxport.verify.report import BlockDifference, Divergence, Output, Report
from jaxport.verify.running import COMPARED, Run, Sampler, Sampling, Sides, arguments, run_traced

if TYPE_CHECKING:
    from jaxport.export.exported_model import ExportedModel


@takes(
    "verify",
    inputs="arguments",
    per_block="flag",
    **COMPARED,
)
def verify(
    exported: ExportedModel,
    inputs: Sequence[object] | Parameters | Sampler | None = None,
    *,
    check: bool = True,
    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    avoid: Mapping[str, Iterable[int]] | None = None,
    seed: int = 0,
    per_block: bool = False,
) -> Report:
    """Run the JAX function and the exported model on the same inputs, and compare every output, dtype and shape.

    Missing inputs are sampled: floats of both signs, masks, and integers that are valid as indices wherever the
    function indexes with them. If dims are symbolic, several sizes are run; they satisfy the constraints and leave no
    array empty.

    A model in reduced precision (`to_onnx(precision=...)`) is compared with the original function, at a tolerance for
    that precision; the report shows the difference.

    Args:
      exported: the model.
      inputs: the positional arguments of the function; or some arguments by input name; or a sampler, called with the
        port, the sizes and a NumPy generator, which returns an array or None. A shape such as `("n", 3)`, or a
        `jax.ShapeDtypeStruct`, is that of an array to sample.
      check: whether to raise if the two sides disagree.
      sizes: the sizes of the symbolic dims, one mapping per run, or one mapping; a model without symbols runs once.
      rtol: the tolerance relative to each element; by default that of the output's dtype.
      atol: the absolute tolerance; by default that of the dtype for the output's largest element. Integers and booleans
        are compared exactly if neither is given.
      avoid: by input, integers not to sample: `{"ids": [0]}` if 0 is padding.
      seed: the seed of the sampled inputs and sizes.
      per_block: whether to also measure the difference of each block, at the first of the sizes: `report.blocks`. For
        this, the model is exported again, with the results of all blocks as outputs.

    Returns:
      The report, which names the first block that diverges if the two sides disagree.

    Raises:
      VerificationFailed: the results differ, and `check` is true.
      InvalidArgument: the inputs or sizes do not fit the model.
      RunError: ONNX Runtime refuses the model, or fails.
      NotInstalled: ONNX Runtime is not installed.

    >>> from jaxport.verify import verify
    >>> import jaxport
    >>> exported = jaxport.to_onnx(lambda x: x @ x.T, [("B", 3)])
    >>> print(verify(exported, sizes=[{"B": 2}, {"B": 5}], atol=1e-5))
    `lambda` agrees in JAX and in ONNX Runtime
      sizes  output  dtype    shape  max error  relative  ulps
      B=2    output  float32  2×2    ...
      B=5    output  float32  5×5    ...
    """
    quantized = exported.precision is None and is_quantized(exported.model)
    subject = _Subject(
        name=exported.model.graph.name or "model",
        fn=exported.fn,
        traced=exported.traced,
        inputs=[port for port in exported.inputs if not port.weight],
        outputs=exported.outputs,
        load=functools.partial(as_written, exported.model) if quantized else functools.partial(_session, exported),
        defaults=exported.defaults,
        state=exported.state,
        flags=exported.flags,
        x64=exported.x64,
        exported=exported,
    )
    return subject.report(inputs, Sampling(sizes, avoid, seed), Tolerance(rtol, atol), check, per_block)


LARGE = 1 << 28
"""Bytes of weights from which on they are not kept in another order for the runs of one comparison."""


def _session(exported: ExportedModel) -> Session:
    """Return the session of an export, or one of its own, which takes less memory, if the weights are large and there
    is none.
    """
    tensors = [value.const_value for value in exported.model.graph.initializers.values()]
    size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    if size < LARGE or "session" in vars(exported):
        return exported.session
    return Session(exported.model, packs=False)


@takes(
    "verify_file",
    **COMPARED,
)
def verify_file(
    path: str | os.PathLike[str],
    fn: PythonFunction,
    inputs: Sequence[object] = (),
    *,
    input_params: Parameters | None = None,
    static_params: Parameters | None = None,
    inputs_as_nchw: Sequence[int] = (),
    outputs_as_nchw: Sequence[int] = (),
    constraints: Sequence[str] = (),
    double_precision: bool = False,
    state: Literal["refuse", "outputs", "discard"] = "refuse",
    check: bool = True,
    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    avoid: Mapping[str, Iterable[int]] | None = None,
    seed: int = 0,
) -> Report:
    """Compare a saved model with a JAX callable: see `verify`.

    A file that was exported in a reduced precision says so, and is compared at the tolerance of that precision.

    The inputs of the file are matched with those of the function by name, or otherwise by position; outputs are matched
    by position. Inputs that have the names of weights of the callable are given these weights.

    Args:
      path: the ONNX file.
      fn: the callable that it was exported from.
      inputs, input_params, static_params, inputs_as_nchw, outputs_as_nchw, constraints, double_precision, state: as
        `to_onnx` takes them.
      check, sizes, rtol, atol, avoid, seed: as `verify` takes them.

    Raises:
      VerificationFailed: the results differ, and `check` is true.
      InvalidArgument: the inputs or outputs of the file are not those of the function.
      RunError: ONNX Runtime refuses the model, or fails.
      NotInstalled: ONNX Runtime is not installed.

    >>> import pathlib, tempfile
    >>> import jax.numpy as jnp, jaxport
    >>> from jaxport.verify import verify_file
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "tanh.onnx"
    >>> jaxport.to_onnx(jnp.tanh, [("B", 3)]).save(file)
    >>> verify_file(file, jnp.tanh, [("B", 3)]).ok
    True
    """
    session = Session(path)
    bound = functools.partial(fn, **static_params) if static_params else fn
    with jax.enable_x64(double_precision or _x64()):
        specified = specs.read_inputs(inputs, input_params, constraints, double_precision, fn)
        with failures.explaining(getattr(fn, "__name__", type(fn).__name__), bound, specified):
            traced, flags = traced_with_flags(bound, specified, name=Path(path).name, state=state)
        x64 = _x64()
    weights = {weight.path: stored(weight.value) for weight in traced.weights if weight.path in session.input_names}
    names = [name for name in session.input_names if name not in weights]
    if set(names) == set(traced.input_paths):
        names = list(traced.input_paths)
    for kind, in_file, wanted in (
        ("inputs", names, traced.input_paths),
        ("outputs", session.output_names, (*traced.output_paths, *traced.state_outputs)),
    ):
        if len(in_file) != len(wanted):
            raise InvalidArgument(
                f"the file has the {kind} {_quoted(in_file)}, and the function {_quoted(wanted)}",
                where=f"`{path}`",
                instead="give the inputs that the file was exported with"
                if kind == "inputs"
                else "name the function that the file was exported from",
            )
    avals = traced.jaxpr.in_avals[len(traced.weights) :]
    subject = _Subject(
        name=Path(path).name,
        fn=bound,
        traced=traced,
        inputs=_ports(names, avals, inputs_as_nchw, specified.declared),
        outputs=_ports(session.output_names, traced.jaxpr.out_avals, outputs_as_nchw),
        load=lambda: session,
        defaults=weights,
        state=state,
        flags=flags,
        x64=x64,
        precision=recorded(session.metadata.get("jaxport.precision", "")),
    )
    return subject.report(None, Sampling(sizes, avoid, seed), Tolerance(rtol, atol), check)


def _ports(
    names: Sequence[str], avals: Sequence[Any], as_nchw: Sequence[int], declared: Sequence[Any] | None = None
) -> list[Port]:
    return [
        port_of(name, aval, nchw=index in as_nchw, declared=dtype)
        for index, (name, aval, dtype) in enumerate(
            zip(names, avals, declared or [aval.dtype for aval in avals], strict=True)
        )
    ]


def _x64() -> bool:
    return bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)


@dataclass(frozen=True)
class _FunctionRun(Run):
    """A run with the arguments of the JAX function."""

    leaves: Sequence[Array] = ()


@dataclass
class _Subject(Sides[_FunctionRun]):
    """The two sides of a comparison: a traced callable, and a session, with the ports that connect it.

    The session is loaded when the callable has been run: `load` returns it.
    """

    name: str
    fn: PythonFunction
    traced: Traced
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    load: Callable[[], Session]
    defaults: Mapping[str, np.ndarray]
    state: Any
    flags: frozenset[int]
    x64: bool
    exported: ExportedModel | None = None
    precision: Precision | None = None

    @functools.cached_property
    def session(self) -> Session:
        """What runs the other side."""
        return self.load()

    def __post_init__(self) -> None:
        self.output_names = [port.name for port in self.outputs]
        if self.exported is not None:
            self.precision = self.exported.precision
        self.scaled = self.precision.tolerance if self.precision is not None else None

    def report(
        self, inputs: object, sampling: Sampling, tolerance: Tolerance, check: bool, per_block: bool = False
    ) -> Report:
        """Run both sides and compare."""
        outputs: list[Output] = []
        blocks_found: tuple[BlockDifference, ...] = ()
        divergence: Divergence | None = None
        with jax.enable_x64(self.x64):
            for run, compared in self.comparisons(self._runs(inputs, sampling), tolerance):
                if per_block and self.exported is not None and not outputs:
                    blocks_found = block_differences(self.exported, run.leaves, run.arrays)
                outputs += compared
                if (
                    divergence is None
                    and self.exported is not None
                    and self.precision is None
                    and not all(output.ok for output in compared)
                ):
                    divergence = Localizer(self.exported, run.leaves, run.arrays, tolerance).divergence()
        in_precision = self.precision.name if self.precision is not None else ""
        report = Report(self.name, tuple(outputs), divergence, in_precision, blocks_found)
        if check:
            report.raise_if_failed()
        return report

    def expected(self, run: _FunctionRun) -> list[np.ndarray]:
        traced, leaves = self._concrete(run.leaves)
        results = run_traced(traced, leaves)
        if traced.state_outputs != self.traced.state_outputs:
            results = self._with_old_state(traced, results)
        return list(map(_plain, results))

    def actual(self, run: _FunctionRun) -> list[np.ndarray]:
        results = self.session.run({**self.defaults, **run.arrays})
        return [_plain(port.to_jax(result)) for port, result in zip(self.outputs, results, strict=True)]

    def spread(self, run: _FunctionRun, is_enough: Callable[[Changes], bool]) -> Changes:
        traced, leaves = self._concrete(run.leaves)
        weights = [weight.value for weight in traced.weights]
        return conditioning.spread(traced.jaxpr, [*weights, *leaves], len(weights), is_enough)

    def _concrete(self, leaves: Sequence[Array]) -> tuple[Traced, Sequence[Any]]:
        """Return the trace to run in JAX; if dims are symbolic or there are flags, the function is traced again."""
        traced = self.traced
        if self.flags or not all(dims.all_static(port.shape) for port in self.inputs):
            args, kwargs = jax.tree.unflatten(traced.in_tree, self._with_static(leaves))
            args, kwargs = with_bools(self.flags, args, kwargs)
            leaves = [leaf for index, leaf in enumerate(leaves) if self._position(index) not in self.flags]
            again = trace(self.fn, args, kwargs, state=self.state)
            # The module may have been trained since: the model has the weights that it was exported with.
            exported = {weight.path: weight for weight in traced.weights if not weight.anonymous}
            traced = replace(again, weights=tuple(exported.get(weight.path, weight) for weight in again.weights))
        return traced, leaves

    def _with_old_state(self, traced: Traced, results: Sequence[Array]) -> list[Array]:
        """Return the outputs with the old values of state that only changes for other values of the flags."""
        count = len(traced.output_paths)
        old = {weight.path: weight.value for weight in self.traced.weights}
        new = {**old, **dict(zip(traced.state_outputs, results[count:], strict=True))}
        return [*results[:count], *(new[path] for path in self.traced.state_outputs)]

    def _position(self, index: int) -> int:
        """Return the position of an input of the model among the leaves of the arguments."""
        count = self.traced.in_tree.num_leaves
        return [position for position in range(count) if position not in self.traced.static_inputs][index]

    def _with_static(self, leaves: Sequence[Array]) -> list[Array]:
        static, arrays = self.traced.static_inputs, iter(leaves)
        count = self.traced.in_tree.num_leaves
        return [static[index] if index in static else next(arrays) for index in range(count)]

    def _runs(self, inputs: object, sampling: Sampling) -> Iterator[_FunctionRun]:
        """Yield the arguments to run on, at each set of sizes, and for each value of each flag at the first."""
        ports = {port.name: port for port in self.inputs}
        by_name, sampler = self._by_name(inputs)
        by_name, said = arrays_and_sizes(by_name, ports)
        shapes = {name: port.shape for name, port in ports.items()}
        known = said | specs.sizes_of({name: shapes[name] for name in by_name}, by_name)
        flags = [
            name for index, name in enumerate(ports) if self._position(index) in self.flags and name not in by_name
        ]
        bools = np.array(list(itertools.product((True, False), repeat=len(flags))))
        choices = [dict(zip(flags, chosen, strict=True)) for chosen in bools]
        trace, inside = self.traced.jaxpr, narrowest(self.traced.jaxpr)
        is_step = self.exported is not None and is_counted(self.exported.model)
        drawn = arguments(trace, list(ports), ports, by_name, known, sampling, sampler, choices, is_step=is_step)
        for at, values in drawn:
            specs.sizes_of(shapes, values)
            arrays = {name: port.to_model(values[name], self.x64) for name, port in ports.items()}
            leaves = [port.to_jax(arrays[name]) for name, port in ports.items()]  # JAX gets the model's inputs
            yield _FunctionRun({**at, **{name: bool(values[name]) for name in flags}}, arrays, inside, leaves)

    def _by_name(self, inputs: Any) -> tuple[dict[str, object], Sampler | None]:
        """Return the arguments that the user gives, by the names of their ports, and the sampler."""
        if inputs is None or callable(inputs):
            return {}, inputs
        names = [port.name for port in self.inputs]
        if isinstance(inputs, Mapping):
            check_inputs_exist(inputs, names, "`verify(inputs=...)`")
            return {name: _shaped(value) for name, value in inputs.items()}, None
        leaves, tree = jax.tree.flatten(tuple(inputs), is_leaf=is_shape)
        wanted = self.traced.in_tree.children()[0]
        if tree != wanted:
            raise InvalidArgument(
                "the arguments are not those that the function was exported with",
                where="`verify(inputs=...)`",
                why=misfit(wanted, tree),
                instead="pass the positional arguments, or a mapping from input names to arrays",
            )
        arrays = [leaf for index, leaf in enumerate(leaves) if index not in self.traced.static_inputs]
        return {name: _shaped(leaf) for name, leaf in zip(names, arrays, strict=False)}, None


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _shaped(leaf: object) -> object:
    return leaf if hasattr(leaf, "shape") or is_shape(leaf) else np.asarray(leaf)


def _plain(value: Any) -> np.ndarray:
    """Return a result as NumPy can compare it: PRNG keys as their data."""
    return np.asarray(jax.random.key_data(value) if is_key(value.dtype) else value)
