"""Parse inputs, sizes and keyword arguments of the command line into Python values.

The grammar of an input is `[name:][dtype]dims`, where `dims` are in brackets if a dtype or nothing at all comes before
them:

    B,224,224,3          a shape, of the default float type
    x:B,224,224,3        the same, with a name for the graph input
    ids:int32[B,2*T]     with a dtype; dims may be expressions of other dims
    float32[]            a scalar

`None` or `?` is a dim of any size, which gets a name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

from jaxport.errors import InvalidArgument

if TYPE_CHECKING:
    from jaxport.export.precision.names import Named

Dim = int | str | None

_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_INPUT = re.compile(r"(?:(?P<name>[^:\[\]]*):)?(?:(?P<dtype>[^:\[\],]*)\[(?P<bracketed>.*)\]|(?P<bare>[^\[\]]*))")
_FLAG = "flag"
"""Stands for the dtype of a Python flag that the model takes at run time: `--input-param deterministic:bool`."""
_EXAMPLES = 'write it like "B,224,224,3", "ids:int32[B,T]" or "scale:float32[]"'


@dataclass(frozen=True)
class InputSpec:
    """One `--input`: the name of the graph input, its dtype (`None`: the default float) and its dims."""

    name: str | None
    dtype: str | None
    dims: tuple[Dim, ...]

    @property
    def value(self) -> Any:
        """The specification as `jaxport.to_onnx` takes it.

        Returns:
          A tuple of dims if no dtype was given, otherwise a `jax.ShapeDtypeStruct`.

        Raises:
          InvalidArgument: the dtype is not one of JAX's.

        >>> parse_input("B,3").value
        ('B', 3)
        """
        if self.dtype is None:
            return self.dims
        if self.dtype == _FLAG:
            return bool
        import jax

        return jax.ShapeDtypeStruct(self.dims, _dtype(self.dtype))


def parse_input(text: str) -> InputSpec:
    """Read one `--input`.

    Args:
      text: `[name:][dtype]dims`, as this module's documentation says.

    Raises:
      InvalidArgument: the text does not follow the grammar.

    >>> parse_input("ids:int32[B,2*T]")
    InputSpec(name='ids', dtype='int32', dims=('B', '2*T'))
    """
    from jaxport.jaxprs.dim_text import split_sizes

    parts = _INPUT.fullmatch(text.strip())
    if parts is None:
        raise _malformed(text, "its brackets or colons do not pair up")
    name, dtype, bracketed, bare = (part and part.strip() for part in parts.group("name", "dtype", "bracketed", "bare"))
    if name is not None and not _NAME.fullmatch(name):
        raise _malformed(text, f"`{name}` is not a name")
    if bracketed is None and not bare:
        raise _malformed(text, "it has no dims; a scalar is written with empty brackets")
    if bare and _is_dtype(bare):
        raise _malformed(text, f"`{bare}` is a dtype, and its dims are missing")
    dims = bracketed if bracketed is not None else bare
    if dims[:1] + dims[-1:] == "()" and len(split_sizes(dims)) == 1 and "," in dims:  # as Python writes a tuple
        dims = dims[1:-1]
    return InputSpec(name, dtype or None, tuple(_dim(text, dim) for dim in split_sizes(dims)) if dims else ())


def parse_sizes(texts: Iterable[str]) -> list[dict[str, int]] | None:
    """Read the `--size` options: each one set of sizes for the symbolic dims.

    Returns:
      One mapping per text; `None` for no text, so that the default applies.

    Raises:
      InvalidArgument: a text is not a list of `name=size`.

    >>> parse_sizes(["B=1,T=8", "B=3,T=5"])
    [{'B': 1, 'T': 8}, {'B': 3, 'T': 5}]
    """
    sizes: list[dict[str, int]] = []
    for text in texts:
        items = [item.partition("=") for item in text.replace(" ", "").split(",")]
        if not all(_NAME.fullmatch(name) and size.isdecimal() for name, _, size in items):
            raise InvalidArgument(
                f'"{text}" is not a set of sizes', where="`--size`", instead='write it like "B=1,T=8"'
            )
        sizes.append({name: int(size) for name, _, size in items})
    return sizes or None


def parse_avoided(texts: Iterable[str]) -> dict[str, list[int]]:
    """Read the `--avoid` options: integers that are not sampled for an input.

    Raises:
      InvalidArgument: a text is not a name with integers.

    >>> parse_avoided(["ids=0,-100"])
    {'ids': [0, -100]}
    """
    avoided: dict[str, list[int]] = {}
    for text in texts:
        name, _, values = text.replace(" ", "").partition("=")
        if not _NAME.fullmatch(name) or not re.fullmatch(r"-?\d+(,-?\d+)*", values):
            raise InvalidArgument(
                f'"{text}" does not specify values to avoid', where="`--avoid`", instead='write it like "ids=0,1"'
            )
        avoided.setdefault(name, []).extend(int(value) for value in values.split(","))
    return avoided


def parse_keyword(texts: Iterable[str], option: str) -> dict[str, Any]:
    """Read options of the form `name=value`: a Python literal, or else the text itself.

    Raises:
      InvalidArgument: a text has no `=`, its name is not an identifier, or a name occurs twice.

    >>> parse_keyword(["train=False", "axes=(1, 2)", "mode=same"], "--static")
    {'train': False, 'axes': (1, 2), 'mode': 'same'}
    """
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise InvalidArgument(
                f'"{text}" is not a keyword argument', where=f"`{option}`", instead='write it like "train=False"'
            )
        if name in values:
            raise given_twice(name, option)
        values[name] = _literal(value.strip())
    return values


def parse_precision(text: str | None) -> Named | None:
    """Read the option `--precision`: a name, which fields of `jaxport.Int4` or `jaxport.Int8` may follow.

    Raises:
      InvalidArgument: the name has no options, or one is malformed, unknown or out of range.

    >>> parse_precision("float16"), parse_precision("int4,group=64,symmetric=True")
    ('float16', Int4(group=64, symmetric=True))
    """
    if text is not None and text.partition(",")[0].strip() == "int8":
        raise InvalidArgument(
            'the precision "int8" needs batches of data',
            where="`--precision`",
            instead='"int8-dynamic" needs none; `jaxport.to_onnx` takes them as `calibration`',
        )
    if text is None or "," not in text:
        return cast("Named | None", text)  # which `to_onnx` checks
    from jaxport.export.precision.names import PRECISIONS

    name, *options = (part.strip() for part in text.split(","))
    values = parse_keyword(options, "--precision")
    forms = {known: precision.form for known, precision in PRECISIONS.items() if precision.form is not None}
    if name not in forms:
        raise InvalidArgument(
            f'the precision "{name}" has no options',
            where="`--precision`",
            instead=f"{', '.join(map(repr, forms))} have some",
        )
    known = [field.name for field in fields(forms[name])]
    wrong = [f"`{option}` is unknown" for option in values if option not in known]
    if wrong:
        raise InvalidArgument(
            "; ".join(wrong), where="`--precision`", instead=f'"{name}" has the options {", ".join(known)}'
        )
    return replace(forms[name], **values)


def parse_inputs(texts: Iterable[str]) -> list[InputSpec]:
    """Read all `--input` options, in order.

    Raises:
      InvalidArgument: one is malformed, or only some have a name.

    >>> [spec.name for spec in parse_inputs(["ids:int32[B,T]", "mask:bool[B,T]"])]
    ['ids', 'mask']
    """
    specs = [parse_input(text) for text in texts]
    nameless = sum(spec.name is None for spec in specs)
    if 0 < nameless < len(specs):
        raise InvalidArgument(
            f"{nameless} of {len(specs)} inputs have no name",
            where="`--input`",
            instead="name all of them, or none to use the function's own argument names",
        )
    return specs


def parse_input_params(texts: Iterable[str]) -> dict[str, InputSpec]:
    """Read the `--input-param` options: inputs that are passed by keyword, and so must have a name.

    `name:bool`, without dims, is a Python flag.

    Raises:
      InvalidArgument: one is malformed, has no name, or has the name of another.

    >>> parse_input_params(["mask:bool[B,T]"])
    {'mask': InputSpec(name='mask', dtype='bool', dims=('B', 'T'))}
    >>> parse_input_params(["deterministic:bool"])["deterministic"].value
    <class 'bool'>
    """
    specs: dict[str, InputSpec] = {}
    for text in texts:
        name, _, kind = text.partition(":")
        flag = kind.strip() == "bool" and _NAME.fullmatch(name.strip())
        spec = InputSpec(name.strip(), _FLAG, ()) if flag else parse_input(text)
        if spec.name is None:
            raise InvalidArgument(
                f'"{text}" has no name', where="`--input-param`", instead='write it like "mask:bool[B,T]"'
            )
        if spec.name in specs:
            raise given_twice(spec.name, "--input-param")
        specs[spec.name] = spec
    return specs


def input_names(positional: Iterable[InputSpec], keywords: Iterable[str]) -> list[str] | None:
    """Return the names of all inputs of the graph, if the positional ones have any.

    Args:
      positional: the result of `parse_inputs`.
      keywords: the names of the inputs that are passed by keyword. JAX orders them alphabetically.

    Returns:
      The names, or `None` to use the function's own argument names.

    >>> input_names(parse_inputs(["x:B,3"]), ["scale", "mask"])
    ['x', 'mask', 'scale']
    """
    names = [spec.name for spec in positional if spec.name is not None]
    return [*names, *sorted(keywords)] if names else None


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _dim(text: str, dim: str) -> Dim:
    if dim.isdecimal():
        return int(dim)
    if dim in ("None", "?"):
        return None
    if not dim:
        raise _malformed(text, "one of its dims is empty")
    from jaxport.jaxprs.dim_text import symbols

    try:
        if not symbols(dim):
            raise InvalidArgument("it has no name", why="it has no name")
    except InvalidArgument as error:
        raise _malformed(text, f"`{dim}` is neither a size nor an expression of dims: {error.why}") from error
    return dim


def _is_dtype(name: str) -> bool:
    """Whether `name` is the full name of a dtype: "int32" is one, NumPy's short form "i4" and a dim "B" are not."""
    import ml_dtypes  # noqa: F401 - registers bfloat16 and its kin with NumPy
    import numpy as np

    try:
        return name.isidentifier() and np.dtype(name).name == name
    except TypeError:
        return False


def _dtype(name: str) -> Any:
    import jax

    if name == "key":
        return jax.random.key(0).dtype
    if not _is_dtype(name):
        raise InvalidArgument(
            f"`{name}` is not a dtype",
            where="`--input`",
            instead="use one of JAX's: float32, bfloat16, int32, bool, ..., or `key` for a PRNG key",
        )
    return jax.numpy.dtype(name)


def _malformed(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f'"{text}" is not a valid input specification', where="`--input`", why=why, instead=_EXAMPLES
    )


def given_twice(name: str, option: str) -> InvalidArgument:
    """Return the error for a name that an option of the command has twice.

    >>> given_twice("ids", "--value").refused
    '`ids` is given twice'
    """
    return InvalidArgument(f"`{name}` is given twice", where=f"`{option}`", instead="give it once")
