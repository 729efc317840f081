"""jaxport: the bridge between JAX and ONNX.

>>> import jaxport, jax.numpy as jnp
>>> exported = jaxport.to_onnx(jnp.tanh, [("B", 3)])
>>> exported.input_names
['x']
"""

from jaxport.errors import (
    ExportError as ExportError,
    InvalidArgument as InvalidArgument,
    JaxportError as JaxportError,
    ModelError as ModelError,
    QueryError as QueryError,
    Refusal as Refusal,
    RuleError as RuleError,
    SaveError as SaveError,
    StateChanged as StateChanged,
    Unsupported as Unsupported,
    VerificationFailed as VerificationFailed,
)
from jaxport.export.api import to_onnx as to_onnx
from jaxport.export.registry import rule as rule
