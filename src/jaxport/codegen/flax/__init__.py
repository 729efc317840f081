"""Structured source for Flax NNX."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jaxport.codegen.flax.functions import FUNCTIONS
from jaxport.codegen.flax.layers import DEFINITIONS, LAYERS, accepts
from jaxport.codegen.writing.dialect import Dialect, SequenceForm, listed
from jaxport.codegen.writing.literals import call

__all__ = ["NNX"]

_TABLE = '''class Table(nnx.Variable):
    """A tensor that is not trained."""
'''

_LOADING = '''def load(path: str | Path | None = None) -> {model}:
    """The model with its weights: those beside this module, or those of another file of the same names."""
    return filled(load_file(Path(__file__).with_name("model.safetensors") if path is None else path))


def save(model: {model}, path: str | Path) -> None:
    """Write the weights of the model, as `load` reads them."""
    save_file({{name: variable[...] for name, variable in named(model).items()}}, path)


def filled(tensors: Mapping[str, Array]) -> {model}:
    """The model with weights by path."""
    model = abstract(){seeded}
    for name, variable in named(model).items():
        if name not in tensors or tensors[name].shape != variable.shape:
            raise ValueError(f"the file has no tensor `{{name}}` of shape {{variable.shape}}")
        variable.set_value(jnp.asarray(tensors[name]))
    return model


def named(model: {model}) -> dict[str, nnx.Variable]:
    """The weights of the model by path."""
    return {{".".join(map(str, key)): variable for key, variable in nnx.to_flat_state({weights})}}


def abstract() -> {model}:
    """The model with shapes in place of its weights."""
    return nnx.eval_shape(lambda: {made})
'''
_FREEZING = '''TRAINED = {trained}
"""The modules and weights that are trained. All other weights are `Frozen`."""


class Frozen(nnx.Variable):
    """A weight that is not trained: optimizers and `nnx.grad` select `nnx.Param`."""


def frozen(model: {model}) -> {model}:
    """The model, whose weights outside of `TRAINED` are no longer parameters."""
    for path, module in nnx.iter_modules(model):
        for name, weight in list(vars(module).items()):
            place = ".".join(map(str, (*path, name)))
            if isinstance(weight, nnx.Param) and not any(f"{{place}}.".startswith(f"{{part}}.") for part in TRAINED):
                setattr(module, name, Frozen(weight[...]))
    return model


'''


def _loading(model: str, is_random: bool, trained: Sequence[str] | None) -> str:
    """Return the source of `load`; the keys of random numbers are no weights, and begin with a seed."""
    weights = "nnx.state(model, nnx.Not(nnx.RngState))" if is_random else "nnx.state(model)"
    seeded = "\n    nnx.reseed(model, default=0)" if is_random else ""
    made = f"{model}(rngs=nnx.Rngs(0))"
    freezing = "" if trained is None else _FREEZING.format(model=model, trained=repr(tuple(trained)))
    made = made if trained is None else f"frozen({made})"
    return freezing + _LOADING.format(model=model, weights=weights, seeded=seeded, made=made)


_RESERVED = "train eval sow perturb set_attributes iter_modules iter_children init rngs"


def _value(weight: ast.expr) -> ast.expr:
    return ast.Subscript(weight, ast.Constant(...), ast.Load())


NNX = Dialect(
    name="nnx",
    layers=LAYERS,
    accepts=accepts,
    functions=FUNCTIONS,
    base="nnx.Module",
    imports=("from flax import nnx",),
    signature=("rngs", "nnx.Rngs"),
    sequence=lambda modules: call("nnx.List", modules),
    sequential={
        "": SequenceForm(lambda elements: call("Sequential", listed(elements)), ()),
        "layers": SequenceForm(lambda elements: call("nnx.Sequential", *elements), ("layers",)),
    },
    parameter=lambda array: call("nnx.Param", array),
    table=lambda array: call("Table", array),
    random=lambda *sizes: ast.Call(call("nnx.initializers.lecun_normal"), [call("rngs.params"), *sizes], []),
    value=_value,
    frozen=_value,
    declared=False,
    definitions={"Table": _TABLE, **DEFINITIONS},
    loading=_loading,
    reserved=frozenset(_RESERVED.split()),
    attends="attend",
)
"""Flax's NNX."""
