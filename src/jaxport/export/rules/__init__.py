"""The rules, one file per family. Importing this package registers them."""

from jaxport.export.emit.registry import BLOCK_RULES, RULES, rule
from jaxport.export.rules import (
    bits,
    calls,
    control,
    conv,
    cumulative,
    elementwise,
    fft,
    grouped,
    indexing,
    linalg,
    linear,
    quantization,
    random,
    reduce,
    refused,
    scatter,
    shape,
    sharding,
    sorting,
    special,
    transcendental,
    windows,
)
