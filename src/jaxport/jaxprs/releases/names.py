"""The names of JAX that are private, or whose place changes between releases.

The rest of the package imports them from here: only this package uses `jax._src`, `jax.extend` and `jax.interpreters`,
which an architecture test checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
from jax._src import core as _core
from jax._src.state import discharge as _discharge
from jax.extend import source_info_util
from jax.extend.core import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    jaxpr_as_fun,
    primitives as known_primitives,
)
from jax.extend.core.primitives import closed_call_p, convert_element_type_p, random_gamma_p
from jax.interpreters import ad, batching, mlir, partial_eval

from jaxport.jaxprs.aliases import Array, Effect
from jaxport.jaxprs.releases.versions import release

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
    """Return a body whose inputs have names, empty ones if none are known: before 0.10, the derivative of a loop adds to them."""
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
