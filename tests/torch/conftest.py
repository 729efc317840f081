"""Without PyTorch, which has an environment of its own, the scripts that make its models are not even collected."""

from __future__ import annotations

import importlib.util

collect_ignore = [] if importlib.util.find_spec("torch") else ["models.py"]
