"""`from_torch`: modules of PyTorch as programs, with the names, roles and ties of the module."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch warns of itself
    torch = pytest.importorskip("torch", reason="PyTorch has an environment of its own: `make test-torch`")
    import transformers
    from torch import nn

    from tests.torch.fresh import MODULES
    from tests.torch.models import CASES, SIZES, Plain

import jaxport

pytestmark = pytest.mark.torch

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 60}
TEXT = {
    "input_ids": torch.randint(0, 60, (1, 7), generator=torch.Generator().manual_seed(0)),
    "attention_mask": torch.tensor([[1] * 5 + [0] * 2]),
}
OPEN = {"input_ids": ("batch", "seq"), "attention_mask": ("batch", "seq")}


def load(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("printed", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["printed"] = module  # NNX looks up the module of a class
    spec.loader.exec_module(module)
    return module


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 4)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm2d(4)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("unused", torch.zeros(3))
        self.head = nn.Linear(4, 12, bias=False)
        self.head.weight = self.table.weight
        for layer in (self.first, self.second):
            nn.init.zeros_(layer.bias)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.drop(self.second(torch.relu(self.first(self.table(ids)))) * self.scale + self.frozen)
        return {"hidden": x, "logits": self.head(self.norm(x.transpose(1, 2)[..., None])[..., 0].transpose(1, 2))}


def test_names_roles_and_ties_are_those_of_the_module(tmp_path: Path):
    torch.manual_seed(0)
    module = Tied()
    program = jaxport.from_torch(module, (torch.tensor([[3, 1, 2]]),), dynamic_shapes=[("batch", "length")])
    assert module.training
    assert module.norm.training
    assert program.output_names == ("hidden", "logits")
    layers = [f"{name}.{part}" for name in ("first", "second") for part in ("weight", "bias")]
    assert set(program.params) == {"table.weight", *layers, "norm.weight", "norm.bias"}
    assert program.roles["norm.running_mean"] == "statistic"
    assert program.roles["scale"] == "statistic"
    assert program.roles["frozen"] == "constant"
    program.to_source(tmp_path, framework="nnx")
    for state in (module.state_dict(keep_vars=True), {k: v.double() for k, v in module.state_dict().items()}):
        load(tmp_path).load_pytorch(state)
    with pytest.raises(
        ValueError, match=r"`table\.weight` and `head\.weight` are one tensor in this model, and differ"
    ):
        load(tmp_path).load_pytorch({**module.state_dict(), "head.weight": torch.ones(12, 4)})
    module.scale += 1
    found = load(tmp_path).load_pytorch(module.state_dict())(np.array([[0, 11], [4, 4]]))
    expected = module.eval()(torch.tensor([[0, 11], [4, 4]]))
    for name, value in zip(("hidden", "logits"), found, strict=True):
        np.testing.assert_allclose(value, expected[name].detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("framework", ["nnx", "equinox"])
@pytest.mark.parametrize("name", [name for name in MODULES if name != "recurrent"])  # whose gates are parts of entries
def test_a_fresh_module_loads_a_trained_checkpoint(name: str, framework: Any, tmp_path: Path):
    make, example, _ = MODULES[name]
    torch.manual_seed(0)
    program, trained, x = jaxport.from_torch(make(), (example(),)), make(), example()
    program.to_source(tmp_path, framework=framework)
    with torch.no_grad():
        for tensor in (*trained.parameters(), *trained.buffers()):
            if tensor.is_floating_point():
                tensor.uniform_(0.2, 0.9)
    found = load(tmp_path).load_pytorch({key: value.detach() for key, value in trained.state_dict().items()})(x.numpy())
    np.testing.assert_allclose(found, trained.eval()(x).detach(), rtol=1e-4, atol=1e-5)


class Cached(nn.Module):
    """A module that keeps the rows of its parameter while it is evaluated, as LeViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.biases, self.cache = nn.Parameter(torch.zeros(3)), {}

    def train(self, mode: bool = True) -> Cached:
        super().train(mode)
        if mode:
            self.cache = {}
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return x + self.biases[[2, 0]]
        if "rows" not in self.cache:
            self.cache["rows"] = self.biases[[2, 0]]
        return x + self.cache["rows"]


@pytest.mark.parametrize("is_called", [False, True])
def test_what_a_module_keeps_of_its_calls_is_no_constant(is_called: bool):
    module = Cached().eval()
    x = torch.ones(4, 2)
    kept = module(x) if is_called else None
    cache = module.cache
    program = jaxport.from_torch(module, (x,))
    assert [*program.params] == ["biases"]
    np.testing.assert_array_equal(program.apply({"biases": np.float32([1, 2, 3])}, x.numpy())[0], [4, 2])
    assert module.cache is cache
    assert [*cache] == ["rows"] * is_called
    assert not module.training
    assert kept is None or torch.equal(module(x), kept)


def test_the_program_keeps_its_weights_when_the_module_changes():
    module = nn.Linear(2, 2)
    program = jaxport.from_torch(module, (torch.ones(1, 2),))
    before = np.array(program(np.ones((1, 2), np.float32)))
    with torch.no_grad():
        module.weight.zero_()
    np.testing.assert_array_equal(program(np.ones((1, 2), np.float32)), before)


@pytest.mark.parametrize(
    "config",
    [
        transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=4, vocab_size=60, n_positions=64, bos_token_id=0, eos_token_id=1
        ),
        transformers.LlamaConfig(**SMALL, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2),
        transformers.BertConfig(**SMALL, max_position_embeddings=64),
    ],
    ids=lambda config: config.model_type,
)
def test_language_models_print_and_load_their_checkpoints(config: transformers.PretrainedConfig, tmp_path: Path):
    torch.manual_seed(0)
    kind = transformers.AutoModel if config.model_type == "bert" else transformers.AutoModelForCausalLM
    model = kind.from_config(config)
    program = jaxport.from_torch(model, kwargs=TEXT, dynamic_shapes=OPEN)
    source = program.to_source(tmp_path, framework="nnx")
    assert "def load_pytorch(" in source.code
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        expected = model.eval()(**TEXT, use_cache=False)[0]
    printed = load(tmp_path).load_pytorch(model.state_dict())
    found = printed(*(value.numpy() for value in TEXT.values()))
    found = found[0] if isinstance(found, tuple) else found
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet", "vit", "t5", "unet"])
def test_models_of_the_list(name: str):
    case = CASES[name]
    torch.manual_seed(0)
    inputs = case.inputs(SIZES[0])
    shapes = [case.axes.get(key, {}) for key in inputs]
    module = case.make()
    positional = {"tensors": shapes} if isinstance(module, Plain) else shapes
    program = jaxport.from_torch(module, tuple(inputs.values()), dynamic_shapes=positional)
    assert {*program.params} <= {key for key, _ in module.named_parameters(remove_duplicate=False)}


def test_what_is_refused():
    linear = nn.Linear(2, 2)
    with pytest.raises(jaxport.InvalidArgument, match=r"is not a `torch\.nn\.Module`"):
        jaxport.from_torch(torch.relu, (torch.ones(2),))
    with pytest.raises(jaxport.InvalidArgument, match="cannot be called with these arguments"):
        jaxport.from_torch(linear, (torch.ones(3),))
    with pytest.raises(jaxport.InvalidArgument, match="`y` is not an argument"):
        jaxport.from_torch(linear, (torch.ones(1, 2),), dynamic_shapes={"y": ("batch", 2)})
    with pytest.raises(jaxport.InvalidArgument, match="does not fit `input`"):
        jaxport.from_torch(linear, (torch.ones(1, 2),), dynamic_shapes=[("batch", 3)])
    with pytest.raises(jaxport.InvalidArgument, match="`n` is 2 and 3"):
        jaxport.from_torch(nn.Bilinear(2, 3, 2), (torch.ones(2), torch.ones(3)), dynamic_shapes=[("n",), ("n",)])

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cell(x)[0]

    with pytest.raises(jaxport.ExportError, match="specialized it to be a constant"):
        jaxport.from_torch(Steps(), (torch.ones(2, 5, 3),), dynamic_shapes=[("batch", "length", 3)])

    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(jaxport.ExportError, match="PyTorch cannot trace `Branches`"):
        jaxport.from_torch(Branches(), (torch.ones(2),))


def test_the_command_imports_a_module(tmp_path: Path):
    from typer.testing import CliRunner

    from jaxport.cli.app import app

    target = "torch.nn:Linear(3, 4)"
    result = CliRunner().invoke(
        app, ["import", target, "--torch", "--input", "batch,3", "-o", str(tmp_path), "--verify"]
    )
    assert result.exit_code == 0, result.output
    assert "nnx.Linear(3, 4" in (tmp_path / "model.py").read_text()
    refused = CliRunner().invoke(app, ["import", target, "--torch", "-o", str(tmp_path)])
    assert refused.exit_code != 0


def test_frozen_modules_load_checkpoints(tmp_path: Path):
    make = lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    module, other, x = make().requires_grad_(False), make(), torch.randn(2, 3)
    program = jaxport.from_torch(module, (x,))
    assert program.params == {}
    program.to_source(tmp_path, framework="nnx")
    found = load(tmp_path).load_pytorch({name: tensor.bfloat16() for name, tensor in other.state_dict().items()})(
        x.numpy()
    )
    expected = other.bfloat16().float()(x).detach()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
