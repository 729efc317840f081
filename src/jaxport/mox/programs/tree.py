"""A Mox as a tree of XML elements: what XPath looks at.

There is one element per equation; a block is one, named by the short name of its type. The equations of the only body
of an equation are its children; if there are several bodies (`cond`, `while`), each is an element `body`. The values of
attributes are `printable`, as everything that is shown; so are the strings of a query, which may say either.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from jax.typing import DTypeLike

from jaxport import jaxprs
from jaxport.blocks.block import Block
from jaxport.blocks.callables.framework import public_name
from jaxport.jaxprs import Atom, Aval, aval_of
from jaxport.jaxprs.body_inputs import body_names, runs_bodies
from jaxport.jaxprs.vmap_axes import Levels, Mapped, axes_of_batches, borne_by
from jaxport.jaxprs.walk import Location, bodies
from jaxport.printable import printable

if TYPE_CHECKING:
    from lxml.etree import _Element

__all__ = ["Node", "Tree", "joined", "name_below", "shape_text", "short_name", "value_text"]

#: Names that a query may use for a primitive, besides its own.
SPELLINGS = {"pjit": "jit", "remat": "checkpoint", "remat2": "checkpoint", "cond_p": "cond"}


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """An equation, and where it is.

    Attributes:
      location: index of an equation, index of a body in it, index of an equation in that, …
      equation: the equation itself.
      parent: the node whose body it is in; None at the root.
    """

    location: Location
    equation: jaxprs.JaxprEqn
    parent: Node | None

    @property
    def block(self) -> Block | None:
        """What the block stands for; None for other equations."""
        return self.equation.params.get("block")

    @property
    def around(self) -> Iterator[Node]:
        """The nodes around it, the innermost first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    @property
    def type(self) -> str:
        """The short name of the block's type, or the name of the primitive."""
        block = self.block
        return short_name(block.target) if block is not None else spelled(self.equation.primitive.name)

    @property
    def path(self) -> str:
        """The path of the block; of an equation, that of the block around it and its own name."""
        if self.block is not None:
            return self.block.path
        around = next((node.block.path for node in self.around if node.block is not None), "")
        own = str(self.equation.params.get("name") or self.type)
        return f"{around}.{own}" if around else own


class Tree:
    """The elements of a Mox. `nodes` are all in document order; `node_of` finds that of an element."""

    def __init__(self, name: str, jaxpr: jaxprs.Jaxpr):
        from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

        writer = _TreeWriter()
        writer.open("mox", {"name": name})
        writer.body(jaxpr, (), None)
        writer.close("mox")
        # Parsing one text is several times faster than making the elements one by one.
        parser = etree.XMLParser(huge_tree=True, resolve_entities=False)
        self.root: _Element = etree.fromstring("".join(writer.text).encode(), parser)
        # An element is the same object as long as somebody holds it.
        written = zip(self.root.iter(), writer.nodes, strict=True)
        self.node_of: dict[_Element, Node] = {element: node for element, node in written if node is not None}

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes, in document order."""
        return list(self.node_of.values())

    def names(self, kind: str) -> frozenset[str]:
        """Return all names of a kind that elements have: "tag", "target" or "attribute"."""
        return self._names[kind]

    @cached_property
    def _names(self) -> dict[str, frozenset[str]]:
        elements = list(self.root.iter())
        return {
            "tag": frozenset(str(element.tag) for element in elements),
            "target": frozenset(node.block.target for node in self.nodes if node.block is not None),
            "attribute": frozenset(str(name) for element in elements for name in element.attrib),
        }

    @cached_property
    def paths(self) -> Mapping[str, Sequence[Node]]:
        """The nodes by path: of each path the blocks, and if there is none the equations; of nested ones the outer."""
        blocks: dict[str, list[Node]] = {}
        equations: dict[str, list[Node]] = {}
        for node in self.nodes:
            same_path = (equations if node.block is None else blocks).setdefault(node.path, [])
            if not any(around in same_path for around in node.around):
                same_path.append(node)
        return {**equations, **blocks}

    @cached_property
    def _emitted(self) -> Counter[Mapped]:
        """How many equations bear each record of an operation under `vmap`."""
        return Counter(record for node in self.nodes for record in borne_by(node.equation))

    def axes_of(self, node: Node) -> Levels | None:
        """Return the axes of the batch of each array of a call, for each `vmap` around it; None if these are not known."""
        if node.block is not None:
            return node.block.axes
        return axes_of_batches(node.equation, lambda record: self._emitted[record] == 1)

    @cached_property
    def element_of(self) -> Mapping[Node, _Element]:
        """The element of each node."""
        return {node: element for element, node in self.node_of.items()}


class _TreeWriter:
    """The text of the elements, and for each the node that it stands for: none for the program and for bodies."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.nodes: list[Node | None] = []
        self._leaves: dict[tuple, str] = {}

    def open(self, tag: str, attributes: Mapping[str, str], node: Node | None = None) -> None:
        self.nodes.append(node)
        written = "".join([f' {name}="{value}"' for name, value in attributes.items()])
        # One search for all values, few of which need it.
        values = "".join(attributes.values())
        if _SPECIAL.search(values) is not None or not values.isprintable():
            written = "".join([f' {name}="{_escaped(value)}"' for name, value in attributes.items()])
        self.text.append(f"<{tag}{written}>")

    def close(self, tag: str) -> None:
        self.text.append(f"</{tag}>")

    def body(self, jaxpr: jaxprs.Jaxpr, before: Location, around: Node | None) -> None:
        """Write the elements of the equations of a body."""
        for index, equation in enumerate(jaxpr.eqns):
            node = Node((*before, index), equation, around)
            block = equation.params.get("block")
            if block is None and not runs_bodies(equation):
                self.nodes.append(node)
                self.text.append(self.leaf(equation))
                continue
            if block is not None:
                tag = _tag(short_name(block.target))
                self.open(tag, _block_attributes(block, equation), node)
            else:
                tag = spelled(equation.primitive.name)
                self.open(tag, _attributes(equation), node)
            inner = bodies(equation.params)
            for number, body in enumerate(inner):
                if len(inner) > 1:
                    self.open("body", {"name": body_names(equation)[number]})
                self.body(body, (*node.location, number), node)
                if len(inner) > 1:
                    self.close("body")
            self.close(tag)

    def leaf(self, equation: jaxprs.JaxprEqn) -> str:
        """Return the element of an equation that runs no bodies; layers of a kind have the same ones."""
        atoms = [*equation.invars, *equation.outvars]
        key = (
            equation.primitive.name,
            len(equation.outvars),
            *[(aval.dtype, aval.shape) if hasattr(aval := atom.aval, "dtype") else aval for atom in atoms],
            *[(type(v), v) if type(v) in _PLAIN else None for v in jaxprs.parameters(equation).values()],
        )
        try:
            known = self._leaves.get(key)
        except TypeError:  # a param that has no hash
            return _leaf(equation)
        if known is None:
            known = self._leaves[key] = _leaf(equation)
        return known


def _leaf(equation: jaxprs.JaxprEqn) -> str:
    tag, writer = spelled(equation.primitive.name), _TreeWriter()
    writer.open(tag, _attributes(equation))
    writer.close(tag)
    return "".join(writer.text)


_SPECIAL = re.compile('[&<"]')


def _escaped(text: str) -> str:
    """Return a text as the value of an attribute."""
    return _SPECIAL.sub(lambda special: f"&#{ord(special.group())};", printable(text))


@cache
def spelled(primitive: str) -> str:
    """Return the one name that an element has for a primitive, whatever the version of jax calls it.

    >>> spelled("pjit"), spelled("dot_general")
    ('jit', 'dot_general')
    """
    name = SPELLINGS.get(primitive, primitive)
    return name if _NAME.fullmatch(name) else _tag(name)


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def short_name(target: str) -> str:
    """Return the last part of a qualified name.

    >>> short_name("flax.nnx.Linear")
    'Linear'
    """
    return target.rpartition(".")[2]


@lru_cache(maxsize=4096)
def _tag(name: str) -> str:
    """Return a name as XML allows it."""
    name = _FOREIGN.sub("_", name)
    return name if re.match("[A-Za-z_]", name) else f"_{name}"


# All but what Python and XML both take for a part of a name.
_FOREIGN = re.compile(
    r"[^\w.-]|(?![-.0-9A-Z_a-z\xb7\xc0-\xd6\xd8-\xf6\xf8-\u037d\u037f-\u1fff\u203f\u2040\u2070-\u218f\u2c00-\u2fef"
    r"\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff])."
)


def _block_attributes(block: Block, equation: jaxprs.JaxprEqn) -> dict[str, str]:
    count = block.results
    attributes = {
        "kind": block.kind,
        "name": block.name,
        "path": block.path,
        "type": short_name(block.target),
        "target": block.target,
        "method": block.method,
        "params": " ".join([name_below(path, block.path) for path in block.weights.values()]),
        **_shapes(equation.invars[: len(block.arguments)], equation.outvars[:count]),
    }
    if block.edited:
        attributes["edited"] = "True"
    for name, value in block.config.items():
        attributes[f"config.{name}" if name in attributes else _tag(name)] = value_text(value)
    if "features" not in attributes and "out_features" in attributes:
        attributes["features"] = attributes["out_features"]
    return attributes


def name_below(path: str, base: str) -> str:
    """Return the name of a parameter below a block; what comes before is the argument that it is in.

    >>> name_below("mlp.up.kernel", "mlp"), name_below("variables.params.mlp.up.kernel", "mlp")
    ('up.kernel', 'up.kernel')
    """
    if not base:
        return path
    if path.startswith(f"{base}."):
        return path[len(base) + 1 :]
    before, separator, name = path.partition(f".{base}.")
    return name if separator else before


def _attributes(equation: jaxprs.JaxprEqn) -> dict[str, str]:
    attributes = _shapes(equation.invars, equation.outvars)
    for name, value in jaxprs.parameters(equation).items():
        kind = type(value)
        if kind in _PLAIN:
            text = _tuple_text(value) if kind is tuple else _known_text(value)
            attributes[f"config.{name}" if name in attributes else name] = text
    return attributes


def _shapes(inputs: Sequence[Atom], outputs: Sequence[Atom]) -> dict[str, str]:
    input_texts = [shape_text(aval_of(atom))[2] for atom in inputs]
    if len(outputs) == 1:
        dtype, shape, text = shape_text(aval_of(outputs[0]))
        return {"shape": shape, "dtype": dtype, "inputs": "; ".join(input_texts), "outputs": text}
    dtype, shape = shape_text(aval_of(outputs[0]))[:2] if outputs else ("", "")
    made = [shape_text(aval_of(atom))[2] for atom in outputs]
    return {"shape": shape, "dtype": dtype, "inputs": "; ".join(input_texts), "outputs": "; ".join(made)}


@lru_cache(maxsize=4096)
def _shape_text(dtype: DTypeLike, shape: tuple) -> tuple[str, str, str]:
    sizes = ",".join(map(str, shape))
    return str(dtype), sizes, f"{dtype}[{sizes}]"


def shape_text(aval: Aval) -> tuple[str, str, str]:
    """Return the dtype of an aval, its shape, and both, as text.

    >>> import jax
    >>> shape_text(jax.typeof(np.zeros((2, 3), np.float32)))
    ('float32', '2,3', 'float32[2,3]')
    """
    try:
        return _shape_text(aval.dtype, aval.shape)
    except AttributeError:  # a token, or a key of random numbers
        return str(aval), "", str(aval)


_SCALARS = frozenset({str, int, float, bool})
_PLAIN = _SCALARS | {tuple, np.dtype}


def joined(config: Mapping[str, object]) -> dict[str, object]:
    """Return a config as it is shown: lists, whose elements are fields of their own, in one piece.

    >>> joined({"pads.0": 1, "pads.1": 2, "group": 1, "padding.1": 0})
    {'pads': [1, 2], 'group': 1, 'padding.1': 0}
    """
    elements: dict[str, list[str]] = {}
    for key in config:
        name, _, index = key.rpartition(".")
        if name and index.isdecimal():
            elements.setdefault(name, []).append(index)
    lists = {name for name, found in elements.items() if found == [*map(str, range(len(found)))] and name not in config}
    shown: dict[str, object] = {}
    for key, value in config.items():
        name, _, index = key.rpartition(".")
        if name not in lists or not index.isdecimal():
            shown[key] = value
        elif name not in shown:
            shown[name] = [config[f"{name}.{each}"] for each in elements[name]]
    return shown


def value_text(value: object) -> str:
    """Return a config field or a param as the text of an attribute: functions and types by their names.

    >>> import jax
    >>> value_text((3, 3)), value_text(np.float32), value_text(jax.nn.gelu)
    ('(3, 3)', 'float32', 'jax._src.nn.functions.gelu')
    """
    if type(value) in _SCALARS:
        return _known_text(value)
    # What holds other values is equal to another whose text differs: (1,) and (True,).
    if isinstance(value, (tuple, Mapping)):
        return _value_text(value)
    try:
        return _known_text(value)
    except TypeError:  # a value that has no hash
        return _value_text(value)


def _float_text(value: float) -> str:
    """Return a number as it was written: what comes from a file in single precision has that type's digits.

    >>> _float_text(9.999999747378752e-06), _float_text(0.1), _float_text(1e300)
    ('1e-05', '0.1', '1e+300')
    """
    if abs(value) > float(np.finfo(np.float32).max):
        return str(value)
    narrow = np.float32(value)
    return str(narrow) if float(narrow) == value else str(value)


def _value_text(value: object) -> str:
    if type(value) is tuple:
        return _tuple_text(value)
    if type(value) is float:
        return _float_text(value)
    if type(value) in _SCALARS:
        return str(value)
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value).name
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value_text(item)}" for key, item in value.items())
    if callable(value) and not isinstance(value, np.dtype):
        dtype = getattr(value, "dtype", None)  # `jnp.float32` is an object around a dtype
        return dtype.name if isinstance(dtype, np.dtype) else public_name(value, ())
    return str(value)


def _tuple_text(value: tuple) -> str:
    if any(isinstance(item, np.generic) for item in value):
        value = tuple([item.item() if isinstance(item, np.generic) else item for item in value])
    return str(value)


# Layers of a kind have the same fields. (`typed`: 1 and True are equal, but not the same text.)
_known_text = lru_cache(maxsize=4096, typed=True)(_value_text)
