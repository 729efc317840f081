"""Programs of JAX, equation by equation, as expressions and statements of Rust."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np
from jax.typing import ArrayLike

from jaxport import jaxprs
from jaxport.codegen.burn.body import RustBody
from jaxport.codegen.burn.rules import casting, complexes, control, elementwise, indexing, reductions, shapes, windows  # noqa: F401  they register their rules
from jaxport.codegen.burn.rules.registry import PRIMITIVES, WITHOUT_EFFECT
from jaxport.codegen.burn.values import NotPrintable, TypedValue, is_complex, is_narrow, kind_of
from jaxport.codegen.rust.text import expression_text
from jaxport.importer.values.host import is_dim
from jaxport.jaxprs.dims import static
from jaxport.jaxprs.rewrite import evaluated
from jaxport.jaxprs.walk import interpret

LARGEST_FOLDED = 2**12
"""Elements of a result that is computed while printing, at most."""
LONGEST = 90
"""Characters of an expression that is an operand of another, at most."""
UNFOLDED = {
    "iota",
    "dim_as_value",
    "jit",
    "pjit",
    "scan",
    "while",
    "cond",
    "random_bits",
    "random_seed",
    "random_wrap",
    "random_unwrap",
}


def constant(value: ArrayLike) -> TypedValue:
    """Return a known array; one whose elements are all the same is their number."""
    array = np.asarray(value)
    if not array.size:
        return TypedValue(array.shape, array.dtype, known=np.zeros((), array.dtype)[()])
    if array.size > 1 and array.dtype.kind != "V":
        first = array.ravel()[0]
        if array.tobytes() == first.tobytes() * array.size:
            return TypedValue(array.shape, array.dtype, known=first)
    if array.size == 1:
        return TypedValue(array.shape, array.dtype, known=array.reshape(())[()])
    return TypedValue(array.shape, array.dtype, known=array)


def printed(
    body: RustBody, jaxpr: jaxprs.Jaxpr, consts: Sequence[ArrayLike], values: Sequence[TypedValue]
) -> list[TypedValue]:
    """Print a program on values into a body, and return its results.

    Raises:
      NotPrintable: a primitive or a type has no form in Burn.
    """
    results_only = Counter(atom for atom in jaxpr.outvars if not isinstance(atom, jaxprs.Literal))
    uses = results_only + _reads(jaxpr)

    wraps = _wraps(jaxpr, uses)
    limits: dict[jaxprs.Var, TypedValue] = {}

    def rule(equation: jaxprs.JaxprEqn, operands: list[TypedValue]) -> list[TypedValue]:
        wrapped = wraps.get(equation.outvars[0]) if len(equation.outvars) == 1 else None
        if wrapped is not None and equation.primitive.name == "add":
            limits[equation.outvars[0]] = operands[1]
        if wrapped is not None and equation.primitive.name == "select_n":
            return [named(equation.outvars[0], elementwise.wrapped(body, operands[1], limits[wrapped].number))]
        if not any(uses[variable] for variable in equation.outvars):
            return [UNUSED] * len(equation.outvars)
        folded = _folded(equation, operands)
        results = folded if folded is not None else _printed(body, equation, operands)
        return [named(variable, value) for variable, value in zip(equation.outvars, results, strict=True)]

    def named(variable: jaxprs.Var, value: TypedValue) -> TypedValue:
        """Return a value under a name if it is read several times, or is long."""
        is_operand = uses[variable] > results_only[variable] and not body.is_inline
        is_long = is_operand and value.node is not None and len(expression_text(value.node)) > LONGEST
        return body.bound(value) if value.node is not None and (uses[variable] > 1 or is_long) else value

    given = [
        body.bound(value) if uses[variable] > 1 else value for variable, value in zip(jaxpr.invars, values, strict=True)
    ]
    return interpret(jaxpr, [*map(constant, consts), *given], rule, _literal)


def _wraps(jaxpr: jaxprs.Jaxpr, uses: Counter[jaxprs.Var]) -> dict[jaxprs.Var, jaxprs.Var]:
    """Return the variables that are indices counted from the start, `where(i < 0, i + n, i)`, and the sums in them.

    Each has the variable of its sum, `i + n`, and that has itself. What only they read is taken out of `uses`.
    """
    equations = _equations(jaxpr)
    times = Counter(equations)
    made = {variable: equation for equation in equations for variable in equation.outvars}

    def maker(atom: jaxprs.Atom, name: str) -> jaxprs.JaxprEqn | None:
        equation = None if isinstance(atom, jaxprs.Literal) else made.get(atom)
        return equation if equation is not None and equation.primitive.name == name else None

    def is_size(atom: jaxprs.Atom) -> bool:
        if isinstance(atom, jaxprs.Literal):
            return bool(atom.val >= 0)
        equation = made.get(atom)
        if equation is None or equation.primitive.name == "dim_as_value":
            return equation is not None
        return equation.primitive.name in ("convert_element_type", "mul", "add") and all(map(is_size, equation.invars))

    wraps: dict[jaxprs.Var, jaxprs.Var] = {}
    for equation in dict.fromkeys(equations):
        if equation.primitive.name != "select_n" or len(equation.invars) != 3:
            continue
        which, index, other = equation.invars
        if not (isinstance(which, jaxprs.Var) and isinstance(index, jaxprs.Var) and isinstance(other, jaxprs.Var)):
            continue
        negative, total, count, dtype = (
            maker(which, "lt"),
            maker(other, "add"),
            times[equation],
            jaxprs.aval_of(index).dtype,
        )
        if negative is None or total is None or dtype.itemsize < 4:
            continue
        zero = negative.invars[1]
        is_wrap = negative.invars[0] is index and total.invars[0] is index and is_size(total.invars[1])
        is_wrap = is_wrap and isinstance(zero, jaxprs.Literal) and zero.val == 0 and dtype.kind == "i"
        if is_wrap and uses[which] == count and uses[other] == count:
            wraps |= {equation.outvars[0]: other, other: other}
            uses[index] -= 2 * count
            uses[which] = uses[other] = 0
    return wraps


UNUSED = TypedValue((), np.dtype(np.int32), known=np.int32(0))
"""What stands for results that nothing reads."""


def _reads(jaxpr: jaxprs.Jaxpr) -> Counter[jaxprs.Var]:
    """Return how often the equations of a program read each variable."""
    return Counter(
        atom for equation in _equations(jaxpr) for atom in equation.invars if not isinstance(atom, jaxprs.Literal)
    )


def _equations(jaxpr: jaxprs.Jaxpr) -> list[jaxprs.JaxprEqn]:
    """Return the equations of a program, those of the functions that it calls included."""
    found: list[jaxprs.JaxprEqn] = []

    def note(equation: jaxprs.JaxprEqn, _: list[None]) -> list[None]:
        found.append(equation)
        return [None] * len(equation.outvars)

    interpret(jaxpr, [None] * (len(jaxpr.constvars) + len(jaxpr.invars)), note, lambda _: None)
    return found


def _literal(atom: jaxprs.Literal) -> TypedValue:
    return constant(atom.val if not hasattr(atom.val, "dtype") else np.asarray(atom.val, jaxprs.aval_of(atom).dtype))


def _printed(body: RustBody, equation: jaxprs.JaxprEqn, operands: Sequence[TypedValue]) -> list[TypedValue]:
    name = equation.primitive.name
    rule = PRIMITIVES.get(name)
    if rule is None:
        raise NotPrintable(f"the primitive `{name}`", "Burn has no such operation; compute it outside of the model")
    outs = [jaxprs.aval_of(variable) for variable in equation.outvars]
    params = {key: value for key, value in jaxprs.parameters(equation).items() if key not in WITHOUT_EFFECT}
    if any(is_complex(value.dtype) for value in (*outs, *operands)) and rule is not control.called:
        if name not in complexes.OF_PARTS:
            return [complexes.of_pairs(body, name, operands, outs, params)]
        return [rule(body, *operands, outs=outs, **params)]
    for out in outs if rule is not control.called else ():
        kind_of(out.dtype)
    if name in elementwise.BROADCASTING:
        operands = elementwise.spread_scalars(operands, tuple(outs[0].shape))
    if name == "select_n":
        operands = [operands[0], *elementwise.spread_scalars(operands[1:], tuple(outs[0].shape))]
    few_bits = any(is_narrow(value.dtype) for value in (*outs, *operands))
    if few_bits and name not in casting.OF_TYPES | control.OF_PROGRAMS:
        return casting.in_wider_types(body, name, operands, outs, params)
    made = rule(body, *operands, outs=outs, **params)
    return [made] if isinstance(made, TypedValue) else list(made)


def _folded(equation: jaxprs.JaxprEqn, operands: Sequence[TypedValue]) -> list[TypedValue] | None:
    """Return the results of an equation whose operands are known, and small."""
    outs = [jaxprs.aval_of(variable) for variable in equation.outvars]
    if outs and all(any(not is_dim(size) and size == 0 for size in out.shape) for out in outs):  # of no elements
        return [TypedValue(tuple(out.shape), out.dtype, known=out.dtype.type(0)) for out in outs]
    if not operands or equation.primitive.name in UNFOLDED or any(value.known is None for value in operands):
        return None
    shapes_ = [(*value.shape,) for value in operands] + [(*out.shape,) for out in outs]
    if any(is_dim(size) for shape in shapes_ for size in shape) or any(is_dim(value.known) for value in operands):
        return None
    if any(math.prod(static(shape)) > LARGEST_FOLDED for shape in shapes_):
        return None
    if any(np.dtype(value.dtype).kind == "O" for value in operands):
        return None
    arrays = [np.broadcast_to(np.asarray(value.known, value.dtype), static(value.shape)) for value in operands]
    try:
        results = evaluated(equation, [*map(jax.numpy.asarray, arrays)])
    except (TypeError, ValueError, NotImplementedError):
        return None
    return [constant(np.asarray(result)) for result in results]
