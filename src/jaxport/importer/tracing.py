"""Record a whole program: its steps on inputs whose sizes may be symbolic."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.export
import numpy as np
import onnx_ir as ir

from jaxport.errors import InvalidArgument, ModelError, Refusal, ValueNotKnown
from jaxport.importer.dtypes import STRING, canonical
from jaxport.importer.host import HostValue, RuntimeValue
from jaxport.importer.names import identifier, unique, unique_identifiers
from jaxport.importer.program import Program
from jaxport.importer.recording import Recorded, Step, Variable, map_leaves, recorded, recording_scope
from jaxport.jaxprs.dim_text import FUNCTIONS, symbols
from jaxport.jaxprs.dims import evaluate

__all__ = ["RecordedProgram", "arguments", "completed", "input_specs", "record", "with_constraints"]

LONGEST_EXPRESSION = 200
LARGE_SIZE = 10**6
"""A size at which no meaningful expression of sizes is negative, or divides by zero."""


@dataclass(frozen=True)
class RecordedProgram:
    """A program as steps between variables.

    `inputs` maps the names of the inputs that are arguments to their trees of variables; the others were known, and the
    steps are for their values. `outputs` are trees of variables, host values and None, one for each output.
    """

    program: Program
    params: dict[str, Variable]
    inputs: dict[str, RuntimeValue]
    steps: list[Step]
    outputs: tuple[RuntimeValue, ...]


def input_specs(program: Program, constraints: Sequence[str] = ()) -> dict[str, RuntimeValue]:
    """Return a `jax.ShapeDtypeStruct` for each input of the model, with the model's own names for open sizes.

    Args:
      program: the imported model.
      constraints: constraints on the sizes, as `jax.export.symbolic_shape` takes them: `["length <= 512"]` if a model
        slices its positions from a table of 512.

    Raises:
      InvalidArgument: the model does not declare the rank or type of an input.

    >>> import onnx.parser
    >>> from jaxport.importer.program import from_onnx
    >>> input_specs(
    ...     from_onnx(
    ...         onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     agraph (float[batch, 2] x) => (float[batch, 2] y) { y = Relu(x) }''')
    ...     )
    ... )
    {'x': ShapeDtypeStruct(shape=(batch, 2), dtype=float32)}
    """
    declared = [value for value in program.inputs if isinstance(value.type, ir.TensorType)]
    for value in program.inputs:
        if value not in declared or value.shape is None or value.dtype in (None, ir.DataType.UNDEFINED):
            raise InvalidArgument(
                f"the model does not declare the shape of the input `{value.name}`",
                where="recording the program",
                instead=f"give an array or a `jax.ShapeDtypeStruct` for `{value.name}`",
            )
    texts = {
        (value, axis): size.value or f"{value.name}_{axis}"
        for value in declared
        for axis, size in enumerate(value.shape.dims if value.shape is not None else ())
        if not isinstance(size, int)
    }
    # A size with the name of an input would take it away from the argument of printed source.
    inputs = {value.name or "" for value in program.inputs} - {
        name for text in constraints for side in text.split("<=") for name in symbols(side)
    }
    scope, names = jax.export.SymbolicScope(constraints), _Names(texts.values(), inputs)
    return {
        value.name or "": jax.ShapeDtypeStruct(
            tuple(
                size if isinstance(size, int) else names.size(texts[value, axis], scope)
                for axis, size in enumerate(value.shape.dims)
            ),
            canonical(np.dtype(value.dtype.numpy())),
        )
        for value in declared
        if value.shape is not None and value.dtype is not None
    }


class _Names:
    """The names of open sizes, as JAX takes them.

    A text such as `past + 1` is an expression if its names are names of sizes; anything else is a name.

    Args:
      texts: the sizes as the model has them.
      inputs: names that are those of something else: such a size is `points_size`.
    """

    def __init__(self, texts: Iterable[str], inputs: Collection[str]):
        texts = list(dict.fromkeys(texts))
        plain = [text for text in texts if text.isidentifier()]
        wanted = [f"{text}_size" if text in inputs else text for text in plain]
        self.names = dict(zip(plain, unique_identifiers(wanted, "size", FUNCTIONS), strict=True))
        for text in texts:
            if text not in self.names and not _is_expression(text, plain):
                self.names[text] = unique(identifier(text, "size"), {*self.names.values(), *FUNCTIONS})

    def size(self, text: str, scope: jax.export.SymbolicScope) -> RuntimeValue:
        if text in self.names:
            return jax.export.symbolic_shape(self.names[text], scope=scope)[0]
        return evaluate(text, {name: self.size(name, scope) for name in symbols(text)})


def _is_expression(text: str, names: Collection[str]) -> bool:
    """Whether a text is an expression of these names; a number that is not a size is a name."""
    if len(text) > LONGEST_EXPRESSION:
        return False
    try:
        return symbols(text) <= {*names} and evaluate(text, dict.fromkeys(names, LARGE_SIZE)) >= 0
    except (InvalidArgument, ArithmeticError):
        return False


Result = TypeVar("Result")
_CUT = re.compile(r"min\((?:(\d+), (\w+)|(\w+), (\d+))\)")


def with_constraints(attempt: Callable[[Sequence[str]], Result]) -> Result:
    """Return `attempt(constraints)` with the constraints that its failures ask for.

    A model slices its positions from a table of 512 rows: for larger sizes that gives `min(512, length)` rows, which do
    not fit the rest of the model. So `length <= 512` holds for all valid inputs, and JAX may assume it.

    Raises:
      ModelError: it fails for another reason.
    """
    constraints: list[str] = []
    while True:
        try:
            return attempt(constraints)
        except ModelError as error:
            cut = _CUT.search(str(error))
            needed = f"{cut[2] or cut[3]} <= {cut[1] or cut[4]}" if cut else ""
            if not needed or needed in constraints:
                raise
            constraints.append(needed)


def record(program: Program, inputs: Mapping[str, RuntimeValue] | None = None) -> RecordedProgram:
    """Record the program.

    Args:
      program: the imported model.
      inputs: by name, a `jax.ShapeDtypeStruct` for an input that stays an argument (a list of them for a sequence), and
        an array for one that decides shapes. Omitted inputs have the sizes that the model declares.

    Raises:
      ValueNotKnown: a shape depends on the values of an input that stays an argument.
    """
    return completed(program, inputs, lambda inputs: _record(program, inputs))


def completed(
    program: Program, inputs: Mapping[str, RuntimeValue] | None, attempt: Callable[[dict[str, RuntimeValue]], Result]
) -> Result:
    """Return `attempt` of the inputs, with what the model declares for omitted ones under the constraints that it asks for."""
    inputs = dict(inputs or {})
    if set(inputs) < {value.name for value in program.inputs}:
        return with_constraints(lambda constraints: attempt(input_specs(program, constraints) | inputs))
    return attempt(inputs)


def arguments(
    program: Program, inputs: Mapping[str, RuntimeValue]
) -> tuple[dict[str, RuntimeValue], dict[str, RuntimeValue]]:
    """Return the specs of the inputs that stay arguments, in the model's order, and the values of the others.

    Raises:
      ValueNotKnown: an input that stays an argument is of strings.
    """
    known = {name: map_leaves(_host, value) for name, value in inputs.items() if not _is_spec(value)}
    specs = {name: inputs[name] for name in program.input_names if name in inputs and name not in known}
    texts = [name for name, spec in specs.items() if any(leaf.dtype == STRING for leaf in jax.tree.leaves(spec))]
    if texts:
        why = (
            "JAX has no strings: give their values, `inputs={…}` with a NumPy array for each, which then are constants"
        )
        raise ValueNotKnown(
            "strings cannot be arguments of a program that is recorded",
            [Refusal(name, f"the input `{name}`", why) for name in texts],
        )
    return specs, known


def _record(program: Program, inputs: Mapping[str, RuntimeValue]) -> RecordedProgram:
    specs, known = arguments(program, inputs)
    result: dict[str, RuntimeValue] = {}

    def run(params: Mapping[str, RuntimeValue], values: Mapping[str, RuntimeValue]) -> None:
        with recording_scope() as recording:
            shadow_params = {name: recorded(value, name) for name, value in params.items()}
            shadows = {  # in the model's order, which JAX does not keep
                name: map_leaves(lambda leaf, name=name: recorded(leaf, name), values[name]) for name in specs
            }
            outputs = program.evaluate(shadow_params, shadows | known)
        result.update(
            params=_variables(shadow_params),
            inputs=_variables(shadows),
            steps=recording.steps,
            outputs=_variables(outputs),
        )

    jax.eval_shape(run, program.param_specs, specs)
    return RecordedProgram(program, **result)


def _host(leaf: RuntimeValue) -> RuntimeValue:
    if isinstance(leaf, jax.Array | np.ndarray | np.generic) and np.asarray(leaf).dtype.kind not in "OUST":
        return HostValue(np.asarray(leaf))
    return leaf


def _is_spec(value: object) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def _variables(tree: RuntimeValue) -> RuntimeValue:
    return map_leaves(lambda leaf: leaf.variable if isinstance(leaf, Recorded) else leaf, tree)
