"""Structures of Rust as text: what a module holds, how it is made, and what it computes."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxport.codegen.burn.layers import DEFAULTS, KEYWORDS
from jaxport.codegen.burn.values import kind_of, rank_of
from jaxport.codegen.rust.text import expression_text, function_text, quoted
from jaxport.codegen.rust.tree import (
    Array,
    FieldAccess,
    For,
    Identifier,
    Index,
    Literal,
    Number,
    RustExpression,
    RustFunction,
    Structure,
    Tuple,
    Zipped,
    constant,
    has_name,
    method,
    path_call,
    rewritten,
)
from jaxport.codegen.writing.initial_values import Start

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
      trained: the paths under which weights are trained; None if all are.
    """

    name: str
    fields: dict[str, str]
    arguments: dict[str, str]
    init: dict[str, RustExpression]
    method: RustFunction
    copied: Collection[str]
    title: str
    sizes: Mapping[str, str]
    further: str = ""
    trained: Sequence[str] | None = None

    def text(self) -> str:
        """Return its definition: with `new` and `forward`, or with a configuration of its own where it takes
        arguments.
        """
        uses_device = has_name(self.init.values(), "device")
        device = f"{'' if uses_device else '_'}device: &Device"
        made = [f"            {self._field(key)}," for key in self.fields]
        lines = [f"/// {self.title}", "#[derive(Module, Debug)]", f"pub struct {self.name} {{"]
        lines += [f"    pub {key}: {kind}," for key, kind in self.fields.items()]
        lines += ["}", "", f"impl {self.name} {{"]
        if not self.arguments:
            says, opening, closing = MAKES, "Self {", "}"
            if self.trained is not None:
                parts = ", ".join(map(quoted, self.trained))
                says = f"{MAKES} {f'Only those under {parts} are' if parts else 'None is'} trained."
                opening, closing = "frozen(Self {", f"}}, &[{parts}])"
            lines += [f"    /// {says}"]
            lines += [f"    pub fn new({device}) -> Self {{", f"        {opening}", *made]
            lines += [f"        {closing}", "    }", ""]
        lines += [self.further, ""] if self.further else []
        lines += [function_text(self.method, [*self.copied], 1, self.sizes), "}"]
        if not self.arguments:
            return "\n".join(lines)
        config = [f"/// The configuration of [`{self.name}`].", "#[derive(Config, Debug)]"]
        config.append(f"pub struct {self.name}Config {{")
        for key, kind in self.arguments.items():
            default = default_of(key)
            config += [] if default is None else [f"    #[config(default = {expression_text(Number(default))})]"]
            config.append(f"    pub {key}: {kind},")
        config += ["}", "", f"impl {self.name}Config {{", f"    /// {MAKES}"]
        config += [f"    pub fn init(&self, {device}) -> {self.name} {{", f"        {self.name} {{", *made]
        config += ["        }", "    }", "}", ""]
        return "\n".join([*config, *lines])

    def _field(self, key: str) -> str:
        """Return a field with its first value; arguments are fields of the configuration."""
        value = expression_text(rewritten(copy.deepcopy(self.init[key]), self._configured))
        return key if value == key else f"{key}: {value}"

    def _configured(self, node: RustExpression) -> RustExpression:
        """Read arguments from the configuration: `self.stride`."""
        if isinstance(node, Identifier) and node.id in self.arguments:
            return FieldAccess(Identifier("self"), node.id)
        return node


def parameter(shape: Sequence[int], dtype: np.dtype, is_trained: bool, start: Start = "zeros") -> RustExpression:
    """Return a parameter as it begins, before a file fills it."""
    sizes = Array([constant(int(size), "size") for size in shape or (1,)])
    kind = kind_of(dtype)
    made: RustExpression
    if kind == "Float":
        normal = Structure("Initializer::Normal", ["mean", "std"], [Literal("0.0"), Literal("0.02")])
        initializer = normal if start == "random" else Literal(f"Initializer::{start.title()}")
        made = method(initializer, "init", sizes, Identifier("device"))
        made = made if is_trained else method(made, "set_require_grad", Literal("false"))
    elif kind == "Int":
        made = path_call(
            "Param::initialized",
            path_call("ParamId::new"),
            path_call(f"Tensor::<{rank_of(shape)}, Int>::zeros", sizes, Identifier("device")),
        )
    else:
        empty = path_call(f"Tensor::<{rank_of(shape)}, Int>::zeros", sizes, Identifier("device"))
        made = path_call("Param::initialized", path_call("ParamId::new"), method(empty, "bool"))
    return made


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


def modules_in(loop: For) -> list[str]:
    """Return the names of modules that a loop goes over: they are references."""
    sources = loop.over.values if isinstance(loop.over, Zipped) else [loop.over]
    targets = loop.target.elements if isinstance(loop.target, Tuple) else [loop.target]
    pairs = zip(targets, sources, strict=False)
    return [
        target.id
        for target, source in pairs
        if isinstance(target, Identifier) and isinstance(source, FieldAccess | Index)
    ]
