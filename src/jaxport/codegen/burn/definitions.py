"""Structures of Rust as text: what a module holds, how it is made, and what it computes."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jaxport.codegen.burn.layers import DEFAULTS, KEYWORDS
from jaxport.codegen.rust.nodes import RustFunction
from jaxport.codegen.rust.text import expression_text, function_text
from jaxport.codegen.writing.literals import attribute

__all__ = ["Struct", "default_of", "modules_in", "snake_case"]

MAKES = "Makes the module with new weights."


@dataclass(eq=False)
class Struct:
    """A structure of Rust: a module, or the root.

    Attributes:
      name: its name.
      fields: its fields with their types.
      arguments: the arguments of `new`, with their types.
      init: the expressions of the fields.
      method: its `forward`.
      copied: the names in `forward` whose values are copied.
      title: what its documentation says.
      sizes: the names of sizes that Rust spells otherwise.
      further: the text of its other functions.
    """

    name: str
    fields: dict[str, str]
    arguments: dict[str, str]
    init: dict[str, ast.expr]
    method: RustFunction
    copied: Collection[str]
    title: str
    sizes: Mapping[str, str]
    further: str = ""

    def text(self) -> str:
        """Return its definition: with `new` and `forward`, or with a configuration of its own where it takes arguments."""
        uses_device = any(
            isinstance(node, ast.Name) and node.id == "device"
            for value in self.init.values()
            for node in ast.walk(value)
        )
        device = f"{'' if uses_device else '_'}device: &Device"
        made = [f"            {self._field(key)}," for key in self.fields]
        lines = [f"/// {self.title}", "#[derive(Module, Debug)]", f"pub struct {self.name} {{"]
        lines += [f"    pub {key}: {kind}," for key, kind in self.fields.items()]
        lines += ["}", "", f"impl {self.name} {{"]
        if not self.arguments:
            lines += [f"    /// {MAKES}", f"    pub fn new({device}) -> Self {{", "        Self {", *made]
            lines += ["        }", "    }", ""]
        lines += [self.further, ""] if self.further else []
        lines += [function_text(self.method, [*self.copied], 1, self.sizes), "}"]
        if not self.arguments:
            return "\n".join(lines)
        config = [f"/// The configuration of [`{self.name}`].", "#[derive(Config, Debug)]"]
        config.append(f"pub struct {self.name}Config {{")
        for key, kind in self.arguments.items():
            default = default_of(key)
            config += [] if default is None else [f"    #[config(default = {expression_text(ast.Constant(default))})]"]
            config.append(f"    pub {key}: {kind},")
        config += ["}", "", f"impl {self.name}Config {{", f"    /// {MAKES}"]
        config += [f"    pub fn init(&self, {device}) -> {self.name} {{", f"        {self.name} {{", *made]
        config += ["        }", "    }", "}", ""]
        return "\n".join([*config, *lines])

    def _field(self, key: str) -> str:
        """Return a field with its first value; arguments are fields of the configuration."""
        value = expression_text(_Configured(self.arguments).visit(copy.deepcopy(self.init[key])))
        return key if value == key else f"{key}: {value}"


class _Configured(ast.NodeTransformer):
    """Reads arguments from the configuration: `self.stride`."""

    def __init__(self, arguments: Collection[str]) -> None:
        self.arguments = arguments

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return attribute(f"self.{node.id}") if node.id in self.arguments else node


def default_of(argument: str) -> float | None:
    """Return the default of an argument of a configuration: that of Burn's own layers; None if they require it.

    >>> default_of("stride"), default_of("padding_2"), default_of("in_features")
    (1, 0, None)
    """
    return DEFAULTS.get(re.sub(r"_\d+$", "", argument))


def snake_case(name: str) -> str:
    """Return a name as Rust spells fields and variables.

    >>> snake_case("LayerNorm"), snake_case("c_fc"), snake_case("self")
    ('layer_norm', 'c_fc', 'self_')
    """
    text = re.sub(r"_+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_") or "part"
    return f"{text}_" if text in KEYWORDS.split() else text


def modules_in(loop: ast.For) -> list[ast.Name]:
    """Return the names of modules that a loop goes over: they are references."""
    sources = (
        loop.iter.args
        if isinstance(loop.iter, ast.Call) and getattr(loop.iter.func, "id", "") == "zip"
        else [loop.iter]
    )
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    pairs = zip(targets, sources, strict=False)
    return [
        target
        for target, source in pairs
        if isinstance(target, ast.Name) and isinstance(source, ast.Attribute | ast.Subscript)
    ]
