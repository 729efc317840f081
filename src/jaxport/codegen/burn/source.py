"""The files of a crate, on disk whole or not at all."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files as resources
from pathlib import Path

import numpy as np

from jaxport.codegen.burn.crate import Crate, elements
from jaxport.codegen.burn.definitions import snake_case
from jaxport.codegen.burn.layers import KEYWORDS
from jaxport.codegen.burn.values import held
from jaxport.codegen.modules import GENERIC, is_generated_file
from jaxport.codegen.rust.text import LAYOUT, formatted
from jaxport.codegen.source import noted, summary
from jaxport.errors import SaveError
from jaxport.files import checked_path, publish_all
from jaxport.importer.tensors.origins import ORIGINS, WeightOrigin, stored

MARK = "Written by jaxport"
"""The words in each generated file of text."""
WEIGHTS = "model.safetensors"
SAMPLE = ("tests/inputs.safetensors", "tests/outputs.safetensors")


@dataclass(frozen=True)
class CrateSource:
    """A crate for Burn: its files of text, and its weights by the paths of the modules of Rust.

    Attributes:
      files: the text of each file by its path in the crate: `Cargo.toml`, `src/lib.rs`, `src/model.rs`, …
      tensors: the weights, in Burn's own layouts.
      taken_from: the tensor in the ONNX file that each of them is, or is a part of; what was computed from others is
        none.
      sample: inputs and outputs by name, which the crate's own test compares; empty without a test.
      coverage: the part of the elements of the parameters that are in layers of Burn, between 0 and 1.
      notes: what holds for this source only: what sizes have to be, and which inputs became constants.
    """

    files: Mapping[str, str]
    tensors: dict[str, np.ndarray]
    taken_from: dict[str, WeightOrigin]
    coverage: float
    sample: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]] = field(default=({}, {}))
    notes: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """The text of the model: `src/model.rs`."""
        return self.files["src/model.rs"]

    @property
    def origins(self) -> dict[str, str]:
        """The name of the tensor in the ONNX file that each weight comes from."""
        return {path: origin.tensor for path, origin in self.taken_from.items()}

    def __repr__(self) -> str:
        return summary("CrateSource", self.code, self.tensors, self.notes)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the crate, and return the path of its folder.

        The files are written beside the folder first, and moved into it when all of them are there. Files that were not
        generated stay, but for those that would be replaced: they are refused.

        Raises:
          SaveError: a file cannot be written, or there is one of these names that is not generated; earlier files are
            unchanged.
        """
        target = Path(os.path.realpath(checked_path(folder, "the folder of the crate")))
        self._refuse_foreign(target)
        return publish_all(target, {path: self._writer(path) for path in self._paths()})

    def _paths(self) -> list[str]:
        return [*self.files, WEIGHTS, *(path for path, arrays in zip(SAMPLE, self.sample, strict=True) if arrays)]

    def _writer(self, path: str) -> Callable[[Path], None]:
        """Return what writes a file of the crate."""
        from safetensors.numpy import save_file

        def write_text(file: Path) -> None:
            file.write_text(self.files[path], encoding="utf-8", newline="\n")

        if path in self.files:
            return write_text
        metadata = {"generator": "jaxport"}
        if path == WEIGHTS:
            arrays, metadata = self.tensors, metadata | {ORIGINS: stored(self.taken_from)}
        else:
            arrays = self.sample[SAMPLE.index(path)]
        made = {key: np.ascontiguousarray(value, held(value.dtype)) for key, value in arrays.items()}
        return lambda file: save_file(made, file, metadata)

    def _refuse_foreign(self, folder: Path) -> None:
        for path in [*self.files, WEIGHTS, *SAMPLE]:
            existing = folder / path
            if not os.path.lexists(existing):
                continue
            is_ours = is_generated_file if path.endswith(".safetensors") else _is_generated
            if not is_ours(existing):
                raise SaveError(
                    f"`{existing}` already exists",
                    why="it was not generated from a model",
                    instead="give another folder, or remove it",
                )


def _is_generated(path: Path) -> bool:
    return path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")[:1000]


def crate_source(
    crate: Crate, title: str, version: str, sample: tuple | None = None, notes: tuple[str, ...] = ()
) -> CrateSource:
    """Return the files of a crate.

    Args:
      crate: the sources and the weights.
      title: the name of the model, printable text.
      version: the version of the library that writes it.
      sample: inputs and outputs of the model by name, for the crate's test.
      notes: what holds for this source only.
    """
    title = crate.root if GENERIC.fullmatch(title) else title
    package = _package(title)
    words = {
        "name": package,
        "crate": package.replace("-", "_"),
        "root": crate.root,
        "title": f"`{title}` for Burn.",
        "description": f"{title}, written by jaxport from ONNX",
        "version": version,
        "origin": "ONNX",
        "tolerance": "1e-4",
        "modules": _modules(crate),
        "run": crate.run,
        "arguments": ", ".join(crate.arguments),
        "outputs": crate.results,
        "generated": _GENERATED.format("" if not crate.generation["rows_argument"] else " 64,")
        if crate.generation
        else "",
    }
    texts = {path: _template(name, words) for name, path in _TEMPLATES.items()}
    texts["Cargo.toml"] = f"# {MARK} {version}.\n{texts['Cargo.toml']}"
    layout = "".join(f'{option} = "{value}"\n' for option, value in LAYOUT.items())
    texts["rustfmt.toml"] = f"# {MARK} {version}.\n{layout}"
    texts["src/tensors.rs"] = _marked(_text("tensors.rs"), version)
    texts["src/weights.rs"] = _marked(weights_text(crate), version)
    texts["src/main.rs"] = _marked(texts["src/main.rs"], version)
    said = "".join(f"//! {line}".rstrip() + "\n" for line in noted(notes))
    texts["src/model.rs"] = f"//! {MARK} {version}.\n{said}\n{crate.model}"
    if crate.helpers:
        texts["src/helpers.rs"] = _marked(crate.helpers, version)
    if crate.generation:
        texts["src/generate.rs"] = _marked(_template("generate.rs", crate.generation), version)
    if sample is not None:
        sample = (elements(sample[0]), elements(sample[1]))
        texts["tests/outputs.rs"] = _marked(_template("outputs.rs", words), version)
    texts = {path: formatted(text) if path.endswith(".rs") else text for path, text in texts.items()}
    return CrateSource(texts, crate.tensors, crate.origins, crate.coverage, sample or ({}, {}), notes)


_GENERATED = "let tokens: Vec<i32> = model.generate(&[1, 2, 3],{} &device).take(5).collect();\n"
"""The line of an example that generates text."""


def _package(name: str) -> str:
    """Return the name of a package.

    >>> _package("VisionTransformer"), _package("bert base"), _package("3d"), _package("burn")
    ('vision-transformer', 'bert-base', 'model-3d', 'model-burn')
    """
    package = re.sub(r"[^a-z0-9]+", "-", snake_case(name)).strip("-") or "model"
    return f"model-{package}" if package[0].isdigit() or package in _RESERVED else package


_RESERVED = {*KEYWORDS.split(), *"burn safetensors std core alloc test build deps examples incremental crate".split()}
"""Names that a package cannot have: words of Rust, its dependencies, and folders of cargo."""


_TEMPLATES = {"Cargo.toml": "Cargo.toml", "lib.rs": "src/lib.rs", "main.rs": "src/main.rs", "README.md": "README.md"}


def weights_text(crate: Crate) -> str:
    """Return the text of `weights.rs`: floats are cast to the type that the model computes in, if there is one."""
    to = crate.computes_in
    words = {
        "root": crate.root,
        "adapter": "FloatCastAdapter, " if to else "",
        "types": ", DType" if to else "",
        "boxed": f"Some(Box::new(FloatCastAdapter::to(DType::{to})))" if to else "None",
        "cast": f".with_from_adapter(FloatCastAdapter::to(DType::{to}))" if to else "",
    }
    return _template("weights.rs", words)


def _text(name: str) -> str:
    return (resources("jaxport.codegen.burn") / "templates" / name).read_text(encoding="utf-8")


def _template(name: str, words: Mapping[str, str]) -> str:
    return string.Template(_text(name)).substitute(words)


def _marked(text: str, version: str) -> str:
    """Return a file whose first comment says who has written it."""
    first, _, rest = text.partition("\n")
    return (
        f"{first}\n//!\n//! {MARK} {version}.\n{rest}"
        if first.startswith("//!")
        else f"//! {MARK} {version}.\n\n{text}"
    )


def _modules(crate: Crate) -> str:
    helpers = ["pub mod generate;"] * bool(crate.generation) + ["pub mod helpers;"] * bool(crate.helpers)
    return "\n".join(
        [*crate.uses.rstrip("\n").splitlines(), "", *helpers, "pub mod model;", "pub mod tensors;", "pub mod weights;"]
    )
