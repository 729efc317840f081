"""Module expressions as users hold them: a Mox, its selections, and their matches, which return one another.

What they hold and compute is in the rooms below: a Mox is a `TracedProgram`, a Selection a `NodeSet`, a Match a
`TracedCall`. A method here calls the function that does the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.errors import InvalidArgument
from jaxport.jaxprs import Array, PythonFunction
from jaxport.mox.looking.page import html
from jaxport.mox.looking.show import Html, Text, text
from jaxport.mox.programs.program import TracedProgram
from jaxport.mox.querying.calls import TracedCall, call_of
from jaxport.mox.querying.node_sets import NodeSet, node_at, select
from jaxport.mox.serialize import files
from jaxport.mox.sharding import sharded
from jaxport.mox.substitution.capture import capture, tapped
from jaxport.mox.substitution.editing import substituted
from jaxport.mox.substitution.patching import patched
from jaxport.mox.substitution.replacement import Factory
from jaxport.mox.substitution.unrolling import unrolled
from jaxport.printable import shown


class Mox(TracedProgram):
    """A program as a tree of module calls: callable and immutable.

    `make_mox` makes one. It computes what the traced model computes, and composes with all of JAX's transformations.

    Attributes:
      traced: the jaxpr with blocks, the arrays that it holds, and the trees of its arguments and results.
      name: the name of the traced callable.
      signature: its signature; None if it has none.
      inputs: the inputs that edits have added, by name; they are keyword arguments of every call.
      dropped: the parameters that no equation uses any more after an edit, by path.
      modules: copies of the modules that replaced others, by path (None for a Mox that replaced one); None if the
        program was read from a file, which does not contain them.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(lambda x: jnp.tanh(x) * 2)(jnp.zeros(3))
    >>> mox(jnp.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    >>> print(mox)
    <lambda> x: f32[3] -> f32[3]
    ├─ tanh  f32[3]
    └─ mul  f32[3]
    """

    def select(self, query: Query, *, expect: int | None = None, strict: bool = True) -> Selection:
        """Return the blocks and equations that a query matches.

        Args:
          query: an XPath 1.0 expression, a path (``blocks.1.mlp``), a module class, which includes derived classes, or
            a predicate on matches. What `Selection.paths` and `capture` return is a path, whatever characters it has;
            that of a block (``mox["blocks.1"]``) may be relative to it.
          expect: the number of matches that the query must have.
          strict: whether names and attributes that nothing in the tree has are refused, rather than matching nothing.

        Raises:
          QueryError: the query is malformed, has a name that nothing has, or does not have `expect` matches.

        >>> import jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(lambda x: jnp.sin(jnp.sin(x)))(1.0 * jnp.ones(3))
        >>> mox.select("//sin").count()
        2
        """
        return select(Selection, self, query, expect, strict)

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
        return call_of(Match, self, node_at(self, path))

    def sub(self, query: Query, replacement: object, *, expect: int | None = None) -> Mox:
        """Return a new Mox in which each match of the query is replaced; `Selection.sub` says what a replacement may
        be.

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
          changes: by path or query, a value to return instead (as `capture` gives it, or a single number), or a
            function of what the block returns; for several calls, a tuple. Values may be traced: patches compose with
            `vmap` and `grad`. Under `vmap`, values and functions are for the whole batch.

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
        whole = Selection(self, tuple(self.tree.paths.get("", ())), "the whole model")
        return patched(self, [(self.select(path) if path else whole, change) for path, change in changes.items()])

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
        return unrolled(self.select(query))

    def shard(self, mesh: jax.sharding.Mesh, specs: Mapping[Any, object]) -> Mox:
        """Return a new Mox with its parameters on the devices of a mesh, and the results of its blocks split as
        specified.

        Args:
          mesh: a `jax.sharding.Mesh`, with explicit or automatic axes; how the rest is split is left to the compiler.
          specs: by query, the `PartitionSpec` of the weight that the blocks multiply by (a bias is split like the
            output axes), or a dict of specs by the name of a parameter, or "output". The axes of a stack come first and
            are not split. Parameters that no query matches are replicated, or stay as they are if they are on the mesh.

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
        return sharded(self, mesh, [(self.select(query), spec) for query, spec in specs.items()])

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
          inputs: whether to also return the arguments of the calls; each entry is then a triple
            `(inputs, output, grad)`.
          grads: a loss of the model's result; each entry is then such a triple, with its gradient with respect to the
            output.

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
        return capture(self.select(query, expect=expect), inputs, grads)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the Mox to a file (`.json`, `.yson` or `.xml`) and its weights beside it; see `jaxport.mox.save`.

        >>> import pathlib, tempfile, jax.numpy as jnp, jaxport
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "tanh.json"
        >>> jaxport.make_mox(jnp.tanh)(jnp.zeros(3)).save(file)
        >>> jaxport.mox.load(file)(jnp.zeros(3))
        Array([0., 0., 0.], dtype=float32)
        """
        files.save(self, path)

    def __reduce__(self) -> tuple:
        """Pickle the Mox as `save` writes it: what a file cannot contain is refused."""
        return unpickled, files.pickled(self)

    def fold(self, depth: int) -> Text:
        """Return the first `depth` levels of the tree as text.

        Raises:
          InvalidArgument: `depth` is not positive.

        >>> import jax, jax.numpy as jnp, jaxport
        >>> print(jaxport.make_mox(jax.jit(lambda x: jnp.sin(x) + 1))(jnp.zeros(3)).fold(depth=1))
        <lambda> x: f32[3] -> f32[3]
        └─ jit[<lambda>]  f32[3]
        """
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
        return html(self)

    def __repr__(self) -> str:
        return shown(text(self))


class Match(TracedCall, Mox):
    """A selected block or equation as a Mox: it takes the arrays of the call, in order, and returns the results of the
    call.

    Parameters that the program does not hold (arguments of the program, and slices of stacked parameters), and values
    that the block uses from outside, are keyword arguments, named by their paths; see `inputs`.

    Attributes:
      node: the equation, and its place in the program.
      root: the Mox that it was selected in.
      lengths: the lengths of the enclosing scans whose steps have parameters of their own, the outermost first.
      position: the step of each of these scans, if this is the block of one step.
    """

    root: Mox

    def __getitem__(self, path: str) -> Match:
        """Return the block at a path, in full or below this one; inside a replacement it is the original, too.

        Raises:
          QueryError: there is none, or it is called several times.
        """
        below = f"{self.path}.{path}" if self.path and isinstance(path, str) else path
        return super().__getitem__(below if below in self.tree.paths else path)


class Selection(NodeSet[Mox, Match]):
    """Blocks and equations of a Mox, in the order of the program. Each of them is itself a Mox.

    Attributes:
      mox: the Mox.
      nodes: the places of the members in the program.
      query: the query that selected them, for messages.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(lambda x: jnp.sin(x) + jnp.cos(x))(jnp.zeros(3))
    >>> waves = mox.select("//sin | //cos")
    >>> waves.count(), waves.paths(), waves.where(lambda match: match.type == "cos").paths()
    (2, ['sin', 'cos'], ['cos'])
    >>> sin = waves[0]
    >>> sin(jnp.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    """

    @cached_property
    def _calls(self) -> Sequence[Match]:
        return [call_of(Match, self.mox, node) for node in self.nodes]

    def sub(self, replacement: object) -> Mox:
        """Return a new Mox with each member replaced.

        Args:
          replacement: a function, a module or a Mox that takes the arrays that the member takes, and returns what it
            returns; or a `factory`, which is called with each member and returns one of these; or a `Replacement`.

        Raises:
          QueryError: there are no members.
          InvalidArgument: the replacement does not take or return the same arrays as the member.
          Unsupported: a member cannot be replaced, because of the body that contains it.
        """
        return substituted(self, replacement)

    def wrap(self, function: PythonFunction) -> Mox:
        """Return a new Mox in which each member's call becomes ``function(member, *args)``.

        >>> import jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(lambda x: jnp.cos(x) + 1)(jnp.zeros(3))
        >>> mox.select("//cos").wrap(lambda cos, x: 2 * cos(x))(jnp.zeros(3))
        Array([3., 3., 3.], dtype=float32)
        """
        return self.sub(factory(lambda match: lambda *args: function(match, *args)))

    def before(self, function: PythonFunction) -> Mox:
        """Return a new Mox in which `function` maps the arguments of each member to new ones: one value, or a tuple."""

        def wrapped(match: Match, *args: object) -> object:
            made = function(*args)
            return match(*made) if isinstance(made, tuple) else match(made, *args[1:])

        return self.wrap(wrapped)

    def after(self, function: PythonFunction) -> Mox:
        """Return a new Mox in which `function` is applied to the output of each member."""
        return self.wrap(lambda match, *args: function(match(*args)))

    def residual(self, function: PythonFunction) -> Mox:
        """Return a new Mox that adds `function` of each member's arguments to the member's output.

        >>> import jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(lambda x: jnp.cos(x) + 1)(jnp.zeros(3))
        >>> mox.select("//cos").residual(lambda x: x + 2)(jnp.zeros(3))
        Array([4., 4., 4.], dtype=float32)
        """
        return self.wrap(lambda match, *args: jax.tree.map(jnp.add, match(*args), function(*args)))

    def remove(self) -> Mox:
        """Return a new Mox in which each member returns its first arguments unchanged.

        Raises:
          InvalidArgument: the results of a member do not have the shapes and dtypes of its first arguments.
        """

        def passing(match: Match) -> PythonFunction:
            count = len(match.traced.output_paths)
            return lambda *args: args[0] if count == 1 else tuple(args[:count])

        return self.sub(factory(passing))

    def tap(self) -> Mox:
        """Return a new Mox that returns a pair: the result, and the outputs of the members by path, in their order."""
        return tapped(self)


Query: TypeAlias = str | type | Selection | Callable[[Match], object]
"""An XPath expression or a path, the class of modules, a selection made before, or a predicate on matches."""


def factory(make: Callable[[Match], object]) -> Factory:
    """Mark a function that is called with each match and returns its replacement.

    The match has the block's `config`, `params`, `in_avals` and `out_avals`; calling it inside the replacement runs
    the original.

    >>> from jaxport.mox import factory
    >>> import jax.numpy as jnp, jaxport
    >>> doubled = factory(lambda match: lambda x: 2 * match(x))
    >>> mox = jaxport.make_mox(lambda x: jnp.cos(x) + 1)(jnp.zeros(3))
    >>> mox.sub("//cos", doubled)(jnp.zeros(3))
    Array([3., 3., 3.], dtype=float32)
    """
    return Factory(make)


def query(xpath: Query, mox: Mox, *, expect: int | None = None) -> Selection:
    """Return the blocks and equations that a query matches in a Mox: ``mox.select(xpath)``.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(jnp.sin)(jnp.zeros(3))
    >>> jaxport.mox.query("//sin", mox).count()
    1
    """
    return mox.select(xpath, expect=expect)


def sub(xpath: Query, replacement: object, mox: Mox, *, expect: int | None = None) -> Mox:
    """Return a new Mox with each match of the query replaced: ``mox.sub(xpath, replacement)``.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(jnp.sin)(jnp.zeros(3))
    >>> jaxport.mox.sub("//sin", jnp.cos, mox)(jnp.zeros(3))
    Array([1., 1., 1.], dtype=float32)
    """
    return mox.sub(xpath, replacement, expect=expect)


def load(path: str | os.PathLike[str]) -> Mox:
    """Read a Mox from a file that `save` wrote.

    Raises:
      InvalidArgument: there is no such file, or its suffix is not that of a format.
      ModelError: a file is malformed, truncated, or hostile.
    """
    return files.read_file(path, Mox)


def loads(text: str, weights: Mapping[str, Array] | None = None, format: str | None = None) -> Mox:
    """Read a Mox from text.

    Args:
      text: the text that `dumps` returned.
      weights: the value of each weight by path: ``{**mox.params, **mox.state}``.
      format: "json", "yson" or "xml"; detected from the text by default.

    Raises:
      ModelError: the text is malformed, truncated, hostile, or needs weights that are not given.

    >>> import jax.numpy as jnp, jaxport
    >>> text = jaxport.mox.dumps(jaxport.make_mox(jnp.square)(jnp.ones(2)))
    >>> jaxport.mox.loads(text)(jnp.array([2.0, 3.0]))
    Array([4., 9.], dtype=float32)
    """
    return files.read_text(text, weights, format, Mox)


def unpickled(text: str, arrays: Mapping[str, tuple[str, np.ndarray]]) -> Mox:
    """Return the Mox that was pickled as this text and these arrays."""
    return files.unpickled(text, arrays, Mox)
