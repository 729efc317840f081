"""Files: the program as text, the weights beside it as safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxport.errors import InvalidArgument, ModelError, SaveError
from jaxport.mox.mox import Mox
from jaxport.mox.serialize.formats import parsed, printed
from jaxport.mox.serialize.reading import mox_from
from jaxport.mox.serialize.values import dtype_of
from jaxport.mox.serialize.writing import document

__all__ = ["dumps", "load", "load_params", "loads", "save", "save_params"]

_SUFFIXES = {".json": "json", ".yson": "yson", ".xml": "xml"}


def dumps(mox: Mox, format: str = "json") -> str:
    """A Mox as text, complete but for the values of its weights.

    Args:
      mox: the Mox.
      format: "json", "yson" or "xml".

    Raises:
      Unsupported: it has something that cannot be read again, such as a callback.
      InvalidArgument: there is no such format.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(jnp.tanh)(jnp.zeros(3))
    >>> for form in ("json", "yson", "xml"):
    ...     again = jaxport.mox.loads(jaxport.mox.dumps(mox, form))
    ...     print(again(jnp.ones(3)))
    [0.7615942 0.7615942 0.7615942]
    [0.7615942 0.7615942 0.7615942]
    [0.7615942 0.7615942 0.7615942]
    """
    return printed(document(mox), format)


def loads(text: str, weights: Mapping[str, Any] | None = None, format: str | None = None) -> Mox:
    """The Mox of a text.

    Args:
      text: what `dumps` made.
      weights: the value of each weight by path: ``{**mox.params, **mox.state}``.
      format: "json", "yson" or "xml"; told by the text if left out.

    Raises:
      ModelError: the text is malformed, truncated, hostile, or needs weights that are not given.
    """
    return mox_from(parsed(text, format), weights or {})


def save(mox: Mox, path: str | os.PathLike[str]) -> None:
    """Writes a Mox to a file (`.json`, `.yson` or `.xml`), and its weights beside it (`.safetensors`).

    Raises:
      InvalidArgument: the name of the file tells no format.
      Unsupported: it has something that cannot be read again.
      SaveError: a file cannot be written.
    """
    target = Path(path)
    text = dumps(mox, _format_of(target))
    save_params({**mox.params, **mox.state}, target.with_suffix(".safetensors"))
    try:
        partial = target.with_name(f"{target.name}.partial")
        partial.write_text(text)
        partial.replace(target)
    except OSError as error:
        raise SaveError(f"`{target}` cannot be written", why=str(error)) from error


def load(path: str | os.PathLike[str]) -> Mox:
    """Reads what `save` wrote.

    Raises:
      InvalidArgument: there is no such file, or its name tells no format.
      ModelError: a file is malformed, truncated, or hostile.
    """
    source = Path(path)
    form = _format_of(source)
    try:
        text = source.read_text()
    except OSError as error:
        raise InvalidArgument(f"`{source}` cannot be read", why=str(error)) from error
    except UnicodeDecodeError as error:
        raise ModelError(f"`{source}` is no text", why=str(error)) from error
    return loads(text, load_params(source.with_suffix(".safetensors")), form)


def _format_of(path: Path) -> str:
    if path.suffix not in _SUFFIXES:
        raise InvalidArgument(
            f"`{path.name}` tells no format", where="the file of a Mox", instead=f"end it in {', '.join(_SUFFIXES)}"
        )
    return _SUFFIXES[path.suffix]


def save_params(params: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes arrays by path, as safetensors: parameters of a Mox, or the new ones of an edit alone.

    Raises:
      SaveError: the file cannot be written.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "adapters.safetensors"
    >>> save_params({"head.lora_a": jnp.ones((2, 1), jnp.bfloat16)}, file)
    >>> load_params(file)["head.lora_a"].dtype
    dtype(bfloat16)
    """
    from safetensors.numpy import save_file

    arrays, dtypes = {}, {}
    for name, value in params.items():
        dtypes[name] = str(value.dtype)
        arrays[name] = _raw(value)
    target = Path(path)
    partial = target.with_name(f"{target.name}.partial")
    try:
        save_file(arrays, partial, metadata=dtypes or None)
        partial.replace(target)
    except OSError as error:
        raise SaveError(f"`{target}` cannot be written", why=str(error)) from error


def _raw(value: Any) -> np.ndarray:
    """An array as bytes of a kind that every reader of safetensors knows."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return np.array(jax.random.key_data(value), order="C")
    array = np.array(value, order="C")
    if array.dtype.kind in "biufc" and array.dtype.itemsize <= 8 and array.dtype.isbuiltin == 1:
        return array
    return array.view(np.dtype(f"uint{8 * array.dtype.itemsize}"))


def load_params(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads what `save_params` wrote.

    Raises:
      InvalidArgument: there is no such file.
      ModelError: it is malformed or truncated.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).exists():
        raise InvalidArgument(f"`{path}` does not exist", where="the weights of a Mox")
    made: dict[str, Any] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            dtypes = file.metadata() or {}
            for name in file.keys():  # noqa: SIM118 - it is no dict
                raw = file.get_tensor(name)
                made[name] = _restored(raw, dtypes.get(name, str(raw.dtype)))
    except (SafetensorError, ValueError) as error:
        raise ModelError(f"`{path}` cannot be read", where="the weights of a Mox", why=str(error)) from error
    return made


def _restored(raw: np.ndarray, text: str) -> Any:
    dtype = dtype_of(text)
    if not isinstance(dtype, np.dtype):
        names = {str(jax.random.key(0, impl=name).dtype): name for name in ("threefry2x32", "rbg", "unsafe_rbg")}
        return jax.random.wrap_key_data(jnp.asarray(raw), impl=names[text])
    return jnp.asarray(raw if raw.dtype == dtype else raw.view(dtype))
