"""jaxport: the bridge between JAX and ONNX.

>>> import jaxport, jax.numpy as jnp
>>> exported = jaxport.to_onnx(jnp.tanh, [("B", 3)])
>>> exported.input_names
['x']
"""

from jaxport.errors import (
    ExportError as ExportError,
)
from jaxport.errors import (
    InvalidArgument as InvalidArgument,
)
from jaxport.errors import (
    JaxportError as JaxportError,
)
from jaxport.errors import (
    ModelError as ModelError,
)
from jaxport.errors import (
    QueryError as QueryError,
)
from jaxport.errors import (
    Refusal as Refusal,
)
from jaxport.errors import (
    RuleError as RuleError,
)
from jaxport.errors import (
    SaveError as SaveError,
)
from jaxport.errors import (
    StateChanged as StateChanged,
)
from jaxport.errors import (
    Unsupported as Unsupported,
)
from jaxport.errors import (
    VerificationFailed as VerificationFailed,
)
from jaxport.export.api import to_onnx as to_onnx
from jaxport.export.registry import rule as rule
