"""What a query found, as a value: counted, narrowed, looked at, replaced."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxport.blocks.callables.places import joined
from jaxport.errors import InvalidArgument, QueryError
from jaxport.jaxprs import PythonFunction
from jaxport.mox.programs.aliases import Query
from jaxport.mox.querying.names import check, near
from jaxport.mox.querying.tree import Node
from jaxport.mox.querying.xpath import Compiled, compiled
from jaxport.printable import printable

if TYPE_CHECKING:
    from lxml.etree import _Element

    from jaxport.mox.programs.mox import Mox
    from jaxport.mox.querying.match import Match

__all__ = ["Selection", "at_path", "query", "select", "sub"]


@dataclass(frozen=True, eq=False)
class Selection:
    """Blocks and equations of a Mox, in the order of the program. Each of them is itself a Mox.

    Attributes:
      mox: the Mox.
      nodes: the places of the members in the program.
      query: the query that selected them, for messages.
      is_path: whether the query is a path; the path of a layer is also that of the edits around it.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(lambda x: jnp.sin(x) + jnp.cos(x))(jnp.zeros(3))
    >>> waves = mox.select("//sin | //cos")
    >>> waves.count(), waves.paths(), waves.where(lambda match: match.type == "cos").paths()
    (2, ['sin', 'cos'], ['cos'])
    >>> sin = waves[0]
    >>> sin(jnp.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    """

    mox: Mox
    nodes: tuple[Node, ...]
    query: str = ""
    is_path: bool = False

    def layers(self) -> Selection:
        """Return the members, but a layer instead of the edits around it if the layer was selected as well.

        A path selects both; an edit that was selected on its own (`//lora`) stays.
        """
        chosen = set(self.nodes)
        if self.is_path:
            chosen |= {node for node in self.mox.tree.nodes if not chosen.isdisjoint(_edits_around(node))}
        around = {edit for node in chosen for edit in _edits_around(node)}
        nodes = _in_order(chosen - around)
        return self if nodes == self.nodes else replace(self, nodes=nodes)

    @cached_property
    def _matches(self) -> list[Match]:
        from jaxport.mox.querying.match import match_of

        return [match_of(self.mox, node) for node in self.nodes]

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Match]:
        return iter(self._matches)

    def __getitem__(self, index: int) -> Match:
        return self._matches[index]

    def __repr__(self) -> str:
        rows = [f"  {node.type:<16} {node.path}" for node in self.nodes]
        return "\n".join(map(printable, [f"{len(rows)} of `{self.mox.name}` for {self.query}", *rows]))

    def count(self) -> int:
        """Return the number of members."""
        return len(self.nodes)

    def paths(self) -> list[str]:
        """Return the path of each member; for an equation, the path of the enclosing block and the name of the equation."""
        return [node.path for node in self.nodes]

    def where(self, predicate: Callable[[Match], object]) -> Selection:
        """Return the members for which the predicate holds."""
        kept = tuple(node for node, match in zip(self.nodes, self, strict=True) if predicate(match))
        return replace(self, nodes=kept, query=f"{self.query}, narrowed")

    def expect(self, count: int) -> Selection:
        """Return the selection itself if it has `count` members.

        Raises:
          QueryError: it has another number.
        """
        if count != len(self.nodes):
            raise QueryError(
                f"{self.query} matches {len(self.nodes)}, not {count}",
                where=f"`{self.mox.name}`",
                why=_hits(self.paths()) or _near(self.mox, self.query),
                instead="`print(mox)` shows what there is",
            )
        return self

    def select(self, query: Query, *, expect: int | None = None, strict: bool = True) -> Selection:
        """Return what a query matches inside the members; expressions and paths are relative to each member.

        >>> import jax, jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(jax.jit(lambda x: jnp.sin(jnp.cos(x))))(jnp.zeros(3))
        >>> mox.select("//jit").select("./sin").paths()
        ['sin']
        """
        is_path = False
        if isinstance(query, str):
            nodes, is_path = self._inside(query, strict)
            shown = f"`{query}`"
        else:
            whole, members = select(self.mox, query, strict=strict), set(self.nodes)
            nodes, shown = tuple(n for n in whole.nodes if not members.isdisjoint(n.around)), whole.query
        selection = replace(self, nodes=nodes, query=f"{shown} in {self.query}", is_path=is_path)
        return selection if expect is None else selection.expect(expect)

    def _inside(self, query: str, strict: bool) -> tuple[tuple[Node, ...], bool]:
        """Return the nodes that an expression, or a path below a member, matches, and whether it is a path."""
        at_paths = [self.mox.tree.paths.get(joined(node.path, query), ()) for node in self.nodes]
        if query and any(at_paths):
            return _in_order({node for nodes in at_paths for node in nodes}), True
        elements = [self.mox.tree.element_of[node] for node in self.nodes]
        return _by_xpath(self.mox, query, elements, strict), False

    def __or__(self, other: Selection) -> Selection:
        """Return the members of both, in the order of the program."""
        nodes = _in_order({*self.nodes, *self._same(other).nodes})
        either = self.is_path or self._same(other).is_path
        return replace(self, nodes=nodes, query=f"{self.query} or {other.query}", is_path=either)

    def __and__(self, other: Selection) -> Selection:
        """Return the members that are in both."""
        kept = set(self._same(other).nodes)
        nodes = tuple(node for node in self.nodes if node in kept)
        return replace(self, nodes=nodes, query=f"{self.query} and {other.query}")

    def __sub__(self, other: Selection) -> Selection:
        """Return the members that are not in the other."""
        gone = set(self._same(other).nodes)
        nodes = tuple(node for node in self.nodes if node not in gone)
        return replace(self, nodes=nodes, query=f"{self.query} but not {other.query}")

    def _same(self, other: Selection) -> Selection:
        if not isinstance(other, Selection):
            raise InvalidArgument(
                f"a selection and a `{type(other).__name__}` cannot be combined",
                where="`Selection`",
                instead="select first: `layers | mox.select(...)`",
            )
        return select(self.mox, other)

    # -- edits -----------------------------------------------------------------------------------------------------

    def sub(self, replacement: object) -> Mox:
        """Return a new Mox with each member replaced.

        Args:
          replacement: a function, a module or a Mox that takes the arrays that the member takes, and returns what it
            returns; or a `factory`, which is called with each member and returns one of these; or a `Replacement`.

        Raises:
          QueryError: there are no members.
          InvalidArgument: the replacement does not take or return the same arrays as the member.
          Unsupported: a member cannot be replaced, because of the body that contains it.
        """
        from jaxport.mox.substitution.editing import substituted
        from jaxport.mox.substitution.replacement import changes_layers

        if not self.nodes:
            raise QueryError(
                f"{self.query} matches nothing, so nothing would be replaced",
                where=f"`{self.mox.name}`",
                why=_near(self.mox, self.query),
                instead="`print(mox)` shows what there is",
            )
        return substituted(self.layers() if changes_layers(replacement) else self, replacement)

    def wrap(self, function: PythonFunction) -> Mox:
        """Return a new Mox in which each member's call becomes ``function(member, *args)``.

        >>> import jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(lambda x: jnp.cos(x) + 1)(jnp.zeros(3))
        >>> mox.select("//cos").wrap(lambda cos, x: 2 * cos(x))(jnp.zeros(3))
        Array([3., 3., 3.], dtype=float32)
        """
        from jaxport.mox.substitution.replacement import factory

        return self.sub(factory(lambda match: lambda *args: function(match, *args)))

    def before(self, function: PythonFunction) -> Mox:
        """Return a new Mox in which `function` maps the arguments of each member to new ones: one value, or a tuple."""

        def wrapped(match: Match, *args: object) -> object:
            made = function(*args)
            return match(*made) if isinstance(made, tuple) else match(made, *args[1:])

        return self.wrap(wrapped)

    def after(self, function: PythonFunction) -> Mox:
        """Return a new Mox in which `function` is applied to the output of each member."""
        return self.wrap(lambda match, *args: function(match(*args)))

    def residual(self, function: PythonFunction) -> Mox:
        """Return a new Mox that adds `function` of each member's arguments to the member's output.

        >>> import jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(lambda x: jnp.cos(x) + 1)(jnp.zeros(3))
        >>> mox.select("//cos").residual(lambda x: x + 2)(jnp.zeros(3))
        Array([4., 4., 4.], dtype=float32)
        """
        return self.wrap(lambda match, *args: jax.tree.map(jnp.add, match(*args), function(*args)))

    def remove(self) -> Mox:
        """Return a new Mox in which each member returns its first arguments unchanged.

        Raises:
          InvalidArgument: the results of a member do not have the shapes and dtypes of its first arguments.
        """
        from jaxport.mox.substitution.replacement import factory

        def passing(match: Match) -> PythonFunction:
            count = len(match.traced.output_paths)
            return lambda *args: args[0] if count == 1 else tuple(args[:count])

        return self.sub(factory(passing))

    def tap(self) -> Mox:
        """Return a new Mox that returns a pair: the result, and the outputs of the members by path, in their order."""
        from jaxport.mox.substitution.capture import tapped

        return tapped(self)


def select(mox: Mox, query: Query, expect: int | None = None, strict: bool = True) -> Selection:
    """See `Mox.select`."""
    if isinstance(query, Selection):
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
        nodes = _by_xpath(mox, query, [mox.tree.root], strict) if at_path is None else at_path
        selection = Selection(mox, nodes, f"`{query}`", is_path=at_path is not None)
    elif isinstance(query, type):
        selection = _by_class(mox, query, strict)
    elif callable(query):
        selection = Selection(mox, tuple(mox.tree.nodes), "everything").where(query)
    else:
        raise InvalidArgument(
            f"{query!r} is not a query",
            where="`Mox.select`",
            instead="give an XPath expression, a module class, or a predicate",
        )
    return selection if expect is None else selection.expect(expect)


def at_path(mox: Mox, path: str) -> Match:
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
    return Selection(mox, tuple(nodes), f"`{path}`")[0]


def _by_class(mox: Mox, kind: type, strict: bool) -> Selection:
    """Return the calls of modules of a class, or of one derived from it."""
    from jaxport.blocks.marking.window import target_of

    kinds = {kind}
    waiting = [kind]
    while waiting:
        derived = type.__subclasses__(waiting.pop())
        waiting += [one for one in derived if one not in kinds]
        kinds.update(derived)
    targets = {target_of(one) for one in kinds}
    nodes = [node for node in mox.tree.nodes if node.block is not None and node.block.target in targets]
    if strict and not nodes:
        raise QueryError(
            f"no module of the class `{target_of(kind)}` is called",
            where=f"`{mox.name}`",
            why=near(kind.__name__, {node.type for node in mox.tree.nodes if node.block is not None}),
            instead="`print(mox)` shows what there is; `select(query, strict=False)` takes any class",
        )
    return Selection(mox, tuple(nodes), f"`{target_of(kind)}`")


_PATH = re.compile(r"\w+(\.[\w-]+)*")


def _by_path(mox: Mox, query: str, strict: bool) -> tuple[Node, ...] | None:
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


def _by_xpath(mox: Mox, query: str, elements: Sequence[_Element], strict: bool) -> tuple[Node, ...]:
    """Return the nodes that a query matches from some elements; each node once, in the order of the program."""
    tree, program = mox.tree, compiled(query)
    if strict:
        check(mox, query, program)
    hits: dict[Node, None] = {}
    for element in elements:
        # The root and the elements of bodies stand for no equation.
        elements_hit = _evaluated(mox, query, program, element)
        hits.update((tree.node_of[hit], None) for hit in elements_hit if hit in tree.node_of)
    return tuple(hits) if len(elements) == 1 else _in_order(hits)


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


def _evaluated(mox: Mox, query: str, program: Compiled, element: _Element) -> list[_Element]:
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


def _near(mox: Mox, query: str) -> str:
    """Return the names in the Mox that are most like those in the query."""
    known = {node.type for node in mox.tree.nodes}
    words = [word for word in re.findall(r"[A-Za-z_]\w+", query) if word not in known]
    return next((similar for word in words if (similar := near(word, known))), "")


def query(xpath: Query, mox: Mox, *, expect: int | None = None) -> Selection:
    """Return the blocks and equations that a query matches in a Mox: ``mox.select(xpath)``.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(jnp.sin)(jnp.zeros(3))
    >>> jaxport.mox.query("//sin", mox).count()
    1
    """
    return mox.select(xpath, expect=expect)


def sub(xpath: Query, replacement: object, mox: Mox, *, expect: int | None = None) -> Mox:
    """Return a new Mox with each match of the query replaced: ``mox.sub(xpath, replacement)``.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(jnp.sin)(jnp.zeros(3))
    >>> jaxport.mox.sub("//sin", jnp.cos, mox)(jnp.zeros(3))
    Array([1., 1., 1.], dtype=float32)
    """
    return mox.sub(xpath, replacement, expect=expect)
