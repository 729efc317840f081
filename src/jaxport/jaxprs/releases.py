"""The releases of JAX that the package was tested with, and the differences between them.

Everything that depends on the release is in this package, `jaxprs`; the rest asks it. Only this file uses names of JAX
that are private, or whose place changes between releases (`jax._src`, `jax.extend`, `jax.interpreters`), but for the
checks of sizes in `dims`: the rest imports them from here, which an architecture test checks. The known differences:

==========================================  =========================================================================
from release                                what differs
==========================================  =========================================================================
0.10                                        `jax.extend.core` exports `DebugInfo`, `DropVar`, `check_jaxpr`,
                                            `new_jaxpr_eqn`, `valid_jaxtype`,
                                            `InconclusiveDimensionOperation`; before, they are in `jax._src.core` alone.
0.10                                        `scan` has no parameters `linear` and `_split_transpose` any more.
0.10                                        `discharge_state` takes and gives a closed jaxpr; before, that is
                                            `discharge_state2`.
0.10                                        An effect on a mutable reference names the variable; before, its place among
                                            the operands.
0.10                                        The type of a value says along which axes of a mesh it differs by
                                            `manual_axis_type.varying`; before, by `vma`.
0.10                                        `shard_map` calls the axes that it makes manual `newly_manual_axes`; before,
                                            `manual_axes`.
0.10                                        `tridiagonal_solve` has a parameter `perturb_singular`.
0.11                                        `ClosedJaxpr` and `Jaxpr` are one class: `closed.jaxpr` is `closed`, and an
                                            open jaxpr is one without constants.
0.11                                        `scan` says what its operands and results are by `ft_in` and `ft_out`, trees
                                            with a leaf per value; before, by `num_consts` and `num_carry`.
0.11                                        `closed_call` is called `eval_jaxpr`.
0.11                                        `composite` calls its jaxpr `call_jaxpr`; before, `jaxpr`.
0.11                                        `jit` says by an `enum` whether it is inlined; before, by a bool.
0.11                                        XLA's compiler refuses `xla_cpu_use_fusion_emitters`.
0.11                                        `digamma` is -inf at zero, as is its limit from above; before, NaN.
0.12 or before                              `reduce_max` and `reduce_min` have a parameter `out_sharding`, `top_k` has
                                            `is_stable`; `one_minus_square` and `unstack` are primitives.
0.12                                        `abs` of a complex number is infinite if a part is, whatever the other is
                                            (C99, annex G); before, it is NaN if the other is.
0.12                                        The liveness rule of a primitive is told which mutable operands are read
                                            later: one argument more.
==========================================  =========================================================================
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
from jax import lax
from jax._src import core as _core

# JAX has no public way to ask how a primitive is lowered.
from jax._src.interpreters.mlir import _lowerings

# Definitions of primitives, as JAX functions without public names; they serve as rules directly.
from jax._src.lax.lax import _ragged_dot_general_impl as ragged_dot_general_impl
from jax._src.lax.linalg import geqp3 as _geqp3, geqrf as _geqrf
from jax._src.lax.special import (
    bessel_i0e_impl,
    igamma_grad_a_impl,
    igamma_impl,
    igammac_impl,
    random_gamma_grad_impl,
    regularized_incomplete_beta_impl,
)
from jax._src.lib.mlir import ir as _ir
from jax._src.lib.mlir.dialects import hlo as _stablehlo
from jax._src.state import discharge as _discharge
from jax.extend import source_info_util
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Primitive, Var, jaxpr_as_fun, primitives as known_primitives
from jax.extend.core.primitives import closed_call_p, div_p, mul_p, random_gamma_p, threefry2x32_p as _threefry2x32_p
from jax.interpreters import ad, batching, mlir, partial_eval

from jaxport.jaxprs.aliases import Array, Effect, Parameters, PythonFunction


class Release(NamedTuple):
    """A release of JAX: the numbers that something depends on."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))


def _read(text: str) -> Release:
    """Return the release of a version; what follows three numbers (`.dev…`, `rc1`, a fourth number) is ignored.

    >>> _read("0.12.0.1"), _read("0.13.0.dev20270101")
    (Release(major=0, minor=12, patch=0), Release(major=0, minor=13, patch=0))
    """
    numbers = [int(number) for number in re.findall(r"\d+", text)[:3]]
    return Release(*numbers)


TESTED = (Release(0, 9, 2), Release(0, 10, 2), Release(0, 11, 2), Release(0, 12, 0))
"""The releases that the test suite was run with. There is no upper bound: a newer one is used until something fails."""

release = _read(jax.__version__)
"""The release in this process."""

DIGAMMA_AT_ZERO = -math.inf if release >= (0, 11) else math.nan
"""The values of `digamma` at zeros of both signs."""

INFINITE_BESIDE_NAN = release >= (0, 12)
"""Whether the absolute value of a complex number with an infinite part and a NaN is infinity."""


def untested(of: Release = release) -> str:
    """Return a warning for a release of a newer minor version than all tested ones; else "".

    >>> untested(Release(0, 9, 2))
    ''
    >>> untested(Release(1, 0, 0))
    'JAX 1.0.0 is newer than 0.12.0, the last release that jaxport was tested with'
    """
    if of[:2] <= TESTED[-1][:2]:
        return ""
    return f"JAX {of} is newer than {TESTED[-1]}, the last release that jaxport was tested with"


_said: set[str] = set()


@contextmanager
def failures_name_untested_jax(note: str = untested()) -> Iterator[None]:
    """Add a note to errors raised inside, once per process, if JAX is newer than all tested releases."""
    try:
        yield
    except Exception as error:
        if note and note not in _said:
            _said.add(note)
            error.add_note(note)
        raise


#: Options of XLA's compiler, which refuses unknown ones, for programs that run once: compile fast, and run slowly.
QUICKLY: dict[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,  # one module of LLVM instead of one per kernel
    # The other emitters are gone from 0.11 on, and the option with them.
    **({"xla_cpu_use_fusion_emitters": False} if release < (0, 11) else {}),
}


if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr

    Inline: Any
    flattree: Any
else:
    # The class of a jaxpr with its constants; the same as `Jaxpr` from 0.11 on.
    ClosedJaxpr = getattr(_core, "ClosedJaxpr", Jaxpr)
    if release >= (0, 11):  # whether to inline a call; the trees of the operands of a scan
        from jax._src import flattree
        from jax._src.api import Inline
    else:
        flattree = Inline = None

# What an equation reads: a variable, or a number that is written in the program.
Atom = Var | Literal
# Public from 0.10 on, in `jax.extend.core`.
DebugInfo = _core.DebugInfo
DropVar = _core.DropVar
get_opaque_trace_state = _core.get_opaque_trace_state
InconclusiveDimensionOperation = _core.InconclusiveDimensionOperation
check_jaxpr = _core.check_jaxpr
new_jaxpr_eqn = _core.new_jaxpr_eqn
valid_jaxtype = _core.valid_jaxtype
# Whether what runs is traced to be compiled, and not evaluated (also under `grad`).
is_under_jit = _core.unsafe_am_i_under_a_jit
# Whether this thread traces nothing: no `jit`, no `grad`, no `vmap`.
is_outside_traces = _core.trace_state_clean
# The effect of a jaxpr with mutable arrays of its own.
internal_mutable_array_effect = _core.internal_mutable_array_effect
# The name of the private function that `jax.image.resize` compiles, which its calls bear.
RESIZE = "_resize"


def closed(jaxpr: Jaxpr, consts: Sequence[Array]) -> ClosedJaxpr:
    """Return a jaxpr with its constants; the same object if it has them already, so that sharing is kept."""
    if isinstance(jaxpr, ClosedJaxpr) and list(map(id, jaxpr.consts)) == list(map(id, consts)):
        return jaxpr
    return ClosedJaxpr(jaxpr, consts)


def of_one_trace(one: Any, other: Any) -> bool:
    """Whether two tracers belong to the same trace.

    >>> jax.jit(lambda x: x if of_one_trace(x, x + 1) else 0 * x)(3)
    Array(3, dtype=int32, weak_type=True)
    """
    return one._trace is other._trace


def nameless(jaxpr: Jaxpr) -> DebugInfo:
    """Return the debug information for a jaxpr made from this one with other inputs and outputs."""
    return jaxpr.debug_info._replace(arg_names=None, result_paths=None)


def named(jaxpr: Jaxpr) -> Jaxpr:
    """Return a body whose inputs have names, empty ones if none are known: before 0.10, the derivative of a loop adds
    to them.
    """
    if release >= (0, 10) or jaxpr.debug_info.arg_names is not None:
        return jaxpr
    return jaxpr.replace(debug_info=jaxpr.debug_info._replace(arg_names=("",) * len(jaxpr.invars)))


def varying_axes(aval: object) -> frozenset[str]:
    """Return the manual axes of a mesh along which a value differs; before 0.10 its type has them as `vma`."""
    if release < (0, 10):
        return frozenset(getattr(aval, "vma", None) or ())
    return frozenset(getattr(getattr(aval, "manual_axis_type", None), "varying", ()))


def differing(aval: Any, axes: Iterable[str]) -> Any:
    """Return a type, as that of values that differ along some manual axes of a mesh."""
    if release < (0, 10):
        return aval.update(vma=frozenset(axes))
    return aval.update(manual_axis_type=_core.ManualAxisType(varying=frozenset(axes)))


def struct_of(aval: Any) -> Any:
    """Return what stands for an array of a type where a function is traced; it is not weak."""
    return aval.update(weak_type=False) if varying_axes(aval) else jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def concerns_reference(effect: object) -> bool:
    """Whether an effect of an equation reads or writes a mutable reference.

    >>> import jax
    >>> jaxpr = jax.make_jaxpr(lambda x: jax.new_ref(x)[...])(1.0)
    >>> [concerns_reference(effect) for equation in jaxpr.eqns for effect in equation.effects][-1]
    True
    """
    return hasattr(effect, "input") or hasattr(effect, "input_index")


def reference_of(effect: object) -> Var | None:
    """Return the mutable reference that an effect names; None for effects that name none.

    Before JAX 0.10 an effect has the place of the reference among the operands, which stays as it is.
    """
    return getattr(effect, "input", None)


def with_reference(effect: Effect, reference: Atom) -> Effect:
    """Return an effect on another mutable reference than the one that it names."""
    return cast("Any", effect).replace(reference)


def varying(value: Array, axes: tuple[str, ...]) -> Array:
    """Return a value as one that differs along more manual axes of a mesh, inside a `shard_map` that tracks them."""
    return jax.lax.pcast(value, axes, to="varying") if axes else value


# Removes the mutable arrays of a closed jaxpr; before 0.10 the function of this name takes the constants separately.
discharge_state = _discharge.discharge_state if release >= (0, 10) else getattr(_discharge, "discharge_state2")  # noqa: B009


LivenessRule = Callable[[Sequence[bool], JaxprEqn], tuple[list[bool], JaxprEqn | None]]
"""From the used results to the used operands and the remaining equation; None if none remains."""

dce_jaxpr = partial_eval.dce_jaxpr
#: Partial evaluation of a primitive of whose operands some are known, and others, as tangents, are not.
partial_eval_rules: dict[Primitive, PythonFunction] = partial_eval.custom_partial_eval_rules


def liveness_rule(primitive: Primitive) -> Callable[[LivenessRule], LivenessRule]:
    """Register dead-code elimination for the equations of a primitive whose operands are values."""

    def register(function: LivenessRule) -> LivenessRule:
        rules: dict[Primitive, Any] = partial_eval.dce_rules
        # From 0.12 on the second argument tells which operands are read later; it only matters for mutable ones.
        rules[primitive] = function if release < (0, 12) else lambda used, _, equation: function(used, equation)
        return function

    return register


def implementations(primitive: Primitive) -> list[PythonFunction]:
    """Return the candidate implementations of a primitive, to call with its operands and its parameters.

    Whether JAX can trace one of them is only known by trying: many just pass the primitive to the compiler.

    >>> import jax
    >>> from jax.extend.core.primitives import conj_p
    >>> implementations(conj_p)[-1](jax.numpy.ones(()), input_dtype=None)
    Array(1.+0.j, dtype=complex64)
    """
    # From 0.12 on some primitives (`call_hi_primitive`) are replaced before lowering by what `to_lojax` traces.
    candidates = [getattr(primitive, "to_lojax", None), getattr(primitive, "impl", None), _lowered_function(primitive)]
    return [function for function in candidates if callable(function)]


def _lowered_function(primitive: Primitive) -> PythonFunction | None:
    """Return the function passed to `jax.interpreters.mlir.lower_fun`, if a primitive is lowered by one."""
    entry: Any = _lowerings.get(primitive)
    lowering = getattr(entry, "rule", entry)
    if not getattr(lowering, "__qualname__", "").startswith("lower_fun."):
        return None
    cells = dict(zip(lowering.__code__.co_freevars, lowering.__closure__, strict=True))
    return cells["fun"].cell_contents


def changes_nothing(primitive: str, parameter: str, value: object) -> bool:
    """Whether a parameter has the value that it has unless someone asks for another: None, or the default.

    JAX keeps the meaning of a call that does not mention a parameter. So if a release adds a parameter to a primitive,
    its value for the former meaning is the default of the public function.

    >>> changes_nothing("sort", "is_stable", True), changes_nothing("cumsum", "reverse", True)
    (True, False)
    """
    if value is None:
        return True
    defaults = _defaults(primitive)
    if parameter not in defaults:
        return False
    default = defaults[parameter]
    return value is default or (type(value) is type(default) and bool(value == default))


@functools.cache
def _defaults(primitive: str) -> Parameters:
    """Return the defaults of the public function of a primitive."""
    name = primitive.replace("-", "_")
    function = getattr(lax, name, None) or getattr(lax.linalg, name, None)
    try:
        parameters = inspect.signature(function).parameters.values() if callable(function) else ()
    except ValueError:  # a function without a signature that Python can read
        return {}
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def parameters(equation: JaxprEqn) -> Parameters:
    """Return the parameters of an equation in the form that the rest of the package knows."""
    name = equation.primitive.name
    read = _READERS.get(name)
    params = equation.params if read is None else read(equation.params)
    added = _ADDED.get(name)
    if added is None:
        return params
    return {key: value for key, value in params.items() if key not in added or value != added[key]}


def with_parameters(equation: JaxprEqn, changes: Parameters, **replaced: Any) -> JaxprEqn:
    """Return an equation with some parameters changed, in the form of `parameters`; `replaced` goes to `replace`."""
    params = {**parameters(equation), **changes}
    return equation.replace(params=native(equation.primitive.name, params), **replaced)


def native(primitive: str, params: Parameters) -> dict[str, Any]:
    """Return the parameters of a primitive in this release's form, from those in the form of `parameters`."""
    make = _MAKERS.get(primitive)
    made = dict(params) if make is None else make(params)
    for name, value in _ADDED.get(primitive, {}).items():
        if name in _known(primitive):
            made.setdefault(name, value)
        else:
            made.pop(name, None)
    for name in _OPEN.get(primitive, ()):
        body = made.get(name)
        if isinstance(body, ClosedJaxpr) and not body.consts:
            made[name] = body.jaxpr
    return made


# What older releases do without saying so: the value of a parameter that newer ones have. Any order of equal elements
# is what an unstable `top_k` may give.
_ADDED: dict[str, Parameters] = {
    "eig": {"enable_eigvec_derivs": False},
    "mul": {"out_dtype": None},
    "ragged_dot_general": {"out_sharding": None},
    "reduce_max": {"out_sharding": None},
    "reduce_min": {"out_sharding": None},
    "top_k": {"is_stable": True},
    "tridiagonal_solve": {"perturb_singular": False},
}
_PROBES: dict[str, Callable[[jax.Array], Any]] = {
    "eig": lambda x: lax.linalg.eig(x[:, None] * x, compute_left_eigenvectors=False, compute_right_eigenvectors=False),
    "mul": lambda x: lax.mul(x, x),
    "ragged_dot_general": lambda x: lax.ragged_dot(x[None], x[None, :, None], x[:1].astype("int32")),
    "reduce_max": lambda x: lax.reduce_max(x, (0,)),
    "reduce_min": lambda x: lax.reduce_min(x, (0,)),
    "top_k": lambda x: lax.top_k(x, 1),
    "tridiagonal_solve": lambda x: lax.linalg.tridiagonal_solve(x, x, x, x[:, None]),
}
# The bodies that are open before 0.11, which has one class for both kinds.
_OPEN = {
    "reduce_window": ("jaxpr",),
    "remat2": ("jaxpr",),
    **{
        f"scatter{kind}": ("update_jaxpr",)
        for kind in ("", "-add", "-sub", "-mul", "-min", "-max", "_add", "_sub", "_mul", "_min", "_max")
    },
    "shard_map": ("jaxpr",),
}


@functools.cache
def _known(primitive: str) -> frozenset[str]:
    """Return the names of the parameters that a primitive of `_PROBES` has in this release."""
    equations = jax.make_jaxpr(_PROBES[primitive])(jax.ShapeDtypeStruct((2,), "float32")).eqns
    return frozenset(name for equation in equations for name in equation.params)


_SCAN_ONLY = ("ft_in", "ft_out", "linear", "_split_transpose")


def _scan_read(params: Parameters) -> dict[str, object]:
    """Return the counts of the loop-invariant operands and of the carried ones; the rest are slices.

    `linear` and `_split_transpose` do not affect the values, and are dropped.
    """
    counts = {}
    if "ft_in" in params:
        consts, carry, _ = params["ft_in"].unpack()
        counts = {"num_consts": len(consts), "num_carry": len(carry)}
    return {**{name: params[name] for name in params if name not in _SCAN_ONLY}, **counts}


def _scan_made(params: Parameters) -> dict[str, object]:
    params = dict(params)
    body = params["jaxpr"]
    if release < (0, 10):
        params |= {"linear": (False,) * len(body.in_avals), "_split_transpose": False}
    if release < (0, 11):
        return params
    consts, carry = params.pop("num_consts"), params.pop("num_carry")
    slices, stacked = len(body.in_avals) - consts - carry, len(body.out_avals) - carry
    groups = lambda *counts: flattree.pack(tuple(map(flattree.nones, counts)))
    return params | {"ft_in": groups(consts, carry, slices), "ft_out": groups(carry, stacked)}


def _jit_read(params: Parameters) -> dict[str, object]:
    """Return whether JAX inlines the call; hints to the compiler are dropped."""
    return {**params, "inline": params["inline"] in (Inline.JAX_EARLY, Inline.JAX_LATE)}


def _jit_made(params: Parameters) -> dict[str, object]:
    return {**params, "inline": Inline.JAX_LATE if params["inline"] else Inline.AUTO}


def _renamed(old: str, new: str) -> Callable[[Parameters], dict[str, object]]:
    return lambda params: {new if name == old else name: value for name, value in params.items()}


_READERS: dict[str, Callable[[Parameters], Parameters]] = {"scan": _scan_read}
_MAKERS: dict[str, Callable[[Parameters], dict[str, object]]] = {"scan": _scan_made}
if release >= (0, 11):
    _READERS["jit"], _MAKERS["jit"] = _jit_read, _jit_made
    _READERS["composite"], _MAKERS["composite"] = _renamed("call_jaxpr", "jaxpr"), _renamed("jaxpr", "call_jaxpr")
if release < (0, 10):
    _READERS["shard_map"] = _renamed("manual_axes", "newly_manual_axes")
    _MAKERS["shard_map"] = _renamed("newly_manual_axes", "manual_axes")


def mlir_module(data: str | bytes) -> Any:
    """Return a module of MLIR from its text, its bytecode, or a portable artifact of StableHLO.

    Raises:
      ValueError, MLIRError: the text or the bytecode is malformed.
    """
    context: Any = mlir.make_ir_context()
    with context:
        if isinstance(data, bytes) and b"StableHLO_v" in data[:64]:  # the producer of a portable artifact
            return _stablehlo.deserialize_portable_artifact(context, data)
        return _ir.Module.parse(data)


_PARSE = """
import sys
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, func, mhlo, sdy, stablehlo
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
registry = ir.DialectRegistry()
_jax_mlir_ext.register_dialects(registry)
context = ir.Context()
context.append_dialect_registry(registry)
context.load_all_available_dialects()
data = sys.stdin.buffer.read()
with context:
    try:
        if b"StableHLO_v" in data[:64]:
            stablehlo.deserialize_portable_artifact(context, data)
        else:
            ir.Module.parse(data)
    except Exception:
        pass
"""


def breaks_parser(data: bytes) -> str:
    """Return what MLIR's parser does with damaged bytecode instead of raising an error: it may crash, or never end;
    else "".
    """
    seconds = 30 + len(data) // 1_000_000
    try:
        command = [sys.executable, "-c", _PARSE]
        done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"MLIR's parser does not end within {seconds} seconds"
    return "MLIR's parser crashes on it" if done.returncode < 0 else ""


def assume(dim: Any, comparison: str, other: Any) -> bool:
    """Add a constraint (`==` or `>=`) to the scope of symbolic sizes; return whether JAX takes it."""
    difference = dim - other
    pairs = [(dim, other)]
    if comparison == "==":  # JAX wants one term on the left
        parts = [difference._from_term(term, count, scope=difference.scope) for term, count in difference._sorted_terms]
        pairs = [(p, p - difference) if str(p)[0] != "-" else (-p, difference - p) for p in parts]
    for left, right in pairs:
        try:
            difference.scope._parse_and_process_explicit_constraint(f"{left} {comparison} {right}")
        except (ValueError, NotImplementedError):
            continue
        return True
    return False


#: What MLIR raises for what it cannot parse.
MLIRError: type[Exception] = _ir.MLIRError


def geqrf(a: Array) -> Any:
    """Return the factors of a matrix as LAPACK packs them: reflectors below R, and their scales."""
    return _geqrf(a)


def geqp3(a: Array, pivots: Array) -> Any:
    """Return the factors of a matrix with exchanged columns, as LAPACK packs them: as `geqrf`, with the columns in
    between.
    """
    return _geqp3(a, pivots, use_magma=False)


def threefry2x32(*operands: Array) -> Any:
    """Return the bits that the generator Threefry makes of a key and of a counter."""
    return _threefry2x32_p.bind(*operands)
