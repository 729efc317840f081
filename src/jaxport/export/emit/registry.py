"""The registry of rules: how one primitive, or one block target, becomes ONNX.

A registry is a dict and a decorator. A rule is a function of an emitter, the operands in the order of the primitive,
and the primitive's parameters as keywords; it returns the value, or the values, of the equation.

>>> @rule("my_double")
... def my_double(op, x):
...     return op.Mul(x, 2)
>>> RULES["my_double"].name
'my_double'
>>> del RULES["my_double"]
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import Any

from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Parameters, PythonFunction
from jaxport.jaxprs.releases import changes_nothing

#: Parameters that are hints, whatever the primitive: how a value is laid out over devices, and how many of its last
#: bits the compiler may trade for speed.
HINTS = frozenset({"sharding", "out_sharding", "accuracy"})


@dataclass(frozen=True)
class Rule:
    """How one primitive or block target becomes ONNX.

    Attributes:
      name: the primitive's name, or the block's target.
      function: called as `function(op, *operands, **parameters)`.
      via: whether `function` is a JAX function, called as `function(*operands, **parameters)`.
      defaults: accepted values of parameters that the function does not name, in addition to JAX's own defaults.
      irrelevant: parameters that never affect the value (a name, a hint to the compiler).
      broadcasts: whether operands may be passed with a deferred broadcast (`Value.broadcast`), since the operators that
        the rule emits broadcast by themselves, or it only passes operands on.
    """

    name: str
    function: PythonFunction
    via: bool = False
    defaults: Parameters = field(default_factory=dict)
    irrelevant: frozenset[str] = frozenset()
    broadcasts: bool = False

    @functools.cached_property
    def _named(self) -> frozenset[str] | None:
        """The parameters that the function names; None if it takes any."""
        parameters = inspect.signature(self.function).parameters.values()
        named = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        return None if any(p.kind is p.VAR_KEYWORD for p in parameters) else named

    def arguments(self, parameters: Parameters) -> tuple[dict[str, Any], list[str]]:
        """Return the parameters that the function takes, and the names of those that must be refused."""
        taken, refused = {}, []
        for name, value in parameters.items():
            if self._named is None or name in self._named:
                taken[name] = value
            elif name not in self.irrelevant and name not in HINTS and not self._is_default(name, value):
                refused.append(name)
        return taken, refused

    def _is_default(self, name: str, value: object) -> bool:
        if name in self.defaults:
            return value is self.defaults[name] or value == self.defaults[name]
        return changes_nothing(self.name, name, value)


RULES: dict[str, Rule] = {}
BLOCK_RULES: dict[str, Rule] = {}


def rule(
    primitive: str | None = None,
    *more: str,
    block: str | None = None,
    via: PythonFunction | None = None,
    defaults: Parameters | None = None,
    irrelevant: tuple[str, ...] = (),
    broadcasts: bool = False,
    replace: bool = False,
) -> PythonFunction:
    """Register a rule: how one or several primitives, or a block, become ONNX.

    Args:
      primitive: the name of the JAX primitive; `more` names others with the same rule.
      block: instead of a primitive, the qualified name of a function, method or module class, whose calls become
        blocks.
      via: a JAX function of the operands and parameters that serves as the rule.
      defaults: values of parameters that the rule need not name. Any other parameter that it does not name is refused
        unless it is None or has the default of JAX's public function of that name.
      irrelevant: parameters that never affect the value.
      broadcasts: whether operands may be passed with a deferred broadcast; the broadcast of the result is then deferred
        as well.
      replace: whether to replace an existing rule.

    Returns:
      A decorator, or the JAX function if `via` is given.

    Raises:
      InvalidArgument: a rule of that name exists, or neither a primitive nor a block is named.

    >>> from jaxport import rule
    >>> from jaxport.export.emit.registry import RULES
    >>> import jax.numpy as jnp
    >>> via = rule("my_hypot", via=lambda x, y: jnp.sqrt(x * x + y * y))
    >>> del RULES["my_hypot"]
    """
    names = [name for name in (primitive, *more) if name] or ([block] if block else [])
    registry = BLOCK_RULES if block else RULES
    if not names or (primitive and block):
        raise InvalidArgument(
            "a rule needs the name of a primitive or a block", where="`jaxport.rule`", instead='write `@rule("name")`'
        )

    def register(function: PythonFunction) -> PythonFunction:
        for name in names:
            if name in registry and not replace:
                raise InvalidArgument(
                    f"a rule for `{name}` already exists",
                    where=f"`{function.__module__}.{function.__qualname__}`",
                    why=f"`{registry[name].function.__module__}.{registry[name].function.__qualname__}` claims it",
                    instead="pass `replace=True`, or give the rule for one export in `to_onnx(rules=...)`",
                )
            registry[name] = Rule(name, function, via is not None, defaults or {}, frozenset(irrelevant), broadcasts)
        return function

    return register if via is None else register(via)


def renamed(**rows: str) -> None:
    """Register elementwise primitives that are one ONNX operator under another name, with the operands in order."""
    for primitive, op_type in rows.items():
        rule(primitive, broadcasts=True)(_emits(op_type))


def _emits(op_type: str) -> PythonFunction:
    emits: PythonFunction = lambda op, *operands: op.emit(op_type, *operands)
    emits.__qualname__ = f"renamed to {op_type}"
    return emits
