"""One model on each way: what it returns and its gradient, as calls that return when the device is done.

Compiling and running are apart, so that several processes can compile at once, and each of them measures alone.
"""

from __future__ import annotations

import fcntl
import importlib.util
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

import jaxport
from benchmarks.gpu.cases import Made
from benchmarks.gpu.flax_models import loaded

Tree = Any
Call = Callable[[], Tree]


@dataclass(frozen=True)
class Ready:
    """A call that is compiled.

    Attributes:
      run: starts it.
      wait: waits for its result, and returns it.
      seconds: how long compiling took.
      megabytes: what its temporary values and results take, if that is known beforehand.
    """

    run: Call
    wait: Callable[[Tree], Tree]
    seconds: float = 0.0
    megabytes: float | None = None


Maker = Callable[[], Ready]


def device() -> torch.device:
    """The device of PyTorch."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronized(result: Tree) -> Tree:
    """Return a result of PyTorch when the device has computed it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result


@contextmanager
def full_precision(wanted: bool) -> Iterator[None]:
    """Compute products of float32 exactly on both sides, or in TF32 as both sides can."""
    torch.set_float32_matmul_precision("highest" if wanted else "high")
    torch.backends.cudnn.allow_tf32 = not wanted
    with jax.default_matmul_precision("highest" if wanted else "default"):
        yield


SLOTS = "JAXPORT_GPU_SLOTS"
"""The variable with the folder of the locks."""

MOST = 3
"""How many processes have XLA compile at once: it tries kernels on the device, and times them."""


@contextmanager
def turn() -> Iterator[None]:
    """Wait until fewer than `MOST` processes compile, if there are several."""
    folder = os.environ.get(SLOTS)
    if folder is None:
        yield
        return
    for number in itertools.cycle(range(MOST)):
        with (Path(folder) / str(number)).open("w") as slot:
            try:
                fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
                continue
            yield
            return


def jitted(function: Callable[..., Tree], *arguments: Tree) -> Maker:
    """Return what compiles a function of JAX for its arguments."""

    def make() -> Ready:
        lowered = jax.jit(function).lower(*arguments)
        with turn():
            start = time.perf_counter()
            compiled = lowered.compile()
            seconds = time.perf_counter() - start
        memory = compiled.memory_analysis()
        taken = None if memory is None else (memory.temp_size_in_bytes + memory.output_size_in_bytes) / 2**20
        return Ready(lambda: compiled(*arguments), jax.block_until_ready, seconds, taken)

    return make


def nnx_jitted(model: nnx.Module, *inputs: jax.Array) -> Maker:
    """Return what compiles a model of Flax as `nnx.jit` does, which walks over its objects at each call."""

    def make() -> Ready:
        forward = nnx.jit(lambda model, *inputs: model(*inputs))
        with turn():
            start = time.perf_counter()
            jax.block_until_ready(forward(model, *inputs))
            seconds = time.perf_counter() - start
        return Ready(lambda: forward(model, *inputs), jax.block_until_ready, seconds)

    return make


def loss_of(output: jax.Array) -> jax.Array:
    """A number that depends on all outputs."""
    return jnp.mean(jnp.square(output.astype(jnp.float32)))


def trained(apply: Callable[..., jax.Array]) -> Callable[..., Tree]:
    """Return the loss and its gradient with respect to the first argument."""
    return jax.value_and_grad(lambda params, *inputs: loss_of(apply(params, *inputs)))


def of_torch(made: Made) -> dict[str, Maker]:
    """PyTorch as it is, and compiled."""
    module, inputs = made.module.to(device()), tuple(each.to(device()) for each in made.inputs)
    compiled = torch.compile(module)

    def forward(model: Callable[..., torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            return model(*inputs)

    def gradient(model: Callable[..., torch.Tensor]) -> Tree:
        module.zero_grad(set_to_none=True)
        loss = model(*inputs).float().square().mean()
        loss.backward()
        return loss.detach(), {name: parameter.grad for name, parameter in module.named_parameters()}

    def maker(call: Callable[..., Tree], model: Callable[..., torch.Tensor]) -> Maker:
        def make() -> Ready:
            start = time.perf_counter()
            synchronized(call(model))
            seconds = time.perf_counter() - start
            module.zero_grad(set_to_none=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            return Ready(lambda: call(model), synchronized, seconds)

        return make

    return {
        "PyTorch eager": maker(forward, module),
        "PyTorch eager, gradient": maker(gradient, module),
        "torch.compile": maker(forward, compiled),
        "torch.compile, gradient": maker(gradient, compiled),
    }


def of_flax(name: str, model: nnx.Module, inputs: tuple[jax.Array, ...]) -> dict[str, Maker]:
    """A model of Flax as a function of its state, and under `nnx.jit`."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def apply(params: Tree, rest: Tree, *inputs: jax.Array) -> jax.Array:
        return nnx.merge(graph, params, rest)(*inputs)

    return {
        name: jitted(apply, params, rest, *inputs),
        f"{name}, gradient": jitted(trained(apply), params, rest, *inputs),
        f"{name}, nnx.jit": nnx_jitted(model, *inputs),
    }


def of_program(name: str, program: jaxport.Program, inputs: tuple[jax.Array, ...]) -> dict[str, Maker]:
    """An imported program as a function of its parameters, and with them as constants."""
    params = jax.device_put(dict(program.params))
    return {
        name: jitted(program.apply, params, *inputs),
        f"{name}, gradient": jitted(trained(program.apply), params, *inputs),
        f"{name}, constant weights": jitted(program, *inputs),
    }


def printed(program: jaxport.Program, folder: Path) -> nnx.Module:
    """The model whose source the program prints, with its weights."""
    program.to_source(folder, framework="nnx")
    spec = importlib.util.spec_from_file_location(f"printed_{folder.name}", folder / "model.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no module in {folder}")
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


def arrays_of(state: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """The tensors of a state dict as arrays of float32, which NumPy has."""
    return {name.removeprefix("model."): tensor.detach().cpu().float().numpy() for name, tensor in state.items()}


def flax_model(architecture: str, made: Made, dtype: Any) -> nnx.Module:
    """The model in Flax, written by hand, with the weights of PyTorch's."""
    return loaded(architecture, made.config, arrays_of(made.module.state_dict()), dtype)


def tensor(value: Any) -> torch.Tensor:
    """Return an array of either library as a tensor of float32, where it is."""
    found = value if isinstance(value, torch.Tensor) else torch.from_dlpack(value)
    return found.detach().float()


def difference(one: Any, expected: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest element."""
    return float((tensor(one) - expected).abs().max() / expected.abs().max())


def gradient_difference(one: Mapping[str, Any], expected: Mapping[str, torch.Tensor]) -> float:
    """Return the norm of the difference of gradients, relative to that of the gradient."""
    square = whole = 0.0
    for name, each in expected.items():
        found = tensor(one[name])
        # A program may keep the kernels of convolutions as JAX has them, with channels last.
        other = each if found.shape == each.shape else each.permute(2, 3, 1, 0)
        square += float((found - other).square().sum(dtype=torch.float64))
        whole += float(other.square().sum(dtype=torch.float64))
    return (square / whole) ** 0.5
