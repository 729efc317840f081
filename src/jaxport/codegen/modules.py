"""A recorded program as a module of classes, for a framework, and the file of its weights."""

from __future__ import annotations

import ast
import builtins
import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxport.codegen.bundles import bundle
from jaxport.codegen.checkpoint import NAMES as LOADING_NAMES, pytorch_loading, state_dict_entries
from jaxport.codegen.families import of_file, states_of
from jaxport.codegen.generating import generation
from jaxport.codegen.grouping import group
from jaxport.codegen.python.numbers import with_differences
from jaxport.codegen.python_classes import PythonClasses
from jaxport.codegen.rewriting.steps import with_nested
from jaxport.codegen.source import formatted, helper_sources, noted, summary
from jaxport.codegen.structure.modules.build import build
from jaxport.codegen.tree import Layer, Module, Op, Weight
from jaxport.codegen.writing.classes import Classes, Draft
from jaxport.codegen.writing.dialect import Dialect
from jaxport.codegen.writing.fields import class_name
from jaxport.codegen.writing.literals import comment, storable
from jaxport.codegen.writing.naming.scope import variable_name
from jaxport.codegen.writing.size_names import size_names
from jaxport.errors import InvalidArgument, SaveError
from jaxport.files import checked_path, publish_all
from jaxport.importer.interface import ImportedProgram
from jaxport.importer.names import unique
from jaxport.importer.traced.recorded_program import RecordedProgram
from jaxport.importer.values.recording import Variable

_RESERVED = (
    "Array Any Path Iterator Mapping Table annotations self jax jnp lax nn nnx eqx random np re "
    "load save flat INPUTS OUTPUTS filled named abstract is_tensor keys_from load_file save_file safe_open hashlib "
    "json TRAINED Frozen frozen is_trained"
)
GENERIC = re.compile(r"(?i)(main_?graph|graph|torch_?jit|model|main|jaxport|.*\d{4,})?")
MARK = "imported from ONNX"
"""The words in the first line of each generated module."""
CODE, TENSORS = "model.py", "model.safetensors"
_METADATA = {"generator": "jaxport"}


@dataclass(frozen=True)
class ModuleSource:
    """The code of a model's classes, and its weights by the paths of its modules.

    Attributes:
      code: the text of the module.
      tensors: the weights, as its modules keep them.
      origins: the name in the ONNX file of the tensor that each of them comes from, which may have another order of
        axes: `load_pytorch` in the code has the orders. The cells of recurrent layers share tensors with other gates
        in them, constants of the program have no origin, and a tied weight has that of the one tensor.
      notes: what holds for this source only: what sizes have to be, and which inputs became constants.
    """

    code: str
    tensors: dict[str, np.ndarray]
    origins: dict[str, str]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return summary("ModuleSource", self.code, self.tensors, self.notes)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `model.py` and `model.safetensors`, and return the path of the module.

        Raises:
          SaveError: a file cannot be written, or there is a `model.py` that is not generated; earlier files are
            unchanged.
        """
        from safetensors.numpy import save_file

        folder = Path(checked_path(folder, "the folder of the source"))
        self._refuse_foreign(folder)
        arrays = {key: np.asarray(value, order="C") for key, value in self.tensors.items()}

        def write_code(file: Path) -> None:
            file.write_text(self.code, encoding="utf-8", newline="\n")

        return (
            publish_all(folder, {TENSORS: lambda file: save_file(arrays, file, metadata=_METADATA), CODE: write_code})
            / CODE
        )

    def _refuse_foreign(self, folder: Path) -> None:
        """Refuse a folder with a module or weights that somebody else wrote, trained weights among them."""
        for name, is_ours in ((CODE, _is_generated_code), (TENSORS, is_generated_file)):
            path = folder / name
            if os.path.lexists(path) and not is_ours(path):
                raise SaveError(
                    f"`{path}` already exists",
                    why="it was not generated from a model",
                    instead="give another folder, or remove it",
                )


def _is_generated_code(path: Path) -> bool:
    return path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")[:400]


def is_generated_file(path: Path) -> bool:
    """Whether a file of tensors was generated."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            return (file.metadata() or {}).items() >= _METADATA.items()
    except (OSError, SafetensorError):
        return False


def to_modules(recorded: RecordedProgram, dialect: Dialect, trained: Collection[str] | None = None) -> ModuleSource:
    """Return the program as classes of a framework.

    Args:
      recorded: the program.
      dialect: the framework.
      trained: the names of the parameters that are trained; all of them if None. The others stay in their layers.

    Raises:
      InvalidArgument: an input is not an array, or a size cannot be read from the inputs.
    """
    program = recorded.program
    entries = state_dict_entries(program)
    # A state dict has no tensors with axes of heads.
    tree, result = build(recorded, () if entries else dialect.layers, accepts=dialect.accepts)
    outputs = {
        variable: variable_name(name)
        for variable, name in zip(result, program.output_names, strict=True)
        if isinstance(variable, Variable)
    }
    result = result[0] if len(result) == 1 else tuple(result)
    sizes = size_names(recorded.inputs)
    helpers = _helpers(tree)
    reserved = {*_RESERVED.split(), *LOADING_NAMES, *helpers, *dialect.definitions}
    hidden = min(sizes & {*reserved, *dir(builtins)}, default=None)
    if hidden is not None:
        raise InvalidArgument(
            f"the size `{hidden}` has a name that the source needs for something else",
            where="`to_source`",
            instead="give the size another name: `inputs={…}`",
        )
    inputs = model_arguments(recorded, {*reserved, *sizes})
    fixed = {recorded.inputs[key]: axes for key, axes in recorded.fixed.items() if key in recorded.inputs}
    classes = PythonClasses(dialect, reserved, inputs, sizes, result, outputs, recorded.assumed.checks, fixed)
    made = classes.print(tree, root_name(program.modules.type, program.name))
    nodes = [node for definition in classes.definitions for node in ast.walk(definition)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    states = states_of(recorded, names | {*inputs.values()})
    group(classes.definitions, made, states, len(program.output_names))
    bundle(classes.definitions, made)
    body = "\n\n\n".join(
        ast.unparse(ast.fix_missing_locations(with_differences(definition))) for definition in classes.definitions
    )
    weights = dict(tensors_of(tree, classes))
    tensors = {key: weight.read() for key, weight in weights.items()}
    origins = {key: weight.file for key, weight in weights.items() if weight.name}
    layers = [part for module in tree.walk() for part in module.parts if isinstance(part, Layer)]
    is_random = any(layer.kind == "Dropout" for layer in layers)
    loading = [
        dialect.loading(made, is_random, trained_parts(weights, program, trained)),
        pytorch_loading(made, weights, entries, program),
        of_file(made, [*recorded.inputs], program.output_names, states),
    ]
    definitions = _definitions(dialect, body)
    called = [helper for helper in helpers if helper in names]  # a framework may have its own function
    parts = [*definitions, *helper_sources("\n".join([*definitions, *called])), body, *filter(None, loading)]
    text = "\n\n\n".join(part.strip("\n") for part in parts)
    declared = {value.name or "": value.shape for value in (*program.body.inputs, *program.body.outputs)}
    example = generation(recorded.inputs, program.output_names, declared) if len(states) == 1 else []
    said = [*noted(recorded.notes), *example]
    title = "\n".join([f"`{comment(program.name)}`, {MARK}.", *said])
    title = f'"""{title}{chr(10) * bool(said)}"""\n\nfrom __future__ import annotations\n'
    code = formatted(f"{title}\n{_imports(text, dialect)}\n\n\n{text}\n")
    return ModuleSource(code, tensors, origins, recorded.notes)


def _helpers(tree: Module) -> list[str]:
    """Return the names of the helpers that the steps of a tree call, in nested functions, too: no variable may be
    called so.
    """
    steps = with_nested(part.step for module in tree.walk() for part in module.parts if isinstance(part, Op))
    return sorted({step.name.removeprefix("helper.") for step in steps if step.name.startswith("helper.")})


def trained_parts(
    weights: Mapping[str, Weight], program: ImportedProgram, trained: Collection[str] | None
) -> list[str] | None:
    """Return the paths under which weights are trained; None if all are, or may be.

    A weight may have another name in the tree; one that is computed from the file's is nobody's to leave out.
    """
    left_out = set() if trained is None else {*program.weights} - {*trained} - program.weights.states
    parameters = {key for key, weight in weights.items() if weight.trained}
    fixed = {key for key in parameters if weights[key].file in left_out}
    return prefixes(parameters - fixed, fixed) if fixed else None


def prefixes(paths: Collection[str], others: Collection[str]) -> list[str]:
    """Return the shortest beginnings of paths, part by part, that no other path has.

    >>> prefixes({"head.bias", "head.kernel", "body.bias"}, {"body.kernel"})
    ['body.bias', 'head']
    """
    taken = {part for path in others for part in _beginnings(path)}
    return sorted({next(part for part in _beginnings(path) if part not in taken) for path in paths})


def _beginnings(path: str) -> list[str]:
    return list(itertools.accumulate(path.split("."), lambda one, other: f"{one}.{other}"))


def root_name(type_name: str, graph: str) -> str:
    """Return the name of the model's class."""
    if type_name:
        return class_name(type_name, "", "Model")
    return "Model" if GENERIC.fullmatch(graph) else class_name(graph, "", "Model")


def model_arguments(recorded: RecordedProgram, taken: set[str]) -> dict[Variable, str]:
    """Return the names of the arguments of the model."""
    names: dict[Variable, str] = {}
    for key, tree in recorded.inputs.items():
        if not isinstance(tree, Variable):
            raise InvalidArgument(
                f"the input `{key}` is not an array",
                where="`to_source`",
                why="modules take arrays; sequences and optional inputs are printed as a function only",
                instead='print it with `framework="jax"`',
            )
        names[tree] = unique(variable_name(key.removesuffix(":0")), taken)  # TensorFlow numbers the results of a node
        taken.add(names[tree])
    return names


def _definitions(dialect: Dialect, body: str) -> list[str]:
    """Return the classes that the framework does not have, as far as they are used."""
    definitions: dict[str, str] = {}
    pending = [body]
    while pending:
        text = pending.pop()
        used = [name for name in dialect.definitions if re.search(rf"(?<![.\w]){name}\(", text)]
        pending += [dialect.definitions[name] for name in used if name not in definitions]
        definitions |= {name: dialect.definitions[name] for name in used}
    return [text for name, text in dialect.definitions.items() if name in definitions]


def _imports(text: str, dialect: Dialect) -> str:
    used = set(re.findall(r"[A-Za-z_]\w*", text))
    lines = [f"import {module}" for module in ("hashlib", "json", "re") if _uses(text, module)]
    lines.append(
        f"from collections.abc import {', '.join(name for name in ('Callable', 'Iterator', 'Mapping') if name in used)}"
    )
    lines += ["from pathlib import Path"] + ["from typing import Any"] * ("Any" in used) + [""]
    parts = [part for part in ("lax", "nn", "random") if _uses(text, part)]
    others = [*dialect.imports, f"from jax import {', '.join(['Array', *parts])}"]
    others += ["import jax"] * _uses(text, "jax") + ["import jax.numpy as jnp"] * _uses(text, "jnp")
    others += ["from safetensors import safe_open"] * ("safe_open" in used)
    others += ["import numpy as np"] * _uses(text, "np") + ["from safetensors.flax import load_file, save_file"]
    return "\n".join([*lines, *sorted(others, key=lambda line: (line.startswith("from"), line))])


def _uses(text: str, module: str) -> bool:
    return re.search(rf"(?<![.\w]){module}\.", text) is not None


def tensors_of(module: Module, classes: Classes, prefix: str = "") -> Iterator[tuple[str, Weight]]:
    """Yield the tensors of a module and of those inside it, each with its path, as the module keeps it."""
    if module not in classes.sequences:
        draft: Draft = classes.drafts[module]
        for variable, key in draft.fields.weights.items():
            weight = module.weights[variable]
            assert isinstance(weight, Weight)
            yield prefix + key, weight
        for key, value in draft.tables.items():
            table, _ = storable(value.data)
            yield prefix + key, Weight("", table.shape, table.dtype, lambda table=table: table, trained=False)
    for child, path in classes.children(module):
        inner = f"{prefix}{path}."
        if isinstance(child, Layer):
            for role, field in classes.dialect.layers[child.kind].fields(child).items():
                weight = child.weights[role]
                if field.pieces:
                    yield from zip((inner + piece for piece in field.pieces), weight.pieces, strict=True)
                else:
                    yield inner + field.name, weight if field.axes is None else weight.transposed(field.axes)
        else:
            yield from tensors_of(child, classes, inner)
