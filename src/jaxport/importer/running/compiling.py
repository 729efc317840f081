"""Calls of a program: compiled as a whole, once for each set of shapes, if `jax.jit` can trace it.

Run operator by operator, each operator is compiled separately for each new shape: for a model of thousands of operators
that takes longer than compiling it as a whole, and runs slower. A program whose shapes depend on data, or that has
strings, can only be run that way; tracing it shows whether it is one.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxport.blocks.marking.window import current_recorder
from jaxport.errors import JaxportError, ModelError, ValueNotKnown
from jaxport.importer.running.evaluate import LARGE, observed
from jaxport.importer.values.dtypes import STRING
from jaxport.importer.values.host import HostValue, Key, RuntimeValue, Tensor
from jaxport.importer.values.recording import Recorded, active, map_leaves
from jaxport.jaxprs import Array, PythonFunction
from jaxport.jaxprs.meshes import explicit_mesh, of_no_mesh, run_on_mesh, without_explicit_axes
from jaxport.jaxprs.releases import is_outside_traces
from jaxport.jaxprs.walk import equations_run
from jaxport.printable import printable_lines

MOST_KEPT = 64
"""The number of sets of shapes that stay compiled; beyond it, the least recently used one is dropped."""

MOST_VALUES = 8
"""The number of values of shape-deciding inputs for which a program is compiled.

An input that differs each time would be compiled each time.
"""

MOST_EQUATIONS = 50_000
"""The largest number of equations to compile: a longer program was unrolled, and compile time grows with length."""

MOST_IN_A_ROW = 3_000
"""The largest number of equations between two of `FENCES` to compile: XLA may fuse them into one function, in time that
grows with the square of its length, and can end the process where it is very long.
"""

FENCES = frozenset({"dot_general", "conv_general_dilated", "scan", "while", "cond", "sort"})
"""The operations that XLA fuses with nothing but what is beside them."""

MOST_CONSTANT = 2**28
"""The bytes of weights that a caller's program may hold as constants without a warning: XLA copies them several times.
"""

Evaluate = Callable[[Mapping[str, "Array | Tensor"], Mapping[str, RuntimeValue], Key | None], tuple[RuntimeValue, ...]]


_Key = tuple[Hashable, Hashable]
"""What decides how a program runs: the shapes of what is traced, and the values that are known."""


@dataclass(frozen=True)
class _Slot:
    """The place of an array in the outputs."""

    index: int


@dataclass
class _Call:
    """How a program runs for one set of shapes: compiled, or operator by operator, and why.

    Attributes:
      function: the compiled program, a function of the leaves of parameters, inputs and random key.
      outputs: the outputs, with a slot for each array that the function returns.
      why: why it runs operator by operator.
    """

    function: PythonFunction | None = None
    outputs: tuple[object, ...] = ()
    why: str = ""

    @property
    def returns_outputs(self) -> bool:
        """Whether the arrays that the function returns are the outputs."""
        return self.outputs == tuple(_Slot(index) for index in range(len(self.outputs)))


@dataclass(frozen=True, eq=False)
class _Repeat:
    """A compiled program with its own parameters, for arguments of certain types.

    Attributes:
      function: the compiled program.
      parameters: the leaves of its parameters.
      order: the arguments in the order in which the function takes them.
    """

    function: PythonFunction
    parameters: tuple[jax.Array, ...]
    order: tuple[int, ...]


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
        self._kept: OrderedDict[_Key, _Call] = OrderedDict()
        self._warned = False
        self._repeats: dict[Hashable, _Repeat] = {}

    def again(self, arguments: Sequence[object], named: Iterable[str]) -> Sequence[jax.Array] | None:
        """Return the outputs for the program's own parameters, if `__call__` remembers arguments of these types.

        What such a call checks and converts depends on the types of the arguments alone, and was done before.

        Args:
          arguments: the inputs as the caller gives them.
          named: the names of the last ones, which are given by name.
        """
        if not self._repeats or _is_observed() or not is_outside_traces():
            return None
        repeat = self._repeats.get(_key_of(arguments, named))
        if repeat is None:
            return None
        return repeat.function(*repeat.parameters, *[arguments[index] for index in repeat.order])

    def __call__(
        self,
        params: Mapping[str, Array | Tensor],
        inputs: Mapping[str, RuntimeValue],
        rng: Key | None,
        given: Mapping[str, object] | None = None,
        named: Iterable[str] = (),
    ) -> tuple[RuntimeValue, ...]:
        """Return the outputs of the program.

        Args:
          params: the parameters.
          inputs: the inputs in the evaluator's form: arrays, host values, lists of these for sequences, None.
          rng: a random key, or None.
          given: the inputs as the caller gave them, if `params` are the program's own: their types are remembered for
            `again`, if nothing else decides what runs.
          named: the names of the last ones of `given`, which were given by name.
        """
        if self._is_part_of_something(params, inputs, rng) or not _has_arrays_only(inputs):
            self._warn_of_constants(params)
            return self.evaluate(params, inputs, rng)
        known, traced = self._divided(inputs)
        leaves, structure = jax.tree.flatten((params, traced, rng))
        shapes = structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves), _is_wide()
        values = tuple((name, value.data.tobytes(), value.shape, str(value.dtype)) for name, value in known.items())
        call = self._kept.get((shapes, values))
        if call is None:
            return self._first(params, inputs, rng, (known, traced), (shapes, values))
        self._kept.move_to_end((shapes, values))
        if call.function is None:
            return self.evaluate(params, inputs, rng)
        # A random key and inputs that have to be known decide the result, and are not among the arguments of `again`.
        if given is not None and rng is None and not known and call.returns_outputs:
            self._remember(call.function, tuple(jax.tree.leaves(params)), traced, given, named)
        return _filled(call.outputs, call.function(*leaves))

    def _remember(
        self,
        function: PythonFunction,
        parameters: tuple[jax.Array, ...],
        traced: Mapping[str, RuntimeValue],
        given: Mapping[str, object],
        named: Iterable[str],
    ) -> None:
        """Let `again` answer calls with arguments of these types, if the compiled function can take them unchanged."""
        key, names = _key_of(list(given.values()), named), list(given)
        if key is not None and all(_is_taken_unchanged(value, traced[name]) for name, value in given.items()):
            order = sorted(range(len(names)), key=names.__getitem__)
            self._repeats[key] = _Repeat(function, parameters, tuple(order))

    def _first(
        self,
        params: Mapping[str, Array | Tensor],
        inputs: Mapping[str, RuntimeValue],
        rng: Key | None,
        divided: tuple[dict[str, HostValue], dict[str, RuntimeValue]],
        key: _Key,
    ) -> tuple[RuntimeValue, ...]:
        """Run the first call for a set of shapes, which decides how later ones run; return the outputs."""
        call, (known, traced) = _Call(), divided

        leaves, structure = jax.tree.flatten((params, traced, rng))

        def whole(*leaves: jax.Array) -> list[jax.Array]:
            params, traced, rng = jax.tree.unflatten(structure, leaves)
            call.outputs, arrays = _emptied(self.evaluate(params, {**known, **traced}, rng))
            return arrays

        variants = sum(shapes == key[0] for shapes, _ in self._kept)
        if known and variants >= MOST_VALUES:
            names = ", ".join(f"`{name}`" for name in known)
            call.why = f"shapes or branches depend on the values of {names}, which are others each time"
        else:
            function = jax.jit(whole)
            try:
                call.why = _too_large(function.trace(*leaves).jaxpr)
                if not call.why:
                    arrays = function(*leaves)
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

    def _keep(self, key: _Key, call: _Call) -> None:
        self._kept[key] = call
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
            self._repeats.clear()

    def _is_part_of_something(
        self, params: Mapping[str, Array | Tensor], inputs: Mapping[str, RuntimeValue], rng: Key | None
    ) -> bool:
        """Whether a caller traces, records or observes the program, or disabled compilation."""
        if _is_observed():
            return True
        # Under a trace, functions of known arrays are traced, too.
        probe = () if is_outside_traces() else (jnp.zeros(()),)
        leaves = jax.tree.leaves((params, dict(inputs), rng))
        return any(isinstance(leaf, jax.core.Tracer | Recorded) for leaf in (*leaves, *probe))

    def _warn_of_constants(self, params: Mapping[str, Array | Tensor]) -> None:
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
                f"{size / 1e9:.1f} GB of weights become constants of a jitted program, which XLA copies while it "
                "compiles; call "
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
                    if not isinstance(value, HostValue):
                        raise
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
        params: Mapping[str, Array | Tensor], inputs: Mapping[str, RuntimeValue], rng: Key | None
    ) -> tuple[RuntimeValue, ...]:
        recorder = current_recorder()
        if recorder is not None:
            params = dict(zip(params, recorder.of_automatic_axes(params.values()), strict=True))
        leaves, tree = jax.tree.flatten((dict(params), dict(inputs), rng))
        places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        if explicit_mesh(jax.typeof(leaves[index]) for index in places) is None:
            return evaluate(params, inputs, rng)
        outputs: tuple[object, ...] = ()

        def whole(arrays: Sequence[jax.Array]) -> list[jax.Array]:
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


def _is_observed() -> bool:
    """Whether the steps of a program are recorded or shown to somebody, or `jax.disable_jit` is in force."""
    disabled: bool = jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
    return disabled or active() is not None or current_recorder() is not None or observed()


def _is_wide() -> bool:
    """Whether 64-bit types are on."""
    return bool(jax.config.read("jax_enable_x64"))


def _key_of(arguments: Sequence[Any], named: Iterable[str]) -> Hashable:
    """Return what identifies calls with arguments of the same types; None if one is not an array."""
    try:
        types = tuple((type(argument), argument.shape, argument.dtype) for argument in arguments)
    except AttributeError:
        return None
    return types, tuple(named), _is_wide()


def _is_taken_unchanged(given: object, taken: object) -> bool:
    """Whether a compiled function can take an argument as the caller gives it, and not only what it is converted to."""
    return given is taken or (type(given) is np.ndarray and isinstance(taken, jax.Array) and given.dtype == taken.dtype)


def _has_arrays_only(inputs: Mapping[str, RuntimeValue]) -> bool:
    """Whether JAX can trace all inputs: no strings, no maps, nothing unknown."""
    if any(isinstance(value, Mapping) for value in inputs.values()):
        return False
    leaves = jax.tree.leaves(dict(inputs))
    return all(isinstance(leaf, jax.Array) or (isinstance(leaf, HostValue) and leaf.dtype != STRING) for leaf in leaves)


def _array(leaf: object) -> object:
    return jnp.asarray(leaf.to_jax()) if isinstance(leaf, HostValue) else leaf


def _emptied(outputs: tuple[RuntimeValue, ...]) -> tuple[tuple[object, ...], list[jax.Array]]:
    """Return the outputs with a slot for each array, and the arrays."""
    arrays: list[jax.Array] = []

    def empty(leaf: object) -> object:
        if not isinstance(leaf, jax.Array):
            return leaf  # a known value
        arrays.append(leaf)
        return _Slot(len(arrays) - 1)

    return tuple(map_leaves(empty, output) for output in outputs), arrays


def _filled(outputs: tuple[object, ...], arrays: Sequence[Array]) -> tuple[RuntimeValue, ...]:
    return tuple(
        map_leaves(lambda leaf: arrays[leaf.index] if isinstance(leaf, _Slot) else leaf, output) for output in outputs
    )


def _too_large(jaxpr: Any) -> str:
    """Return why a program should not be compiled, or an empty text.

    XLA aborts the process if it has no memory for an array; operator by operator, each array is checked before it is
    made.
    """
    in_a_row = 0
    for count, equation in enumerate(equations_run(jaxpr.jaxpr), 1):
        in_a_row = 0 if equation.primitive.name in FENCES else in_a_row + 1
        if count > MOST_EQUATIONS:
            return f"unrolled it has more than {MOST_EQUATIONS} steps"
        if in_a_row > MOST_IN_A_ROW:
            return f"it has more than {MOST_IN_A_ROW} steps without a product, which XLA would fuse into one"
        sizes = [getattr(variable.aval, "size", 0) for variable in equation.outvars]
        if any(size > LARGE for size in sizes):
            return f"it has arrays of more than {LARGE} elements"
    return ""


def _reason(error: Exception) -> str:
    """Return one line on why the program cannot be traced: what is refused, and where."""
    refusals = getattr(error, "refusals", ())
    first = str(error).partition("\n")[0]
    return f"{first} ({refusals[0].where})" if refusals and refusals[0].where else first
