"""A package of somebody else, which uses jaxport as its documentation says: checked with strict types, run with `-W error`."""

from __future__ import annotations

from stranger.models import Classifier, gated
from stranger.service import Served, deploy

__all__ = ["Classifier", "Served", "deploy", "gated"]
