"""The loop of `verify`: run both sides of a conversion on the same inputs, at several sizes, and compare them.

The JAX side of an export is the traced program, run by JAX.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from jax import export
from jax.typing import DTypeLike

from jaxport import jaxprs
from jaxport.blocks.tracing import Traced
from jaxport.blocks.ungrouping import ungroup
from jaxport.errors import InvalidArgument
from jaxport.export.ports import Port
from jaxport.jaxprs import Array, Parameters, dims
from jaxport.jaxprs.rewrite import EquationRewriting
from jaxport.phases import phase
from jaxport.verify import decoding, sampling, size_choice
from jaxport.verify.comparing import OF_DTYPES, Changes, Tolerance, compared_results
from jaxport.verify.precision import in_full_precision
from jaxport.verify.report import Output, compared_outputs

#: Makes an argument for an input, or returns None for the default: `sampler(port, sizes, generator)`.
Sampler = Callable[[Port, Mapping[str, int], np.random.Generator], Any]


def run_program(jaxpr: jaxprs.ClosedJaxpr, operands: Sequence[Array]) -> list[Array]:
    """Return the results of a program, which may have blocks and symbolic dims, for concrete operands."""
    plain = in_full_precision(ungroup(jaxpr))
    function = jax.jit(jaxprs.jaxpr_as_fun(plain))
    if all(dims.all_static(getattr(aval, "shape", ())) for aval in plain.in_avals):
        return list(function(*operands))
    # Its parameters hold the symbolic dims, so it cannot be evaluated directly: JAX lowers it with them.
    function = jax.jit(jaxprs.jaxpr_as_fun(EquationRewriting(_step_by_step).closed(plain)))
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in plain.in_avals]
    return list(export.export(function)(*specs).call(*operands))


def _step_by_step(equation: jaxprs.JaxprEqn) -> jaxprs.JaxprEqn:
    """A scan that takes one step at a time: JAX cannot lower one of a symbolic length that takes several."""
    if equation.primitive.name != "scan" or equation.params["unroll"] == 1:
        return equation
    return equation.replace(params={**equation.params, "unroll": 1})


def run_traced(traced: Traced, inputs: Sequence[Any]) -> list[Array]:
    """Return the outputs of a traced program, including those of the state."""
    return run_program(traced.jaxpr, [*(weight.value for weight in traced.weights), *inputs])


#: The kinds of the arguments that all functions have which compare.
COMPARED: Mapping[str, str] = {
    "sizes": "sizes",
    "rtol": "tolerance",
    "atol": "tolerance",
    "avoid": "integers",
    "seed": "count",
    "check": "flag",
}


@dataclass(frozen=True)
class Sampling:
    """How arguments and sizes are drawn.

    Attributes:
      sizes: the sizes of the symbols, for one run or several; by default some are drawn.
      avoid: by input, integers that are not drawn.
      seed: the seed of the sampled arguments and sizes.
    """

    sizes: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None
    avoid: Mapping[str, Iterable[int]] | None = None
    seed: int = 0


DRAWN = Sampling()


@dataclass(frozen=True)
class Run:
    """One set of sizes, with NumPy arrays for the inputs of the model, in its own types.

    `inside` has the narrowest float that each output is rounded to, if that is known.
    """

    sizes: dict[str, int]
    arrays: dict[str, np.ndarray]
    inside: Sequence[DTypeLike | None] = ()


R = TypeVar("R", bound=Run)


class Sides(ABC, Generic[R]):
    """The two sides of a comparison: what a model should compute, and what it does.

    Attributes:
      output_names: the names of the outputs.
      scaled: the tolerance of a model in reduced precision, as `difference` takes it.
    """

    output_names: Sequence[str]
    scaled: float | None = None

    @abstractmethod
    def expected(self, run: R) -> list[np.ndarray]:
        """Return the outputs of the side that is right."""

    @abstractmethod
    def actual(self, run: R) -> list[np.ndarray]:
        """Return the outputs of the other side."""

    @abstractmethod
    def spread(self, run: R, is_enough: Callable[[Changes], bool]) -> Changes:
        """Return the change of each output in JAX itself under different rounding."""

    def compared(
        self,
        run: R,
        expected: Sequence[np.ndarray],
        actual: Sequence[np.ndarray],
        tolerance: Tolerance = OF_DTYPES,
    ) -> list[Output]:
        """Compare the outputs of a run."""
        spread = functools.partial(self.spread, run)
        differences = compared_results(expected, actual, tolerance, run.inside, spread, self.scaled)
        return compared_outputs(self.output_names, run.sizes, expected, differences)

    def comparisons(self, runs: Iterable[R], tolerance: Tolerance) -> Iterator[tuple[R, list[Output]]]:
        """Run both sides on each set of inputs; yield it with the comparisons of its outputs.

        The first side is done before the second one begins: neither needs memory while the other one runs.
        """
        known = []
        for run in runs:
            with phase("Comparing"):
                known.append((run, self.expected(run)))
        for run, expected in known:
            with phase("Comparing"):
                outputs = self.compared(run, expected, self.actual(run), tolerance)
            yield run, outputs


def arguments(
    trace: jaxprs.ClosedJaxpr,
    traced: Sequence[str],
    ports: Mapping[str, Port],
    by_name: Parameters,
    known: Mapping[str, int],
    drawn: Sampling,
    sampler: Sampler | None = None,
    choices: Sequence[Parameters] = ({},),
    is_step: bool = False,
) -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """Yield the sizes of each run with an argument for each input: the given ones, and sampled ones.

    Args:
      trace: the program.
      traced: the names of its last inputs; for those that it closes over the user passes arguments.
      ports: the inputs by name, in order.
      by_name: the arguments that the user passes, by name.
      known: the sizes that these have.
      drawn: how the others are drawn.
      sampler: makes arguments, if the user has one.
      choices: further arguments. At the first sizes there is a run for each, and one at each of the others.
      is_step: whether the program is a step of a decoder, with a mask of padding and positions that follow from it.

    Raises:
      InvalidArgument: the sizes do not fit, or there is no such input to avoid integers for.
    """
    bounds, avoided = sampling.bounds(trace), sampling.avoided(drawn.avoid, ports)
    for name in avoided:
        if ports[name].dtype.kind not in "iu":
            raise InvalidArgument(
                f"the input `{name}` has no integers to avoid",
                where="`verify(avoid=...)`",
                why=f"it is {ports[name].dtype}",
                instead="leave it out",
            )
    searched = sampling.ordered(trace)
    place = {name: len(trace.in_avals) - len(traced) + index for index, name in enumerate(traced)}
    valid = {name: bounds.get(place[name], ()) for name in traced}
    sets = size_choice.sets(size_choice.Conditions(trace), drawn.sizes, known, drawn.seed)
    sets = decoding.settled(sets) if is_step and not drawn.sizes else sets
    runs = [(sets[0], chosen) for chosen in choices]
    runs += [(at, choices[number % len(choices)]) for number, at in enumerate(sets[1:], 1)]
    for number, (at, chosen) in enumerate(runs):
        generator = np.random.default_rng([drawn.seed, number])
        values = {**by_name, **chosen}
        for name, port in ports.items():
            if name not in values and sampler is not None:
                values[name] = sampler(port, at, generator)
            if values.get(name) is None and is_step:
                values[name] = decoding.sampled(port, at)
            if values.get(name) is None:
                values[name] = sampling.sample(port, at, generator, valid[name], avoided.get(name, ()))
                if place[name] in searched and np.ndim(values[name]):
                    values[name] = np.sort(values[name], axis=-1)
        yield at, values
