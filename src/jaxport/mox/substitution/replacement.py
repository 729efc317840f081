"""What takes the place of a block: how it is given, traced, and checked against its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, NoReturn

import jax
from jax.sharding import PartitionSpec

from jaxport import jaxprs
from jaxport.blocks.callables.framework import public_name
from jaxport.blocks.callables.values import NamedArrays, collect
from jaxport.blocks.tracing import Traced, TracedWeight, trace
from jaxport.errors import InvalidArgument, JaxportError
from jaxport.jaxprs import Array, Aval, Module, Parameters, PythonFunction
from jaxport.mox.programs.original import Site
from jaxport.mox.programs.program import TracedProgram
from jaxport.mox.programs.tree import Node, name_below
from jaxport.mox.querying.calls import TracedCall, arguments_of, nested, returns_of
from jaxport.mox.querying.origins import is_result
from jaxport.mox.substitution.copying import copied
from jaxport.mox.substitution.framework import framework as programs
from jaxport.mox.substitution.manual import manual_around
from jaxport.mox.substitution.placing import relative


@dataclass(frozen=True)
class Replacement:
    """A replacement that declares its new parameters and inputs.

    Attributes:
      apply: called as ``apply(original, params, *args, **inputs)``, where ``original(*args, params={...})`` runs the
        replaced block, with other values for some of its parameters, and ``original.param(name)`` is a parameter. It is
        traced once for all blocks of the same shapes; if it depends on a block's config, use a `factory`.
      params: new parameters by name; they appear in `Mox.params` below the path of the block.
      inputs: new inputs of the whole program, by name, each a `jax.ShapeDtypeStruct`.
      name: the name of the block that the replacement becomes.
      trainable: whether training changes the parameters, or the names of those that it changes.
      config: the `config` of the block that the replacement becomes.
      per_example: whether it is given one example at a time under `vmap`, as the block is, or the arrays of the whole
        batch.

    >>> from jaxport.mox import Replacement
    >>> import jax.numpy as jnp, jaxport
    >>> scaled = Replacement(lambda original, params, x: params["scale"] * original(x), {"scale": jnp.ones(3)})
    >>> mox = jaxport.make_mox(lambda x: jnp.sin(x) + 1)(jnp.zeros(3))
    >>> mox.sub("//sin", scaled).params
    {'sin.scale': Array([1., 1., 1.], dtype=float32)}
    """

    apply: PythonFunction
    params: Mapping[str, Array] = field(default_factory=dict)
    inputs: Mapping[str, jax.ShapeDtypeStruct] = field(default_factory=dict)
    name: str = ""
    trainable: bool | frozenset[str] = True
    config: Parameters = field(default_factory=dict)
    per_example: bool = True


@dataclass(frozen=True)
class Whole:
    """A function as a replacement that sees the arrays of the whole batch under `vmap`.

    If it `keeps` the layer, it gives other results for a call that stays what and where it is, though it runs no more.
    """

    function: PythonFunction
    keeps: bool = False

    def __call__(self, *args: object) -> Any:
        """Return what takes the place of the block's results."""
        return self.function(*args)


@dataclass(frozen=True)
class Factory:
    """A function that makes the replacement of each match; see `factory`.

    >>> import jax.numpy as jnp, jaxport
    >>> type(jaxport.mox.factory(lambda match: jnp.sin)).__name__
    'Factory'
    """

    make: PythonFunction

    def __call__(self, *_: object) -> NoReturn:
        """Raise an error: pass the factory to `sub`, which calls it with each match.

        Raises:
          InvalidArgument: always.
        """
        raise InvalidArgument(
            "a factory is called directly",
            where=public_name(self.make, ()),
            why="`sub` calls it with each match",
            instead="`mox.sub(query, factory)`",
        )


class Original:
    """The block that a `Replacement` replaces: its call and its parameters, which is all that may differ."""

    def __init__(self, match: TracedCall):
        self._match = match

    def __call__(self, *args: object, params: Mapping[str, Array] | None = None) -> Any:
        """Return what the block returns, with other values for some of its parameters."""
        return self._match(*args, params=params)

    def param(self, name: str) -> Array:
        """Return a parameter of the block, by its name below the block."""
        return self._match.param(name)


@dataclass(frozen=True)
class Rewrite:
    """A replacement of the body of a block by one of the same type: ``rewrite(body, path)`` gives the new one."""

    rewrite: Callable[[jaxprs.ClosedJaxpr, str], jaxprs.ClosedJaxpr]


def concrete(replacement: Any, match: TracedCall) -> Any:
    """Return what replaces a match: a `Replacement`, a `Rewrite` or a callable.

    Raises:
      InvalidArgument: the replacement is neither.
    """
    made = replacement.make(match) if isinstance(replacement, Factory) else replacement
    if isinstance(replacement, FunctionType) and _is_own(replacement):
        raise InvalidArgument(
            f"`{replacement.__name__}` must be called first",
            where="`Mox.sub`",
            why="it returns a replacement but is not one",
            instead=f"`mox.sub(query, {replacement.__name__}(...))`",
        )
    if not isinstance(made, Replacement | Rewrite) and not callable(made):
        raise InvalidArgument(
            f"a `{type(made).__name__}` cannot take the place of `{match.shown}`",
            where="`Mox.sub`",
            instead="give a function, a module, a Mox, a `Replacement`, or a `factory` that returns one of them",
        )
    return made


def changes_layers(replacement: object) -> bool:
    """Whether a replacement is an edit of this package, which changes a layer inside of what others put around it."""
    made = replacement.make if isinstance(replacement, Factory) else getattr(replacement, "rewrite", None)
    return _is_own(made)


def _is_own(function: object) -> bool:
    """Whether a function is one of the edits of this package."""
    return str(getattr(function, "__module__", "")).startswith("jaxport.mox.edits.")


@dataclass(frozen=True)
class Template:
    """A traced replacement.

    Attributes:
      jaxpr: from the arguments and other operands of the original, the new parameters and the new inputs, to the
        results; `original` equations stand for the original.
      params: the new parameters: name, value, whether training changes it.
      inputs: the new inputs: name and aval.
      name: the qualified name of the replacement.
      site: the original that the body calls.
      config: of the block that the replacement becomes.
      is_call: whether it is the call of one module: then the block of that call is the replacement.
      module: a copy of that module; None for a Mox.
      keeps: whether the block stays that of the original.
      is_tied: whether it is another block of the same model, whose parameters it has.
    """

    jaxpr: jaxprs.Jaxpr
    params: tuple[TracedWeight, ...]
    inputs: tuple[tuple[str, jax.ShapeDtypeStruct], ...]
    name: str
    site: Site
    config: Parameters = field(default_factory=dict)
    is_call: bool = False
    module: Module = None
    keeps: bool = False
    is_tied: bool = False


class Templates:
    """Traces replacements; those that are alike are traced once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Template] = {}

    def of(self, made: Replacement | PythonFunction, match: TracedCall, site: Site) -> Template:
        """Return the traced replacement of a match."""
        if not isinstance(made, Replacement):
            return _traced(made, match, site)
        avals = [(aval.shape, aval.dtype) for aval in (*site.jaxpr.in_avals, *site.jaxpr.out_avals)]
        params = tuple((name, value.shape, value.dtype) for name, value in made.params.items())
        inputs = tuple((name, aval.shape, aval.dtype) for name, aval in made.inputs.items())
        weights = match.block.named if match.block is not None else {}
        names = tuple((index, name_below(path, match.path)) for index, path in weights.items())
        key = (
            made.apply,
            made.name,
            tuple(avals),
            params,
            inputs,
            names,
            site.axes,
            site.arguments,
            returns_of(match.node),
            made.per_example,
        )
        known = self._known.get(key)
        if known is None:
            known = _of_replacement(made, match, site)
            if not known.site.is_dissolved:
                self._known[key] = known
        trained = made.params.keys() if made.trainable is True else made.trainable or ()
        # No call changes what is not trained: it is no statistic.
        weights_now = tuple(
            TracedWeight(name, value, name in trained, owned=name in trained) for name, value in made.params.items()
        )
        return Template(known.jaxpr, weights_now, known.inputs, known.name, known.site, made.config)


def _of_replacement(made: Replacement, match: TracedCall, site: Site) -> Template:
    def run(operands: list, params: dict, inputs: dict) -> list:
        original = Original(match)
        return _call(lambda *args: made.apply(original, params, *args, **inputs), match, site, operands, made)

    avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in site.jaxpr.in_avals]
    params = {name: jax.ShapeDtypeStruct(v.shape, v.dtype) for name, v in made.params.items()}
    # The edits of this package call no modules: nothing need be patched.
    frameworks = [programs] if _is_own(made.apply) else None
    manual = manual_around(match.node, match.shown)
    if manual is not None:
        avals, specs = manual.specs(site.jaxpr.in_avals)
        run = manual.mapped(run, (specs, PartitionSpec(), PartitionSpec()), site.jaxpr.out_avals[: site.results])
    arguments = avals, params, dict(made.inputs)
    traced = _trace(lambda: trace(run, arguments, state="outputs", frameworks=frameworks), match, made)
    if traced.weights:
        raise InvalidArgument(
            f"the replacement of `{match.shown}` closes over {len(traced.weights)} arrays",
            where=f"`Replacement.apply`, {public_name(made.apply, ())}",
            why="they would become parameters without names",
            instead="name them in `Replacement.params`, or give a plain function or a `factory`",
        )
    _refuse_changes(traced.state_outputs, match)
    # Dicts are flattened in the order of their names.
    order = [sorted(made.params).index(name) for name in made.params]
    first, count = len(avals), len(params)
    body = traced.jaxpr.jaxpr if manual is None else manual.body(traced.jaxpr.jaxpr)
    arranged = [*body.invars[:first], *(body.invars[first + index] for index in order), *body.invars[first + count :]]
    body = body.replace(invars=arranged, debug_info=body.debug_info._replace(arg_names=None))
    named = tuple((name, made.inputs[name]) for name in sorted(made.inputs))
    return Template(body, (), named, made.name or public_name(made.apply, ()), site)


def _traced(made: PythonFunction, match: TracedCall, site: Site) -> Template:
    method = _method_of(made, match)

    def run(*operands: Array) -> tuple:
        # Looked up here, where the window has patched it.
        function = made if method is None else getattr(made, method)
        return tuple(_call(function, match, site, list(operands), made))

    avals, manual = site.jaxpr.in_avals, manual_around(match.node, match.shown)
    if manual is not None:
        avals, specs = manual.specs(avals)
        run = manual.mapped(run, tuple(specs), site.jaxpr.out_avals[: site.results])
    traced = _trace(lambda: trace(run, tuple(avals), state="outputs", counters=True), match, made)
    _refuse_changes(made.traced.state_outputs if isinstance(made, TracedProgram) else traced.state_outputs, match)
    jaxpr, count = traced.jaxpr.jaxpr, len(traced.weights)
    jaxpr = jaxpr if manual is None else manual.body(jaxpr)
    invars = [*jaxpr.invars[count:], *jaxpr.invars[:count]]
    jaxpr = jaxpr.replace(invars=invars)
    # Only a module says which of its arrays are trained; what else is closed over is a constant.
    weights = tuple(replace(weight, trainable=weight.trainable and weight.owned) for weight in traced.weights)
    block = getattr(made, "block", None)
    if block is not None and block.path:  # a block of another program, or an edited one of this
        jaxpr = relative(jaxpr, block.path)
        weights = tuple(replace(weight, path=name_below(weight.path, block.path)) for weight in weights)
    is_call = _is_call(made, jaxpr)
    module = copied(made) if is_call and not isinstance(made, TracedProgram) else None
    keeps = isinstance(made, Whole) and made.keeps
    is_tied = isinstance(made, TracedCall) and made.root is match.root and made.node is not match.node
    return Template(
        jaxpr, weights, (), _name_of(made), site, is_call=is_call, module=module, keeps=keeps, is_tied=is_tied
    )


def _method_of(made: PythonFunction, match: TracedCall) -> str | None:
    """Return the method of a module that takes the place of a call of the same method; None if that is `__call__`."""
    method = "" if match.block is None else match.block.method
    is_other = method not in ("", "__call__") and _is_module(made) and callable(getattr(made, method, None))
    return method if is_other else None


def _refuse_changes(changed: Sequence[str], match: TracedCall) -> None:
    if changed:
        raise InvalidArgument(
            f"the replacement of `{match.shown}` changes the state of its modules",
            where=", ".join(f"`{path}`" for path in changed),
            why="the edited program would lose the new values",
            instead="switch it to evaluation (`module.eval()`), or make the changing value an input "
            "(`Replacement.inputs`)",
        )


def _name_of(made: Replacement | PythonFunction) -> str:
    """Return the qualified name of a replacement."""
    if isinstance(made, TracedProgram):
        block = getattr(made, "block", None)
        return made.name if block is None else block.target
    made = made.function if isinstance(made, Whole) else made
    return public_name(made if _is_named(made) else type(made), _namespaces())


def _is_call(made: Replacement | PythonFunction, jaxpr: jaxprs.Jaxpr) -> bool:
    """Whether a replacement is a module, or a Mox of one: all that it computes is in the block of that module."""
    if not isinstance(made, TracedProgram) and not _is_module(made):
        return False
    inside = [equation.params["block"] for equation in jaxpr.eqns if "block" in equation.params]
    arranging = all("block" in e.params or e.primitive.name in _ARRANGING for e in jaxpr.eqns)
    return arranging and len(inside) == 1 and not inside[0].path


# What `vmap` puts around a call to have the batch where the block has it.
_ARRANGING = frozenset({"broadcast_in_dim", "reshape", "squeeze", "transpose"})


def _is_module(made: object) -> bool:
    from jaxport.frameworks import loaded

    return any(framework.is_module(made) for framework in loaded())


def _is_named(made: Replacement | PythonFunction) -> bool:
    return hasattr(made, "__qualname__")


def _namespaces() -> list[str]:
    from jaxport.frameworks import loaded

    return ["jax.nn", "jax.numpy", "jax.lax", *(name for framework in loaded() for name in framework.namespaces)]


def _trace(trace: Callable[[], Traced], match: TracedCall, made: Replacement | PythonFunction) -> Traced:
    """Return the trace; explain the errors that the user's replacement raises."""
    # While it is traced, the match stands for the original wherever the replacement holds it.
    match._sites.append((None, None))
    try:
        return trace()
    except JaxportError:
        raise
    except Exception as error:  # anything that the user's function or JAX raises under tracing
        shown_avals = ", ".join(aval.str_short() for aval in match.in_avals)
        raise InvalidArgument(
            f"the replacement of `{match.shown}` fails: {type(error).__name__}",
            where=f"{_shown(made)}, called with {shown_avals or 'no arguments'}",
            why=str(error),
            instead="give a replacement that takes the arrays that the block takes",
        ) from error
    finally:
        match._sites.pop()


def _shown(made: Replacement | PythonFunction) -> str:
    made = made.apply if isinstance(made, Replacement) else made.function if isinstance(made, Whole) else made
    named = made if _is_named(made) else type(made)
    return f"`{made.name if isinstance(made, TracedProgram) else public_name(named, ())}`"


def _call(
    function: PythonFunction, match: TracedCall, site: Site, operands: list, made: Replacement | PythonFunction
) -> list[Array]:
    """Call a replacement for one element of all batches around the block; the results are checked, in order."""
    arrays, others = operands[: site.arguments], operands[site.arguments :]
    per_example = made.per_example if isinstance(made, Replacement) else not _is_whole(made, match)
    seen = site if per_example else replace(site, axes=())

    def once(*arrays: Array) -> list[Array]:
        match._sites.append((seen, [*arrays, *others]))
        try:
            result = function(*_arguments(match.node, arrays))
        finally:
            match._sites.pop()
        return _checked(result, match, seen, made)

    for in_axes, out_axes in seen.axes:
        once = jax.vmap(once, in_axes=tuple(in_axes), out_axes=list(out_axes))
    results = once(*arrays)
    site.is_dissolved |= seen.is_dissolved
    return results


def _is_whole(made: Any, match: TracedCall) -> bool:
    """Whether a replacement takes the arrays of the whole batch: as a block that is of such a batch itself does."""
    if isinstance(made, Whole):
        return True
    shapes = [[(aval.shape, aval.dtype) for aval in one.in_avals] for one in (made, match) if hasattr(one, "in_avals")]
    return len(shapes) == 2 and shapes[0] == shapes[1]


def _arguments(node: Node, arrays: Sequence[Array]) -> tuple[object, ...]:
    if not arrays:
        return ()
    groups = nested(arguments_of(node), arrays)
    return tuple(groups.values()) if isinstance(groups, dict) else tuple(groups)


def _checked(result: object, match: TracedCall, site: Site, made: Replacement | PythonFunction) -> list[Array]:
    """Return the arrays of a result in the order of the original's, of the same shapes and dtypes."""
    nested_arrays = NamedArrays()
    collect(result, "", lambda _: False, nested_arrays)
    wanted, paths = site.out_avals(len(site.axes)), returns_of(match.node)
    arrays = nested_arrays.arrays
    if set(nested_arrays.paths) == set(paths):
        arrays = [nested_arrays.arrays[nested_arrays.paths.index(path)] for path in paths]
    made_avals = [jax.typeof(array) for array in arrays]
    same = [(a.shape, a.dtype) for a in made_avals] == [(a.shape, a.dtype) for a in wanted]
    # A head may have another number of classes: the result of the model follows.
    if not same and not (len(made_avals) == len(wanted) and is_result(match.root, match.node, len(wanted))):
        raise InvalidArgument(
            f"the replacement of `{match.shown}` returns {_listed(made_avals)}",
            where=_shown(made),
            why=f"`{match.type}` returns {_listed(wanted)}, and later operations depend on it",
            instead="return arrays of the same shapes and dtypes, in the same order",
        )
    return arrays


def _listed(avals: Sequence[Aval]) -> str:
    return ", ".join(aval.str_short() for aval in avals) or "no arrays"
