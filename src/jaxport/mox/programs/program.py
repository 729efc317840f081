"""A traced program as a value: its blocks, its weights, and its call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import jax
from jax.core import Tracer

from jaxport import jaxprs
from jaxport.blocks.marking.window import current_recorder
from jaxport.blocks.tracing import Traced, TracedWeight
from jaxport.blocks.ungrouping import ungroup
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Aval, Module, aval_of, dims
from jaxport.jaxprs.alike import misfit, same_value
from jaxport.jaxprs.meshes import run_on_mesh
from jaxport.jaxprs.walk import equations_within
from jaxport.mox.programs.parameters import as_float, check_names, is_parameter, with_values
from jaxport.mox.programs.tree import Tree


@dataclass(frozen=True, eq=False, repr=False)
class TracedProgram:
    """A program with its blocks and its weights: callable and immutable.

    Users hold a `Mox`, which is one that can also be queried, edited, shown and saved; its docstring has the
    attributes.
    """

    traced: Traced
    name: str = ""
    signature: inspect.Signature | None = None
    inputs: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    modules: Mapping[str, Module] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Own the arrays: whoever gave them may write to them later."""
        object.__setattr__(self, "traced", self.traced.owning())

    @property
    def base(self) -> str:
        """The path that other paths in the program may be relative to: of a block, its own."""
        return ""

    # -- contents --------------------------------------------------------------------------------------------------

    @property
    def jaxpr(self) -> jaxprs.ClosedJaxpr:
        """The program, with `block` equations; its inputs are the weights, the arguments and the inputs that edits
        added.
        """
        return self.traced.jaxpr

    @property
    def weights(self) -> tuple[TracedWeight, ...]:
        """All arrays that the program holds, in the order of its inputs."""
        return self.traced.weights

    @property
    def params(self) -> dict[str, Array]:
        """The parameters, which training changes, by path: a new dict each time, of arrays that cannot be written
        to.
        """
        return dict(self._by_role[True])

    @property
    def state(self) -> dict[str, Array]:
        """All other arrays, by path: statistics, caches, keys and counts of random number streams, constants."""
        return dict(self._by_role[False])

    @cached_property
    def _by_role(self) -> dict[bool, dict[str, Array]]:
        by_role: dict[bool, dict[str, Array]] = {True: {}, False: {}}
        for weight in self.weights:
            by_role[is_parameter(weight)][weight.path] = weight.value
        return by_role

    @cached_property
    def tree(self) -> Tree:
        """The program as a tree of elements, built once."""
        return Tree(self.name, self.jaxpr.jaxpr)

    # -- evaluation ------------------------------------------------------------------------------------------------

    def __call__(self, *args: object, **kwargs: Any) -> Any:
        """Return the model's results for these arguments, with the parameters that the Mox holds."""
        return self._result(self._run({}, args, kwargs))

    def apply(self, params: Mapping[str, Array], /, *args: object, state: object = False, **kwargs: object) -> Any:
        """Return the model's results with other parameters.

        Args:
          params: parameters by path, as in `Mox.params`; entries of `Mox.state` may be among them. For parameters that
            are left out, the Mox's own values are used, so you can differentiate and train only the adapters.
          args: the positional arguments of the traced model.
          state: whether to also return the updated state.
          kwargs: the keyword arguments of the traced model. (A `state` that is not a bool is passed on to the model.)

        Returns:
          The result; with ``state=True`` a pair of the result and the new values of the state, by path.

        Raises:
          InvalidArgument: a parameter is unknown, or the arguments do not fit those that were traced.

        >>> import jax, jax.numpy as jnp, jaxport
        >>> from flax import nnx
        >>> mox = jaxport.make_mox(nnx.Linear(2, 1, use_bias=False, rngs=nnx.Rngs(0)))(jnp.ones(2))
        >>> jax.grad(lambda params: mox.apply(params, 2 * jnp.ones(2)).sum())(mox.params)
        {'kernel': Array([[2.],
               [2.]], dtype=float32)}
        """
        if type(state) is not bool:
            kwargs, state = {**kwargs, "state": state}, False
        check_names(params, self.weights, "`Mox.apply(params, …)`")
        outputs = self._run(params, args, kwargs)
        return (self._result(outputs), self._new_state(outputs)) if state else self._result(outputs)

    def _run(self, params: Mapping[str, Array], args: tuple, kwargs: dict) -> list[Array]:
        """Return the outputs of the jaxpr."""
        added = {name: kwargs.pop(name) for name in self.inputs if name in kwargs}
        absent = [name for name in self.inputs if name not in added]
        if absent:
            raise InvalidArgument(
                f"the input `{absent[0]}` is missing",
                where=f"the call of `{self.name}`",
                why="an edit added it to the program",
                instead=f"pass `{absent[0]}=...`",
            )
        # Parameters may be stored in another type than the program computes in.
        values = [
            as_float(params.get(weight.path, weight.value), aval.dtype)
            for weight, aval in zip(self.weights, self.jaxpr.in_avals, strict=False)
        ]
        operands = [*values, *self._arguments(args, kwargs), *(added[name] for name in self.inputs)]
        program = self.fitting(operands)
        if any(jaxprs.varying_axes(jax.typeof(operand)) for operand in operands):
            raise InvalidArgument(
                f"`{self.name}` is called inside a `shard_map` that tracks the axes along which values differ",
                where="the call of a Mox",
                why="its operations were traced outside, where values do not vary",
                instead="pass `check_vma=False` to `shard_map`, or trace the sharded function: "
                "`make_mox(shard_map(...))`",
            )
        recorder = current_recorder()
        operands = operands if recorder is None else [*recorder.of_automatic_axes(operands)]
        return run_on_mesh(program._plain(recorder is not None), operands, len(self.weights))

    def fitting(self, operands: Sequence[Array]) -> Self:
        """Return the program for operands of these shapes: itself, or a specialization if it has symbolic dims.

        Raises:
          InvalidArgument: the operands do not fit.
        """
        types = [jax.typeof(operand) for operand in operands]
        avals = self.jaxpr.in_avals
        self._check_weak(types)
        if all(one.shape == aval.shape and one.dtype == aval.dtype for one, aval in zip(types, avals, strict=True)):
            return self
        names = [*(weight.path for weight in self.weights), *self.traced.input_paths, *self.inputs]
        for name, one, aval in zip(names, types, avals, strict=True):
            fits = one.ndim == aval.ndim and one.dtype == aval.dtype
            if not fits or (one.shape != aval.shape and all(map(dims.is_static, aval.shape))):
                raise InvalidArgument(
                    f"`{name}` is {one.str_short()}",
                    where=f"the call of `{self.name}`",
                    why=f"the program was traced with {aval.str_short()}",
                    instead="give it that shape and dtype, or trace the model again with these arguments",
                )
        return self._specialized(names, [one.shape for one in types])

    def _check_weak(self, types: Sequence[Aval]) -> None:
        """Refuse an array in the place of one whose type gives way to that of others, if the program depends on that.

        Raises:
          InvalidArgument: it does.
        """
        for index in self._weak:
            if not getattr(types[index], "weak_type", False):
                name = [*(weight.path for weight in self.weights), *self.traced.input_paths, *self.inputs][index]
                raise InvalidArgument(
                    f"`{name}` is {types[index].str_short()}",
                    where=f"the call of `{self.name}`",
                    why="it was traced with a weak type, as a Python number has, which became that of another operand",
                    instead="give a weakly typed array (`jnp.asarray(2.0)`), or trace again with this one",
                )

    @cached_property
    def _weak(self) -> list[int]:
        """The inputs with a weak type, if the program converts any value with a weak type to that of others."""
        weak = [index for index, aval in enumerate(self.jaxpr.in_avals) if getattr(aval, "weak_type", False)]
        converted = (e for e in equations_within(self.jaxpr.jaxpr) if e.primitive.name == "convert_element_type")
        moved = ((aval_of(e.invars[0]), e.params["new_dtype"]) for e in converted) if weak else ()
        return weak if any(getattr(a, "weak_type", False) and a.dtype != dtype for a, dtype in moved) else []

    def _specialized(self, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> Self:
        """Return the program at other sizes of its symbolic dims; each is made once."""
        from jaxport.mox.programs.specialize import sizes_of, specialize

        values = sizes_of(self.jaxpr.in_avals, shapes, names, f"the call of `{self.name}`")
        key = tuple(sorted(values.items()))
        if key not in self._sizes:
            self._sizes[key] = self.replaced(replace(self.traced, jaxpr=specialize(self.jaxpr, values)))
        return self._sizes[key]

    @cached_property
    def _sizes(self) -> dict[tuple, Self]:
        return {}

    @cached_property
    def _programs(self) -> dict[bool, jaxprs.ClosedJaxpr]:
        return {}

    def _plain(self, mark: bool) -> jaxprs.ClosedJaxpr:
        """Return the program without blocks; with markers in their place if a trace is looking for them."""
        if mark not in self._programs:
            self._programs[mark] = ungroup(self.jaxpr, mark)
        return self._programs[mark]

    def _arguments(self, args: tuple, kwargs: dict) -> list[Array]:
        """Return the arrays among the arguments, checked against what was traced."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != self.traced.in_tree and self.signature is not None:
            from jaxport.mox.programs.calling import as_traced

            leaves, tree = jax.tree.flatten(as_traced(self.signature, self.traced.in_tree, args, kwargs))
        if tree != self.traced.in_tree:
            raise InvalidArgument(
                "the arguments are not those that it was traced with",
                where=f"the call of `{self.name}`",
                why=misfit(self.traced.in_tree, tree),
                instead="pass them as in the traced call, by position or by name, or trace again",
            )
        for index, value in self.traced.static_inputs.items():
            leaf = leaves[index]
            # The value of a tracer may be known, and be the same: a derivative would still be zero.
            if isinstance(leaf, Tracer) or not same_value(leaf, value):
                raise InvalidArgument(
                    f"an argument that is not an array is {leaf!r}",
                    where=f"the call of `{self.name}`",
                    why=f"{value!r} was baked in when it was traced",
                    instead="trace the model again with this value, or with an array, which may differ from call to "
                    "call",
                )
        return [leaf for index, leaf in enumerate(leaves) if index not in self.traced.static_inputs]

    def _result(self, outputs: Sequence[Array]) -> object:
        leaves, arrays = dict(self.traced.static_outputs), iter(outputs)
        full = [leaves[i] if i in leaves else next(arrays) for i in range(self.traced.out_tree.num_leaves)]
        return jax.tree.unflatten(self.traced.out_tree, full)

    def _new_state(self, outputs: Sequence[Array]) -> dict[str, Array]:
        return dict(zip(self.traced.state_outputs, outputs[len(self.traced.output_paths) :], strict=True))

    # -- changes ---------------------------------------------------------------------------------------------------

    def with_params(self, params: Mapping[str, Array]) -> Self:
        """Return the same program with other values for some of its parameters and state, by path.

        Floating-point values may have another type (``value.astype(jnp.bfloat16)``): the program converts them to the
        type that it was traced with. (To change the type in which it computes, use `jaxport.mox.cast`.)

        Raises:
          InvalidArgument: a path is unknown, or a value has another shape, or a dtype of another kind.

        >>> import jax.numpy as jnp, jaxport
        >>> from flax import nnx
        >>> mox = jaxport.make_mox(nnx.Linear(2, 1, use_bias=False, rngs=nnx.Rngs(0)))(jnp.ones(2))
        >>> mox.with_params({"kernel": jnp.ones((2, 1))})(jnp.ones(2))
        Array([2.], dtype=float32)
        """
        weights = with_values(self.weights, params, "`Mox.with_params`")
        return self.replaced(replace(self.traced, weights=weights))

    def replaced(self, traced: Traced, **changes: Any) -> Self:
        """Return a Mox with another program and the same names."""
        return replace(self, traced=traced, **changes)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: dict[int, object]) -> Self:
        return self


Program = TypeVar("Program", bound=TracedProgram)
