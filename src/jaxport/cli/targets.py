"""Resolve `module:attribute` on the command line to the callable to export, or to the module of PyTorch to import; and
the inputs that a model or a file declares itself, for commands without `--input`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxport.cli import specs
from jaxport.errors import InvalidArgument, JaxportError

if TYPE_CHECKING:
    import numpy as np

    from jaxport.importer.program import Program
    from jaxport.importer.ties import Ties
    from jaxport.jaxprs import Parameters, PythonFunction

_INSTEAD = 'write "package.module:attribute", or "package.module:factory(option=3)" to call a factory'


Arguments = tuple[list[Any], dict[str, Any]]
"""The positional and the keyword arguments of a call, each a literal of Python."""


def load_target(text: str) -> PythonFunction:
    """Import a target; the current directory is searched first.

    A model object, and a function that takes arguments, are returned as they are. A class, a function without
    parameters, and one that returns a model if it is called with its defaults, are factories and are called.
    Parentheses call anything, with literal arguments.

    Args:
      text: `module:attribute`, where `attribute` may be dotted and may end with a call; or the path of a compiled
        artifact.

    Returns:
      A callable.

    Raises:
      InvalidArgument: the text is malformed, there is no such module or attribute, it cannot be called, or the module
        or the factory raised an error of its own.

    >>> load_target("math:hypot")(3.0, 4.0)
    5.0
    >>> load_target("functools:partial(max, 2)")
    Traceback (most recent call last):
    jaxport.InvalidArgument: `partial(max, 2)` passes arguments that are not literals
    ...
    """
    from jaxport.stablehlo.program import from_stablehlo, is_stablehlo

    if is_stablehlo(text):
        return from_stablehlo(text)
    module_name, colon, expression = text.partition(":")
    if not colon or not module_name or not expression:
        raise InvalidArgument(f'"{text}" is not a target', instead=_INSTEAD)
    if module_name.endswith(".py") or "/" in module_name:
        parts = [part for part in Path(module_name).with_suffix("").parts if part not in (".", "/")]
        raise InvalidArgument(
            f"`{module_name}` is a path",
            where="the target",
            instead=f"name the module: `{'.'.join(parts)}:{expression}`",
        )
    names, call = _parsed(expression)
    target: Any = _module(module_name)
    for position, name in enumerate(names):
        if not hasattr(target, name):
            where = ".".join([module_name, *names[:position]])
            raise InvalidArgument(
                f"`{where}` has no attribute `{name}`", where=f"the target `{text}`", why=_near(target, name)
            )
        target = getattr(target, name)
    if call is not None:
        target = _made(target, text, *call)
    elif inspect.isclass(target) or (inspect.isroutine(target) and _takes_nothing(target)):
        target = _made(target, text, [], {})
    elif inspect.isroutine(target) and not _missing(target, [], {}):
        target = _of_defaults(target)
    if not callable(target):
        raise InvalidArgument(
            f"`{text}` is a `{type(target).__name__}`, which cannot be called",
            instead="name a model object, a function, or a factory that returns one of them",
        )
    return target


def _made(factory: PythonFunction, text: str, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Call a class or a factory, whose errors are the user's."""
    name = getattr(factory, "__name__", text)
    missing = _missing(factory, args, kwargs)
    if missing:
        module = text.partition(":")[0]
        shown = ", ".join(f"{each}={_EXAMPLES.get(each, '...')}" for each in missing)
        raise InvalidArgument(
            f"`{text}` needs the argument{'s' * (len(missing) > 1)} {', '.join(f'`{each}`' for each in missing)}",
            where=f"the target `{text}`",
            why="what is exported is an object, and the command has to make it",
            instead=f"add a factory to `{module}`, such as `def make(): return {name}({shown})`, and name it: "
            f"`{module}:make`",
        )
    with _of_the_user(f"`{text}` raised an error while it made the model", f"the target `{text}`"):
        return factory(*args, **kwargs)


def _of_defaults(function: PythonFunction) -> PythonFunction:
    """Return the model that a function with a default for each parameter makes; the function itself if it makes
    none.
    """
    try:
        made = function()
    except Exception:  # noqa: BLE001 - its defaults are not what it is to be called with
        return function
    return made if callable(made) else function


_EXAMPLES = {"rngs": "nnx.Rngs(0)", "key": "jax.random.key(0)"}
"""What stands for arguments that frameworks name."""


def _missing(factory: PythonFunction, args: Sequence[object], kwargs: Mapping[str, object]) -> list[str]:
    """Return the parameters without a default that have no argument; none if a call has others that do not fit."""
    try:
        # The metaclasses of frameworks hide the parameters of a class.
        signature = inspect.signature(factory.__init__ if inspect.isclass(factory) else factory)
        given = signature.bind_partial(*([factory] * inspect.isclass(factory)), *args, **kwargs).arguments
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in variadic and name not in given
    ]


@contextmanager
def _of_the_user(refused: str, where: str) -> Iterator[None]:
    """Say of an error in the user's code what it is and where; `--verbose` shows its traceback."""
    from jaxport.export.walk.sources import raised_at

    try:
        yield
    except JaxportError:
        raise
    except SyntaxError as error:
        raise _broken(refused, f"{error.filename}:{error.lineno}", f"SyntaxError: {error.msg}") from error
    except SystemExit as error:
        why = f"it ends the process (`sys.exit({error.code!r})`)"
        raise InvalidArgument(
            refused, where=where, why=why, instead='put what runs as a script under `if __name__ == "__main__":`'
        ) from error
    except Exception as error:  # whatever the user's code raises
        raise _broken(refused, raised_at(error) or where, f"{type(error).__name__}: {error}") from error


def _broken(refused: str, where: str, why: str) -> InvalidArgument:
    instead = "fix it at this line; `--verbose` shows the whole traceback"
    return InvalidArgument(refused, where=where, why=why.rstrip(": "), instead=instead)


def _parsed(expression: str) -> tuple[list[str], Arguments | None]:
    """Return the dotted names of `expression`, and the arguments of the call that it ends with, if any."""
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise InvalidArgument(
            f"`{expression}` is not the name of an attribute", why=error.msg, instead=_INSTEAD
        ) from None
    call = None
    if isinstance(node, ast.Call):
        call = _literal_arguments(node, expression)
        node = node.func
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise InvalidArgument(f"`{expression}` is not the name of an attribute", instead=_INSTEAD)
    return [node.id, *names], call


def _literal_arguments(call: ast.Call, expression: str) -> Arguments:
    try:
        if any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("`**` is not a literal")
        keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return [ast.literal_eval(argument) for argument in call.args], keywords
    except ValueError:
        raise InvalidArgument(
            f"`{expression}` passes arguments that are not literals", instead="write a factory that takes none"
        ) from None


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    refused = f"`{name}` cannot be imported"
    with _of_the_user(refused, f"the target, searched from {here}"):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise InvalidArgument(
                refused,
                where=f"the target, searched from {here}",
                why=str(error),
                instead="install its package into this environment, or change to the folder that holds it",
            ) from error


def _takes_nothing(function: PythonFunction) -> bool:
    try:
        return not inspect.signature(function).parameters
    except ValueError:  # some builtins have no signature
        return False


def _near(target: object, name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, [other for other in dir(target) if not other.startswith("_")])
    return f"it has {', '.join(f'`{other}`' for other in near)}" if near else ""


SMALLEST = 3
"""The example size of the first open dim; the next ones are larger by one each."""


def torch_program(
    target: str, inputs: Iterable[str], values: Parameters, sizes: Iterable[str], ties: Ties, verify: bool
) -> Program:
    """Import the module of PyTorch that a target names, with examples of the inputs that the options describe.

    Args:
      target: `module:attribute`.
      inputs: the `--input` options, by position or by name of the arguments of `forward`.
      values: the `--value` options: example arguments by name, whose sizes are fixed.
      sizes: the `--size` options: the example sizes of open dims.
      ties: see `from_onnx`.
      verify: whether the program is compared with the module.

    Raises:
      InvalidArgument: an option is malformed, there is no input, or the target is not a module.
      NotInstalled: PyTorch is not installed.
    """
    import numpy as np

    import jaxport

    module = load_target(target)
    parsed = [specs.parse_input(text) for text in inputs]
    if not parsed and not values:
        raise InvalidArgument(
            f"the inputs of `{target}` are not known",
            where="`jaxport import --torch`",
            instead='describe each: `--input "ids:int64[batch,seq]"`, or give an example: `--value ids=ids.npy`',
        )
    named = [dim for spec in parsed for dim in spec.dims if isinstance(dim, str)]
    wrong = next((dim for dim in named if not dim.isidentifier()), None)
    if wrong is not None:
        raise InvalidArgument(
            f'"{wrong}" is an expression',
            where="`--input`",
            instead="give each open size of a module of PyTorch a name",
        )
    example = {name: SMALLEST + index for index, name in enumerate(dict.fromkeys(named))}
    for given in specs.parse_sizes(sizes) or ():
        example |= given
    args, shapes, kwargs = [], [], {name: _tensor(np.asarray(value)) for name, value in values.items()}
    dynamic: dict[str, Any] = {}
    for spec in parsed:
        tensor = _example(spec.dtype, [example[dim] if isinstance(dim, str) else dim or 1 for dim in spec.dims])
        if spec.name is None:
            args.append(tensor)
            shapes.append(spec.dims)
        else:
            kwargs.setdefault(spec.name, tensor)
            dynamic[spec.name] = spec.dims
    if args and dynamic:
        raise InvalidArgument(
            "some inputs have names and others have none", where="`--input`", instead="name all of them, or none"
        )
    return jaxport.from_torch(
        module, args, kwargs, dynamic_shapes=(shapes or dynamic) if named else None, ties=ties, verify=verify
    )


def _example(dtype: str | None, sizes: Sequence[int]) -> object:
    """Return an example tensor: normal floats; ones, which are valid as indices and as masks."""
    import numpy as np

    kind = np.dtype(dtype or "float32")
    numbers = np.random.default_rng(0)
    return _tensor((numbers.standard_normal(sizes) if kind.kind == "f" else np.ones(sizes)).astype(kind))


def _tensor(array: np.ndarray) -> object:
    from jaxport.pytorch import tensor_of

    return tensor_of(array)


_ATTRIBUTES = ("inputs", "input_specs", "example_inputs")
"""Where models declare their inputs: Keras's tensors, or `jax.ShapeDtypeStruct`s and arrays of one's own."""


def declared_inputs(target: PythonFunction) -> list[Any] | None:
    """Return the inputs that a model declares, as `jaxport.to_onnx` takes them; None if it declares none.

    >>> import jax
    >>> def scaled(x):
    ...     return 2 * x
    >>> scaled.inputs = [jax.ShapeDtypeStruct((3,), "float32")]
    >>> declared_inputs(scaled)
    [ShapeDtypeStruct(shape=(3,), dtype=float32)]
    """
    import jax

    for name in _ATTRIBUTES:
        declared = getattr(target, name, None)
        if declared is None or callable(declared):
            continue
        arguments = list(declared) if isinstance(declared, list | tuple) else [declared]
        leaves = jax.tree.leaves(arguments)
        if leaves and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
            return jax.tree.map(_spec, arguments)
    return None


def _spec(leaf: Any) -> object:
    """Return a specification; sizes that are open (None) are the batch in front, and names of their own elsewhere."""
    import jax

    from jaxport.export.specs import BATCH

    name = "".join(character if character.isalnum() else "_" for character in getattr(leaf, "name", "") or "dim")
    sizes = tuple(
        size if size is not None else (BATCH if axis == 0 else f"{name}_{axis}") for axis, size in enumerate(leaf.shape)
    )
    return jax.ShapeDtypeStruct(sizes, leaf.dtype)


def inputs_of_file(path: Path) -> list[Any]:
    """Return the inputs that an ONNX file declares, in its order.

    Raises:
      InvalidArgument: it does not declare the shapes.
    """
    import jax

    from jaxport.importer.loading.load import as_written

    model = as_written(path)
    specs = []
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        if value.shape is None or value.dtype is None:
            raise InvalidArgument(
                f"`{path}` does not declare the shape of its input `{value.name}`", instead="give the inputs: `--input`"
            )
        sizes = tuple(
            size if isinstance(size, int) else size.value or f"{value.name}_{axis}"
            for axis, size in enumerate(value.shape)
        )
        specs.append(jax.ShapeDtypeStruct(sizes, value.dtype.numpy()))
    return specs
