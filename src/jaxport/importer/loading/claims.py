"""What a file that jaxport exported says of its tensors, in the metadata `jaxport.roles`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

import onnx_ir as ir

from jaxport.onnx_facts import ROLES, STATE_DICT

Role = Literal["parameter", "statistic", "constant"]
"""What an initializer is: training changes a parameter, a statistic is other state of the model, such as what calls in
training change, and nothing changes a constant."""

MOST_CLAIMS = 2**24
"""The longest text of roles that is read."""


def claims(model: ir.Model) -> dict[str, Role]:
    """Return the roles that the file claims for tensors, by name; what is malformed claims nothing."""
    entries = _json(model, ROLES)
    claimed: dict[str, Role] = {}
    kinds: tuple[Role, ...] = ("parameter", "statistic", "constant")
    for role in kinds:
        names = entries.get(role) if isinstance(entries, dict) else None
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str):
                claimed[name] = role  # of contradictory claims, the one that trains least
    return claimed


def state_dict_names(model: ir.Model) -> dict[str, str]:
    """Return the names of the state dict of the module that a model was made of, if it says them: each with the first
    of its tensor.
    """
    names = _json(model, STATE_DICT)
    if isinstance(names, list):  # of a file of before ties were written
        names = {name: name for name in names if isinstance(name, str)}
    firsts = names.items() if isinstance(names, dict) else ()
    return {name: first for name, first in firsts if isinstance(first, str)}


def _json(model: ir.Model, key: str) -> object:
    """Return an entry of the metadata that is JSON; None if it is malformed or absent."""
    text = model.metadata_props.get(key, "")
    try:
        return json.loads(text) if text and len(text) <= MOST_CLAIMS else None
    except (ValueError, RecursionError):
        return None


def with_claims(model: ir.Model, copies: Mapping[str, str]) -> None:
    """Claim for tensors of a model, in place, what the file claims for the tensors that they are copies of."""
    claimed = claims(model)
    roles: dict[str, list[str]] = {}
    for name, role in {**claimed, **{name: claimed[of] for name, of in copies.items() if of in claimed}}.items():
        roles.setdefault(role, []).append(name)
    if roles:
        model.metadata_props[ROLES] = json.dumps(roles)
