"""Names for the values of a module, used again once nothing reads the value that they had: `x = self.norm(x)`.

Before and after:

    value = self.norm(x)                  x = self.norm(x)
    value_1 = self.dense(value)    →      x = self.dense(x)
    return value_1                        return x
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from jaxport.codegen.rewriting.producers import number as number_of
from jaxport.codegen.rewriting.steps import leaves
from jaxport.codegen.structure.spelling.rewritten import MOVING, ROLES
from jaxport.codegen.tree import Call, Layer, Module
from jaxport.codegen.writing.fields import Fields, key_of
from jaxport.codegen.writing.naming.scope import Expression, ValueNames, default_name
from jaxport.codegen.writing.naming.values import Readers, description, role_of
from jaxport.codegen.writing.statements import KEPT, lowered, names_of_parts
from jaxport.importer.names import identifier, unique
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Function, Step, Variable


@dataclass
class ModuleNames(ValueNames[Expression]):
    """Names the values of one module.

    Steps are numbered as they are printed. `last` says which step reads a value for the last time, and `busy` the same
    of the value that a name holds: a name is free once that number is not larger than `now`. Names of arguments that
    stay, and of results, are busy for good (`math.inf`); so is each name in a nested function, whose `depth` is not 0.

    Attributes:
      fields: the names of the module's parts.
      called: the names of the results of layers.
      started: the values that loops begin with.
      readers: the steps that read each value.
      makers: the steps that make each value.
      returned: the names that the results have in the modules that are called.
      given: the names that values have been given so far.
      busy: when nothing reads any more what each name holds, as a number of a step.
      last: the last step that reads each value.
      now: the step that is printed.
      depth: how many functions are around it.
    """

    fields: Fields = field(default_factory=Fields)
    called: dict[Variable, str] = field(default_factory=dict)
    started: set[Variable] = field(default_factory=set)
    readers: Readers = field(default_factory=dict)
    makers: dict[Variable, Step] = field(default_factory=dict)
    returned: Mapping[Module, tuple[str, ...]] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    busy: dict[str, float] = field(default_factory=dict)
    last: dict[Variable, float] = field(default_factory=dict)
    now: float = -1
    depth: int = 0

    def bind(self, variable: Variable, default: str = "x") -> str:
        """Return a name for a variable; of the module's own values it may be one that is free again."""
        if self.depth:
            chosen = self.fresh(identifier(default, "x"))
        else:
            chosen = self.free(default)
            self.busy[chosen] = self.last.get(variable, self.now)
        self.expressions[variable] = self.named(chosen)
        return chosen

    def free(self, wanted: str) -> str:
        """Return a name that no value has, or that nothing reads any more."""
        occupied = {used for used in self.taken if self.busy.get(used, math.inf) > self.now}
        chosen = unique(wanted, occupied)
        self.taken.add(chosen)
        self.given.add(chosen)
        return chosen

    def keep(self, names: Iterable[str], until: float) -> None:
        """Let names of values be busy until a step at least."""
        for one in names:
            if one in self.busy:
                self.busy[one] = max(self.busy[one], until)

    def of_round(self, expressions: dict[Variable | Function, Expression]) -> ModuleNames[Expression]:
        """Return the names in a round of a loop, where these expressions stand for values."""
        return replace(self, expressions=expressions, called={}, busy={}, last={}, started=set())

    @contextmanager
    def nested(self) -> Iterator[None]:
        """While names are those of a nested function: its names are its own for good."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def names_of(self, step: Step) -> str | Sequence[str]:
        """Return a name for the result of a step, or one for each of its results."""
        default = self._default(step)
        if step.name == "jnp.split":
            return self._parts(step)
        module = step.node.module if isinstance(step.node, Call) else None
        own = self.returned.get(module, ()) if module is not None else ()
        is_told = isinstance(step.outputs, tuple) and len(own) == len(step.outputs) and default != "x"
        return [one or default for one in own] if is_told else default

    def _parts(self, step: Step) -> list[str]:
        """Return names for the parts of a value: those in the name of the layer `qkv`, or what the parts are read
        for.
        """
        told = names_of_parts(self.called.get(step.args[0], ""), len(step.outputs))
        roles = [role_of(part, self.readers) or name for part, name in zip(step.outputs, told, strict=True)]
        return roles if {*told} == {"part"} else told

    def default(self, step: Step) -> str:
        """Return a name that is not that of an operator: `x`, or what the value is if `x` is another one."""
        return (
            chosen
            if (chosen := default_name(step)) in KEPT
            else self.unless_free(description(step, self.readers, self.makers))
        )

    def unless_free(self, wanted: str) -> str:
        """Return a name for where `x` is a value that is still read; else `x`."""
        is_free = self.busy.get("x", math.inf) <= self.now and not self.depth
        return wanted if "x" in self.taken and not is_free else "x"

    def _default(self, step: Step) -> str:
        """Return a name for a result: that of the layer that makes it, or `x`."""
        if any(variable in self.started for variable in leaves(step.outputs)):
            return self.unless_free("hidden")
        if isinstance(step.node, Layer | Call):
            part = step.node if isinstance(step.node, Layer) else step.node.module
            place = self.fields.paths[key_of(part)]
            names = [part for part in place if isinstance(part, str)]
            chosen = lowered(names[-1]) if len(names) == len(place) else self.unless_free("hidden")
            for variable in leaves(step.outputs):
                self.called[variable] = chosen
            return chosen
        if isinstance(step.outputs, Variable) and step.outputs.hint in ROLES:
            return step.outputs.hint
        if step.name == "jnp.broadcast_to" and isinstance(step.args[0], HostValue) and number_of(step.args[0]) == 0:
            return "zeros"
        source = step.args[0] if step.name in MOVING and step.args else None
        if isinstance(source, Variable) and isinstance(step.outputs, Variable) and source in self.called:
            self.called[step.outputs] = self.called[source]
            return self.called[source]
        if not isinstance(step.outputs, Variable):
            return self.default(step)
        is_mask = step.outputs.dtype == np.bool_ and len(step.outputs.shape) > 1
        return role_of(step.outputs, self.readers) or ("mask" if is_mask else self.default(step))
