"""Recorded steps as the statements of a Python function: names, inlining, nested functions."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from jaxport.codegen.rewriting.steps import leaves, needed
from jaxport.codegen.writing.literals import (
    LARGEST_LITERAL,
    attribute,
    call,
    dim_expression,
    is_made,
    literal,
    name,
    number,
    plain,
)
from jaxport.codegen.writing.naming.scope import ValueNames
from jaxport.codegen.writing.statements import LONGEST_INLINE
from jaxport.importer.names import identifier, unique
from jaxport.importer.values.dtypes import canonical
from jaxport.importer.values.host import HostValue, has_stand_ins, is_dim
from jaxport.importer.values.recording import Function, Recordable, Step, Variable

_OPERATORS: dict[str, type[ast.operator]] = {
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "/": ast.Div,
    "//": ast.FloorDiv,
    "%": ast.Mod,
    "**": ast.Pow,
    "@": ast.MatMult,
    "&": ast.BitAnd,
    "|": ast.BitOr,
    "^": ast.BitXor,
    "<<": ast.LShift,
    ">>": ast.RShift,
}
_COMPARISONS: dict[str, type[ast.cmpop]] = {
    "==": ast.Eq,
    "!=": ast.NotEq,
    "<": ast.Lt,
    "<=": ast.LtE,
    ">": ast.Gt,
    ">=": ast.GtE,
}
_UNARY: dict[str, type[ast.unaryop]] = {"-": ast.USub, "~": ast.Invert}

# Functions whose operands take each other's dtype, so that a Python number stands for a scalar of that dtype.
_WEAK = {"jnp.where": (1, 2)} | dict.fromkeys(
    [
        f"jnp.{function}"
        for function in (
            "add subtract multiply divide power maximum minimum mod fmod floor_divide equal not_equal less less_equal "
            "greater greater_equal bitwise_and bitwise_or bitwise_xor"
        ).split()
    ],
    (0, 1),
)

LOOP_ARGUMENTS = {"lax.scan": ("carry", "row"), "lax.while_loop": ("carry",)}
"""Names for the arguments of the functions that loops call."""

# Operands that have to be known while JAX traces, so that no array may be printed for them.
_NUMBERS = {"jnp.arange": (0, 1, 2)}


@dataclass
class Printer:
    """Prints the functions of one module.

    Attributes:
      names: the names of values, and the expressions that stand for them.
      constants: the tensors that are too large for the source.
      dims: the names of sizes that are read.
      comments: a comment for each statement that has one.
    """

    names: ValueNames[ast.expr]
    constants: dict[str, HostValue] = field(default_factory=dict)
    dims: set[str] = field(default_factory=set)
    comments: dict[ast.stmt, str] = field(default_factory=dict)

    def statements(self, steps: Iterable[Step], result: object) -> list[ast.stmt]:
        """Return the body of a function: the steps that the result needs, and its return."""
        steps, uses = needed(list(steps), result)
        trees = [*((step.args, step.kwargs) for step in steps), result]
        readers = {leaf: at for at, tree in enumerate(trees) for leaf in leaves(tree) if isinstance(leaf, Variable)}
        body: list[ast.stmt] = []
        scope = ""
        for at, step in enumerate(steps):
            output = step.outputs
            is_once = isinstance(output, Variable) and uses[output] == 1 and output in readers
            longest = self.longest(step, steps[at + 1 : readers[output] + 1]) if is_once else 0
            statements = list(self.step(step, uses, longest))
            around = (getattr(step.node, "name", None) or "").rpartition("/")[0]
            if around and around != scope and statements:
                scope = self.comments[statements[0]] = around
            body += statements
        body.append(ast.Return(self.value(result)))
        return body

    def longest(self, step: Step, following: Sequence[Step]) -> int:
        """Return how many characters a step has at most where its only reader, the last of the steps that follow or the
        result, has it in its own expression.
        """
        return LONGEST_INLINE if all(one.node is step.node for one in following) and len(following) < 2 else 0

    def step(self, step: Step, uses: Counter[Variable], longest: int) -> Iterator[ast.stmt]:
        """Yield the statements of one step; if it is no longer than `longest`, it is written where it is read."""
        yield from self.nested(step)
        expression = self.expression(step)
        if isinstance(step.outputs, Variable):
            variable = step.outputs
            if len(ast.unparse(expression)) <= longest:
                self.names.expressions[variable] = expression
                return
            target: ast.expr = ast.Name(self.names.bind(variable, self.names.default(step)), ast.Store())
        else:
            target = self.target(step.outputs, uses, self.names.default(step))
        yield ast.Assign([target], expression, lineno=0)

    def nested(self, step: Step) -> list[ast.stmt]:
        """Return the functions that are defined for a step."""
        roles = LOOP_ARGUMENTS.get(step.name, ())
        return [self.definition(function, roles) for function in _functions(step) if not self.is_short(function)]

    def target(self, tree: object, uses: Counter[Variable], default: str | Sequence[str]) -> ast.expr:
        """Return the target that the outputs of a call are assigned to: a name, or a pattern of names.

        `default` is the name of all that have none, or that of each.
        """
        if isinstance(tree, tuple | list) and tree:
            defaults = [default] * len(tree) if isinstance(default, str) else default
            parts = [self.target(part, uses, own) for part, own in zip(tree, defaults, strict=True)]
            return ast.Tuple(parts, ast.Store())
        assert isinstance(default, str)
        if isinstance(tree, Variable):
            return ast.Name(self.names.bind(tree, default) if uses[tree] else "_", ast.Store())
        return ast.Name("_", ast.Store())

    def definition(self, function: Function, roles: Sequence[str] = ()) -> ast.stmt:
        """Return a nested function, bound to a name of its own; `roles` are names for its arguments."""
        with self.names.nested():
            chosen = self.names.fresh(identifier(function.name, "body"))
            self.names.expressions[function] = name(chosen)
            arguments, unpacking = [], []
            _, uses = needed(function.steps, function.result)
            for at, parameter in enumerate(function.parameters):
                if isinstance(parameter, Variable):
                    arguments.append(self.names.bind(parameter, roles[at] if at < len(roles) else "x"))
                    continue
                arguments.append(self.names.fresh("carry" if not arguments else "row"))
                if jax.tree.leaves(parameter):
                    pattern = self.target(parameter, uses, "x")
                    unpacking.append(ast.Assign([pattern], name(arguments[-1]), lineno=0))
            body = self.statements(function.steps, function.result)
        definition = ast.parse(f"def {chosen}({', '.join(arguments)}): pass").body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.body = [*unpacking, *body]
        return definition

    def is_short(self, function: Function) -> bool:
        """Whether a function is one short expression, and becomes a `lambda`."""
        if function.steps or not all(isinstance(parameter, Variable) for parameter in function.parameters):
            return False
        with self.names.nested():
            names = [self.names.bind(parameter) for parameter in function.parameters]
            body = self.value(function.result)
        self.names.expressions[function] = ast.Lambda(
            ast.arguments([], [ast.arg(a) for a in names], None, [], [], None, []), body
        )
        return True

    def expression(self, step: Step) -> ast.expr:
        args = list(with_inferred_size(step).args)
        if step.form in ("operator", "call"):
            args = [_shortest(step, arg) for arg in _weakened(step, _plain_numbers(step, args))]
        keywords = {key: self.value(value) for key, value in step.kwargs.items()}
        if step.form == "operator":
            return self.operator(step.name, [self.value(arg) for arg in args])
        if step.form == "index":
            return ast.Subscript(self.value(args[0]), self.index(args[1]), ast.Load())
        if step.form == "attribute":
            return ast.Attribute(self.value(args[0]), step.name, ast.Load())
        if step.form == "vmap":
            return call(call(step.name, self.value(args[0]), **keywords), *map(self.value, args[1:]))
        if step.form == "method" and step.name.startswith("at."):
            at = ast.Subscript(ast.Attribute(self.value(args[0]), "at", ast.Load()), self.index(args[1]), ast.Load())
            method = ast.Attribute(at, step.name.removeprefix("at."), ast.Load())
            return call(method, *map(self.value, args[2:]), **keywords)
        if step.form == "method":
            method = ast.Attribute(self.value(args[0]), step.name, ast.Load())
            return call(method, *map(self.value, args[1:]), **keywords)
        return call(self.function_name(step.name), *map(self.value, args), **keywords)

    def operator(self, symbol: str, operands: list[ast.expr]) -> ast.expr:
        if len(operands) == 1:
            return ast.UnaryOp(_UNARY[symbol](), operands[0])
        left, right = operands
        base = left.value if isinstance(left, ast.Constant) else None
        if symbol == "**" and isinstance(base, int | float) and base < 0:  # `-2 ** x` is `-(2 ** x)`
            left = ast.UnaryOp(ast.USub(), ast.Constant(-base))
        if symbol in _COMPARISONS:
            return ast.Compare(left, [_COMPARISONS[symbol]()], [right])
        return ast.BinOp(left, _OPERATORS[symbol](), right)

    def function_name(self, path: str) -> ast.expr:
        return attribute(path.removeprefix("helper."))

    def index(self, index: object) -> ast.expr:
        if isinstance(index, tuple):
            return ast.Tuple([self.index(part) for part in index], ast.Load())
        if isinstance(index, slice):
            bounds = (None if bound is None else self.value(bound) for bound in (index.start, index.stop, index.step))
            return ast.Slice(*bounds)
        return self.value(index)

    def value(self, value: object) -> ast.expr:
        """Return any argument as an expression."""
        if isinstance(value, Variable | Function):
            return self.names.expressions[value]
        if isinstance(value, HostValue):
            return self.host_value(value)
        if isinstance(value, Recordable):
            return self.function_name(value.name)
        if is_dim(value):
            return self.size(number(value))
        if isinstance(value, slice):
            return call("slice", *(self.value(bound) for bound in (value.start, value.stop, value.step)))
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            fields = {key: self.value(part) for key, part in value._asdict().items()}  # pyright: ignore[reportAttributeAccessIssue]
            return call(f"lax.{type(value).__name__}", **fields)
        if isinstance(value, tuple):
            return ast.Tuple([self.value(part) for part in value], ast.Load())
        if isinstance(value, list):
            return ast.List([self.value(part) for part in value], ast.Load())
        if isinstance(value, dict):
            return ast.Dict([ast.Constant(key) for key in value], [self.value(part) for part in value.values()])
        if isinstance(value, np.ndarray):
            return self.host_value(HostValue(value))
        return plain(value)

    def host_value(self, value: HostValue) -> ast.expr:
        uniform = not value.symbolic and value.size > 1 and (value.data == value.data.ravel()[0]).all()
        if value.size > LARGEST_LITERAL and not value.symbolic and not uniform and not is_made(value):
            return self.stored(value)
        return self.size(literal(value))

    def stored(self, value: HostValue) -> ast.expr:
        """Return a constant from the weights file."""
        if has_stand_ins(value):  # a file has one width for all
            value = HostValue(value.to_jax(), name=value.name)
        known = next((key for key, other in self.constants.items() if other.data is value.data), None)
        key = known or unique(identifier(value.name, "constant"), self.constants)
        self.constants[key] = value
        return ast.Subscript(name("CONSTANTS"), ast.Constant(key), ast.Load())

    def size(self, expression: ast.expr) -> ast.expr:
        """Note which sizes of inputs an expression reads."""
        self.dims |= {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        return expression


def with_inferred_size(step: Step) -> Step:
    """Return a reshape with -1 for the size that is the longest expression: `reshape(batch, (height - 1) // 4 + 1)`."""
    sizes = step.args[1] if step.name == "jnp.reshape" and len(step.args) == 2 else None
    if not isinstance(sizes, tuple | list) or not isinstance(step.outputs, Variable):
        return step
    texts = ["" if isinstance(size, int) else ast.unparse(dim_expression(size)) for size in step.outputs.shape]
    longest = max(texts, key=len, default="")
    if longest.isidentifier() or not longest or len(sizes) != len(texts):
        return step
    place = texts.index(longest)
    inferred = tuple(-1 if at == place else size for at, size in enumerate(step.outputs.shape))
    return replace(step, args=(step.args[0], inferred))


def _plain_numbers(step: Step, args: list[Any]) -> list[object]:
    """`args` with Python numbers for the scalars that have to be known."""
    positions = _NUMBERS.get(step.name, ())
    known = [index in positions and isinstance(arg, HostValue) and arg.ndim == 0 for index, arg in enumerate(args)]
    return [arg.item() if plain else arg for plain, arg in zip(known, args, strict=True)]


def _weakened(step: Step, args: list[object]) -> list[object]:
    """`args` with Python numbers for scalars that take their dtype from another operand."""
    is_elementwise = step.form == "operator" and step.name != "@"
    positions = tuple(range(len(args))) if is_elementwise else _WEAK.get(step.name, ())
    operands = [args[index] for index in positions if index < len(args)]
    arrays = [operand for operand in operands if isinstance(operand, Variable)]
    for index in positions:
        value = args[index] if index < len(args) else None
        if isinstance(value, HostValue) and value.symbolic and not value.ndim:  # a size, which is an integer of Python
            args[index] = value.item() if any(array.dtype == canonical(value.dtype) for array in arrays) else value
            continue
        if not isinstance(value, HostValue) or value.symbolic or value.size != 1 or value.dtype.kind not in "iuf":
            continue
        if any(array.dtype == canonical(value.dtype) and len(array.shape) >= value.ndim for array in arrays):
            args[index] = value.data.reshape(())[()]
    return args


def _shortest(step: Step, value: object) -> object:
    """Return a Python float that only meets float32 arrays, as float32, which prints with fewer digits."""
    if type(value) is not float or not _is_single(value):
        return value
    arrays = [leaf for leaf in leaves((step.args, step.kwargs, step.outputs)) if isinstance(leaf, Variable)]
    return np.float32(value) if all(array.dtype == np.float32 for array in arrays) else value


def _is_single(value: float) -> bool:
    """Whether float32 holds the number exactly."""
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(np.float32)) == value


def _functions(step: Step) -> list[Function]:
    return [leaf for leaf in jax.tree.leaves((step.args, step.kwargs)) if isinstance(leaf, Function)]
