"""Calls of a program: compiled as a whole, once for each set of shapes, if `jax.jit` can trace it.

Run operator by operator, each operator is compiled separately for each new shape: for a model of thousands of operators
that takes longer than compiling it as a whole, and runs slower. A program whose shapes depend on data, or that has
strings, can only be run that way; tracing it shows whether it is one.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxport.blocks import current_recorder
from jaxport.errors import JaxportError, ModelError, ValueNotKnown
from jaxport.importer.running.evaluate import LARGE, observed
from jaxport.importer.values.dtypes import STRING
from jaxport.importer.values.host import HostValue, Key, RuntimeValue
from jaxport.importer.values.recording import Recorded, active, map_leaves
from jaxport.jaxprs import PythonFunction
from jaxport.jaxprs.meshes import explicit_mesh, of_no_mesh, run_on_mesh, without_explicit_axes
from jaxport.jaxprs.walk import equations_run
from jaxport.printable import printable_lines

__all__ = ["Calls"]

MOST_KEPT = 64
"""The number of sets of shapes that stay compiled; beyond it, the least recently used one is dropped."""

MOST_VALUES = 8
"""The number of values of shape-deciding inputs for which a program is compiled.

An input that differs each time would be compiled each time.
"""

MOST_EQUATIONS = 50_000
"""The largest number of equations to compile: a longer program was unrolled, and compile time grows with length."""

MOST_CONSTANT = 2**28
"""The bytes of weights that a caller's program may hold as constants without a warning: XLA copies them several times."""

Evaluate = Callable[[Mapping[str, RuntimeValue], Mapping[str, RuntimeValue], Key | None], tuple[RuntimeValue, ...]]


@dataclass(frozen=True)
class _Slot:
    """The place of an array in the outputs."""

    index: int


@dataclass
class _Call:
    """How a program runs for one set of shapes: compiled, or operator by operator, and why."""

    function: PythonFunction | None = None
    outputs: tuple[RuntimeValue, ...] = ()
    why: str = ""


class Calls:
    """The calls of one program.

    Args:
      evaluate: the program, as a function of parameters, inputs by name, and a random key.
      static: the names of the inputs whose values decide shapes.
      deciding: the names of those that decide which branches run: they become static if not all branches can be traced,
        as with shapes of inputs that only fit one of them.

    >>> calls = Calls(lambda params, inputs, rng: (params["w"] * inputs["x"],), ())
    >>> calls({"w": jnp.ones(2)}, {"x": jnp.ones(2)}, None)
    (Array([1., 1.], dtype=float32),)
    >>> print(calls)
    compiled for 1 set of shapes
    """

    def __init__(self, evaluate: Evaluate, static: Sequence[str], deciding: Sequence[str] = ()):
        self.evaluate, self.static, self.deciding = _on_meshes(evaluate), frozenset(static), frozenset(deciding)
        self._kept: OrderedDict[RuntimeValue, _Call] = OrderedDict()
        self._warned = False

    def __call__(
        self, params: Mapping[str, RuntimeValue], inputs: Mapping[str, RuntimeValue], rng: Key | None
    ) -> tuple[RuntimeValue, ...]:
        """Return the outputs of the program.

        Args:
          params: the parameters.
          inputs: the inputs in the evaluator's form: arrays, host values, lists of these for sequences, None.
          rng: a random key, or None.
        """
        if self._is_part_of_something(params, inputs, rng) or not _has_arrays_only(inputs):
            self._warn_of_constants(params)
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
        params: Mapping[str, RuntimeValue],
        inputs: Mapping[str, RuntimeValue],
        rng: Key | None,
        divided: tuple[dict[str, HostValue], dict[str, RuntimeValue]],
        key: RuntimeValue,
    ) -> tuple[RuntimeValue, ...]:
        """Run the first call for a set of shapes, which decides how later ones run; return the outputs."""
        call, (known, traced) = _Call(), divided

        def whole(
            params: Mapping[str, RuntimeValue], traced: Mapping[str, RuntimeValue], rng: Key | None
        ) -> list[RuntimeValue]:
            outputs = self.evaluate(params, {**known, **traced}, rng)
            call.outputs, arrays = _emptied(outputs)
            return arrays

        variants = sum(shapes == key[0] for shapes, _ in self._kept)
        if known and variants >= MOST_VALUES:
            names = ", ".join(f"`{name}`" for name in known)
            call.why = f"shapes or branches depend on the values of {names}, which are others each time"
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
                if isinstance(error, ValueNotKnown) and not self.deciding <= self.static:
                    self.static |= self.deciding
                    return self(params, inputs, rng)
        outputs = self.evaluate(params, inputs, rng)  # it reports what is wrong with the inputs
        self._keep(key, call)
        return outputs

    def _keep(self, key: Hashable, call: _Call) -> None:
        self._kept[key] = call
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def _is_part_of_something(self, params: RuntimeValue, inputs: RuntimeValue, rng: Key | None) -> bool:
        """Whether a caller traces, records or observes the program, or disabled compilation."""
        if active() is not None or current_recorder() is not None or observed() or _nothing_is_compiled():
            return True
        leaves = jax.tree.leaves((params, dict(inputs), rng))
        # Under a trace, functions of known arrays are traced, too.
        return any(isinstance(leaf, jax.core.Tracer | Recorded) for leaf in (*leaves, jnp.zeros(())))

    def _warn_of_constants(self, params: Mapping[str, RuntimeValue]) -> None:
        """Warn once if large weights become constants of the program that a caller has JAX trace."""
        # Under a trace, even a new array is traced; one that we record becomes no program of XLA.
        if self._warned or active() is not None or current_recorder() is not None:
            return
        if not isinstance(jnp.zeros(()), jax.core.Tracer):
            return
        leaves = jax.tree.leaves(dict(params))
        size = sum(
            leaf.nbytes for leaf in leaves if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
        )
        if size > MOST_CONSTANT:
            self._warned = True
            warnings.warn(
                f"{size / 1e9:.1f} GB of weights become constants of a jitted program, which XLA copies while it compiles; call "
                "`program(x)` without `jax.jit`, which compiles it with its weights as arguments, or pass them: "
                "`jax.jit(program.apply)(program.params, x)`",
                stacklevel=4,
            )

    def _divided(self, inputs: Mapping[str, RuntimeValue]) -> tuple[dict[str, HostValue], dict[str, RuntimeValue]]:
        """Return the inputs whose values have to be known, and those that are traced."""
        known: dict[str, HostValue] = {}
        traced: dict[str, RuntimeValue] = {}
        for name, value in inputs.items():
            if name in self.static and isinstance(value, HostValue | jax.Array):
                known[name] = value if isinstance(value, HostValue) else HostValue(np.asarray(value))
            else:
                try:
                    traced[name] = map_leaves(_array, value)
                except ModelError:  # an integer that only fits on the host
                    known[name] = value
        return known, traced

    def __str__(self) -> str:
        compiled = sum(call.function is not None for call in self._kept.values())
        reasons = list(dict.fromkeys(call.why for call in self._kept.values() if call.function is None))
        parts = [f"compiled for {compiled} set{'s' if compiled > 1 else ''} of shapes"] * bool(compiled)
        parts += [f"operator by operator: {why}" for why in reasons]
        return printable_lines("; ".join(parts)) or "none yet"


def _on_meshes(evaluate: Evaluate) -> Evaluate:
    """Return the program as a function of arrays on meshes of any kind: its operations name no axes."""

    def run(
        params: Mapping[str, RuntimeValue], inputs: Mapping[str, RuntimeValue], rng: Key | None
    ) -> tuple[RuntimeValue, ...]:
        recorder = current_recorder()
        if recorder is not None:
            params = dict(zip(params, recorder.of_automatic_axes(params.values()), strict=True))
        leaves, tree = jax.tree.flatten((dict(params), dict(inputs), rng))
        places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        if explicit_mesh(jax.typeof(leaves[index]) for index in places) is None:
            return evaluate(params, inputs, rng)
        outputs: tuple[RuntimeValue, ...] = ()

        def whole(arrays: Sequence[jax.Array]) -> list[RuntimeValue]:
            nonlocal outputs
            given = dict(zip(places, arrays, strict=True))
            full = [given.get(index, leaf) for index, leaf in enumerate(leaves)]
            outputs, results = _emptied(evaluate(*jax.tree.unflatten(tree, full)))
            return results

        with without_explicit_axes():
            program = jax.make_jaxpr(whole)([of_no_mesh(leaves[index]) for index in places])
        weights = sum(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(dict(params)))
        return _filled(outputs, run_on_mesh(program, [leaves[index] for index in places], weights))

    return run


def _nothing_is_compiled() -> bool:
    """Whether `jax.disable_jit` is in force."""
    return bool(jax.config.jax_disable_jit)  # pyright: ignore[reportAttributeAccessIssue]


def _has_arrays_only(inputs: Mapping[str, RuntimeValue]) -> bool:
    """Whether JAX can trace all inputs: no strings, no maps, nothing unknown."""
    if any(isinstance(value, Mapping) for value in inputs.values()):
        return False
    leaves = jax.tree.leaves(dict(inputs))
    return all(isinstance(leaf, jax.Array) or (isinstance(leaf, HostValue) and leaf.dtype != STRING) for leaf in leaves)


def _array(leaf: RuntimeValue) -> RuntimeValue:
    return jnp.asarray(leaf.to_jax()) if isinstance(leaf, HostValue) else leaf


def _shapes(tree: RuntimeValue) -> RuntimeValue:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves), bool(jax.config.read("jax_enable_x64"))


def _emptied(outputs: tuple[RuntimeValue, ...]) -> tuple[tuple[RuntimeValue, ...], list[RuntimeValue]]:
    """Return the outputs with a slot for each array, and the arrays."""
    arrays: list[RuntimeValue] = []

    def empty(leaf: RuntimeValue) -> RuntimeValue:
        if not isinstance(leaf, jax.Array):
            return leaf  # a known value
        arrays.append(leaf)
        return _Slot(len(arrays) - 1)

    return tuple(map_leaves(empty, output) for output in outputs), arrays


def _filled(outputs: tuple[RuntimeValue, ...], arrays: Sequence[RuntimeValue]) -> tuple[RuntimeValue, ...]:
    return tuple(
        map_leaves(lambda leaf: arrays[leaf.index] if isinstance(leaf, _Slot) else leaf, output) for output in outputs
    )


def _too_large(jaxpr: Any) -> str:
    """Return why a program should not be compiled, or an empty text.

    XLA aborts the process if it has no memory for an array; operator by operator, each array is checked before it is
    made.
    """
    for count, equation in enumerate(equations_run(jaxpr.jaxpr), 1):
        if count > MOST_EQUATIONS:
            return f"unrolled it has more than {MOST_EQUATIONS} steps"
        sizes = [getattr(variable.aval, "size", 0) for variable in equation.outvars]
        if any(size > LARGE for size in sizes):
            return f"it has arrays of more than {LARGE} elements"
    return ""


def _reason(error: Exception) -> str:
    """Return one line on why the program cannot be traced: what is refused, and where."""
    refusals = getattr(error, "refusals", ())
    first = str(error).partition("\n")[0]
    return f"{first} ({refusals[0].where})" if refusals and refusals[0].where else first
