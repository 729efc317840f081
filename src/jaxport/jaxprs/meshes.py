"""Programs whose types say nothing of a mesh, on arrays that lie on a mesh.

The axes of a mesh are automatic (XLA splits what lies between arguments and results) or explicit: then types say how
each value is split, and each operation says how its result is. A traced program says neither, so it is evaluated on
automatic axes, and its results return to the mesh of the arguments.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np
from jax import core as jax_core
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxport.jaxprs.aliases import Array, Aval, Parameters, Shape
from jaxport.jaxprs.body_inputs import jit_parameters
from jaxport.jaxprs.releases import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, differing, is_under_jit, jaxpr_as_fun, nameless
from jaxport.jaxprs.rewrite import Rewriting, evaluated, fresh, itself, literals, with_operands
from jaxport.jaxprs.walk import bodies, interpret, with_equations

Result = TypeVar("Result")

NO_MESH = Mesh(np.empty((), object), ())
"""The mesh of the context where there is none."""


def explicit_mesh(avals: Iterable[Aval]) -> AbstractMesh | None:
    """Return the mesh with explicit axes that some of these types are of; None if there is none."""
    meshes = (getattr(getattr(aval, "sharding", None), "mesh", None) for aval in avals)
    return next((mesh for mesh in meshes if mesh is not None and mesh.explicit_axes), None)


def is_on_mesh(value: Array) -> bool:
    """Whether an array lies on a mesh."""
    return isinstance(getattr(value, "sharding", None), NamedSharding)


def on_host(value: Array) -> np.ndarray:
    """Return the whole value of an array; parts that other processes hold are gathered, which all of them have to do.

    Raises:
      UnexpectedTracerError: the array is of a trace that has ended, such as one that a cache of the user's function
        keeps.
    """
    if isinstance(value, jax_core.Tracer):
        jax.jit(lambda x: x)(value)  # JAX's own error says where it comes from
    elif isinstance(value, jax.Array) and not value.is_fully_addressable and not value.is_fully_replicated:
        return np.asarray(process_allgather(value, tiled=True))
    return np.asarray(value)


def automatic_mesh(mesh: Mesh) -> Mesh:
    """Return the mesh of the same devices whose axes are automatic."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


@contextmanager
def without_explicit_axes() -> Iterator[None]:
    """Trace inside as if the context had no mesh, if that has explicit axes: operations of a model name none of
    them.
    """
    if not jax.sharding.get_abstract_mesh().explicit_axes:
        yield
        return
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        yield


def on_automatic_axes(value: Array) -> Array:
    """Return an array as it is, but for the axes of its mesh, which are automatic."""
    sharding = getattr(value, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        return value
    with jax.ensure_compile_time_eval():
        return jax.device_put(value, NamedSharding(automatic_mesh(sharding.mesh), sharding.spec))


def of_no_mesh(value: Any) -> Any:
    """Return the type of an array on a mesh with explicit axes, without the mesh; anything else as it is."""
    aval = jax.typeof(value) if isinstance(value, jax.Array) else value
    if explicit_mesh([aval]) is None:
        return value
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def run_on_mesh(program: ClosedJaxpr, operands: Sequence[Array], weights: int = 0) -> list[Array]:
    """Return the results of a program; on the mesh of the operands if that has explicit axes.

    Args:
      program: the program. If its own types are of explicit axes, it is evaluated by their rules, as it was traced.
      operands: the operands.
      weights: how many of them, the first, are weights. How the results are split follows from the others: they are as
        for weights that are whole on each device.
    """
    mesh = explicit_mesh(map(jax.typeof, operands))
    if mesh is None or explicit_mesh(program.in_avals) is not None:
        return jaxpr_as_fun(program)(*operands)
    specs = [PartitionSpec()] * weights + [jax.typeof(operand).sharding.spec for operand in operands[weights:]]
    held = [getattr(operand, "sharding", None) for operand in operands if not isinstance(operand, jax_core.Tracer)]
    devices = [sharding.mesh for sharding in held if isinstance(sharding, NamedSharding)]
    known = next((each for each in devices if isinstance(each, Mesh) and each.explicit_axes), None)
    run = _on_automatic_axes(program, tuple(specs), mesh, known)
    if len(held) < len(operands) and not is_under_jit():
        # What a derivative keeps would leave the compiled function, and be of the mesh of the context: it is computed
        # again.
        run = jax.checkpoint(run)
    return run(*operands)


@functools.lru_cache(maxsize=64)
def _on_automatic_axes(
    program: ClosedJaxpr, specs: tuple[PartitionSpec, ...], mesh: AbstractMesh, known: Mesh | None
) -> Callable[..., list[Array]]:
    """Return a program as a function of arrays on a mesh with explicit axes, compiled as a whole.

    Args:
      program: the program.
      specs: how its operands are split, as its results are to follow from it.
      mesh: the mesh.
      known: the mesh with its devices, if they are known.
    """

    def run(*operands: Array) -> list[Array]:
        if known is not None:
            # JAX finds the devices of a function that is given no array on the mesh in what the function says of them.
            devices = NamedSharding(
                automatic_mesh(known), PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * operands[0].ndim)
            )
            operands = jax.lax.with_sharding_constraint(operands[0], devices), *operands[1:]
        return jaxpr_as_fun(program)(*operands)

    shardings = [NamedSharding(mesh, spec) for spec in _result_specs(program, specs, mesh)]
    types = (AxisType.Auto,) * len(mesh.axis_names)
    program = _InContext(AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=types)).closed(program)
    return jax.jit(jax.sharding.auto_axes(run, out_sharding=shardings))


def _result_specs(program: ClosedJaxpr, specs: tuple[PartitionSpec, ...], mesh: AbstractMesh) -> list[PartitionSpec]:
    """Return how the results of a program are split over the explicit axes of a mesh, given how its inputs are."""
    found = _of_body(program.jaxpr, specs, mesh)
    named = {*mesh.explicit_axes}
    return [PartitionSpec(*(part if {*_names(part)} <= named else None for part in spec)) for spec in found]


def _of_body(jaxpr: Jaxpr, specs: Sequence[PartitionSpec], mesh: AbstractMesh) -> list[PartitionSpec]:
    whole = PartitionSpec()
    inputs = [*(whole for _ in jaxpr.constvars), *specs]
    return interpret(jaxpr, inputs, lambda equation, specs: _of_equation(equation, specs, mesh), lambda _: whole)


def _of_equation(equation: JaxprEqn, specs: Sequence[PartitionSpec], mesh: AbstractMesh) -> list[PartitionSpec]:
    """Return how the results of an equation are split.

    1. What the user asked for.
    2. As the results of the body, if the equation is a call.
    3. By JAX's rule for the operation.
    4. As their leading axes are in an operand, if that rule cannot decide, and for loops and branches.
    """
    if equation.primitive.name == "sharding_constraint" and isinstance(equation.params["sharding"], NamedSharding):
        return [equation.params["sharding"].spec]
    inner = bodies(equation.params)
    if (
        inner
        and _shapes(inner[0].invars) == _shapes(equation.invars)
        and _shapes(inner[0].outvars) == _shapes(equation.outvars)
    ):
        return _of_body(inner[0], specs, mesh)
    if not any(map(any, specs)):
        return [PartitionSpec()] * len(equation.outvars)
    if not inner:
        avals: list[Any] = [atom.aval for atom in equation.invars]
        types = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=NamedSharding(mesh, spec))
            for aval, spec in zip(avals, specs, strict=True)
        ]
        try:
            results = jax.eval_shape(lambda *operands: evaluated(equation, operands), *types)
            return [result.sharding.spec for result in results]
        except Exception:  # noqa: BLE001  whatever a rule raises, which is no error: the program computes anyhow
            pass
    operands = [(shape, spec) for shape, spec in zip(_shapes(equation.invars), specs, strict=True) if any(spec)]
    return [_leading(shape, operands) for shape in _shapes(equation.outvars)]


def _leading(shape: Shape, operands: Sequence[tuple[Shape, PartitionSpec]]) -> PartitionSpec:
    """Return the parts of the leading axes that a result has in common with an operand: the first with the most."""
    specs = []
    for other, spec in operands:
        common = itertools.takewhile(lambda sizes: sizes[0] == sizes[1], zip(shape, other, strict=False))
        specs.append(spec[: len([*common])])
    return PartitionSpec(*max(specs, key=lambda parts: sum(part is not None for part in parts)))


def _shapes(atoms: Iterable[Atom]) -> list[Shape]:
    return [getattr(atom.aval, "shape", ()) for atom in atoms]


def _names(part: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (part,) if isinstance(part, str) else tuple(part or ())


def without_meshes(program: ClosedJaxpr, constraints: bool = False, manual: bool = True) -> ClosedJaxpr:
    """Return the program without what it says of meshes, which changes where values lie, and not what they are.

    Args:
      program: the program. A `shard_map`, which computes with the places of the devices, keeps its mesh.
      constraints: whether what only says where a value lies stays, too (`with_sharding_constraint`, `device_put`).
      manual: whether the bodies of `shard_map` stay as they are. Without what they say of the mesh they are still
        correct on a mesh whose other axes are automatic.
    """
    return _WithoutMeshes(constraints, manual).closed(program)


class _InContext(Rewriting):
    """Rewrites a program that was traced without a mesh as if it had been traced with this one.

    Calls are dissolved: the types of their bodies would make their results values of no mesh.
    """

    def __init__(self, mesh: AbstractMesh):
        super().__init__()
        self.mesh = mesh

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        if equation.primitive.name == "shard_map":
            return equation
        return super().equation(equation).replace(ctx=_context(equation.ctx, self.mesh))

    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        equations: list[JaxprEqn] = []

        def rule(equation: JaxprEqn, operands: list[Atom]) -> Sequence[Atom]:
            if equation.primitive.name == "jit" and not any(map(_is_split, equation.params["out_shardings"])):
                body = equation.params["jaxpr"]
                return interpret(body.jaxpr, [*literals(body), *operands], rule, itself)
            outvars = fresh(equation.outvars)
            equations.append(self.equation(with_operands(equation, operands, outvars)))
            return outvars

        outvars = interpret(jaxpr, (*jaxpr.constvars, *jaxpr.invars), rule, itself)
        return jaxpr.replace(eqns=equations, outvars=outvars, debug_info=nameless(jaxpr))


def _is_split(sharding: object) -> bool:
    return isinstance(sharding, NamedSharding)


_WITHOUT_AXES = AbstractMesh((), ())
# What only says where a value lies.
_CONSTRAINTS = ("sharding_constraint", "reshard", "device_put")


class _WithoutMeshes(Rewriting):
    def __init__(self, constraints: bool, manual: bool):
        super().__init__()
        self.constraints, self.manual = constraints, manual

    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        equations: list[JaxprEqn] = []

        def rule(equation: JaxprEqn, operands: list[Atom]) -> Sequence[Atom]:
            if equation.primitive.name in _CONSTRAINTS and not self.constraints:
                return operands
            equations.append(self.equation(with_operands(equation, operands)))
            return equation.outvars

        outvars = interpret(jaxpr, (*jaxpr.constvars, *jaxpr.invars), rule, itself)
        made = with_equations(jaxpr, equations)
        return made if made is jaxpr else made.replace(outvars=outvars)

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        if equation.primitive.name in _CONSTRAINTS or (equation.primitive.name == "shard_map" and self.manual):
            return equation
        equation = super().equation(equation)
        plain = {name: _of_no_mesh(name, value) for name, value in equation.params.items()}
        # What is evaluated in a `shard_map` is so on its mesh.
        context = equation.ctx if equation.ctx.cur_abstract_mesh.manual_axes else _context(equation.ctx, _WITHOUT_AXES)
        same = context is equation.ctx and all(plain[name] is value for name, value in equation.params.items())
        return equation if same else equation.replace(params=plain, ctx=context)


@functools.cache
def _context(context: Any, mesh: AbstractMesh) -> Any:
    """Return the context that an equation is evaluated in, with another mesh than that which it was traced with."""
    if context.cur_abstract_mesh == mesh:
        return context
    # JAX 0.9 asks for what is not the mesh; later releases read it from the contexts that are open.
    parameters = inspect.signature(type(context)).parameters.values()
    others = [getattr(context, each.name) for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    with context.manager, jax.sharding.use_abstract_mesh(mesh):
        return type(context)(*others)


def _of_no_mesh(name: str, value: Any) -> Any:
    """Return a parameter of an equation as it is where there is no mesh."""
    if name in ("sharding", "out_sharding"):
        return None
    if name == "ctx_mesh":
        return value if value.empty else NO_MESH
    if name in ("in_shardings", "out_shardings") and any(map(_is_split, value)):
        (unspecified,) = {*jit_parameters()["in_shardings"]}
        return tuple(unspecified if _is_split(item) else item for item in value)
    return value


# -- the body of a `shard_map` ---------------------------------------------------------------------------------------
#
# Each device computes it with its part of the operands. The axes of the mesh along which they are split are manual; the
# type of a value says along which of them it differs.


def abstract_mesh(axes: Iterable[tuple[str, int]]) -> AbstractMesh:
    """Return a mesh of automatic axes, given their names and sizes, without devices."""
    names, sizes = zip(*axes, strict=True)
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))


def mesh_of_devices(mesh: AbstractMesh) -> Mesh | None:
    """Return a mesh of this process's devices with the axes of a mesh without devices; None if there are too few.

    They are the first devices, in their order: meshes of one size then go together in one program.
    """
    devices = jax.devices()
    if mesh.size > len(devices):
        return None
    return Mesh(np.array(devices[: mesh.size]).reshape(mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types)


def in_body_of(shard_map: Parameters, function: Callable[[], Result]) -> Result:
    """Return what a function returns that is called while the body of a `shard_map` is traced.

    Args:
      shard_map: the parameters of the equation, in the form of `parameters`; its body is not read.
      function: the function. What it traces can use the manual axes.

    >>> mesh = abstract_mesh([("i", 2)])
    >>> shard_map = {"mesh": mesh, "newly_manual_axes": {"i"}, "check_vma": True}
    >>> in_body_of(shard_map, lambda: jax.lax.axis_size("i"))
    2
    """
    made: list[Result] = []

    def body() -> tuple[()]:
        made.append(function())
        return ()

    mapped = jax.shard_map(
        body,
        mesh=shard_map["mesh"],
        in_specs=(),
        out_specs=(),
        axis_names=set(shard_map["newly_manual_axes"]),
        check_vma=shard_map["check_vma"],
    )
    jax.make_jaxpr(mapped)()
    return made[0]


def local_type(shape: Shape, dtype: np.dtype, weak_type: bool, axes: Iterable[str]) -> Aval:
    """Return the type of an array in the body that is being traced, which differs along some manual axes."""
    whole = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec(*[None] * len(shape)))
    return differing(jax_core.ShapedArray(shape, dtype, weak_type=weak_type, sharding=whole), axes)
