"""The check of the inputs' shapes: what `run` returns as an error, and `forward` panics with."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from jaxport.codegen.burn.values import signed_node, size_node, tensor_type
from jaxport.codegen.rust.nodes import Array, Binary, Borrow, Literal, RustFunction, Try, method, path_call
from jaxport.codegen.rust.text import function_text, quoted
from jaxport.codegen.writing.sizes import LINEAR
from jaxport.importer.traced.assumptions import Bounds
from jaxport.importer.values.host import Dim, is_dim
from jaxport.importer.values.recording import Variable
from jaxport.jaxprs.dim_text import symbols

__all__ = ["CHECK_HELPERS", "check_statement", "check_text"]

CHECK_HELPERS = ("check_shape", "check_size")
"""The helper functions that a check may call."""
_DOCUMENTATION = "Checks the shapes of the inputs. `forward` does so, too, and panics with the same text."


def check_text(
    inputs: Mapping[str, tuple[str, Variable]], bounds: Mapping[str, Bounds], spelled: Mapping[str, str]
) -> str:
    """Return the method `check` of a model.

    Args:
      inputs: the name in the file and the variable of each argument of `forward`, by the name of the argument.
      bounds: the sizes that the model accepts, by name.
      spelled: the names of sizes that Rust spells otherwise.
    """
    statements, known = _sizes({key: variable for key, (_, variable) in inputs.items()})
    for key, (label, variable) in inputs.items():
        shape = tuple(variable.shape)
        if any(not is_dim(size) and size == 0 for size in shape):
            continue  # nothing is read of it
        needed = [_needed(size, known, key, axis) for axis, size in enumerate(shape)] or [Literal("1")]
        declared = f"[{', '.join(map(str, shape or (1,)))}]"
        dims = method(ast.Name(key, ast.Load()), "dims", borrows=True)
        called = path_call("check_shape", Literal(quoted(label)), dims, Array(needed), Literal(quoted(declared)))
        statements.append(ast.Expr(Try(called)))
    for size, (least, most) in bounds.items():
        if size in known and (least > 1 or most is not None):
            end = Literal("usize::MAX" if most is None else str(most))
            arguments = Literal(quoted(size)), ast.Name(size, ast.Load()), Literal(str(least)), end
            statements.append(ast.Expr(Try(path_call("check_size", *arguments))))
    last = statements[-1] if statements else None
    if isinstance(last, ast.Expr) and isinstance(last.value, Try):
        statements[-1] = ast.Return(last.value.value)
    else:
        statements.append(ast.Return(Literal("Ok(())")))
    types = [f"&{tensor_type(variable.shape, variable.dtype)}" for _, variable in inputs.values()]
    function = RustFunction("check", [*inputs], types, "Result<(), String>", statements, "", True, True, _DOCUMENTATION)
    return function_text(function, [*known, *inputs], 1, spelled)


def check_statement(arguments: Sequence[str]) -> ast.stmt:
    """Return the statement of `forward` that panics with what `check` says."""
    # A size may be called `self`, and is spelled otherwise then.
    called = method(Literal("self"), "check", *(Borrow(ast.Name(key, ast.Load())) for key in arguments), borrows=True)
    return ast.Expr(method(called, "unwrap_or_else", Literal('|error| panic!("{error}")')))


def _sizes(arguments: Mapping[str, Variable]) -> tuple[list[ast.stmt], set[str]]:
    """Return the statements that read sizes from the shapes of arguments, and their names."""
    known: set[str] = set()
    statements: list[ast.stmt] = []
    read = {key: [str(size) for size in variable.shape] for key, variable in arguments.items()}
    needed = {name for sizes in read.values() for size in sizes for name in symbols(size)}
    for key, sizes in read.items():
        targets = [ast.Name(size if size in needed - known else "_", ast.Store()) for size in sizes]
        for axis, target in enumerate(targets):  # a name may stand twice
            target.id = "_" if target.id in {other.id for other in targets[:axis]} else target.id
        if any(target.id != "_" for target in targets):
            statements.append(ast.Assign([ast.Tuple([*targets], ast.Store())], ast.Attribute(ast.Name(key, ast.Load()), "shape", ast.Load()), lineno=0))  # fmt: skip
        known |= {target.id for target in targets} - {"_"}
    for key, sizes in read.items():
        for axis, size in enumerate(sizes):
            linear = LINEAR.fullmatch(size)
            if linear is None or linear["name"] in known:
                continue
            node = _own_size(key, axis)
            if linear["sign"] == "+":
                node = method(node, "saturating_sub", Literal(linear["offset"]))
            elif linear["sign"]:
                node = Binary(node, "+", Literal(linear["offset"]))
            if linear["factor"]:
                node = Binary(node, "/", Literal(linear["factor"]))
            statements.append(ast.Assign([ast.Name(linear["name"], ast.Store())], node, lineno=0))
            known.add(linear["name"])
    return statements, known


def _needed(size: Dim, known: set[str], argument: str, axis: int) -> ast.expr:
    """Return what a size has to be; one whose names are not known is what it is."""
    if not is_dim(size):
        return Literal(str(int(size)))
    if not symbols(str(size)) <= known:
        return _own_size(argument, axis)
    if "-" in str(size):  # below 0 no shape agrees
        return Binary(signed_node(size)[0], "as", Literal("usize"))
    return size_node(size)[0]


def _own_size(argument: str, axis: int) -> ast.expr:
    dims = method(ast.Name(argument, ast.Load()), "dims", borrows=True)
    return ast.Subscript(dims, Literal(str(axis)), ast.Load())
