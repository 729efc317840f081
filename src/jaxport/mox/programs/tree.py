"""A Mox as a tree of XML elements: what XPath looks at.

There is one element per equation; a block is one, named by the short name of its type. The equations of the only body
of an equation are its children; if there are several bodies (`cond`, `while`), each is an element `body`. The values of
attributes are `printable`, as everything that is shown; so are the strings of a query, which may say either.

There are two such documents: of the program, and of the model, in which an edited layer is the element that it was
before, in its place, with its own children; the edits around it have no elements. A query is asked of the model, unless
it names an edit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from jax.typing import DTypeLike

from jaxport import jaxprs
from jaxport.blocks.block import Block, FrozenMapping
from jaxport.blocks.callables.framework import public_name
from jaxport.jaxprs import Atom, Aval, aval_of
from jaxport.jaxprs.body_inputs import body_names, runs_bodies
from jaxport.jaxprs.vmap_axes import Levels, Mapped, axes_of_batches, borne_by
from jaxport.jaxprs.walk import Location, bodies
from jaxport.printable import printable

if TYPE_CHECKING:
    from lxml.etree import _Element

#: Names that a query may use for a primitive, besides its own.
SPELLINGS = {"pjit": "jit", "remat": "checkpoint", "remat2": "checkpoint", "cond_p": "cond"}


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """An equation, and where it is.

    Attributes:
      location: index of an equation, index of a body in it, index of an equation in that, …
      equation: the equation itself; of an edited layer that of the outermost edit, with the layer's type and config.
      parent: the node whose body it is in; None at the root.
      layers: of an edited layer the calls of the layer itself inside of all edits, or the equation; else none.
    """

    location: Location
    equation: jaxprs.JaxprEqn
    parent: Node | None
    layers: tuple[Node, ...] = ()

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


class Document:
    """The elements of a program; `node_of` has the node of each, in document order."""

    def __init__(self, name: str, jaxpr: jaxprs.Jaxpr, known: Mapping[Location, Node] | None = None):
        from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

        writer = _TreeWriter(known)
        writer.open("mox", {"name": name})
        writer.body(jaxpr, (), None)
        writer.close("mox")
        # Parsing one text is several times faster than making the elements one by one.
        parser = etree.XMLParser(huge_tree=True, resolve_entities=False)
        self.root: _Element = etree.fromstring("".join(writer.text).encode(), parser)
        # An element is the same object as long as somebody holds it.
        written = zip(self.root.iter(), writer.nodes, strict=True)
        self.node_of: dict[_Element, Node] = {element: node for element, node in written if node is not None}
        self.twins: Mapping[Node, Sequence[Node]] = writer.twins

    @cached_property
    def element_of(self) -> Mapping[Location, _Element]:
        """The element of each node, by its location."""
        return {node.location: element for element, node in self.node_of.items()}

    def names(self, kind: str) -> frozenset[str]:
        """Return all names of a kind that elements have: "tag", "target", "attribute", or a "string" that is one of the
        first.
        """
        return self._names[kind]

    @cached_property
    def _names(self) -> dict[str, frozenset[str]]:
        elements = list(self.root.iter())
        names = {
            "tag": frozenset(str(element.tag) for element in elements),
            "target": frozenset(node.block.target for node in self.node_of.values() if node.block is not None),
            "attribute": frozenset(str(name) for element in elements for name in element.attrib),
        }
        return {**names, "string": names["tag"] | names["target"]}


class Tree:
    """The nodes of a program, and its elements.

    Attributes:
      program: the elements of all equations.
      model: the elements of the model as it was before edits; the same document if there are none around its layers.
      nodes: all nodes, in document order.
      shown: those of the model.
    """

    def __init__(self, name: str, jaxpr: jaxprs.Jaxpr):
        self.program = self.model = Document(name, jaxpr)
        self.nodes: Sequence[Node] = list(self.program.node_of.values())
        self.shown = self.nodes
        if any(_is_edit(node.equation) for node in self.nodes):
            self.model = Document(name, jaxpr, {node.location: node for node in self.nodes})
            shown = [*self.model.node_of.values(), *(twin for twins in self.model.twins.values() for twin in twins)]
            self.shown = sorted(shown, key=lambda node: node.location)

    def names(self, kind: str) -> frozenset[str]:
        """Return all names of a kind that elements have: "tag", "target" or "attribute"."""
        return self.program.names(kind)

    @cached_property
    def edits(self) -> Mapping[str, frozenset[str]]:
        """The names of each kind that only edits have, and the blocks in them."""
        kinds = ("tag", "target", "attribute", "string")
        if self.model is self.program:
            return dict.fromkeys(kinds, frozenset())
        blocks = [element for element, node in self.program.node_of.items() if node.block is not None]
        names = {str(name) for element in blocks for name in (element.tag, *element.attrib)}
        names |= self.program.names("target")
        return {kind: (self.program.names(kind) - self.model.names(kind)) & names for kind in kinds}

    @cached_property
    def paths(self) -> Mapping[str, Sequence[Node]]:
        """The nodes by path: of each path the blocks, and if there is none the equations; of nested ones the outer.

        What only edits have is at a path that the model has nothing at.
        """
        return _by_path(self.nodes) if self.shown is self.nodes else {**_by_path(self.nodes), **_by_path(self.shown)}

    @cached_property
    def _emitted(self) -> Counter[Mapped]:
        """How many equations bear each record of an operation under `vmap`."""
        return Counter(record for node in self.nodes for record in borne_by(node.equation))

    def axes_of(self, node: Node) -> Levels | None:
        """Return the axes of the batch of each array of a call, for each `vmap` around it; None if these are not
        known.
        """
        if node.block is not None:
            return node.block.axes
        return axes_of_batches(node.equation, lambda record: self._emitted[record] == 1)


def _by_path(nodes: Sequence[Node]) -> dict[str, Sequence[Node]]:
    blocks: dict[str, list[Node]] = {}
    equations: dict[str, list[Node]] = {}
    for node in nodes:
        same_path = (equations if node.block is None else blocks).setdefault(node.path, [])
        places = {one.location for one in same_path}
        if not places or not any(around.location in places for around in node.around):
            same_path.append(node)
    return {**equations, **blocks}


WRAPPED = "wrapped"
"""The option of a block that an edit was put around: it is still the layer that the model has there."""

AROUND = "around"
"""The option of an edit around an equation: the name of its primitive, and which of these in the edit it is."""


def _is_edit(equation: jaxprs.JaxprEqn) -> bool:
    """Whether an equation is an edit around a layer, or an equation, that may be inside of it."""
    block = equation.params.get("block")
    return block is not None and block.edited and block.kind == "function"


def equations_by_name(jaxpr: jaxprs.Jaxpr, names: Container[str], before: Location = ()) -> Iterator[Location]:
    """Yield the locations of the equations of some primitives, at any depth."""
    for index, equation in enumerate(jaxpr.eqns):
        if equation.primitive.name in names:
            yield (*before, index)
        for number, body in enumerate(bodies(equation.params)):
            yield from equations_by_name(body, names, (*before, index, number))


def _layers(edit: Node, known: Mapping[Location, Node]) -> tuple[Node, ...]:
    """Return the calls of the layer, or the equation, that edits were put around; none if the node is no such edit."""
    block = edit.block
    if block is None or not _is_edit(edit.equation):
        return ()
    body, inside = edit.equation.params["jaxpr"].jaxpr, (*edit.location, 0)
    if AROUND in block.options:
        name, numbers = block.options[AROUND]
        found = [*equations_by_name(body, (name,))]
        return tuple(known[*inside, *found[number]] for number in numbers if number < len(found))
    calls = [known[*inside, *place] for place in _wrapped(body, block.path)]
    return tuple(layer for call in calls for layer in _layers(call, known) or (call,))


def _wrapped(jaxpr: jaxprs.Jaxpr, path: str, before: Location = ()) -> Iterator[Location]:
    """Yield the locations of the outermost blocks in an edit of a layer that it was put around."""
    for index, equation in enumerate(jaxpr.eqns):
        block = equation.params.get("block")
        if block is not None and block.path == path and WRAPPED in block.options:
            yield (*before, index)
            continue
        for number, body in enumerate(bodies(equation.params)):
            yield from _wrapped(body, path, (*before, index, number))


def _edited_layer(edit: Node, layers: tuple[Node, ...]) -> Node:
    """Return the node of a layer with all edits around it."""
    layer, block = layers[0], edit.equation.params["block"]
    if (own := layer.block) is not None:
        block = replace(block, target=own.target, kind=own.kind, method=own.method, config=own.config)
    else:
        block = replace(block, target=layer.type, config=FrozenMapping(jaxprs.parameters(layer.equation)))
    equation = edit.equation.replace(params={**edit.equation.params, "block": block})
    return Node(edit.location, equation, edit.parent, layers)


class _TreeWriter:
    """The text of the elements, and for each the node that it stands for: none for the program and for bodies.

    With the nodes of the program by location, those are written that a model has without the edits around its layers.
    Where an edit calls a layer twice, what is in the other call is a twin of what is in the first.
    """

    def __init__(self, known: Mapping[Location, Node] | None = None) -> None:
        self.text: list[str] = []
        self.nodes: list[Node | None] = []
        self.twins: dict[Node, list[Node]] = {}
        self._known = known
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
        known = self._known
        for index, equation in enumerate(jaxpr.eqns):
            location = (*before, index)
            node = Node(location, equation, around) if known is None else known[location]
            layers = () if known is None else _layers(node, known)
            if layers:
                self.element(layers[0], _edited_layer(node, layers))
                self.pair(layers)
            elif "block" in equation.params or runs_bodies(equation):
                self.element(node, node)
            else:
                self.nodes.append(node)
                self.text.append(self.leaf(equation))

    def element(self, node: Node, shown: Node) -> None:
        """Write the element of a node, and those in it; `shown` is what it stands for."""
        equation, block = node.equation, node.block
        tag = spelled(equation.primitive.name) if block is None else _tag(short_name(block.target))
        attributes = _attributes(equation) if block is None else _block_attributes(block, equation)
        self.open(tag, attributes if shown is node else {**attributes, "edited": "True"}, shown)
        inner = bodies(equation.params) if block is not None or runs_bodies(equation) else ()
        for number, body in enumerate(inner):
            if len(inner) > 1:
                self.open("body", {"name": body_names(equation)[number]})
            self.body(body, (*node.location, number), node)
            if len(inner) > 1:
                self.close("body")
        self.close(tag)

    def pair(self, layers: Sequence[Node]) -> None:
        """Find the twins of what was written of the first call of a layer in the others."""
        first, known = layers[0].location, self._known or {}
        inside = [n for n in self.nodes if n is not None and n.location[: len(first)] == first] if layers[1:] else []
        for node in inside:
            for layer in layers[1:]:
                twin = known.get((*layer.location, *node.location[len(first) :]))
                if twin is not None and twin.path == node.path and twin.equation.primitive is node.equation.primitive:
                    found = _layers(twin, known)
                    twin = _edited_layer(twin, found) if found and node.layers else twin
                    self.twins.setdefault(node, []).append(twin)

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
        "params": " ".join([name_below(path, block.path) for _, path in sorted(block.named.items())]),
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
