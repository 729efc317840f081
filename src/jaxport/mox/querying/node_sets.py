"""What a query found, as a value: counted, narrowed, combined."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from jaxport.blocks.callables.places import joined
from jaxport.errors import InvalidArgument, QueryError
from jaxport.mox.programs.names import near
from jaxport.mox.programs.program import Program, TracedProgram
from jaxport.mox.programs.tree import Node
from jaxport.mox.querying.calls import Call
from jaxport.mox.querying.names import check
from jaxport.mox.querying.xpath import Compiled, compiled
from jaxport.printable import printable, shown

if TYPE_CHECKING:
    from lxml.etree import _Element


@dataclass(frozen=True, eq=False)
class NodeSet(Generic[Program, Call]):
    """Blocks and equations of a program, in its order. What users hold is a `Selection`; its docstring has the
    attributes.
    """

    mox: Program
    nodes: tuple[Node, ...]
    query: str = ""

    def layers(self) -> Self:
        """Return the members, but a layer itself instead of the layer with the edits around it.

        An edit that was selected on its own (`//lora`) stays.
        """
        chosen = {layer for node in self.nodes for layer in node.layers or (node,)}
        around = {edit for node in chosen for edit in _edits_around(node)}
        nodes = _in_order(chosen - around)
        return self if nodes == self.nodes else replace(self, nodes=nodes)

    @cached_property
    def _calls(self) -> Sequence[Call]:
        """The members as programs."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def __getitem__(self, index: int) -> Call:
        return self._calls[index]

    def __repr__(self) -> str:
        rows = [f"  {node.type:<16} {node.path}" for node in self.nodes]
        return shown("\n".join(map(printable, [f"{len(rows)} of `{self.mox.name}` for {self.query}", *rows])))

    def count(self) -> int:
        """Return the number of members."""
        return len(self.nodes)

    def paths(self) -> list[str]:
        """Return the path of each member; for an equation, the path of the enclosing block and the name of the
        equation.
        """
        return [node.path for node in self.nodes]

    def where(self, predicate: Callable[[Call], object]) -> Self:
        """Return the members for which the predicate holds."""
        kept = tuple(node for node, match in zip(self.nodes, self, strict=True) if predicate(match))
        return replace(self, nodes=kept, query=f"{self.query}, narrowed")

    def expect(self, count: int) -> Self:
        """Return the selection itself if it has `count` members.

        Raises:
          QueryError: it has another number.
        """
        if count != len(self.nodes):
            raise QueryError(
                f"{self.query} matches {len(self.nodes)}, not {count}",
                where=f"`{self.mox.name}`",
                why=_hits(self.paths()) or similar(self.mox, self.query),
                instead="`print(mox)` shows what there is",
            )
        return self

    def select(
        self, query: str | type | Self | Callable[[Call], object], *, expect: int | None = None, strict: bool = True
    ) -> Self:
        """Return what a query matches inside the members; expressions and paths are relative to each member.

        >>> import jax, jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(jax.jit(lambda x: jnp.sin(jnp.cos(x))))(jnp.zeros(3))
        >>> mox.select("//jit").select("./sin").paths()
        ['sin']
        """
        if isinstance(query, str):
            nodes, shown = self._inside(query, strict), f"`{query}`"
        else:
            whole, members = select(type(self), self.mox, query, strict=strict), {node.location for node in self.nodes}
            inside = (n for n in whole.nodes if not members.isdisjoint(around.location for around in n.around))
            nodes, shown = tuple(inside), whole.query
        selection = replace(self, nodes=nodes, query=f"{shown} in {self.query}")
        return selection if expect is None else selection.expect(expect)

    def _inside(self, query: str, strict: bool) -> tuple[Node, ...]:
        """Return the nodes that an expression, or a path below a member, matches."""
        at_paths = [self.mox.tree.paths.get(joined(node.path, query), ()) for node in self.nodes]
        if query and any(at_paths):
            return _in_order({node for nodes in at_paths for node in nodes})
        return _by_xpath(self.mox, query, self.nodes, strict)

    def __or__(self, other: Self) -> Self:
        """Return the members of both, in the order of the program."""
        nodes = _in_order({*self.nodes, *self._same(other).nodes})
        return replace(self, nodes=nodes, query=f"{self.query} or {other.query}")

    def __and__(self, other: Self) -> Self:
        """Return the members that are in both."""
        kept = set(self._same(other).nodes)
        nodes = tuple(node for node in self.nodes if node in kept)
        return replace(self, nodes=nodes, query=f"{self.query} and {other.query}")

    def __sub__(self, other: Self) -> Self:
        """Return the members that are not in the other."""
        gone = set(self._same(other).nodes)
        nodes = tuple(node for node in self.nodes if node not in gone)
        return replace(self, nodes=nodes, query=f"{self.query} but not {other.query}")

    def _same(self, other: Self) -> Self:
        if not isinstance(other, NodeSet):
            raise InvalidArgument(
                f"a selection and a `{type(other).__name__}` cannot be combined",
                where="`Selection`",
                instead="select first: `layers | mox.select(...)`",
            )
        return select(type(self), self.mox, other)


Nodes = TypeVar("Nodes", bound=NodeSet)


def select(
    kind: type[Nodes],
    mox: TracedProgram,
    query: str | type | Nodes | Callable[..., object],
    expect: int | None = None,
    strict: bool = True,
) -> Nodes:
    """See `Mox.select`."""
    if isinstance(query, kind):
        if query.mox is not mox:
            raise InvalidArgument(
                "the selection belongs to another Mox",
                where="`Mox.select`",
                why="an edit makes a new Mox, whose blocks have other places",
                instead="select again: `edited.select(...)`",
            )
        selection = query
    elif isinstance(query, str):
        at_path = _by_path(mox, query, strict)
        nodes = _by_xpath(mox, query, None, strict) if at_path is None else at_path
        selection = kind(mox, nodes, f"`{query}`")
    elif isinstance(query, type):
        selection = kind(mox, *_by_class(mox, query, strict))
    elif callable(query):
        selection = kind(mox, tuple(mox.tree.shown), "everything").where(query)
        if not selection.nodes and mox.tree.shown is not mox.tree.nodes:  # what only edits have
            selection = kind(mox, tuple(mox.tree.nodes), "everything").where(query)
    else:
        raise InvalidArgument(
            f"{query!r} is not a query",
            where="`Mox.select`",
            instead="give an XPath expression, a module class, or a predicate",
        )
    return selection if expect is None else selection.expect(expect)


def node_at(mox: TracedProgram, path: str) -> Node:
    """See `Mox.__getitem__`."""
    if not isinstance(path, str):
        raise InvalidArgument(
            f"{path!r} is not the path of a block",
            where=f"`{mox.name}[...]`",
            why=f"it is a `{type(path).__name__}`, and paths are text",
            instead='give a path, such as "layers.0"; `mox.select(query)[0]` is the first block that matches',
        )
    nodes = mox.tree.paths.get(path, ())
    if len(nodes) != 1:
        raise QueryError(
            f"`{path}` is {'called several times' if nodes else 'not the path of a block'}",
            where=f"`{mox.name}[...]`",
            why=f"there are {len(nodes)} calls" if nodes else near(path, mox.tree.paths),
            instead="`mox.select(path)` has all of them" if nodes else "`print(mox)` shows what there is",
        )
    return nodes[0]


def _by_class(mox: TracedProgram, kind: type, strict: bool) -> tuple[tuple[Node, ...], str]:
    """Return the calls of modules of a class, or of one derived from it, and the name of the class."""
    from jaxport.blocks.marking.window import target_of

    kinds = {kind}
    waiting = [kind]
    while waiting:
        derived = type.__subclasses__(waiting.pop())
        waiting += [one for one in derived if one not in kinds]
        kinds.update(derived)
    targets = {target_of(one) for one in kinds}
    nodes = [node for node in mox.tree.shown if node.block is not None and node.block.target in targets]
    if strict and not nodes:
        raise QueryError(
            f"no module of the class `{target_of(kind)}` is called",
            where=f"`{mox.name}`",
            why=near(kind.__name__, {node.type for node in mox.tree.nodes if node.block is not None}),
            instead="`print(mox)` shows what there is; `select(query, strict=False)` takes any class",
        )
    return tuple(nodes), f"`{target_of(kind)}`"


_PATH = re.compile(r"\w+(\.[\w-]+)*")


def _by_path(mox: TracedProgram, query: str, strict: bool) -> tuple[Node, ...] | None:
    """Return the nodes at a bare path, such as ``blocks.1.mlp``; None for other queries.

    A path that there is may have any characters.
    """
    nodes = (mox.tree.paths.get(joined(mox.base, query)) or mox.tree.paths.get(query)) if query else None
    if nodes is not None:
        return tuple(nodes)
    if not _PATH.fullmatch(query):
        return None
    names = mox.tree.names("target") | mox.tree.names("tag")
    if query in names or not ("." in query or query[0].isdecimal()):
        return None
    if strict:
        raise QueryError(
            f"there is nothing at `{query}`",
            where=f"`{mox.name}`",
            why=near(query, [*mox.tree.paths, *names]),
            instead="`print(mox)` shows what there is; `select(query, strict=False)` takes any path",
        )
    return ()


def _by_xpath(mox: TracedProgram, query: str, start: Sequence[Node] | None, strict: bool) -> tuple[Node, ...]:
    """Return the nodes that a query matches from some nodes, or the root; each node once, in the order of the
    program.
    """
    tree, program = mox.tree, compiled(query)
    if strict:
        check(mox, query, program)
    document = tree.model
    if any(name.text in tree.edits[name.kind] for name in program.names):
        document = tree.program
    if start is not None and any(node.location not in document.element_of for node in start):
        document = tree.program
    elements = [document.root] if start is None else [document.element_of[node.location] for node in start]
    hits: dict[Node, None] = {}
    for element in elements:
        # The root and the elements of bodies stand for no equation.
        for hit in _evaluated(mox, query, program, element):
            if (node := document.node_of.get(hit)) is not None:
                hits.update(dict.fromkeys((node, *document.twins.get(node, ()))))
    return tuple(hits) if len(elements) == 1 and not document.twins else _in_order(hits)


def _edits_around(node: Node) -> Iterator[Node]:
    """Yield the edits that were put around a layer, the innermost first."""
    for around in node.around if node.block is not None else ():
        edit = around.block
        if edit is None or node.block is None or edit.path != node.block.path:
            return
        if not (edit.edited and edit.kind == "function"):
            return
        yield around


def _in_order(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(sorted(nodes, key=lambda node: node.location))


def _evaluated(mox: TracedProgram, query: str, program: Compiled, element: _Element) -> list[_Element]:
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    try:
        result = program.evaluate(element)
    except (etree.XPathError, re.error) as error:
        raise QueryError(f"`{query}` cannot be evaluated", why=str(error)) from error
    if not isinstance(result, list) or any(not etree.iselement(item) for item in result):
        what = "attributes or text" if isinstance(result, list) else f"the value {result!r}"
        raise QueryError(
            f"`{query}` gives {what}, no elements", where=f"`{mox.name}`", instead="end the query with a name or `*`"
        )
    return result


def _hits(paths: Sequence[str]) -> str:
    shown = ", ".join(f"`{path}`" for path in paths[:5])
    return f"it matches {shown}{', …' if len(paths) > 5 else ''}" if paths else ""


def similar(mox: TracedProgram, query: str) -> str:
    """Return the names in the Mox that are most like those in the query."""
    known = {node.type for node in mox.tree.nodes}
    words = [word for word in re.findall(r"[A-Za-z_]\w+", query) if word not in known]
    return next((similar for word in words if (similar := near(word, known))), "")
