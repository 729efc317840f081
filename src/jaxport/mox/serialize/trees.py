"""The structure of arguments and results as plain data: tuples, lists, dicts and None; named tuples by their fields."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import jax

from jaxport.errors import ModelError
from jaxport.jaxprs import TreeDef
from jaxport.mox.serialize.json_values import JsonValue, list_of, text_of, texts_of
from jaxport.mox.serialize.values import Unwritable

# A structure deeper than this is not one that was written.
_DEEPEST = 100


def tree_data(tree: TreeDef) -> JsonValue:
    """Return a tree as plain data: ``*`` is a leaf.

    Raises:
      Unwritable: it has nodes of other types.

    >>> tree_data(jax.tree.structure(({"a": 1}, [2, None])))
    ['tuple', [['dict', ['a'], ['*']], ['list', ['*', None]]]]
    """
    node = tree.node_data()
    if node is None:
        return "*"
    kind, meta = node
    if kind is type(None):
        return None
    children = [tree_data(child) for child in tree.children()]
    if kind is tuple or kind is list:
        return [kind.__name__, children]
    if kind in (dict, OrderedDict) and all(isinstance(key, str) for key in meta):
        return ["dict" if kind is dict else "ordered", list(meta), children]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return ["namedtuple", kind.__name__, list(vars(kind)["_fields"]), children]
    raise Unwritable(f"a container of type `{kind.__module__}.{kind.__qualname__}`")


def tree_from(data: JsonValue) -> TreeDef:
    """Return the tree of `tree_data`.

    Raises:
      ModelError: the data are malformed.
    """
    try:
        return jax.tree.structure(_made(data, 0))
    except (TypeError, ValueError, IndexError) as error:
        raise ModelError("the structure of the arguments or results is malformed", why=str(error)) from error


def _made(data: JsonValue, depth: int) -> object:
    if depth > _DEEPEST:
        raise ModelError(f"a structure is nested more than {_DEEPEST} deep")
    if data == "*":
        return 0
    if data is None:
        return None
    kind, *named, content = list_of(data)
    children = [_made(child, depth + 1) for child in list_of(content)]
    match kind, named:
        case "tuple", []:
            return tuple(children)
        case "list", []:
            return children
        case "dict", [keys]:
            return dict(zip(texts_of(keys), children, strict=True))
        case "ordered", [keys]:
            return OrderedDict(zip(texts_of(keys), children, strict=True))
        case "namedtuple", [name, fields]:
            return namedtuple(text_of(name), texts_of(fields))(*children)
    raise ModelError(f"`{kind}` is not a kind of container")
