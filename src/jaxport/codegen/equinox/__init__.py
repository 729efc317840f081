"""Structured source for Equinox."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jaxport.codegen.equinox.layers import DEFINITIONS, LAYERS
from jaxport.codegen.writing.dialect import Dialect, SequenceForm, listed
from jaxport.codegen.writing.literals import call, name

__all__ = ["EQUINOX"]

_LOADING = '''def load(path: str | Path | None = None) -> {model}:
    """The model with its weights: those beside this module, or those of another file of the same names."""
    return filled(load_file(Path(__file__).with_name("model.safetensors") if path is None else path))


def save(model: {model}, path: str | Path) -> None:
    """Write the weights of the model, as `load` reads them."""
    save_file(named(model), path)


def filled(tensors: Mapping[str, Array]) -> {model}:
    """The model with weights by path."""
    model = abstract()
    for name, leaf in named(model).items():
        if name not in tensors or tensors[name].shape != leaf.shape:
            raise ValueError(f"the file has no tensor `{{name}}` of shape {{leaf.shape}}")
    arrays, others = eqx.partition(model, is_tensor)
    weights = [jnp.asarray(tensors[name]) for name in named(model)]
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), weights), others)


def named(model: {model}) -> dict[str, Array]:
    """The weights of the model by path, in the order of `jax.tree.leaves`."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(model, is_tensor))
    return {{".".join(str(getattr(key, "name", getattr(key, "idx", key))) for key in path): leaf for path, leaf in leaves}}


def is_tensor(leaf: Any) -> bool:
    """Whether a leaf is a weight, and no rate or mode of a layer."""
    return hasattr(leaf, "shape")


def abstract() -> {model}:
    """The model with shapes in place of its weights."""
    return eqx.filter_eval_shape(lambda: {model}(keys=keys_from(0)))


def keys_from(seed: int) -> Iterator[Array]:
    """Random keys, one for each layer."""
    key = jax.random.key(seed)
    while True:
        key, other = jax.random.split(key)
        yield other
'''


_FREEZING = '''TRAINED = {trained}
"""The modules and weights that are trained."""


def is_trained(model: {model}) -> {model}:
    """Whether each leaf is trained, for `eqx.partition` and the filters of optimizers: a weight inside of `TRAINED`."""

    def is_inside(keys: tuple, leaf: Any) -> bool:
        path = ".".join(str(getattr(key, "name", getattr(key, "idx", key))) for key in keys)
        return is_tensor(leaf) and any(f"{{path}}.".startswith(f"{{part}}.") for part in TRAINED)

    return jax.tree_util.tree_map_with_path(is_inside, model)


'''


def _loading(model: str, is_random: bool, trained: Sequence[str] | None) -> str:
    """Return the source of `load`, and that of the filter of what is trained."""
    del is_random
    freezing = "" if trained is None else _FREEZING.format(model=model, trained=repr(tuple(trained)))
    return freezing + _LOADING.format(model=model)


_SEQUENTIAL = SequenceForm(lambda elements: call("Sequential", listed(elements)), ("layers",))

EQUINOX = Dialect(
    name="equinox",
    layers=LAYERS,
    accepts=lambda layer: (
        layer.kind in LAYERS
        and not layer.config.get("in_single")
        and (bool(layer.weights) or layer.kind not in ("LayerNorm", "RMSNorm"))
    ),
    functions={},
    base="eqx.Module",
    imports=("import equinox as eqx",),
    signature=("keys", "Iterator"),
    sequence=lambda modules: modules,
    sequential=dict.fromkeys(("", "layers"), _SEQUENTIAL),
    parameter=lambda array: array,
    table=lambda array: array,
    random=lambda *sizes: ast.Call(call("nn.initializers.lecun_normal"), [call("next", name("keys")), *sizes], []),
    value=lambda weight: weight,
    frozen=lambda table: call("lax.stop_gradient", table),
    declared=True,
    definitions=DEFINITIONS,
    loading=_loading,
    reserved=frozenset({"keys", "key"}),
)
"""Equinox."""
