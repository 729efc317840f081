"""A document of plain data as a Mox."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax import core as jax_core, export as jax_export
from jax.sharding import AbstractMesh

from jaxport import jaxprs
from jaxport.blocks.block import Block
from jaxport.blocks.tracing import Traced, TracedWeight
from jaxport.errors import ModelError, Refusal, Unsupported, noted
from jaxport.jaxprs import (
    Array,
    Atom,
    Aval,
    Dim,
    Effect,
    Parameters,
    PythonFunction,
    Var,
    aval_of,
    dims,
    source_info_util,
)
from jaxport.jaxprs.alike import takes_values
from jaxport.jaxprs.body_inputs import jit_parameters
from jaxport.jaxprs.dim_text import FUNCTIONS, parse, symbols
from jaxport.jaxprs.meshes import in_body_of, local_type
from jaxport.jaxprs.rewrite import traced_equation
from jaxport.jaxprs.vmap_axes import Mapped, with_record
from jaxport.mox.primitives import collectives, implementation, keyword_values, primitives
from jaxport.mox.programs.program import Program
from jaxport.mox.programs.rules import RULED, DerivativeRule, equation_of
from jaxport.mox.serialize.json_values import (
    JsonValue,
    list_of,
    object_of,
    objects_of,
    pair_of,
    size_of,
    text_of,
    texts_of,
)
from jaxport.mox.serialize.meshes import mesh_from, spec_from
from jaxport.mox.serialize.parameter_types import check_parameters
from jaxport.mox.serialize.trees import tree_from
from jaxport.mox.serialize.values import decoded, dtype_of
from jaxport.mox.serialize.writing import FORMAT, VERSION
from jaxport.printable import printable


def program_from(document: JsonValue, weights: Mapping[str, Array], kind: type[Program]) -> Program:
    """Return the program of a document.

    Args:
      document: what `document` made.
      weights: the value of each weight, by path.
      kind: the class of the result.

    Raises:
      ModelError: the document is not one, or is incomplete or inconsistent.
    """
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise ModelError("this is not a Mox", why=f"a Mox document has the format `{FORMAT}`")
    if document.get("version") != VERSION:
        raise ModelError(
            f"the document has version {document.get('version')!r}",
            why=f"this package reads version {VERSION}",
            instead="write it again with this package, or read it with the one that wrote it",
        )
    try:
        return _Reader(document, weights).program(kind)
    except Exception as error:
        written = str(document.get("jax", ""))
        if written not in ("", jax.__version__):
            noted(error, f"the file was written under JAX {printable(written)}, and this is {jax.__version__}")
        raise


class _Reader:
    def __init__(self, document: Mapping[str, JsonValue], weights: Mapping[str, Array]):
        self.data, self.weights = document, weights
        self.scope = jax_export.SymbolicScope(tuple(map(_constraint, texts_of(document["dims"]))))
        self.rules = objects_of(document["rules"])
        self.source_info = source_info_util.new_source_info()
        # A file of a version before these were written does without.
        self.records: list[Mapped] = []
        for item in list_of(document.get("records", ())):
            self.records.append(self.record(item))
        self.rule = cache(self._rule)

    def program(self, kind: type[Program]) -> Program:
        data = self.data
        jaxpr = self.body(object_of(data["program"]))
        weights = tuple(self.weight(item) for item in objects_of(data["weights"]))
        traced = Traced(
            jaxpr=jaxprs.closed(jaxpr, ()),
            weights=weights,
            in_tree=tree_from(data["in_tree"]),
            out_tree=tree_from(data["out_tree"]),
            input_paths=texts_of(data["input_paths"]),
            output_paths=texts_of(data["output_paths"]),
            state_outputs=texts_of(data["state_outputs"]),
            static_inputs=self.static(data["static_inputs"]),
            static_outputs=self.static(data["static_outputs"]),
        )
        inputs = texts_of(data["inputs"])
        self.check(jaxpr, traced, len(inputs))
        signature = None
        if data["signature"] is not None:
            kinds = {kind.name: kind for kind in inspect._ParameterKind}
            pairs = map(texts_of, list_of(data["signature"]))
            signature = inspect.Signature([inspect.Parameter(name, kinds[kind]) for name, kind in pairs])
        return kind(traced, str(data["name"]), signature, inputs, texts_of(data["dropped"]), None)

    def static(self, data: JsonValue) -> dict[int, Any]:
        """Return the leaves that are not arrays, by position."""
        return {size_of(index): self.value(value) for index, value in map(pair_of, list_of(data))}

    def check(self, jaxpr: jaxprs.Jaxpr, traced: Traced, added: int) -> None:
        """What the evaluation relies on: counts and types agree, also within the program."""
        call = jax.tree.unflatten(traced.in_tree, range(traced.in_tree.num_leaves))
        if not (isinstance(call, tuple) and [type(part) for part in call] == [tuple, dict]):
            raise ModelError(
                "the structure of the arguments is not that of a call",
                why="it has to be a tuple of positional arguments and a dict of keyword arguments",
            )
        arrays = traced.in_tree.num_leaves - len(traced.static_inputs)
        inputs = len(traced.weights) + arrays + added
        results = traced.out_tree.num_leaves - len(traced.static_outputs)
        outputs = results + len(traced.state_outputs)
        if inputs != len(jaxpr.invars) or outputs != len(jaxpr.outvars):
            raise ModelError(
                "the program does not match its arguments and results",
                why=f"it has {len(jaxpr.invars)} inputs and {len(jaxpr.outvars)} outputs, not {inputs} and {outputs}",
            )
        for weight, variable in zip(traced.weights, jaxpr.invars, strict=False):
            aval, wanted = jax.typeof(weight.value), _typed(variable)
            if not takes_values(wanted, aval):
                raise ModelError(
                    f"the weight `{weight.path}` is {aval.str_short()}",
                    where="the weights file",
                    why=f"the program has {wanted.str_short()}",
                )
        try:
            jaxprs.check_jaxpr(jaxpr)
        except Exception as error:  # whatever an operation has to say of its operands
            raise ModelError("the program is inconsistent", why=str(error).splitlines()[0]) from error

    def weight(self, data: Mapping[str, JsonValue]) -> TracedWeight:
        path = str(data["path"])
        if path not in self.weights:
            raise ModelError(
                f"the weight `{path}` is missing", where="the weights file", why="the program has it as a parameter"
            )
        owned = bool(data.get("owned", True))
        return TracedWeight(path, self.weights[path], bool(data["trainable"]), owned=owned)

    # -- programs --------------------------------------------------------------------------------------------------

    def body(self, data: Mapping[str, JsonValue]) -> jaxprs.Jaxpr:
        names: dict[str, jaxprs.Var] = {}

        def defined(item: JsonValue) -> jaxprs.Var:
            name, aval = pair_of(item)
            name = text_of(name)
            variable = (jaxprs.DropVar if name == "_" else jaxprs.Var)(self.aval(aval))
            if name != "_":
                if name in names:
                    raise ModelError(f"the value `{name}` is defined twice")
                names[name] = variable
            return variable

        def read(atom: JsonValue) -> Atom:
            if isinstance(atom, str):
                if atom not in names:
                    raise ModelError(f"the value `{atom}` is used before it is defined")
                return names[atom]
            literal = object_of(atom)
            value, aval = self.value(literal["value"]), self.aval(literal["aval"])
            # A weak type is that of a number of Python; a number of NumPy would make those of its results strong.
            if getattr(aval, "weak_type", False) and isinstance(value, np.ndarray | np.generic) and not np.ndim(value):
                number = value.item()
                value = number if jax.typeof(number) == aval else value
            return jaxprs.Literal(value, aval)

        inputs = [defined(item) for item in list_of(data["inputs"])]
        equations = [
            self.equation(item, [read(atom) for atom in list_of(item["in"])], defined)
            for item in objects_of(data["equations"])
        ]
        outputs = [read(atom) for atom in list_of(data["outputs"])]
        effects: set[Effect] = set().union(*(equation.effects for equation in equations))
        debug_info = jaxprs.DebugInfo("mox", "loaded", None, None)
        return jaxprs.Jaxpr((), inputs, outputs, equations, effects, debug_info)

    def aval(self, data: JsonValue) -> Aval:
        dtype, shape, *rest = list_of(data)
        sizes, weak = tuple(self.dim(size) for size in list_of(shape)), bool(rest and rest[0])
        if jax.sharding.get_abstract_mesh().manual_axes:
            return local_type(sizes, dtype_of(text_of(dtype)), weak, texts_of(rest[1]) if len(rest) > 1 else ())
        return jax_core.ShapedArray(sizes, dtype_of(text_of(dtype)), weak_type=weak)

    def dim(self, size: JsonValue) -> Dim:
        if isinstance(size, str):
            return dims.evaluate(size, {name: self.symbol(name) for name in symbols(size)})
        return size_of(size)

    def symbol(self, name: str) -> Dim:
        if name in FUNCTIONS:
            raise ModelError(f"`{name}` is not a valid name for a size", why="JAX has a function of this name")
        return jax_export.symbolic_shape(name, scope=self.scope)[0]

    def equation(
        self, data: Mapping[str, JsonValue], operands: list[Atom], defined: Callable[[JsonValue], Var]
    ) -> jaxprs.JaxprEqn:
        try:
            return self.made(data, operands, defined)
        except Exception as error:
            noted(error, f"an operation `{data.get('primitive') if isinstance(data, Mapping) else data}`")
            raise

    def made(
        self, data: Mapping[str, JsonValue], operands: list[Atom], defined: Callable[[JsonValue], Var]
    ) -> jaxprs.JaxprEqn:
        name = text_of(data["primitive"])
        own = implementation(name)
        if name not in primitives() and own is None:
            raise ModelError(
                f"`{name}` is not an operation that a Mox may have",
                why="a document can name only operations of jax.lax",
            )
        given = object_of(data["params"])
        check_parameters(name, given)
        params = self.mapped(given) if name == "shard_map" else self.params(given)
        outvars = [defined(item) for item in list_of(data["out"])]
        if name == "jit":
            _check_jit(params, len(operands), len(outvars))
        if name in RULED or name == "block":
            _check_call(name, operands, outvars, params["call_jaxpr" if name in RULED else "jaxpr"])
        source = self.source(data.get("source"))
        if name in RULED:
            number = data["rule"]
            if not isinstance(number, int) or not 0 <= number < len(self.rules):
                raise ModelError(f"unknown rule number {number!r}")
            title = str(self.rules[number]["name"])
            mesh = jax.sharding.get_abstract_mesh()
            made = equation_of(name, params["call_jaxpr"], lambda: self.rule(number, mesh), title)
            return made.replace(invars=operands, outvars=outvars, source_info=source)
        if name == "block":
            fields = self.params(object_of(data["block"]))
            # A file of a version before a field was known does without it.
            if not {"target"} <= set(fields) <= set(Block.__dataclass_fields__):
                raise ModelError("a block does not have the expected fields", why=", ".join(fields))
            params["block"] = Block(**fields)
        if own is not None:
            return _called(own, params, operands).replace(outvars=outvars, source_info=source)
        effects, params = _effects(params), jaxprs.native(name, params)
        if name == "shard_map":
            effects = set()  # those of its body are confined to the axes that it makes manual
        elif name in collectives():
            effects |= _effects_of(primitives()[name], params, operands)
        return jaxprs.new_jaxpr_eqn(operands, outvars, primitives()[name], params, effects, source)

    def params(self, data: Mapping[str, JsonValue]) -> dict[str, Any]:
        return {key: self.value(value) for key, value in data.items()}

    def mapped(self, data: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Return the parameters of a `shard_map`, whose body is read on its mesh."""
        around = self.params({key: value for key, value in data.items() if key != "jaxpr"})
        body = in_body_of(around, lambda: self.value(data["jaxpr"]))
        return {key: body if key == "jaxpr" else around[key] for key in data}

    def source(self, data: JsonValue) -> source_info_util.SourceInfo:
        if data is None:
            return self.source_info
        transforms, *numbers = list_of(data)
        return with_record(texts_of(transforms), *(self._numbered(number) for number in numbers))

    def record(self, data: JsonValue) -> Mapped:
        primitive, size, operands, results, inner = list_of(data)
        sides = [
            tuple((self.value(shape), self.value(axis)) for shape, axis in map(pair_of, list_of(side)))
            for side in (operands, results)
        ]
        known = None if inner is None else self._numbered(inner)
        return Mapped(str(primitive), self.value(size), *sides, inner=known)

    def _numbered(self, number: JsonValue) -> Mapped:
        if type(number) is not int or not 0 <= number < len(self.records):
            raise ModelError(f"unknown record number {number!r}")
        return self.records[number]

    def _rule(self, number: int, mesh: AbstractMesh) -> DerivativeRule:
        data = self.rules[number]
        if data["forward"] is None:
            name = printable(str(data["name"]))
            why = (
                "is of a high order, or its rule reads more than its arguments: differentiate the function it was "
                "made of"
            )
            raise Unsupported("a derivative is not in the file of this Mox", [Refusal(name, "a rule of its own", why)])
        with jax.sharding.use_abstract_mesh(mesh):
            return DerivativeRule(self.value(data["forward"]), self.value(data["backward"]))

    # -- values ----------------------------------------------------------------------------------------------------

    def value(self, data: JsonValue) -> Any:
        return decoded(data, self.special)

    def special(self, data: Mapping[str, JsonValue]) -> Any:
        if len(data) != 1:
            return NotImplemented
        ((key, content),) = data.items()
        if key == "$closed":
            return jaxprs.closed(self.body(object_of(content)), ())
        if key == "$jaxpr":
            return self.body(object_of(content))
        if key == "$bound":
            program, constants = pair_of(content)
            jaxpr, constants = self.body(object_of(program)), [self.value(item) for item in list_of(constants)]
            count = len(constants)
            moved = jaxpr.replace(constvars=jaxpr.invars[:count], invars=jaxpr.invars[count:])
            return jaxprs.closed(moved, constants)
        if key == "$mesh":
            return mesh_from(content)
        if key == "$spec":
            return spec_from(content)
        if key == "$dim":
            return self.dim(content)
        if key == "$keyword":
            return keyword_values()[text_of(content)]
        return NotImplemented


def _effects_of(primitive: jaxprs.Primitive, params: Parameters, operands: Sequence[Atom]) -> set[Effect]:
    """Return the effects of a collective operation: the axes of the mesh whose devices take part in it."""
    avals = [atom.aval for atom in operands]
    return set(traced_equation(lambda *values: primitive.bind(*values, **params), avals).effects)


def _called(function: PythonFunction, params: Parameters, operands: Sequence[Atom]) -> jaxprs.JaxprEqn:
    """Return the call of a function that computes what this release of JAX has no primitive for."""
    run = jax.jit(lambda *arrays: function(*arrays, **params))
    return traced_equation(run, [atom.aval for atom in operands]).replace(invars=list(operands))


def _constraint(text: str) -> str:
    """Return the constraints on sizes, after they are read: JAX's own reader multiplies out whatever it gets."""
    for side in re.split("(?:>=|<=|==)", text):
        parse(side)
    return text


def _check_call(name: str, operands: Sequence[Atom], results: Sequence[Atom], body: jaxprs.ClosedJaxpr) -> None:
    """Compare the operands and results of a call with its body, which JAX itself does not."""
    typed = lambda avals: [(aval.shape, aval.dtype) for aval in avals]
    operand_avals, made = [atom.aval for atom in operands], [atom.aval for atom in results]
    if typed(operand_avals) != typed(body.in_avals) or typed(made) != typed(body.out_avals):
        raise ModelError("the program is inconsistent", why=f"a `{name}` does not fit its body")


def _check_jit(params: Parameters, operands: int, results: int) -> None:
    """Check the params of a `jit`, which JAX itself does not before it lowers one."""
    wanted = jit_parameters()
    counts = {"in_shardings": operands, "in_layouts": operands, "donated_invars": operands}
    counts |= {"out_shardings": results, "out_layouts": results}
    for name in {*params, *wanted}:
        value, known = params.get(name), wanted.get(name)
        fits = name in params and name in wanted and type(value) is type(known)
        if fits and name in counts and isinstance(value, tuple) and isinstance(known, tuple):
            fits = len(value) == counts[name] and {*map(type, value)} <= {*map(type, known)}
        if not fits:
            raise ModelError("a `jit` is malformed", why=f"its parameter `{name[:40]}` is not what jax gives it")


def _typed(variable: jaxprs.Var) -> Aval:
    return aval_of(variable)


def _effects(params: Parameters) -> set[Effect]:
    """Return the effects of an operation: those of the bodies in it."""
    effects: set[Effect] = set()
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, jaxprs.ClosedJaxpr | jaxprs.Jaxpr):
                effects |= item.effects
    return effects
