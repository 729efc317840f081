"""From a callable to a jaxpr with blocks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import jax
import numpy as np
from jax.extend import core as jex_core
from jax.extend import source_info_util

from jaxport.blocks.constants import hoisted
from jaxport.blocks.environment import Environment
from jaxport.blocks.framework import Leaf
from jaxport.blocks.grouping import Roots, group
from jaxport.blocks.values import is_array
from jaxport.blocks.window import activation
from jaxport.errors import InvalidArgument, StateChanged

__all__ = ["Traced", "Weight", "trace"]

source_info_util.register_exclusion(__file__)

State = Literal["refuse", "outputs", "discard"]


@dataclass(frozen=True)
class Weight:
    """An array that belongs to the traced callable: `path` in its pytree, `value`, and whether training changes it."""

    path: str
    value: object
    trainable: bool = True


@dataclass(frozen=True)
class Traced:
    """A traced call.

    Attributes:
      jaxpr: without consts. Its inputs are the weights, then the arrays among the arguments; its outputs are the
        arrays among the results, then the new values of the state.
      weights: one per leading input, in order.
      in_tree: of ``(args, kwargs)``, all leaves included.
      out_tree: of the result, all leaves included.
      input_paths: one per array argument: ``x``, ``batch.ids``.
      output_paths: one per array result: its path in the result, or ``output``, ``output_0``.
      state_outputs: the paths of the state whose new values are the last outputs.
      static_inputs: index of a leaf of `in_tree` -> its value, for the leaves that are no arrays.
      static_outputs: index of a leaf of `out_tree` -> its value, for the leaves that are no arrays.
    """

    jaxpr: jex_core.ClosedJaxpr
    weights: tuple[Weight, ...]
    in_tree: jax.tree_util.PyTreeDef
    out_tree: jax.tree_util.PyTreeDef
    input_paths: tuple[str, ...]
    output_paths: tuple[str, ...]
    state_outputs: tuple[str, ...]
    static_inputs: Mapping[int, object]
    static_outputs: Mapping[int, object]


def trace(
    fn: Callable,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    state: State = "refuse",
    functions: Iterable[str] = (),
) -> Traced:
    """Traces ``fn(*args, **kwargs)`` to a jaxpr with blocks, and leaves `fn` and its modules as they were.

    Args:
      fn: a module, a bound method, a function, a partial, a jitted function: any callable.
      args: pytrees of arrays or `jax.ShapeDtypeStruct`, whose shapes may have symbolic dims; other leaves are baked in.
      kwargs: the same, by name.
      state: what becomes of changes that the call makes to module state (batch statistics, caches): "refuse" them,
        append the new values to the "outputs", or "discard" them. Counters of random number streams are always
        dropped.
      functions: qualified names of functions to make blocks of too (see `activation`).

    Raises:
      StateChanged: the call changes module state, and `state` does not say what becomes of it.
      InvalidArgument: `state` is no known word, or a name in `functions` names nothing.

    >>> import jax.numpy as jnp
    >>> traced = trace(lambda x, *, scale: {"y": x * scale}, (jnp.ones(3),), {"scale": jnp.ones(())})
    >>> traced.input_paths, traced.output_paths
    (('x', 'scale'), ('y',))
    """
    if state not in ("refuse", "outputs", "discard"):
        raise InvalidArgument(
            f"`{state}` is not a way to treat state",
            where="the argument `state`",
            why="it must say what becomes of changes to module state",
            instead="use 'refuse', 'outputs' or 'discard'",
        )
    if not callable(fn):
        raise InvalidArgument(
            f"a `{type(fn).__name__}` cannot be traced",
            where="the argument `fn`",
            why="it cannot be called",
            instead="give a module, a function or a method",
        )
    return _Trace(fn, tuple(args), dict(kwargs or {}), state, tuple(functions)).traced()


class _Trace:
    """One trace: what is known before it, what the traced function leaves behind, and what is made of both."""

    def __init__(self, fn: Callable, args: tuple, kwargs: dict, state: State, functions: tuple[str, ...]):
        self.fn, self.state, self.functions = fn, state, functions
        leaves, self.in_tree = jax.tree.flatten((args, kwargs))
        self.inputs = {index: leaf for index, leaf in enumerate(leaves) if _is_input(leaf)}
        self.static_inputs = {index: leaf for index, leaf in enumerate(leaves) if index not in self.inputs}
        all_paths = _argument_paths(fn, args, kwargs)
        self.input_paths = tuple(all_paths[index] for index in self.inputs)

    def traced(self) -> Traced:
        with activation(self.functions) as recorder:
            self.environment = Environment(self.fn, recorder)
            # Every trace has its own function: `make_jaxpr` keeps what it traced by function.
            closed = jax.make_jaxpr(self.run)(
                [leaf.value for leaf in self.environment.leaves], list(self.inputs.values())
            )
        jaxpr, constants = hoisted(closed)
        weights = self.weights(constants)
        roots = Roots([*(w.path for w in weights), *self.input_paths], set(range(len(weights))))
        grouped = group(jaxpr, roots)
        changed = self.changed(grouped.labels)
        return self.finished(grouped.jaxpr, weights, changed)

    def run(self, weights: list, inputs: list) -> list:
        """The function that is traced; it leaves the tree of the results in `self`."""
        fn, copies = self.environment.rebuilt(weights)
        leaves = {**self.static_inputs, **dict(zip(self.inputs, inputs, strict=True))}
        args, kwargs = jax.tree.unflatten(self.in_tree, [leaves[index] for index in range(len(leaves))])
        result = fn(*args, **kwargs)
        flat, self.out_tree = jax.tree_util.tree_flatten_with_path(result)
        self.static_outputs = {i: leaf for i, (_, leaf) in enumerate(flat) if not jex_core.valid_jaxtype(leaf)}
        outputs = [(path, leaf) for i, (path, leaf) in enumerate(flat) if i not in self.static_outputs]
        self.output_paths = _output_paths([path for path, _ in outputs])
        self.new_state = self.environment.changes(copies, weights)
        return [*(leaf for _, leaf in outputs), *(leaf.value for leaf in self.new_state.values())]

    def weights(self, constants: Sequence[object]) -> list[Weight]:
        """The weights of all leading inputs: the leaves taken out of modules, then the arrays closed over."""
        weights = [Weight(leaf.path, leaf.value, leaf.trainable) for leaf in self.environment.leaves]
        taken = {weight.path for weight in weights} | set(self.input_paths)
        for leaf in self.environment.named(constants, taken):
            weights.append(Weight(leaf.path, leaf.value, leaf.trainable))
        return weights

    def changed(self, labels: Sequence) -> dict[int, str]:
        raise NotImplementedError
