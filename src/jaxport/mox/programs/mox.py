"""`Mox`: a program with its modules as a value that is called, queried and edited."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import jax
from jax.core import Tracer

from jaxport import jaxprs
from jaxport.blocks.marking.window import current_recorder
from jaxport.blocks.tracing import Traced, TracedWeight
from jaxport.blocks.ungrouping import ungroup
from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, Module, dims
from jaxport.jaxprs.meshes import run_on_mesh
from jaxport.mox.programs.aliases import Query
from jaxport.mox.programs.parameters import as_float, check_names, is_parameter, with_values

if TYPE_CHECKING:
    from jaxport.mox.looking.show import Html, Text
    from jaxport.mox.querying.match import Match
    from jaxport.mox.querying.selection import Selection
    from jaxport.mox.querying.tree import Tree

__all__ = ["Mox", "is_parameter"]


@dataclass(frozen=True, eq=False)
class Mox:
    """A program as a tree of module calls: callable and immutable.

    `make_mox` makes one. It computes what the traced model computes, and composes with all of JAX's transformations.

    Attributes:
      traced: the jaxpr with blocks, the arrays that it holds, and the trees of its arguments and results.
      name: the name of the traced callable.
      signature: its signature; None if it has none.
      inputs: the inputs that edits have added, by name; they are keyword arguments of every call.
      dropped: the parameters that no equation uses any more after an edit, by path.
      modules: copies of the modules that replaced others, by path (None for a Mox that replaced one); None if the program
        was read from a file, which does not contain them.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(lambda x: jnp.tanh(x) * 2)(jnp.zeros(3))
    >>> mox(jnp.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    >>> print(mox)
    <lambda> x: f32[3] -> f32[3]
    ├─ tanh  f32[3]
    └─ mul  f32[3]
    """

    traced: Traced
    name: str = ""
    signature: inspect.Signature | None = None
    inputs: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    modules: Mapping[str, Module] | None = field(default_factory=dict)

    @property
    def base(self) -> str:
        """The path that other paths in the program may be relative to: of a block, its own."""
        return ""

    # -- contents --------------------------------------------------------------------------------------------------

    @property
    def jaxpr(self) -> jaxprs.ClosedJaxpr:
        """The program, with `block` equations; its inputs are the weights, the arguments and the inputs that edits added."""
        return self.traced.jaxpr

    @property
    def weights(self) -> tuple[TracedWeight, ...]:
        """All arrays that the program holds, in the order of its inputs."""
        return self.traced.weights

    @cached_property
    def params(self) -> dict[str, Array]:
        """The parameters, which training changes, by path."""
        return {weight.path: weight.value for weight in self.weights if is_parameter(weight)}

    @cached_property
    def state(self) -> dict[str, Array]:
        """All other arrays, by path: statistics, caches, keys and counts of random number streams, constants."""
        return {weight.path: weight.value for weight in self.weights if not is_parameter(weight)}

    # -- evaluation ------------------------------------------------------------------------------------------------

    def __call__(self, *args: object, **kwargs: object) -> Any:
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
                instead="pass `check_vma=False` to `shard_map`, or trace the sharded function: `make_mox(shard_map(...))`",
            )
        recorder = current_recorder()
        operands = operands if recorder is None else [*recorder.of_automatic_axes(operands)]
        return run_on_mesh(program._plain(recorder is not None), operands, len(self.weights))

    def fitting(self, operands: Sequence[Array]) -> Mox:
        """Return the program for operands of these shapes: the Mox itself, or a specialization if it has symbolic dims.

        Raises:
          InvalidArgument: the operands do not fit.
        """
        types = [jax.typeof(operand) for operand in operands]
        avals = self.jaxpr.in_avals
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

    def _specialized(self, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> Mox:
        """Return the program at other sizes of its symbolic dims; each is made once."""
        from jaxport.mox.programs.specialize import sizes_of, specialize

        values = sizes_of(self.jaxpr.in_avals, shapes, names, f"the call of `{self.name}`")
        key = tuple(sorted(values.items()))
        if key not in self._sizes:
            self._sizes[key] = self.replaced(replace(self.traced, jaxpr=specialize(self.jaxpr, values)))
        return self._sizes[key]

    @cached_property
    def _sizes(self) -> dict[tuple, Mox]:
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
                "the arguments do not have the structure that was traced",
                where=f"the call of `{self.name}`",
                why=f"traced: {self.traced.in_tree}\n given: {tree}",
                instead="pass them as in the traced call, by position or by name, or trace again",
            )
        for index, value in self.traced.static_inputs.items():
            leaf = leaves[index]
            # The value of a tracer may be known, and be the same: a derivative would still be zero.
            if leaf is not value and (isinstance(leaf, Tracer) or getattr(leaf, "ndim", 0) or leaf != value):
                raise InvalidArgument(
                    f"an argument that is not an array is {leaf!r}",
                    where=f"the call of `{self.name}`",
                    why=f"{value!r} was baked in when it was traced",
                    instead="trace the model again with this value, or with an array, which may differ from call to call",
                )
        return [leaf for index, leaf in enumerate(leaves) if index not in self.traced.static_inputs]

    def _result(self, outputs: Sequence[Array]) -> object:
        leaves, arrays = dict(self.traced.static_outputs), iter(outputs)
        full = [leaves[i] if i in leaves else next(arrays) for i in range(self.traced.out_tree.num_leaves)]
        return jax.tree.unflatten(self.traced.out_tree, full)

    def _new_state(self, outputs: Sequence[Array]) -> dict[str, Array]:
        return dict(zip(self.traced.state_outputs, outputs[len(self.traced.output_paths) :], strict=True))

    # -- queries and edits -----------------------------------------------------------------------------------------

    @cached_property
    def tree(self) -> Tree:
        """The program as a tree of elements, built once."""
        from jaxport.mox.querying.tree import Tree

        return Tree(self.name, self.jaxpr.jaxpr)

    def select(self, query: Query, *, expect: int | None = None, strict: bool = True) -> Selection:
        """Return the blocks and equations that a query matches.

        Args:
          query: an XPath 1.0 expression, a path (``blocks.1.mlp``), a module class, which includes derived classes, or a
            predicate on matches. What `Selection.paths` and `capture` return is a path, whatever characters it has; that of
            a block (``mox["blocks.1"]``) may be relative to it.
          expect: the number of matches that the query must have.
          strict: whether names and attributes that nothing in the tree has are refused, rather than matching nothing.

        Raises:
          QueryError: the query is malformed, has a name that nothing has, or does not have `expect` matches.

        >>> import jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(lambda x: jnp.sin(jnp.sin(x)))(1.0 * jnp.ones(3))
        >>> mox.select("//sin").count()
        2
        """
        from jaxport.mox.querying.selection import select

        return select(self, query, expect, strict)

    def __getitem__(self, path: str) -> Match:
        """Return the block at a path.

        Raises:
          QueryError: there is none, or it is called several times.

        >>> import jax.numpy as jnp, jaxport
        >>> from flax import nnx
        >>> mlp = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jnp.tanh)
        >>> jaxport.make_mox(mlp)(jnp.ones(2))["layers.0"].config["out_features"]
        3
        """
        from jaxport.mox.querying.selection import at_path

        return at_path(self, path)

    def sub(self, query: Query, replacement: object, *, expect: int | None = None) -> Mox:
        """Return a new Mox in which each match of the query is replaced; `Selection.sub` says what a replacement may be.

        Raises:
          QueryError: the query is malformed, matches nothing, or does not have `expect` matches.
          InvalidArgument: the replacement does not fit.

        >>> import jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(lambda x: jnp.sin(x) + 1)(jnp.zeros(3))
        >>> mox.sub("//sin", jnp.cos)(jnp.zeros(3))
        Array([2., 2., 2.], dtype=float32)
        """
        return self.select(query, expect=expect).sub(replacement)

    def patch(self, changes: Mapping[str, object]) -> Mox:
        """Return a new Mox in which the outputs of blocks are replaced or changed.

        Args:
          changes: by path or query, a value to return instead (as `capture` gives it, or a single number), or a function of
            what the block returns; for several calls, a tuple. Values may be traced: patches compose with `vmap` and
            `grad`. Under `vmap`, values and functions are for the whole batch.

        Raises:
          QueryError: a query is malformed or matches nothing.
          InvalidArgument: a value does not have the shape and dtype of the block's output; a block is patched twice.

        >>> import jax, jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(lambda x: jnp.exp(jnp.sin(x)))(jnp.zeros(3))
        >>> mox.patch({"sin": jnp.asarray([0.0, 0.0, 1.0])})(jnp.ones(3))
        Array([1.       , 1.       , 2.7182817], dtype=float32)
        >>> mox.patch({"//sin": lambda y: 0 * y})(jnp.ones(3))
        Array([1., 1., 1.], dtype=float32)
        """
        from jaxport.mox.substitution.patching import patched

        return patched(self, changes)

    def unroll(self, query: Query = "//scan") -> Mox:
        """Return a new Mox with its scans unrolled: the layers of a stack become elements, `layers.0`, `layers.1`, ….

        `query` selects scans, or blocks inside scans that slice their parameters. The parameters stay stacked, and each
        layer takes its slice: values and gradients are the same. Parameters that an edit adds belong to one layer.

        Raises:
          QueryError: the query is malformed or matches nothing.
          InvalidArgument: a selected block is not a layer of a scanned stack.
          Unsupported: a scan has a symbolic number of steps, or changes references.

        >>> import jax, jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0])(1.0)
        >>> mox.select("//sin").count(), mox.unroll().select("//sin").count()
        (1, 3)
        """
        from jaxport.mox.substitution.unrolling import unrolled

        return unrolled(self.select(query))

    def shard(self, mesh: jax.sharding.Mesh, specs: Mapping[object, object]) -> Mox:
        """Return a new Mox with its parameters on the devices of a mesh, and the results of its blocks split as specified.

        Args:
          mesh: a `jax.sharding.Mesh`, with explicit or automatic axes; how the rest is split is left to the compiler.
          specs: by query, the `PartitionSpec` of the weight that the blocks multiply by (a bias is split like the output
            axes), or a dict of specs by the name of a parameter, or "output". The axes of a stack come first and are not
            split. Parameters that no query matches are replicated, or stay as they are if they are on the mesh.

        Raises:
          QueryError: a query is malformed or matches nothing.
          InvalidArgument: a block holds no such parameter, or a spec does not fit it.

        >>> import jax, jax.numpy as jnp, jaxport
        >>> from flax import nnx
        >>> mesh = jax.make_mesh((1,), ("model",))
        >>> mox = jaxport.make_mox(nnx.Linear(2, 4, rngs=nnx.Rngs(0)))(jnp.ones((1, 2)))
        >>> tuple(mox.shard(mesh, {"//Linear": jax.P(None, "model")}).params["bias"].sharding.spec)
        ('model',)
        """
        from jaxport.mox.sharding import sharded

        return sharded(self, mesh, specs)

    def capture(
        self,
        query: Query,
        *,
        expect: int | None = None,
        inputs: bool = False,
        grads: Callable[[Any], Any] | None = None,
    ) -> Callable[..., dict[str, Any]]:
        """Return a function of the model's arguments that returns the results of the selected blocks, by path.

        They are in an `OrderedDict`, in the order of execution, as are `Selection.paths()`.

        Args:
          query: selects the blocks.
          expect: the number of blocks that the query must match.
          inputs: whether to also return the arguments of the calls; each entry is then a triple `(inputs, output, grad)`.
          grads: a loss of the model's result; each entry is then such a triple, with its gradient with respect to the output.

        Raises:
          QueryError: the query is malformed, matches nothing, or does not match `expect` blocks.
          Unsupported: a selected value cannot be captured, because of the body that contains it.

        >>> import jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(lambda x: jnp.sin(jnp.cos(x)))(jnp.zeros(3))
        >>> dict(mox.capture("//cos")(jnp.zeros(3)))
        {'cos': Array([1., 1., 1.], dtype=float32)}
        >>> mox.capture("//cos", grads=lambda y: y.sum())(jnp.zeros(3))["cos"].grad
        Array([0.5403023, 0.5403023, 0.5403023], dtype=float32)
        """
        from jaxport.mox.substitution.capture import capture

        return capture(self.select(query, expect=expect), inputs, grads)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the Mox to a file (`.json`, `.yson` or `.xml`) and its weights beside it; see `jaxport.mox.save`.

        >>> import pathlib, tempfile, jax.numpy as jnp, jaxport
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "tanh.json"
        >>> jaxport.make_mox(jnp.tanh)(jnp.zeros(3)).save(file)
        >>> jaxport.mox.load(file)(jnp.zeros(3))
        Array([0., 0., 0.], dtype=float32)
        """
        from jaxport.mox.serialize.files import save

        save(self, path)

    def __reduce__(self) -> tuple:
        """Pickle the Mox as `save` writes it: what a file cannot contain is refused."""
        from jaxport.mox.serialize.files import pickled, unpickled

        return unpickled, pickled(self)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: dict[int, object]) -> Self:
        return self

    def fold(self, depth: int) -> Text:
        """Return the first `depth` levels of the tree as text.

        Raises:
          InvalidArgument: `depth` is not positive.

        >>> import jax, jax.numpy as jnp, jaxport
        >>> print(jaxport.make_mox(jax.jit(lambda x: jnp.sin(x) + 1))(jnp.zeros(3)).fold(depth=1))
        <lambda> x: f32[3] -> f32[3]
        └─ jit[<lambda>]  f32[3]
        """
        from jaxport.mox.looking.show import Text, text

        if depth < 1:
            raise InvalidArgument(f"depth={depth} is too small", where="`Mox.fold`", instead="give a positive number")
        return Text(text(self, depth))

    def _repr_html_(self) -> str:
        return self.show().data

    def show(self) -> Html:
        """Return the tree for a notebook, collapsible, with shapes and sizes.

        >>> import jax.numpy as jnp, jaxport
        >>> type(jaxport.make_mox(jnp.tanh)(jnp.zeros(3)).show()).__name__
        'Html'
        """
        from jaxport.mox.looking.page import html

        return html(self)

    def with_params(self, params: Mapping[str, Array]) -> Mox:
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

    def __repr__(self) -> str:
        from jaxport.mox.looking.show import text

        return text(self)

    def replaced(self, traced: Traced, **changes: object) -> Self:
        """Return a Mox with another program and the same names."""
        return replace(self, traced=traced, **changes)
