"""A recorded program as a crate for Burn: the sources, and the weights by Burn's own paths."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

import numpy as np

from jaxport.blocks.marking.window import comparing_sizes
from jaxport.codegen.burn.checks import CHECK_HELPERS, check_text
from jaxport.codegen.burn.definitions import snake_case
from jaxport.codegen.burn.helpers import names as helper_names, source
from jaxport.codegen.burn.imports import NAMES, imports, used
from jaxport.codegen.burn.layers import BURN, CELL_HELPERS, KEYWORDS, LAYERS, QUANTIZED
from jaxport.codegen.burn.printing import MOST_TOGETHER, Structs, kind_of_value
from jaxport.codegen.burn.rules.drawing import without_keys
from jaxport.codegen.burn.steps import Functions
from jaxport.codegen.burn.values import dtype_name, held, is_narrow, kind_of
from jaxport.codegen.generating import decoding
from jaxport.codegen.modules import model_arguments, root_name, tensors_of, trained_parts
from jaxport.codegen.rust.text import formatted, quoted
from jaxport.codegen.structure.modules.build import build
from jaxport.codegen.structure.sequences import in_place
from jaxport.codegen.tree import Layer, Weight
from jaxport.codegen.writing.literals import comment
from jaxport.codegen.writing.naming.scope import variable_name
from jaxport.codegen.writing.size_names import element_names, size_names
from jaxport.errors import Refusal, Unsupported
from jaxport.importer.names import unique
from jaxport.importer.tensors.origins import WeightOrigin
from jaxport.importer.traced.recorded_program import RecordedProgram
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.recording import Variable
from jaxport.jaxprs.identity import IdentityMap

SHORT = 4
"""Layers of a sequence that are fields of the structure around it; more are a structure of their own."""


@dataclass(frozen=True)
class Crate:
    """The sources of a crate, and its weights.

    Attributes:
      root: the name of the model's structure.
      model: the text of `model.rs`.
      helpers: the text of `helpers.rs`; empty if none is called.
      uses: what `load` and `run` use.
      run: `load` and `run`, which `main.rs` and the test of the crate call.
      computes_in: the one floating-point type of the weights, as Burn names it; empty if there are several, or none.
      tensors: the weights, by the paths of Burn's modules.
      origins: the tensor in the ONNX file that each of them comes from.
      arguments: the names of the arguments of `forward`.
      results: what its results are bound to in an example.
      coverage: the part of the elements of the parameters that are in layers.
      generation: of a decoder with a cache, the words of `generate.rs`; empty for any other model.
    """

    root: str
    model: str
    helpers: str
    uses: str
    run: str
    computes_in: str
    tensors: dict[str, np.ndarray]
    origins: dict[str, WeightOrigin] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    results: str = "y"
    coverage: float = 0.0
    generation: Mapping[str, str] = field(default_factory=dict)

    @property
    def glue(self) -> str:
        """What stands beside the modules in `lib.rs`."""
        return f"{self.uses}\n{self.run}"


def _pattern(result: object, structs: Structs) -> str:
    """Return what the model's results are bound to in an example."""
    if not isinstance(result, tuple):
        return structs.result_names[0]
    return f"({', '.join(structs.result_names)})" if len(result) <= MOST_TOGETHER else "outputs"


@comparing_sizes()  # steps are traced again
def to_crate(recorded: RecordedProgram, trained: Collection[str] | None = None) -> Crate:
    """Return the program as structures of Rust, in which the weights of these names are trained; all by default.

    Raises:
      Unsupported: operations or types have no form in Burn; all are named.
      InvalidArgument: an input is not an array, or a size cannot be read from the inputs.
    """
    program, recorded = recorded.program, without_keys(recorded)
    named = elements(dict(zip(program.output_names, recorded.outputs, strict=True)))
    recorded, output_names = replace(recorded, inputs=elements(recorded.inputs), outputs=(*named.values(),)), [*named]
    tree, result = build(recorded, LAYERS, channels_last=False, accepts=BURN.accepts)
    tree = in_place(tree, SHORT)
    outputs = {
        variable: variable_name(name)
        for variable, name in zip(result, output_names, strict=True)
        if isinstance(variable, Variable)
    }
    others = [
        name for name, value in zip(output_names, result, strict=True) if not isinstance(value, Variable | HostValue)
    ]
    if others:
        rows = [
            Refusal("a result that is not an array", f"`{name}`", "Let the model return arrays.") for name in others
        ]
        raise Unsupported(f"`{comment(program.name)}` cannot be printed for Burn", rows)
    result = result[0] if len(result) == 1 else tuple(result)
    sizes = size_names(recorded.inputs) | element_names(recorded.read) | {*recorded.counted}
    reserved = {*names_in_use()}
    inputs = model_arguments(recorded, {*reserved, *sizes, "inputs", "outputs"})
    spelled: dict[str, str] = {}
    for size in sorted(sizes):
        spelled[size] = unique(snake_case(size), {*reserved, *inputs.values(), *spelled.values(), *(sizes - {size})})
    private = Functions({*reserved, *sizes, *spelled.values(), *inputs.values(), *helper_names()}, sizes=spelled)
    structs = Structs(BURN, reserved, inputs, private.size_names, result, outputs, private=private)
    structs.output_names = output_names
    read = {inputs[recorded.inputs[key]]: elements for key, elements in recorded.read.items()}
    structs.read, structs.counted = read, recorded.counted
    root = structs.print(tree, root_name(program.modules.type, program.name))
    if structs.refusals:
        rows = list({(row.name, row.where): row for row in structs.refusals}.values())
        raise Unsupported(f"`{comment(program.name)}` cannot be printed for Burn", rows)
    tensors, origins, known = {}, {}, program.weights.tensors
    layers = [part for module in tree.walk() for part in module.parts if isinstance(part, Layer)]
    in_layers = {one for layer in layers for weight in layer.weights.values() for one in (weight, *weight.pieces)}
    inside = total = 0
    weights = dict(tensors_of(tree, structs))
    for key, weight in weights.items():
        count = math.prod(weight.shape) if weight.trained else 0
        total, inside = total + count, inside + count * (weight in in_layers)
        tensors[key] = _stored(np.asarray(HostValue(np.asarray(weight.read()), name=weight.name).to_jax()))
        origin = _origin(weight, known)
        if origin is not None:
            origins[key] = origin
    definitions = structs.definitions
    types = {dtype_name(value.dtype) for value in tensors.values() if kind_of(value.dtype) == "Float"}
    if inputs:
        labels = IdentityMap((variable, label) for label, variable in recorded.inputs.items())
        named = {key: (labels[variable], variable) for variable, key in inputs.items()}
        definitions[-1].further = check_text(named, spelled, read, recorded.assumed.checks)
        private.helpers |= used(definitions[-1].further) & {*CHECK_HELPERS}
    if (parts := trained_parts(weights, program, trained)) is not None:
        definitions[-1].trained = parts
        private.helpers.add("frozen")
    parts = [one.text() for one in reversed(definitions)]
    if isinstance(result, tuple) and len(result) > MOST_TOGETHER:
        parts.insert(0, _outputs(structs, result))
    body = "\n\n".join([*parts, *private.sources])
    named = used(body)
    private.helpers |= {name for name in named if name in CELL_HELPERS or name.removesuffix("Config") in QUANTIZED}
    helpers = helper_sources(private.helpers)
    lines = imports(body)
    if private.helpers:
        called = ", ".join(sorted(private.helpers))
        lines += ["", f"use super::helpers::{{{called}}};" if "," in called else f"use super::helpers::{called};"]
    model = formatted("\n".join([*lines, "", body, ""]))
    uses, run = _glue(recorded, root, inputs, result, structs)
    return Crate(
        root,
        model,
        helpers,
        uses,
        run,
        min(types) if len(types) == 1 else "",
        tensors,
        origins,
        [*inputs.values()],
        _pattern(result, structs),
        inside / total if total else 1.0,
        _generation(recorded, root, inputs, structs),
    )


def elements(values: Mapping[str, object]) -> dict[str, Any]:
    """Return values by name, of sequences their elements.

    >>> elements({"x": 1, "pair": [2, 3]})
    {'x': 1, 'pair[0]': 2, 'pair[1]': 3}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = {f"{name}[{at}]": one for at, one in enumerate(value)} if isinstance(value, list) else None
        for key, one in (elements(inner) if inner is not None else {name: value}).items():
            found[unique(key, {*found, *values} - {name})] = one
    return found


def _origin(weight: Weight, tensors: Mapping[str, np.ndarray]) -> WeightOrigin | None:
    """Return where a weight comes from; None if it is computed from tensors of the file, or is none of them."""
    if weight.file not in tensors:
        return None
    if not weight.pieces and weight.reshaped_from is None and (weight.axes is not None or weight.part is not None):
        return WeightOrigin(weight.file, weight.axes, weight.part)
    source, value = tensors[weight.file], weight.read()
    is_same = source.size == value.size and np.array_equal(source.ravel(), value.ravel(), equal_nan=True)
    return WeightOrigin(weight.file) if is_same else None


def _stored(array: np.ndarray) -> np.ndarray:
    """Return a tensor as the weights file has it: with one axis at least, and of a type that Burn has."""
    return np.ascontiguousarray(array.reshape(array.shape or (1,)).astype(held(array.dtype), copy=False))


def _outputs(structs: Structs, result: tuple) -> str:
    lines = ["/// The results of the model.", "#[derive(Debug)]", "pub struct Outputs {"]
    lines += [
        f"    pub {key}: {kind_of_value(value, structs)},"
        for key, value in zip(structs.result_names, result, strict=True)
    ]
    return "\n".join([*lines, "}"])


def _glue(
    recorded: RecordedProgram, root: str, inputs: Mapping[Variable, str], result: Any, structs: Structs
) -> tuple[str, str]:
    """Return what `load` and `run` use, and the two."""
    names = IdentityMap((tree, key) for key, tree in recorded.inputs.items())
    declared = {value.name: value.dtype for value in recorded.program.model.graph.outputs}
    arguments, lines = [*inputs.values()], []
    for variable, argument in inputs.items():
        kind = {"Float": "float", "Int": "int", "Bool": "bool"}[kind_of(variable.dtype)]
        read = f"inputs.{kind}({quoted(names[variable])}, device)?"
        if kind != "bool":
            read += f".cast({'Float' if kind == 'float' else 'Int'}DType::{dtype_name(variable.dtype)})"
        lines.append(f"    let {argument} = {read};")
    if arguments:
        lines.append(f"    model.check({', '.join(f'&{argument}' for argument in arguments)})?;")
    results = result if isinstance(result, tuple) else (result,)
    if len(results) == 1:
        pattern, places = "y", ["y"]
    elif len(results) <= MOST_TOGETHER:
        places = [f"y{index}" for index in range(len(results))]
        pattern = f"({', '.join(places)})"
    else:
        pattern, places = "results", [f"results.{key}" for key in structs.result_names]
    lines.append(f"    let {pattern} = model.forward({', '.join(arguments)});")
    lines.append("    let mut outputs = Tensors::default();")
    for key, place, value in zip(structs.output_names, places, results, strict=True):
        insert = "insert_scalar" if not value.shape else "insert"
        said = getattr(declared.get(key), "name", "").lower()
        dtype = np.dtype(value.dtype)
        is_other = is_narrow(dtype) or (said in ("int64", "uint64") and said != dtype.name)
        note = f" // {said or dtype.name} in the file" if is_other else ""
        lines.append(f"    outputs.{insert}({quoted(key)}, {place});{note}")
    words = used("\n".join(lines))
    types = ["Device", *(kind for kind in ("FloatDType", "IntDType") if kind in words)]
    filled = _GLUE.format(
        root=root,
        inputs="inputs" if inputs else "_inputs",
        device="device" if inputs else "_device",
        body="\n".join(lines),
    )
    return _USES.format(root=root, types=", ".join(types)), filled


def _generation(
    recorded: RecordedProgram, root: str, inputs: Mapping[Variable, str], structs: Structs
) -> dict[str, str]:
    """Return the words of `generate.rs`; none unless the model is a decoder whose layers have caches of one shape."""
    program = recorded.program
    declared = {value.name or "": value.shape for value in (*program.body.inputs, *program.body.outputs)}
    step = decoding(recorded.inputs, program.output_names, declared)
    if step is None or len({(one.shape[1:], one.dtype) for one in step.caches}) > 1 or recorded.read:
        return {}
    _, heads, _, size = step.caches[0].shape
    caches, types = [inputs[one] for one in step.caches], {key: v.dtype for key, v in recorded.inputs.items()}
    made = {
        "attention_mask": "Tensor::ones([1, count], (&device, DType::{}))",
        "position_ids": "Tensor::arange(before as i64..count as i64, (&device, DType::{})).unsqueeze()",
    }
    beside = [made[name].format(dtype_name(types[name])) for name in step.beside]
    called = f"self.forward({', '.join(['tokens', *beside, *caches])})"
    logits, *present = structs.result_names
    if len(present) < MOST_TOGETHER:
        lines = [f"let ({', '.join([logits, *present])}) = {called};", f"({logits}, [{', '.join(present)}])"]
    else:
        present = [f"outputs.{key}" for key in present]
        lines = [f"let outputs = {called};", f"(outputs.{logits}, [{', '.join(present)}])"]
    static = step.is_static
    return {
        "root": root,
        "count": str(len(caches)),
        "heads": str(heads),
        "size": str(size),
        "dtype": dtype_name(step.caches[0].dtype),
        "tokens": dtype_name(step.tokens.dtype),
        "caches": ", ".join(caches),
        "called": "\n".join(lines),
        "rows": "rows" if static else "0",
        "rows_documented": ", with rows for as many tokens" if static else "",
        "rows_ending": ", until the cache has no row" if static else "",
        "rows_parameter": "rows: usize, " if static else "",
        "rows_argument": "rows, " if static else "",
        "rows_guard": "if before + new.len() > rows { return None; }" if static else "",
    }


_GLUE = """/// Reads the weights of a file.
#[cfg(feature = "std")]
pub fn load(path: impl Into<std::path::PathBuf>, device: &Device) -> Result<{root}, burn::store::SafetensorsStoreError> {{
    {root}::load(path, device)
}}

/// Computes the model on named tensors.
pub fn run(model: &{root}, {inputs}: &Tensors, {device}: &Device) -> Result<Tensors, TensorsError> {{
{body}
    Ok(outputs)
}}
"""
_USES = """use burn::tensor::{{{types}}};

use crate::tensors::{{Tensors, TensorsError}};
use model::{root};
"""


def helper_sources(names: set[str]) -> str:
    """Return the text of `helpers.rs` with what is called."""
    return formatted(source(names)) if names else ""


# The names that a crate has already

_PRELUDE = (
    "AsMut AsRef Box Clone Copy Debug Default DoubleEndedIterator Drop Eq Err ExactSizeIterator Extend Fn FnMut "
    "FnOnce From FromIterator "
    "Future Hash Into IntoFuture IntoIterator Iterator None Ok Option Ord PartialEq PartialOrd Result Send Sized Some "
    "String Sync "
    "ToOwned ToString TryFrom TryInto Unpin Vec bool char f32 f64 i8 i16 i32 i64 isize str u8 u16 u32 u64 usize"
)
"""What every file of Rust sees, and the names of its primitive types."""
_PRINTED = "Outputs Path assert burn core device forward helpers load model new run save std vec"
"""What the printer writes itself: the structure of results, and the names in its functions."""


def types_in_scope(text: str) -> set[str]:
    """Return the types and constants that a text of Rust imports, defines or names without a path.

    >>> sorted(types_in_scope("use bytes::Bytes as Shared; struct Kept(DType::F32); // Note"))
    ['Bytes', 'DType', 'Kept', 'Shared']
    """
    text = re.sub(r'"(?:[^"\\]|\\.)*"|//.*|\$\{\w+\}', "", text)
    imported = " ".join(re.findall(r"^\s*use [^;]*;", text, re.MULTILINE))
    return {*re.findall(r"(?<!\w)[A-Z]\w*", imported), *re.findall(r"(?<![\w:.])[A-Z]\w*", text)}


@functools.cache
def names_in_use() -> frozenset[str]:
    """Return the names that no structure, argument or function of a model may have.

    >>> {"Self", "Tensor", "SharedBytes", "TensorsError", "QuantizedLinear"} <= names_in_use()
    True
    """
    folder = files("jaxport.codegen.burn")
    texts = [
        file.read_text(encoding="utf-8")
        for part in ("helpers", "templates")
        for file in (folder / part).iterdir()
        if file.name.endswith(".rs")
    ]
    written = set().union(*map(types_in_scope, texts))
    return NAMES | written | {*KEYWORDS.split(), *_PRELUDE.split(), *_PRINTED.split()}
