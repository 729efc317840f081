"""A recorded program as a Python module and a weights file, which need JAX and safetensors only."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxport.codegen.python.functions import Printer
from jaxport.codegen.python.numbers import with_differences
from jaxport.codegen.python.sizes import sizes_in_python
from jaxport.codegen.writing.literals import call, comment, dim_expression, name, sentence, storable
from jaxport.codegen.writing.naming.scope import ValueNames, variable_name
from jaxport.codegen.writing.size_names import size_names, size_statements
from jaxport.errors import NotInstalled, SaveError, boundary
from jaxport.files import checked_path, new_folder, publish
from jaxport.importer.names import unique_identifiers
from jaxport.importer.traced.recorded_program import RecordedProgram
from jaxport.importer.values.dtypes import STRING
from jaxport.importer.values.host import HostValue
from jaxport.importer.values.namespaces import HELPERS
from jaxport.importer.values.recording import Variable

_RESERVED = "params CONSTANTS Outputs Array NamedTuple Path load_file load_params jax jnp lax nn random np annotations"


@dataclass(frozen=True)
class Source:
    """A module's code and the tensors that it loads.

    The code reads them from `model.safetensors`; the code that `save` writes names the file that it has written.
    `notes` are what holds for this source only: what sizes have to be, and which inputs became constants.
    """

    code: str
    tensors: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return summary("Source", self.code, self.tensors, self.notes)

    def save(self, folder: str | os.PathLike[str], stem: str = "model") -> Path:
        """Write `model.py` and the tensors beside it, and return the path of the module.

        The file of the tensors is called `model.py.<digest of its content>.safetensors`; the module is replaced after
        it is there, so that the two always belong together.

        Raises:
          SaveError: a file cannot be written; earlier files are unchanged.
        """
        from safetensors.numpy import save_file

        folder = Path(checked_path(folder, "the folder of the source"))
        refused = f"`{folder}` cannot be created"

        def write(file: Path, data: str) -> None:
            code = self.code.replace(_BESIDE, f"with_name({json.dumps(data)})") if data else self.code
            file.write_text(code, encoding="utf-8", newline="\n")

        def write_tensors(file: Path) -> None:
            save_file({key: np.asarray(value, order="C") for key, value in self.tensors.items()}, file)

        with (
            boundary(refused, instead="give a folder that exists or can be created", kind=SaveError),
            new_folder(folder),
        ):
            return publish(folder / f"{stem}.py", write, write_tensors if self.tensors else None, ".safetensors")


def summary(kind: str, code: str, tensors: Mapping[str, np.ndarray], notes: Sequence[str] = ()) -> str:
    """Return what a terminal shows of code and tensors, and of what holds for them only.

    >>> summary("Source", "import jax", {"w": np.zeros((2, 3))})
    '<Source of 1 line, and 1 tensor of 6 elements>'
    """
    lines, elements = len(code.splitlines()), sum(array.size for array in tensors.values())
    counts = [f"{count:,} {noun}{'s' * (count != 1)}" for count, noun in ((lines, "line"), (len(tensors), "tensor"))]
    said = f"; {'; '.join(map(sentence, notes))}" if notes else ""
    return f"<{kind} of {', and '.join(counts)} of {elements:,} elements{said}>"


def to_source(recorded: RecordedProgram) -> Source:
    """Return the program as one readable function.

    >>> import onnx.parser
    >>> from jaxport.importer import from_onnx
    >>> from jaxport.importer.traced.recorded_program import record
    >>> program = from_onnx(
    ...     onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     agraph (float[batch, 2] x) => (float[batch, 2] y) { h = Add(x, x)  y = Tanh(h) }''')
    ... )
    >>> print(to_source(record(program)).code.partition("def model")[2])
    (params: dict[str, Array], x: Array) -> Array:
        \"\"\"The graph `agraph`.
    <BLANKLINE>
        Args:
          params: the weights by name, as `load_params` reads them.
          x: float32[batch, 2]
    <BLANKLINE>
        Returns:
          y: float32[batch, 2]
        \"\"\"
        h = x + x
        return jnp.tanh(h)
    <BLANKLINE>
    """
    sizes = size_names(recorded.inputs)
    printed = ValueNames({*_RESERVED.split(), *HELPERS, *sizes, "model"}, name)
    printer = Printer(printed)
    weights = recorded.program.weights
    states = {key: weights.host_array(key) for key in recorded.params if key in weights.states}
    for key, variable in recorded.params.items():
        place = name("CONSTANTS" if key in states else "params")
        printed.expressions[variable] = ast.Subscript(place, ast.Constant(key), ast.Load())
    arguments = {}
    for key, tree in recorded.inputs.items():
        argument = printed.fresh(variable_name(key))
        arguments[key] = argument
        bind_argument(printer, tree, name(argument))
    outputs = recorded.outputs
    names = unique_identifiers(recorded.program.output_names, "output")
    result = outputs[0] if len(outputs) == 1 else outputs
    body = printer.statements(recorded.steps, result)
    if len(outputs) > 1:
        last = body[-1]
        assert isinstance(last, ast.Return)
        assert isinstance(last.value, ast.Tuple)
        body[-1] = ast.Return(call("Outputs", *last.value.elts))
    checks = recorded.assumed.checks
    wanted = (sizes & {*printer.dims}).union(*(one.names for one in checks))
    shaped = {argument: recorded.inputs[key] for key, argument in arguments.items()}
    fixed = {arguments[key]: axes for key, axes in recorded.fixed.items() if key in arguments}
    reading, _ = size_statements(shaped, wanted, checks, fixed)
    lines = []
    for statement in (*sizes_in_python(reading), *body):
        scope = printer.comments.get(statement)
        lines += ["", f"    # {comment(scope)}"] if scope else []
        lines.append(textwrap.indent(ast.unparse(ast.fix_missing_locations(with_differences(statement))), "    "))
    returned = _annotation(outputs[0]) if len(outputs) == 1 else "Outputs"
    parameters = ", ".join(f"{argument}: {_annotation(recorded.inputs[key])}" for key, argument in arguments.items())
    header = f"def model(params: dict[str, Array]{', ' + parameters if parameters else ''}) -> {returned}:"
    code = "\n".join([header, textwrap.indent(_docstring(recorded, arguments, names), "    "), *lines])
    functions = helper_sources(code)
    tuple_type = ""
    if len(outputs) > 1:
        fields = "\n".join(f"    {field}: {_annotation(tree)}" for field, tree in zip(names, outputs, strict=True))
        tuple_type = f'class Outputs(NamedTuple):\n    """What `model` returns."""\n\n{fields}\n'
    read = {key: array for key, array in states.items() if f"CONSTANTS[{key!r}]" in code}
    tensors = read | {key: value.data for key, value in printer.constants.items()}
    return _module(recorded, [*functions, tuple_type, code], tensors)


def _module(recorded: RecordedProgram, parts: list[str], constants: dict[str, np.ndarray]) -> Source:
    program = recorded.program
    params = {k: program.weights.host_array(k) for k in recorded.params if k not in program.weights.states}
    tensors = {f"params/{key}": value for key, value in params.items()}
    restored = ""
    for key, value in constants.items():
        tensors[f"constants/{key}"], restore = storable(value)
        if restore:
            restored += f"CONSTANTS[{key!r}] = {restore.format(f'CONSTANTS[{key!r}]')}\n"
    loading = []
    if tensors:
        loading.append(_LOADING)
    if constants:
        loading.append('CONSTANTS = _load("constants/")\n' + restored)
    loading.append(_LOAD_PARAMS if tensors else _NO_PARAMS)
    title = f'"""`{comment(program.name)}`, imported from ONNX."""\n\nfrom __future__ import annotations\n'
    body = "\n\n".join(part.rstrip("\n") + "\n" for part in (*loading, *parts) if part)
    return Source(formatted(f"{title}\n{_imports(body)}\n\n\n{body}"), tensors, recorded.notes)


#: Where `_load` looks for the tensors, until they are saved and have a name of their own.
_BESIDE = 'with_suffix(".safetensors")'
_LOADING = '''def _load(prefix: str) -> dict[str, Array]:
    """The tensors of the file beside this module whose names begin with `prefix`."""
    tensors = load_file(Path(__file__).with_suffix(".safetensors"))
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
'''
_LOAD_PARAMS = '''def load_params() -> dict[str, Array]:
    """The weights by name."""
    return _load("params/")
'''
_NO_PARAMS = '''def load_params() -> dict[str, Array]:
    """The weights by name: the model has none."""
    return {}
'''


def _imports(body: str) -> str:
    """Return the imports that a module needs."""
    used = set(re.findall(r"[A-Za-z_]\w*", body))
    lines = ["from pathlib import Path"] * ("Path" in used) + ["from typing import NamedTuple"] * ("NamedTuple" in used)
    lines += [""] * bool(lines)
    lines += ["import jax"] * (re.search(r"\bjax\.", body) is not None) + ["import jax.numpy as jnp"] * ("jnp" in used)
    lines += ["import numpy as np"] * ("np" in used)
    lines.append(f"from jax import {', '.join(['Array', *(part for part in ('lax', 'nn', 'random') if part in used)])}")
    lines += ["from safetensors.flax import load_file"] * ("load_file" in used)
    return "\n".join(lines)


def bind_argument(printer: Printer, tree: object, expression: ast.expr) -> None:
    """Name the values in a tree of arguments by the expression that an argument is."""
    if isinstance(tree, Variable):
        printer.names.expressions[tree] = expression
    elif isinstance(tree, list | tuple):
        for index, part in enumerate(tree):
            bind_argument(printer, part, ast.Subscript(expression, ast.Constant(index), ast.Load()))


def _annotation(tree: object) -> str:
    if isinstance(tree, list):
        return "list[Array]"
    if isinstance(tree, HostValue) and tree.dtype == STRING:
        return "np.ndarray"
    return "Array" if tree is not None else "None"


def _typed(tree: object) -> str:
    if isinstance(tree, Variable | HostValue):
        sizes = ", ".join(ast.unparse(dim_expression(size)) for size in tree.shape)
        return f"{'strings' if tree.dtype == STRING else tree.dtype}[{sizes}]"
    return "a sequence of arrays" if isinstance(tree, list) else "None"


def _docstring(recorded: RecordedProgram, arguments: dict[str, str], names: list[str]) -> str:
    program = recorded.program
    rows = ["Args:", "  params: the weights by name, as `load_params` reads them."]
    rows += [f"  {argument}: {_typed(recorded.inputs[key])}" for key, argument in arguments.items()]
    rows += ["", "Returns:"]
    rows += [f"  {field}: {_typed(tree)}" for field, tree in zip(names, recorded.outputs, strict=True)]
    rows += noted(recorded.notes)
    return "\n".join([f'"""The graph `{comment(program.name)}`.', "", *rows, '"""'])


def noted(notes: Sequence[str]) -> list[str]:
    """Return the lines of a docstring that say what holds for a source only."""
    lines = textwrap.wrap("; ".join(sentence(note) for note in notes) + ".", 90) if notes else []
    return ["", "This holds for this source:", *(f"  {line}" for line in lines)] if lines else []


def helper_sources(code: str) -> list[str]:
    """Return the source of the helper functions that the code calls, and of those that they call."""
    sources: dict[str, str] = {}
    pending = [code]
    while pending:
        # No variable has the name of a helper; attributes, fields and comments may.
        names = (node for node in ast.walk(ast.parse(pending.pop())) if isinstance(node, ast.Name))
        used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        for helper in (HELPERS[key] for key in sorted(used & set(HELPERS)) if key not in sources):
            text = textwrap.dedent(inspect.getsource(inspect.unwrap(helper.function)))
            sources[helper.function.__name__] = text[text.index("def ") :]
            pending.append(text)
    return list(sources.values())


def formatted(code: str) -> str:
    """Return the code as ruff formats it, in lines of at most 100 characters.

    Raises:
      NotInstalled: ruff, which is installed with this package, has been removed.
    """
    try:
        from ruff import find_ruff_bin

        ruff = find_ruff_bin()
    except (ImportError, FileNotFoundError) as error:
        raise NotInstalled(
            "source is formatted by ruff, which is not installed",
            where="`to_source`",
            instead='`pip install "jaxport[all]"`, which brings it',
        ) from error
    command = [ruff, "format", "--line-length", "100", "--isolated", "-"]
    done = subprocess.run(command, input=code, capture_output=True, encoding="utf-8", check=False)
    return done.stdout if done.returncode == 0 else code
