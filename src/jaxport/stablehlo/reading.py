"""From text, bytecode and serialized artifacts to plain values, past one gate of sizes and depths."""

from __future__ import annotations

# Values are arrays of JAX, of NumPy, or tuples, as an operation has them: only the module tells which.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportReturnType=false
# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false, reportIndexIssue=false
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from jaxport.errors import ModelError, Refusal, Unsupported, noted
from jaxport.importer.limits import Limits
from jaxport.jaxprs.releases import breaks_parser, mlir_module
from jaxport.stablehlo.tree import Attributes, HloBody, HloFunction, HloModule, HloOperation, TensorType

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from jaxport.stablehlo.tree import Kind

BYTECODE = b"ML\xefR"
_BYTECODE = "the bytecode"
DEEPEST_TEXT = 256
"""How deeply brackets may nest: MLIR's parser calls itself for each."""
LONGEST_SCOPE = 64

_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([^,]+?)(?:, .*)?>$", re.DOTALL)
_FIELD = re.compile(r"(\w+) = (\[[^\]]*\]|<[^<>]*>|[^,<>]+)")
_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|-?\d[\d.]*(?:[eE][-+]?\d+)?|true|false|nan|-?inf")
_NAMED = re.compile(r'"((?:[^"\\]|\\.)*)"(?!:\d)')
_PLACED = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_WRAPPED = re.compile(r"^(?:jit|pjit|jvp|vmap|transpose|checkpoint|remat|custom_\w+|rematted_computation)\((.*)\)$")


def read_module(data: bytes | str, limits: Limits, trusted: bool = True) -> HloModule:
    """Return a module of StableHLO, checked against the limits; one that is not trusted is parsed in a process of its
    own first.

    Raises:
      ModelError: it is malformed, or too large; the message has line and column of a text.
      Unsupported: it has quantized types.
    """
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) and not data.startswith(BYTECODE) else data
    if isinstance(text, str):
        _check_depth(text)
    why = "" if trusted else breaks_parser(text if isinstance(text, bytes) else text.encode())
    if why:
        raise ModelError("the module is malformed", where=_BYTECODE, why=why, instead="write the artifact again")
    try:
        module = mlir_module(text)
    except Exception as error:
        raise _malformed(error) from error
    read = _Reading(module, limits).module()
    read.check(limits)
    return read


def _check_depth(text: str) -> None:
    depth = 0
    for found in re.finditer(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[(\[{<]|[)\]}>]', text):
        if found[0] in "([{<":
            depth += 1
        elif found[0] in ")]}>":
            depth -= 1
        if depth > DEEPEST_TEXT:
            line = text.count("\n", 0, found.start()) + 1
            column = found.start() - text.rfind("\n", 0, found.start())
            raise ModelError(
                f"brackets nest more than {DEEPEST_TEXT} deep",
                where=f"line {line}, column {column}",
                instead="write the module with less nesting",
            )


def _malformed(error: Exception) -> Exception:
    message = str(error)
    if "quant" in message:
        return Unsupported("the module cannot be imported", [Refusal("quant", _place(message) or _TYPES, _QUANTIZED)])
    found = re.search(r'"-":(\d+):(\d+): (.*)', message)
    where = f"line {found[1]}, column {found[2]}" if found else _BYTECODE
    why = found[3] if found else message.strip().splitlines()[-1] if message.strip() else type(error).__name__
    return ModelError("the module is malformed", where=where, why=why, instead="write the artifact again")


_QUANTIZED = (
    "quantized types have no counterpart in JAX; write the artifact with `stablehlo-legalize-quant-to-math` run first"
)


_TYPES = "the types of the module"


@contextmanager
def _located(raw: ir.Operation) -> Iterator[None]:
    """Add the place of an operation to what is raised while it is read, unless that has one."""
    try:
        yield
    except Unsupported as error:
        place, places = _where(raw), {refusal.where for refusal in error.refusals}
        if not place or places != {_TYPES}:
            raise
        raise Unsupported(error.headline, [replace(each, where=place) for each in error.refusals]) from error
    except ModelError as error:
        if error.where or not _where(raw):
            raise
        raise ModelError(error.refused, where=_where(raw), why=error.why, instead=error.instead) from error
    except (TypeError, ValueError, LookupError) as error:
        noted(error, _where(raw) or f"`{raw.name}`")
        raise


class _Reading:
    """One reading: the values that have numbers so far."""

    def __init__(self, module: ir.Module, limits: Limits):
        self.mlir, self.limits = module, limits
        self.left = limits.operations * 10
        self.numbers: dict[ir.Value, int] = {}
        self.makers: dict[int, HloOperation] = {}
        self.resources: dict[str, bytes] | None = None

    def module(self) -> HloModule:
        functions: dict[str, HloFunction] = {}
        for raw in self.mlir.body.operations:
            operation = raw.operation
            if operation.name == "func.func":
                with _located(operation):
                    function = self.function(operation)
                functions[function.name] = function
            elif not operation.name.startswith("sdy."):
                raise ModelError(f"`{operation.name}` is not a function", where=_where(operation))
        if "main" not in functions:
            public = [name for name in functions if name]
            if len(public) != 1:
                raise ModelError(
                    "the module has no function `main`",
                    why=f"its functions are {', '.join(f'`{name}`' for name in public) or 'none'}",
                    instead="name the one to call `main`",
                )
            functions["main"] = functions[public[0]]
        given = self.attributes(self.mlir.operation)
        counts = [given.get(f"mhlo.num_{kind}") for kind in ("partitions", "replicas")]
        devices = None if None in counts else counts[0] * counts[1]
        return HloModule(given.get("sym_name", "main"), functions, self.makers, len(self.numbers), devices)

    def function(self, operation: ir.Operation) -> HloFunction:
        attributes = self.attributes(operation)
        if not len(operation.regions[0].blocks):
            raise ModelError(f"the function `{attributes['sym_name']}` has no body")
        body = self.body(operation.regions[0], 0)
        nothing: tuple[dict, ...] = ({},)
        return HloFunction(
            attributes["sym_name"],
            body,
            attributes.get("arg_attrs", nothing * len(body.arguments)),
        )

    def body(self, region: ir.Region, depth: int) -> HloBody:
        if depth > self.limits.nesting:
            raise ModelError("regions nest too deeply", why=f"the limits allow {self.limits.nesting}")
        if len(region.blocks) != 1:
            raise ModelError(
                "a region has several blocks", instead="lower `cf` to `stablehlo.if` and `stablehlo.while`"
            )
        block = region.blocks[0]
        arguments = tuple(self.number(value) for value in block.arguments)
        types = tuple(_type(value.type) for value in block.arguments)
        operations: list[HloOperation] = []
        for raw in block.operations:
            self.left -= 1
            if self.left < 0:
                raise ModelError("the module has too many operations", instead="raise `Limits(operations=…)`")
            with _located(raw.operation):
                operations.append(self.operation(raw.operation, depth))
        return HloBody(arguments, types, operations[:-1], operations[-1].operands)

    def number(self, value: ir.Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def operation(self, raw: ir.Operation, depth: int) -> HloOperation:
        location = str(raw.location)
        read = HloOperation(
            name=raw.name,
            operands=tuple(self.number(value) for value in raw.operands),
            results=tuple(self.number(value) for value in raw.results),
            types=tuple(_type(value.type) for value in raw.results),
            attributes={"value": self.constant(raw)} if raw.name == "stablehlo.constant" else self.attributes(raw),
            bodies=tuple(self.body(region, depth + 1) for region in raw.regions),
            scope=_scope(location),
            where=_place(location),
        )
        for value in read.results:
            self.makers[value] = read
        return read

    def attributes(self, raw: ir.Operation) -> Attributes:
        names = [name if isinstance(name, str) else name.name for name in raw.attributes]
        return {name: _attribute(raw.attributes[name]) for name in names}

    def constant(self, raw: ir.Operation) -> np.ndarray:
        kind = _type(raw.results[0].type)
        try:
            array = np.asarray(raw.attributes["value"])
            if array.dtype == kind.dtype and array.shape == kind.shape:
                return array
        except (TypeError, IndexError, BufferError, ValueError):
            pass  # types without a buffer in Python
        return self.spelled(str(raw), kind)

    def spelled(self, text: str, kind: TensorType) -> np.ndarray:
        """Return a constant from its text, for the types that MLIR gives to Python in no other way."""
        resource = re.search(r"dense_resource<(\w+)>", text)
        if resource:
            data = self.resource(resource[1])
            return np.frombuffer(data, kind.dtype).reshape(kind.shape)
        content = text[text.index("dense<") + 6 : text.rindex("> : ")]
        dumped = re.fullmatch(r'"0x([0-9A-Fa-f]*)"', content)
        if dumped:
            return _widened(bytes.fromhex(dumped[1]), kind)
        numbers = [_value(number, kind.dtype) for number in _NUMBER.findall(content)]
        if kind.dtype.kind == "c":
            numbers = [complex(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
        array = np.array(numbers, np.float64 if kind.dtype.kind == "V" else None).astype(kind.dtype)
        return np.broadcast_to(array.reshape(()), kind.shape) if array.size == 1 else array.reshape(kind.shape)

    def resource(self, name: str) -> bytes:
        if self.resources is None:
            text = self.mlir.operation.get_asm()
            found = re.findall(r'(\w+): "0x([0-9A-Fa-f]*)"', text[text.rfind("{-#") :])
            self.resources = {name: bytes.fromhex(data)[4:] for name, data in found}  # the first four are the alignment
        if name not in self.resources:
            raise ModelError(f"the module lacks the data of `{name}`", instead="write it without eliding resources")
        return self.resources[name]


def _widened(data: bytes, kind: TensorType) -> np.ndarray:
    stored = np.frombuffer(data, kind.dtype if kind.dtype.itemsize > 1 or kind.dtype.kind != "V" else np.int8)
    if stored.dtype != kind.dtype:
        stored = stored.view(kind.dtype) if "float" in str(kind.dtype) else stored.astype(kind.dtype)
    return np.broadcast_to(stored.reshape(()), kind.shape) if stored.size == 1 else stored.reshape(kind.shape)


def _value(text: str, dtype: np.dtype) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("0x"):  # the bits of a number that has no short decimal form
        bits = int(text, 16)
        part = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
        return float(np.array(bits, f"u{part.itemsize}").view(part)) if part.kind != "i" else bits
    return float(text) if dtype.kind in "fcV" and "int" not in str(dtype) else int(text)


_DTYPES = {
    "i1": np.bool_,
    "bf16": ml_dtypes.bfloat16,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
    "index": np.int64,
}


def dtype_of(text: str) -> np.dtype:
    """Return the dtype of a type of elements.

    >>> dtype_of("ui8"), dtype_of("f8E4M3FN")
    (dtype('uint8'), dtype(float8_e4m3fn))
    """
    if text in _DTYPES:
        return np.dtype(_DTYPES[text])
    if "quant" in text:
        raise Unsupported("the module cannot be imported", [Refusal(text, _TYPES, _QUANTIZED)])
    narrow = re.fullmatch(r"f([468])(E\d+M\d+\w*)", text)
    if narrow:
        name = f"float{narrow[1]}_{narrow[2].lower()}"
    else:
        name = re.sub(r"^si?|^i", "int", re.sub(r"^ui", "uint", re.sub(r"^f", "float", text)))
    try:
        return np.dtype(getattr(ml_dtypes, name, None) or name)
    except TypeError:
        raise Unsupported("the module cannot be imported", [Refusal(text, _TYPES, "JAX has no such type")]) from None


_types: Attributes = {}


def _type(kind: ir.Type) -> Kind:
    text = str(kind)
    if text not in _types:
        _types[text] = _read_type(text)
    return _types[text]


def _read_type(text: str) -> Kind:
    if text == "!stablehlo.token":
        return None
    if text.startswith("tuple<"):
        return tuple(_read_type(part) for part in _split(text[6:-1]))
    found = _TENSOR.match(text)
    if found is None:
        raise Unsupported(
            "the module cannot be imported",
            [Refusal(text, _TYPES, "only tensors can be computed with")],
        )
    sizes = tuple(None if size == "?" else int(size) for size in found[1].split("x")[:-1])
    return TensorType(sizes, dtype_of(found[2]))


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<([{") - (character in ">)]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _attribute(attribute: Any) -> Any:
    """Return an attribute as a Python value; those of StableHLO by what their text says."""
    match type(attribute).__name__:
        case "IntegerAttr" | "FloatAttr" | "BoolAttr":
            return attribute.value
        case "StringAttr":
            return _string(attribute)
        case "FlatSymbolRefAttr":
            return attribute.value
        case "ArrayAttr":
            return tuple(_attribute(each) for each in attribute)
        case "DictAttr":
            return {each.name: _attribute(each.attr) for each in (attribute[at] for at in range(len(attribute)))}
        case "UnitAttr":
            return True
        case "TypeAttr":
            return str(attribute.value)
        case name if name.endswith("ArrayAttr"):
            return tuple(attribute)
        case "DenseIntElementsAttr" | "DenseFPElementsAttr":
            return _rows(np.array(attribute))
        case _:
            return _read_text(str(attribute))


def _rows(array: np.ndarray) -> Any:
    """Return numbers as tuples of Python's own, which symbolic sizes compare with."""
    return tuple(map(tuple, array.tolist())) if array.ndim == 2 else tuple(array.tolist()) if array.ndim else array[()]


def _string(attribute: ir.StringAttr) -> str:
    try:
        return attribute.value
    except UnicodeDecodeError:
        return attribute.value_bytes.decode("utf-8", "backslashreplace")


def _read_text(text: str) -> Any:
    """Return an attribute of StableHLO: an enumeration as its word, the others as fields.

    >>> (
    ...     _read_text("#stablehlo<comparison_direction LT>"),
    ...     _read_text("#stablehlo.dot<lhs_contracting_dimensions = [1]>"),
    ... )
    ('LT', namespace(lhs_contracting_dimensions=(1,)))
    """
    word = re.fullmatch(r"#(?:stablehlo|chlo)<\w+ (\w+)>", text)
    if word:
        return word[1]
    if text.startswith("#sdy.sharding<"):  # the names of axes of a mesh, by axis of the array
        return tuple(tuple(re.findall(r'"([^"]*)"', part)) for part in re.findall(r"\{([^}]*)\}", text))
    if text.startswith("#stablehlo.conv<"):
        return tuple(tuple(_split(part)) for part in re.findall(r"\[([^\]]*)\]", text))
    return SimpleNamespace(**{name: _field(value.strip()) for name, value in _FIELD.findall(text)})


def _field(text: str) -> Any:
    if text.startswith("["):
        return tuple(int(part) for part in _split(text[1:-1]))
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _place(location: str) -> str:
    """Return the user's file and line, or line and column of a text, of a location."""
    found = next((each for each in _PLACED.findall(location) if "site-packages" not in each[0]), None)
    if found is None:
        return ""
    return f"line {found[1]}, column {found[2]}" if found[0] == "-" else f"{found[0]}:{found[1]}"


def _where(raw: ir.Operation) -> str:
    return _place(str(raw.location))


def _scope(location: str) -> tuple[str, ...]:
    """Return the names of modules that a location has: what JAX puts around them, and the primitive, are left out.

    >>> _scope('loc("jit(f)/jvp(Encoder)/Dense_0/dot_general"("a.py":3:4))')
    ('Encoder', 'Dense_0')
    """
    found = _NAMED.search(location)
    if found is None or "/" not in found[1]:
        return ()
    parts = _parts(found[1])[:-1]
    names: list[str] = []
    for part in parts:
        wrapped = False
        while (inner := _WRAPPED.match(part)) is not None:
            wrapped = part.startswith(("jit(", "pjit(")) or wrapped
            part = inner[1]
        if part and not wrapped and part not in _STRUCTURE:
            names += part.split("/")
    return tuple(name for name in names if re.fullmatch(r"[A-Za-z_~][\w.~\[\]-]*", name) and name != "~")[
        :LONGEST_SCOPE
    ]


_STRUCTURE = frozenset(
    {"while", "body", "cond", "scan", "closed_call", "checkpoint", "rematted_computation", "pjit", "custom_jvp_call"}
)


def _parts(path: str) -> list[str]:
    parts, depth = [""], 0
    for character in path:
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def unread(attributes: Attributes) -> Attributes:
    """Return the attributes that say what an operation computes: discardable ones, with a dot in their name, do not."""
    return {name: value for name, value in attributes.items() if "." not in name and name not in _SAY_NOTHING}


_SAY_NOTHING = frozenset({"operandSegmentSizes", "operand_segment_sizes", "result_accuracy", "resultSegmentSizes"})
