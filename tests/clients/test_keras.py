"""Keras with JAX as its backend: `Model.export(format="onnx")` of many models, and Keras's own tests of it."""

from __future__ import annotations

import subprocess
import sys

import jax
import numpy as np
import onnx
import pytest

from jaxport.blocks.tracing import trace
from tests.clients import keras_exporter
from tests.clients.programs import array, package

keras = package("keras")
layers = pytest.importorskip("keras.layers")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]


def sequential(shape, *below):
    return lambda: keras.Sequential([layers.Input(shape), *(layer() for layer in below)])


def functional(shape, call):
    def make():
        inputs = layers.Input(shape)
        return keras.Model(inputs, call(inputs))

    return make


def residual(x):
    y = layers.Conv2D(8, 3, padding="same")(x)
    y = layers.BatchNormalization()(y)
    y = layers.ReLU()(y)
    y = layers.Conv2D(3, 3, padding="same")(y)
    return layers.Add()([x, y])


def inception(x):
    one, two = layers.Conv2D(4, 1)(x), layers.Conv2D(4, 3, padding="same")(x)
    return layers.Concatenate()([one, two, layers.MaxPooling2D(3, 1, "same")(x)])


def squeeze_and_excite(x):
    y = layers.GlobalAveragePooling2D(keepdims=True)(x)
    y = layers.Dense(3, activation="sigmoid")(layers.Dense(2, activation="relu")(y))
    return layers.Multiply()([x, y])


def transformer(x):
    y = layers.MultiHeadAttention(2, 4)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, y]))
    y = layers.Dense(8)(layers.Dense(16, activation="gelu")(x))
    return layers.LayerNormalization()(layers.Add()([x, y]))


def masked(x):
    # The mask is attached to the array, and has to reach the recurrence through each layer.
    return layers.LSTM(4)(layers.Dropout(0.1)(layers.Embedding(10, 6, mask_zero=True)(x)))


def two_outputs(x):
    y = layers.Dense(8, activation="relu")(x)
    return [layers.Dense(2)(y), layers.Dense(1, activation="sigmoid")(y)]


class Custom(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [layers.Dense(8, activation="silu") for _ in range(3)]
        self.head = layers.Dense(2)

    def call(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Scaled(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.scale


IMAGE, TEXT, ROWS, IDS = (12, 12, 3), (5, 8), (8,), (6,)
MODELS = {
    "dense": (sequential(ROWS, lambda: layers.Dense(4, activation="relu"), lambda: layers.Dense(2)), ROWS),
    "batch norm": (sequential(ROWS, lambda: layers.Dense(4), layers.BatchNormalization), ROWS),
    "dropout": (sequential(ROWS, lambda: layers.Dropout(0.5), lambda: layers.Dense(2)), ROWS),
    "activations": (
        sequential(ROWS, *(lambda a=a: layers.Activation(a) for a in ("elu", "gelu", "softplus", "mish", "tanh"))),
        ROWS,
    ),
    "softmax": (sequential(ROWS, layers.Softmax), ROWS),
    "leaky and prelu": (sequential(ROWS, layers.LeakyReLU, layers.PReLU), ROWS),
    "unit norm": (sequential(ROWS, layers.UnitNormalization), ROWS),
    "conv": (sequential(IMAGE, lambda: layers.Conv2D(4, 3, strides=2, padding="same")), IMAGE),
    "depthwise": (sequential(IMAGE, lambda: layers.DepthwiseConv2D(3), lambda: layers.SeparableConv2D(4, 3)), IMAGE),
    "conv transpose": (sequential(IMAGE, lambda: layers.Conv2DTranspose(4, 3, strides=2, padding="same")), IMAGE),
    "conv 1d": (sequential(TEXT, lambda: layers.Conv1D(4, 3, padding="causal")), TEXT),
    "pooling": (sequential(IMAGE, lambda: layers.MaxPooling2D(2), lambda: layers.AveragePooling2D(2)), IMAGE),
    "global pooling": (sequential(IMAGE, layers.GlobalMaxPooling2D), IMAGE),
    "upsampling": (sequential(IMAGE, lambda: layers.UpSampling2D(2, interpolation="bilinear")), IMAGE),
    "padding and cropping": (sequential(IMAGE, lambda: layers.ZeroPadding2D(2), lambda: layers.Cropping2D(1)), IMAGE),
    "resizing": (sequential(IMAGE, lambda: layers.Resizing(6, 6)), IMAGE),
    "rescaling": (sequential(IMAGE, lambda: layers.Rescaling(1 / 255), layers.Flatten, lambda: layers.Dense(2)), IMAGE),
    "group norm": (sequential(IMAGE, lambda: layers.GroupNormalization(3)), IMAGE),
    "layer norm": (sequential(TEXT, layers.LayerNormalization), TEXT),
    "rms norm": (sequential(TEXT, layers.RMSNormalization), TEXT),
    "residual": (functional(IMAGE, residual), IMAGE),
    "inception": (functional(IMAGE, inception), IMAGE),
    "squeeze and excite": (functional(IMAGE, squeeze_and_excite), IMAGE),
    "transformer": (functional(TEXT, transformer), TEXT),
    "lstm": (sequential(TEXT, lambda: layers.LSTM(4, return_sequences=True), lambda: layers.LSTM(3)), TEXT),
    "gru": (sequential(TEXT, lambda: layers.GRU(4, return_sequences=True)), TEXT),
    "bidirectional": (sequential(TEXT, lambda: layers.Bidirectional(layers.SimpleRNN(4))), TEXT),
    "conv lstm": (sequential((3, 6, 6, 2), lambda: layers.ConvLSTM2D(3, 3)), (3, 6, 6, 2)),
    "time distributed": (sequential(TEXT, lambda: layers.TimeDistributed(layers.Dense(3))), TEXT),
    "masked": (functional(IDS, masked), IDS),
    "two outputs": (functional(ROWS, two_outputs), ROWS),
    "custom model": (Custom, ROWS),
    "custom layer": (sequential(ROWS, Scaled, lambda: layers.Dense(2)), ROWS),
    "einsum dense": (sequential(TEXT, lambda: layers.EinsumDense("btd,dh->bth", (None, 4))), TEXT),
}


def example(name, shape, batch=2):
    if name == "masked":
        return np.array([[1, 2, 3, 0, 0, 0], [4, 5, 0, 0, 0, 0]], np.float32)[:batch]
    return array(batch, *shape)


@pytest.mark.parametrize("name", MODELS)
def test_models(name, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    make, shape = MODELS[name]
    model = make()
    x = example(name, shape)
    model(x)
    before = [np.asarray(variable.value) for variable in model.variables]
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    session = ort.InferenceSession(tmp_path / "model.onnx")
    for batch in (2, 1):
        found = session.run(None, {session.get_inputs()[0].name: x[:batch]})
        for one, other in zip(found, jax.tree.leaves(model(x[:batch], training=False)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    for one, variable in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(one, np.asarray(variable.value))


def test_names_are_those_of_keras(tmp_path):
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3, name="hidden")], name="net")
    model(array(2, 4))
    model.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert sorted(initializer.name for initializer in graph.initializer) == ["net/hidden/bias", "net/hidden/kernel"]


def test_state_is_collected_and_the_model_stays_as_it_is():
    model = keras.Sequential([layers.Input((4,)), layers.BatchNormalization(name="norm")], name="net")
    x = array(3, 4)
    traced = trace(lambda x: model(x, training=True), (x,), state="outputs")
    assert traced.state_outputs == ("net/norm/moving_mean", "net/norm/moving_variance")
    assert all(isinstance(np.asarray(variable.value), np.ndarray) for variable in model.variables)


def test_layers_that_are_not_built_are_refused():
    model = keras.Sequential([layers.Dense(3)])
    with pytest.raises(keras_exporter.jaxport.JaxportError, match="not built yet"):
        keras_exporter.jaxport.to_onnx(model, [("B", 4)])


def test_keras_own_tests():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.clients.keras_exporter", "-p", "no:cacheprovider"]
    command += ["-o", "addopts=", "-o", "filterwarnings=", "--pyargs", "keras.src.export.onnx_test"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:]
    assert "15 passed" in result.stdout
