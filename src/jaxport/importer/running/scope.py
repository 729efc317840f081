"""The values of a graph while it is evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from jaxport.errors import RuleError
from jaxport.importer.resolving.graph import Body, describe
from jaxport.importer.segments import Item
from jaxport.importer.values.host import Key, RuntimeValue
from jaxport.importer.values.image_layout import PLACES
from jaxport.importer.values.namespaces import jnp
from jaxport.jaxprs import Parameters


class EvaluationScope:
    """The values of one body while it is evaluated, nested in those of the bodies around it.

    `values` has them in the model's own order of axes, `last` has images with their channels last; a value is in one of
    them or in both. `bodies` has the items to evaluate for a body: its nodes, with those of modules between markers.
    """

    __slots__ = ("attributes", "bodies", "key", "last", "parent", "values")

    def __init__(
        self,
        values: dict[ir.Value, RuntimeValue],
        attributes: Parameters,
        key: Key | None,
        parent: EvaluationScope | None = None,
        bodies: Mapping[Body, Sequence[Item]] | None = None,
    ):
        self.values, self.attributes, self.key, self.parent = values, attributes, key, parent
        self.last: dict[ir.Value, RuntimeValue] = {}
        self.bodies = bodies or {}

    def inner(
        self, values: dict[ir.Value, RuntimeValue] | None = None, bodies: Mapping[Body, Sequence[Item]] | None = None
    ) -> EvaluationScope:
        """Return a scope inside this one, which sees its values."""
        return EvaluationScope({} if values is None else values, self.attributes, self.key, self, bodies)

    def held(self, value: ir.Value) -> RuntimeValue:
        """Return the value with its channels last, if it is held so."""
        scope: EvaluationScope | None = self
        while scope is not None:
            if value in scope.last:
                return scope.last[value]
            scope = scope.parent
        return None

    def __getitem__(self, value: ir.Value) -> RuntimeValue:
        """Return the value in the model's order."""
        scope: EvaluationScope | None = self
        while scope is not None:
            if value in scope.values:
                return scope.values[value]
            if value in scope.last:
                # Kept in this scope rather than in the owner's: a loop's body must not leak its trace outside.
                plain = self.values[value] = jnp.transpose(scope.last[value], PLACES)
                return plain
            scope = scope.parent
        maker = value.producer()
        raise RuleError(
            f"nothing was computed for `{value.name}`",
            where=describe(maker) if maker is not None else "",
            why="the function of the operator returns fewer results than the node has outputs",
            instead="return a tuple of one result for each output",
        )

    def forget(self, value: ir.Value) -> None:
        """Release a value that nothing uses any more."""
        self.values.pop(value, None)
        self.last.pop(value, None)

    def update(self, other: EvaluationScope) -> None:
        """Take over the values of an inner scope."""
        self.values.update(other.values)
        self.last.update(other.last)
