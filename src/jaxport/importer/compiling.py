"""Calls of a program: compiled as a whole, once for each set of shapes, where `jax.jit` can trace it.

Operator by operator, each operator is compiled by itself when it first meets a shape: of a model of thousands that takes
longer than to compile all of it at once, and runs slower. A program whose shapes depend on data, or that has strings, can
only be run so; which programs these are turns out when they are traced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxport.blocks import current_recorder
from jaxport.errors import JaxportError, ModelError
from jaxport.importer.dtypes import STRING
from jaxport.importer.evaluate import LARGE, observed
from jaxport.importer.host import HostValue
from jaxport.importer.recording import Recorded, active, map_leaves

__all__ = ["Calls"]

MOST_KEPT = 64
"""Sets of shapes that stay compiled; of more, the one that was used least recently is dropped."""

MOST_VALUES = 8
"""For how many values of the inputs that decide shapes a program is compiled. Of an input that is another each time it
would be compiled each time.
"""

MOST_EQUATIONS = 50_000
"""Equations that are compiled: what has more was unrolled, and compiling takes longer the longer it is."""

Evaluate = Callable[[Mapping[str, Any], Mapping[str, Any], Any], tuple[Any, ...]]


@dataclass(frozen=True)
class _Slot:
    """Where an array stands in the outputs."""

    index: int


@dataclass
class _Call:
    """How a program is run for one set of shapes: compiled, or operator by operator, and why."""

    function: Any = None
    outputs: tuple[Any, ...] = ()
    why: str = ""


class Calls:
    """The calls of one program.

    Args:
      evaluate: the program, as a function of parameters, inputs by name, and a random key.
      static: the names of the inputs whose values decide shapes.

    >>> calls = Calls(lambda params, inputs, rng: (params["w"] * inputs["x"],), ())
    >>> calls({"w": jnp.ones(2)}, {"x": jnp.ones(2)}, None)
    (Array([1., 1.], dtype=float32),)
    >>> print(calls)
    compiled for 1 set of shapes
    """

    def __init__(self, evaluate: Evaluate, static: Sequence[str]):
        self.evaluate, self.static = evaluate, frozenset(static)
        self._kept: OrderedDict[Any, _Call] = OrderedDict()

    def __call__(self, params: Mapping[str, Any], inputs: Mapping[str, Any], rng: Any) -> tuple[Any, ...]:
        """The outputs, as the program has them.

        Args:
          params: the parameters.
          inputs: as the evaluator takes them: arrays, host values, lists of such for sequences, None.
          rng: a random key, or None.
        """
        if self._is_part_of_something(params, inputs, rng) or not _has_arrays_only(inputs):
            return self.evaluate(params, inputs, rng)
        known, traced = self._divided(inputs)
        shapes = _shapes((params, traced, rng))
        values = tuple((name, value.data.tobytes(), value.shape, str(value.dtype)) for name, value in known.items())
        call = self._kept.get((shapes, values))
        if call is None:
            return self._first(params, inputs, rng, (known, traced), (shapes, values))
        self._kept.move_to_end((shapes, values))
        if call.function is None:
            return self.evaluate(params, inputs, rng)
        return _filled(call.outputs, call.function(params, traced, rng))

    def _first(
        self,
        params: Mapping[str, Any],
        inputs: Mapping[str, Any],
        rng: Any,
        divided: tuple[dict[str, HostValue], dict[str, Any]],
        key: Any,
    ) -> tuple[Any, ...]:
        """The outputs of the first call for a set of shapes, which decides how the next ones are run."""
        call, (known, traced) = _Call(), divided

        def whole(params: Mapping[str, Any], traced: Mapping[str, Any], rng: Any) -> list[Any]:
            outputs = self.evaluate(params, {**known, **traced}, rng)
            call.outputs, arrays = _emptied(outputs)
            return arrays

        variants = sum(shapes == key[0] for shapes, _ in self._kept)
        if known and variants >= MOST_VALUES:
            names = ", ".join(f"`{name}`" for name in known)
            call.why = f"shapes depend on the values of {names}, which are others each time"
        else:
            function = jax.jit(whole)
            try:
                call.why = _too_large(function.trace(params, traced, rng).jaxpr)
                if not call.why:
                    arrays = function(params, traced, rng)
                    call.function = function
                    self._keep(key, call)
                    return _filled(call.outputs, arrays)
            except (JaxportError, jax.errors.JaxRuntimeError, NotImplementedError) as error:
                call.why = _reason(error)
        outputs = self.evaluate(params, inputs, rng)  # what is wrong with the inputs is said here
        self._keep(key, call)
        return outputs

    def _keep(self, key: Any, call: _Call) -> None:
        self._kept[key] = call
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def _is_part_of_something(self, params: Any, inputs: Any, rng: Any) -> bool:
        """Whether somebody else traces, records or observes the program, or wants nothing compiled."""
        if active() is not None or current_recorder() is not None or observed() or jax.config.jax_disable_jit:
            return True
        leaves = jax.tree.leaves((params, dict(inputs), rng))
        # Under a trace, what is computed from known arrays is traced, too.
        return any(isinstance(leaf, jax.core.Tracer | Recorded) for leaf in (*leaves, jnp.zeros(())))

    def _divided(self, inputs: Mapping[str, Any]) -> tuple[dict[str, HostValue], dict[str, Any]]:
        """The inputs whose values have to be known, and those that are traced."""
        known: dict[str, HostValue] = {}
        traced: dict[str, Any] = {}
        for name, value in inputs.items():
            if name in self.static and isinstance(value, HostValue | jax.Array):
                known[name] = value if isinstance(value, HostValue) else HostValue(np.asarray(value))
            else:
                try:
                    traced[name] = map_leaves(_array, value)
                except ModelError:  # an integer that fits on the host only
                    known[name] = value
        return known, traced

    def __str__(self) -> str:
        compiled = sum(call.function is not None for call in self._kept.values())
        reasons = list(dict.fromkeys(call.why for call in self._kept.values() if call.function is None))
        parts = [f"compiled for {compiled} set{'s' if compiled > 1 else ''} of shapes"] * bool(compiled)
        parts += [f"operator by operator: {why}" for why in reasons]
        return "; ".join(parts) or "none yet"


def _has_arrays_only(inputs: Mapping[str, Any]) -> bool:
    """Whether all inputs are such that JAX can trace: no strings, no maps, nothing unknown."""
    if any(isinstance(value, Mapping) for value in inputs.values()):
        return False
    leaves = jax.tree.leaves(dict(inputs))
    return all(isinstance(leaf, jax.Array) or (isinstance(leaf, HostValue) and leaf.dtype != STRING) for leaf in leaves)


def _array(leaf: Any) -> Any:
    return jnp.asarray(leaf.to_jax()) if isinstance(leaf, HostValue) else leaf


def _shapes(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves), bool(jax.config.read("jax_enable_x64"))


def _emptied(outputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
    """The outputs with a slot for each array, and the arrays."""
    arrays: list[Any] = []

    def empty(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf  # it is known
        arrays.append(leaf)
        return _Slot(len(arrays) - 1)

    return tuple(map_leaves(empty, output) for output in outputs), arrays


def _filled(outputs: tuple[Any, ...], arrays: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        map_leaves(lambda leaf: arrays[leaf.index] if isinstance(leaf, _Slot) else leaf, output) for output in outputs
    )


def _too_large(jaxpr: Any) -> str:
    """Why a program had better not be compiled, if so.

    XLA ends the process when it has no memory for an array: one by one, each is asked for when it is made.
    """
    count = 0
    for equation in _equations(jaxpr.jaxpr):
        count += 1
        if count > MOST_EQUATIONS:
            return f"unrolled it has more than {MOST_EQUATIONS} steps"
        sizes = [getattr(variable.aval, "size", 0) for variable in equation.outvars]
        if any(size > LARGE for size in sizes):
            return f"it has arrays of more than {LARGE} elements"
    return ""


def _equations(jaxpr: Any) -> Iterator[Any]:
    pending = [jaxpr]
    while pending:
        inner = pending.pop()
        yield from inner.eqns
        for equation in inner.eqns:
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
                body = getattr(value, "jaxpr", value)
                if hasattr(body, "eqns"):
                    pending.append(body)


def _reason(error: Exception) -> str:
    """One line of why it cannot be traced: what is refused, and where."""
    refusals = getattr(error, "refusals", ())
    first = str(error).partition("\n")[0]
    return f"{first} ({refusals[0].where})" if refusals and refusals[0].where else first
