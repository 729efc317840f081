"""The walk: operations are evaluated one by one on JAX values, or under a trace."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
import re
from collections import ChainMap
from collections.abc import Container, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.export import is_symbolic_dim

from jaxport.blocks.marking.recorder import Boundary
from jaxport.blocks.marking.window import current_recorder
from jaxport.errors import LONGEST_REASON, InvalidArgument, JaxportError, ModelError, Refusal, Unsupported
from jaxport.jaxprs import InconclusiveDimensionOperation, PythonFunction, source_info_util
from jaxport.jaxprs.releases import assume
from jaxport.stablehlo import host, recognised
from jaxport.stablehlo.reading import unread
from jaxport.stablehlo.registry import CONTEXT, definitions
from jaxport.stablehlo.scopes import ScopeCall, segments
from jaxport.stablehlo.tree import Attributes, HloBody, HloModule, HloOperation, TensorType, Value

source_info_util.register_exclusion(__file__)

Values = MutableMapping[int, Value]

_SIZES = re.compile(
    r"dynamic_(?!slice|update_slice)|real_dynamic|\.if$|case|while|shape_assertion|dynamic_top_k|dynamic_approx|\.rng$"
)
"""Operations with operands that stay known: sizes, and conditions on them."""
INLINED = re.compile(r"main|None|closed_call|_wrapped_jax_export_main|wrapped_.*|call_exported_.*|_?lambda_?")
"""Functions that only JAX's lowering has made, and nobody has named."""


class HloWalk:
    """One evaluation of a module.

    Attributes:
      module: the module.
      params: the values of the constants that are parameters, by the number of the constant.
      largest: how many bytes a result may have.
      known: names of values that the caller knows: those of `jax.global_constant`.
    """

    def __init__(self, module: HloModule, params: Mapping[int, Value], largest: int, known: Attributes):
        self.module, self.params, self.largest, self.known = module, params, largest, known
        self.is_dynamic = module.is_dynamic
        self.jitted: dict[tuple, PythonFunction] = {}
        self.modules: Attributes = {}

    # -- functions and regions -----------------------------------------------------------------------------------------

    def function(self, name: str, operands: Sequence[Value]) -> tuple[Value, ...]:
        """Return the results of a function: as a call that bears its name, unless nobody has named it."""
        plain, arguments = recognised.plain_name(name), self.module.functions[name].argument_attributes
        known = self.is_dynamic and all(map(_is_size, operands))
        if known and (size := recognised.of_sizes(self, plain, name, operands)) is not None:
            return (size,)
        if known or INLINED.fullmatch(plain):
            return self.run(self.module.functions[name].body, operands, {})
        count = sum("jax.global_constant" in of for of in arguments)
        sizes = [x[()] if host.is_known(x) and x.ndim == 0 else None for x in operands[:count]]
        meaning = recognised.function(self.module, name, sizes, list(map(np.shape, operands[count:])))
        if meaning is not None:
            return tuple(jax.tree.leaves(meaning(*map(host.as_jax, operands[count:]))))
        fixed = {at: x for at, x in enumerate(operands) if self.is_dynamic and _is_size(x)}
        key = (name, tuple((at, tuple(x.ravel().tolist())) for at, x in fixed.items()), current_recorder() is None)
        if key not in self.jitted:

            def call(*arrays: Any) -> Any:
                rest = iter(arrays)
                given = [fixed[at] if at in fixed else next(rest) for at in range(len(operands))]
                return self.run(self.module.functions[name].body, given, {})

            call.__name__ = call.__qualname__ = plain
            self.jitted[key] = jax.jit(call)
        return tuple(self.jitted[key](*(x for at, x in enumerate(operands) if at not in fixed)))

    def run(self, body: HloBody, operands: Sequence[Value], around: Values) -> tuple[Value, ...]:
        """Return what a block returns."""
        values: Values = ChainMap(dict(zip(body.arguments, operands, strict=True)), around)
        recorder = current_recorder()
        self.items(body.operations if recorder is None else segments(body), values)
        return tuple(values[value] for value in body.returned)

    def items(self, items: Sequence[HloOperation | ScopeCall], values: Values) -> None:
        """Evaluate operations and the calls of modules."""
        for item in items:
            if isinstance(item, ScopeCall):
                self.segment(item, values)
            else:
                values.update(zip(item.results, self.operation(item, values), strict=True))

    def segment(self, segment: ScopeCall, values: Values) -> None:
        """Evaluate a call of a module between its markers."""
        recorder, module = current_recorder(), self.modules.get(".".join(segment.path))
        if recorder is None or module is None:
            self.items(segment.items, values)
            return
        read = [v for v in segment.inputs if v not in self.params and isinstance(values[v], jax.Array)]
        names = {f"x{at}" if len(read) > 1 else "x": value for at, value in enumerate(read)}
        known: dict[int, Value] = {}

        def call(**arrays: Value) -> Value:
            inner: Values = ChainMap({names[name]: array for name, array in arrays.items()}, values)
            self.items(segment.items, inner)
            known.update((v, inner[v]) for v in segment.outputs if not isinstance(inner[v], jax.Array))
            made = [inner[v] for v in segment.outputs if v not in known]
            return made[0] if len(made) == 1 else made

        arguments = {name: values[value] for name, value in names.items()}
        made = recorder.call_method(module, "__call__", call, (), arguments, Boundary(module.type))
        outputs = [value for value in segment.outputs if value not in known]
        values.update(known | dict(zip(outputs, [made] if len(outputs) == 1 else made, strict=True)))

    def region(self, body: HloBody, around: Values) -> PythonFunction:
        """Return a region as a function that returns a tuple."""

        def call(*operands: Any) -> tuple[Value, ...]:
            return tuple(map(host.as_jax, self.run(body, operands, around)))

        def step(
            operands: Sequence[Value],
            given: Mapping[int, Value],
            skipped: Container[HloOperation],
            wanted: Mapping[int, int],
        ) -> tuple[tuple[Value, ...], dict[int, Value]]:
            rest = [o for o in body.operations if o not in skipped and not any(v in given for v in o.results)]
            inner: Values = ChainMap({**dict(zip(body.arguments, operands, strict=True)), **given}, around)
            shorter = replace(body, operations=rest, returned=(*body.returned, *wanted.values()))
            self.items(rest if current_recorder() is None else segments(shorter), inner)
            return tuple(inner.get(v) for v in body.returned), {at: inner[v] for at, v in wanted.items()}

        call.__dict__.update(body=body, step=step, module=self.module)
        return call

    # -- operations ----------------------------------------------------------------------------------------------------

    def operation(self, operation: HloOperation, values: Values) -> tuple[Value, ...]:
        """Return the results of an operation."""
        operands = [values[value] for value in operation.operands]
        try:
            return self.checked(operation, self.computed(operation, operands, values))
        except JaxportError as error:
            if error.where or isinstance(error, Unsupported):
                raise
            raise type(error)(error.refused, where=_named(operation), why=error.why, instead=error.instead) from error
        except InconclusiveDimensionOperation as error:
            why = str(error).partition("\n")[0]
            instead = "give numbers, or say so where the sizes have names, `constraints=[…]`"
            raise InvalidArgument(
                "symbolic sizes are not enough here", where=_named(operation), why=why, instead=instead
            ) from error
        except NotImplementedError as error:  # by JAX: a derivative, say
            refusal = Refusal(operation.name, operation.where or "the module", f"{error}"[:LONGEST_REASON])
            raise Unsupported("the program cannot be computed", [refusal]) from error
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            why = f"{error}"[:LONGEST_REASON]
            raise ModelError(
                f"`{operation.name}` cannot be computed", where=_named(operation), why=why, instead="check the inputs"
            ) from error

    def computed(self, operation: HloOperation, operands: list[Value], values: Values) -> object:
        if operation.name == "stablehlo.constant":
            (number,) = operation.results
            return self.params[number] if number in self.params else operation.attributes["value"]
        if operation.name in ("func.call", "stablehlo.composite"):
            return self.called(operation, operands)
        try:
            known = host.compute(operation, operands)
        except InconclusiveDimensionOperation:
            if operation not in self.module.asserted or not _assumed(operation, operands):
                raise
            return np.array(True)
        if known is not None:
            return known
        name, given = named(operation)
        definition = definitions()[name]
        if not name.startswith(
            "@stablehlo."
        ):  # the sizes of results, which other custom calls have behind their operands
            operands = operands[: len(operands) - len(given.get("indices_of_shape_operands", ()))]
        given_operands = operands
        if not _SIZES.search(name):
            operands = list(map(host.as_jax, operands))
        if definition.is_plain:
            return definition.function(*operands)
        context = {
            "result": operation.types[0] if operation.types else None,
            "results": operation.types,
            "regions": tuple(self.region(body, values) for body in operation.bodies),
            "context": OperationPlace(self, operation, given_operands, values),
        }
        keywords = {p.name: context[n] for n, p in definition.keywords.items() if n in CONTEXT}
        keywords |= {
            definition.keywords[n].name if n in definition.keywords else n: value
            for n, value in given.items()
            if n in definition.keywords or definition.takes_all
        }
        return definition.function(*operands, **keywords)

    def called(self, operation: HloOperation, operands: list[Value]) -> object:
        name, given = named(operation)
        if operation.name == "stablehlo.composite" and name in definitions():
            definition = definitions()[name]
            if given.keys() <= definition.keywords.keys() or definition.takes_all:
                return definition.function(*map(host.as_jax, operands), **given)
        callee = operation.attributes.get("callee") or operation.attributes["decomposition"]
        return self.function(callee, operands)

    def checked(self, operation: HloOperation, made: object) -> tuple[Value, ...]:
        """Return the results as a tuple, compared with the types that the module declares."""
        results = tuple(made) if isinstance(made, tuple | list) and not _is_tuple(operation) else (made,)
        results = () if made is None and not operation.types else results
        if len(results) != len(operation.types):
            raise ModelError(f"`{operation.name}` gave {len(results)} results instead of {len(operation.types)}")
        for result, kind in zip(results, operation.types, strict=True):
            if not isinstance(kind, TensorType) or isinstance(result, np.ndarray):
                continue
            if result.ndim != len(kind.shape) or result.dtype != kind.dtype or _differ(result.shape, kind.shape):
                raise ModelError(f"`{operation.name}` gave {jax.typeof(result)} instead of {kind}")
            size = kind.dtype.itemsize * int(np.prod([n for n in result.shape if isinstance(n, int)], dtype=object))
            if size > self.largest:
                raise ModelError(
                    f"the result of `{operation.name}` has {size:,} bytes",
                    why=f"the limits allow {self.largest:,} bytes",
                    instead="if you trust the module, raise them: `from_stablehlo(…, limits=jaxport.Limits(bytes=…))`",
                )
        return results


class OperationPlace:
    """An operation in a walk, for definitions that need more than values."""

    def __init__(self, walk: HloWalk, operation: HloOperation, operands: Sequence[Value], values: Values):
        self.walk, self.operation, self.operands, self.values = walk, operation, operands, values
        self.where = _named(operation)

    def known(self, at: int) -> np.ndarray | None:
        """Return an operand that is known: a constant, or a size."""
        value, maker = self.operands[at], self.makers[at]
        while maker is not None and maker.name == "stablehlo.broadcast_in_dim" and maker.types[0].shape == ():
            (source,) = maker.operands
            maker = self.walk.module.makers.get(source)
            if maker is not None and maker.name == "stablehlo.constant":
                return maker.attributes["value"]
        return value if host.is_known(value) else None

    def numbers(self, vector: int) -> list[Value]:
        """Return the elements of a vector: the numbers that it was concatenated from, if it was."""
        maker = self.walk.module.makers.get(vector)
        parts = maker.operands if maker is not None and maker.name == "stablehlo.concatenate" else ()
        made = [self.walk.module.makers.get(part) for part in parts]
        if not made or not all(
            m is not None and m.name == "stablehlo.reshape" and m.types[0].shape == (1,) for m in made
        ):
            return list(self.values[vector])
        return [host.as_jax(self.values[m.operands[0]]).reshape(()) for m in made]

    @property
    def makers(self) -> list[HloOperation | None]:
        """The operations that make the operands; None for arguments of functions and regions."""
        return [self.walk.module.makers.get(value) for value in self.operation.operands]


def named(operation: HloOperation) -> tuple[str, Attributes]:
    """Return the name under which an operation is defined, and its attributes: those of a custom call are in its
    configuration.
    """
    given = unread(operation.attributes)
    if operation.name == "stablehlo.composite":
        return given["name"], dict(given.get("composite_attributes", {}))
    if operation.name != "stablehlo.custom_call":
        return operation.name, given
    configuration = given.get("backend_config", operation.attributes.get("mhlo.backend_config"))
    if not isinstance(configuration, dict):
        configuration = operation.attributes.get("mhlo.backend_config") or {}
    return f"@{given['call_target_name']}", {**given, **configuration}


def refusals(module: HloModule) -> list[Refusal]:
    """Return what of a module cannot be computed, by name and place."""
    found: dict[tuple[str, str], Refusal] = {}
    for operation in module.operations():
        name, given = named(operation)
        if operation.name in ("func.call", "stablehlo.composite", "stablehlo.constant"):
            continue
        definition = definitions().get(name)
        why = definition.refused if definition else _UNKNOWN
        why = why if isinstance(why, str) else why(given, module)
        if definition and not why and not definition.takes_all and not name.startswith("@"):
            extra = [n for n in given if n not in definition.keywords] if not definition.is_plain else list(given)
            why = f"has the attribute `{extra[0]}`, which is not known" if extra else ""
        if why:
            found.setdefault(
                (name, operation.where), Refusal(name.removeprefix("@"), operation.where or "the module", why)
            )
    return list(found.values())


_UNKNOWN = "is not known; define it with `@jaxport.stablehlo_op`"


_ASSUMED = {"EQ": (0, "==", 1), "GE": (0, ">=", 1), "LE": (1, ">=", 0)}


def _assumed(operation: HloOperation, operands: Sequence[np.ndarray]) -> bool:
    """Whether a comparison of sizes with names is a constraint on them now: the artifact asserts it."""
    direction = operation.attributes["comparison_direction"]
    if direction not in _ASSUMED or any(x.size != 1 for x in operands):
        return False
    left, comparison, right = _ASSUMED[direction]
    sizes = [x.item() for x in operands]
    return assume(sizes[left], comparison, sizes[right])


def _named(operation: HloOperation) -> str:
    return f"`{operation.name}`" + (f" at {operation.where}" if operation.where else "")


def _is_tuple(operation: HloOperation) -> bool:
    return len(operation.types) == 1 and isinstance(operation.types[0], tuple)


def _is_size(value: Any) -> bool:
    """Whether a value may be a size, and stays known in functions."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "iubO" and value.ndim < 2 and value.size <= host.FEW


def _differ(shape: Sequence[Value], declared: Sequence[int | None]) -> bool:
    return any(
        size is not None and not is_symbolic_dim(given) and given != size
        for given, size in zip(shape, declared, strict=True)
    )
