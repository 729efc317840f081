"""`jaxport export` and `jaxport verify`, from the words of the command line to the file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from jaxport.cli.summary import Summary, summarize
from tests.cli.running import run

NETS = """
import functools
import jax, jax.numpy as jnp
import equinox
from flax import linen, nnx

def scaled(x, *, factor=1.0):
    return jnp.tanh(x) * factor

def other(x, *, factor=1.0):
    return jnp.tanh(x) * factor + 0.01

def perceptron():
    return nnx.Linear(4, 2, rngs=nnx.Rngs(0))

class Perceptron(nnx.Module):
    def __init__(self, size=4):
        self.layers = nnx.List([nnx.Linear(size, size, rngs=nnx.Rngs(i)) for i in range(2)])
    def __call__(self, x):
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x

model = Perceptron()
dense = linen.Dense(2)
dense = functools.partial(dense.apply, dense.init(jax.random.key(0), jnp.zeros((1, 4))))
layer = jax.vmap(equinox.nn.Linear(4, 2, key=jax.random.key(0)))

def embedded(ids, table):
    return table[ids]

def pooled(x):
    return linen.max_pool(x, (2, 2), padding="SAME")

def doubled(x):
    return jax.lax.scan(lambda carry, _: (carry * 2, None), x, None, length=3)[0]

def ones(ids):
    return jnp.ones_like(ids)

def ones_without_padding(ids):
    return jnp.where(ids == 0, 0, 1)

def step(input_ids, attention_mask, position_ids, past_key_values):
    rows = jnp.ones((input_ids.shape[0], 2, input_ids.shape[1], 4))
    present = [{name: jnp.concatenate([past[name], rows], axis=2) for name in past} for past in past_key_values]
    return {"logits": jax.nn.one_hot(input_ids, 5), "present": present}

def encode(audio_features):
    states = audio_features.swapaxes(1, 2)[:, ::2]
    rows = states[:, None, :, :4].repeat(2, axis=1)
    return {"encoder_hidden_states": states, "present": [{"encoder": {"key": rows, "value": rows + 1}}]}

def decode(input_ids, past_key_values):
    rows = jnp.ones((input_ids.shape[0], 2, input_ids.shape[1], 4))
    seen = sum(side.mean() for layer in past_key_values for side in layer["encoder"].values())
    present = [
        {"decoder": {name: jnp.concatenate([side, rows], axis=2) for name, side in layer["decoder"].items()}}
        for layer in past_key_values
    ]
    return {"logits": jax.nn.one_hot(input_ids, 5) + seen, "present": present}

def masked(x, *, mask):
    return jnp.where(mask, x, 0)

def image(x):
    return jax.nn.relu(x)

def norm():
    return nnx.BatchNorm(4, rngs=nnx.Rngs(0))

def hosted(x):
    return jax.pure_callback(lambda v: v, x, x)
"""


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("nets", None)


def export(*arguments: str) -> Summary:
    """What is in the file that the command wrote."""
    assert run("export", *arguments, "--output", "m.onnx") == 0
    onnx.checker.check_model("m.onnx", full_check=True)
    return summarize(Path("m.onnx"))


@pytest.mark.parametrize(
    "target", ["perceptron", "perceptron()", "Perceptron", "Perceptron(size=4)", "model", "dense", "layer", "scaled"]
)
def test_each_kind_of_target_exports_and_verifies(target: str, capsys: pytest.CaptureFixture[str]):
    export(f"nets:{target}", "--input", "B,4", "--verify")
    assert "m.onnx" in capsys.readouterr().out
    assert run("verify", "m.onnx", f"nets:{target}", "--input", "B,4") == 0


def test_the_target_and_the_precision_are_those_of_the_command(capsys: pytest.CaptureFixture[str]):
    summary = export("nets:perceptron", "--input", "B,4", "--target", "portable", "--precision", "int8-dynamic")
    assert summary.opsets["ai.onnx"] == 18
    assert "MatMulInteger" in summary.operators
    assert "opset 18, IR 8, ONNX Runtime ≥ 1.19" in capsys.readouterr().out
    assert run("export", "nets:perceptron", "-i", "B,4", "--target", "moon", "-o", "m.onnx") == 2


def test_groups_of_4_bits_on_the_command_line():
    options = ["--target", "web", "--precision", "int4,group=16,symmetric=True"]
    summary = export("nets:perceptron", "--input", "B,4", *options)
    assert "com.microsoft::MatMulNBits" in summary.operators
    assert not any("zero_point" in tensor.name for tensor in summary.initializers)


DECODER = "layers=1,kv_heads=2,head_size=4,context_length=8,eos_token_id=0"


def test_a_step_of_a_decoder_becomes_a_folder(capsys: pytest.CaptureFixture[str]):
    assert run("export", "nets:step", "--target", "genai", "--decoder", DECODER, "-o", "folder") == 0
    assert sorted(path.name for path in Path("folder").iterdir()) == ["genai_config.json", "model.onnx"]
    assert "present.0.key" in capsys.readouterr().out


ATTENDING = "layers=1,heads=2,head_size=4,encoder_length=1500,context_length=8,eos_token_id=0"
ENCODER = ["--encoder", "nets:encode", "--input", "batch_size,6,3000"]


def test_an_encoder_and_its_decoder_become_a_folder(capsys: pytest.CaptureFixture[str]):
    words = [
        "nets:decode",
        "--decoder",
        ATTENDING,
        *ENCODER,
        "--size",
        "batch_size=2,sequence_length=3,next_length=2",
    ]
    assert run("export", *words, "--verify", "--explain", "-o", "folder") == 0
    names = ["decoder_model.onnx", "encoder_model.onnx", "genai_config.json"]
    assert sorted(path.name for path in Path("folder").iterdir()) == names
    told = capsys.readouterr().out
    assert "`encode` agrees" in told
    assert "`decode` agrees" in told
    assert "encoder_model.onnx, genai_config.json" in told
    assert [tensor.name for tensor in summarize(Path("folder/encoder_model.onnx")).inputs] == ["audio_features"]
    assert json.loads(Path("folder/genai_config.json").read_text())["model"]["type"] == "whisper"


@pytest.mark.parametrize(
    ("target", "words", "text"),
    [
        ("step", ["--target", "genai"], 'the target "genai" needs `--decoder`'),
        ("decode", ENCODER, "`--encoder` needs `--decoder`"),
        ("step", ["--target", "web", "--decoder", DECODER], "`--target web` and `--decoder` are given"),
        ("step", ["--decoder", DECODER, "-i", "B"], "`--input` and `--decoder` are given"),
        ("decode", ["--decoder", ATTENDING, *ENCODER[:2]], "the input of the encoder is missing"),
        ("step", ["--decoder", "layers=1,depth=2"], "`depth` is unknown; `kv_heads` is missing"),
        ("decode", ["--decoder", DECODER, *ENCODER], "`kv_heads` is unknown; `heads` is missing"),
        ("decode", ["--decoder", ATTENDING], "`heads` is unknown"),
        (
            "decode",
            ["--decoder", ATTENDING, "--encoder", "nets:scaled", "-i", "batch_size,6,3000"],
            "`scaled` is not a step of a decoder",
        ),
    ],
)
def test_what_contradicts_a_decoder_is_refused(
    target: str, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
):
    assert run("export", f"nets:{target}", *words, "-o", "folder") != 0
    assert text in capsys.readouterr().err
    assert not Path("folder").exists()


def test_names_dtypes_and_expressions_reach_the_graph():
    summary = export("nets:embedded", "-i", "ids:int32[B,2*T]", "-i", "table:float32[7,3]", "--output-name", "rows")
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in summary.inputs] == [
        ("ids", "int32", ("B", "2*T")),
        ("table", "float32", (7, 3)),
    ]
    assert [(tensor.name, tensor.shape) for tensor in summary.outputs] == [("rows", ("B", "2*T", 3))]


def test_values_that_are_not_sampled(capsys: pytest.CaptureFixture[str]):
    export("nets:ones", "-i", "ids:int32[4,64]")
    compared = ["verify", "m.onnx", "nets:ones_without_padding", "-i", "ids:int32[4,64]"]
    assert run(*compared) == 1
    assert run(*compared, "--avoid", "ids=0") == 0
    capsys.readouterr()
    assert run(*compared, "--avoid", "ids:0") == 2
    assert '"ids:0" does not specify values to avoid' in capsys.readouterr().err


def test_nan_in_pools():
    assert export("nets:pooled", "-i", "1,5,5,2").operators["MaxPool"] == 1
    assert export("nets:pooled", "-i", "1,5,5,2", "--nonfinite", "exact").operators["MaxPool"] == 2
    assert run("export", "nets:pooled", "-i", "1,5,5,2", "-o", "m.onnx", "--nonfinite", "never") == 2


def test_scans_written_out():
    assert "Loop" in export("nets:doubled", "-i", "3").operators
    assert "Loop" not in export("nets:doubled", "-i", "3", "--unroll-scans", "3").operators


def test_keyword_inputs():
    summary = export("nets:masked", "-i", "x:B,T", "--input-param", "mask:bool[B,T]", "--verify")
    assert [(tensor.name, tensor.dtype) for tensor in summary.inputs] == [("x", "float32"), ("mask", "bool")]


def test_static_arguments_are_baked_in():
    export("nets:scaled", "-i", "x:3", "--static", "factor=2.0")
    assert run("verify", "m.onnx", "nets:scaled", "-i", "x:3", "--static", "factor=2.0") == 0
    assert run("verify", "m.onnx", "nets:scaled", "-i", "x:3", "--static", "factor=3.0") == 1


@pytest.mark.parametrize("opset", [17, 21])
def test_the_operator_set(opset: int):
    assert export("nets:model", "-i", "B,4", "--opset", str(opset), "--verify").opsets["ai.onnx"] == opset


def test_double_precision():
    summary = export("nets:scaled", "-i", "B,4", "--double-precision", "--verify")
    assert summary.inputs[0].dtype == summary.outputs[0].dtype == "float64"


def test_the_layout_at_the_border():
    summary = export("nets:image", "-i", "B,8,6,3", "--nchw-input", "0", "--nchw-output", "0", "--verify")
    assert summary.inputs[0].shape == summary.outputs[0].shape == ("B", 3, 8, 6)


@pytest.mark.parametrize(
    ("which", "names"),
    [
        ("constants", set()),
        ("inputs", {"layers.0.kernel", "layers.0.bias", "layers.1.kernel", "layers.1.bias"}),
        ("layers.*.bias", {"layers.0.bias", "layers.1.bias"}),
    ],
)
def test_what_weights_become(which: str, names: set[str]):
    summary = export("nets:model", "-i", "x:B,4", "--weights", which, "--verify")
    assert {tensor.name for tensor in summary.inputs} == {"x"} | names


def test_functions():
    assert export("nets:model", "-i", "B,4", "--function", "flax.nnx.Linear", "--verify").functions


def test_state(capsys: pytest.CaptureFixture[str]):
    assert run("export", "nets:norm", "-i", "B,4", "-o", "m.onnx") == 1
    assert "jaxport.StateChanged" in capsys.readouterr().err
    assert not Path("m.onnx").exists()
    assert len(export("nets:norm", "-i", "B,4", "--state", "outputs").outputs) == 3
    assert len(export("nets:norm", "-i", "B,4", "--state", "discard").outputs) == 1


def test_external_data():
    summary = export("nets:Perceptron(size=64)", "-i", "B,64", "--external-data")
    (data,) = Path().glob("m.onnx.*.data")
    assert data.stat().st_size > 0.9 * summary.weight_bytes > summary.file_bytes
    assert run("verify", "m.onnx", "nets:Perceptron(size=64)", "-i", "B,64") == 0


def test_the_explanation_names_the_users_line(capsys: pytest.CaptureFixture[str]):
    export("nets:scaled", "-i", "B,4", "--explain")
    shown = capsys.readouterr().out
    line = next(number for number, text in enumerate(NETS.splitlines(), 1) if "jnp.tanh(x) * factor" in text)
    assert f"nets.py:{line} in scaled" in shown
    assert "Tanh" in shown


def test_the_module_tree_is_shown(capsys: pytest.CaptureFixture[str]):
    export("nets:model", "-i", "B,4")
    capsys.readouterr()
    assert run("inspect", "m.onnx") == 0
    shown = capsys.readouterr().out
    for text in ["layers.0", "layers.1", "Linear", "20 parameters"]:
        assert text in shown


def test_a_mismatch_ends_with_status_1(capsys: pytest.CaptureFixture[str]):
    export("nets:scaled", "-i", "B,4")
    capsys.readouterr()
    assert run("verify", "m.onnx", "nets:other", "-i", "B,4") == 1
    shown = capsys.readouterr()
    assert "0.01" in shown.out or "1.0e-02" in shown.out or "1.00e-02" in shown.out
    assert "Traceback" not in shown.err


def test_the_sizes_are_those_that_were_asked_for(capsys: pytest.CaptureFixture[str]):
    export("nets:scaled", "-i", "B,4", "--verify", "--size", "B=3", "--size", "B=11")
    assert "11" in capsys.readouterr().out


def test_a_refusal_names_every_operation_and_line(capsys: pytest.CaptureFixture[str]):
    assert run("export", "nets:hosted", "-i", "B,4", "-o", "m.onnx") == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("jaxport.Unsupported: 1 operation of `hosted` cannot be exported\n  pure_callback")
    assert "in hosted" in shown.err
    assert "Traceback" not in shown.err + shown.out
    assert not Path("m.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["-i", "B,4", "--opset", "99"], 2, "opset 99 is out of range"),
        (["-i", "x:B,T+)"], 2, "is neither a size nor an expression"),
        (["-i", "B,4", "--constraint", "nonsense"], 2, "nonsense"),
        (["-i", "B,4", "--function", "flax.nnx.Lineer"], 1, "flax.nnx.Lineer"),
        (["-i", "B,4", "--nchw-input", "0"], 2, "rank 4"),
        (["-i", "B,4", "-i", "B"], 1, "scaled"),
        (["-i", "B,4", "-o", "nets.py/m.onnx"], 2, "nets.py/m.onnx"),
    ],
)
def test_what_cannot_be_done_is_one_clean_message(
    arguments: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
):
    assert run("export", "nets:scaled", "-o", "m.onnx", *arguments) == status
    shown = capsys.readouterr()
    assert text in shown.err
    assert "Traceback" not in shown.err + shown.out
    assert not Path("m.onnx").exists()


def test_the_file_runs():
    import onnxruntime

    export("nets:scaled", "-i", "x:B,4", "--static", "factor=2.0")
    x = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    (y,) = onnxruntime.InferenceSession("m.onnx").run(None, {"x": x})
    np.testing.assert_allclose(y, 2 * np.tanh(x), rtol=1e-6)
