"""Which parameters operators share, and which only happen to be equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from jaxport.codegen.structure.scopes import Chain, called
from jaxport.codegen.tree import Op
from jaxport.importer.program import Program
from jaxport.importer.recording import Variable

__all__ = ["element_of_all", "shared"]


def shared(
    ops: Sequence[Op], names: Mapping[Variable, str], program: Program, chains: Mapping[int, Chain]
) -> dict[Variable, Op | None]:
    """The parameters that several operators read, each with the lookup whose table it is, if there is one.

    Exporters merge equal tensors. Those whose elements are all the same, as those of fresh normalizations are, are no
    ties: each operator gets one of its own. A tensor that several calls of one module read is one weight of that module.
    """
    uses = Counter(variable for op in ops for variable in op.inputs)
    counts: dict[Variable, Counter[Chain]] = {}
    owners: dict[Variable, Op | None] = {}
    for op in ops:
        for variable in op.inputs:
            if variable not in names:
                continue
            turned = op.step.name in ("T", "jnp.transpose")
            counts.setdefault(variable, Counter())[chains[id(op)]] += uses[op.outputs[0]] if turned else 1
            if op.step.name == "jnp.take" and op.step.args[0] is variable:
                owners.setdefault(variable, op)
    return {
        variable: owners.get(variable)
        for variable, found in counts.items()
        if max(found.values()) > 1 or len({tuple(map(called, chain)) for chain in found}) > 1
        if element_of_all(program, names[variable]) is None
    }


def element_of_all(program: Program, name: str) -> float | None:
    """The number that all elements of a parameter are; None if they differ. Those of an empty one are 0."""
    array = program.weights.host_array(name).ravel()
    if array.size == 0:
        return 0.0
    return float(array[0]) if bool((array == array[0]).all()) else None
