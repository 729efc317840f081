"""Blocks: the data of a `block` equation.

A block is one call with a boundary: a module call, a decorated function, or a library function whose meaning is worth
keeping whole. In a jaxpr it is one equation of the primitive `block_p`, with the params ``{"jaxpr": ClosedJaxpr without
consts, "block": Block}``. Such an equation is data and is never bound; to evaluate a jaxpr with blocks, `ungroup` it
first.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, replace
from typing import Any

from jaxport import jaxprs
from jaxport.jaxprs import Parameters


class FrozenMapping(Mapping[Any, Any]):
    """An immutable mapping, hashable if its values are, equal to any mapping with the same items.

    >>> FrozenMapping({"features": 10})
    FrozenMapping({'features': 10})
    >>> hash(FrozenMapping(a=1)) == hash(FrozenMapping({"a": 1}))
    True
    """

    __slots__ = ("_items",)

    def __init__(self, items: Mapping | None = None, /, **more: object):
        self._items = dict(items or {}, **more)

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator:
        return iter(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    # The mixin methods of `Mapping` are slow.
    def items(self) -> ItemsView:
        """Return the items, as a dict does."""
        return self._items.items()

    def values(self) -> ValuesView:
        """Return the values, as a dict does."""
        return self._items.values()

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenMapping({self._items!r})"

    def __reduce__(self) -> tuple:
        return FrozenMapping, (self._items,)


def freeze(value: object) -> Any:
    """Return `value` with its lists, dicts and sets, also nested ones, replaced by immutable ones.

    >>> freeze({"axes": [0, 1]})
    FrozenMapping({'axes': (0, 1)})
    """
    if isinstance(value, list) or type(value) is tuple:
        return tuple(freeze(item) for item in value)
    if isinstance(value, dict | FrozenMapping):
        return FrozenMapping({key: freeze(item) for key, item in value.items()})
    if isinstance(value, set):
        return frozenset(value)
    return value


@dataclass(frozen=True)
class Block:
    """The call that a `block` equation represents.

    Attributes:
      target: the qualified public name of the callable: ``flax.nnx.Linear``, ``jax.nn.gelu``, ``my.pkg.encoder``.
      name: the last element of `path`, or the short type name at the root.
      path: the path of the module in the user's model, ``layers.0.attn.query``; empty for the root.
      kind: ``"module"`` or ``"function"``.
      method: the called method, usually ``"__call__"``; empty for functions.
      config: the static fields of the module and the static arguments of the call.
      weights: index of an input of the block -> the path of that parameter in the user's pytree. Inside a scan the
        input is the slice of that parameter that belongs to the step.
      options: the options of the decorator that made this boundary.
      arguments: the name of each array argument of the call (``x``, ``batch.ids``), in order: they are the first
        inputs of the block, one input per argument; parameters and closed-over values follow.
      results: the number of the block's outputs that are results of the call; they come first. Values made inside and
        used outside follow, in the order of their definition.
      batched: the number of `vmap` levels applied to the boundary. The arrays inside have that many extra axes, so
        `config` may no longer describe them.
      axes: for each of these levels, the innermost first, the batched axis of each argument and of each result (None
        for those without one); None if the arguments do not tell, being less batched than the results.
      returns: the path of each result in the returned value: ``""`` for a bare array, ``0``, ``logits``.
      edited: whether the block, or something inside it, was replaced: `target` no longer describes it.
      exchanged: index of an input of the block -> the path of the parameter that an edit replaced by it: a computed
        value, such as a dequantized weight.

    >>> Block("flax.nnx.Linear", name="query", path="attn.query").name
    'query'
    """

    target: str
    name: str = ""
    path: str = ""
    kind: str = "module"
    method: str = "__call__"
    config: Parameters = field(default_factory=FrozenMapping)
    weights: Mapping[int, str] = field(default_factory=FrozenMapping)
    options: Parameters = field(default_factory=FrozenMapping)
    arguments: tuple[str, ...] = ()
    results: int = 1
    batched: int = 0
    axes: tuple[tuple[tuple[int | None, ...], tuple[int | None, ...]], ...] | None = ()
    returns: tuple[str, ...] = ("",)
    edited: bool = False
    exchanged: Mapping[int, str] = field(default_factory=FrozenMapping)

    @property
    def named(self) -> dict[int, str]:
        """The inputs that are parameters, or replace parameters, with the paths of these."""
        return {**self.weights, **self.exchanged}

    def with_inputs(self, positions: Sequence[int]) -> Block:
        """Return the block with only the inputs at the given positions.

        >>> Block("Linear", weights={1: "kernel", 2: "bias"}).with_inputs([0, 2]).weights
        FrozenMapping({1: 'bias'})
        """
        moved = lambda named: FrozenMapping({new: named[old] for new, old in enumerate(positions) if old in named})
        return replace(self, weights=moved(self.weights), exchanged=moved(self.exchanged))

    def with_results(self, positions: Sequence[int]) -> Block:
        """Return the block with only the results at the given positions.

        >>> Block("RNN", results=2, returns=("0", "1")).with_results([1]).returns
        ('1',)
        """
        if len(positions) == self.results:
            return self
        kept = lambda values: tuple(values[position] for position in positions)
        axes = self.axes and tuple((arguments, kept(results)) for arguments, results in self.axes)
        return replace(self, results=len(positions), returns=kept(self.returns), axes=axes)


block_p = jaxprs.Primitive("block")
block_p.multiple_results = True


@block_p.def_impl
def _refuse_to_run(*_: object, block: Block, **__: object) -> None:
    raise TypeError(f"the block `{block.target}` is data and cannot be run; `ungroup` the jaxpr first")


@block_p.def_effectful_abstract_eval
def _abstract_eval(*_: object, jaxpr: jaxprs.ClosedJaxpr, **__: object) -> tuple[list, set]:
    positions = {variable: index for index, variable in enumerate(jaxpr.jaxpr.invars)}
    effects = set()
    for effect in jaxpr.effects:
        # An abstract evaluation names positions; references made inside the block have no effect outside.
        reference = jaxprs.reference_of(effect)
        if reference is None:
            effects.add(effect)
        elif reference in positions:
            effects.add(effect.replace(positions[reference]))
    return list(jaxpr.out_avals), effects
