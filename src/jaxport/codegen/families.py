"""The caches of a decoder in the signature of its model: one list of tuples in place of two arguments for each layer.

A file has one input for each array: `past_0_key`, `past_0_value`, `past_1_key`, … Who writes such a model has

    def __call__(self, input_ids: Array, past: list[tuple[Array, Array]]) -> tuple[Array, list[tuple[Array, Array]]]:

Inputs are such a family if their names count the layers, and if as many outputs, side by side, are computed from them
and have their shapes, but for one axis that may grow. The leaves of arguments and results stay the inputs and outputs
of the file, in its order.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxport.codegen.rewriting.steps import reads, variables
from jaxport.codegen.writing.statements import plural
from jaxport.importer.names import identifier, unique
from jaxport.importer.traced.recorded_program import RecordedProgram
from jaxport.importer.values.host import RuntimeValue
from jaxport.importer.values.recording import Variable

_COUNTED = re.compile(r"(?<![^\W_])\d+(?![^\W_])")
"""A number that stands alone in a name: `past.0.key`, `past_0_key`, `past_key_0`, not `conv2d_key`."""
_KEPT = re.compile(r"(?i)past|cache|state|mem|hidden|carry")
"""What the name of an array says that a step hands to the next one, where each layer has one only."""


@dataclass(frozen=True)
class Family:
    """Inputs or outputs that stand side by side: those of the first layer, of the second, and so on.

    Attributes:
      name: the name of the list that they are.
      begin: the place of the first.
      rows: the number of layers.
      parts: how many each layer has.
    """

    name: str
    begin: int
    rows: int
    parts: int

    @property
    def end(self) -> int:
        """The place behind the last."""
        return self.begin + self.rows * self.parts

    def place(self, row: int, part: int) -> int:
        """Return the place of one of them."""
        return self.begin + row * self.parts + part

    @property
    def annotation(self) -> str:
        """Its type."""
        return "list[Array]" if self.parts == 1 else f"list[tuple[{', '.join(['Array'] * self.parts)}]]"


@dataclass(frozen=True)
class State:
    """A family of inputs, and that of the outputs which the next step takes in their place."""

    past: Family
    present: Family


def states_of(recorded: RecordedProgram, taken: Collection[str] = ()) -> list[State]:
    """Return the families of inputs and outputs that are the state of a step.

    Args:
      recorded: the program.
      taken: names that the lists cannot have.
    """
    search = _StateSearch.of(recorded, {*taken})
    states: list[State] = []
    at, begin = 0, 0
    while at < len(search.inputs):
        past = _family(search.inputs, at, {*taken, *(state.past.name for state in states)})
        present = search.present(past, begin) if past is not None else None
        if past is not None and present is not None:
            states.append(State(past, present))
            begin = present.end
        at = at + 1 if past is None else past.end  # a part of a family is none
    return states


def _family(names: Sequence[str], at: int, taken: set[str]) -> Family | None:
    """Return the family that begins at a place; None if a single layer has a single one, or their names do not say what
    they are.
    """
    first = _COUNTED.search(names[at])
    if first is None:
        return None
    number = int(first[0])
    affixes = [*_affixes(names[at:], number)]
    rows = 1
    while [*_affixes(names[at + rows * len(affixes) :], number + rows)][: len(affixes)] == affixes:
        rows += 1
    stem = _beginning([before for before, _ in affixes])
    if any(before != stem for before, _ in affixes):
        stem = re.sub(r"[^\W_]+$", "", stem)  # whole words
    if len(affixes) == 1 and (rows == 1 or not _KEPT.search(names[at])):
        return None
    wanted = identifier(stem, "caches")
    if len(affixes) == 1 or wanted in taken:
        wanted = plural(wanted)
    return Family(unique(wanted, taken), at, rows, len(affixes))


def _beginning(texts: Sequence[str]) -> str:
    """Return the characters that all texts begin with."""
    same = itertools.takewhile(lambda column: len({*column}) == 1, zip(*texts, strict=False))
    return "".join(column[0] for column in same)


def _affixes(names: Sequence[str], number: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield what is in front of the number of a layer and behind it, of the names of that layer, or the first, at the
    beginning.
    """
    for one in names:
        found = _COUNTED.search(one)
        if found is None or int(found[0]) != (int(found[0]) if number is None else number):
            return
        number = int(found[0])
        yield one[: found.start()], one[found.end() :]


@dataclass(frozen=True)
class _StateSearch:
    """Looks for the outputs that the next step takes in the place of inputs.

    Attributes:
      inputs, outputs: the names in the file.
      given, made: their values.
      sources: the inputs that a value is computed from, as a number with a bit for each.
      taken: names that the lists cannot have.
    """

    inputs: Sequence[str]
    outputs: Sequence[str]
    given: Sequence[RuntimeValue]
    made: Sequence[RuntimeValue]
    sources: Mapping[Variable, int]
    taken: set[str]

    @classmethod
    def of(cls, recorded: RecordedProgram, taken: set[str]) -> _StateSearch:
        given = [*recorded.inputs.values()]
        sources = {value: 1 << at for at, value in enumerate(given) if isinstance(value, Variable)}
        for step in recorded.steps if any(map(_COUNTED.search, recorded.inputs)) else ():
            bits = 0
            for variable in reads(step):
                bits |= sources.get(variable, 0)
            sources |= dict.fromkeys(variables(step.outputs), bits)
        return cls([*recorded.inputs], recorded.program.output_names, given, recorded.outputs, sources, taken)

    def present(self, past: Family, least: int) -> Family | None:
        """Return outputs, at a place or behind it; those that a layer has first may be all that change."""
        for parts in range(past.parts, 0, -1):
            for begin in range(least, len(self.made) - past.rows * parts + 1):
                own = _family(self.outputs, begin, self.taken)
                is_family = own is not None and (own.rows, own.parts) == (past.rows, parts)
                chosen = own.name if own is not None and is_family else unique("present", self.taken)
                family = Family(chosen, begin, past.rows, parts)
                ends = [
                    [after for _, after in itertools.islice(_affixes(names), parts)]
                    for names in (self.inputs[past.begin :], self.outputs[begin:])
                ]
                if self._follows(past, family, is_family and ends[0] == ends[1] and len({*ends[0]}) == parts):
                    return family
        return None

    def _follows(self, past: Family, present: Family, is_named: bool) -> bool:
        """Whether each output is what follows the input at its place, as their shapes and what they are computed from
        tell.

        A later layer depends on the caches of those before it, an earlier one on none behind it. Within a layer, keys
        depend on keys alone; where they depend on all that the layer has, only the names of the outputs tell which is
        which.
        """
        bit = lambda row, part: 1 << past.place(row, part)
        for row in range(past.rows):
            later = sum(bit(other, part) for other in range(row + 1, past.rows) for part in range(past.parts))
            for part in range(present.parts):
                old, new = self.given[past.place(row, part)], self.made[present.place(row, part)]
                if not isinstance(old, Variable) or not isinstance(new, Variable) or not _is_alike(old, new):
                    return False
                beside = 0 if is_named else sum(bit(row, other) for other in range(past.parts) if other != part)
                if not self.sources.get(new, 0) & bit(row, part) or self.sources[new] & (later | beside):
                    return False
        return True


def _is_alike(old: Variable, new: Variable) -> bool:
    """Whether a value has the type and the shape of another, but for one axis that may grow."""
    differing = sum(str(one) != str(other) for one, other in zip(old.shape, new.shape, strict=False))
    return old.dtype == new.dtype and 1 < len(old.shape) == len(new.shape) and differing <= 1


# Names and order of the file

_FLAT = '''INPUTS = {inputs}
"""The names of the inputs in the ONNX file: those of the leaves of the arguments."""
OUTPUTS = {outputs}
"""The names of the outputs in the ONNX file: those of the leaves of the results."""


def flat(model: {model}) -> Callable[..., tuple[Array, ...]]:
    """The model as a function of one array for each of `INPUTS`, which returns one for each of `OUTPUTS`."""
    arguments = jax.tree.structure(({arguments}))
    return lambda *inputs: (*jax.tree.leaves(model(*jax.tree.unflatten(arguments, inputs))),)
'''


def of_file(model: str, inputs: Sequence[str], outputs: Sequence[str], states: Sequence[State]) -> str:
    """Return the source of a model as a function of the file's inputs; nothing if the model is such a function.

    Args:
      model: the name of the model's class.
      inputs, outputs: the names in the file.
      states: the families that are one argument.
    """
    begins = {state.past.begin: state.past for state in states}
    inside = {place for past in begins.values() for place in range(past.begin + 1, past.end)}
    leaves = []
    for place in range(len(inputs)):
        past = begins.get(place)
        if past is not None:
            row = "0" if past.parts == 1 else f"({', '.join(['0'] * past.parts)})"
            leaves.append(f"[{row}] * {past.rows}")
        elif place not in inside:
            leaves.append("0")
    arguments = ", ".join(leaves) + "," * (len(leaves) == 1)
    spelled = (ast.unparse(described(names)) for names in (inputs, outputs))
    texts = dict(zip(("inputs", "outputs"), spelled, strict=True))
    return _FLAT.format(model=model, arguments=arguments, **texts) if states else ""


def described(names: Sequence[str]) -> ast.expr:
    """Return the names of a file's inputs or outputs as a tuple, in which names that only count layers are computed.

    >>> print(
    ...     ast.unparse(described(["x", *(f"past.{layer}.{part}" for layer in range(9) for part in ("key", "value"))]))
    ... )
    ('x', *(f'past.{layer}.{part}' for layer in range(9) for part in ('key', 'value')))
    """
    elements: list[ast.expr] = []
    at = 0
    while at < len(names):
        family = _family(names, at, set())
        counted = _COUNTED.search(names[at])
        if family is None or counted is None or int(counted[0]) or family.rows == 1:
            elements.append(ast.Constant(names[at]))
            at += 1
            continue
        spelled = [*_affixes(names[at : at + family.parts], 0)]
        before, behind = _beginning([one for one, _ in spelled]), {end for _, end in spelled}
        text = lambda part: part.replace("{", "{{").replace("}", "}}")
        if {one for one, _ in spelled} == {before} and len(behind) > 1:
            shared = re.sub(r"[^\W_]+$", "", _beginning([*behind]))
            words = ast.unparse(ast.Tuple([ast.Constant(end.removeprefix(shared)) for _, end in spelled], ast.Load()))
            pattern = f"f{text(before) + '{layer}' + text(shared) + '{part}'!r}"
            source = f"({pattern} for layer in range({family.rows}) for part in {words})"
        else:
            patterns = ", ".join(f"f{text(one) + '{layer}' + text(end)!r}" for one, end in spelled)
            source = f"(name for layer in range({family.rows}) for name in ({patterns},))"
        elements.append(ast.Starred(ast.parse(source, mode="eval").body, ast.Load()))
        at = family.end
    return ast.Tuple(elements, ast.Load())
