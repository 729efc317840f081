"""A Mox as a document of plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core as jax_core, export as jax_export
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jaxport import jaxprs
from jaxport.blocks.block import Block
from jaxport.blocks.callables.framework import public_name
from jaxport.blocks.tracing import TracedWeight
from jaxport.errors import Refusal, Unsupported
from jaxport.jaxprs import Atom, Aval, PythonFunction, Var, aval_of
from jaxport.jaxprs.meshes import in_body_of, without_explicit_axes, without_meshes
from jaxport.jaxprs.releases import implementations
from jaxport.jaxprs.rewrite import EquationRewriting, traced_equation
from jaxport.jaxprs.vmap_axes import Mapped, borne_by, transforms_of
from jaxport.mox.primitives import keyword_values, primitives
from jaxport.mox.programs.program import TracedProgram
from jaxport.mox.programs.rules import RULED, rule_of
from jaxport.mox.programs.tree import spelled
from jaxport.mox.serialize.json_values import JsonValue, object_of
from jaxport.mox.serialize.meshes import mesh_data, spec_data
from jaxport.mox.serialize.parameter_types import ANY, type_of, types_of
from jaxport.mox.serialize.trees import tree_data
from jaxport.mox.serialize.values import Named, Unwritable, dtype_text, encoded

FORMAT, VERSION = "jaxport.mox", 1

# Derivatives of higher orders than this are not in a file, if each of them has a rule of its own.
_DEEPEST_RULE = 6


def document(mox: TracedProgram) -> dict[str, JsonValue]:
    """Return the document of a Mox; the values of its weights go elsewhere.

    Raises:
      Unsupported: it has operations or values that could not be read back; all of them are named.
    """
    # How values are split is not part of a model, and the devices are those of this process.
    writer = _Writer(mox.replaced(replace(mox.traced, jaxpr=_portable(mox.jaxpr))))
    with without_explicit_axes():
        made = writer.document()
    if writer.refusals:
        count = len(set(writer.refusals))
        raise Unsupported(
            f"{count} thing{'s' if count > 1 else ''} in `{mox.name}` cannot be serialized", writer.refusals
        )
    return made


def _portable(program: jaxprs.ClosedJaxpr) -> jaxprs.ClosedJaxpr:
    return in_common(without_meshes(program, manual=False))


class _Writer:
    def __init__(self, mox: TracedProgram):
        self.mox = mox
        self.refusals: list[Refusal] = []
        self.rules: list[JsonValue] = []
        # The rules that are being written: one may call its own function.
        self.known_rules: dict[str, int] = {}
        # The records of operations under `vmap`, with their numbers: an inner one before those around it.
        self.records: dict[Mapped, int] = {}
        self.path = ""

    def document(self) -> dict[str, JsonValue]:
        mox, traced = self.mox, self.mox.traced
        signature = mox.signature
        body = self.body(mox.jaxpr.jaxpr)
        return {
            "format": FORMAT,
            "version": VERSION,
            "jax": jax.__version__,
            "name": mox.name,
            "signature": signature and [[p.name, p.kind.name] for p in signature.parameters.values()],
            "weights": [self.weight(weight) for weight in mox.weights],
            "inputs": list(mox.inputs),
            "dropped": list(mox.dropped),
            "in_tree": self.guarded(lambda: tree_data(traced.in_tree), "the arguments"),
            "out_tree": self.guarded(lambda: tree_data(traced.out_tree), "the results"),
            "input_paths": list(traced.input_paths),
            "output_paths": list(traced.output_paths),
            "state_outputs": list(traced.state_outputs),
            "static_inputs": [[index, self.value(v, "an argument")] for index, v in traced.static_inputs.items()],
            "static_outputs": [[index, self.value(v, "a result")] for index, v in traced.static_outputs.items()],
            "dims": self.dims(),
            "rules": self.rules,
            "records": [self.record(record) for record in self.records],
            "program": body,
        }

    def weight(self, weight: TracedWeight) -> dict[str, JsonValue]:
        held = {} if weight.is_held else {"owned": False}
        return {"path": weight.path, "aval": self.aval(jax.typeof(weight.value)), "trainable": weight.trainable, **held}

    def dims(self) -> list[str]:
        """Return the constraints on the symbols of the dims."""
        scopes = {  # in the order of the arguments
            dim.scope: None for aval in self.mox.jaxpr.in_avals for dim in aval.shape if jax_export.is_symbolic_dim(dim)
        }
        return [str(text) for scope in scopes for text in getattr(scope, "_constraints", ())]

    def refuse(self, name: str, why: str) -> None:
        self.refusals.append(Refusal(name, f"`{self.path or self.mox.name}`", why))

    def guarded(self, make: Callable[[], JsonValue], what: str) -> JsonValue:
        try:
            return make()
        except Unwritable as error:
            self.refuse(str(error), f"is in {what}, and could not be recreated")
            return None

    # -- programs --------------------------------------------------------------------------------------------------

    def body(self, jaxpr: jaxprs.Jaxpr) -> dict[str, JsonValue]:
        """Return a jaxpr whose variables are numbered."""
        names: dict[jaxprs.Var, str] = {}

        def named(variable: Var) -> list[JsonValue]:
            if not isinstance(variable, jaxprs.DropVar):
                names[variable] = f"v{len(names)}"
            return [names.get(variable, "_"), self.aval(aval_of(variable))]

        def read(atom: Atom) -> JsonValue:
            if isinstance(atom, jaxprs.Literal):
                aval = aval_of(atom)
                return {
                    "value": self.value(np.asarray(atom.val, aval.dtype), "a literal"),
                    "aval": self.aval(aval),
                }
            return names[atom]

        if jaxpr.constvars:
            self.refuse("constants", "are bound inside a body; pass them to the model as arguments")
        return {
            "inputs": [named(variable) for variable in jaxpr.invars],
            "equations": [self.equation(e, [read(a) for a in e.invars], named) for e in jaxpr.eqns],
            "outputs": [read(atom) for atom in jaxpr.outvars],
        }

    def aval(self, aval: Aval) -> JsonValue:
        if not isinstance(aval, jax_core.ShapedArray):
            self.refuse(str(aval), "is not an array: mutable references cannot be written")
            return None
        shape = [str(dim) if jax_export.is_symbolic_dim(dim) else int(dim) for dim in aval.shape]
        weak, axes = getattr(aval, "weak_type", False), sorted(jaxprs.varying_axes(aval))
        return [dtype_text(aval.dtype), shape, *([weak] if weak or axes else []), *([axes] if axes else [])]

    def equation(
        self, equation: jaxprs.JaxprEqn, operands: list[JsonValue], named: Callable[[Var], list[JsonValue]]
    ) -> dict[str, JsonValue]:
        name = equation.primitive.name
        block = equation.params.get("block")
        outer, self.path = self.path, block.path if block is not None else self.path
        if name not in primitives():
            self.refuse(
                name, "runs something that a file cannot contain" if "callback" in name else "is not known to jax.lax"
            )
        results = [named(variable) for variable in equation.outvars]
        data: dict[str, JsonValue] = {"op": spelled(name), "primitive": name, "in": operands, "out": results}
        if name in RULED:
            data["params"] = {"call_jaxpr": self.value(equation.params["call_jaxpr"], name)}
            data["rule"] = self.rule(equation)
        elif block is not None:
            data["block"] = self.block(block)
            data["params"] = {"jaxpr": self.value(equation.params["jaxpr"], name)}
        elif name == "shard_map":
            params = jaxprs.parameters(equation)
            data["params"] = in_body_of(
                params, lambda: {key: self.value(v, f"{name}[{key}]") for key, v in params.items()}
            )
        elif name in primitives():
            data["params"] = {key: self.value(v, f"{name}[{key}]") for key, v in jaxprs.parameters(equation).items()}
        for key, value in object_of(data.get("params", {})).items():
            if not {type_of(value), ANY} & types_of(name, key) and not self.refusals:
                self.refuse(
                    f"{name}[{key}]", f"has a value of the type {type_of(value)}, which JAX did not give it before"
                )
        source = self.source(equation)
        if source and None not in self.rules:  # the rule of a function is not part of the tree
            data["source"] = source
        self.path = outer
        return data

    def source(self, equation: jaxprs.JaxprEqn) -> JsonValue:
        """Return the transformations that an equation was made under, and the number of its record under `vmap`."""
        transforms, borne = transforms_of(equation), borne_by(equation)
        for record in borne:
            self.records.setdefault(record, len(self.records))
        number = [self.records[borne[-1]]] if borne else []
        return [transforms, *number] if transforms or borne else None

    def record(self, record: Mapped) -> JsonValue:
        sides = [
            [[self.value(value, "a record") for value in pair] for pair in side]
            for side in (record.operands, record.results)
        ]
        inner = None if record.inner is None else self.records[record.inner]
        return [record.primitive, self.value(record.size, "a record"), *sides, inner]

    def rule(self, equation: jaxprs.JaxprEqn) -> int:
        """Return the number of the rule of an equation; one that is being written already is that one.

        A rule is written without programs, and cannot be asked for, if it is

        1. the rule of a rule of a rule, and so on: each derivative of a function may be a function of its own;
        2. one that reads values of a trace that is over, as a rule that is a closure does inside of another's.
        """
        forward = backward = None
        if self.rules.count(None) < _DEEPEST_RULE:
            rule = rule_of(equation)
            if not any(isinstance(const, jax_core.Tracer) for const in rule.forward.consts):
                forward = _portable(rule.forward)
                backward = None if rule.backward is None else _portable(rule.backward)
        key = f"{equation.params['call_jaxpr']}\n{forward}\n{backward}"
        if key not in self.known_rules:
            number = self.known_rules[key] = len(self.rules)
            self.rules.append(None)
            function = equation.params["call_jaxpr"].jaxpr.debug_info.func_name
            self.rules[number] = {
                "name": str(function),
                "forward": self.value(forward, "a rule"),
                "backward": self.value(backward, "a rule"),
            }
        return self.known_rules[key]

    def block(self, block: Block) -> dict[str, JsonValue]:
        return {name: encoded(getattr(block, name), self.descriptive) for name in block.__dataclass_fields__}

    def descriptive(self, value: object) -> JsonValue:
        """What a block says of itself is for its readers: what has no written form is there by the name of its type."""
        if isinstance(value, tuple | list | Mapping | set | frozenset):
            return NotImplemented  # its items are asked for
        try:
            return encoded(value, self.special)
        except Unwritable:
            return {"$named": public_name(type(value), ())}

    # -- values ----------------------------------------------------------------------------------------------------

    def value(self, value: object, where: str) -> JsonValue:
        try:
            return encoded(value, self.special)
        except Unwritable as error:
            self.refuse(where, f"has {error}, which could not be read back")
            return None

    def special(self, value: Any) -> JsonValue:
        """Values that are written with the help of the program around them."""
        if isinstance(value, jaxprs.ClosedJaxpr):
            return self._with_constants(value) if value.consts else {"$closed": self.body(value.jaxpr)}
        if isinstance(value, jaxprs.Jaxpr):
            return {"$jaxpr": self.body(value)}
        if jax_export.is_symbolic_dim(value):
            return {"$dim": str(value)}
        if isinstance(value, Mesh | AbstractMesh) and not value.empty:
            return {"$mesh": mesh_data(value)}
        if isinstance(value, PartitionSpec):
            return {"$spec": spec_data(value)}
        for name, keyword in keyword_values().items():
            if type(value) is type(keyword) and value == keyword:
                return {"$keyword": name}
        if not callable(value) or isinstance(value, Mapping | Named | np.dtype):
            return NotImplemented
        dtype = getattr(value, "dtype", None)
        if isinstance(dtype, np.dtype) and not isinstance(value, jax.Array | np.ndarray | np.generic):
            return {"$scalar": dtype.name}  # `jnp.float32`
        if isinstance(value, type) and issubclass(value, np.generic):
            return NotImplemented
        return {"$named": public_name(value, ())} if hasattr(value, "__qualname__") else NotImplemented

    def _with_constants(self, value: jaxprs.ClosedJaxpr) -> JsonValue:
        constants = [encoded(np.asarray(const), self.special) for const in value.consts]
        jaxpr = value.jaxpr
        moved = jaxpr.replace(
            constvars=[],
            invars=[*jaxpr.constvars, *jaxpr.invars],
            debug_info=jaxpr.debug_info._replace(arg_names=None),
        )
        return {"$bound": [self.body(moved), constants]}


# Operations that not every release of JAX has, as those that all have


def in_common(program: jaxprs.ClosedJaxpr) -> jaxprs.ClosedJaxpr:
    """Return a program without the operations that only newer releases of JAX have, where others compute the same.

    >>> program = jax.make_jaxpr(lambda x: jnp.searchsorted(jnp.arange(3.0), x))(1.5)
    >>> print(jaxprs.jaxpr_as_fun(in_common(program))(1.5)[0])
    2
    """
    return EquationRewriting(_replaced).closed(program)


def _replaced(equation: jaxprs.JaxprEqn) -> jaxprs.JaxprEqn:
    function = _common(equation)
    if function is None:
        return equation
    made = traced_equation(jax.jit(function), [atom.aval for atom in equation.invars])
    return made.replace(invars=equation.invars, outvars=equation.outvars, source_info=equation.source_info)


def _common(equation: jaxprs.JaxprEqn) -> PythonFunction | None:
    """Return a function that computes an equation; None for an equation that stays as it is.

    1. An array of unspecified content is one of zeros.
    2. A call that is replaced before it is compiled is what replaces it, if it has no derivative, of which it may say
      more.
    """
    name, params = equation.primitive.name, equation.params
    results = [aval_of(variable) for variable in equation.outvars]
    if name == "empty":
        return lambda: jnp.zeros(params["shape"], params["dtype"])
    if name == "call_hi_primitive" and not any(jnp.issubdtype(aval.dtype, jnp.inexact) for aval in results):
        run = implementations(equation.primitive)[0]
        return lambda *operands: run(*operands, **params)
    return None
