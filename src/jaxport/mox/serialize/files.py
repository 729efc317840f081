"""Files: the program as text, the weights beside it as safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxport import files
from jaxport.blocks.block import FrozenMapping
from jaxport.errors import InvalidArgument, ModelError, boundary
from jaxport.files import checked_path
from jaxport.jaxprs import Array, dims, jaxpr_as_fun
from jaxport.jaxprs.meshes import on_host
from jaxport.mox.looking.show import text as shown
from jaxport.mox.programs.program import Program, TracedProgram
from jaxport.mox.serialize.formats import parsed, printed
from jaxport.mox.serialize.json_values import JsonValue
from jaxport.mox.serialize.reading import program_from
from jaxport.mox.serialize.values import dtype_of
from jaxport.mox.serialize.writing import document

WEIGHTS = "weights_file"
"""The key of a document that names the file of its weights."""

_SUFFIX = ".safetensors"
_SUFFIXES = {".json": "json", ".yson": "yson", ".xml": "xml"}


def dumps(mox: TracedProgram, format: str = "json") -> str:
    """Return a Mox as text, without the values of its weights.

    Args:
      mox: the Mox.
      format: "json", "yson" or "xml".

    Raises:
      Unsupported: it contains something that could not be read back, such as a callback.
      InvalidArgument: the format is unknown.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(jnp.tanh)(jnp.zeros(3))
    >>> for form in ("json", "yson", "xml"):
    ...     again = jaxport.mox.loads(jaxport.mox.dumps(mox, form))
    ...     print(again(jnp.ones(3)))
    [0.7615942 0.7615942 0.7615942]
    [0.7615942 0.7615942 0.7615942]
    [0.7615942 0.7615942 0.7615942]
    """
    with boundary("the Mox cannot be written down", where=f"`{mox.name}`"):
        return printed(document(mox), format)


def read_text(text: str, weights: Mapping[str, Array] | None, format: str | None, kind: type[Program]) -> Program:
    """See `jaxport.mox.loads`; the result is of class `kind`."""
    with boundary("the text is no Mox", where="`loads`"):
        return _loaded(parsed(text, format), weights or {}, kind)


def _loaded(document: JsonValue, weights: Mapping[str, Array], kind: type[Program]) -> Program:
    """Return the program of a document, after everything that its users do with it was tried: it may be hostile."""
    mox = program_from(document, weights, kind)
    shown(mox)
    dict(mox.tree.paths)
    program, avals = jaxpr_as_fun(mox._plain(mark=False)), mox.jaxpr.in_avals
    if all(dims.all_static(aval.shape) for aval in avals):
        jax.jit(program).lower(*avals)  # the rules that infer types let pass what those that lower do not know
    else:
        jax.eval_shape(program, *avals)
    return mox


def pickled(mox: TracedProgram) -> tuple[str, dict[str, tuple[str, np.ndarray]]]:
    """Return what `unpickled` makes a Mox of: its text, and the dtype and the bytes of each weight.

    Raises:
      Unsupported: it contains something that could not be read back.
    """
    arrays = {path: (str(value.dtype), _raw(value)) for path, value in {**mox.params, **mox.state}.items()}
    return dumps(mox), arrays


def unpickled(text: str, arrays: Mapping[str, tuple[str, np.ndarray]], kind: type[Program]) -> Program:
    """Return the program of `pickled`, of class `kind`.

    Raises:
      ModelError: it is malformed.
    """
    return read_text(
        text, {path: _restored(raw, dtype, f"`{path}`") for path, (dtype, raw) in arrays.items()}, None, kind
    )


def save(mox: TracedProgram, path: str | os.PathLike[str]) -> None:
    """Write a Mox to a file (`.json`, `.yson` or `.xml`), and its weights beside it.

    The weights are in `<path>.<digest of their content>.safetensors`, to which the file refers. If saving fails, the
    old pair of files is kept as it was.

    Raises:
      InvalidArgument: the suffix of the file is not that of a format.
      Unsupported: it contains something that could not be read back.
      SaveError: a file cannot be written.
    """
    form = _format_of(Path(checked_path(path, "the file of a Mox")))
    with boundary("the Mox cannot be saved", where=f"`{path}`"):
        written = document(mox)
        weights = {**mox.params, **mox.state}
        files.publish(
            path,
            lambda file, data: _write_text(file, printed({**written, WEIGHTS: data} if data else written, form)),
            (lambda file: _write_arrays(file, weights)) if weights else None,
            _SUFFIX,
        )


def _write_text(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", newline="\n")


def read_file(path: str | os.PathLike[str], kind: type[Program]) -> Program:
    """See `jaxport.mox.load`; the result is of class `kind`."""
    source = Path(checked_path(path, "the file of a Mox"))
    form = _format_of(source)
    files.existing_file(source, "the file of a Mox")
    with boundary("the file is no Mox", where=f"`{source}`"):
        while True:
            before = os.stat(source)
            try:
                return _read(source, form, kind)
            except (InvalidArgument, ModelError):
                after = os.stat(source)  # a save may have put another pair in its place
                if (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns):
                    raise


def _read(source: Path, form: str, kind: type[Program]) -> Program:
    text = source.read_text(encoding="utf-8")
    data = parsed(text, form)
    fields = data if isinstance(data, Mapping) else {}  # what it is instead is told where it is read
    name = fields.get(WEIGHTS)
    if name is None:  # it has no weights, or is of a version that gave them its own name
        beside = source.with_suffix(_SUFFIX)
        return _loaded(data, load_params(beside) if beside.exists() or fields.get("weights") else {}, kind)
    folder = Path(os.path.realpath(source)).parent
    beside = folder / str(name)
    if not isinstance(name, str) or not name or beside.name != name or "\0" in name:
        raise ModelError(
            f"the weights at {name!r} are refused",
            where=f"`{source}`",
            why="they are outside the folder of the Mox",
            instead="keep the weights file beside it",
        )
    if beside.is_symlink() and not Path(os.path.realpath(beside)).is_relative_to(folder):
        raise ModelError(
            f"the weights at `{name}` are refused", where=f"`{source}`", why="the file is a link to another folder"
        )
    return _loaded(data, load_params(beside), kind)


def _format_of(path: Path) -> str:
    if path.suffix not in _SUFFIXES:
        raise InvalidArgument(
            f"`{path.name}` has no suffix of a known format",
            where="the file of a Mox",
            instead=f"end it in {', '.join(_SUFFIXES)}",
        )
    return _SUFFIXES[path.suffix]


def save_params(
    params: Mapping[str, Array], path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays to a safetensors file, by path: the parameters of a Mox, or only the new ones of an edit.

    Args:
      params: the arrays.
      path: the path of the file.
      metadata: strings to store with them.

    Raises:
      SaveError: the file cannot be written.

    >>> import jax.numpy as jnp
    >>> from jaxport.mox import load_params, save_params
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "adapters.safetensors"
    >>> save_params({"head.lora_a": jnp.ones((2, 1), jnp.bfloat16)}, file)
    >>> load_params(file)["head.lora_a"].dtype
    dtype(bfloat16)
    """
    files.publish(path, lambda file, _: _write_arrays(file, params, metadata or {}))


def _write_arrays(file: Path, params: Mapping[str, Array], metadata: Mapping[str, str] = FrozenMapping()) -> None:
    from safetensors.numpy import save_file

    dtypes = {name: str(value.dtype) for name, value in params.items()}
    save_file({name: _raw(value) for name, value in params.items()}, file, metadata={**dtypes, **metadata} or None)


def _raw(value: Array) -> np.ndarray:
    """Return an array as bytes of a kind that every reader of safetensors knows."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return np.array(jax.random.key_data(value), order="C")
    array = np.array(on_host(value), order="C")
    if array.dtype.kind in "biufc" and array.dtype.itemsize <= 8 and array.dtype.isbuiltin == 1:
        return array
    return array.view(np.dtype(f"uint{8 * array.dtype.itemsize}"))


def metadata_of(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the texts in a file of arrays."""
    from safetensors import safe_open

    with boundary(f"`{path}` cannot be read", where="`load_adapter`"), safe_open(path, framework="numpy") as file:
        return dict(file.metadata() or {})


def load_params(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read arrays from a file that `save_params` wrote.

    Raises:
      InvalidArgument: there is no such file.
      ModelError: it is malformed or truncated.

    >>> import pathlib, tempfile
    >>> import jax.numpy as jnp, jaxport
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "params.safetensors"
    >>> jaxport.mox.save_params({"kernel": jnp.ones(3)}, file)
    >>> jaxport.mox.load_params(file)
    {'kernel': Array([1., 1., 1.], dtype=float32)}
    """
    from safetensors import safe_open

    where = "the weights of a Mox"
    if not Path(checked_path(path, where)).exists():
        raise InvalidArgument(f"`{path}` does not exist", where=where)
    files.existing_file(path, where)
    made: dict[str, Array] = {}
    with boundary(f"`{path}` cannot be read", where=where), safe_open(path, framework="numpy") as file:
        dtypes = file.metadata() or {}
        for name in file.keys():  # noqa: SIM118 - it is not a dict
            raw = file.get_tensor(name)
            made[name] = _restored(raw, dtypes.get(name, str(raw.dtype)), f"the tensor `{name}` of `{path}`")
    return made


def _restored(raw: np.ndarray, text: str, where: str) -> Array:
    dtype = dtype_of(text)
    if not isinstance(dtype, np.dtype):
        names = {str(jax.random.key(0, impl=name).dtype): name for name in ("threefry2x32", "rbg", "unsafe_rbg")}
        return jax.random.wrap_key_data(jnp.asarray(raw), impl=names[text])
    raw = raw if raw.dtype == dtype else raw.view(dtype)
    array = jnp.asarray(raw)
    if array.dtype != dtype and dtype.kind in "iu" and not np.array_equal(array, raw):
        raise ModelError(
            f"integers of type {dtype} do not fit in {array.dtype}",
            where=where,
            why="64-bit types are not enabled",
            instead='`jax.config.update("jax_enable_x64", True)` before it is read',
        )
    return array
