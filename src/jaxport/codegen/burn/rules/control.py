"""Calls, branches and loops of programs, as statements of Rust."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxport import jaxprs
from jaxport.codegen.burn.body import NeedsStatements, RustBody
from jaxport.codegen.burn.rules.casting import converted
from jaxport.codegen.burn.rules.registry import PRIMITIVES, Outs, primitive
from jaxport.codegen.burn.values import TypedValue, tensor, tensor_type
from jaxport.codegen.rust.tree import (
    Binary,
    Braces,
    ExpressionStatement,
    For,
    Identifier,
    IfElse,
    Let,
    Literal,
    Method,
    RustExpression,
    RustRange,
    Tuple,
    While,
    method,
    path_call,
)
from jaxport.importer.traced.zero_sizes import may_be_nothing
from jaxport.importer.values.host import Dim, is_dim
from jaxport.jaxprs.releases import ragged_dot_general_impl

_CALLS = (
    "jit pjit closed_call core_call remat checkpoint custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr remat2"
).split()
OF_PROGRAMS = frozenset((*_CALLS, "cond", "ragged_dot_general", "scan", "while"))
"""Primitives that are programs, of which each equation is printed."""


@primitive(*_CALLS)
def called(body: RustBody, *values: TypedValue, outs: Outs, **params: Any) -> list[TypedValue]:
    inner = next(params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params)
    closed = inner if hasattr(inner, "consts") else jaxprs.ClosedJaxpr(inner, ())
    return body.program(closed, values)


@primitive("ragged_dot_general")
def by_definition(body: RustBody, *values: TypedValue, outs: Outs, **params: object) -> list[TypedValue]:
    """Print a primitive as JAX defines it in terms of others."""
    specs = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
    return body.program(jax.make_jaxpr(partial(ragged_dot_general_impl, **params))(*specs), values)


def whole(body: RustBody, value: TypedValue) -> TypedValue:
    """Return a value whose tensor has all of its elements."""
    return tensor(body.tensor(value), value.shape, value.dtype)


def named(body: RustBody, value: TypedValue, wanted: str) -> TypedValue:
    """Return a value under a name of its own."""
    made = body.let(body.tensor(value), wanted, tensor_type(value.shape, value.dtype))
    return tensor(made, value.shape, value.dtype)


def _pattern(body: RustBody, outs: Outs, wanted: str) -> tuple[RustExpression, list[TypedValue]]:
    names = [body.fresh(wanted) for _ in outs]
    stored: list[RustExpression] = [
        Identifier(one, type=tensor_type(out.shape, out.dtype)) for one, out in zip(names, outs, strict=True)
    ]
    target = stored[0] if len(stored) == 1 else Tuple(stored)
    values = [tensor(Identifier(one), out.shape, out.dtype) for one, out in zip(names, outs, strict=True)]
    return target, values


def together(nodes: Sequence[RustExpression]) -> RustExpression:
    """Return several results as a tuple, and one as it is."""
    return nodes[0] if len(nodes) == 1 else Tuple([*nodes])


@primitive("cond")
def cond(
    body: RustBody,
    which: TypedValue,
    *operands: TypedValue,
    outs: Outs,
    branches: Sequence[jaxprs.ClosedJaxpr],
    **_: object,
) -> list[TypedValue]:
    if which.number is not None:
        number = int(which.number)
        return body.program(branches[min(max(number, 0), len(branches) - 1)], operands)
    if body.is_inline:
        raise NeedsStatements
    operands = tuple(body.bound(whole(body, value) if value.is_broadcast else value) for value in operands)
    index = body.tensor(which)
    cast = index.receiver if isinstance(index, Method) and index.casts_booleans else None
    mask = index if which.kind == "Bool" else cast
    scalar = "i64" if mask is None else "bool"
    node: RustExpression = method(index if mask is None else mask, "into_scalar", generics=scalar)
    blocks: list[Braces] = []
    for branch in branches:
        inner = body.inner()
        results = inner.program(branch, operands)
        blocks.append(Braces(inner.statements, together([inner.tensor(value) for value in results])))
    if len(branches) == 2:
        condition = node if scalar == "bool" else Binary(node, ">", Literal("0"))
        choice: Braces | IfElse = IfElse(condition, blocks[1], blocks[0])
    else:
        index = body.let(node, "branch", "i64")
        choice = blocks[-1]
        for number in reversed(range(len(blocks) - 1)):
            choice = IfElse(Binary(index, "<=", Literal(str(number))), blocks[number], choice)
    target, values = _pattern(body, outs, "x")
    body.statements.append(Let(target, choice))
    return values


def _bound_carry(body: RustBody, values: Sequence[TypedValue], types: Outs) -> list[TypedValue]:
    """Return carried values under names that loops assign to."""
    return [
        named(body, converted(body, value, np.dtype(one.dtype)), "carry")
        for value, one in zip(values, types, strict=True)
    ]


def _assign(body: RustBody, targets: Sequence[TypedValue], results: Sequence[TypedValue]) -> None:
    """Assign new values to carried ones, all at once."""
    pairs = [(target, result) for target, result in zip(targets, results, strict=True)]
    changed = [
        (t, r)
        for t, r in pairs
        if not (isinstance(r.node, Identifier) and isinstance(t.node, Identifier) and r.node.id == t.node.id)
    ]
    if not changed:
        return
    stored: list[RustExpression] = []
    for target, _ in changed:
        assert isinstance(target.node, Identifier)
        stored.append(Identifier(target.node.id))
    nodes = [body.tensor(result) for _, result in changed]
    pattern = stored[0] if len(stored) == 1 else Tuple(stored)
    body.statements.append(Let(pattern, together(nodes)))


def _where(body: RustBody, condition: TypedValue, new: TypedValue, old: TypedValue) -> TypedValue:
    """Return new values where a condition holds, which is of the first axes; else the old ones."""
    if isinstance(new.node, Identifier) and isinstance(old.node, Identifier) and new.node.id == old.node.id:
        return old
    axes, mask = tuple(range(len(condition.shape))), TypedValue(old.shape, condition.dtype)
    mask = PRIMITIVES["broadcast_in_dim"](body, condition, outs=[mask], broadcast_dimensions=axes)
    return PRIMITIVES["select_n"](body, mask, old, new, outs=[TypedValue(old.shape, old.dtype)])


@primitive("while")
def while_(
    body: RustBody,
    *operands: TypedValue,
    outs: Outs,
    cond_nconsts: int,
    cond_jaxpr: jaxprs.ClosedJaxpr,
    body_nconsts: int,
    body_jaxpr: jaxprs.ClosedJaxpr,
) -> list[TypedValue]:
    if body.is_inline:
        raise NeedsStatements
    operands = tuple(body.bound(value) for value in operands)
    cond_consts, rest = operands[:cond_nconsts], operands[cond_nconsts:]
    body_consts, initial = rest[:body_nconsts], rest[body_nconsts:]
    carry = _bound_carry(body, initial, outs)
    before, inside = body.inner(), body.inner()
    (condition,) = before.program(cond_jaxpr, [*cond_consts, *carry])
    node = before.tensor(condition)
    results = inside.program(body_jaxpr, [*body_consts, *carry])
    if condition.shape:  # of many loops at once, each of which ends for itself
        condition = named(before, condition, "goes_on")
        node = method(before.tensor(condition), "any")
        results = [_where(inside, condition, new, old) for new, old in zip(results, carry, strict=True)]
    node = method(node, "into_scalar", generics="bool")
    _assign(inside, carry, results)
    body.statements.append(While(before.statements, node, inside.statements))
    return carry


@primitive("scan")
def scan(
    body: RustBody, *operands: TypedValue, outs: Outs, jaxpr: jaxprs.ClosedJaxpr, length: Dim, reverse: bool,
    num_carry: int, num_consts: int, **_: object,
) -> list[TypedValue]:  # fmt: skip
    if body.is_inline:
        raise NeedsStatements
    operands = tuple(body.bound(whole(body, value)) for value in operands)
    consts, rest = operands[:num_consts], operands[num_consts:]
    initial, rows = rest[:num_carry], rest[num_carry:]
    carry = _bound_carry(body, initial, outs[:num_carry])
    collected = outs[num_carry:]
    lists = []
    for _out in collected:
        chosen = body.fresh("rows")
        body.statements.append(Let(Identifier(chosen), path_call("Vec::new")))
        lists.append(chosen)
    inside = body.inner()
    step = body.fresh("t")
    index = Identifier(step)
    body.copied.add(step)
    parts = []
    for row in rows:
        node = method(row.node, "narrow", Literal("0"), index, Literal("1")) if row.node is not None else row.node
        assert node is not None
        node = (
            method(node, "squeeze_dim", Literal("0"), generics=str(len(row.shape) - 1)) if len(row.shape) > 1 else node
        )
        parts.append(tensor(inside.let(node, "row", tensor_type(row.shape[1:], row.dtype)), row.shape[1:], row.dtype))
    results = inside.program(jaxpr, [*consts, *carry, *parts])
    new, made = results[:num_carry], results[num_carry:]
    made = [inside.bound(whole(inside, value), "row") for value in made]
    for chosen, value in zip(lists, made, strict=True):
        push = method(Identifier(chosen), "push", inside.tensor(value), borrows=True)
        inside.statements.append(ExpressionStatement(push))
    _assign(inside, carry, new)
    times = body.size(length) if is_dim(length) else Literal(str(length))
    counted: RustExpression = RustRange(Literal("0"), times, 1)
    if reverse:
        counted = method(counted, "rev", borrows=True)
    body.statements.append(For(Identifier(step), counted, inside.statements))
    stacked = []
    for chosen, out in zip(lists, collected, strict=True):
        rank = len(out.shape)
        source: RustExpression = Identifier(chosen)
        if not is_dim(length) and length == 0:
            stacked.append(TypedValue(tuple(out.shape), np.dtype(out.dtype), known=np.dtype(out.dtype).type(0)))
            continue
        if reverse:
            source = body.helper("reversed", source)
        if may_be_nothing(length):
            node = body.helper("stacked_rows", source, body.shape(out.shape), body.options(np.dtype(out.dtype)))
        elif rank == 1:
            node = path_call("Tensor::cat", source, Literal("0"))
        else:
            node = path_call(f"Tensor::stack::<{rank}>", source, Literal("0"))
        stacked.append(tensor(node, out.shape, out.dtype))
    return [*carry, *stacked]


@primitive("dim_as_value")
def dim_as_value(body: RustBody, *_: TypedValue, outs: Outs, dim: Dim) -> TypedValue:
    return TypedValue((), np.dtype(outs[0].dtype), known=dim)


@primitive("platform_index")
def platform_index(body: RustBody, *_: TypedValue, outs: Outs, platforms: Sequence[Sequence[str] | None]) -> TypedValue:
    """The branch that is for all platforms."""
    number = next(
        (index for index, names in enumerate(platforms) if names is None or "default" in names), len(platforms) - 1
    )
    return TypedValue((), np.dtype(outs[0].dtype), known=np.int32(number))
