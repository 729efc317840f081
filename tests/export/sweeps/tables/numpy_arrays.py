"""The cases of `jax.numpy`: shapes, selection, sorting, sets, making, polynomials, and what is not a function of arrays."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from tests.export.sweeps.cases import FLOATS, array, below, between, case, distinct, each, indices, ordered, positive
from tests.export.sweeps.tables import numpy_elementwise


def apart(values):
    """The parts of complex numbers whose order is open."""
    return jnp.sort(values.real), jnp.sort(values.imag)


X, Y, S = array("B", "T"), array("B", "T"), array("N", "N")
V, W = array("L"), array("L")
CUBE = array("B", "T", "N")
FEW = array("L", values=below(2))
SORTED = array("L", values=ordered)
DISTINCT = array("B", "L", values=distinct)
ROWS = indices(4, bound=2)

SHAPES = {
    **each(
        "array asarray array_split copy fliplr flip flipud ravel rot90 squeeze transpose matrix_transpose "
        "atleast_1d atleast_2d atleast_3d".replace("array_split ", ""),
        X,
    ),
    **each("column_stack concatenate concat dstack hstack vstack stack block", [X, Y]),
    **each("append", X, Y, 1),
    **each("array_split split", array("B", 6), 3, 1),
    **each("hsplit", array("B", 6), 3),
    **each("vsplit", array(6, "T"), 3),
    **each("dsplit", array("B", "T", 6), 3),
    "broadcast_arrays": case(X, array("T")),
    "broadcast_to": case(array("T"), call=lambda f, x: f(x, (2, *x.shape))),
    "expand_dims": case(X, (0, 2)),
    "moveaxis": case(CUBE, 0, 2),
    "pad": case(X, ((1, 2), (0, 1)), mode="reflect"),
    "permute_dims": case(CUBE, (2, 0, 1)),
    "repeat": case(X, 3, 1),
    "reshape": case(array("B", 6), call=lambda f, x: f(x, (x.shape[0], 2, 3))),
    "resize": case(array(2, 3), (4, 5)),
    "roll": case(X, 2, 1),
    "rollaxis": case(CUBE, 2),
    "swapaxes": case(CUBE, 0, 2),
    "tile": case(X, (2, 3)),
    "unstack": case(array("B", 3), axis=1),
    "diagonal": case(S),
    "diag": case(array("N")),
    "diagflat": case(X),
    "tril": case(S),
    "triu": case(S, 1),
    "vander": case(array("N"), 4),
    "trim_zeros": case(V, call=lambda f, x: x),
}
del SHAPES["trim_zeros"]
SELECTION = {
    "argwhere": case(X, size=5),
    "choose": case(indices("B", "T", bound=2), [X, Y], mode="clip"),
    "compress": case(array("B", dtype=np.dtype(bool)), X, axis=0, size=2),
    "delete": case(X, 1, axis=1),
    "extract": case(array("B", "T", dtype=np.dtype(bool)), X, size=4),
    "fill_diagonal": case(S, 3, inplace=False),
    "flatnonzero": case(X, size=4),
    "insert": case(X, 1, 3, axis=1),
    "nonzero": case(X, size=5),
    "place": case(X, array("B", "T", dtype=np.dtype(bool)), array(2), inplace=False),
    "put": case(
        X,
        indices(3, bound=5),
        array(3),
        call=lambda f, x, i, v: f(x, jnp.sort(i) * 0 + jnp.arange(3), v, inplace=False),
    ),
    "put_along_axis": case(X, indices("B", 1, bound=3), 1, axis=1, inplace=False),
    "take": case(X, ROWS, axis=0),
    "take_along_axis": case(X, indices("B", 4, bound=3), axis=1),
    "ix_": case(indices(2, bound=2), indices(2, bound=3), X, call=lambda f, i, j, x: x[f(i, j)]),
    "unravel_index": case(indices("N", bound=6), (2, 3)),
    "ravel_multi_index": case([indices("N", bound=2), indices("N", bound=3)], (2, 3), mode="clip"),
    "mask_indices": case(S, call=lambda f, x: x[f(4, jnp.triu, size=10)]),
    **each("diag_indices", S, call=lambda f, x: x[f(4)]),
    **each("diag_indices_from", S, call=lambda f, x: x[f(x)]),
    **each("tril_indices triu_indices", S, call=lambda f, x: x[f(4)]),
    **each("tril_indices_from triu_indices_from", array(4, 4), call=lambda f, x: x[f(x)]),
    "indices": case(X, call=lambda f, x: f(x.shape, dtype=x.dtype)),
}
SORTING = {
    **each("argsort sort", DISTINCT),
    **each("argpartition partition", DISTINCT, 3),
    "lexsort": case([array("L", values=below(2)), array("L", values=distinct)]),
    "sort_complex": case(array("L", values=distinct)),
    "searchsorted": case(SORTED, array("T")),
    "digitize": case(X, SORTED),
    **each("intersect1d setdiff1d", V, array(5), size=4),
    **each("setxor1d union1d", V, array(5), size=14),
    "isin": case(X, array(5)),
    **each("unique unique_counts unique_inverse unique_values unique_all", V, size=8, fill_value=0),
    "bincount": case(indices("L", bound=5), length=6),
    "histogram": case(array("L"), 5, (-2, 2)),
    "histogram_bin_edges": case(array("L"), 5),
    "histogram2d": case(array("L"), array("L"), 3, [[-2, 2], [-3, 3]]),
    "histogramdd": case(array("L", 2), 3, [[-2, 2], [-3, 3]]),
    "packbits": case(array("B", 10, dtype=np.dtype(bool)), axis=1),
    "unpackbits": case(array("B", "T", dtype=np.dtype(np.uint8)), axis=1),
}
MAKING = {
    **each("empty_like ones_like zeros_like", X),
    **each("empty ones zeros", X, call=lambda f, x: f(x.shape, x.dtype)),
    "full": case(X, call=lambda f, x: f(x.shape, 3, x.dtype)),
    "full_like": case(X, 3),
    "arange": case(X, call=lambda f, x: f(x.shape[1], dtype=x.dtype)),
    **each("eye tri", X, call=lambda f, x: f(x.shape[0], x.shape[1], dtype=x.dtype)),
    "identity": case(X, call=lambda f, x: f(4, dtype=x.dtype)),
    **each("linspace", array("B"), array("B"), 5),
    **each("logspace geomspace", array("B", values=between(0.5, 1)), array("B", values=between(1, 2)), 5),
    "meshgrid": case(array("B"), array("T")),
    "fromfunction": case(X, call=lambda f, x: x + f(lambda i, j: i * 2 + j, (2, 3), dtype=x.dtype)),
    "frombuffer": case(X, call=lambda f, x: x + f(bytes(range(3)), np.uint8)),
    "fromstring": case(X, call=lambda f, x: x + f("1 2 3", np.int32, sep=" ")),
    **each("bartlett blackman hamming hanning", X, call=lambda f, x: f(5) * x[0, 0]),
    "kaiser": case(X, call=lambda f, x: f(5, 2.0) * x[0, 0]),
}
POLYNOMIALS = {
    "poly": case(array(4)),
    "polyadd": case(array(4), array(3)),
    "polysub": case(array(4), array(3)),
    "polymul": case(array(4), array(3)),
    "polydiv": case(array(5), array(3, values=positive), without={"bool": "the divisor may be zero"}),
    "polyder": case(array(5), 2),
    "polyint": case(array(5), 2),
    "polyfit": case(array(6, values=distinct), array(6), 2, rtol=1e-3, atol=1e-3),
    "roots": case(array(4, values=positive), call=lambda f, x: apart(f(x, strip_zeros=False))),
}
FACTS = {
    **each("ndim size isscalar iscomplexobj isrealobj iterable", X, call=lambda f, x: jnp.where(f(x), x, 0)),
    "shape": case(X, call=lambda f, x: jnp.zeros(f(x), x.dtype)),
    "broadcast_shapes": case(X, call=lambda f, x: x.reshape(f(x.shape, (1, 1)))),
    "result_type": case(X, call=lambda f, x: x.astype(f(x, np.int16))),
    "promote_types": case(X, call=lambda f, x: x.astype(f(x.dtype, np.int16))),
    "dtype": case(X, call=lambda f, x: x.astype(f("float32"))),
    "can_cast": case(X, call=lambda f, x: jnp.where(f(x.dtype, np.int32), x, 0)),
    "isdtype": case(X, call=lambda f, x: jnp.where(f(x.dtype, "integral"), x, 0)),
    "issubdtype": case(X, call=lambda f, x: jnp.where(f(x.dtype, np.integer), x, 0)),
    "finfo": case(X, dtypes=FLOATS, call=lambda f, x: x + f(x.dtype).eps),
    "iinfo": case(X, call=lambda f, x: x - f(x.dtype).max // 2),
}
CASES = {**numpy_elementwise.CASES, **SHAPES, **SELECTION, **SORTING, **MAKING, **POLYNOMIALS, **FACTS}
REASONS = {
    **dict.fromkeys(
        "character complexfloating flexible floating generic inexact integer number signedinteger unsignedinteger "
        "object_ ndarray ComplexWarning".split(),
        "a type",
    ),
    **dict.fromkeys("array_repr array_str get_printoptions printoptions set_printoptions".split(), "text, not arrays"),
    **dict.fromkeys("fromfile load save savez".split(), "files, which JAX does not trace"),
    "fromiter": "a Python iterator, which JAX does not trace",
    "from_dlpack": "an array of another library, which JAX does not trace",
    "trim_zeros": "a result whose size depends on values, which JAX does not trace",
}
REFUSED = {**numpy_elementwise.NO_DATA_TYPE}
ELSEWHERE = numpy_elementwise.ELSEWHERE
