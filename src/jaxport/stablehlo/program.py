"""`from_stablehlo` and the program that it returns."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
import inspect
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.errors import InvalidArgument, ModelError, Refusal, Unsupported, boundary
from jaxport.importer.limits import Limits
from jaxport.importer.modules import NodeModule
from jaxport.importer.names import unique, unique_identifiers
from jaxport.jaxprs import Array, Aval, Parameters, PythonFunction, source_info_util
from jaxport.jaxprs.identity import IdentityMap
from jaxport.jaxprs.releases import is_outside_traces
from jaxport.phases import phase
from jaxport.printable import printable
from jaxport.stablehlo import ops, recognised  # noqa: F401  the first registers the definitions
from jaxport.stablehlo.evaluate import HloWalk, refusals
from jaxport.stablehlo.reading import BYTECODE, read_module
from jaxport.stablehlo.scopes import ConstantUse, modules_of, untie, uses_of_constants
from jaxport.stablehlo.tree import HloModule, TensorType

source_info_util.register_exclusion(__file__)

PARAMETER = 2
"""From how many axes on a constant is a parameter; vectors are if they are long, or a module uses them."""
LONG = 16
SUFFIXES = (".mlir", ".mlirbc", ".stablehlo", ".jax", ".jaxexport")
"""The ends of the names of files that are taken for artifacts."""


def is_stablehlo(source: object) -> bool:
    """Whether something is an artifact, or names the file of one.

    >>> is_stablehlo("model.mlir"), is_stablehlo("model.onnx")
    (True, False)
    """
    if isinstance(source, jax.export.Exported):
        return True
    return isinstance(source, str | os.PathLike) and str(source).endswith(SUFFIXES)


def from_stablehlo(
    artifact: object, *, platforms: Sequence[str] | None = None, limits: Limits | None = None
) -> HloProgram:
    """Read a compiled artifact as a JAX function.

    Args:
      artifact: a `jax.export.Exported`, or what its `serialize` returns; the text of a StableHLO module, its bytecode,
        or a portable artifact; or the path of a file with one of these.
      platforms: the platforms of a module for several, in the order of their numbers; a `jax.export.Exported` knows
        them.
      limits: bounds on what reading the artifact and running it may cost.

    Returns:
      A function of the artifact's arguments, with its large constants in `params`. It works with `jax.jit`, `jax.grad`,
      `jax.vmap`, `jaxport.to_onnx`, `jaxport.to_source` and `jaxport.make_mox`.

    Raises:
      ModelError: the artifact is malformed; the message has line and column of a text.
      Unsupported: it has operations that cannot be computed; all of them are listed.
      InvalidArgument: there is no such file, or `artifact` is none.

    >>> import jax, jaxport, jax.numpy as jnp
    >>> exported = jax.export.export(jax.jit(lambda x: x * jnp.sin(x)))(jax.ShapeDtypeStruct((3,), "float32"))
    >>> program = jaxport.from_stablehlo(exported.serialize())
    >>> program(jnp.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    >>> jax.grad(lambda x: program(x).sum())(jnp.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    """
    where = f"`{artifact}`" if isinstance(artifact, str | os.PathLike) and "\n" not in str(artifact) else ""
    with boundary("the artifact is malformed", where=where, instead="write it again"), phase("Importing"):
        return HloProgram(
            _loaded(artifact),
            platforms=platforms,
            limits=limits,
            trusted=isinstance(artifact, jax.export.Exported),  # JAX has made it, or would parse it
        )


def _loaded(artifact: object) -> object:
    """Return the bytes or the text of a module, or an artifact of `jax.export`."""
    if isinstance(artifact, jax.export.Exported):
        return artifact
    if isinstance(artifact, str) and ("func.func" in artifact or ("module" in artifact and "\n" in artifact)):
        return artifact
    if isinstance(artifact, str | os.PathLike):
        path = Path(artifact)
        if path.name == "saved_model.pb" or (path / "saved_model.pb").is_file():
            raise InvalidArgument(
                "a SavedModel of TensorFlow is not read, and its weights are in files of their own",
                where=f"`{path}`",
                why="an artifact is in it only as the attribute `module` of a node `XlaCallModule`",
                instead="write what `jax.export.export(…)(…).serialize()` returns beside it, or take the attribute out "
                "with TensorFlow: `node.attr['module'].s` of a node in `graph.library.function`",
            )
        if not path.is_file():
            raise InvalidArgument("there is no such file", where=f"`{path}`", instead="give the path of an artifact")
        artifact = path.read_bytes()
    if not isinstance(artifact, bytes | bytearray | memoryview):
        raise InvalidArgument(
            f"a `{type(artifact).__name__}` is not an artifact",
            where="`from_stablehlo`",
            instead="give a `jax.export.Exported`, the text or the bytes of a module, or a path",
        )
    data = bytes(artifact)
    is_text = b"func.func" in data or b"module" in data[:4096]
    if data.startswith(BYTECODE) or (is_text and b"\0" not in data[:4096]):
        return data
    try:
        return jax.export.deserialize(bytearray(data))
    except Exception as error:
        raise ModelError(
            "the bytes are no artifact",
            why=f"they are neither MLIR nor what `jax.export` serializes: {error}"[:300],
            instead="give what `Exported.serialize()` returned, or a module of StableHLO",
        ) from error


class HloProgram:
    """A compiled artifact as a function of JAX, with its large constants in `params`.

    >>> import jax, jaxport, jax.numpy as jnp
    >>> exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((3,), "float32"))
    >>> jaxport.from_stablehlo(exported)
    HloProgram(sin: float32[3] -> float32[3])

    Attributes:
      module: the operations of the artifact.
      exported: the `jax.export.Exported` that it was read from, or None.
      params: the constants that are weights, by the names of their scopes.
    """

    def __init__(
        self,
        artifact: Any,
        *,
        platforms: Sequence[str] | None = None,
        limits: Limits | None = None,
        trusted: bool = False,
    ):
        self.limits = limits or Limits()
        self.exported: jax.export.Exported | None = artifact if isinstance(artifact, jax.export.Exported) else None
        data = artifact if self.exported is None else bytes(self.exported.mlir_module_serialized)
        self.module: HloModule = read_module(data, self.limits, trusted)
        recognised.restore(self.module)
        untie(self.module)
        refused = refusals(self.module) + self._effects()
        if refused:
            raise Unsupported(f"{len(refused)} operations of `{self.name}` cannot be imported", refused)
        self.platforms = tuple(platforms or (self.exported.platforms if self.exported is not None else ()))
        self._constants = {
            o.results[0]: o.attributes["value"] for o in self.module.operations() if o.name == "stablehlo.constant"
        }
        self.names = self._parameter_names()
        self._values = {name: self._constants[number] for number, name in self.names.items()}
        self._jitted: PythonFunction | None = None

    @property
    def name(self) -> str:
        """The name of the function that was exported."""
        return self.exported.fun_name if self.exported is not None else re.sub(r"^jit_", "", self.module.name)

    def __repr__(self) -> str:
        kinds = ", ".join(map(str, self.input_types))
        return printable(f"HloProgram({self.name}: {kinds} -> {', '.join(map(str, self.output_types))})")

    def _effects(self) -> list[Refusal]:
        if self.exported is None:
            return []
        effects = [*self.exported.ordered_effects, *self.exported.unordered_effects]
        return [
            Refusal(str(effect), "the artifact", "is an effect, which a function does not have") for effect in effects
        ]

    # -- arguments and results -----------------------------------------------------------------------------------------

    @cached_property
    def _own(self) -> list[int]:
        """The arguments of the main function that a caller gives: the number of the platform is none."""
        attributes = self.module.main.argument_attributes
        given = [at for at, of in enumerate(attributes) if "jax.global_constant" not in of and "jax.token" not in of]
        dims = [of["jax.global_constant"] for of in attributes if "jax.global_constant" in of]
        if dims == ["_platform_index"] and not self.platforms:
            raise InvalidArgument(
                "the module is for several platforms",
                where=f"`{self.name}`",
                instead="say which, in their order: `from_stablehlo(…, platforms=('cpu', 'tpu'))`",
            )
        return given

    @property
    def input_types(self) -> list[Any]:
        """The types of the arguments, flat: `jax.core.ShapedArray` of an artifact, else `TensorType`."""
        if self.exported is not None:
            return list(self.exported.in_avals)
        return jax.tree.leaves([self.module.main.body.types[at] for at in self._own])  # also those in tuples

    @property
    def output_types(self) -> list[Any]:
        """The types of the results, flat."""
        if self.exported is not None:
            return list(self.exported.out_avals)
        return jax.tree.leaves(self._results)

    @property
    def _results(self) -> list[Any]:
        return [self.module.kinds[value] for value in self.module.main.body.returned]

    @property
    def inputs(self) -> list[Any]:
        """A specification for each argument, as `to_onnx` takes them: sizes that are open have names."""
        if self.exported is not None:
            structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in self.exported.in_avals]
            args, kwargs = jax.tree.unflatten(self.exported.in_tree, structs)
            if kwargs:
                raise InvalidArgument(
                    "the artifact has arguments by name",
                    where=f"`{self.name}`",
                    instead="give `inputs` as `to_onnx` takes them",
                )
            return list(args)
        scope = jax.export.SymbolicScope()
        specs = []
        for at, kind in enumerate(self.input_types):
            text = ", ".join(f"d{at}_{axis}" if size is None else str(size) for axis, size in enumerate(kind.shape))
            specs.append(jax.ShapeDtypeStruct(jax.export.symbolic_shape(text, scope=scope), kind.dtype))
        return specs

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """The names of the arguments by position, as far as the artifact is flat: `x0`, `x1`, …"""
        return tuple(
            unique_identifiers(f"x{at}" if len(self.input_types) > 1 else "x" for at in range(len(self.input_types)))
        )

    @property
    def signature(self) -> inspect.Signature | None:
        """The parameters, by position; None if the artifact has arguments by name."""
        count = len(self.input_types)
        if self.exported is not None:
            args, kwargs = jax.tree.unflatten(self.exported.in_tree, range(self.exported.in_tree.num_leaves))
            count = len(args)
            if kwargs:
                return None
        kind = inspect.Parameter.POSITIONAL_ONLY
        names = [f"x{at}" if count > 1 else "x" for at in range(count)]
        return inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def _flat(self, args: tuple[object, ...], kwargs: Parameters) -> list[Array]:
        """Return the arguments as a list; the error says what differs."""
        leaves, tree = jax.tree.flatten((args, dict(kwargs)))
        types = self.module.main.body.types
        wanted = jax.tree.structure((tuple(types[at] for at in self._own), {}))
        wanted = self.exported.in_tree if self.exported is not None else wanted
        if tree != wanted:
            raise InvalidArgument(
                "the arguments have another structure than the artifact's",
                where=f"`{self.name}`",
                why=f"they are {tree}, and the artifact takes {wanted}"[:400],
                instead="give the arguments that the function was exported with",
            )
        return [self._argument(at, x, kind) for at, (x, kind) in enumerate(zip(leaves, self.input_types, strict=True))]

    def _argument(self, at: int, x: Any, kind: Any) -> Any:
        if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
            return x
        x = x if isinstance(x, jax.Array | np.ndarray) else jnp.asarray(x)
        same = jnp.issubdtype(x.dtype, jnp.integer) == jnp.issubdtype(kind.dtype, jnp.integer)
        same &= jnp.issubdtype(x.dtype, jnp.inexact) == jnp.issubdtype(kind.dtype, jnp.inexact)
        shape = tuple(getattr(kind, "shape", ()))
        fits = len(shape) == x.ndim and all(
            not isinstance(size, int) or size == given for size, given in zip(shape, x.shape, strict=True)
        )
        if not same or not fits:
            raise InvalidArgument(
                f"argument {at} is {jax.typeof(x)}",
                where=f"`{self.name}`",
                why=f"the artifact takes {kind}",
                instead="give an array of this type",
            )
        return x if x.dtype == kind.dtype else x.astype(kind.dtype)

    # -- parameters ----------------------------------------------------------------------------------------------------

    def _parameter_names(self) -> dict[int, str]:
        """Return names for the constants that are weights: floating-point arrays, by the scopes that use them."""
        uses = uses_of_constants(self.module)
        found: list[tuple[int, str]] = []
        for number, value in self._constants.items():
            use = uses.get(number, ConstantUse(()))
            is_repeated = value.strides == (0,) * value.ndim or use.operation == "tile"  # a table, not a weight
            is_repeated |= use.operation == "divide" and value.ndim == 1  # statistics
            is_weight = not is_repeated and (value.ndim >= PARAMETER or value.size >= LONG)
            if (
                jnp.issubdtype(value.dtype, jnp.inexact)
                and value.ndim
                and (is_weight or (value.ndim == 1 and use.scope and use.operation != "divide"))
            ):
                found.append((number, ".".join((*use.scope, _KINDS.get(use.operation, "constant")))))
        names: dict[str, int] = {}
        for number, place in found:
            names[unique(place, names)] = number
        return {number: name for name, number in names.items()}

    @property
    def params(self) -> dict[str, jax.Array]:
        """The constants that are weights, by name."""
        with self._types(), jax.ensure_compile_time_eval():
            return {name: jnp.asarray(value) for name, value in self._values.items()}

    @property
    def param_specs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shape and dtype of each parameter, without reading any."""
        return {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in self._values.items()}

    @cached_property
    def weights(self) -> dict[str, jax.Array]:
        """The parameters, each one array however often it is asked for."""
        return self.params

    @cached_property
    def modules(self) -> NodeModule:
        """The tree of the modules that the locations of operations name."""
        return self.scopes[""]

    @cached_property
    def scopes(self) -> dict[str, NodeModule]:
        """The modules by path, parents first; the artifact itself is at ""."""
        found = modules_of(self.module)
        for name, spec in self.param_specs.items():
            for path, module in found.items():
                if not path or name.startswith(f"{path}."):
                    module.parameters[name] = int(np.prod(spec.shape))
        return found

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _types(self) -> AbstractContextManager[object]:
        """Return a context in which the types of the module exist."""
        return jax.enable_x64(True) if self._is_wide and not jax.config.read("jax_enable_x64") else nullcontext()

    @cached_property
    def _is_wide(self) -> bool:
        kinds = [kind for o in self.module.operations() for kind in o.types] + list(self.module.main.body.types)
        return any(isinstance(k, TensorType) and k.dtype.itemsize == (16 if k.dtype.kind == "c" else 8) for k in kinds)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Return the results of the artifact's function.

        A first argument that has the names of `params` is taken for these: `program(params, x)` is
        `program.apply(params, x)`.
        """
        if args and isinstance(args[0], Mapping) and self._values and args[0].keys() == self._values.keys():
            return self.apply(args[0], *args[1:], **kwargs)
        return self._applied(None, args, kwargs)

    def flat(self, *leaves: Array) -> list[Array]:
        """Return the results as a list, for the arguments as a list."""
        with self._types():
            return self._run(self.weights, leaves)

    def apply(self, params: Parameters, /, *args: object, **kwargs: object) -> Any:
        """Return the results with these values of the parameters, as `params` has them.

        Raises:
          InvalidArgument: a parameter is missing or unknown, or an argument does not fit.
        """
        if params.keys() != self._values.keys():
            names = sorted(params.keys() ^ self._values.keys())
            raise InvalidArgument(
                f"the parameter `{names[0]}` is {'unknown' if names[0] in params else 'missing'}",
                where=f"`{self.name}`",
                instead="give all of `program.params`, with other values",
            )
        return self._applied(params, args, kwargs)

    def _applied(self, params: Parameters | None, args: tuple[object, ...], kwargs: Parameters) -> Any:
        with boundary("the program cannot be called with these arguments", where=f"`{self.name}`"), self._types():
            leaves = self._flat(args, kwargs)
            given = self.weights if params is None else dict(params)
            if is_outside_traces() and not self._is_known_by_value:
                self._jitted = self._jitted or jax.jit(self._run)
                results = self._jitted(given, leaves)
            else:
                results = self._run(given, leaves)
        if self.exported is not None:
            return jax.tree.unflatten(self.exported.out_tree, results)
        made = jax.tree.unflatten(jax.tree.structure(tuple(self._results)), results)
        return made[0] if len(made) == 1 else made

    @cached_property
    def _is_known_by_value(self) -> bool:
        """Whether sizes may depend on the values of arguments: those that are whole numbers, in modules that were not
        made by JAX.
        """
        return self.exported is None and self.module.is_dynamic

    def _run(self, params: Parameters, leaves: Sequence[Array]) -> list[Array]:
        from jaxport.stablehlo import host

        main = self.module.main
        used = sum(getattr(x, "nbytes", 0) for x in leaves if not isinstance(x, jax.core.Tracer))
        values = {number: params[name] for number, name in self.names.items()}
        largest = max(
            self.limits.bytes,
            self.limits.growth * (used + sum(v.nbytes for v in self._constants.values() if v.strides != (0,) * v.ndim)),
        )
        walk = HloWalk(self.module, values, largest, {})
        walk.modules = self.scopes
        kept = leaves if self.exported is None else [leaves[at] for at in self.exported.module_kept_var_idx]
        given = iter([jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in kept])
        operands = []
        for at, attributes in enumerate(main.argument_attributes):
            if at in self._own:
                operands.append(jax.tree.map(lambda _: next(given), main.body.types[at]))
            else:
                operands.append(None if "jax.token" in attributes else self._platform(main.body.types[at].dtype))
        results = [host.as_jax(value) for value in jax.tree.leaves(walk.run(main.body, operands, {}))]
        if self.exported is None:
            return [jnp.asarray(value) for value in results]
        return [_of_type(value, aval) for value, aval in zip(results, self.exported.out_avals, strict=True)]

    def _platform(self, dtype: np.dtype) -> np.ndarray:
        return np.asarray(self.platforms.index("cpu") if "cpu" in self.platforms else 0, dtype)


def _of_type(value: Array, aval: Aval) -> jax.Array:
    """Return a result as an array of the type that the artifact declares: keys are more than their bits."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(value, impl=jax.random.key_impl(jnp.zeros((), aval.dtype)))
    return jnp.asarray(value)


_KINDS = {
    "dot_general": "kernel",
    "convolution": "kernel",
    "gather": "embedding",
    "add": "bias",
    "subtract": "bias",
    "multiply": "scale",
}
"""What a weight is called by what computes with it."""
_programs: IdentityMap[jax.export.Exported, HloProgram] = IdentityMap()


def program_of(exported: jax.export.Exported) -> HloProgram:
    """Return the program of an artifact, the same one each time."""
    if exported not in _programs:
        _programs[exported] = from_stablehlo(exported)
    return _programs[exported]
