"""Trace a callable to a jaxpr with blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import numpy as np
from jax import core as jax_core

from jaxport import jaxprs
from jaxport.blocks.callables.framework import Framework
from jaxport.blocks.callables.held_models import restored
from jaxport.blocks.callables.models import MetLate, Models, arguments, merged
from jaxport.blocks.callables.naming import argument_values, leaf_paths, output_paths, signature_of
from jaxport.blocks.callables.values import is_array
from jaxport.blocks.constants import hoisted
from jaxport.blocks.grouping import Roots, group
from jaxport.blocks.marking.recorder import Boundary, Operators
from jaxport.blocks.marking.targets import bound_again, with_markers
from jaxport.blocks.marking.window import activation, current_recorder
from jaxport.errors import InvalidArgument, StateChanged
from jaxport.jaxprs import Array, Parameters, PythonFunction, TreeDef, source_info_util
from jaxport.jaxprs.identity import IdentityMap, IdentitySet, owned
from jaxport.jaxprs.meshes import is_on_mesh, of_no_mesh, without_explicit_axes, without_meshes
from jaxport.jaxprs.rewrite import with_values
from jaxport.jaxprs.walk import used_variables
from jaxport.phases import phase

source_info_util.register_exclusion(__file__)

State = Literal["refuse", "outputs", "discard"]


@dataclass(frozen=True)
class TracedWeight:
    """An array that belongs to the traced callable: `path` in its pytree, `value`, and whether training changes it.

    The path of an `anonymous` one was generated for this trace; another trace may find other arrays. A module holds
    those that are `owned`; the others were closed over directly. Of one that is given (`is_given`) the value was set
    after the trace.
    """

    path: str
    value: Any
    trainable: bool = True
    anonymous: bool = False
    owned: bool = True
    is_given: bool = False

    @property
    def is_held(self) -> bool:
        """Whether a module holds it under a name of its own."""
        return self.owned and not self.anonymous


@dataclass(frozen=True)
class Traced:
    """A traced call.

    Attributes:
      jaxpr: the program, without consts. Its inputs are the weights, then the arrays among the arguments; its outputs
        are the arrays among the results, then the new values of the state.
      weights: one weight per leading input, in order.
      in_tree: the tree of ``(args, kwargs)``, with all leaves.
      out_tree: the tree of the result, with all leaves.
      input_paths: one path per array argument: ``x``, ``batch.ids``.
      output_paths: one path per array result: its path in the result, or ``output``, ``output_0``.
      state_outputs: the paths of the state whose new values are the last outputs.
      static_inputs: index of a leaf of `in_tree` -> its value, for the leaves that are not arrays.
      static_outputs: index of a leaf of `out_tree` -> its value, for the leaves that are not arrays.
    """

    jaxpr: jaxprs.ClosedJaxpr
    weights: tuple[TracedWeight, ...]
    in_tree: TreeDef
    out_tree: Any
    input_paths: tuple[str, ...]
    output_paths: tuple[str, ...]
    state_outputs: tuple[str, ...]
    static_inputs: Mapping[int, Any]
    static_outputs: Mapping[int, Any]

    def owning(self) -> Traced:
        """Return the call with weights that nobody writes to; of what the user may write to, copies."""
        copies: dict[str, np.ndarray] = {}
        values = [owned(weight.value, copies) for weight in self.weights]
        if all(value is weight.value for value, weight in zip(values, self.weights, strict=True)):
            return self
        weights = tuple(replace(w, value=value) for w, value in zip(self.weights, values, strict=True))
        return replace(self, weights=weights)


def trace(
    fn: Callable,
    args: Sequence[object] = (),
    kwargs: Parameters | None = None,
    *,
    state: State = "refuse",
    functions: Iterable[str] = (),
    counters: bool = False,
    operators: Operators = "none",
    frameworks: Sequence[Framework] | None = None,
) -> Traced:
    """Trace ``fn(*args, **kwargs)`` to a jaxpr with blocks, and leave `fn` and its modules unchanged.

    Args:
      fn: a module, a bound method, a function, a partial, a jitted function: any callable.
      args: pytrees of arrays or `jax.ShapeDtypeStruct`, whose shapes may have symbolic dims; other leaves are baked in.
      kwargs: the same, by name.
      state: how to treat changes that the call makes to module state (batch statistics, caches): "refuse" them, append
        the new values to the "outputs", or "discard" them.
      functions: qualified names of functions to make blocks of too (see `activation`).
      operators: the operators of imported programs that are blocks too: "none", those that are "written" as they are,
        "all".
      frameworks: those whose modules may be called; by default all that the process has imported.
      counters: whether the counters of random number streams are state too; they are dropped otherwise.

    Raises:
      StateChanged: the call changes module state, and `state` is "refuse".
      InvalidArgument: `state` is unknown, or a name in `functions` does not exist.

    >>> import jax.numpy as jnp
    >>> traced = trace(lambda x, *, scale: {"y": x * scale}, (jnp.ones(3),), {"scale": jnp.ones(())})
    >>> traced.input_paths, traced.output_paths
    (('x', 'scale'), ('y',))
    """
    if state not in ("refuse", "outputs", "discard"):
        raise InvalidArgument(
            f"`{state}` is not a valid `state`",
            where="the argument `state`",
            why="it says how to treat changes of module state",
            instead="use 'refuse', 'outputs' or 'discard'",
        )
    if not callable(fn):
        raise InvalidArgument(
            f"a `{type(fn).__name__}` cannot be traced",
            where="the argument `fn`",
            why="it cannot be called",
            instead="give a module, a function or a method",
        )
    with phase("Tracing"):
        return _Trace(
            fn, tuple(args), dict(kwargs or {}), state, tuple(functions), counters, operators, frameworks
        ).traced()


class _Trace:
    """One trace: the inputs, the result, and the state that the function changed."""

    def __init__(
        self,
        fn: Callable,
        args: tuple,
        kwargs: dict,
        state: State,
        functions: tuple[str, ...],
        counters: bool,
        operators: Operators,
        frameworks: Sequence[Framework] | None,
    ):
        self.fn, self.state, self.functions = fn, state, functions
        self.counters, self.frameworks = counters, frameworks
        self.operators: Operators = operators
        self.args, self.kwargs = args, kwargs
        leaves, self.in_tree = jax.tree.flatten((args, kwargs))
        self.inputs = {index: leaf for index, leaf in enumerate(leaves) if _is_input(leaf)}
        self.static_inputs = {index: leaf for index, leaf in enumerate(leaves) if index not in self.inputs}

    def traced(self) -> Traced:
        known: list[Any] = []
        while True:
            try:
                return self.attempt(known)
            except MetLate as met:  # each time with one more known model
                known.append(met.model)

    def attempt(self, known: Sequence[object]) -> Traced:
        window = activation(self.functions, frameworks=self.frameworks, operators=self.operators)
        with restored(self.fn), window as recorder:
            self.target = recorder.selected(self.fn)
            self.places, types = recorder.places, recorder.types
            self.signature = signature_of(self.fn, types)
            named = argument_values(self.signature, self.args, self.kwargs)
            paths = leaf_paths(named, types.is_variable)
            self.input_paths = tuple(paths[index] for index in self.inputs)
            self.models = recorder.models = Models(self.fn, known, self.places)
            # Every trace has its own function, since `make_jaxpr` caches traces by function.
            try:
                with without_explicit_axes():
                    closed = jax.make_jaxpr(self.run)(list(map(of_no_mesh, self.inputs.values())))
            finally:
                self.models.restore()
        if not jax.sharding.get_abstract_mesh().empty or any(map(is_on_mesh, closed.consts)):
            closed = without_meshes(closed, constraints=True)
        jaxpr, constants = hoisted(closed)
        constants = list(map(recorder.original, constants))
        order = sorted(range(len(constants)), key=lambda index: self.models.order_of(constants[index]))
        jaxpr = jaxpr.replace(invars=[*(jaxpr.invars[index] for index in order), *jaxpr.invars[len(constants) :]])
        # One weight per array, also of one that had another input for each of its places in a call.
        arrays = IdentitySet(constants[index] for index in order)
        positions = IdentityMap((array, position) for position, array in enumerate(arrays))
        first = [positions[constants[index]] for index in order]
        weights = self.weights(list(arrays))
        paths = [*(weights[index].path for index in first), *self.input_paths]
        of_models = {len(order) + index for index, path in enumerate(self.input_paths) if self.in_model(path)}
        roots = Roots(paths, {*range(len(order)), *of_models}, self.places)
        grouped = group(jaxpr, roots)
        below = tuple(f"{head}." for head in roots.collections if head)
        weights = [replace(w, trainable=False) if f"{w.path}.".startswith(below) else w for w in weights]
        return self.finished(
            _merged(grouped.jaxpr, first),
            [label and label.is_leaf and paths[label.root] for label in grouped.labels],
            weights,
        )

    def run(self, inputs: list) -> list:
        """Run the function under the trace; store in `self` what only the running function tells."""
        self.models.begin()
        leaves = {**self.static_inputs, **dict(zip(self.inputs, inputs, strict=True))}
        args, kwargs = jax.tree.unflatten(self.in_tree, [leaves[index] for index in range(len(leaves))])
        self.arguments = arguments(argument_values(self.signature, args, kwargs), self.places)
        fn = bound_again(self.fn)
        if self.target is not None:  # not reachable under its name
            fn = with_markers(fn, Boundary(self.target), current_recorder)
        with ExitStack() as stack:
            sessions = [stack.enter_context(framework.session()) for framework in self.places.types.frameworks]
            result = fn(*args, **kwargs)
        flat, self.out_tree = jax.tree.flatten(result)
        self.static_outputs = {index: leaf for index, leaf in enumerate(flat) if not jaxprs.valid_jaxtype(leaf)}
        paths = output_paths(result, self.places.types.is_variable)
        self.output_paths = tuple(path for index, path in enumerate(paths) if index not in self.static_outputs)
        self.models.name()
        of_arguments = (model.changes(self.counters) for model in self.arguments)
        collected = (changed() for changed in sessions if changed is not None)
        of_sessions = (self.models.collected(leaves, self.counters) for leaves in collected)
        self.changes = merged([self.models.changes(self.counters), *of_arguments, *of_sessions])
        outputs = [leaf for index, leaf in enumerate(flat) if index not in self.static_outputs]
        return [*outputs, *self.changes.arrays.values()]

    def in_model(self, path: str) -> bool:
        """Whether an input belongs to a model that was passed as an argument."""
        return any(path == model.name or path.startswith(f"{model.name}.") for model in self.arguments)

    def weights(self, constants: Sequence[Array]) -> list[TracedWeight]:
        """Return the weights of all leading inputs: the closed-over arrays."""
        named = self.models.named(constants, set(self.input_paths))
        return [TracedWeight(leaf.path, leaf.value, leaf.trainable, leaf.anonymous, leaf.owned) for leaf in named]

    def finished(self, jaxpr: jaxprs.Jaxpr, sources: Sequence[object], weights: Sequence[TracedWeight]) -> Traced:
        """Return the result, with state treated as requested, and without unused weights.

        `sources` has the path of the leaf for each output that is one.
        """
        results = len(self.output_paths)
        changed = {
            path: jaxpr.outvars[results + index]
            for index, path in enumerate(self.changes.arrays)
            # A new value may be the old one after all, passed on through `jit` or `scan`.
            if sources[results + index] != path
        }
        refused = [*changed, *self.changes.others] if self.state == "refuse" else []
        if self.state == "outputs":
            refused = list(self.changes.others)
        if refused:
            raise _state_changed(self.fn, refused, self.state)
        state = changed if self.state == "outputs" else {}
        outvars = [*jaxpr.outvars[:results], *state.values()]
        jaxpr = jaxpr.replace(outvars=outvars, debug_info=jaxprs.nameless(jaxpr))
        used = used_variables(jaxpr)
        kept = [index for index in range(len(weights)) if jaxpr.invars[index] in used]
        jaxpr = jaxpr.replace(invars=[*(jaxpr.invars[index] for index in kept), *jaxpr.invars[len(weights) :]])
        return Traced(
            jaxpr=jaxprs.closed(jaxpr, ()),
            weights=tuple(weights[index] for index in kept),
            in_tree=self.in_tree,
            out_tree=self.out_tree,
            input_paths=self.input_paths,
            output_paths=self.output_paths,
            state_outputs=tuple(state),
            static_inputs=self.static_inputs,
            static_outputs=self.static_outputs,
        )


def _merged(jaxpr: jaxprs.Jaxpr, first: Sequence[int]) -> jaxprs.Jaxpr:
    """Return a jaxpr with one input for the leading inputs of equal numbers, which are in order of their first."""
    kept: dict[int, jaxprs.Var] = {}
    values: dict[jaxprs.Var, jaxprs.Atom] = {}
    for variable, number in zip(jaxpr.invars, first, strict=False):
        if number in kept:
            values[variable] = kept[number]
        kept.setdefault(number, variable)
    return with_values(jaxpr, values).replace(invars=[*kept.values(), *jaxpr.invars[len(first) :]])


def _state_changed(fn: PythonFunction, paths: Sequence[str], state: str) -> StateChanged:
    shown = [f"`{path}`" for path in paths[:20]] + [f"and {len(paths) - 20} more"] * (len(paths) > 20)
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    if state == "outputs":
        return StateChanged(
            f"tracing `{name}` changes attributes that cannot become outputs",
            where="\n".join(shown),
            why="only new values of arrays can be outputs; these are other attributes, or were removed",
            instead='pass `state="discard"`, or keep the attributes as they are during the call',
        )
    return StateChanged(
        f"tracing `{name}` changes the state of its modules",
        where="\n".join(shown),
        why="a trace is a pure function, and dropping the new values and returning them give different models",
        instead='switch the model to evaluation (`model.eval()`), or pass `state="outputs"` or `state="discard"`',
    )


def _is_input(leaf: object) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct | jax_core.ShapedArray) or is_array(leaf)
