"""What a file that jaxport exported says of its tensors, in the metadata `jaxport.roles`."""

from __future__ import annotations

import json
from typing import Literal

import onnx_ir as ir

from jaxport.onnx_facts import ROLES

__all__ = ["Role", "claims"]

Role = Literal["parameter", "statistic", "constant"]
"""What an initializer is: training changes a parameter, calls in training change a statistic, nothing changes a constant."""

MOST_CLAIMS = 2**24
"""The longest text of roles that is read."""


def claims(model: ir.Model) -> dict[str, Role]:
    """Return the roles that the file claims for tensors, by name; what is malformed claims nothing."""
    text = model.metadata_props.get(ROLES, "")
    try:
        entries = json.loads(text) if text and len(text) <= MOST_CLAIMS else {}
    except (ValueError, RecursionError):
        return {}
    claimed: dict[str, Role] = {}
    kinds: tuple[Role, ...] = ("parameter", "statistic", "constant")
    for role in kinds:
        names = entries.get(role) if isinstance(entries, dict) else None
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str):
                claimed[name] = role  # of contradictory claims, the one that trains least
    return claimed
