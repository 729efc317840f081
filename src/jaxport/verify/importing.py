"""Compare an imported program with ONNX Runtime on the same inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from jaxport import jaxprs
from jaxport.arguments import takes
from jaxport.errors import InvalidArgument, JaxportError, ModelError, ValueNotKnown, check_inputs_exist
from jaxport.export.delivery.runtime import Session, as_written, is_quantized
from jaxport.export.ports import Port
from jaxport.importer.arguments import external
from jaxport.importer.interface import ImportedProgram
from jaxport.importer.traced.assumptions import Assumptions, with_assumptions
from jaxport.importer.traced.input_specs import input_specs
from jaxport.jaxprs import Array, Parameters, PythonFunction, dims
from jaxport.jaxprs.releases import QUICKLY
from jaxport.jaxprs.walk import equations_within
from jaxport.verify import conditioning
from jaxport.verify.comparing import Changes, Tolerance
from jaxport.verify.decoding import is_counted, sizes_of_step
from jaxport.verify.given import arrays_and_sizes
from jaxport.verify.precision import narrowest
from jaxport.verify.report import Report
from jaxport.verify.running import COMPARED, DRAWN, Run, Sampling, Sides, arguments

LONGEST_COMPILED = 5000
"""The most operations of a program that is compiled for one call."""


@takes(
    "verify",
    inputs="arguments",
    **COMPARED,
)
def verify_program(
    program: ImportedProgram,
    inputs: Sequence[object] | Parameters | None = None,
    *,
    check: bool = True,
    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    avoid: Mapping[str, Iterable[int]] | None = None,
    seed: int = 0,
) -> Report:
    """Run an imported program in JAX and its model in ONNX Runtime on the same inputs, and compare every output.

    Missing inputs are sampled as for `verify`. Both sides compute in the model's own types. A quantized model is
    compared with the graph as written, because ONNX Runtime's fusions of such graphs change values by a quantization
    step.

    Args:
      program: the imported model.
      inputs: the inputs by position or by name; inputs whose values decide shapes have to be among them. A shape such
        as `("n", 3)`, or a `jax.ShapeDtypeStruct`, is that of an array to sample.
      check: whether to raise if the two sides disagree.
      sizes: the sizes of the dims that the model names, one mapping per run.
      rtol, atol: the relative and absolute tolerance of an element; by default those of its dtype.
      avoid: by input, integers not to sample.
      seed: the seed of the sampled inputs and sizes.

    Returns:
      The report.

    Raises:
      VerificationFailed: the results differ, and `check` is true.
      InvalidArgument: the inputs or sizes do not fit the model, or an input cannot be sampled.
      RunError: ONNX Runtime refuses the model, or fails.
      NotInstalled: ONNX Runtime is not installed.

    >>> from jaxport.verify import verify_program
    >>> import onnx.parser
    >>> from jaxport.importer import from_onnx
    >>> program = from_onnx(
    ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     agraph (float[N, 2] x) => (float[N, 2] y) { y = Tanh(x) }''')
    ... )
    >>> print(verify_program(program, sizes=[{"N": 3}]))
    `agraph` agrees in JAX and in ONNX Runtime
      sizes  output  dtype    shape  max error  relative  ulps
      N=3    y       float32  3×2    ...
    """
    comparison = Comparison(program)
    runs = comparison.runs(inputs, Sampling(sizes, avoid, seed))
    outputs = [output for _, compared in comparison.comparisons(runs, Tolerance(rtol, atol)) for output in compared]
    report = Report(program.name or "model", tuple(outputs))
    if check:
        report.raise_if_failed()
    return report


def sample(
    program: ImportedProgram, known: Parameters | None = None, seed: int = 0
) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Return inputs of a program, of small sizes, and what it computes of them in JAX.

    Args:
      program: the imported model.
      known: inputs by name that are not sampled.
      seed: the seed of the sampled inputs and sizes.

    Raises:
      InvalidArgument: an input cannot be sampled.

    >>> import onnx.parser
    >>> from jaxport.importer import from_onnx
    >>> program = from_onnx(
    ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     agraph (float[N, 2] x) => (float[N, 2] y) { y = Tanh(x) }''')
    ... )
    >>> inputs, (y,) = sample(program)
    >>> bool((np.abs(np.tanh(inputs["x"]) - y) < 1e-6).all())
    True
    """
    run = next(Comparison(program).runs(known, Sampling(seed=seed)))
    return dict(run.arrays), caller(program, run.arrays, QUICKLY)()  # which is called once


def sample_of(
    program: ImportedProgram, arguments: Collection[str], known: Parameters
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None:
    """Return inputs of a printed model by name, and what the program computes of them; None if they cannot be sampled.

    Args:
      program: the imported model.
      arguments: the inputs that the printed model has as arguments.
      known: what the others were when it was printed.
    """
    if not all(isinstance(value, np.ndarray | np.generic) for value in known.values()):
        return None  # it is for other sizes than the declared ones
    try:
        inputs, outputs = sample(program, known)
    except JaxportError:
        return None
    taken = {name: array for name, array in inputs.items() if name in arguments}
    return taken, dict(zip(program.output_names, outputs, strict=True))


class Comparison(Sides[Run]):
    """A program and a session of its model.

    Args:
      program: the imported model.
      threads: the maximum number of threads of ONNX Runtime; if None it decides, unless results depend on that.
    """

    def __init__(self, program: ImportedProgram, threads: int | None = None):
        self.program, self.output_names = program, program.output_names
        self.quantized = is_quantized(program.model)
        self.threads = threads

    @cached_property
    def session(self) -> Session:
        """The session of ONNX Runtime, which is made when it is asked for."""
        return as_written(self.program.model, self.threads)

    @cached_property
    def _specs(self) -> dict[str, Any]:
        with jax.enable_x64(True):
            return input_specs(self.program)

    def runs(self, inputs: Sequence[object] | Parameters | None, sampling: Sampling = DRAWN) -> Iterator[Run]:
        """Yield the inputs to run on, at each set of sizes."""
        by_name, said = self._by_name(inputs)
        missing = [name for name in self.program.static_inputs if name not in by_name]
        if missing:
            raise InvalidArgument(
                f"the input `{missing[0]}` cannot be sampled",
                where=f"`{self.program.name}`",
                why="its values decide shapes",
                instead="give an array for it",
            )
        with jax.enable_x64(True):
            traced, assumed = self._traced(by_name, {*said, *(name for each in sampling.sizes or () for name in each)})
            specs = input_specs(self.program, assumed)
        ports = {
            name: Port(name, spec.shape, spec.dtype)
            for name, spec in specs.items()
            if isinstance(spec, jax.ShapeDtypeStruct)
        }
        names = [name for name in ports if name not in self.program.static_inputs]
        known, inside = {**said, **self._known_sizes(by_name)}, narrowest(traced)
        is_step = is_counted(self.program.model)
        drawn = arguments(traced, names, ports, by_name, known, sampling, is_step=is_step)
        for at, arrays in drawn:
            yield Run({**at, **{name: dims.evaluate(text, at) for name, text in assumed.sizes.items()}}, arrays, inside)

    def in_jax(self, run: Run) -> Callable[[], list[np.ndarray]]:
        """Return a call of the program on the arrays of a run; jitted unless a shape depends on values."""
        return caller(self.program, run.arrays)

    def in_runtime(self, run: Run) -> Callable[[], list[np.ndarray]]:
        """Return a call of ONNX Runtime on the arrays of a run."""
        return lambda: self.session.run(run.arrays)

    def expected(self, run: Run) -> list[np.ndarray]:
        return self.in_runtime(run)()

    def actual(self, run: Run) -> list[np.ndarray]:
        return self.in_jax(run)()

    def spread(self, run: Run, is_enough: Callable[[Changes], bool]) -> Changes:
        program = self.program
        passed = {name: value for name, value in run.arrays.items() if name not in program.static_inputs}
        closed_over = {name: run.arrays[name] for name in program.static_inputs}
        with jax.enable_x64(True):
            leaves, tree = jax.tree.flatten((program.params, passed))

            def apply(*leaves: object) -> object:
                params, arrays = jax.tree.unflatten(tree, leaves)
                return program.apply(params, **arrays, **closed_over)

            count = len(jax.tree.leaves(program.params))
            return conditioning.spread(jax.make_jaxpr(apply)(*leaves), leaves, count, is_enough)

    def _by_name(self, inputs: Sequence[object] | Parameters | None) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Return the arrays that the user gives, and the sizes that are given as shapes of others."""
        if not isinstance(inputs, Mapping):
            names, inputs = self.program.input_names, inputs or ()
            if len(inputs) > len(names):
                raise InvalidArgument(
                    f"{len(inputs)} inputs are given, and the model has {len(names)}",
                    where="`verify(inputs=...)`",
                    instead=f"the inputs are {', '.join(f'`{name}`' for name in names) or 'none'}",
                )
            inputs = dict(zip(names, inputs, strict=False))
        declared = {value.name or "": value for value in self.program.inputs}
        check_inputs_exist(inputs, declared, f"`{self.program.name}`")
        texts = {name: value for name, value in inputs.items() if declared[name].dtype == ir.DataType.STRING}
        given, sizes = arrays_and_sizes({n: v for n, v in inputs.items() if n not in texts}, self._specs)
        return {name: _array(name, value, declared[name].dtype) for name, value in {**texts, **given}.items()}, sizes

    def _known_sizes(self, by_name: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {
            str(size): length
            for name, array in by_name.items()
            for size, length in zip(self._specs[name].shape, array.shape, strict=False)
            if not dims.is_static(size) and str(size).isidentifier()
        }

    def _traced(
        self, by_name: Mapping[str, np.ndarray], given: Collection[str]
    ) -> tuple[jaxprs.ClosedJaxpr, Assumptions]:
        """Return the program with symbolic sizes, to see how inputs are used, and what is assumed of these; if that
        fails, only its inputs. Sizes that the user gives are those that the model declares.
        """
        program, given = self.program, {*given, *self._known_sizes(by_name)}
        known = {name: by_name[name] for name in program.static_inputs}

        def attempt(assumed: Assumptions) -> tuple[jaxprs.ClosedJaxpr, Assumptions]:
            if not given.isdisjoint(assumed.sizes):
                raise ModelError("sizes are given")
            specs = {name: s for name, s in input_specs(program, assumed).items() if name not in known}

            def call(params: Parameters, *arrays: Array) -> Any:
                return program.apply(params, **dict(zip(specs, arrays, strict=True)), **known)

            return jax.make_jaxpr(call)(program.param_specs, *specs.values()), assumed

        declared = sizes_of_step(program.model)
        declared = declared if given.isdisjoint(declared.sizes) else Assumptions()
        try:
            return with_assumptions(attempt, declared)
        except (ModelError, ValueNotKnown):  # only the trace at the sizes of the run matters
            shapes = [spec for name, spec in input_specs(program, declared).items() if name not in known]
            return jax.make_jaxpr(lambda *arrays: arrays)(*shapes), declared


def _array(name: str, value: object, dtype: ir.DataType | None) -> np.ndarray:
    """Return what a user gives for an input as an array; numbers without a dtype get that of the input."""
    try:
        array = np.asarray(value)
        return array if dtype is None or hasattr(value, "dtype") else array.astype(dtype.numpy())
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"`{value!r}` is not an array",
            where=f"the input `{name}`",
            why=str(error),
            instead="pass an array or a shape",
        ) from error


def caller(
    program: ImportedProgram, arrays: Mapping[str, np.ndarray], options: Parameters | None = None
) -> Callable[[], list[np.ndarray]]:
    """Return a call of a program on arrays of the model's own types, already compiled unless a shape depends on values.

    A program that takes texts computes on the host.

    A program of very many operations is not compiled as a whole: the time of XLA grows with the square of their number.

    Args:
      program: the imported model.
      arrays: its inputs by name.
      options: options of XLA's compiler.
    """
    closed_over = {name: arrays[name] for name in program.static_inputs}
    passed = {name: value for name, value in arrays.items() if name not in closed_over}

    def apply(params: Parameters, passed: Parameters) -> object:
        return program.apply(params, **passed, **closed_over)

    def one_by_one(params: Parameters, passed: Parameters) -> object:
        return tuple(map(external, program.evaluate(params, {**passed, **closed_over})))

    # Accelerators compute products of float32 with fewer bits by default.
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        params = program.params
        run: PythonFunction = apply
        if not any(array.dtype.kind in "OSUT" for array in passed.values()):
            with suppress(ValueNotKnown):
                traced = jax.jit(apply, compiler_options=dict(options or {})).trace(params, passed)
                count = sum(1 for _ in itertools.islice(equations_within(traced.jaxpr.jaxpr), LONGEST_COMPILED + 1))
                run = one_by_one if count > LONGEST_COMPILED else traced.lower().compile()

    def call() -> list[np.ndarray]:
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            outputs = jax.block_until_ready(run(params, passed))
        return [jax.tree.map(np.asarray, output) for output in (outputs if isinstance(outputs, tuple) else (outputs,))]

    return call
