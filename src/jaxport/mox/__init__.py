"""Module expressions: any JAX model as a tree that is queried, edited, captured, serialized and evaluated."""

from __future__ import annotations

from jaxport.mox.edits.lora import lora, merge_lora
from jaxport.mox.match import Match
from jaxport.mox.mox import Mox, eval_mox
from jaxport.mox.replacement import Factory, Replacement, factory
from jaxport.mox.selection import Selection, query, sub
from jaxport.mox.serialize.files import dumps, load, load_params, loads, save, save_params
from jaxport.mox.tracing import make_mox

__all__ = [
    "Factory",
    "Match",
    "Mox",
    "Replacement",
    "Selection",
    "dumps",
    "eval_mox",
    "factory",
    "load",
    "load_params",
    "loads",
    "lora",
    "make_mox",
    "merge_lora",
    "query",
    "save",
    "save_params",
    "sub",
]
