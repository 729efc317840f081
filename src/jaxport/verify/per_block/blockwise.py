"""Measure how far the result of each block is from that of the JAX function, and how much of that the block adds.

The results of all blocks, and the values that they are computed from, are made outputs of the program, on both sides. A
value that is an output cannot be fused into its user, so that the model that is measured may be less fused than the one
that is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from jaxport import jaxprs
from jaxport.blocks.block import Block, block_p
from jaxport.jaxprs import Array, Atom
from jaxport.jaxprs.body_inputs import source_of
from jaxport.jaxprs.taps import Tap
from jaxport.jaxprs.walk import Location, bodies, equations_within, variables
from jaxport.verify.per_block.taps import measured
from jaxport.verify.report import BlockDifference

if TYPE_CHECKING:
    from jaxport.export.exported_model import ExportedModel


def block_differences(
    exported: ExportedModel, leaves: Sequence[Array], inputs: Mapping[str, np.ndarray]
) -> tuple[BlockDifference, ...]:
    """Return the differences of all blocks, the most costly first.

    Args:
      exported: the model; it is exported again, in the same precision, with more outputs.
      leaves: the arguments of the JAX function, as operands of the traced program.
      inputs: the same as inputs of the model.
    """
    traced = exported.traced
    operands = set(_operands(traced.jaxpr.jaxpr))

    def wanted(equation: jaxprs.JaxprEqn, _: object) -> bool:
        return equation.primitive is block_p or not operands.isdisjoint(equation.outvars)

    values = measured(exported, wanted, leaves, inputs, reduced=True)
    by_value = {_key(value.tap): _relative(value.expected, value.actual) for value in values}
    calls: dict[Location, list[Tap]] = {}
    for value in values:
        if value.tap.equation.primitive is block_p:
            calls.setdefault(value.tap.location, []).append(value.tap)
    return tuple(
        sorted((_difference(own, by_value) for own in calls.values()), key=lambda difference: -difference.added)
    )


_Key = tuple[Location, Atom]


def _key(tap: Tap) -> _Key:
    """Return the body that a value is in, by its location, and the value: calls may share a body."""
    return tap.location[:-1], tap.value


def _difference(own: Sequence[Tap], by_value: Mapping[_Key, float]) -> BlockDifference:
    """Return the difference of one call, whose results are tapped."""
    block: Block = own[0].equation.params["block"]
    relative = max(by_value[_key(tap)] for tap in own)
    before = max((_known(atom, own[0], by_value) for atom in own[0].equation.invars), default=0.0)
    added = max(0.0, relative**2 - before**2) ** 0.5
    return BlockDifference(block.path or block.name, block.target, relative, added)


def _known(atom: Atom, tap: Tap, by_value: Mapping[_Key, float]) -> float:
    """Return the difference of an operand: that of the tapped value that it is; none if it is a constant or an
    input.
    """
    location = tap.location[:-1]
    for outer in reversed(tap.around):
        if isinstance(atom, jaxprs.Literal) or (location, atom) in by_value:
            break
        inputs = bodies(outer.params)[location[-1]].invars
        source = source_of(outer, location[-1], inputs.index(atom)) if atom in inputs else None
        if source is None:
            return 0.0
        atom, location = outer.invars[source.operand], location[:-2]
    return 0.0 if isinstance(atom, jaxprs.Literal) else by_value.get((location, atom), 0.0)


def _operands(jaxpr: jaxprs.Jaxpr) -> Iterator[jaxprs.Var]:
    """Yield the operands of blocks and of other equations with bodies."""
    for equation in equations_within(jaxpr):
        if bodies(equation.params):
            yield from variables(equation.invars)


def _relative(expected: Any, actual: Any) -> float:
    """Return the root mean square of the difference of two arrays, in units of that of the first.

    It is infinite if one is infinite or NaN where the other is not; integers and booleans do not count.
    """
    if not jnp.issubdtype(expected.dtype, np.inexact) or not expected.size:
        return 0.0
    wide = np.complex128 if jnp.issubdtype(expected.dtype, np.complexfloating) else np.float64
    one, other = np.asarray(expected).astype(wide), np.asarray(actual).astype(wide)
    finite = np.isfinite(one) & np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return float("inf")  # an overflow, for example
    one, other = one[finite], other[finite]
    error, size = (float(np.sqrt(np.mean(np.abs(x) ** 2))) if x.size else 0.0 for x in (other - one, one))
    return error / size if size else error
