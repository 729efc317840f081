"""Replace complex numbers by pairs: two real variables for each complex one, throughout a program.

At the border, a complex input or output is one real array with a trailing axis of two, the real and the imaginary part.
`pairs` defines each primitive on pairs; many apply to both parts separately. Loops, branches, calls and blocks pass on
twice as many values. A rule that is a JAX function serves complex operands too: it is traced on them, and rewritten.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from jaxport.blocks.block import FrozenMapping, block_p
from jaxport.errors import RuleError
from jaxport.export.emit.registry import RULES, Rule
from jaxport.export.prepare.pairs import FORMULAS, Pair, each, real_dtype
from jaxport.export.prepare.pairs_scattered import SCATTERS
from jaxport.jaxprs import (
    Array,
    Atom,
    ClosedJaxpr,
    JaxprEqn,
    Parameters,
    Primitive,
    PythonFunction,
    Var,
    dims,
    parameters,
    with_parameters,
)
from jaxport.jaxprs.rewrite import Atoms, VariableRewriting, call_of, inlined, traced
from jaxport.jaxprs.walk import bodies

if TYPE_CHECKING:
    from jaxport.blocks.block import Block

#: Primitives that apply to both parts separately: they move elements, or are linear over the real numbers.
TWICE = frozenset(
    """
    add add_any broadcast_in_dim concatenate copy copy_p cumsum dynamic_slice dynamic_update_slice empty empty2
    expand_dims gather name neg pad reduce_precision reduce_sum reduce_window_sum reshape rev scatter scatter-add
    scatter-sub select_n sharding_constraint slice split squeeze stack stop_gradient sub tie tile transpose unstack
    """.split()
)
#: Primitives that are linear in each of two operands: products.
PRODUCTS = frozenset({"conv_general_dilated", "dot_general", "ragged_dot_general"})
#: Primitives that pass on any number of values unseen, and a rule that takes the parts of a number.
PASSING = frozenset(
    """
    all_gather all_to_all dce_sink device_put fft optimization_barrier pbroadcast ppermute psum psum_invariant pvary
    shard_alike
    """.split()
)

#: The name of a rule for complex operands only, which the user sees if there is none.
OF_COMPLEX = "%s of complex numbers"


def is_known(primitive: str, avals: Sequence[object], rules: Parameters) -> bool:
    """Whether a primitive is defined on operands of which some are complex."""
    if not any(map(_is_complex, avals)):
        return False
    return OF_COMPLEX % primitive in rules or primitive in TWICE or primitive in FORMULAS or primitive in SCATTERS


def without_complex(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the program on pairs; the same object if it has no complex numbers.

    >>> print(without_complex(jax.make_jaxpr(lambda z: jnp.abs(z))(jnp.ones(3, np.complex64))).in_avals)
    [ShapedArray(float32[3,2])]
    """
    inner = _OfComplex().closed(closed)
    return closed if inner is closed else _with_border(inner, closed.jaxpr)


def _with_border(inner: ClosedJaxpr, outer: Any) -> ClosedJaxpr:
    """Wrap a program on pairs so that each of its inputs and outputs is one array."""
    jaxpr, equations = inner.jaxpr, list[JaxprEqn]()
    invars, operands, outvars = [], list[Atom](), []
    for variable in outer.invars:
        if _is_complex(variable.aval):
            aval = _pair_aval(variable.aval)
            invars.append(Var(aval))
            operands += inlined(traced(_parted, [aval]).jaxpr, invars[-1:], equations)
        else:
            invars.append(variable)
            operands.append(variable)
    results = iter(inlined(jaxpr, [*jaxpr.constvars, *operands], equations))
    for variable in outer.outvars:
        parts = list(itertools.islice(results, 1 + _is_complex(variable.aval)))
        if len(parts) == 2:
            parts = inlined(traced(_joined, [part.aval for part in parts]).jaxpr, parts, equations)
        outvars += parts
    return ClosedJaxpr(jaxpr.replace(invars=invars, eqns=equations, outvars=outvars), inner.consts)


def _parted(joined: jax.Array) -> Pair:
    return Pair(joined[..., 0], joined[..., 1])


def _joined(re: jax.Array, im: jax.Array) -> jax.Array:
    return jnp.stack([re, im], axis=-1)


def is_complex(dtype: object) -> bool:
    """Whether a dtype is complex."""
    return getattr(dtype, "kind", "") == "c"


def _is_complex(aval: object) -> TypeGuard[ShapedArray]:
    return isinstance(aval, ShapedArray) and is_complex(aval.dtype)


def _pair_aval(aval: ShapedArray) -> ShapedArray:
    return ShapedArray((*aval.shape, 2), real_dtype(aval.dtype))


class _OfComplex(VariableRewriting):
    def avals(self, aval: object) -> Sequence[ShapedArray] | None:
        return [ShapedArray(aval.shape, real_dtype(aval.dtype))] * 2 if _is_complex(aval) else None

    def values(self, value: Array) -> Sequence[Array]:
        array: Any = np.asarray(value)
        if array.dtype.kind != "c":
            return [value]
        dtype = real_dtype(jax.dtypes.canonicalize_dtype(array.dtype))
        return [array.real.astype(dtype), array.imag.astype(dtype)]

    def changed(self, equation: JaxprEqn, atoms: Atoms) -> JaxprEqn:
        if not self.concerns(equation):
            return equation
        invars, outvars = atoms(equation.invars), atoms(equation.outvars)
        if outvars and all(dims.all_static(var.aval.shape) and 0 in var.aval.shape for var in outvars):
            nothing = traced(lambda: [jnp.zeros(var.aval.shape, var.aval.dtype) for var in outvars], [])
            return call_of(nothing, [], outvars, equation)
        body = self.definition(equation)
        if body is not None:
            return call_of(body, invars, outvars, equation)
        name = equation.primitive.name
        if name in PASSING or bodies(equation.params):
            return with_parameters(equation, self.counts(equation), invars=invars, outvars=outvars)
        refused = Primitive(OF_COMPLEX % name)  # without a rule: the walker refuses it
        refused.multiple_results = True
        return equation.replace(primitive=refused, invars=invars, outvars=outvars)

    def definition(self, equation: JaxprEqn) -> ClosedJaxpr | None:
        """Return the primitive's definition on pairs; None if it only passes them on, or is not defined on them."""
        name, operands = equation.primitive.name, [atom.aval for atom in equation.invars]
        pairs = [Pair(*self.avals(aval) or ()) if _is_complex(aval) else aval for aval in operands]
        # A scatter that applies a function, which may be nonlinear.
        applied = name == "scatter" and equation.params["update_jaxpr"] is not None
        if not applied and (name in TWICE or name in PRODUCTS):
            return traced(_by_parts(equation), pairs)
        if (formula := _function(FORMULAS.get(name) or SCATTERS.get(name), equation)) is not None:
            return traced(formula, pairs)
        function = _function(RULES.get(OF_COMPLEX % name, RULES.get(name)), equation)
        if function is None:
            return None
        try:
            return self.closed(traced(function, operands))
        except Exception as error:  # whatever a rule raises, the user should see its name
            raise RuleError(f"the rule for `{OF_COMPLEX % name}` failed: {type(error).__name__}: {error}") from error

    def counts(self, equation: JaxprEqn) -> Parameters:
        """Return the parameters that count operands by kind, for the operands of pairs."""
        sizes = [1 + _is_complex(atom.aval) for atom in equation.invars]
        params = parameters(equation)
        if equation.primitive is block_p:
            return {"block": self.block(params["block"], sizes, equation.outvars)}
        if "const_lengths" in params:
            groups, start = [], 0
            for count in params["const_lengths"]:
                groups.append(sum(sizes[start : start + count]))
                start += count
            return {"const_lengths": type(params["const_lengths"])(*groups)}
        counts, start = {}, 0
        for name in ("cond_nconsts", "body_nconsts", "num_consts", "num_carry"):  # in the order of the operands
            if name in params:
                count = params[name]
                counts[name] = sum(sizes[start : start + count])
                start += count
        return counts

    def block(self, block: Block, sizes: Sequence[int], outvars: Sequence[Atom]) -> Block:
        """Return a block whose inputs and outputs are numbered by their new places."""
        starts = np.cumsum([0, *sizes]).tolist()
        weights = {
            starts[index] + part: path + suffix
            for index, path in block.weights.items()
            for part, suffix in enumerate(_suffixes(sizes[index]))
        }
        arguments = [
            name + suffix for name, size in zip(block.arguments, sizes, strict=False) for suffix in _suffixes(size)
        ]
        results = sum(1 + _is_complex(var.aval) for var in outvars[: block.results])
        return replace(block, weights=FrozenMapping(weights), arguments=tuple(arguments), results=results)


def _suffixes(size: int) -> Sequence[str]:
    """Return the suffixes that name the parts of a number."""
    return ("",) if size == 1 else (".real", ".imag")


def _function(rule: Rule | None, equation: JaxprEqn) -> PythonFunction | None:
    """Return the JAX function of a rule with an equation's parameters; None if it has none, or refuses one."""
    if rule is None or not rule.via:
        return None
    taken, refused = rule.arguments(parameters(equation))
    return None if refused else functools.partial(rule.function, **taken)


def _by_parts(equation: JaxprEqn) -> PythonFunction:
    """Return the definition of a linear primitive on pairs."""
    primitive, params = equation.primitive, dict(equation.params)
    if "update_jaxpr" in params:  # the primitive's name tells how a scatter combines
        params |= {"update_jaxpr": None, "update_consts": ()}
    for name in ("dtype", "out_dtype", "preferred_element_type"):
        if params.get(name) is not None:
            params[name] = real_dtype(params[name])
    combined = _twice if primitive.name in TWICE else _product
    return lambda *operands: combined(lambda *xs: primitive.bind(*xs, **params), *operands)


def _twice(bind: PythonFunction, *operands: Pair | Array) -> Pair | list[Pair]:
    """Apply an operation to the real parts and to the imaginary parts; real operands go with both."""
    parts = [bind(*(x[part] if isinstance(x, Pair) else x for x in operands)) for part in range(2)]
    if isinstance(parts[0], (list, tuple)):
        return [Pair(re, im) for re, im in zip(*parts, strict=True)]
    return Pair(*parts)


def _product(bind: PythonFunction, x: Pair | Array, y: Pair | Array, *more: Array) -> Pair:
    """Return a product of arrays, one of which may be real."""
    if not isinstance(x, Pair):
        return each(lambda part: bind(x, part, *more))(y)
    if not isinstance(y, Pair):
        return each(lambda part: bind(part, y, *more))(x)
    return Pair(bind(x.re, y.re, *more) - bind(x.im, y.im, *more), bind(x.re, y.im, *more) + bind(x.im, y.re, *more))
