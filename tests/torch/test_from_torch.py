"""`from_torch`: modules of PyTorch as programs, with the names, roles and ties of the module."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch warns of itself
    torch = pytest.importorskip("torch", reason="PyTorch has an environment of its own: `make test-torch`")
    import onnxscript
    import transformers
    from torch import nn

    from tests.torch import idioms
    from tests.torch.fresh import MODULES
    from tests.torch.idioms import MODULES as IDIOMS
    from tests.torch.models import CASES, SIZES, Plain

import jaxport
from jaxport.importer import namespaces as ns
from jaxport.importer.arguments import checked

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
@pytest.mark.parametrize("name", MODULES)
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


@pytest.mark.parametrize("name", IDIOMS)
def test_what_is_one_line_computes_the_same(name: str, tmp_path: Path):
    make, args, shapes = IDIOMS[name]
    torch.manual_seed(0)
    module = make().eval()
    program = jaxport.from_torch(module, args, dynamic_shapes=shapes)
    program.to_source(tmp_path, framework="nnx")
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(module(*args))
    found = jax.tree.leaves(load(tmp_path).load()(*(one.numpy() for one in args)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


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


class Caching(nn.Module):
    """A model of transformers whose `forward` has `use_cache` among its other arguments, as GraniteMoE does."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.config = nn.Linear(2, 2), SimpleNamespace(use_cache=True, sizes={})

    def forward(self, x: torch.Tensor, **more: Any) -> tuple[Any, ...]:
        self.config.sizes["rows"] = len(x)
        returned = more.get("use_cache", self.config.use_cache)
        return (self.part(x), object()) if returned else (self.part(x),)


def test_a_cache_that_the_configuration_asks_for_is_no_result():
    module, x = Caching(), torch.ones(3, 2)
    assert len(jaxport.from_torch(module, x).output_names) == 1
    assert vars(module.config) == {"use_cache": True, "sizes": {}}
    with pytest.raises(jaxport.InvalidArgument, match=r"the result\[1\] is not a tensor, but of type `object`"):
        jaxport.from_torch(module, x, {"use_cache": True})


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


def test_a_tensor_alone_is_one_argument():
    linear = nn.Linear(3, 4)
    program = jaxport.from_torch(linear, torch.ones(2, 3), dynamic_shapes=("batch", 3))
    assert [str(value.shape) for value in program.inputs] == ["[batch,3]"]
    x = torch.randn(5, 3, requires_grad=True)
    np.testing.assert_allclose(program(x), linear(x).detach(), rtol=1e-5, atol=1e-6)  # sums in another order
    with pytest.raises(jaxport.InvalidArgument, match="`args` is of type `dict`"):
        jaxport.from_torch(linear, {"input": torch.ones(2, 3)})


def test_a_program_takes_tensors_as_they_are():
    module = nn.Linear(64, 2).bfloat16()
    program = jaxport.from_torch(module, (torch.ones(2, 64).bfloat16(),))
    x = torch.ones(2, 64).bfloat16()
    np.testing.assert_array_equal(program(x), program(x.view(torch.int16).numpy().view("bfloat16")))
    taken = checked(program.inputs[0], x, False, ())
    assert taken.unsafe_buffer_pointer() == x.data_ptr()  # no copy
    with pytest.raises(jaxport.InvalidArgument, match="is float32, the model declares bfloat16"):
        program(x.float())


@pytest.mark.parametrize("experts", ["grouped_mm", "eager", "batched_mm"])
def test_experts_are_spelled_out_while_pytorch_traces(experts: str):
    config = {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.MixtralConfig(**config, experts_implementation=experts)
    )
    program = jaxport.from_torch(model, kwargs=TEXT, dynamic_shapes=OPEN)
    assert model.config._experts_implementation == experts
    assert "model.layers.0.mlp.experts.gate_up_proj" in program.params


def test_attention_in_compiled_kernels_is_spelled_out():
    from jaxport.pytorch.modules import spelled_out

    model = transformers.BertModel(transformers.BertConfig(**SMALL))
    for name in ("flash_attention_2", "flex_attention", "kernels-community/flash-attn", "paged|sdpa", "eager", "mine"):
        model.config._attn_implementation_internal = name
        with spelled_out(model):
            assert model.config._attn_implementation == (name if name in ("eager", "mine") else "sdpa")
        assert model.config._attn_implementation == name


class Unnamed(tuple):
    """A result whose type does not say how its parts are called, as in diffusers."""

    __slots__ = ()


torch.utils._pytree.register_pytree_node(Unnamed, lambda each: (list(each), None), lambda parts, _: Unnamed(parts))
attended = nn.functional.scaled_dot_product_attention
TRACED: dict[str, Any] = {
    "a squeeze of a size that is not one": lambda x, _: x.squeeze(1) + 1,
    "such a squeeze is the result": lambda x, _: x.squeeze(2),
    "of several, one is": lambda x, y: (x.squeeze((1, 2)), y.squeeze((1, 2))),
    "a squeeze of an open size": lambda x, _: x.squeeze(0) * 2,
    "a squeeze of one": lambda _, y: y.squeeze(1),
    "a shared head": lambda x, y: attended(x, y, y, scale=0.5),
    "a shared head by name": lambda x, y: attended(query=x, key=y, value=y, is_causal=True),
    "parts without names": lambda x, y: Unnamed((x + y, x * y)),
}


@pytest.mark.parametrize("name", TRACED)
def test_what_pytorch_would_write_otherwise(name: str):
    module, arguments = idioms.Computed(TRACED[name]), (torch.randn(2, 3, 4, 5), torch.randn(2, 1, 4, 5))
    program = jaxport.from_torch(module, arguments, dynamic_shapes=[("batch", 3, 4, 5), ("batch", 1, 4, 5)])
    for batch in (2, 3):
        x, y = torch.randn(batch, 3, 4, 5), torch.randn(batch, 1, 4, 5)
        found, expected = program(x.numpy(), y.numpy()), module(x, y)
        for one, other in zip(jax.tree.leaves(found), torch.utils._pytree.tree_leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_nothing_stays_on_tensors_after_a_refusal():
    cell, x = nn.LSTM(3, 4, batch_first=True), torch.ones(2, 5, 3)
    with pytest.raises(jaxport.ExportError, match="specialized it to be a constant") as refused:
        jaxport.from_torch(cell, (x,), dynamic_shapes=[("batch", "length", 3)])
    assert "leave the size that the reason names fixed" in refused.value.instead
    assert not vars(x)
    assert len(jaxport.from_torch(cell, (x,)).output_names) == 3


@pytest.mark.filterwarnings("ignore")  # PyTorch deprecates what it imports
def test_wrapped_modules_have_the_names_of_what_they_wrap():
    for wrapped in (nn.DataParallel(nn.Linear(3, 4)), torch.compile(nn.Linear(3, 4))):
        assert [*jaxport.from_torch(wrapped, torch.ones(2, 3)).params] == ["weight", "bias"]


class Computed(nn.Module):
    """A module that computes a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "an if": (lambda: Computed(lambda x: x if x.sum() > 0 else -x), jaxport.ExportError, r"test_from_torch.py:\d+ in(?s:.*)`torch.where\("),
    "steps": (lambda: Computed(lambda x: torch.zeros(int(x.sum().item()))), jaxport.ExportError, "as a Python number"),
    "NumPy": (lambda: Computed(lambda x: torch.from_numpy(x.numpy() * 2)), jaxport.ExportError, "NumPy is not traced"),
    "a script": (lambda: torch.jit.trace(nn.Linear(3, 4), torch.ones(2, 3)), jaxport.InvalidArgument, "is a script"),
    "integers": (lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 4))), jaxport.InvalidArgument,
        "`0` of `Sequential` is quantized by PyTorch"),
    "draws": (lambda: Computed(lambda x: x + torch.randn_like(x)), jaxport.VerificationFailed, "draws random numbers(?s:.*)`verify=False`"),
    "complex": (lambda: Computed(torch.fft.fft), jaxport.InvalidArgument, r"the result is complex(?s:.*)torch\.view_as_real"),
    "text": (lambda: Computed(lambda x: {"a": x, "b": "text"}), jaxport.InvalidArgument, r"the result\['b'\] is not a tensor"),
    "unwritten": (lambda: Computed(lambda x: torch.linalg.svd(x)[1]), jaxport.ExportError,
        r"\{torch\.ops\.aten\._linalg_svd\.default: function\}"),
    "meta": (lambda: nn.Linear(3, 4, device="meta"), jaxport.InvalidArgument, "`weight` of `Linear` is on the device `meta`"),
    "no module": (lambda: torch.relu, jaxport.InvalidArgument, r"is not a `torch\.nn\.Module`"),
    "other sizes": (lambda: nn.Linear(2, 2), jaxport.InvalidArgument, "cannot be called with these arguments"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # PyTorch deprecates what is refused
@pytest.mark.parametrize("what", REFUSED)
def test_the_advice_is_for_the_failure(what: str):
    make, kind, told = REFUSED[what]
    with pytest.raises(kind, match=told):
        jaxport.from_torch(make(), (torch.ones(2, 3),))


def in_chunks(x: torch.Tensor) -> torch.Tensor:
    """Sums of chunks of four, padded where some are missing, as in Mamba 2."""
    size = x.shape[1]
    missing = (4 - size % 4) % 4
    x = nn.functional.pad(x, (0, missing)) if missing else x
    y = x.reshape(x.shape[0], -1, 4)
    return (y.cumsum(2) + y.sum((1, 2), keepdim=True)).reshape(x.shape[0], -1)[:, :size]


@pytest.mark.parametrize("length", [7, 8])
def test_a_case_is_traced_that_holds_for_all_sizes(length: int):
    """PyTorch traces multiples of four, which are not padded, as the only ones."""
    program = jaxport.from_torch(Computed(in_chunks), torch.ones(2, length), dynamic_shapes=("batch", "length"))
    for other in (4, 9):
        x = torch.randn(3, other)
        np.testing.assert_allclose(program(x), in_chunks(x), rtol=1e-5, atol=1e-5)


class Pair(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y.sum() if x.shape == y.shape else x


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (
            Computed(lambda x: x * 2 if x.shape[1] % 4 == 0 else x),
            r"x\.size\(\)\[1\] % 4 == 0`, which does not hold for",
        ),
        (Computed(lambda x: x * 2 if x.shape[1] > 16 else x), r"x\.size\(\)\[1\] <= 16`, which .* b = 17"),
        (Pair(), r"`y\.size\(\)\[0\] == x\.size\(\)\[0\]`, which .* a = 3, b = 8, c = 2"),
    ],
)
def test_what_a_module_decides_by_sizes_is_no_silent_constant(module: nn.Module, told: str):
    count = len(inspect.signature(module.forward).parameters)
    shapes = [("a", "b"), ("c", "d")][:count]
    with pytest.raises(jaxport.VerificationFailed, match=told):
        jaxport.from_torch(module, (torch.ones(2, 8),) * count, dynamic_shapes=shapes)


def test_operators_of_your_own_are_written_and_computed():
    @torch.library.custom_op("jaxport_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    domain, own = (onnxscript.values.Opset(name, 1) for name in ("jaxport.tests", "jaxport.functions"))

    @onnxscript.script(own)
    def written(x: onnxscript.FLOAT) -> onnxscript.FLOAT:
        return domain.Twice(x)

    @jaxport.op("jaxport.tests", "Twice")
    def computed(x: Any) -> Any:
        return ns.jnp.multiply(x, 2)

    table = {torch.ops.jaxport_tests.twice.default: written}
    program = jaxport.from_torch(Computed(twice), torch.ones(2, 3), custom_translation_table=table)
    assert "jnp.multiply(x, 2" in program.to_source(framework="nnx").code


def test_what_is_refused():
    linear = nn.Linear(2, 2)
    with pytest.raises(jaxport.InvalidArgument, match="`y` is not an argument"):
        jaxport.from_torch(linear, (torch.ones(1, 2),), dynamic_shapes={"y": ("batch", 2)})
    with pytest.raises(jaxport.InvalidArgument, match="does not fit `input`"):
        jaxport.from_torch(linear, (torch.ones(1, 2),), dynamic_shapes=[("batch", 3)])
    with pytest.raises(jaxport.InvalidArgument, match="`n` is 2 and 3"):
        jaxport.from_torch(nn.Bilinear(2, 3, 2), (torch.ones(2), torch.ones(3)), dynamic_shapes=[("n",), ("n",)])


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
