"""Recorded calls as Rust: by the rule of the call, or else by the primitives that JAX traces it to."""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.codegen.burn.body import NeedsStatements, RustBody
from jaxport.codegen.burn.checks import sizes_in_rust
from jaxport.codegen.burn.equations import constant, printed
from jaxport.codegen.burn.rules import calls, drawing  # noqa: F401  they register their rules
from jaxport.codegen.burn.rules.casting import converted
from jaxport.codegen.burn.rules.control import together
from jaxport.codegen.burn.rules.registry import CALLS
from jaxport.codegen.burn.values import NotPrintable, TypedValue, is_narrow, tensor, tensor_type
from jaxport.codegen.rewriting.steps import reads
from jaxport.codegen.rust.text import function_text
from jaxport.codegen.rust.tree import (
    Borrow,
    Identifier,
    Let,
    Return,
    RustExpression,
    RustFunction,
    RustStatement,
    has_name,
    method,
    path_call,
    returned_at_once,
    rewrite_parts,
)
from jaxport.codegen.writing.size_names import size_statements
from jaxport.importer.names import identifier, unique
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.namespaces import HELPERS
from jaxport.importer.values.recording import (
    Function as RecordedFunction,
    Recordable,
    Step,
    Variable,
    lower,
    map_leaves,
)
from jaxport.jaxprs import PythonFunction
from jaxport.jaxprs.identity import IdentityMap

Environment = IdentityMap[Variable | HostValue, Any]
"""The values of variables and of large constants."""
OF_FEW_BITS = ("helper.to_power_of_two",)
"""Calls whose rules know numbers of few bits."""
LARGEST_CONSTANT = 64
"""Elements of a known operand up to which it is traced as a constant; a larger one is an operand."""


@dataclass(eq=False)
class Functions:
    """The private functions of a model: those that are the same are one.

    Attributes:
      taken: the names in use.
      texts: the names of functions by their text without the name.
      sources: the texts, in order.
      helpers: the names of the helpers that are called.
      sizes: the names of sizes that Rust spells otherwise.
    """

    taken: set[str]
    texts: dict[str, str] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    helpers: set[str] = field(default_factory=set)
    sizes: Mapping[str, str] = field(default_factory=dict)

    @property
    def size_names(self) -> set[str]:
        """The names of sizes, as recorded and as Rust spells them: no variable may hide one."""
        return {*self.sizes, *self.sizes.values()}

    def helper(self, name: str, *arguments: RustExpression, generics: str = "") -> RustExpression:
        """Return the call of a helper function."""
        self.helpers.add(name)
        return path_call(f"{name}::<{generics}>" if generics else name, *arguments)

    def add(self, wanted: str, make: Callable[[str], str]) -> str:
        """Return the name of a function; `make` returns its text under a name."""
        text = make("@")
        if text not in self.texts:
            chosen = unique(wanted, self.taken)
            self.taken.add(chosen)
            self.texts[text] = chosen
            self.sources.append(make(chosen))
        return self.texts[text]


def _has_few_bits(step: Step) -> bool:
    """Whether a step reads or makes numbers of few bits, which rules of calls do not know."""
    leaves = [*reads(step), *jax.tree.leaves(step.outputs)]
    return any(isinstance(leaf, Variable) and is_narrow(leaf.dtype) for leaf in leaves)


@dataclass(eq=False)
class StepPrinter:
    """Prints the steps of one module.

    Attributes:
      functions: the private functions of the model.
      expression_of: returns the expression of a variable.
      stored: returns the expression of a tensor that the module keeps.
      sizes: notes the names of sizes that are read.
      helpers: notes the helpers that are called.
    """

    functions: Functions
    expression_of: Callable[[Variable], RustExpression]
    stored: Callable[[HostValue], RustExpression]
    sizes: set[str]

    def expression(self, step: Step) -> RustExpression:
        """Return the expression that computes a step.

        Raises:
          NotPrintable: it has no form in Burn.
        """
        body = RustBody({"device"}, self._table, printed, is_inline=True)
        try:
            results = self._by_call(body, step, self.expression_of) or self._by_primitives(body, step)
        except NeedsStatements:
            return self._function(step)
        self._note(body)
        nodes = [body.tensor(value) for value in results]
        self._note(body)
        return together(nodes) if body.whole is None else body.whole

    def _note(self, body: RustBody) -> None:
        self.sizes |= body.sizes
        self.functions.helpers |= body.helpers

    def _table(self, array: np.ndarray) -> RustExpression:
        return self.stored(HostValue(array))

    def _by_call(
        self, body: RustBody, step: Step, expression_of: Callable[[Variable], RustExpression]
    ) -> list[TypedValue] | None:
        """Return the results by the rule of the call; None if there is none, or if it leaves the call to its
        primitives.
        """
        key = (
            step.name
            if step.form in ("call", "operator", "attribute")
            else f".{step.name}"
            if step.form == "method"
            else step.form
        )
        rule = CALLS.get(key)
        if rule is None or (_has_few_bits(step) and key not in OF_FEW_BITS):
            return None

        def value(leaf: object) -> Any:
            if isinstance(leaf, Variable):
                return _read(expression_of(leaf), leaf)
            if isinstance(leaf, HostValue):
                if leaf.symbolic:
                    return TypedValue(leaf.shape, leaf.dtype, known=leaf.item()) if leaf.size == 1 else leaf
                return constant(np.asarray(leaf.to_jax()))
            if isinstance(leaf, slice):
                return slice(*map(value, (leaf.start, leaf.stop, leaf.step)))
            return leaf

        args, kwargs = map_leaves(value, step.args), {key: map_leaves(value, arg) for key, arg in step.kwargs.items()}
        try:
            inspect.signature(rule).bind(body, step, *args, **kwargs)
        except TypeError:  # an option that the rule does not know
            return None
        made = rule(body, step, *args, **kwargs)
        if made is None:
            return None
        return [made] if isinstance(made, TypedValue) else list(made)

    def _by_primitives(self, body: RustBody, step: Step) -> list[TypedValue]:
        traced = _Traced(step)
        values = [_read(self.expression_of(v), v) for v in traced.variables]
        values += [self._known(host) for host in traced.tables]
        return _as_recorded(body, step, printed(body, traced.jaxpr.jaxpr, traced.jaxpr.consts, values))

    def _known(self, host: HostValue) -> TypedValue:
        return tensor(self.stored(host), host.shape, np.dtype(host.to_jax().dtype))

    def _function(self, step: Step) -> RustExpression:
        """Return the call of a private function that computes a step."""
        traced = _Traced(step)
        names = [*_argument_names(len(traced.variables), self.functions.size_names)]
        by_variable = dict(zip(traced.variables, names, strict=True))
        tables: list[tuple[str, np.ndarray | HostValue]] = []
        taken = {"device", *names, *self.functions.size_names}
        body = RustBody(taken, lambda array: _parameter(body, tables, array), printed)

        def named(variable: Variable) -> RustExpression:
            return Identifier(by_variable[variable])

        results = self._by_call(body, step, named)
        if results is None:
            values = [tensor(named(v), v.shape, v.dtype) for v in traced.variables]
            values += [
                tensor(_parameter(body, tables, host), host.shape, np.dtype(host.to_jax().dtype))
                for host in traced.tables
            ]
            results = _as_recorded(body, step, printed(body, traced.jaxpr.jaxpr, traced.jaxpr.consts, values))
        nodes = [body.tensor(value) for value in results]
        statements = returned_at_once([*body.statements, Return(together(nodes))])
        shaped = {by_variable[v]: v for v in traced.variables}
        reading, missing = size_statements(shaped, body.sizes)
        prologue = sizes_in_rust(reading)
        sizes = sorted(missing)
        parameters = [*names, *(key for key, _ in tables), *sizes]
        types = [tensor_type(v.shape, v.dtype) for v in traced.variables]
        types += [
            tensor_type(
                t.shape,
                np.dtype(HostValue(t).to_jax().dtype) if isinstance(t, np.ndarray) else np.dtype(t.to_jax().dtype),
            )
            for _, t in tables
        ]
        types += ["usize"] * len(sizes)
        if has_name(statements, "device"):
            tensors = parameters[: len(parameters) - len(sizes)]
            if not tensors:
                parameters, types = ["device", *parameters], ["&Device", *types]
            else:
                prologue = [_device_of(tensors[0]), *prologue]
        kinds = [tensor_type(v.shape, v.dtype) for v in results]
        result_type = kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})"

        def make(name: str) -> str:
            statements_ = copy.deepcopy([*prologue, *statements])
            if parameters and parameters[0] == "device":  # it is a reference already
                for statement in statements_:
                    rewrite_parts(statement, _referenced)
            made = RustFunction(name, parameters, types, result_type, statements_)
            return function_text(made, [*body.copied, *body.sizes, *sizes, "device"], 0, self.functions.sizes)

        wanted = (
            identifier(step.name.rpartition(".")[2].lower(), "computed")
            if step.form == "call"
            else {"index": "part", "method": "updated", "vmap": "mapped"}.get(step.form, "computed")
        )
        name = self.functions.add(wanted, make)
        self.functions.helpers |= body.helpers
        self.sizes |= {*sizes}
        arguments = [self.expression_of(v) for v in traced.variables]
        arguments += [self.stored(t if isinstance(t, HostValue) else HostValue(t)) for _, t in tables]
        arguments += [Identifier(size) for size in sizes]
        if parameters and parameters[0] == "device":
            arguments = [body.device(), *arguments]
        return path_call(name, *arguments)


def _referenced(node: RustExpression) -> RustExpression:
    """Return `device` in place of `&device`."""
    is_device = isinstance(node, Borrow) and isinstance(node.value, Identifier) and node.value.id == "device"
    return Identifier("device") if is_device else node


def _read(node: RustExpression, variable: Variable) -> TypedValue:
    """Return the value of a variable; a number that fills a tensor stays one where its expression stands."""
    if node.fills is not None:
        return TypedValue(tuple(variable.shape), np.dtype(variable.dtype), known=node.fills)
    return tensor(node, variable.shape, variable.dtype)


def _as_recorded(body: RustBody, step: Step, results: Sequence[TypedValue]) -> list[TypedValue]:
    """Return results in the types that they were recorded with: an operand may have been a number that adapts its
    own.
    """
    leaves = [leaf for leaf in jax.tree.leaves(step.outputs) if isinstance(leaf, Variable)]
    return [converted(body, value, np.dtype(leaf.dtype)) for value, leaf in zip(results, leaves, strict=True)]


def _device_of(name: str) -> RustStatement:
    return Let(Identifier("device"), method(Identifier(name), "device", borrows=True))


def _parameter(
    body: RustBody, tables: list[tuple[str, np.ndarray | HostValue]], array: np.ndarray | HostValue
) -> RustExpression:
    for name, other in tables:
        if other is array:
            return Identifier(name)
    name = body.fresh("table")
    tables.append((name, array))
    return Identifier(name)


def _argument_names(count: int, taken: Collection[str]) -> Iterator[str]:
    """Yield names for the arguments of a function, none of which is that of a size."""
    for index in range(count):
        yield unique("xyz"[index] if count <= 3 else f"x{index}", taken)


class _Traced:
    """A step as a program of JAX on its variables and its large constants."""

    def __init__(self, step: Step):
        self.variables = reads(step)
        self.tables: list[HostValue] = []

        def large(leaf: Any) -> object:
            is_large = isinstance(leaf, HostValue) and not leaf.symbolic and leaf.size > LARGEST_CONSTANT
            if is_large and not _is_uniform(leaf.data) and not any(other is leaf for other in self.tables):
                self.tables.append(leaf)
            return leaf

        map_leaves(large, (step.args, step.kwargs))
        operands = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in self.variables]
        operands += [jax.ShapeDtypeStruct(host.shape, host.to_jax().dtype) for host in self.tables]
        self.jaxpr = jax.make_jaxpr(lambda *arrays: self._run(step, arrays))(*operands)

    def _run(self, step: Step, arrays: Sequence[jax.Array]) -> object:
        environment = Environment(zip([*self.variables, *self.tables], arrays, strict=True))
        result = replayed(step, environment)
        leaves = jax.tree.leaves(result)
        wanted = jax.tree.leaves(step.outputs)
        return [leaf for leaf, variable in zip(leaves, wanted, strict=True) if isinstance(variable, Variable)]


def _is_uniform(array: np.ndarray) -> bool:
    """Whether all elements are the same, or none of them is a number."""
    return array.dtype.kind == "O" or array.tobytes() == array.ravel()[0].tobytes() * array.size


def replayed(step: Step, environment: Environment) -> object:
    """Run a step on values: `environment` has those of variables and of large constants."""

    def value(leaf: object) -> Any:
        if isinstance(leaf, Variable | HostValue) and leaf in environment:
            return environment[leaf]
        if isinstance(leaf, RecordedFunction):
            return lambda *args: _called(leaf, args, environment)
        if isinstance(leaf, slice):
            return slice(*map(value, (leaf.start, leaf.stop, leaf.step)))
        return leaf

    def functions(leaf: object) -> Any:
        return lower(leaf) if not callable(leaf) or isinstance(leaf, Recordable | HostValue | np.dtype) else leaf

    args = map_leaves(functions, map_leaves(value, step.args))
    kwargs = {key: map_leaves(functions, map_leaves(value, arg)) for key, arg in step.kwargs.items()}
    match step.form:
        case "operator":
            return _OPERATORS[len(args), step.name](*args)
        case "attribute":
            return getattr(jnp.asarray(args[0]), step.name)
        case "index":
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            is_gathered = any(isinstance(part, jax.Array) and part.ndim for part in parts)
            # JAX moves indices inside, which it leaves to XLA; Burn panics.
            return jnp.asarray(args[0]).at[args[1]].get(mode="clip") if is_gathered else args[0][args[1]]
        case "method" if step.name.startswith("at."):
            return getattr(jnp.asarray(args[0]).at[args[1]], step.name.removeprefix("at."))(*args[2:], **kwargs)
        case "method":
            return getattr(args[0], step.name)(*args[1:], **kwargs)
        case "vmap":
            return operator.attrgetter(step.name.removeprefix("jax."))(jax)(args[0], **kwargs)(*args[1:])
    return _function_of(step.name)(*args, **kwargs)


def _called(function: RecordedFunction, args: Sequence[object], environment: Environment) -> object:
    inner = Environment(environment.items())

    def bind(tree: object, values: object) -> None:
        # Leaf by leaf: JAX returns lists where steps have tuples.
        leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Variable))
        for leaf, value in zip(leaves, jax.tree.leaves(values), strict=True):
            if isinstance(leaf, Variable):
                inner[leaf] = value

    for parameter, value in zip(function.parameters, args, strict=True):
        bind(parameter, value)
    for step in function.steps:
        bind(step.outputs, replayed(step, inner))

    def result(leaf: object) -> Any:
        return inner[leaf] if isinstance(leaf, Variable) else lower(leaf)

    return map_leaves(result, function.result)


def _function_of(name: str) -> PythonFunction:
    module, _, path = name.partition(".")
    if module == "helper":
        return HELPERS[path].function
    modules = {"jnp": jnp, "lax": jax.lax, "nn": jax.nn, "random": jax.random, "jax": jax}
    if module not in modules:
        raise NotPrintable(f"the call `{name}`", "it has no form in Rust")
    return operator.attrgetter(path)(modules[module])


_OPERATORS: dict[tuple[int, str], PythonFunction] = {
    (2, "+"): operator.add, (2, "-"): operator.sub, (2, "*"): operator.mul, (2, "/"): operator.truediv,
    (2, "//"): operator.floordiv, (2, "%"): operator.mod, (2, "**"): operator.pow, (2, "@"): operator.matmul,
    (2, "&"): operator.and_, (2, "|"): operator.or_, (2, "^"): operator.xor, (2, "<<"): operator.lshift,
    (2, ">>"): operator.rshift, (2, "=="): operator.eq, (2, "!="): operator.ne, (2, "<"): operator.lt,
    (2, "<="): operator.le, (2, ">"): operator.gt, (2, ">="): operator.ge, (1, "-"): operator.neg, (1,
        "~"): operator.invert,
}  # fmt: skip
