"""Modules of PyTorch: in evaluation mode, computed by operators that PyTorch writes, and left as they were."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jaxport.errors import NotInstalled

if TYPE_CHECKING:
    import torch  # pyright: ignore[reportMissingImports]

CONTAINERS = (dict, OrderedDict, defaultdict, list, set)

# What computes the parts of a model of transformers, by the attribute of its configuration: what PyTorch cannot write,
# and what
# computes the same. The loop over experts that were hit depends on numbers, attention in compiled kernels and in
# blocks is no
# operator, and fused experts are sorted on the device. The weights of `megamoe` are laid out for it.
BACKENDS = {
    "_experts_implementation_internal": (re.compile(r"(?!batched_mm$|.*megamoe)"), ("batched_mm",)),
    "_attn_implementation_internal": (re.compile(r"flash|flex|paged|.*/"), ("sdpa", "eager")),
}


def pytorch() -> Any:
    """PyTorch.

    Raises:
      NotInstalled: it is not installed, or what its exporter needs.
    """
    try:
        import onnxscript  # noqa: F401  # pyright: ignore[reportMissingImports]  PyTorch's exporter needs it
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise NotInstalled(
            f"`{error.name}` is not installed",
            where="`from_torch`",
            instead='install it: `pip install "jaxport[torch]"`; or write an ONNX file elsewhere, and read it by '
            "`from_onnx`",
        ) from error
    return torch


def pytree() -> Any:
    """PyTorch's trees."""
    from torch.utils import _pytree  # pyright: ignore[reportMissingImports]

    return _pytree


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and back, without what it has kept of earlier calls in that mode."""
    with unchanged(module):
        module.train().eval()
        yield


@contextmanager
def unchanged(module: torch.nn.Module) -> Iterator[None]:
    """Restore the attributes of a module, of its parts and of their configurations, such as a cache that a call fills:
    a trace would read constants.
    """
    parts = [*module.modules(), *configurations(module)]
    held = [(part, dict(vars(part))) for part in parts]
    # Subclasses may be frozen, as the configurations of diffusers are.
    containers = [one for _, own in held for one in own.values() if type(one) in CONTAINERS]
    contents = [copy.copy(one) for one in containers]
    try:
        yield
    finally:
        for part, own in held:
            vars(part).clear()
            vars(part).update(own)
        for container, content in zip(containers, contents, strict=True):
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(content)


def configurations(module: torch.nn.Module) -> list[Any]:
    """Return what the parts of a model of transformers are configured with."""
    configs = [vars(part).get("config") for part in module.modules()]
    return [one for one in configs if isinstance(getattr(one, "__dict__", None), dict)]


def stop_caching(module: torch.nn.Module) -> bool:
    """Have a model of transformers return no cache where its configuration says so, until `unchanged` restores that;
    return whether it did until now.
    """
    caching = [config for config in configurations(module) if getattr(config, "use_cache", False)]
    for config in caching:
        config.use_cache = False
    return bool(caching)


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside of those that only compile it, or spread it over devices."""
    parallel = pytorch().nn.parallel
    while True:
        if isinstance(module, parallel.DataParallel | parallel.DistributedDataParallel):
            module = module.module
        elif type(module).__name__ == "OptimizedModule":  # of `torch.compile`
            module = module._orig_mod
        else:
            return module


@contextmanager
def spelled_out(module: torch.nn.Module) -> Iterator[None]:
    """Have a model of transformers compute by operators that PyTorch writes, and leave it as it was afterwards."""
    with unchanged(module):
        for part in module.modules():
            config = vars(part).get("config")
            for attribute, (replaced, others) in BACKENDS.items():
                now = getattr(config, attribute, None)
                if isinstance(now, str) and replaced.match(now):
                    setattr(config, attribute, others[-1 if getattr(part, "_supports_sdpa", True) is False else 0])
        yield
