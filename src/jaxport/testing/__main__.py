"""`python -m jaxport.testing model.onnx …`: print the expectation of a model, to paste into a test."""

from __future__ import annotations

import sys
from pathlib import Path

from jaxport.cli.summary import load_model
from jaxport.testing.structure import expectation

for path in sys.argv[1:]:
    sys.stdout.write(f"{expectation(load_model(Path(path)))}\n")
