"""Module expressions: any JAX model as a tree that can be queried, edited, run, inspected and saved.

>>> import jax.numpy as jnp, jaxport
>>> mox = jaxport.make_mox(lambda x: jnp.sin(x) + 1)(jnp.zeros(2))
>>> mox.sub("//sin", jnp.cos)(jnp.zeros(2))
Array([2., 2.], dtype=float32)
"""

from __future__ import annotations

from jaxport.mox.edits.adapters import load_adapter, save_adapter, set_adapter
from jaxport.mox.edits.casts import cast
from jaxport.mox.edits.lora import lora
from jaxport.mox.edits.masks import activations, trainable
from jaxport.mox.edits.merging import merge_lora
from jaxport.mox.edits.prune import prune
from jaxport.mox.edits.quantize import calibrate, dequantize_linear, qdq, quantize, quantize_linear
from jaxport.mox.edits.scaling import dora, ia3
from jaxport.mox.expressions import Match, Mox, Selection, factory, load, loads, query, sub
from jaxport.mox.looking.account import Account, account
from jaxport.mox.make import eval_mox, make_mox
from jaxport.mox.serialize.files import dumps, load_params, save, save_params
from jaxport.mox.substitution.capture import Captured
from jaxport.mox.substitution.replacement import Factory, Replacement
from jaxport.mox.writing_back import write_back

__all__ = [
    "Account",
    "Captured",
    "Factory",
    "Match",
    "Mox",
    "Replacement",
    "Selection",
    "account",
    "activations",
    "calibrate",
    "cast",
    "dequantize_linear",
    "dora",
    "dumps",
    "eval_mox",
    "factory",
    "ia3",
    "load",
    "load_adapter",
    "load_params",
    "loads",
    "lora",
    "make_mox",
    "merge_lora",
    "prune",
    "qdq",
    "quantize",
    "quantize_linear",
    "query",
    "save",
    "save_adapter",
    "save_params",
    "set_adapter",
    "sub",
    "trainable",
    "write_back",
]
