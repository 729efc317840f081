"""Which parameters are trained: masks by path, as optax takes them; and activations by their usual names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxport.errors import QueryError
from jaxport.mox.programs.tree import short_name

if TYPE_CHECKING:
    from jaxport.mox.expressions import Match, Mox

_ACTIVATIONS = frozenset({
    "celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "leaky_relu", "log_sigmoid",
    "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus", "soft_sign", "sparse_plus", "squareplus", "swish",
})  # fmt: skip


def trainable(mox: Mox, which: str | Callable[[str], bool]) -> dict[str, bool]:
    """Return whether to train each parameter, by path: for `optax.masked`, `optax.multi_transform` and the like.

    Args:
      mox: the Mox whose `params` are trained.
      which: a predicate on paths, or an XPath query, which selects the parameters of the blocks that it matches.

    Raises:
      QueryError: the query is malformed or matches nothing, or no parameter is chosen.

    >>> import jax.numpy as jnp, jaxport
    >>> from flax import nnx
    >>> mox = jaxport.make_mox(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))(jnp.ones((1, 3)))
    >>> adapted = mox.sub("//Linear", jaxport.mox.lora(rank=2))
    >>> jaxport.mox.trainable(adapted, lambda path: "lora" in path)
    {'bias': False, 'kernel': False, 'lora_a': True, 'lora_b': True}
    """
    if callable(which):
        return _of_some({path: bool(which(path)) for path in mox.params}, mox, "the predicate")
    selection = mox.select(which)
    if not selection.count():
        raise QueryError(f"`{which}` matches nothing, so nothing would be trained", where=f"`{mox.name}`")
    chosen = {
        path for node in selection.layers().nodes if node.block is not None for path in node.block.weights.values()
    }
    return _of_some({path: path in chosen for path in mox.params}, mox, f"`{which}`")


def _of_some(mask: dict[str, bool], mox: Mox, which: str) -> dict[str, bool]:
    if mask and not any(mask.values()):
        raise QueryError(
            f"{which} chooses no parameter, so nothing would be trained",
            where=f"`{mox.name}`",
            instead="`mox.params` has their paths",
        )
    return mask


def activations(match: Match) -> bool:
    """Whether a match is an activation function: a predicate for `Mox.select`.

    Activations that JAX inlines (`gelu`, `softmax`) are found only if `make_mox` makes blocks of them:
    ``make_mox(model, functions=["jax.nn.gelu"])``.

    >>> import jax, jax.numpy as jnp, jaxport
    >>> mox = jaxport.make_mox(lambda x: jax.nn.silu(jax.nn.relu(x)))(jnp.ones(3))
    >>> mox.select(jaxport.mox.activations).paths()
    ['relu', 'silu']
    """
    if match.block is not None:
        return match.block.kind == "function" and short_name(match.block.target) in _ACTIVATIONS
    return match.node.equation.primitive.name == "jit" and match.config.get("name") in _ACTIVATIONS
