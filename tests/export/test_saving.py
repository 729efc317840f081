"""A saved file is the model, whole or not at all; weights of any layout are streamed."""

from __future__ import annotations

import functools
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from flax import nnx

import jaxport
from jaxport import saving
from jaxport.testing import f32, i32
from tests.compiling import on_devices

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.normal(size=(48, 40)).astype(np.float32)

WEIGHTS = {
    "row-major": MATRIX,
    "transposed": MATRIX.T,
    "strided": MATRIX[:, ::2],
    "reversed": MATRIX[::-1],
    "broadcast": np.broadcast_to(MATRIX[0], (30, 40)),
    "permuted": RANDOM.normal(size=(8, 9, 10)).astype(np.float32).transpose(2, 0, 1),
    "float64": MATRIX.astype(np.float64).T,
    "float16": MATRIX.astype(np.float16).T,
    "bfloat16": MATRIX.astype(ml_dtypes.bfloat16).T,
    "float8": MATRIX.astype(ml_dtypes.float8_e4m3fn).T,
    "int4": RANDOM.integers(-8, 8, (60, 61)).astype(ml_dtypes.int4).T,
    "int64": RANDOM.integers(-8, 8, (60, 61)),
    "bool": MATRIX > 0,
    "small": MATRIX[:2, :3],
    "empty": MATRIX[:0],
    "scalar": np.float32(3),
}


def model_of(arrays: dict[str, np.ndarray]) -> ir.Model:
    """A model that gives its weights as outputs."""
    stored, outputs, nodes = [], [], []
    for name, array in arrays.items():
        tensor = ir.Tensor(np.asarray(array), dtype=ir.DataType.from_numpy(np.asarray(array).dtype), name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape), const_value=tensor)
        node = ir.Node("", "Identity", [value])
        node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = f"{name}_out", value.type, value.shape
        stored.append(value)
        nodes.append(node)
        outputs.append(node.outputs[0])
    graph = ir.Graph([], outputs, nodes=nodes, initializers=stored, opset_imports={"": 23}, name="weights")
    return ir.Model(graph, ir_version=11)


def assert_holds(path: Path, arrays: dict[str, np.ndarray]) -> None:
    onnx.checker.check_model(str(path), full_check=True)
    loaded = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    assert sorted(loaded) == sorted(arrays)
    for name, array in arrays.items():
        assert loaded[name].dtype == np.asarray(array).dtype, name
        assert loaded[name].shape == np.shape(array), name
        np.testing.assert_array_equal(loaded[name].astype(np.float64), np.asarray(array).astype(np.float64), name)


@pytest.mark.parametrize("external", [False, True, None])
@pytest.mark.parametrize("chunk", [saving.CHUNK, 64])
def test_every_dtype_and_layout_is_written(tmp_path, monkeypatch, external, chunk):
    monkeypatch.setattr(saving, "CHUNK", chunk)
    path = tmp_path / "weights.onnx"
    saving.save(model_of(WEIGHTS), path, external)
    assert_holds(path, WEIGHTS)
    names = sorted(re.sub(r"\.[0-9a-f]{16}\.", ".#.", p.name) for p in tmp_path.iterdir())
    assert names == ["weights.onnx", "weights.onnx.#.data"][: 1 + bool(external)]


def test_the_file_is_the_message():
    model = model_of(WEIGHTS)
    written = b"".join(
        piece if isinstance(piece, bytes) else b"".join(map(bytes, saving.chunks(piece)))
        for piece in saving._message(saving.frame(model))
    )
    assert onnx.ModelProto.FromString(written) == saving.to_proto(model)
    assert len(written) == len(saving.to_proto(model).SerializeToString())


def test_a_model_is_not_touched_by_writing_it(tmp_path):
    model = model_of(WEIGHTS)
    before = saving.to_proto(model)
    saving.save(model, tmp_path / "m.onnx", True)
    assert saving.to_proto(model) == before


def test_large_tensors_start_at_a_page(tmp_path):
    arrays = {"first": MATRIX, "page": np.ones((128, 256), np.float32), "last": MATRIX}
    saving.save(model_of(arrays), tmp_path / "m.onnx", True)
    tensors = onnx.load(tmp_path / "m.onnx", load_external_data=False).graph.initializer
    offsets = {t.name: int({e.key: e.value for e in t.external_data}["offset"]) for t in tensors}
    assert offsets["page"] % 4096 == 0
    assert all(offset % 64 == 0 for offset in offsets.values())
    assert_holds(tmp_path / "m.onnx", arrays)


def test_above_the_limit_of_protobuf_the_weights_go_beside_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "PROTOBUF_LIMIT", 5000)
    model = model_of({"w": MATRIX})
    saving.save(model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size < 5000
    assert_holds(tmp_path / "m.onnx", {"w": MATRIX})
    with pytest.raises(jaxport.SaveError, match="a model above 2 GB cannot be one file") as caught:
        saving.save(model, tmp_path / "other.onnx", external_data=False)
    assert caught.value.instead == "leave `external_data` out"
    with pytest.raises(jaxport.SaveError, match="larger than the 2 GB of a protobuf message") as caught:
        saving.to_proto(model)
    assert "exported.save(path)" in str(caught.value)


def test_what_is_exported_is_what_is_saved(tmp_path):
    exported = jaxport.to_onnx(lambda x: jnp.tanh(x @ MATRIX) @ MATRIX.T, [("B", 48)])
    exported.save(tmp_path / "m.onnx", external_data=True)
    exported.save(str(tmp_path / "single.onnx"))
    assert onnx.load(tmp_path / "single.onnx") == exported.proto
    from jaxport.export.delivery.runtime import Session

    x = RANDOM.normal(size=(2, 48)).astype(np.float32)
    for name in ("m.onnx", "single.onnx"):
        np.testing.assert_array_equal(Session(tmp_path / name).run({"x": x})[0], exported(x))


def run_alone(program: str, *arguments: object, **environment: str) -> str:
    """The output of a Python program in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SHARDED = """
import sys, jax, numpy as np, jaxport
mesh = jax.make_mesh((4,), ("d",))
matrix = np.arange(48 * 40, dtype=np.float32).reshape(48, 40)
weight = jax.device_put(matrix, jax.NamedSharding(mesh, jax.P("d")))
assert len(weight.addressable_shards) == 4
exported = jaxport.to_onnx(lambda x: x @ weight, [("B", 48)])
exported.save(sys.argv[1])
assert exported.verify().ok
"""


def test_sharded_arrays_are_accepted(tmp_path):
    run_alone(SHARDED, tmp_path / "m.onnx", XLA_FLAGS=on_devices(4)["XLA_FLAGS"])
    assert_holds(tmp_path / "m.onnx", {"weight": np.arange(48 * 40, dtype=np.float32).reshape(48, 40)})


MEMORY = """
import sys, threading, time, jax, jax.numpy as jnp, numpy as np, jaxport

def anonymous_memory():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

weights = [jax.random.normal(key, (2048, 4096)) for key in jax.random.split(jax.random.key(0), 8)]

def model(x):
    for index, weight in enumerate(weights):
        x = x @ (weight if index % 2 else weight.T)
    return x

jaxport.to_onnx(lambda x: jnp.tanh(x), [("B", 4)]).save(sys.argv[1])  # what is loaded once is not part of the figure
jax.block_until_ready(weights)
base = peak = anonymous_memory()
done = False

def watch():
    global peak
    while not done:
        peak = max(peak, anonymous_memory())
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
jaxport.to_onnx(model, [("B", 4096)]).save(sys.argv[1], external_data=sys.argv[2] == "beside")
done = True
watcher.join()
print((peak - base) / sum(weight.nbytes for weight in weights))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's process table")
@pytest.mark.parametrize("where", ["inside", "beside"])
def test_the_weights_are_never_held_twice(tmp_path, where):
    assert float(run_alone(MEMORY, tmp_path / "m.onnx", where)) < 0.1


# Failures


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/m.onnx", "No such file or directory"),
        ("file/m.onnx", "Not a directory"),
        ("folder", "Is a directory"),
    ],
)
@pytest.mark.parametrize("external", [False, True])
def test_a_path_that_cannot_be_written_is_refused(tmp_path, name, why, external):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    before = contents(tmp_path)
    with pytest.raises(jaxport.SaveError) as caught:
        saving.save(model_of({"w": MATRIX}), tmp_path / name, external)
    text = str(caught.value)
    assert f"`{tmp_path / name}` cannot be written" in text
    assert why in text
    assert "give a path in an existing, writable folder with enough space" in text
    assert isinstance(caught.value, OSError)
    assert contents(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


@pytest.fixture
def full_disk():
    """Lets no file grow beyond 4 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_what_was_there(tmp_path, external):
    small = {"w": MATRIX[:8]}
    saving.save(model_of(small), tmp_path / "m.onnx", external)
    before = contents(tmp_path)
    with pytest.raises(jaxport.SaveError, match="File too large"):
        saving.save(model_of({"w": MATRIX}), tmp_path / "m.onnx", external)
    assert contents(tmp_path) == before
    assert_holds(tmp_path / "m.onnx", small)


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("failing", range(2))
def test_both_files_change_or_none(tmp_path, monkeypatch, existing, failing):
    """Whichever move into place fails, model and data fit each other."""
    path, old = tmp_path / "m.onnx", {"w": MATRIX[:20]}
    if existing:
        saving.save(model_of(old), path, True)
    before, moved, replace = contents(tmp_path), [], os.replace

    def fail_at(source, target):
        moved.append(target)
        if len(moved) == failing + 1:
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_at)
    with pytest.raises(jaxport.SaveError, match="Input/output error"):
        saving.save(model_of({"w": MATRIX}), path, True)
    assert contents(tmp_path) == before
    if existing:
        assert_holds(path, old)


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.onnx").symlink_to(tmp_path / "real" / "m.onnx")
    saving.save(model_of({"w": MATRIX}), tmp_path / "link.onnx", True)
    assert (tmp_path / "link.onnx").is_symlink()
    assert sorted(name[:7] for name in contents(tmp_path / "real")) == ["m.onnx", "m.onnx."]
    assert_holds(tmp_path / "real" / "m.onnx", {"w": MATRIX})


def test_two_exports_write_the_same_bytes(tmp_path):
    for name in ("one.onnx", "two.onnx"):
        jaxport.to_onnx(lambda x: jnp.tanh(x @ MATRIX), [("B", 48)]).save(tmp_path / name)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def mapped(folder: Path, *shape: int) -> np.memmap:
    """Weights that are in a file."""
    weights = np.memmap(folder / f"weights {shape}", np.float32, "w+", shape=shape)
    weights[...] = np.random.default_rng(len(shape)).normal(size=shape)
    return weights


class Mapped(nnx.Module):
    def __init__(self, words: np.memmap, kernel: np.memmap):
        self.words = nnx.Embed(*words.shape, embedding_init=lambda *_: jnp.zeros(words.shape), rngs=nnx.Rngs(0))
        self.words.embedding.set_value(words)
        self.kernel = nnx.Param(kernel)

    def __call__(self, ids: jax.Array) -> jax.Array:
        return self.words(ids) @ self.kernel[...]


def test_weights_in_a_file_stay_there_until_they_are_saved(tmp_path: Path) -> None:
    words, kernel = mapped(tmp_path, 30, 64), mapped(tmp_path, 64, 64)
    layer = eqx.tree_at(
        lambda layer: layer.weight, eqx.nn.Linear(64, 64, use_bias=False, key=jax.random.key(0)), kernel
    )
    models = {
        "Flax": (Mapped(words, kernel), i32("B")),
        "Equinox": (lambda x: jax.vmap(layer)(x), f32("B", 64)),
        "function": (functools.partial(lambda weights, x: x @ weights["kernel"], {"kernel": kernel}), f32("B", 64)),
    }
    for name, (model, spec) in models.items():
        exported = jaxport.to_onnx(model, [spec])
        stored = [value.const_value.numpy() for value in exported.model.graph.initializers.values()]
        large = [array for array in stored if array.size >= words.size]
        assert large, name
        assert all(np.may_share_memory(array, words) or np.may_share_memory(array, kernel) for array in large), name
        exported.save(tmp_path / f"{name}.onnx")
        exported.verify()
    assert kernel.flags.writeable
    assert isinstance(models["Flax"][0].kernel.get_value(), np.memmap)
