"""Inputs whose elements are sizes: where a target reads them as it runs, they are traced as names of sizes.

JAX fixes sizes while it traces. A tensor of Rust has its sizes when the program runs, so that a printed crate may read
them from an input: `ConstantOfShape(shape)` is traced with the shape `[shape_0, shape_1]`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import numpy as np
import onnx_ir as ir

from jaxport.importer.interface import ImportedProgram
from jaxport.importer.resolving.graph import Body, BoundNode
from jaxport.importer.resolving.registry import POSITION, Operator
from jaxport.importer.traced.assumptions import Assumptions
from jaxport.importer.values.host import HostValue
from jaxport.jaxprs.dim_text import symbols
from jaxport.jaxprs.dims import evaluate, is_broken
from jaxport.onnx_facts import CHOICES
from jaxport.sizes.conditions import SizeComparison

MOST_SIZES = 8
"""Elements of an input that are sizes: no tensor of Burn has more axes."""
_FROM_ZERO = {("Range", 0), ("Pad", 1)}
"""Inputs of operators that count from zero, beside positions in a slice."""
_PASSING = CHOICES | {"Cast"}
"""Operators whose results have elements of their inputs."""


@dataclass(frozen=True)
class ReadSizes:
    """An input that is traced by names of sizes.

    Attributes:
      spec: what the input is as an array.
      elements: its elements: integers and dims.
    """

    spec: jax.ShapeDtypeStruct
    elements: HostValue


InputSpec: TypeAlias = "jax.ShapeDtypeStruct | ReadSizes | Sequence[InputSpec]"
"""What describes an input: its shape and dtype, those of a sequence of arrays, or sizes that are read from its
elements.
"""


def readable(program: ImportedProgram, given: Collection[str]) -> dict[str, int]:
    """Return the inputs whose elements may be read as sizes, each with the smallest one that it may have.

    They are vectors of integers, or single ones, whose values decide shapes. A size is 1 or more, as those with names
    are in JAX; where a slice, a range or padding begins may be 0.

    Args:
      program: the imported model.
      given: the inputs that a user has described, or given.
    """
    made: dict[str, int] = {}
    for value in program.inputs:
        if value.name in program.static_inputs and value.name not in given and _is_small(value):
            made[value.name] = 0 if any(_counts_from_zero(*use) for use in _uses(program.body, value)) else 1
    return made


def elements_for(read: Mapping[str, HostValue], assumed: Assumptions) -> dict[str, np.ndarray] | None:
    """Return elements of inputs that are sizes, for which the assumptions hold; None if they are not found at once.

    Args:
      read: the elements as numbers and names of sizes, by input.
      assumed: what the sizes have to be.
    """
    every = [size for elements in read.values() for size in elements.data.ravel()]
    names = [*dict.fromkeys(name for size in every for name in sorted(symbols(str(size))))]  # starts before ends
    asked = [one for one in map(SizeComparison.of, assumed.constraints) if one.names <= {*names}]
    sizes = dict(zip(names, range(2, 2 + len(names)), strict=True))
    if any(is_broken(str(one), sizes) for one in asked):
        found = SizeComparison.solution(asked, names)
        if found is None:
            return None
        sizes = found
    return {
        key: np.array([evaluate(str(size), sizes) for size in elements.data.ravel()], elements.dtype).reshape(
            elements.shape
        )
        for key, elements in read.items()
    }


def _is_small(value: ir.Value) -> bool:
    if value.shape is None or value.dtype is None or np.dtype(value.dtype.numpy()).kind not in "iu":
        return False
    sizes = value.shape.dims
    return not sizes or (len(sizes) == 1 and isinstance(sizes[0], int) and 0 < sizes[0] <= MOST_SIZES)


def _uses(body: Body, value: ir.Value) -> Iterator[tuple[BoundNode, int]]:
    """Yield the nodes that take elements of an input, each with its place among the node's inputs."""
    found = {value}
    for node in body.nodes:
        for index, read in enumerate(node.inputs):
            if read in found:
                yield node, index
                if node.node.op_type in _PASSING:
                    found |= {made for made in node.outputs if made is not None}


def _counts_from_zero(node: BoundNode, index: int) -> bool:
    is_position = isinstance(node.target, Operator) and node.target.input_mark(index) == POSITION
    return is_position or (node.node.op_type, index) in _FROM_ZERO
