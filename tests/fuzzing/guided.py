"""Fuzzing that looks inside: mutated files, of which those that reach new code of the package are mutated further.

`python -m tests.fuzzing.guided KIND SECONDS [CORPUS]`, where KIND is onnx (the loader), printers (of source in every
dialect), json, yson or xml (the formats of a Mox). What is no error of the package is printed once for each place, with the
file that shows it in the folder `out/fuzz`. It needs atheris: `make fuzz-guided` installs it.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

FOUND = Path("out/fuzz")
DIALECTS = ("jax", "nnx", "equinox", "burn")


def loader(folder: Path) -> tuple[list[bytes], Callable[[bytes], str], Callable[[bytes, int], bytes]]:
    from tests.fuzzing import onnx_files

    return serialized(), lambda data: onnx_files.attempt(data, folder, run=False), remodelled


def printers(folder: Path) -> tuple[list[bytes], Callable[[bytes], str], Callable[[bytes, int], bytes]]:
    import jaxport
    from jaxport.importer import from_onnx

    def attempt(data: bytes) -> str:
        path = folder / "m.onnx"
        path.write_bytes(data)
        dialect = DIALECTS[hashlib.sha256(data).digest()[0] % len(DIALECTS)]
        try:
            program = from_onnx(path)
            program.to_source(folder / "printed", framework=dialect)
        except jaxport.JaxportError as error:
            str(error)
            return type(error).__name__
        return "printed"

    return serialized(), attempt, remodelled


def serialized() -> list[bytes]:
    from tests.fuzzing import onnx_files

    return [proto.SerializeToString() for proto in onnx_files.seeds()]


def remodelled(data: bytes, seed: int) -> bytes:
    """A file with its contents mixed up, or with other bytes where it is not a file."""
    import onnx

    from tests.fuzzing import onnx_files

    generator = random.Random(seed)
    try:
        proto = onnx.ModelProto.FromString(data)
        if proto.graph.node and generator.random() < 0.8:
            return onnx_files.reordered(proto, generator)
    except Exception:  # noqa: BLE001  no file, or one that cannot be changed in this way
        pass
    return onnx_files.mutated(data, generator)


def mox(form: str) -> Callable[[Path], Any]:
    def prepared(folder: Path) -> tuple[list[bytes], Callable[[bytes], str], Callable[[bytes, int], bytes]]:
        from jaxport.mox.serialize.formats import printed
        from tests.fuzzing import mox_files

        texts = [printed(data, form) for data, _ in mox_files.seeds()]
        weights = {name: value for _, own in mox_files.seeds() for name, value in own.items()}

        def mutate(data: bytes, seed: int) -> bytes:
            text = data.decode("utf-8", "surrogatepass") if _is_text(data) else data.decode("latin-1")
            return mox_files.garbled(text, random.Random(seed)).encode("utf-8", "surrogatepass")

        def attempt(data: bytes) -> str:
            if not _is_text(data):
                return "no text"
            return mox_files.attempt(form, data.decode("utf-8", "surrogatepass"), weights, folder, run=False)

        return [text.encode() for text in texts], attempt, mutate

    return prepared


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


KINDS = {"onnx": loader, "printers": printers, "json": mox("json"), "yson": mox("yson"), "xml": mox("xml")}


def main(kind: str, seconds: str, corpus: str = "") -> None:
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=["jaxport"]):
        import jaxport.cli.summary
        import jaxport.codegen.source as printing
        import jaxport.importer
        import jaxport.mox.serialize.writing  # noqa: F401  all that reads and prints
    printing._formatted = lambda code: code  # another process for each file takes long
    folder = Path(tempfile.mkdtemp(prefix="jaxport-fuzz-"))
    seeds, attempt, mutate = KINDS[kind](folder)
    kept = Path(corpus or folder / "corpus")
    kept.mkdir(parents=True, exist_ok=True)
    for data in seeds:
        (kept / hashlib.sha256(data).hexdigest()).write_bytes(data)
    counts: dict[str, int] = {}
    places: set[str] = set()
    begun = time.monotonic()

    def one(data: bytes) -> None:
        try:
            result = attempt(data)
        except RecursionError:
            result = "recursion"
        except Exception as error:  # noqa: BLE001  whatever it is, it is what is looked for
            result = "foreign"
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/jaxport/" in frame.filename]
            place = f"{type(error).__name__} in {frames[-1].filename}:{frames[-1].lineno}" if frames else repr(error)
            if place not in places:
                places.add(place)
                FOUND.mkdir(parents=True, exist_ok=True)
                name = FOUND / f"{kind}-{hashlib.sha256(data).hexdigest()[:12]}"
                name.write_bytes(data)
                print(f"{name}: {place}: {str(error)[:300]}", flush=True)
        counts[result] = counts.get(result, 0) + 1
        if time.monotonic() - begun > float(seconds):
            total, foreign = sum(counts.values()), counts.get("foreign", 0)
            print(
                f"{kind}: {total} files in {seconds} s; {foreign} foreign errors in {len(places)} places; {counts}",
                flush=True,
            )
            os._exit(bool(places))

    def mutator(data: bytes, size: int, seed: int) -> bytes:
        changed = mutate(data, seed) if seed % 4 else atheris.Mutate(data, size)
        return changed[:size]

    options = ["-timeout=300", "-rss_limit_mb=8192", "-max_len=8192", "-len_control=0", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(kept)], one, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
