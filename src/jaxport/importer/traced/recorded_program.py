"""Record a whole program: its steps on inputs whose sizes may be symbolic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from jaxport.errors import JaxportError, Refusal, ValueNotKnown
from jaxport.importer.interface import ImportedProgram
from jaxport.importer.traced.assumptions import Assumptions, Bounds, example, place_of, with_assumptions
from jaxport.importer.traced.bounds import bounds_are_told
from jaxport.importer.traced.conditions import Condition, needed
from jaxport.importer.traced.counted_sizes import counting, counts_anew
from jaxport.importer.traced.input_specs import input_specs, is_spec, read_specs
from jaxport.importer.traced.read_sizes import InputSpec, ReadSizes, readable
from jaxport.importer.traced.zero_sizes import appended, size_text, spelled_assumptions
from jaxport.importer.values.dtypes import STRING
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Recorded, Step, Variable, map_leaves, recorded, recording_scope
from jaxport.jaxprs import Dim
from jaxport.jaxprs.dim_text import symbols
from jaxport.jaxprs.dims import evaluate

LONGEST_VALUE = 60


Fixed = Mapping[int, tuple[str, int | str]]
"""By axis, the text of a size and the number or the expression that it has to be."""


@dataclass(frozen=True)
class RecordedProgram:
    """A program as steps between variables.

    `inputs` maps the names of the inputs that are arguments to their trees of variables; the others were known, and the
    steps are for their values: `known` has them. `outputs` are trees of variables, host values and None, one for each
    output. `assumed` is what the sizes have to be, and `fixed` where inputs have an open size that has to be something
    else: by input and axis, the text of the size and what it is. `read` has the elements of those inputs that are
    sizes, as numbers and dims, and `counted` the sizes that follow from values, each with the least and the most that
    it may be. `is_finite` says that guards against NaN, which finite inputs and weights do
    not need, are left out.
    """

    program: ImportedProgram
    params: dict[str, Variable]
    inputs: dict[str, Any]
    steps: list[Step]
    outputs: tuple[Any, ...]
    assumed: Assumptions = field(default_factory=Assumptions)
    known: Mapping[str, object] = field(default_factory=dict)
    fixed: Mapping[str, Fixed] = field(default_factory=dict)
    is_finite: bool = False
    read: Mapping[str, HostValue] = field(default_factory=dict)
    counted: Mapping[str, Bounds] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """What holds for these steps only: the sizes that were assumed, and the inputs that became constants."""
        return (
            *self.assumed.lines(),
            *(
                f"`{name} >= {least}` has to hold of what is counted"
                for name, (least, _) in self.counted.items()
                if least
            ),
            *(f"`{name} <= {most}` has to hold of what is counted" for name, (_, most) in self.counted.items() if most),
            *(f"the input `{name}` is a constant{_shown(value)}" for name, value in self.known.items()),
            *(["inputs and weights are finite: guards against NaN are left out"] if self.is_finite else []),
        )


def record(program: ImportedProgram, inputs: Mapping[str, object] | None = None) -> RecordedProgram:
    """Record the program.

    Args:
      program: the imported model.
      inputs: by name, the sizes of an input that stays an argument, as `read_specs` takes them, and an array for one
        that decides shapes. Omitted inputs have the sizes that the model declares.

    Raises:
      ValueNotKnown: a shape depends on the values of an input that stays an argument, or open sizes have to be other
        ones.
    """
    return completed(program, inputs, lambda inputs: record_once(program, inputs))


def completed(
    program: ImportedProgram,
    inputs: Mapping[str, object] | None,
    attempt: Callable[[dict[str, object]], RecordedProgram],
    reads_sizes: bool = False,
    may_be_empty: bool = True,
) -> RecordedProgram:
    """Return `attempt` of the inputs, with sizes for which it succeeds, as far as arithmetic decides them.

    Args:
      program: the imported model.
      inputs: as `record` takes them.
      attempt: records the program on specs and values of all inputs.
      reads_sizes: whether the recording is for a target whose arrays have their sizes as the program runs: it may read
        them from the elements of inputs, and count what a value has.
      may_be_empty: whether such a target has caches that begin empty.

    Raises:
      ValueNotKnown: it needs sizes that arithmetic alone does not decide.
    """
    specs, values, constraints = read_specs(program, dict(inputs or {}))
    read = readable(program, {**specs, **values}) if reads_sizes else {}
    empty = appended(program) if reads_sizes and may_be_empty else frozenset()
    declared = input_specs(program, Assumptions(), specs, values, read)
    latest = Assumptions(constraints, read=_read_names(declared), places=_places(declared))

    def tried(assumed: Assumptions) -> RecordedProgram:
        nonlocal latest
        latest = assumed
        sizes = input_specs(program, assumed, specs, values, read, empty)
        counted: Mapping[str, Bounds] = {}
        with bounds_are_told(program) as taken:
            taken.update(sizes)
            if reads_sizes:
                with counting(assumed, sizes) as counts:
                    made = attempt(sizes | values)
                counted, assumed = counts.bounds(), counts.beyond()
            else:
                made = attempt(sizes | values)
        fixed = _fixed(input_specs(program, Assumptions(constraints), specs, values), sizes) if assumed.sizes else {}
        assumed = spelled_assumptions(assumed.beyond(constraints))
        return replace(made, assumed=assumed, known=values, fixed=fixed, counted=counted)

    try:
        return with_assumptions(tried, latest)
    except JaxportError as error:
        if empty:
            return completed(program, inputs, attempt, reads_sizes, may_be_empty=False)
        if reads_sizes:  # what the program asks for without these sizes is what a user can give
            return completed(program, inputs, attempt)
        conditions = needed(error)
        if not conditions:
            raise
        raise _refused(error, conditions, input_specs(program, latest, specs, values)) from error


def _read_names(specs: Mapping[str, InputSpec]) -> frozenset[str]:
    elements = (spec.elements.data for spec in specs.values() if isinstance(spec, ReadSizes))
    return frozenset(name for data in elements for size in data.ravel() for name in symbols(str(size)))


def _places(specs: Mapping[str, InputSpec]) -> dict[str, int]:
    arrays = [spec for spec in specs.values() if isinstance(spec, jax.ShapeDtypeStruct)]
    return {str(size): axis for spec in arrays for axis, size in enumerate(spec.shape)}


def _fixed(declared: Mapping[str, InputSpec], traced: Mapping[str, InputSpec]) -> dict[str, Fixed]:
    """Return where inputs were traced with a number, or with another size, in place of an open one, and where with that
    size.
    """
    arrays = {
        name: (own, spec)
        for name, spec in traced.items()
        if isinstance(spec, jax.ShapeDtypeStruct) and isinstance(own := declared[name], jax.ShapeDtypeStruct)
    }
    texts = {
        name: [
            (axis, size_text(size), size_text(made))
            for axis, (size, made) in enumerate(zip(own.shape, spec.shape, strict=True))
        ]
        for name, (own, spec) in arrays.items()
    }
    related = {one for axes in texts.values() for _, size, made in axes if size != made for one in symbols(made)}
    return {
        name: {
            axis: (size, int(made) if made.isdecimal() else made)
            for axis, size, made in axes
            if size != made or symbols(made) & related
        }
        for name, axes in texts.items()
    }


def _refused(error: JaxportError, conditions: Sequence[Condition], specs: Mapping[str, InputSpec]) -> ValueNotKnown:
    """Return the refusal of sizes that are not what they have to be, with the inputs for which they are, if those are
    known.
    """
    sizes = {name: size for condition in conditions for name, size in example(condition).items()}
    shapes = {name: spec.shape for name, spec in specs.items() if isinstance(spec, jax.ShapeDtypeStruct)}
    changed = [
        f'"{name}": ({", ".join(_changed(size, sizes) for size in shape)}{"," * (len(shape) == 1)})'
        for name, shape in shapes.items()
        if any(symbols(str(size)) & sizes.keys() for size in shape)
    ]
    given = f"`inputs={{{', '.join(changed)}}}`" if changed else "numbers, or other names, for the sizes of the inputs"
    needs = " and ".join(f"`{condition}`" for condition in conditions)
    operator, where = place_of(error)
    why = f"{needs} must hold, but does not follow from these names: give {given}"
    return ValueNotKnown("the program cannot be traced with these sizes", [Refusal(operator, where, why)])


def _changed(size: Dim, sizes: Mapping[str, str]) -> str:
    """Return a size as a user writes it, with expressions in place of names."""
    names = symbols(str(size))
    if not names:
        return str(size)
    scope = jax.export.SymbolicScope()
    values = {name: jax.export.symbolic_shape(sizes.get(name, name), scope=scope)[0] for name in names}
    text = str(evaluate(str(size), values))
    return text if text.isdecimal() else f'"{text}"'


def arguments(program: ImportedProgram, inputs: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the specs of the inputs that stay arguments, in the model's order, and the values of the others.

    Raises:
      ValueNotKnown: an input that stays an argument is of strings.
    """
    known = {name: _known(value) for name, value in inputs.items() if not is_spec(value)}
    specs = {name: inputs[name] for name in program.input_names if name in inputs and name not in known}
    texts = [name for name, spec in specs.items() if any(leaf.dtype == STRING for leaf in jax.tree.leaves(spec))]
    if texts:
        why = "JAX has no strings: give their values, `inputs={…}` with a NumPy array for each, which become constants"
        raise ValueNotKnown(
            "strings cannot be arguments of printed source",
            [Refusal(name, f"the input `{name}`", why) for name in texts],
        )
    return specs, known


def record_once(program: ImportedProgram, inputs: Mapping[str, object]) -> RecordedProgram:
    """Record a program on specs and values of all inputs, with these sizes."""
    specs, known = arguments(program, inputs)
    read = {name: value for name, value in inputs.items() if isinstance(value, ReadSizes)}
    result: dict[str, Any] = {}

    def run(params: Mapping[str, jax.Array], values: Mapping[str, object]) -> None:
        counts_anew()
        with recording_scope() as recording:
            shadow_params = {name: recorded(value, name) for name, value in params.items()}
            shadows = {  # in the model's order, which JAX does not keep
                name: map_leaves(lambda leaf, name=name: recorded(leaf, name), values[name]) for name in specs
            }
            outputs = program.evaluate(shadow_params, shadows | known)
        named = _variables(shadows) | {n: Variable(x.spec.shape, x.spec.dtype, n) for n, x in read.items()}
        result.update(
            params=_variables(shadow_params),
            inputs={name: named[name] for name in program.input_names if name in named},
            steps=recording.steps,
            outputs=_variables(outputs),
        )

    jax.eval_shape(run, program.param_specs, specs)
    return RecordedProgram(program, read={name: value.elements for name, value in read.items()}, **result)


def _known(value: object) -> object:
    return value.elements if isinstance(value, ReadSizes) else map_leaves(_host, value)


def _host(leaf: object) -> object:
    if isinstance(leaf, jax.Array | np.ndarray | np.generic) and np.asarray(leaf).dtype.kind not in "OUST":
        return HostValue(np.asarray(leaf))
    return leaf


def _variables(tree: object) -> Any:
    return map_leaves(lambda leaf: leaf.variable if isinstance(leaf, Recorded) else leaf, tree)


def _shown(value: object) -> str:
    """Return a value for a note, if it is short."""
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic | int | float | bool | jax.Array) else None
    text = "" if array is None else f": {array.tolist()}" if array.size <= 8 else f" of shape {list(array.shape)}"
    return text if len(text) <= LONGEST_VALUE else ""
