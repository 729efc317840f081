"""What users do with any Python object: copy it, pickle it, transform it, give it odd names; it works, or says what does."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxport
from jaxport import mox as package

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)


def linear():
    return nnx.Linear(4, 4, rngs=nnx.Rngs(0))


EXPORTED = jaxport.to_onnx(linear(), [("B", 4)])
OBJECTS = {"export": EXPORTED, "program": jaxport.from_onnx(EXPORTED), "mox": jaxport.make_mox(linear())(X)}
USES = {
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing))(X),
    "deepcopy": lambda thing: copy.deepcopy(thing)(X),
    "copy": lambda thing: copy.copy(thing)(X),
    "jit": lambda thing: jax.jit(thing)(X),
    "jvp": lambda thing: jax.jvp(thing, (X,), (X,))[0],
    "vmap": lambda thing: jax.vmap(thing)(X[None])[0],
    "make_mox": lambda thing: jaxport.make_mox(thing)(X)(X),
    "to_onnx": lambda thing: jaxport.to_onnx(thing, [X])(X),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("thing", OBJECTS)
def test_an_object_is_used_as_any_other_or_says_what_to_use(thing, use):
    if thing == "export" and use not in ("copy", "deepcopy"):
        with pytest.raises(jaxport.InvalidArgument, match=r"from_onnx"):
            USES[use](OBJECTS[thing])
        return
    np.testing.assert_allclose(USES[use](OBJECTS[thing]), linear()(X), rtol=1e-5, atol=1e-6)


def test_a_program_is_pickled_with_its_options():
    program = jaxport.from_onnx(EXPORTED, trainable=["bias"])
    again = pickle.loads(pickle.dumps(program))
    assert list(again.params) == list(program.params) == ["bias"]


def test_a_copy_of_an_export_has_a_graph_of_its_own():
    made = copy.deepcopy(EXPORTED)
    made.model.graph.name = "other"
    assert EXPORTED.model.graph.name != "other"


@pytest.mark.parametrize("inputs", [[X], (X,), X, None, "x", 1])
def test_run_takes_inputs_by_name(inputs):
    with pytest.raises(jaxport.InvalidArgument, match=r"it takes the model's inputs by name(.|\n)*'inputs': \.\.\."):
        EXPORTED.run(inputs)


@pytest.mark.parametrize("spec", [np.int32, jnp.int32, np.float16, np.dtype("int8"), int, bool])
def test_scalar_types_are_scalars(spec):
    exported = jaxport.to_onnx(lambda x: x + x, [spec])
    assert exported.inputs[0].shape == ()
    assert exported.verify().ok
    with pytest.raises(jaxport.InvalidArgument, match="the model declares"):
        jaxport.to_onnx(OBJECTS["program"], [spec])


TREES = [{"": X}, {"a.b": X, "a": {"b": 2 * X}}, {"a": {"": X}, "a.": 3 * X}, {" ": X}, {"a/b": X}, {"é": X}]


@pytest.mark.parametrize("tree", TREES)
def test_leaves_with_odd_names(tree, tmp_path):
    total = lambda held: sum(2.0**i * leaf for i, leaf in enumerate(jax.tree.leaves(held)))
    mox = jaxport.make_mox(total)(tree)
    np.testing.assert_array_equal(package.loads(package.dumps(mox))(tree), total(tree))
    exported = jaxport.to_onnx(total, [tree])
    assert len(set(exported.input_names)) == len(jax.tree.leaves(tree))
    np.testing.assert_allclose(exported(tree), total(tree), rtol=1e-6)
    exported.save(tmp_path / "m.onnx")
    results = jaxport.to_onnx(lambda x: jax.tree.map(lambda leaf: leaf * x, tree), [X])
    assert len(set(results.output_names)) == len(jax.tree.leaves(tree))
    assert results.verify().ok
    held = jaxport.make_mox(lambda x: x + total(tree))(X)
    assert len(held.params | held.state) == len(jax.tree.leaves(tree))
    np.testing.assert_allclose(
        package.loads(package.dumps(held), held.params | held.state)(X), X + total(tree), rtol=1e-6
    )


@pytest.mark.parametrize("argument", ["input_names", "output_names"])
def test_empty_names_are_refused(argument):
    with pytest.raises(jaxport.InvalidArgument, match="a name is empty"):
        jaxport.to_onnx(jnp.sin, [X], **{argument: [""]})


class Empty(nnx.Module):
    def __init__(self, *shape):
        self.kernel = nnx.Param(jnp.zeros(shape))

    def __call__(self, x):
        return x @ self.kernel[...]


EDITS = {
    "lora": lambda: package.lora(2),
    "dora": lambda: package.dora(2),
    "ia3": package.ia3,
    "quantize": package.quantize,
    "quantize in groups": lambda: package.quantize(group=2),
    "quantize with zero points": lambda: package.quantize(symmetric=False),
    "prune": lambda: package.prune(0.5),
    "qdq": lambda: package.qdq(0.1),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_weights_without_elements_are_edited(shape, edit):
    x = jnp.ones((2, shape[0]))
    mox = jaxport.make_mox(Empty(*shape))(x)
    edited = mox.sub("//Empty", EDITS[edit]())
    np.testing.assert_array_equal(edited(x), mox(x))
    assert jaxport.to_onnx(edited, [x]).verify().ok
    if edit in ("lora", "dora", "ia3"):
        assert package.merge_lora(edited)["kernel"].shape == shape
    assert package.calibrate(mox, "//Empty", x) == {"": 1 / 127}
