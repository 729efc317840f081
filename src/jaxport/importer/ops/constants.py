"""Constants."""

from __future__ import annotations

import numpy as np

from jaxport.importer.dtypes import STRING
from jaxport.importer.host import HostValue, host
from jaxport.importer.registry import op


@op("Constant", since=1, until=10)
def constant_tensor(*, value):
    return value


@op("Constant", since=11, until=11)
def constant_dense_or_sparse(*, value=None, sparse_value=None):
    return value  # the loader has made a sparse value dense


@op("Constant", since=12)
def constant(
    *,
    value=None,
    sparse_value=None,
    value_float=None,
    value_floats=None,
    value_int=None,
    value_ints=None,
    value_string=None,
    value_strings=None,
):
    if value is not None:
        return value
    if value_string is not None or value_strings is not None:
        return HostValue(np.array(value_strings if value_string is None else value_string, dtype=object), STRING)
    if value_int is not None or value_ints is not None:
        return host(np.array(value_ints if value_int is None else value_int, np.int64))
    return host(np.array(value_floats if value_float is None else value_float, np.float32))
