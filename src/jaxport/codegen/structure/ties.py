"""Which parameters operators share, and which only happen to be equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from jaxport.codegen.tree import Op
from jaxport.importer.program import Program
from jaxport.importer.recording import Variable

__all__ = ["shared"]


def shared(ops: Sequence[Op], names: Mapping[Variable, str], program: Program) -> dict[Variable, Op | None]:
    """The parameters that several operators read, each with the lookup whose table it is, if there is one.

    Exporters merge equal tensors. Those whose elements are all the same, as those of fresh normalizations are, are no
    ties: each operator gets one of its own.
    """
    uses = Counter(variable for op in ops for variable in op.inputs)
    counts: Counter[Variable] = Counter()
    owners: dict[Variable, Op | None] = {}
    for op in ops:
        for variable in op.inputs:
            if variable not in names:
                continue
            turned = op.step.name in ("T", "jnp.transpose")
            counts[variable] += uses[op.outputs[0]] if turned else 1
            if op.step.name == "jnp.take" and op.step.args[0] is variable:
                owners.setdefault(variable, op)
    return {
        variable: owners.get(variable)
        for variable, count in counts.items()
        if count > 1 and not _is_uniform(program, names[variable])
    }


def _is_uniform(program: Program, name: str) -> bool:
    array = program.weights.host_array(name)
    return array.size == 0 or bool((array == array.ravel()[0]).all())
