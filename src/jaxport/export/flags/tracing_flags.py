"""Trace a function that has flags among its inputs: Python bools that the model takes at run time.

A flag that Python's `if` inspects cannot be traced as an array. So the function is traced once for each value of it,
and the two programs are merged (see `jaxport.export.flags.merging`). The results may depend on the flag only in their
values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import core as jax_core

from jaxport.blocks.callables.naming import argument_values, leaf_paths, signature_of
from jaxport.blocks.liveness import without_dead_code
from jaxport.blocks.marking.window import activation
from jaxport.blocks.tracing import State, Traced, TracedWeight, trace
from jaxport.errors import ExportError, InvalidArgument, JaxportError
from jaxport.export.flags.merging import FALSE, TRUE, Side, merged
from jaxport.export.ports import is_key
from jaxport.export.specs import Inputs
from jaxport.jaxprs import ClosedJaxpr, Parameters, PythonFunction, Var, nameless
from jaxport.jaxprs.alike import same_aval

#: Each flag doubles the number of traces.
MOST = 5


def traced_with_flags(
    fn: PythonFunction, inputs: Inputs, *, name: str, state: State, functions: Sequence[str] = ()
) -> tuple[Traced, frozenset[int]]:
    """Trace a function; the flags among its inputs become inputs of the program that choose inside it.

    Flags are the inputs declared as Python's `bool`, and scalar boolean arrays that Python inspects.

    Args:
      fn: the function.
      inputs: its arguments.
      name: the name of the function, for messages.
      state, functions: as `jaxport.blocks.tracing.trace` takes them.

    Returns:
      The trace, and the positions of the flags among the leaves of the arguments.

    Raises:
      ExportError: the results differ in structure, dtype or shape between the values of a flag.
      InvalidArgument: there are too many flags.
    """
    traces = _Traces(fn, inputs, name, state, functions)
    if inputs.flags:
        try:
            return traces.merged(sorted(inputs.flags)), inputs.flags
        except JaxportError:
            raise
        except Exception as error:  # noqa: BLE001 - it may want the flag as an array
            try:
                return traces.plain(), frozenset()
            except Exception:  # noqa: BLE001 - the first error is about the bool that the user declared
                raise error from None
    try:
        return traces.plain(), frozenset()
    except jax.errors.ConcretizationTypeError:
        leaves = jax.tree.leaves((inputs.args, inputs.kwargs))
        booleans = [index for index, leaf in enumerate(leaves) if leaf.shape == () and leaf.dtype == np.bool_]
        for flags in [*([index] for index in booleans), *([booleans] if len(booleans) > 1 else [])]:
            if len(flags) <= MOST and traces.succeeds(flags):
                return traces.merged(flags), frozenset(flags)
        raise


@dataclass(frozen=True)
class _Traces:
    fn: PythonFunction
    inputs: Inputs
    name: str
    state: State
    functions: Sequence[str]

    def plain(self, flags: Mapping[int, bool] | None = None) -> Traced:
        """Return the trace with these values of flags."""
        args, kwargs = with_flags(self.inputs.args, self.inputs.kwargs, flags or {})
        return trace(self.fn, args, kwargs, state=self.state, functions=self.functions, operators="written")

    def succeeds(self, flags: Sequence[int]) -> bool:
        """Whether these are the flags that Python inspects."""
        try:
            self.plain(dict.fromkeys(flags, True))
        except jax.errors.ConcretizationTypeError:
            return False
        except Exception:  # noqa: BLE001 - another error than that of the flag: it is the user's to see
            return True
        return True

    def merged(self, flags: Sequence[int], values: Mapping[int, bool] | None = None) -> Traced:
        """Return the merged traces for both values of each flag."""
        if len(flags) > MOST:
            raise InvalidArgument(
                f"there are {len(flags)} flags",
                where=f"the inputs of `{self.name}`",
                why=f"each of them doubles the number of traces; {MOST} may be chosen at run time",
                instead="bake some of them in: `static_params`",
            )
        if not flags:
            return self.plain(values)
        flag, *others = flags
        traces = (self.merged(others, {**(values or {}), flag: value}) for value in (True, False))
        true, false = (replace(traced, jaxpr=without_dead_code(traced.jaxpr)) for traced in traces)
        path = input_paths(self.fn, self.inputs.args, self.inputs.kwargs)[flag]
        check_alike(true, false, path, self.name)
        return merged_traces(flag, path, true, false)


def input_paths(fn: PythonFunction, args: Sequence[object], kwargs: Parameters) -> list[str]:
    """Return the path of each leaf of the arguments, as a trace names it.

    >>> input_paths(lambda batch, train: batch, ({"ids": 1},), {"train": 2})
    ['batch.ids', 'train']
    """
    with activation() as recorder:
        signature = signature_of(fn, recorder.types)
        return leaf_paths(argument_values(signature, args, kwargs), recorder.types.is_variable)


def with_flags(args: Sequence[object], kwargs: Parameters, flags: Mapping[int, bool]) -> tuple[tuple, dict]:
    """Return the arguments with Python bools in place of some leaves.

    >>> with_flags((1, 2), {"train": 3}, {2: True})
    ((1, 2), {'train': True})
    """
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    return jax.tree.unflatten(tree, [flags.get(index, leaf) for index, leaf in enumerate(leaves)])


def with_bools(flags: Iterable[int], args: Sequence[object], kwargs: Parameters) -> tuple[tuple, dict]:
    """Return concrete arguments as the function takes them: flags as Python bools."""
    leaves = jax.tree.leaves((tuple(args), dict(kwargs)))
    return with_flags(args, kwargs, {index: bool(leaves[index]) for index in flags})


def check_alike(true: Traced, false: Traced, path: str, name: str) -> None:
    """Refuse a function whose results differ in more than values between the two values of a flag."""
    results = [traced.jaxpr.out_avals[: len(traced.output_paths)] for traced in (true, false)]
    difference = ""
    if true.out_tree != false.out_tree or true.static_outputs.keys() != false.static_outputs.keys():
        difference = f"{true.out_tree}, or {false.out_tree}"
    elif any(bool(value != false.static_outputs[index]) for index, value in true.static_outputs.items()):
        difference = f"{dict(true.static_outputs)}, or {dict(false.static_outputs)}, which are not arrays"
    else:
        pairs = zip(true.output_paths, *results, strict=True)
        differing = next(((at, one, other) for at, one, other in pairs if not same_aval(one, other)), None)
        if differing is not None:
            difference = f"`{differing[0]}` is {differing[1].str_short()}, or {differing[2].str_short()}"
    if difference:
        raise ExportError(
            f"what `{name}` returns depends on the flag `{path}`",
            where=f"the input `{path}`, a Python bool",
            why=f"for True and for False: {difference}",
            instead="return the same structure, dtypes and shapes for both, or bake it in: "
            f"`static_params={{'{path}': …}}`",
        )


def merged_traces(flag: int, path: str, true: Traced, false: Traced) -> Traced:
    """Merge two traces into one, with the flag as an input in its place.

    Args:
      flag: the position of the flag among the leaves of the arguments.
      path: its path.
      true, false: the trace with either value of it; their results have the same structure.
    """
    weights, of_false = _united(true.weights, false.weights)
    variable = Var(jax_core.ShapedArray((), np.dtype(np.bool_)))
    arrays = sum(index < flag for index in range(true.in_tree.num_leaves) if index not in true.static_inputs)
    avals = [false.jaxpr.in_avals[index] for index in range(len(false.weights)) if of_false[index] >= len(true.weights)]
    held = [Var(aval) for aval in (*true.jaxpr.in_avals[: len(true.weights)], *avals)]
    inputs = [Var(aval) for aval in true.jaxpr.in_avals[len(true.weights) :]]
    paths = list(true.input_paths)
    old = dict(zip(paths, inputs, strict=True)) | {w.path: v for w, v in zip(weights, held, strict=True)}
    state = tuple(dict.fromkeys((*true.state_outputs, *false.state_outputs)))
    places = list(range(len(true.weights))), of_false
    sides = []
    for traced, where in zip((true, false), places, strict=True):
        jaxpr = traced.jaxpr.jaxpr
        env = dict(zip(jaxpr.invars, [*(held[index] for index in where), *inputs], strict=True))
        results = dict(zip(traced.state_outputs, jaxpr.outvars[len(traced.output_paths) :], strict=True))
        missing = [at for at in state if at not in results and at not in old]
        if missing:
            raise ExportError(
                f"the state `{missing[0]}` changes for only one value of the flag `{path}`",
                why="its old value, which the other keeps, is not read by the function",
                instead='read it for both values, or pass `state="discard"`',
            )
        outvars = [*jaxpr.outvars[: len(traced.output_paths)], *(results.get(at, old.get(at)) for at in state)]
        sides.append(Side(jaxpr.eqns, outvars, env))
    like = true.jaxpr.jaxpr
    equations, outvars, effects = merged(variable, like, (sides[TRUE], sides[FALSE]))
    inputs.insert(arrays, variable)
    paths.insert(arrays, path)
    debug_info = nameless(like)
    jaxpr = like.replace(
        constvars=[], invars=[*held, *inputs], outvars=outvars, eqns=equations, effects=effects, debug_info=debug_info
    )
    return replace(
        true,
        jaxpr=ClosedJaxpr(jaxpr, ()),
        weights=tuple(weights),
        input_paths=tuple(paths),
        state_outputs=state,
        static_inputs={index: value for index, value in true.static_inputs.items() if index != flag},
    )


def _united(true: Sequence[TracedWeight], false: Sequence[TracedWeight]) -> tuple[list[TracedWeight], list[int]]:
    """Return the weights of both, and the positions of the second's among them."""
    weights, places = list(true), []
    known = {weight.path: index for index, weight in enumerate(weights)}
    for weight in false:
        index = known.get(weight.path)
        if index is None or not _same(weights[index].value, weight.value):
            names = (weight.path if count == 0 else f"{weight.path}_{count}" for count in itertools.count())
            path = next(name for name in names if name not in known)
            index = known[path] = len(weights)
            weights.append(replace(weight, path=path))
        places.append(index)
    return weights, places


def _same(a: Any, b: Any) -> bool:
    """Whether two weights are the same array, or hold the same values."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if is_key(a.dtype):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()
