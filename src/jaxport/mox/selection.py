"""What a query found, as a value: counted, narrowed, looked at, replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jaxport.errors import InvalidArgument, QueryError
from jaxport.mox.tree import Node
from jaxport.mox.xpath import compiled

if TYPE_CHECKING:
    from jaxport.mox.match import Match
    from jaxport.mox.mox import Mox

__all__ = ["Selection", "query", "select", "sub"]


@dataclass(frozen=True, eq=False)
class Selection:
    """Blocks and equations of a Mox, in the order of the program. Each of them is a Mox itself.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(lambda x: jnp.sin(x) + jnp.cos(x))(jnp.zeros(3))
    >>> found = mox.select("//sin | //cos")
    >>> found.count(), found.paths(), found.where(lambda match: match.type == "cos").paths()
    (2, ['sin', 'cos'], ['cos'])
    >>> sin = found[0]
    >>> sin(jnp.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    """

    mox: Mox
    nodes: tuple[Node, ...]
    query: str = ""

    @cached_property
    def _matches(self) -> list[Match]:
        from jaxport.mox.match import match_of

        return [match_of(self.mox, node) for node in self.nodes]

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Match]:
        return iter(self._matches)

    def __getitem__(self, index: int) -> Match:
        return self._matches[index]

    def __repr__(self) -> str:
        rows = [f"  {node.type:<16} {node.path}" for node in self.nodes]
        return "\n".join([f"{len(rows)} of `{self.mox.name}` for {self.query}", *rows])

    def count(self) -> int:
        """How many there are."""
        return len(self.nodes)

    def paths(self) -> list[str]:
        """The path of each; of an equation, that of the block around it and its name."""
        return [node.path for node in self.nodes]

    def where(self, predicate: Callable[[Match], Any]) -> Selection:
        """Those for which the predicate holds."""
        kept = tuple(node for node, match in zip(self.nodes, self, strict=True) if predicate(match))
        return replace(self, nodes=kept, query=f"{self.query}, narrowed")

    def expect(self, count: int) -> Selection:
        """The selection itself, if it has so many members.

        Raises:
          QueryError: it has another number.
        """
        if count != len(self.nodes):
            raise QueryError(
                f"{self.query} hits {len(self.nodes)}, not {count}",
                where=f"`{self.mox.name}`",
                why=_hits(self.paths()) or _near(self.mox, self.query),
                instead="`print(mox)` shows what there is",
            )
        return self

    # -- edits -----------------------------------------------------------------------------------------------------

    def sub(self, replacement: Any) -> Mox:
        """A new Mox with each member replaced.

        Args:
          replacement: a function, a module or a Mox that takes the arrays that the member takes, and returns what it
            returns; or a `factory`, which is called with each member and returns one of these; or a `Replacement`.

        Raises:
          QueryError: there are no members.
          InvalidArgument: the replacement takes or returns something else than the member.
          Unsupported: a member is where nothing can be replaced.
        """
        from jaxport.mox.editing import substituted

        if not self.nodes:
            raise QueryError(
                f"{self.query} hits nothing, so nothing would be replaced",
                where=f"`{self.mox.name}`",
                why=_near(self.mox, self.query),
                instead="`print(mox)` shows what there is",
            )
        return substituted(self, replacement)

    def wrap(self, function: Callable[..., Any]) -> Mox:
        """A new Mox in which each member's call becomes ``function(member, *args)``.

        >>> import jax.numpy as jnp, jaxport
        >>> mox = jaxport.make_mox(lambda x: jnp.cos(x) + 1)(jnp.zeros(3))
        >>> mox.select("//cos").wrap(lambda cos, x: 2 * cos(x))(jnp.zeros(3))
        Array([3., 3., 3.], dtype=float32)
        """
        from jaxport.mox.replacement import factory

        return self.sub(factory(lambda match: lambda *args: function(match, *args)))

    def before(self, function: Callable[..., Any]) -> Mox:
        """A new Mox in which each member is given what `function` makes of its arguments: one value, or a tuple."""

        def wrapped(match: Match, *args: Any) -> Any:
            made = function(*args)
            return match(*made) if isinstance(made, tuple) else match(made, *args[1:])

        return self.wrap(wrapped)

    def after(self, function: Callable[..., Any]) -> Mox:
        """A new Mox in which `function` is applied to what each member returns."""
        return self.wrap(lambda match, *args: function(match(*args)))

    def remove(self) -> Mox:
        """A new Mox in which each member hands its first arguments on.

        Raises:
          InvalidArgument: the results of a member are not of the shapes and dtypes of its first arguments.
        """
        from jaxport.mox.replacement import factory

        def passing(match: Match) -> Callable[..., Any]:
            count = len(match.traced.output_paths)
            return lambda *args: args[0] if count == 1 else tuple(args[:count])

        return self.sub(factory(passing))

    def tap(self) -> Mox:
        """A new Mox that returns a pair: the result, and what the members returned, by path."""
        from jaxport.mox.capture import tapped

        return tapped(self)


def select(mox: Mox, query: Any, expect: int | None = None) -> Selection:
    """See `Mox.select`."""
    if isinstance(query, Selection):
        if query.mox is not mox:
            raise InvalidArgument(
                "the selection is of another Mox",
                where="`Mox.select`",
                why="an edit makes a new Mox, in which things are elsewhere",
                instead="select again: `edited.select(...)`",
            )
        found = query
    elif isinstance(query, str):
        found = Selection(mox, _by_xpath(mox, query), f"`{query}`")
    elif isinstance(query, type):
        from jaxport.blocks.window import target_of

        target = target_of(query)
        nodes = [node for node in mox.tree.nodes if node.block is not None and node.block.target == target]
        found = Selection(mox, tuple(nodes), f"`{target}`")
    elif callable(query):
        found = Selection(mox, tuple(mox.tree.nodes), "everything").where(query)
    else:
        raise InvalidArgument(
            f"{query!r} is no query",
            where="`Mox.select`",
            instead="give an XPath expression, a module class, or a predicate",
        )
    return found if expect is None else found.expect(expect)


def _by_xpath(mox: Mox, query: str) -> tuple[Node, ...]:
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

    tree = mox.tree
    try:
        result = compiled(query)(tree.root)
    except etree.XPathError as error:
        raise QueryError(f"`{query}` cannot be evaluated", why=str(error)) from error
    if not isinstance(result, list) or any(not etree.iselement(item) for item in result):
        what = "attributes or text" if isinstance(result, list) else f"the value {result!r}"
        raise QueryError(
            f"`{query}` gives {what}, no elements", where=f"`{mox.name}`", instead="end the query with a name or `*`"
        )
    # The root and the elements of bodies stand for no equation.
    return tuple(tree.node_of[element] for element in result if element in tree.node_of)


def _hits(paths: Sequence[str]) -> str:
    shown = ", ".join(f"`{path}`" for path in paths[:5])
    return f"it hits {shown}{', …' if len(paths) > 5 else ''}" if paths else ""


def _near(mox: Mox, query: str) -> str:
    """The names in the Mox that are most like those in the query."""
    import difflib
    import re

    known = {node.type for node in mox.tree.nodes}
    words = [word for word in re.findall(r"[A-Za-z_]\w+", query) if word not in known]
    near = sorted({name for word in words for name in difflib.get_close_matches(word, known, n=3)})
    return f"there are {', '.join(f'`{name}`' for name in near)}" if near else ""


def query(xpath: Any, mox: Mox, *, expect: int | None = None) -> Selection:
    """What a query hits in a Mox: ``mox.select(xpath)``.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(jnp.sin)(jnp.zeros(3))
    >>> jaxport.mox.query("//sin", mox).count()
    1
    """
    return mox.select(xpath, expect=expect)


def sub(xpath: Any, replacement: Any, mox: Mox, *, expect: int | None = None) -> Mox:
    """A new Mox with what the query hits replaced: ``mox.sub(xpath, replacement)``.

    >>> import jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(jnp.sin)(jnp.zeros(3))
    >>> jaxport.mox.sub("//sin", jnp.cos, mox)(jnp.zeros(3))
    Array([1., 1., 1.], dtype=float32)
    """
    return mox.sub(xpath, replacement, expect=expect)
