"""What is immutable holds no buffer that its user may write to, whatever door it came in by."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest
from flax import nnx

import jaxport
from jaxport import mox as package
from jaxport.jaxprs.identity import owned

X = jnp.ones((2, 4))


def linear():
    return nnx.Linear(4, 4, rngs=nnx.Rngs(0))


def _with_params(weights):
    mox = jaxport.make_mox(linear())(X)
    return mox.with_params({**mox.params, "kernel": weights})


def _held(weights):
    model = linear()
    model.kernel = nnx.Param(weights)
    return model


def _file(weights, name="m"):
    x, y = ir.val(name, ir.DataType.FLOAT, (2, 4)), ir.val("y", ir.DataType.FLOAT, (2, 4))
    w = ir.Value(
        name="w",
        shape=ir.Shape((4, 4)),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.tensor(weights, name="w"),
    )
    graph = ir.Graph(
        [x], [y], nodes=[ir.node("MatMul", [x, w], outputs=[y])], initializers=[w], opset_imports={"": 17}, name="g"
    )
    return ir.Model(graph, ir_version=8)


def _program(weights):
    return jaxport.from_onnx(jaxport.to_onnx(linear(), [(2, 4)])).with_params({"kernel": weights})


def _adapted(weights):
    replacement = package.Replacement(lambda original, params, x: original(x) + x @ params["w"], {"w": weights})
    return jaxport.make_mox(linear())(X).sub("//Linear", replacement)


def _read(weights):
    mox = jaxport.make_mox(lambda x: x @ weights)(X)
    return package.loads(package.dumps(mox), dict.fromkeys(mox.state | mox.params, weights))


# By the way that an array comes in, what holds it.
DOORS = {
    "a function": lambda weights: jaxport.make_mox(lambda x: x @ weights)(X),
    "a dict": lambda weights: jaxport.make_mox(lambda x, held={"a": weights}: x @ held["a"])(X),
    "a module": lambda weights: jaxport.make_mox(_held(weights))(X),
    "with_params": _with_params,
    "a replacement": _adapted,
    "a function that replaces": lambda weights: jaxport.make_mox(linear())(X).sub("//Linear", lambda x: x @ weights),
    "a patch": lambda weights: jaxport.make_mox(linear())(X).patch({"//Linear": weights[:2]}),
    "loads": _read,
    "to_onnx": lambda weights: jaxport.to_onnx(lambda x: x @ weights, [(2, 4)]),
    "to_onnx of a module": lambda weights: jaxport.to_onnx(_held(weights), [(2, 4)]),
    "to_onnx with weights as inputs": lambda weights: jaxport.to_onnx(_held(weights), [(2, 4)], weights="inputs"),
    "from_onnx": lambda weights: jaxport.from_onnx(_file(weights)),
    "from_onnx of an export": lambda weights: jaxport.from_onnx(jaxport.to_onnx(lambda x: x @ weights, [(2, 4)])),
    "Program.with_params": _program,
}


def aligned():
    """Ones where JAX takes a buffer as it is."""
    raw = np.zeros(4 * 4 * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    weights = raw[start : start + 64].view(np.float32).reshape(4, 4)
    weights[:] = 1
    return weights


@pytest.mark.parametrize("door", DOORS)
def test_what_is_written_to_an_array_later_changes_nothing(door, tmp_path):
    weights = aligned()
    holder = DOORS[door](weights)
    wanted = np.asarray(DOORS[door](aligned())(X))
    weights[:] = 0
    np.testing.assert_array_equal(holder(X), wanted)
    assert weights.flags.writeable
    if not isinstance(holder, package.Mox) and "inputs" not in door:
        holder.save(tmp_path / "m.onnx")
        np.testing.assert_allclose(jaxport.from_onnx(tmp_path / "m.onnx")(X), wanted, rtol=1e-6)


def test_parameters_cannot_be_written_to():
    mox = _with_params(aligned())
    before = np.asarray(mox(X))
    mox.params["kernel"] = mox.params["bias"]
    mox.state["other"] = 0
    mox.params.clear()
    with pytest.raises(ValueError, match="read-only"):
        mox.params["kernel"][:] = 0
    np.testing.assert_array_equal(mox(X), before)
    assert set(mox.params) == {"kernel", "bias"}
    assert not mox.state


def test_a_read_only_view_of_what_can_be_written_to_is_copied(tmp_path):
    weights = np.ones(4)
    view = weights[:]
    view.flags.writeable = False
    kept = owned(view)
    weights[:] = 0
    assert kept.tolist() == [1, 1, 1, 1]
    bytes_ = np.frombuffer(bytes(16), np.float32)
    assert owned(bytes_) is bytes_
    array = np.asarray(jax.block_until_ready(jnp.ones(4)))
    assert owned(array) is array
    for mode in ("w+", "r+", "r", "c"):
        mapped = np.memmap(tmp_path / "w", np.float32, mode, shape=(8,))
        assert np.may_share_memory(owned(mapped), mapped), mode
        assert not owned(mapped[1:]).flags.writeable
        assert mapped.flags.writeable == (mode != "r")


BASE = np.arange(48.0).reshape(2, 3, 8)
VIEWS = {
    "all": BASE,
    "reversed axes": BASE.T,
    "permuted axes": BASE.transpose(1, 0, 2),
    "every second": BASE[..., ::2],
    "backwards": BASE[::-1],
    "repeated": np.broadcast_to(BASE[0], (4, 3, 8)),
    "one element": BASE[0, 0, 0:1].reshape(()),
    "none": BASE[:0],
    "other bytes": BASE.view(np.int32)[..., 1::2],
    "the real part": (BASE + 1j).real,
    "columns": np.asfortranarray(BASE),
    "permuted memory": np.ascontiguousarray(BASE.transpose(1, 0, 2)).transpose(1, 0, 2),
    "a field": np.zeros(3, [("a", "f4"), ("b", "i2")])["b"],
    "text": np.array(["a", "bc"]),
}


@pytest.mark.parametrize("first", VIEWS)
def test_whatever_is_a_view_of_what_is_copied(first: str) -> None:
    for second in VIEWS:
        copies: dict[str, np.ndarray] = {}
        for name in (first, second):
            kept = owned(VIEWS[name], copies)
            np.testing.assert_array_equal(kept, VIEWS[name], strict=True)
            assert not kept.flags.writeable
            assert not np.shares_memory(kept, VIEWS[name])
