"""If, Loop and Scan.

What is known on the host is decided there: one branch is taken, a loop is unrolled where its values change their shapes.
The rest becomes `lax.cond`, `lax.scan` and `lax.while_loop`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxport.errors import Refusal, ValueNotKnown
from jaxport.importer.host import HostValue, host
from jaxport.importer.namespaces import jnp, known, lax
from jaxport.importer.registry import op

SMALL_LOOP = 4
"""Iterations up to which a loop is unrolled, whatever it carries."""


@op("If", since=1)
def if_(cond, *, then_branch, else_branch):
    decided = known(cond)
    if decided is not None:
        return then_branch() if decided else else_branch()
    return tuple(lax.cond(jnp.reshape(cond, ()), then_branch, else_branch))
